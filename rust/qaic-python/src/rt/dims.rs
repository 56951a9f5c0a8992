//! `qaicrt.BufferDimensionsVecRef`: element size and dims of every binding.

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use qaic_runtime::binding::GivenShape;

/// List of (element size, dims), one per binding.
///
/// Dims are returned as lists, regardless of the type of sequence that set them.
#[pyclass(name = "BufferDimensionsVecRef", module = "qaicrt", sequence)]
pub(crate) struct PyDims {
    entries: Vec<GivenShape>,
}

impl PyDims {
    /// Borrows the entries. No Python code may run during the borrow, because access from Python would fail.
    pub(crate) fn shapes(&self) -> &[GivenShape] {
        &self.entries
    }

    /// Returns the position of an entry; a negative index counts from the back.
    fn position(&self, index: isize) -> PyResult<usize> {
        let len = self.entries.len();
        let distance = index.unsigned_abs();
        let position = if index < 0 { len.checked_sub(distance) } else { Some(distance) };
        position.filter(|&position| position < len).ok_or_else(|| {
            PyIndexError::new_err(format!("index {index} is out of range: the number of bindings is {len}"))
        })
    }
}

#[pymethods]
impl PyDims {
    #[new]
    #[pyo3(signature = (dims = None))]
    fn new(dims: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self { entries: dims.map(entries).transpose()?.unwrap_or_default() })
    }

    fn __len__(&self) -> usize {
        self.entries.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyTuple>> {
        let entry = &self.entries[self.position(index)?];
        (entry.item_bytes, entry.dims.as_slice()).into_pyobject(py)
    }

    fn __setitem__(slf: &Bound<'_, Self>, index: isize, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let entry = entry(value)?;
        let mut this = slf.try_borrow_mut()?;
        let position = this.position(index)?;
        this.entries[position] = entry;
        Ok(())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.list(py)?.call_method0("__iter__")
    }

    /// Appends the element size and dims of a binding.
    fn append(slf: &Bound<'_, Self>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let entry = entry(value)?;
        slf.try_borrow_mut()?.entries.push(entry);
        Ok(())
    }

    fn __eq__(slf: &Bound<'_, Self>, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        match entries(other) {
            Ok(other) => Ok(*slf.try_borrow()?.entries == other),
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
        PyList::new(
            py,
            self.entries.iter().map(|GivenShape { item_bytes, dims }| (*item_bytes, dims.as_slice())),
        )
    }
}

/// Reads the entries of a `BufferDimensionsVecRef`, or of any sequence of pairs.
pub(crate) fn entries(value: &Bound<'_, PyAny>) -> PyResult<Vec<GivenShape>> {
    if let Ok(dims) = value.cast::<PyDims>() {
        return Ok(dims.try_borrow()?.shapes().to_vec());
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
            // Lists of two elements are accepted as well as tuples.
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
