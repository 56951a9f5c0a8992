//! Arrays that stay exported for as long as their memory is used.
//!
//! Giving a buffer back runs Python code, so a dropped export waits on a list for the next call that comes from Python
//! ([`release_dropped`]).

use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use qaic_mem::{Deferred, DropList, HostSlice, SharedMemory};
use qaic_runtime::binding::Argument;

use super::entries;

/// The memory of an array, by the buffer protocol, with any strides.
pub(crate) struct BufferExport {
    // Never moved once filled: an exporter may let `shape` point into the structure.
    view: Deferred<View>,
}

struct View(ffi::Py_buffer);

// SAFETY: the structure is filled before it is shared, only read then, and released by an attached thread.
unsafe impl Send for View {}
// SAFETY: as for `Send`.
unsafe impl Sync for View {}

/// Exports that are not used any more.
static DROPPED: DropList<View> = DropList::new();

impl BufferExport {
    /// Takes the buffer of `value`, read-only or not as the value has it. Its element format is not asked for: only the
    /// size of an element counts here, and types without a format may come.
    pub(crate) fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Deferred::new(&DROPPED, View(ffi::Py_buffer::new()));
        // SAFETY: `view` is writable room for one structure; the thread is attached, as `value` proves.
        let status = unsafe { ffi::PyObject_GetBuffer(value.as_ptr(), &raw mut view.0, ffi::PyBUF_STRIDES) };
        if status != 0 {
            // The empty structure is released as nothing.
            return Err(
                PyErr::take(value.py()).unwrap_or_else(|| PyBufferError::new_err("the object has no buffer"))
            );
        }
        Ok(Self { view })
    }

    /// Returns shape and strides of the exporter's memory. The element format is not known.
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

    /// All bytes of a contiguous array. For a strided one, from the first element to the end of the last in memory;
    /// `None` when elements lie before the first.
    pub(crate) fn memory(&self) -> Option<HostSlice<'_>> {
        let len = self.argument().span_bytes()?;
        // SAFETY: the exporter keeps every element valid until the release, which takes this value, and the last one ends
        // `len` bytes after the first begins. Python threads may write the memory, which `HostSlice` allows.
        Some(unsafe { HostSlice::new(self.view.0.buf.cast(), len) })
    }

    /// The memory of the array, from its first element on; none where elements lie before that.
    pub(crate) fn share(self) -> Arc<SharedMemory> {
        let memory = self.memory().unwrap_or(HostSlice::empty());
        let (address, len) = (memory.as_ptr().cast_mut(), memory.len());
        let is_readonly = self.view.0.readonly != 0;
        // SAFETY: the export keeps the memory and reports whether it is writable. Python code must not write an array
        // while an inference has it: the documentation of `QBuffer` states that rule.
        unsafe { SharedMemory::foreign(address, len, is_readonly, self) }
    }
}

/// Gives back the exports that were dropped since the last call. Runs Python code: no lock may be held.
pub(crate) fn release_dropped(_attached: Python<'_>) {
    // SAFETY: filled by `take` or empty, released once, by an attached thread.
    DROPPED.release(|view| unsafe { ffi::PyBuffer_Release(&raw mut view.0) });
}
