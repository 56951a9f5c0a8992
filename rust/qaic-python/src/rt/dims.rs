//! `qaicrt.BufferDimensionsVecRef`: element size and dims of every binding.

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use qaic_runtime::binding::{GivenShape, ShapeList};

/// List of (element size, dims), one per binding.
///
/// Dims are read back as lists, whatever sequence they were set from.
#[pyclass(name = "BufferDimensionsVecRef", module = "qaicrt", frozen, sequence)]
pub(crate) struct PyDims {
    entries: ShapeList,
}

impl PyDims {
    /// Lets `read` see the entries. No Python code may run in it.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&[GivenShape]) -> T) -> T {
        self.entries.with(read)
    }

    fn no_entry(&self, index: isize) -> PyErr {
        let len = self.entries.len();
        PyIndexError::new_err(format!("index {index} is out of range; there are {len} bindings"))
    }
}

#[pymethods]
impl PyDims {
    #[new]
    #[pyo3(signature = (dims = None))]
    fn new(dims: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let entries = dims.map(entries).transpose()?.unwrap_or_default();
        Ok(Self { entries: ShapeList::new(entries) })
    }

    fn __len__(&self) -> usize {
        self.entries.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyTuple>> {
        let entry = self.entries.get(index).ok_or_else(|| self.no_entry(index))?;
        (entry.item_bytes, entry.dims).into_pyobject(py)
    }

    fn __setitem__(&self, index: isize, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.entries.set(index, entry(value)?) { Ok(()) } else { Err(self.no_entry(index)) }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.list(py)?.call_method0("__iter__")
    }

    /// Adds the element size and dims of one more binding.
    fn append(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.entries.push(entry(value)?);
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
        let entries = self.with(<[_]>::to_vec);
        PyList::new(py, entries.into_iter().map(|GivenShape { item_bytes, dims }| (item_bytes, dims)))
    }
}

/// The entries of a `BufferDimensionsVecRef`, or of any sequence of pairs.
pub(crate) fn entries(value: &Bound<'_, PyAny>) -> PyResult<Vec<GivenShape>> {
    if let Ok(dims) = value.cast::<PyDims>() {
        return Ok(dims.get().with(<[_]>::to_vec));
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
