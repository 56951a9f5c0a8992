//! `qaicrt.QBuffer`: memory for one binding (python-api §B.8.1).

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use qaic_runtime::buffer::{HostSliceMut, Storage};

use super::held::{Held, release_dropped};
use crate::errors::from_runtime;

/// The code of memory from the heap, the only kind there is.
const HEAP: u32 = 0;

/// Copies of at least this many bytes let other Python threads run.
const DETACH_FROM_BYTES: usize = 64 << 10;

/// Memory that a binding can be wired to, kept alive by whoever has a reference: the caller's objects, and an inference
/// under way.
pub(crate) struct Backing {
    memory: HostSliceMut,
    readonly: bool,
    _keeper: Keeper,
}

/// What `memory` belongs to.
#[allow(dead_code)] // kept, never looked at
enum Keeper {
    Storage(Storage),
    Array(Held),
}

impl Backing {
    /// New zeroed memory.
    pub(crate) fn zeroed(py: Python<'_>, len_bytes: usize) -> PyResult<Arc<Self>> {
        let storage = Storage::new(len_bytes).map_err(|error| from_runtime(py, error))?;
        Ok(Arc::new(Self { memory: storage.memory(), readonly: false, _keeper: Keeper::Storage(storage) }))
    }

    /// The memory of an array; the array when its elements do not follow each other in C order.
    pub(crate) fn over(array: Held) -> Result<Arc<Self>, Held> {
        match array.memory().filter(|_| array.is_contiguous()) {
            Some(memory) => Ok(Self::strided(array, memory)),
            None => Err(array),
        }
    }

    /// The memory of an array with any strides that are not negative.
    pub(crate) fn strided(array: Held, memory: HostSliceMut) -> Arc<Self> {
        Arc::new(Self { memory, readonly: array.is_readonly(), _keeper: Keeper::Array(array) })
    }

    /// The bytes. Valid as long as the backing.
    pub(crate) fn memory(&self) -> HostSliceMut {
        self.memory
    }

    /// Whether the memory must not be written.
    pub(crate) fn is_readonly(&self) -> bool {
        self.readonly
    }
}

/// Memory for one binding.
///
/// From ``bytes`` it owns a copy; from any other object with a buffer it refers to that object's memory, where outputs
/// appear.
#[pyclass(frozen, name = "QBuffer", module = "qaicrt")]
pub(crate) struct PyQBuffer {
    backing: Arc<Backing>,
    kind: AtomicU32,
    // Fields are dropped in order.
    _last: ReleaseDropped,
}

/// Gives arrays back when it is dropped.
struct ReleaseDropped;

impl Drop for ReleaseDropped {
    fn drop(&mut self) {
        Python::attach(release_dropped);
    }
}

impl PyQBuffer {
    pub(crate) fn new(backing: Arc<Backing>) -> Self {
        Self { backing, kind: AtomicU32::new(HEAP), _last: ReleaseDropped }
    }

    /// What to wire.
    pub(crate) fn backing(&self) -> &Arc<Backing> {
        &self.backing
    }

    /// Whether it is memory of a kind that can be wired.
    pub(crate) fn is_heap(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == HEAP
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
        let array = Held::take(data).map_err(|error| {
            let found = data.get_type();
            let refusal = PyTypeError::new_err(format!(
                "QBuffer takes bytes or an array, not {}",
                found.name().map_or_else(|_| String::new(), |name| name.to_string())
            ));
            refusal.set_cause(py, Some(error));
            refusal
        })?;
        let memory = array.memory().filter(|_| array.is_contiguous()).ok_or_else(|| {
            PyValueError::new_err(format!(
                "QBuffer takes a C-contiguous array; this one has shape {:?} and strides {:?}: pass \
                 numpy.ascontiguousarray(array)",
                array.shape(),
                array.strides()
            ))
        })?;
        if !data.is_instance_of::<PyBytes>() {
            return Ok(Self::new(Backing::strided(array, memory)));
        }
        let backing = Backing::zeroed(py, memory.len())?;
        let copy = || backing.memory().copy_from(memory.as_const());
        if memory.len() < DETACH_FROM_BYTES {
            copy();
        } else {
            // Nobody writes `bytes`, and `array` keeps them.
            py.detach(copy);
        }
        drop(array);
        release_dropped(py);
        Ok(Self::new(backing))
    }

    /// Number of bytes.
    #[getter]
    fn size(&self) -> usize {
        self.backing.memory.len()
    }

    /// Address of the first byte.
    #[getter]
    fn buf(&self) -> usize {
        self.backing.memory.as_mut_ptr().addr()
    }

    /// Where the data begin in memory named by a handle; always 0 on the heap.
    #[getter]
    #[allow(clippy::unused_self)] // an attribute of every buffer
    fn offset(&self) -> usize {
        0
    }

    /// Descriptor of memory that is not on the heap; always 0.
    #[getter]
    #[allow(clippy::unused_self)] // an attribute of every buffer
    fn handle(&self) -> usize {
        0
    }

    /// Where the memory comes from.
    #[getter]
    fn r#type<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static KINDS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let kinds = KINDS
            .get_or_try_init(py, || py.import("qaicrt.enums")?.getattr("QBufferType").map(Bound::unbind))?;
        kinds.bind(py).call1((self.kind.load(Ordering::Relaxed),))
    }

    #[setter(r#type)]
    fn set_type(&self, kind: &Bound<'_, PyAny>) -> PyResult<()> {
        self.kind.store(kind.call_method0("__index__")?.extract()?, Ordering::Relaxed);
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("QBuffer({} bytes)", self.size())
    }

    // SAFETY: called by the interpreter as `bf_getbuffer`, with a structure to fill.
    #[allow(clippy::needless_pass_by_value)] // the signature the binding asks for
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let backing = &slf.get().backing;
        // SAFETY: the backing belongs to `slf`, which the view keeps alive.
        unsafe { fill_bytes(slf.as_any(), view, flags, backing.memory, backing.readonly) }
    }
}

/// Fills a view of plain bytes, which need no layout of their own: the view's own length is their shape.
///
/// # Safety
///
/// `view` is what a `__getbuffer__` call was given; `memory` lives as long as `owner`.
unsafe fn fill_bytes(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    memory: HostSliceMut,
    readonly: bool,
) -> PyResult<()> {
    let len = isize::try_from(memory.len()).unwrap_or(isize::MAX);
    // SAFETY: the interpreter vouches for `view`, the caller for the memory.
    let status = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), memory.as_mut_ptr().cast(), len, readonly.into(), flags)
    };
    if status == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
