//! Arrays that stay exported for as long as their memory is used.
//!
//! An export is let go on whichever thread uses it last, which may be one that runs inferences, or one that holds a lock.
//! Giving a buffer back runs Python code, so a dropped export only goes onto a list; the next call that comes from Python
//! empties it ([`release_dropped`]). The list takes no lock: a forked child finds it in order.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use qaic_mem::HostSlice;
use qaic_runtime::binding::Argument;

use super::entries;

/// The memory of an array, by the buffer protocol, with any strides.
pub(crate) struct BufferExport {
    node: NonNull<Node>,
}

// Never moved once filled: an exporter may let `shape` point into the structure.
struct Node {
    view: ffi::Py_buffer,
    next: *mut Node,
}

// SAFETY: the structure is filled before it is shared, only read then, and released by an attached thread.
unsafe impl Send for BufferExport {}
// SAFETY: as for `Send`.
unsafe impl Sync for BufferExport {}

/// Exports that are not used any more, newest first.
static DROPPED: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());

impl BufferExport {
    /// Takes the buffer of `value`, read-only or not as the value has it. Its element format is not asked for: only the
    /// size of an element counts here, and types without a format may come.
    pub(crate) fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut node = Box::new(Node { view: ffi::Py_buffer::new(), next: ptr::null_mut() });
        // SAFETY: `view` is writable room for one structure; the thread is attached, as `value` proves.
        let status =
            unsafe { ffi::PyObject_GetBuffer(value.as_ptr(), &raw mut node.view, ffi::PyBUF_STRIDES) };
        if status != 0 {
            return Err(
                PyErr::take(value.py()).unwrap_or_else(|| PyBufferError::new_err("the object has no buffer"))
            );
        }
        Ok(Self { node: NonNull::from(Box::leak(node)) })
    }

    fn view(&self) -> &ffi::Py_buffer {
        // SAFETY: the node was leaked by `take` and is freed only after this value is gone.
        unsafe { &self.node.as_ref().view }
    }

    /// What it looks like. The element format is not known.
    pub(crate) fn argument(&self) -> Argument<'_> {
        let view = self.view();
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
        Some(unsafe { HostSlice::new(self.view().buf.cast(), len) })
    }
}

impl Drop for BufferExport {
    fn drop(&mut self) {
        let node = self.node.as_ptr();
        let mut head = DROPPED.load(Ordering::Relaxed);
        loop {
            // SAFETY: until it is on the list the node belongs to this value alone.
            unsafe { (*node).next = head };
            // Release: the thread that takes the list sees the node as it was left.
            match DROPPED.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }
}

/// Gives back the exports that were dropped since the last call. Runs Python code: no lock may be held.
pub(crate) fn release_dropped(_attached: Python<'_>) {
    if DROPPED.load(Ordering::Relaxed).is_null() {
        return;
    }
    // Acquire: pairs with the release in `drop`.
    let mut next = DROPPED.swap(ptr::null_mut(), Ordering::Acquire);
    while let Some(node) = NonNull::new(next) {
        // SAFETY: leaked by `take`; taken off the list, it belongs to this call alone.
        let mut node = unsafe { Box::from_raw(node.as_ptr()) };
        next = node.next;
        // SAFETY: filled by `take`, released once, by an attached thread.
        unsafe { ffi::PyBuffer_Release(&raw mut node.view) };
    }
}
