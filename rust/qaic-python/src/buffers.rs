//! The buffer protocol in both directions.
//!
//! [`Exports`] holds input arrays; [`OutputBuffer`] and [`BytesView`] export memory. The code never reads numpy's own
//! structures, so it works with any numpy version.

mod export;
mod numpy;
mod qbuffer;

use std::ffi::{CStr, c_int};
use std::ptr;
use std::slice;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use qaic_mem::{FileBytes, HostSlice, HostSliceMut, Storage};
use qaic_runtime::Image;
use qaic_runtime::binding::{Argument, ArrayLayout, native_format};
use qaic_runtime::request::{ArrayId, Arrays};
use qaic_stats::FrozenBytes;

pub(crate) use export::{BufferExport, release_dropped};
pub(crate) use numpy::{array_over, as_array};
pub(crate) use qbuffer::{PyQBuffer, ReleaseDropped, copied, zeroed};

/// Buffers that Python objects have exported to this module. Each keeps its object alive and its memory in place.
#[derive(Default)]
pub(crate) struct Exports {
    // The vector is never reallocated after an export: an exporter may let `shape` point into the structure.
    buffers: Vec<ffi::Py_buffer>,
}

// SAFETY: the structures are only filled and released by attached threads (`take`, `clear`, `drop`).
unsafe impl Send for Exports {}
// SAFETY: a shared reference only reads the structures, which nothing changes meanwhile.
unsafe impl Sync for Exports {}

/// Memory and layout of an exported buffer.
pub(crate) struct Exported<'a> {
    pub(crate) id: ArrayId,
    pub(crate) memory: HostSlice<'a>,
    pub(crate) argument: Argument<'a>,
}

impl Exports {
    /// Creates an empty list with capacity for `count` buffers.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self { buffers: Vec::with_capacity(count) }
    }

    /// Takes the C-contiguous buffer of `value`.
    ///
    /// Returns `None` if `value` has none, if it is read-only and `writable` is true, or if the list is full.
    pub(crate) fn take(&mut self, value: &Bound<'_, PyAny>, writable: bool) -> Option<Exported<'_>> {
        if self.buffers.len() == self.buffers.capacity() {
            return None;
        }
        let flags =
            ffi::PyBUF_C_CONTIGUOUS | ffi::PyBUF_FORMAT | if writable { ffi::PyBUF_WRITABLE } else { 0 };
        let slot = self.buffers.spare_capacity_mut().first_mut()?.as_mut_ptr();
        // SAFETY: `slot` is writable room for one structure; the thread is attached, as `value` proves.
        let status = unsafe { ffi::PyObject_GetBuffer(value.as_ptr(), slot, flags) };
        if status != 0 {
            // The caller converts the value or reports its type, so it does not need this error.
            drop(PyErr::take(value.py()));
            return None;
        }
        let filled = self.buffers.len() + 1;
        // SAFETY: the first spare element was just initialized, and there was room for it.
        unsafe { self.buffers.set_len(filled) };
        self.buffers.last().map(|buffer| describe(ArrayId(filled - 1), buffer))
    }

    pub(crate) fn clear(&mut self, _attached: Python<'_>) {
        for buffer in &mut self.buffers {
            // SAFETY: filled by `take`, released once because the vector is emptied below.
            unsafe { ffi::PyBuffer_Release(buffer) };
        }
        self.buffers.clear();
    }
}

impl Arrays for Exports {
    // Returns an empty slice for a released buffer.
    fn memory(&self, id: ArrayId) -> HostSlice<'_> {
        self.buffers.get(id.0).map_or(HostSlice::empty(), memory_of)
    }

    // Returns an empty slice for a read-only or released buffer.
    fn memory_mut(&self, id: ArrayId) -> HostSliceMut<'_> {
        match self.buffers.get(id.0) {
            Some(buffer) if buffer.readonly == 0 => {
                let len = usize::try_from(buffer.len).unwrap_or(0);
                // SAFETY: as for `memory_of`; the exporter marked the memory as writable.
                unsafe { HostSliceMut::new(buffer.buf.cast(), len) }
            }
            _ => HostSliceMut::empty(),
        }
    }
}

impl Drop for Exports {
    fn drop(&mut self) {
        if !self.buffers.is_empty() {
            Python::attach(|py| self.clear(py));
        }
    }
}

