//! `qaicrt.BufferDimensionsVecRef`: element size and dims of every binding.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use qaic_runtime::binding::GivenShape;

/// List of (element size, dims), one per binding.
///
/// Dims are read back as lists, whatever sequence they were set from.
#[pyclass(name = "BufferDimensionsVecRef", module = "qaicrt", frozen, sequence)]
pub(crate) struct PyDims {
    entries: Mutex<Vec<GivenShape>>,
}

impl PyDims {
    /// Lets `read` see the entries. No lock may be taken in it, nor Python code run.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&mut Vec<GivenShape>) -> T) -> T {
        read(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A position counted from the front, or from the back when it is negative.
    fn position(&self, index: isize) -> PyResult<usize> {
        let len = self.with(|entries| entries.len());
        let position =
            if index < 0 { len.checked_sub(index.unsigned_abs()) } else { Some(index.unsigned_abs()) };
        position.filter(|&position| position < len).ok_or_else(|| {
            PyIndexError::new_err(format!("index {index} is out of range; there are {len} bindings"))
        })
    }
}

#[pymethods]
impl PyDims {
    #[new]
    #[pyo3(signature = (dims = None))]
    fn new(dims: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let entries = dims.map(entries).transpose()?.unwrap_or_default();
        Ok(Self { entries: Mutex::new(entries) })
    }

    fn __len__(&self) -> usize {
        self.with(|entries| entries.len())
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyTuple>> {
        let position = self.position(index)?;
        let entry = self.with(|entries| entries.get(position).cloned());
        let GivenShape { item_bytes, dims } = entry.ok_or_else(|| PyIndexError::new_err(index))?;
        (item_bytes, dims).into_pyobject(py)
    }

    fn __setitem__(&self, index: isize, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = entry(value)?;
        let position = self.position(index)?;
        self.with(|entries| entries.get_mut(position).map(|slot| *slot = value))
            .ok_or_else(|| PyIndexError::new_err(index))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.list(py)?.call_method0("__iter__")
    }

    /// Adds the element size and dims of one more binding.
    fn append(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = entry(value)?;
        self.with(|entries| entries.push(value));
        Ok(())
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        match entries(other) {
            Ok(other) => Ok(self.with(|entries| *entries == other)),
            Err(error) if error.is_instance_of::<PyTypeError>(py) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("BufferDimensionsVecRef({})", self.list(py)?.repr()?))
    }
}

impl PyDims {
    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let entries = self.with(|entries| entries.clone());
        PyList::new(py, entries.into_iter().map(|GivenShape { item_bytes, dims }| (item_bytes, dims)))
    }
}

/// The entries of a `BufferDimensionsVecRef`, or of any sequence of pairs.
pub(crate) fn entries(value: &Bound<'_, PyAny>) -> PyResult<Vec<GivenShape>> {
    if let Ok(dims) = value.cast::<PyDims>() {
        return Ok(dims.get().with(|entries| entries.clone()));
    }
    value.try_iter()?.map(|item| entry(&item?)).collect()
}

fn entry(value: &Bound<'_, PyAny>) -> PyResult<GivenShape> {
    let expected = || {
        let found = value.repr().map_or_else(|_| String::new(), |text| text.to_string());
        PyTypeError::new_err(format!(
            "a pair of element size and dims is expected, like (4, [1, 8]); got {found}"
        ))
    };
    let (item_bytes, dims) = match value.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => (pair.get_item(0)?, pair.get_item(1)?),
        Ok(_) => return Err(expected()),
        Err(_) => value.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>().or_else(|_| {
            // A list of two is as good as a tuple.
            let mut parts = value.try_iter().map_err(|_| expected())?;
            match (parts.next(), parts.next(), parts.next()) {
                (Some(first), Some(second), None) => Ok((first?, second?)),
                _ => Err(expected()),
            }
        })?,
    };
    let item_bytes = item_bytes.extract::<u64>().map_err(|_| expected())?;
    let dims = dims
        .try_iter()
        .map_err(|_| expected())?
        .map(|dim| dim?.extract::<i64>())
        .collect::<PyResult<Vec<_>>>()
        .map_err(|_| expected())?;
    if let Some(negative) = dims.iter().find(|&&dim| dim < 0) {
        return Err(PyValueError::new_err(format!("dim {negative} is negative; dims were {dims:?}")));
    }
    Ok(GivenShape { item_bytes, dims: dims.into_iter().map(i64::unsigned_abs).collect() })
}
