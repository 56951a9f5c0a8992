//! Reads the argument of `setData`: buffers for all bindings, or arrays for some.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use qaic_mem::SharedMemory;
use qaic_runtime::QStatus;
use qaic_runtime::binding::{BindingSpec, BindingSpecs, GivenShape};
use qaic_runtime::request::ListedBuffer;

use super::numbers::whole;
use super::status::{Answer, Refusal, refused};
use crate::buffers::{BufferExport, PyQBuffer};

pub(crate) enum BufferArgument {
    /// A buffer for every binding.
    All(Vec<Arc<SharedMemory>>),
    /// Index and value of some bindings, in the order of the list.
    Some(Vec<(i64, Py<PyAny>)>),
}

/// Reads the first argument of `setData`.
pub(crate) fn read(data: &Bound<'_, PyAny>) -> Answer<BufferArgument> {
    let items = match data.cast::<PyList>() {
        Ok(list) => list.clone(),
        Err(_) => listed_otherwise(data)?,
    };
    match items.get_item(0) {
        Ok(first) if first.is_instance_of::<PyTuple>() => Ok(BufferArgument::Some(pairs(&items)?)),
        _ => Ok(BufferArgument::All(buffers(&items)?)),
    }
}

/// Returns the list of an `InferenceVector`, or of another iterable.
fn listed_otherwise<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let data = match data.getattr_opt("getVector")? {
        Some(vector) => vector.call0()?,
        None => data.clone(),
    };
    let items = data.try_iter().map_err(|_| {
        let name = type_name(&data);
        PyTypeError::new_err(format!(
            "a list of QBuffer, a list of (index, array) or an InferenceVector is expected, not {name}"
        ))
    })?;
    PyList::new(data.py(), items.collect::<PyResult<Vec<_>>>()?)
}

/// Returns a list as it is, or the items of an iterable as a list.
pub(crate) fn list_of<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    match value.cast::<PyList>() {
        Ok(list) => Ok(list.clone()),
        Err(_) => PyList::new(value.py(), value.try_iter()?.collect::<PyResult<Vec<_>>>()?),
    }
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
pub(crate) fn buffers(items: &Bound<'_, PyList>) -> Answer<Vec<Arc<SharedMemory>>> {
    let mut memories = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        memories.push(memory_of(buffer(&item, index)?.get(), index)?);
    }
    Ok(memories)
}

/// Returns true if an entry of a list is a `QBuffer` of this memory.
pub(crate) fn is_buffer(items: &Bound<'_, PyList>, index: usize, memory: &Arc<SharedMemory>) -> bool {
    let item = items.get_item(index);
    let buffer = item.as_ref().ok().and_then(|item| item.cast::<PyQBuffer>().ok()).map(Bound::get);
    buffer
        .is_some_and(|buffer| buffer.buffer.is_declared_right() && Arc::ptr_eq(&buffer.buffer.memory, memory))
}

/// Returns the `QBuffer` at an index of a list.
pub(crate) fn buffer<'a, 'py>(
    item: &'a Bound<'py, PyAny>,
    index: usize,
) -> PyResult<&'a Bound<'py, PyQBuffer>> {
    item.cast::<PyQBuffer>().map_err(|_| {
        let found = type_name(item);
        PyTypeError::new_err(format!("buffer {index} has type {found}; a QBuffer is expected"))
    })
}

/// Returns the type of a value, for messages.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| String::new(), |name| name.to_string())
}

fn memory_of(buffer: &PyQBuffer, index: usize) -> Answer<Arc<SharedMemory>> {
    let buffer = &buffer.buffer;
    if buffer.is_declared_right() {
        return Ok(Arc::clone(&buffer.memory));
    }
    let error = refused(format!(
        "the type of buffer {index} does not match its memory; heap memory is QBUFFER_TYPE_HEAP, and \
         memory of QBuffer.from_dma_buf is QBUFFER_TYPE_DMABUF"
    ));
    Err(Refusal::Failed(QStatus::Unsupported, error))
}

/// Reads the value of a binding: an array with its shape, or a `QBuffer` of the shape that matches its size.
///
/// Non-contiguous inputs are copied; non-contiguous outputs are an error.
pub(crate) fn listed(specs: &BindingSpecs, index: usize, value: &Bound<'_, PyAny>) -> Answer<ListedBuffer> {
    let spec = specs.get(index)?;
    if let Ok(buffer) = value.cast::<PyQBuffer>() {
        let memory = memory_of(buffer.get(), index)?;
        let shape = specs.shape_of_buffer(index, (&*memory).into());
        return Ok(ListedBuffer { index, memory, shape });
    }
    let array = held(spec, value)?;
    let argument = array.argument();
    let dims = argument.shape.iter().map(|&dim| dim.unsigned_abs() as u64).collect();
    let shape = Some(GivenShape { item_bytes: argument.item_bytes as u64, dims });
    if !spec.is_input {
        spec.check_contiguous(&argument)?;
    }
    let array = if argument.is_contiguous() { array } else { BufferExport::take(&in_c_order(value)?)? };
    Ok(ListedBuffer { index, memory: array.share(), shape })
}

/// Exports the buffer of an array.
pub(crate) fn held(spec: &BindingSpec, value: &Bound<'_, PyAny>) -> PyResult<BufferExport> {
    BufferExport::take(value).map_err(|cause| {
        let name = type_name(value);
        let refusal =
            PyTypeError::new_err(format!("`{}` was given type {name}; a numpy array is expected", spec.name));
        refusal.set_cause(value.py(), Some(cause));
        refusal
    })
}

/// Copies an array to C order.
pub(crate) fn in_c_order<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static COPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    COPY.import(value.py(), "numpy", "ascontiguousarray")?.call1((value,))
}
