//! Reads what a client passes to `setData`: buffers for all bindings, or arrays for some (python-api §B.8).

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use qaic_runtime::error::RuntimeError;

use super::edges::{Edge, Edges, refused};
use super::numbers::whole;
use super::status::QStatus;
use super::wires::Listed;
use crate::buffers::{Backing, Held, PyQBuffer};

/// A call that changes nothing and answers with a status.
pub(crate) struct Refused {
    pub(crate) status: QStatus,
    pub(crate) error: RuntimeError,
}

impl From<RuntimeError> for Refused {
    fn from(error: RuntimeError) -> Self {
        let status = match error {
            // The wires of an inference under way cannot be touched; later they can.
            RuntimeError::InFlight => QStatus::Busy,
            _ => QStatus::of(&error),
        };
        Self { status, error }
    }
}

/// What was passed.
pub(crate) enum Given {
    /// A buffer for every binding.
    All(Vec<Arc<Backing>>),
    /// Index and value of some bindings, in the order of the list.
    Some(Vec<(i64, Py<PyAny>)>),
}

/// An outcome that is a status, unless Python raised.
pub(crate) type Answer<T> = PyResult<Result<T, Refused>>;

/// Reads the first argument of `setData`.
pub(crate) fn read(data: &Bound<'_, PyAny>) -> Answer<Given> {
    let items = match data.cast::<PyList>() {
        Ok(list) => list.clone(),
        Err(_) => listed_otherwise(data)?,
    };
    match items.get_item(0) {
        Ok(first) if first.is_instance_of::<PyTuple>() => Ok(Ok(Given::Some(pairs(&items)?))),
        _ => Ok(buffers(&items)?.map(Given::All)),
    }
}

/// The list that an `InferenceVector` has, or that another iterable gives.
fn listed_otherwise<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let data = match data.getattr_opt("getVector")? {
        Some(vector) => vector.call0()?,
        None => data.clone(),
    };
    let items = data.try_iter().map_err(|_| {
        let found = data.get_type();
        let name = found.name().map_or_else(|_| String::new(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "a list of QBuffer, a list of (index, array) or an InferenceVector is expected, not {name}"
        ))
    })?;
    PyList::new(data.py(), items.collect::<PyResult<Vec<_>>>()?)
}

/// Reads a list of (index, value).
pub(crate) fn pairs(items: &Bound<'_, PyList>) -> PyResult<Vec<(i64, Py<PyAny>)>> {
    items
        .iter()
        .map(|item| {
            let pair = item.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2).ok_or_else(|| {
                let found = item.repr().map_or_else(|_| String::new(), |text| text.to_string());
                PyTypeError::new_err(format!("a pair of binding index and array is expected; got {found}"))
            })?;
            let index = pair.get_item(0)?;
            let value = pair.get_item(1)?.unbind();
            Ok((whole(&index)?, value))
        })
        .collect()
}

/// Reads a list of `QBuffer`.
pub(crate) fn buffers(items: &Bound<'_, PyList>) -> Answer<Vec<Arc<Backing>>> {
    let mut backings = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let Ok(buffer) = item.cast::<PyQBuffer>() else {
            let found = item.get_type();
            return Err(PyTypeError::new_err(format!(
                "buffer {index} is a {}; a QBuffer is expected",
                found.name()?
            )));
        };
        match wired(buffer.get(), index) {
            Ok(backing) => backings.push(backing),
            Err(refused) => return Ok(Err(refused)),
        }
    }
    Ok(Ok(backings))
}

fn wired(buffer: &PyQBuffer, index: usize) -> Result<Arc<Backing>, Refused> {
    if buffer.is_what_it_says() {
        return Ok(Arc::clone(buffer.backing()));
    }
    let error = refused(format!(
        "buffer {index} has a type that its memory is not of; heap memory is QBUFFER_TYPE_HEAP, what \
         QBuffer.from_dma_buf makes is QBUFFER_TYPE_DMABUF"
    ));
    Err(Refused { status: QStatus::Unsupported, error })
}

/// Reads what is listed for a binding: an array with its shape, or a `QBuffer` of the shape that goes with its size.
///
/// Inputs whose elements do not follow each other are copied; outputs of that kind are refused.
pub(crate) fn listed(edges: &Edges, index: usize, value: &Bound<'_, PyAny>) -> Answer<Listed> {
    let edge = match edges.get(index) {
        Ok(edge) => edge,
        Err(error) => return Ok(Err(error.into())),
    };
    if let Ok(buffer) = value.cast::<PyQBuffer>() {
        return Ok(wired(buffer.get(), index).map(|backing| {
            let shape = edges.dims_of_size(index, edges.tensor_bytes(index, &backing));
            Listed { index, backing, shape }
        }));
    }
    let array = held(edge, value)?;
    let shape = (array.item_bytes() as u64, array.shape().iter().map(|&dim| dim as i64).collect());
    if array.is_contiguous() {
        return Ok(over(edge, array).map(|backing| Listed { index, backing, shape: Some(shape) }));
    }
    if !edge.is_input {
        return Ok(Err(scattered(edge, &array).into()));
    }
    let copy = Held::take(&in_c_order(value)?)?;
    Ok(over(edge, copy).map(|backing| Listed { index, backing, shape: Some(shape) }))
}

/// The exported buffer of an array.
pub(crate) fn held(edge: &Edge, value: &Bound<'_, PyAny>) -> PyResult<Held> {
    Held::take(value).map_err(|cause| {
        let found = value.get_type();
        let name = found.name().map_or_else(|_| String::new(), |name| name.to_string());
        let refusal =
            PyTypeError::new_err(format!("`{}` was given a {name}; a numpy array is expected", edge.name));
        refusal.set_cause(value.py(), Some(cause));
        refusal
    })
}

fn over(edge: &Edge, array: Held) -> Result<Arc<Backing>, Refused> {
    Backing::over(array).map_err(|array| scattered(edge, &array).into())
}

/// Why an array cannot be used in place.
pub(crate) fn scattered(edge: &Edge, array: &Held) -> RuntimeError {
    refused(format!(
        "`{}` was given an array of shape {:?} with strides {:?}; a C-contiguous one is expected",
        edge.name,
        array.shape(),
        array.strides()
    ))
}

/// A copy of an array with its elements in C order.
pub(crate) fn in_c_order<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static COPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    let copy =
        COPY.get_or_try_init(py, || py.import("numpy")?.getattr("ascontiguousarray").map(Bound::unbind))?;
    copy.bind(py).call1((value,))
}