fn memory_of(buffer: &ffi::Py_buffer) -> HostSlice<'_> {
    let len = usize::try_from(buffer.len).unwrap_or(0);
    // SAFETY: the exporter keeps `len` bytes at `buf` valid until the release, which takes the structure that the view
    // borrows. Python threads may write them, which `HostSlice` allows.
    unsafe { HostSlice::new(buffer.buf.cast(), len) }
}

fn describe(id: ArrayId, buffer: &ffi::Py_buffer) -> Exported<'_> {
    let memory = memory_of(buffer);
    let format = if buffer.format.is_null() {
        c"B"
    } else {
        // SAFETY: a non-null format is NUL-terminated and lives as long as the export.
        unsafe { CStr::from_ptr(buffer.format) }
    };
    // SAFETY: PyBUF_C_CONTIGUOUS implies `ndim` entries that live as long as the export.
    let shape = unsafe { entries(buffer.shape, buffer.ndim) };
    // SAFETY: as for the shape.
    let strides = unsafe { entries(buffer.strides, buffer.ndim) };
    let argument = Argument {
        format: native_format(format.to_bytes()),
        item_bytes: usize::try_from(buffer.itemsize).unwrap_or(0),
        shape,
        strides,
        address: buffer.buf.addr(),
        is_readonly: buffer.readonly != 0,
    };
    Exported { id, memory, argument }
}

/// Returns the shape or the strides of a buffer.
///
/// # Safety
///
/// `first` is null, or has `count` entries that outlive the result.
unsafe fn entries<'a>(first: *const isize, count: i32) -> &'a [isize] {
    match usize::try_from(count) {
        // SAFETY: the caller guarantees that the entries exist.
        Ok(count) if count > 0 && !first.is_null() => unsafe { slice::from_raw_parts(first, count) },
        _ => &[],
    }
}

/// Passes the bytes of any bytes-like object to `read`.
pub(crate) fn with_bytes<T>(value: &Bound<'_, PyAny>, read: impl FnOnce(HostSlice<'_>) -> T) -> PyResult<T> {
    let mut exports = Exports::with_capacity(1);
    let Some(exported) = exports.take(value, false) else {
        return Err(PyBufferError::new_err(format!(
            "a contiguous bytes-like object is expected, not {}",
            value.get_type().name()?
        )));
    };
    let result = read(exported.memory);
    exports.clear(value.py());
    Ok(result)
}

/// Copies the bytes of any bytes-like object.
#[allow(clippy::redundant_closure_for_method_calls)] // the method is not generic over the view's lifetime
pub(crate) fn copied_bytes(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    with_bytes(value, |bytes| bytes.to_vec())
}

/// Fills a buffer view of memory that `owner` keeps alive.
///
/// # Safety
///
/// `view` is the argument of a `__getbuffer__` call; the `len` bytes at `address` and `layout` live as long as
/// `owner`.
unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    (address, len): (*mut u8, usize),
    layout: &ArrayLayout,
    readonly: bool,
) -> PyResult<()> {
    // SAFETY: the interpreter passes a structure to fill, or null.
    let Some(view) = (unsafe { view.as_mut() }) else {
        return Err(PyBufferError::new_err("no view to fill"));
    };
    if readonly && flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
        view.obj = ptr::null_mut();
        return Err(PyBufferError::new_err("the memory is read-only"));
    }
    let wanted = |flag: c_int| flags & flag == flag;
    // C order and Fortran order are the same if at most one dim is larger than 1.
    let dims = layout.shape.iter().filter(|&&dim| dim != 1);
    if wanted(ffi::PyBUF_F_CONTIGUOUS) && len != 0 && dims.count() > 1 {
        view.obj = ptr::null_mut();
        return Err(PyBufferError::new_err("the memory is in C order, not in Fortran order"));
    }
    view.buf = address.cast();
    view.len = isize::try_from(len).unwrap_or(isize::MAX);
    view.readonly = readonly.into();
    view.itemsize = layout.item_bytes;
    view.ndim = c_int::try_from(layout.shape.len()).unwrap_or(0);
    view.format = if wanted(ffi::PyBUF_FORMAT) { layout.format.as_ptr().cast_mut() } else { ptr::null_mut() };
    view.shape = if wanted(ffi::PyBUF_ND) { layout.shape.as_ptr().cast_mut() } else { ptr::null_mut() };
    view.strides =
        if wanted(ffi::PyBUF_STRIDES) { layout.strides.as_ptr().cast_mut() } else { ptr::null_mut() };
    view.suboffsets = ptr::null_mut();
    view.internal = ptr::null_mut();
    view.obj = owner.clone().into_ptr();
    Ok(())
}

