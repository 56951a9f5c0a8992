//! Arrays of Python as memory, and memory as arrays.

use std::ffi::CStr;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qaic_mem::{HostSlice, Pod, Storage};
use qaic_runtime::binding::ArrayLayout;
use qaic_runtime::request::{ArrayId, Arrays};

use crate::buffers::{Exports, array_over};
use crate::errors::Raise;

/// A borrowed Python array with elements of one type.
pub(super) struct Lent {
    exports: Exports,
    id: ArrayId,
    pub(super) shape: Vec<usize>,
}

impl Lent {
    /// Takes a C-contiguous array whose element format is `format`; `dtype` is the name of that format in messages.
    pub(super) fn take(py: Python<'_>, array: &Bound<'_, PyAny>, format: u8, dtype: &str) -> PyResult<Self> {
        let mut exports = Exports::with_capacity(1);
        let lent = exports.take(array, false).and_then(|exported| {
            let shape: Option<Vec<usize>> =
                exported.argument.shape.iter().map(|&dim| usize::try_from(dim).ok()).collect();
            (exported.argument.format == [format]).then_some((exported.id, shape?))
        });
        let Some((id, shape)) = lent else {
            let found = array
                .getattr("dtype")
                .and_then(|dtype| Ok(format!("an array of {dtype} of shape {}", array.getattr("shape")?)))
                .unwrap_or_else(|_| array.get_type().to_string());
            let text = format!("{found} was given; a C-contiguous {dtype} array is expected");
            return Err(Raise::new(py, "InputTypeError", "quant.array", text).build());
        };
        Ok(Self { exports, id, shape })
    }

    pub(super) fn floats(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::take(py, array, b'f', "float32")
    }

    pub(super) fn memory(&self) -> HostSlice<'_> {
        self.exports.memory(self.id)
    }

    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Creates a numpy array of this shape on the storage.
pub(super) fn array<'py>(
    py: Python<'py>,
    storage: Storage,
    shape: &[usize],
    format: &CStr,
    item_bytes: usize,
) -> PyResult<Bound<'py, PyAny>> {
    array_over(py, storage, &ArrayLayout::new(shape, format, item_bytes))
}

/// Converts a scalar, a sequence or an array to a flat vector of the numpy type `dtype`.
pub(super) fn numbers<T: Pod + Default>(
    py: Python<'_>,
    value: &Bound<'_, PyAny>,
    dtype: &str,
    format: u8,
) -> PyResult<Vec<T>> {
    let options = PyDict::new(py);
    options.set_item("dtype", dtype)?;
    options.set_item("order", "C")?;
    options.set_item("ndmin", 1)?;
    let flat = py.import("numpy")?.getattr("array")?.call((value,), Some(&options))?;
    let lent = Lent::take(py, &flat, format, dtype)?;
    let mut numbers = vec![T::default(); lent.len()];
    let _ = lent.memory().read_into(0, &mut numbers);
    Ok(numbers)
}
