//! `TensorHistogram`.

use pyo3::prelude::*;
use qaic_mem::Storage;
use qaic_mem::convert::pieces;
use qaic_quant::{Histogram, SharedHistogram, check_bins};
use qaic_runtime::RuntimeError;

use super::arrays::{Lent, array as array_of};
use super::refused;
use crate::gil::Detach;

/// Distribution of the values of a tensor.
#[pyclass(frozen, name = "TensorHistogram", module = "qaic._core")]
pub(crate) struct PyTensorHistogram {
    // Its methods block, so they must run without the interpreter lock.
    histogram: SharedHistogram,
}

impl PyTensorHistogram {
    fn read<T: Send>(&self, py: Python<'_>, read: impl FnOnce(&Histogram) -> T + Send) -> PyResult<T> {
        py.detached(|_| Ok(self.histogram.read(read)))
    }
}

#[pymethods]
impl PyTensorHistogram {
    #[new]
    fn new() -> Self {
        Self { histogram: SharedHistogram::default() }
    }

    fn add(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = Lent::floats(py, array)?;
        let memory = values.memory();
        let visit = |count: &mut dyn FnMut(&[f32])| pieces(memory, |_, piece: &[f32]| count(piece));
        py.detached(|_| Ok(self.histogram.add(visit)))?.map_err(|error| refused(py, &error))
    }

    fn merge(&self, py: Python<'_>, other: &Self) -> PyResult<()> {
        py.detached(|_| {
            self.histogram.merge(&other.histogram);
            Ok(())
        })
    }

    #[getter]
    fn minimum(&self, py: Python<'_>) -> PyResult<f32> {
        self.read(py, |histogram| histogram.range().0)
    }

    #[getter]
    fn maximum(&self, py: Python<'_>) -> PyResult<f32> {
        self.read(py, |histogram| histogram.range().1)
    }

    #[getter]
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        self.read(py, Histogram::count)
    }

    fn counts<'py>(&self, py: Python<'py>, bins: usize) -> PyResult<Bound<'py, PyAny>> {
        check_bins(bins).map_err(|error| refused(py, &error))?;
        let storage = py.detached(|_| -> Result<Storage, RuntimeError> {
            Ok(Storage::of(&self.histogram.read(|histogram| histogram.counts(bins)))?)
        })?;
        array_of(py, storage, &[bins], c"f", size_of::<f32>())
    }
}
