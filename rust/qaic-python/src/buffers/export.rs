//! Arrays that stay exported while their memory is in use.
//!
//! The release of a buffer runs Python code. A dropped export therefore waits in a list until the next call from
//! Python releases it ([`release_dropped`]).

use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use qaic_mem::{Deferred, DropList, HostSlice, SharedMemory};
use qaic_runtime::binding::Argument;

use super::entries;

/// Memory of an array with any strides, from the buffer protocol.
pub(crate) struct BufferExport {
    // Never moved after the export: an exporter may let `shape` point into the structure.
    view: Deferred<View>,
}

struct View(ffi::Py_buffer);

// SAFETY: the structure is filled before it is shared, only read then, and released by an attached thread.
unsafe impl Send for View {}
// SAFETY: as for `Send`.
unsafe impl Sync for View {}

/// Dropped exports that are not yet released.
static DROPPED: DropList<View> = DropList::new();

impl BufferExport {
    /// Takes the buffer of `value`, writable or read-only. The element format is not requested, because only the
    /// element size matters and some types have no format.
    pub(crate) fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Deferred::new(&DROPPED, View(ffi::Py_buffer::new()));
        // SAFETY: `view` is writable room for one structure; the thread is attached, as `value` proves.
        let status = unsafe { ffi::PyObject_GetBuffer(value.as_ptr(), &raw mut view.0, ffi::PyBUF_STRIDES) };
        if status != 0 {
            // The release of an empty structure has no effect.
            return Err(
                PyErr::take(value.py()).unwrap_or_else(|| PyBufferError::new_err("the object has no buffer"))
            );
        }
        Ok(Self { view })
    }

    /// Returns shape and strides of the exporter's memory. The element format is unknown.
    pub(crate) fn argument(&self) -> Argument<'_> {
        let view = &self.view.0;
        // SAFETY: PyBUF_STRIDES implies `ndim` entries that live as long as the export.
        let shape = unsafe { entries(view.shape, view.ndim) };
        // SAFETY: as for the shape.
        let strides = unsafe { entries(view.strides, view.ndim) };
        Argument {
            format: b"",
            item_bytes: usize::try_from(view.itemsize).unwrap_or(0),
            shape,
            strides,
            address: view.buf.addr(),
            is_readonly: view.readonly != 0,
        }
    }

    /// Returns all bytes of a contiguous array. For a strided array, returns the bytes from the first element to the
    /// end of the last one; `None` if elements are before the first one in memory.
    pub(crate) fn memory(&self) -> Option<HostSlice<'_>> {
        let len = self.argument().span_bytes()?;
        // SAFETY: the exporter keeps every element valid until the release, which takes this value, and the last one ends
        // `len` bytes after the first begins. Python threads may write the memory, which `HostSlice` allows.
        Some(unsafe { HostSlice::new(self.view.0.buf.cast(), len) })
    }

    /// Shares the memory of the array from its first element on. The shared memory is empty if elements are before
    /// the first one.
    pub(crate) fn share(self) -> Arc<SharedMemory> {
        let memory = self.memory().unwrap_or(HostSlice::empty());
        let (address, len) = (memory.as_ptr().cast_mut(), memory.len());
        let is_readonly = self.view.0.readonly != 0;
        // SAFETY: the export keeps the memory and reports whether it is writable. Python code must not write to an
        // array while an inference uses it: the documentation of `QBuffer` states that rule.
        unsafe { SharedMemory::foreign(address, len, is_readonly, self) }
    }
}

/// Releases the exports that were dropped since the last call. This runs Python code, so the caller must not hold a
/// lock.
pub(crate) fn release_dropped(_attached: Python<'_>) {
    // SAFETY: filled by `take` or empty, released once, by an attached thread.
    DROPPED.release(|view| unsafe { ffi::PyBuffer_Release(&raw mut view.0) });
}
