//! `qaicrt.QBuffer`: memory for one binding.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, atomic::Ordering};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyType};
use qaic_mem::{DmaBuf, SharedMemory, Storage};
use qaic_runtime::binding::ClientBuffer;

use super::export::{BufferExport, release_dropped};
use crate::errors::from_runtime;

/// Copies of at least this size release the interpreter lock.
const DETACH_FROM_BYTES: usize = 64 << 10;

/// Allocates zeroed memory.
pub(crate) fn zeroed(py: Python<'_>, len_bytes: usize) -> PyResult<Arc<SharedMemory>> {
    Storage::new(len_bytes).map(shared).map_err(|error| from_runtime(py, error))
}

/// Allocates memory with a copy of `bytes`.
pub(crate) fn copied(py: Python<'_>, bytes: &[u8]) -> PyResult<Arc<SharedMemory>> {
    Storage::of(bytes).map(shared).map_err(|error| from_runtime(py, error))
}

fn shared(storage: Storage) -> Arc<SharedMemory> {
    // SAFETY: no thread may write a buffer while an inference uses it, as the documentation of the class requires.
    unsafe { SharedMemory::of_storage(storage) }
}

/// Memory for one binding.
///
/// A buffer made from ``bytes`` owns a copy. A buffer made from any other object with a buffer refers to the memory
/// of that object; outputs are written there. A buffer made from a descriptor (``from_dma_buf``) refers to memory
/// that cards share and this process need not map. While an inference uses the memory of an input, no thread may
/// write to it; while it uses the memory of an output, no thread may access it.
#[pyclass(frozen, name = "QBuffer", module = "qaicrt")]
pub(crate) struct PyQBuffer {
    /// The buffer to bind, with the type that the client declared.
    pub(crate) buffer: ClientBuffer,
    // Fields are dropped in order.
    _last: ReleaseDropped,
}

/// Releases dropped arrays when it is dropped.
pub(crate) struct ReleaseDropped;

impl Drop for ReleaseDropped {
    fn drop(&mut self) {
        // Without an interpreter, the arrays cannot be released.
        let _ = Python::try_attach(release_dropped);
    }
}

impl PyQBuffer {
    pub(crate) fn new(memory: Arc<SharedMemory>) -> Self {
        Self { buffer: ClientBuffer::new(memory), _last: ReleaseDropped }
    }

    pub(crate) fn memory(&self) -> &Arc<SharedMemory> {
        &self.buffer.memory
    }
}

#[pymethods]
impl PyQBuffer {
    /// Allocates memory on the heap, or refers to the memory of `data`.
    ///
    /// Copies of 64 KiB or more release the interpreter lock.
    #[new]
    #[pyo3(signature = (data = None))]
    fn py_new(py: Python<'_>, data: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        release_dropped(py);
        let Some(data) = data else { return Ok(Self::new(zeroed(py, 0)?)) };
        let array = BufferExport::take(data).map_err(|error| {
            let found = data.get_type();
            let refusal = PyTypeError::new_err(format!(
                "QBuffer takes bytes or an array, not {}",
                found.name().map_or_else(|_| String::new(), |name| name.to_string())
            ));
            refusal.set_cause(py, Some(error));
            refusal
        })?;
        let argument = array.argument();
        if !argument.is_contiguous() {
            return Err(PyValueError::new_err(format!(
                "QBuffer takes a C-contiguous array; this one has shape {:?} and strides {:?}: pass \
                 numpy.ascontiguousarray(array)",
                argument.shape, argument.strides
            )));
        }
        let given = array.share();
        if !data.is_instance_of::<PyBytes>() {
            return Ok(Self::new(given));
        }
        let mut storage = Storage::new(given.len()).map_err(|error| from_runtime(py, error))?;
        let mut copy = || storage.memory_mut().copy_from(given.memory());
        if given.len() < DETACH_FROM_BYTES {
            copy();
        } else {
            py.detach(copy);
        }
        drop(given);
        release_dropped(py);
        Ok(Self::new(shared(storage)))
    }

