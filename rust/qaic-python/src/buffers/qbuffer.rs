//! `qaicrt.QBuffer`: memory for one binding.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyType};
use qaic_mem::{DmaBuf, ForeignMemory, ForeignMemoryMut, HostSlice, Owner, Storage};
use qaic_runtime::binding::BufferFacts;

use super::export::{BufferExport, release_dropped};
use crate::errors::from_runtime;

/// The code of memory from the heap.
const HEAP: u32 = 0;
/// The code of memory behind a descriptor.
const DMA_BUF: u32 = 1;

/// Copies of at least this many bytes let other Python threads run.
const DETACH_FROM_BYTES: usize = 64 << 10;

/// Memory that a binding can be bound to, kept alive by every reference: the caller's objects, and an inference
/// under way.
pub(crate) struct Backing {
    // Invariant: the keeper keeps `len` bytes at `address`.
    address: *mut u8,
    len: usize,
    readonly: bool,
    keeper: Sender,
}

// SAFETY: the keepers may be sent, and their memory be reached from any thread.
unsafe impl Send for Backing {}
// SAFETY: as for `Send`; what is read and written through a shared reference is memory that others may write as well.
unsafe impl Sync for Backing {}

/// What `memory` belongs to.
enum Sender {
    #[allow(dead_code)] // kept, never looked at
    Storage(Storage),
    #[allow(dead_code)] // kept, never looked at
    Array(BufferExport),
    /// No memory of the host: there is nothing at the address.
    DmaBuf(Arc<DmaBuf>),
}

impl Backing {
    /// New zeroed memory.
    pub(crate) fn zeroed(py: Python<'_>, len_bytes: usize) -> PyResult<Arc<Self>> {
        let storage = Storage::new(len_bytes).map_err(|error| from_runtime(py, error))?;
        Ok(Self::of_storage(storage))
    }

    /// New memory with these bytes.
    pub(crate) fn copied(py: Python<'_>, bytes: &[u8]) -> PyResult<Arc<Self>> {
        Storage::of(bytes).map(Self::of_storage).map_err(|error| from_runtime(py, error))
    }

    fn of_storage(storage: Storage) -> Arc<Self> {
        let (address, len) = (storage.as_mut_ptr(), storage.memory().len());
        Arc::new(Self { address, len, readonly: false, keeper: Sender::Storage(storage) })
    }

    /// The memory of an array, from its first element on; none where elements lie before that.
    pub(crate) fn over(array: BufferExport) -> Arc<Self> {
        let memory = array.memory().unwrap_or(HostSlice::empty());
        let (address, len) = (memory.as_ptr().cast_mut(), memory.len());
        let readonly = array.argument().is_readonly;
        Arc::new(Self { address, len, readonly, keeper: Sender::Array(array) })
    }

    /// Memory behind a descriptor.
    fn behind(memory: DmaBuf) -> Arc<Self> {
        let keeper = Sender::DmaBuf(Arc::new(memory));
        Arc::new(Self { address: ptr::null_mut(), len: 0, readonly: false, keeper })
    }

    /// The bytes. Empty where they lie behind a descriptor.
    pub(crate) fn memory(&self) -> HostSlice<'_> {
        // SAFETY: the invariant; the view borrows from the backing.
        unsafe { HostSlice::new(self.address, self.len) }
    }

    /// What an input is bound to.
    pub(crate) fn input(self: &Arc<Self>) -> ForeignMemory {
        // SAFETY: the backing keeps the memory.
        unsafe { ForeignMemory::new(self.address, self.len, Arc::clone(self) as Owner) }
    }

    /// What an output is bound to; `None` where the memory must not be written.
    pub(crate) fn output(self: &Arc<Self>) -> Option<ForeignMemoryMut> {
        // SAFETY: the backing keeps the memory, which may be written. Python threads may write it as well.
        let memory = || unsafe { ForeignMemoryMut::new(self.address, self.len, Arc::clone(self) as Owner) };
        (!self.readonly).then(memory)
    }

    /// What the bytes lie behind, if that is a descriptor.
    pub(crate) fn dma_buf(&self) -> Option<&Arc<DmaBuf>> {
        match &self.keeper {
            Sender::DmaBuf(memory) => Some(memory),
            Sender::Storage(_) | Sender::Array(_) => None,
        }
    }

    /// Number of bytes, wherever they lie.
    pub(crate) fn len(&self) -> usize {
        let described = self.dma_buf().map(|memory| usize::try_from(memory.len()).unwrap_or(usize::MAX));
        described.unwrap_or(self.len)
    }

    /// What the checks of arguments want to know.
    pub(crate) fn facts(&self) -> BufferFacts {
        let is_whole_dma_buffer = self.dma_buf().is_some();
        BufferFacts { len: self.len(), is_readonly: self.readonly, is_whole_dma_buffer }
    }

    fn kind(&self) -> u32 {
        if self.dma_buf().is_some() { DMA_BUF } else { HEAP }
    }
}

/// Memory for one binding.
///
/// From ``bytes`` it owns a copy; from any other object with a buffer it refers to that object's memory, where outputs
/// appear. From a descriptor (``from_dma_buf``) it names memory that cards share and this process need not see.
#[pyclass(frozen, name = "QBuffer", module = "qaicrt")]
pub(crate) struct PyQBuffer {
    backing: Arc<Backing>,
    kind: AtomicU32,
    // Fields are dropped in order.
    _last: ReleaseDropped,
}

