//! `TensorHistogram`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use qaic_mem::{HostSlice, Storage};
use qaic_quant::error::QuantError;
use qaic_quant::histogram::{Extent, Histogram};
use qaic_runtime::error::RuntimeError;

use super::arrays::{Lent, array as array_of, pieces};
use super::refused;
use crate::gil::Detach;

const MAX_BINS: usize = 65_536;

/// How the values of a tensor are distributed.
#[pyclass(frozen, name = "TensorHistogram", module = "qaic._core")]
pub(crate) struct PyTensorHistogram {
    // BufferExport only without the interpreter lock, or for copies.
    histogram: Mutex<Histogram>,
}

impl PyTensorHistogram {
    fn lock(&self) -> MutexGuard<'_, Histogram> {
        // Counting does not panic half way.
        self.histogram.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_all(&self, values: HostSlice<'_>) -> Result<(), QuantError> {
        let mut extent = Extent::default();
        pieces(values, |_, piece: &[f32]| {
            extent.add(piece);
            Ok::<(), QuantError>(())
        })?;
        let mut histogram = self.lock();
        histogram.prepare(&extent)?;
        pieces(values, |_, piece: &[f32]| {
            histogram.count_prepared(piece);
            Ok(())
        })
    }
}

#[pymethods]
impl PyTensorHistogram {
    #[new]
    fn new() -> Self {
        Self { histogram: Mutex::default() }
    }

    fn add(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = Lent::floats(py, array)?;
        let memory = values.memory();
        py.detached(|| Ok(self.count_all(memory)))?.map_err(|error| refused(py, &error))
    }

    fn merge(&self, py: Python<'_>, other: &Self) -> PyResult<()> {
        py.detached(|| {
            // A copy first: two threads may merge two histograms into each other, or one into itself.
            let theirs = other.lock().clone();
            self.lock().merge(theirs);
            Ok(())
        })
    }

    #[getter]
    fn minimum(&self, py: Python<'_>) -> PyResult<f32> {
        py.detached(|| Ok(self.lock().range().0))
    }

    #[getter]
    fn maximum(&self, py: Python<'_>) -> PyResult<f32> {
        py.detached(|| Ok(self.lock().range().1))
    }

    #[getter]
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        py.detached(|| Ok(self.lock().count()))
    }

    fn counts<'py>(&self, py: Python<'py>, bins: usize) -> PyResult<Bound<'py, PyAny>> {
        if !(1..=MAX_BINS).contains(&bins) {
            let what = format!("{bins} bins; 1 to {MAX_BINS} are expected");
            return Err(refused(py, &QuantError::Parameters { what }));
        }
        let storage =
            py.detached(|| -> Result<Storage, RuntimeError> { Ok(Storage::of(&self.lock().counts(bins))?) })?;
        array_of(py, storage, &[bins], c"f", size_of::<f32>())
    }
}