    /// Returns a buffer of ``size`` bytes from ``offset`` in a DMA buffer of the kernel. A card can access this
    /// memory for a binding without a copy.
    ///
    /// Parameters
    /// ----------
    /// fd
    ///     The descriptor, or an object with a ``fileno``. The buffer duplicates the descriptor, so the caller may close
    ///     its own.
    /// size
    ///     Number of bytes: the size of the binding's DMA buffer (``Qpc.getBufferMappingsDma``), which can exceed the
    ///     size of the tensor.
    /// offset
    ///     Offset of the first byte.
    ///
    /// Raises
    /// ------
    /// ``OSError``
    ///     The descriptor is not open.
    /// ``ValueError``
    ///     The range is not within the DMA buffer.
    #[classmethod]
    #[pyo3(signature = (fd, size, offset = 0))]
    fn from_dma_buf(
        _class: &Bound<'_, PyType>,
        fd: &Bound<'_, PyAny>,
        size: u64,
        offset: u32,
    ) -> PyResult<Self> {
        let py = fd.py();
        if size == 0 || usize::try_from(size).is_err() {
            return Err(PyValueError::new_err(format!("size is {size}; a number of bytes is expected")));
        }
        let fd = match fd.getattr_opt("fileno")? {
            Some(fileno) => fileno.call0()?,
            None => fd.clone(),
        };
        let os = py.import("os")?;
        let own: i32 = os.call_method1("dup", (fd,))?.extract()?;
        // SAFETY: `dup` has just opened it, and no other object owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(own) };
        let len: u64 = os.call_method1("fstat", (own,))?.getattr("st_size")?.extract()?;
        // Some kernels do not report the size of a DMA buffer; the import does.
        if len > 0 && u64::from(offset).checked_add(size).is_none_or(|end| end > len) {
            return Err(PyValueError::new_err(format!(
                "{size} bytes from byte {offset} exceed the {len} bytes of the descriptor"
            )));
        }
        Ok(Self::new(SharedMemory::behind(DmaBuf { descriptor, offset: u64::from(offset), len: size })))
    }

    /// Number of bytes.
    #[getter]
    fn size(&self) -> usize {
        self.memory().len()
    }

    /// Address of the first byte; 0 for memory behind a descriptor.
    #[getter]
    fn buf(&self) -> usize {
        self.memory().address().addr()
    }

    /// Offset of the data in memory behind a descriptor; always 0 on the heap.
    #[getter]
    fn offset(&self) -> u64 {
        self.memory().dma_buf().map_or(0, |memory| memory.offset)
    }

    /// The buffer's own descriptor for memory outside the heap, open as long as the buffer exists; 0 on the heap.
    #[getter]
    fn handle(&self) -> i32 {
        self.memory().dma_buf().map_or(0, |memory| memory.descriptor.as_raw_fd())
    }

    /// Type of the memory.
    #[getter]
    fn r#type<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static KINDS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        KINDS.import(py, "qaic.rt.enums", "QBufferType")?.call1((self.buffer.kind.load(Ordering::Relaxed),))
    }

    #[setter(r#type)]
    fn set_type(&self, kind: &Bound<'_, PyAny>) -> PyResult<()> {
        self.buffer.kind.store(kind.call_method0("__index__")?.extract()?, Ordering::Relaxed);
        Ok(())
    }

    fn __repr__(&self) -> String {
        match self.memory().dma_buf() {
            None => format!("QBuffer({} bytes)", self.size()),
            Some(_) => {
                format!("QBuffer(dma-buf {}, {} bytes from {})", self.handle(), self.size(), self.offset())
            }
        }
    }

    // SAFETY: called by the interpreter as `bf_getbuffer`, with a structure to fill.
    #[allow(clippy::needless_pass_by_value)] // the signature that the binding requires
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get().memory();
        if memory.dma_buf().is_some() {
            return Err(PyBufferError::new_err(
                "the memory belongs to a descriptor; map QBuffer.handle with mmap to read it",
            ));
        }
        let (address, readonly) = (memory.address().cast(), memory.is_readonly().into());
        let len = isize::try_from(memory.len()).unwrap_or(isize::MAX);
        // Plain bytes need no layout of their own: the length of the view is their shape.
        // SAFETY: the interpreter guarantees that `view` is valid; the memory belongs to `slf`, which the view
        // keeps alive.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, len, readonly, flags) };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