/// Gives arrays back when it is dropped.
pub(crate) struct ReleaseDropped;

impl Drop for ReleaseDropped {
    fn drop(&mut self) {
        // Without an interpreter nothing takes them back.
        let _ = Python::try_attach(release_dropped);
    }
}

impl PyQBuffer {
    pub(crate) fn new(backing: Arc<Backing>) -> Self {
        let kind = AtomicU32::new(backing.kind());
        Self { backing, kind, _last: ReleaseDropped }
    }

    /// What to bind.
    pub(crate) fn backing(&self) -> &Arc<Backing> {
        &self.backing
    }

    /// Whether its type is that of its memory.
    pub(crate) fn is_what_it_says(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == self.backing.kind()
    }
}

#[pymethods]
impl PyQBuffer {
    /// Memory of the heap.
    ///
    /// Detached while it copies 64 KiB and more.
    #[new]
    #[pyo3(signature = (data = None))]
    fn py_new(py: Python<'_>, data: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        release_dropped(py);
        let Some(data) = data else { return Ok(Self::new(Backing::zeroed(py, 0)?)) };
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
        let given = Backing::over(array);
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
        let backing = Backing::of_storage(storage);
        release_dropped(py);
        Ok(Self::new(backing))
    }

    /// Memory behind a descriptor: ``size`` bytes from ``offset`` on of a DMA buffer of the kernel, for a binding that a
    /// card can read or write there without a copy.
    ///
    /// Parameters
    /// ----------
    /// fd
    ///     The descriptor, or an object with a ``fileno``. The buffer has a descriptor of its own; the caller's may be
    ///     closed.
    /// size
    ///     Bytes, as many as the DMA buffer of the binding has (``Qpc.getBufferMappingsDma``), which may be a few more than
    ///     the tensor.
    /// offset
    ///     Where they begin.
    ///
    /// Raises
    /// ------
    /// ``OSError``
    ///     The descriptor is not open.
    /// ``ValueError``
    ///     There are no such bytes.
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
        // SAFETY: `dup` has just opened it, and nothing else has it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(own) };
        let len: u64 = os.call_method1("fstat", (own,))?.getattr("st_size")?.extract()?;
        // Some kernels do not say the size of a DMA buffer; importing it finds out.
        if len > 0 && u64::from(offset).checked_add(size).is_none_or(|end| end > len) {
            return Err(PyValueError::new_err(format!(
                "{size} bytes from {offset} on reach beyond the {len} bytes of the descriptor"
            )));
        }
        Ok(Self::new(Backing::behind(DmaBuf::new(descriptor, u64::from(offset), size))))
    }

    /// Number of bytes.
    #[getter]
    fn size(&self) -> usize {
        self.backing.len()
    }

    /// Address of the first byte; 0 for memory behind a descriptor.
    #[getter]
    fn buf(&self) -> usize {
        if self.backing.dma_buf().is_some() {
            return 0;
        }
        self.backing.address.addr()
    }

    /// Where the data begin in memory behind a descriptor; always 0 on the heap.
    #[getter]
    fn offset(&self) -> u64 {
        self.backing.dma_buf().map_or(0, |memory| memory.offset())
    }

    /// The buffer's own descriptor of memory that is not on the heap, open as long as the buffer lives; 0 on the heap.
    #[getter]
    fn handle(&self) -> i32 {
        self.backing.dma_buf().map_or(0, |memory| memory.descriptor().as_raw_fd())
    }

    /// Where the memory comes from.
    #[getter]
    fn r#type<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static KINDS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let kinds = KINDS
            .get_or_try_init(py, || py.import("qaic.rt.enums")?.getattr("QBufferType").map(Bound::unbind))?;
        kinds.bind(py).call1((self.kind.load(Ordering::Relaxed),))
    }

    #[setter(r#type)]
    fn set_type(&self, kind: &Bound<'_, PyAny>) -> PyResult<()> {
        self.kind.store(kind.call_method0("__index__")?.extract()?, Ordering::Relaxed);
        Ok(())
    }

    fn __repr__(&self) -> String {
        match self.backing.dma_buf() {
            None => format!("QBuffer({} bytes)", self.size()),
            Some(_) => {
                format!("QBuffer(dma-buf {}, {} bytes from {})", self.handle(), self.size(), self.offset())
            }
        }
    }

    // SAFETY: called by the interpreter as `bf_getbuffer`, with a structure to fill.
    #[allow(clippy::needless_pass_by_value)] // the signature the binding asks for
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let backing = &slf.get().backing;
        if backing.dma_buf().is_some() {
            return Err(PyBufferError::new_err(
                "the memory lies behind a descriptor; map QBuffer.handle with mmap to see it",
            ));
        }
        // SAFETY: the backing belongs to `slf`, which the view keeps alive.
        unsafe { fill_bytes(slf.as_any(), view, flags, backing) }
    }
}

/// Fills a view of plain bytes, which need no layout of their own: the view's own length is their shape.
///
/// # Safety
///
/// `view` is what a `__getbuffer__` call was given; `owner` keeps `backing`.
unsafe fn fill_bytes(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    backing: &Backing,
) -> PyResult<()> {
    let (address, readonly) = (backing.address.cast(), backing.readonly.into());
    let len = isize::try_from(backing.len).unwrap_or(isize::MAX);
    // SAFETY: the interpreter vouches for `view`, the caller for the memory.
    let status = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address, len, readonly, flags) };
    if status == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
