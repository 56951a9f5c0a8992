//! Reads what a client passes to `setData`: buffers for all bindings, or arrays for some.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use qaic_runtime::binding::{BindingSpec, BindingSpecs, GivenShape};
use qaic_runtime::error::{ErrorDetail, RuntimeError, StateError};

use super::bound_buffers::Listed;
use super::numbers::{refused, whole};
use super::status::QStatus;
use crate::buffers::{Backing, BufferExport, PyQBuffer};

/// A call that changes nothing and answers with a status.
pub(crate) struct Refused {
    pub(crate) status: QStatus,
    pub(crate) error: RuntimeError,
}

impl From<RuntimeError> for Refused {
    fn from(error: RuntimeError) -> Self {
        let status = match error.detail() {
            // The bound of an inference under way cannot be touched; later they can.
            ErrorDetail::State(StateError::InFlight) => QStatus::Busy,
            _ => QStatus::of(&error),
        };
        Self { status, error }
    }
}

/// What was passed.
pub(crate) enum BufferArgument {
    /// A buffer for every binding.
    All(Vec<Arc<Backing>>),
    /// Index and value of some bindings, in the order of the list.
    Some(Vec<(i64, Py<PyAny>)>),
}

/// An outcome that is a status, unless Python raised.
pub(crate) type Answer<T> = PyResult<Result<T, Refused>>;

/// Reads the first argument of `setData`.
pub(crate) fn read(data: &Bound<'_, PyAny>) -> Answer<BufferArgument> {
    let items = match data.cast::<PyList>() {
        Ok(list) => list.clone(),
        Err(_) => listed_otherwise(data)?,
    };
    match items.get_item(0) {
        Ok(first) if first.is_instance_of::<PyTuple>() => Ok(Ok(BufferArgument::Some(pairs(&items)?))),
        _ => Ok(buffers(&items)?.map(BufferArgument::All)),
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
        match backing_of(buffer.get(), index) {
            Ok(backing) => backings.push(backing),
            Err(refused) => return Ok(Err(refused)),
        }
    }
    Ok(Ok(backings))
}

fn backing_of(buffer: &PyQBuffer, index: usize) -> Result<Arc<Backing>, Refused> {
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
pub(crate) fn listed(specs: &BindingSpecs, index: usize, value: &Bound<'_, PyAny>) -> Answer<Listed> {
    let spec = match specs.get(index) {
        Ok(spec) => spec,
        Err(error) => return Ok(Err(error.into())),
    };
    if let Ok(buffer) = value.cast::<PyQBuffer>() {
        return Ok(backing_of(buffer.get(), index).map(|backing| {
            let shape = specs.shape_of_size(index, spec.tensor_bytes(backing.facts()));
            Listed { index, backing, shape }
        }));
    }
    let array = held(spec, value)?;
    let argument = array.argument();
    let dims = argument.shape.iter().map(|&dim| dim.unsigned_abs() as u64).collect();
    let shape = Some(GivenShape { item_bytes: argument.item_bytes as u64, dims });
    if let Err(error) = spec.check_contiguous(&argument)
        && !spec.is_input
    {
        return Ok(Err(error.into()));
    }
    let array = if argument.is_contiguous() { array } else { BufferExport::take(&in_c_order(value)?)? };
    Ok(Ok(Listed { index, backing: Backing::over(array), shape }))
}

/// The exported buffer of an array.
pub(crate) fn held(spec: &BindingSpec, value: &Bound<'_, PyAny>) -> PyResult<BufferExport> {
    BufferExport::take(value).map_err(|cause| {
        let found = value.get_type();
        let name = found.name().map_or_else(|_| String::new(), |name| name.to_string());
        let refusal =
            PyTypeError::new_err(format!("`{}` was given a {name}; a numpy array is expected", spec.name));
        refusal.set_cause(value.py(), Some(cause));
        refusal
    })
}

/// A copy of an array with its elements in C order.
pub(crate) fn in_c_order<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static COPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    let copy =
        COPY.get_or_try_init(py, || py.import("numpy")?.getattr("ascontiguousarray").map(Bound::unbind))?;
    copy.bind(py).call1((value,))
}