/// An output of an inference. Its memory returns to the pool when the last array that refers to it is gone.
#[pyclass(frozen, module = "qaic._core")]
pub(crate) struct OutputBuffer {
    storage: Storage,
    layout: Arc<ArrayLayout>,
}

#[pymethods]
impl OutputBuffer {
    // SAFETY: called by the interpreter as `bf_getbuffer`, with a structure to fill.
    #[allow(clippy::needless_pass_by_value)] // the signature that the binding requires
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let memory = (this.storage.as_mut_ptr(), this.storage.memory().len());
        // SAFETY: storage and layout belong to `slf`, which the view keeps alive.
        unsafe { fill(slf.as_any(), view, flags, memory, &this.layout, false) }
    }
}

/// Bytes that views may expose while they keep the owner alive.
///
/// # Safety
///
/// [`ImmutableBytes::bytes`] returns the same memory at each call; nothing writes to it while the owner lives.
pub(crate) unsafe trait ImmutableBytes: Send + Sync {
    fn bytes(&self) -> &[u8];
}

// SAFETY: an image keeps its bytes, which are a private mapping or its own memory.
unsafe impl ImmutableBytes for Image {
    fn bytes(&self) -> &[u8] {
        self.bytes()
    }
}

/// Memory that no code writes to any more.
pub(crate) enum ReadOnlyBytes {
    /// A file that is read or mapped.
    File(FileBytes),
    /// A Python `bytes` object, which is immutable.
    Python(PyBackedBytes),
    /// A copy.
    Owned(Box<[u8]>),
}

// SAFETY: none of them moves or is written to while it is kept.
unsafe impl ImmutableBytes for ReadOnlyBytes {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::File(bytes) => bytes,
            Self::Python(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for ReadOnlyBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes.into())
    }
}

impl FrozenBytes for ReadOnlyBytes {
    fn bytes(&self) -> &[u8] {
        ImmutableBytes::bytes(self)
    }

    fn is_let_go(&self) -> bool {
        matches!(self, Self::File(file) if file.is_let_go())
    }

    fn let_go(&self, part: &[u8]) {
        if let Self::File(file) = self {
            file.let_go(part);
        }
    }
}

/// Read-only view of the bytes of a container or stats buffer. It keeps the owner alive.
#[pyclass(frozen, module = "qaic._core")]
pub(crate) struct BytesView {
    owner: Arc<dyn ImmutableBytes>,
    start: usize,
    layout: Arc<ArrayLayout>,
    len: usize,
}

impl BytesView {
    pub(crate) fn whole<T: ImmutableBytes + 'static>(owner: T) -> Self {
        let len = owner.bytes().len();
        Self { owner: Arc::new(owner), start: 0, len, layout: ArrayLayout::of_bytes(len) }
    }

    /// Creates a view of `range` of the owner's bytes; `None` if the range is not within them.
    pub(crate) fn new<T: ImmutableBytes + 'static>(
        owner: &Arc<T>,
        range: std::ops::Range<usize>,
    ) -> Option<Self> {
        let len = owner.bytes().get(range.clone())?.len();
        let layout = ArrayLayout::of_bytes(len);
        Some(Self { owner: Arc::<T>::clone(owner), start: range.start, len, layout })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.owner.bytes()[self.start..][..self.len]
    }
}

#[pymethods]
impl BytesView {
    // SAFETY: called by the interpreter as `bf_getbuffer`, with a structure to fill.
    #[allow(clippy::needless_pass_by_value)] // the signature that the binding requires
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let address = this.owner.bytes().as_ptr().wrapping_add(this.start).cast_mut();
        // SAFETY: the range was checked against the owner, which always returns the same memory; owner and
        // layout belong to `slf`, which the view keeps alive. The view is marked read-only, so nothing is
        // written through it.
        unsafe { fill(slf.as_any(), view, flags, (address, this.len), &this.layout, true) }
    }

    fn __len__(&self) -> usize {
        self.len
    }
}
