//! New numpy arrays on memory of this module, without a copy.
//!
//! `asarray` creates the first array of a type, from which the `dtype` is kept. numpy's C interface creates the
//! others; it is a table of functions whose indices do not change between versions.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyCapsule;
use qaic_mem::Storage;
use qaic_runtime::binding::ArrayLayout;

use super::OutputBuffer;

static INTERFACE: PyOnceLock<Option<Interface>> = PyOnceLock::new();
// Element type by format character.
static DTYPES: [PyOnceLock<Py<PyAny>>; 128] = [const { PyOnceLock::new() }; 128];

type Version = unsafe extern "C" fn() -> c_uint;
type NewFromDescr = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    *mut ffi::PyObject,
    c_int,
    *const isize,
    *const isize,
    *mut c_void,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

/// Indices in the table; the same in numpy 1 and 2.
mod place {
    pub(super) const VERSION: usize = 0;
    pub(super) const ARRAY_TYPE: usize = 2;
    pub(super) const NEW_FROM_DESCR: usize = 94;
    pub(super) const SET_BASE_OBJECT: usize = 282;
}

/// ABI versions of numpy 1 and 2, without the part that grows with new functions.
const KNOWN_VERSIONS: [c_uint; 2] = [1, 2];
/// `NPY_ARRAY_CARRAY`: in C order, aligned, writable.
const C_ARRAY: c_int = 0x0001 | 0x0100 | 0x0400;

/// The functions of the interface that are used.
struct Interface {
    array_type: *mut ffi::PyTypeObject,
    new_from_descr: NewFromDescr,
    set_base_object: SetBaseObject,
}

// SAFETY: the pointers refer to the type and the functions of numpy, which exist as long as the process; only attached
// threads use them.
unsafe impl Send for Interface {}
// SAFETY: as for `Send`.
unsafe impl Sync for Interface {}

impl Interface {
    /// Finds the interface of the installed numpy; `None` if its version is unknown.
    fn find(py: Python<'_>) -> Option<Self> {
        let module = py.import("numpy._core._multiarray_umath");
        let module = module.or_else(|_| py.import("numpy.core._multiarray_umath")).ok()?;
        let capsule = module.getattr("_ARRAY_API").ok()?.cast_into::<PyCapsule>().ok()?;
        let table = capsule.pointer_checked(None).ok()?.cast::<*mut c_void>().as_ptr();
        // SAFETY: the table has more entries than the last index, and lives as long as numpy, which is never
        // unloaded.
        let entry = |place: usize| unsafe { table.wrapping_add(place).read() };
        let [version, array_type, new_from_descr, set_base_object] =
            [place::VERSION, place::ARRAY_TYPE, place::NEW_FROM_DESCR, place::SET_BASE_OBJECT].map(entry);
        if [version, array_type, new_from_descr, set_base_object].contains(&ptr::null_mut()) {
            return None;
        }
        // SAFETY: the entry is not null, and is this function in all versions.
        let version = unsafe { std::mem::transmute::<*mut c_void, Version>(version) };
        // SAFETY: the thread is attached; the function has no other condition.
        let version = unsafe { version() };
        if !KNOWN_VERSIONS.contains(&(version >> 24)) {
            return None;
        }
        Some(Self {
            array_type: array_type.cast(),
            // SAFETY: as for the version, in the versions that are known.
            new_from_descr: unsafe { std::mem::transmute::<*mut c_void, NewFromDescr>(new_from_descr) },
            // SAFETY: as above.
            set_base_object: unsafe { std::mem::transmute::<*mut c_void, SetBaseObject>(set_base_object) },
        })
    }

    /// Creates an array on the memory of `owner`, with elements of the type `dtype`.
    fn array<'py>(
        &self,
        owner: Bound<'py, OutputBuffer>,
        layout: &ArrayLayout,
        dtype: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = owner.py();
        let dims = c_int::try_from(layout.shape.len()).unwrap_or(c_int::MAX);
        let memory = owner.get().storage.as_mut_ptr();
        // SAFETY: the storage has as many bytes as the layout, aligned for any type, and `owner`, which becomes the base
        // below, keeps them. `dtype` is a descriptor of which the function takes a reference; shape and strides have as many
        // entries as there are dims.
        let array = unsafe {
            (self.new_from_descr)(
                self.array_type,
                dtype.clone().into_ptr(),
                dims,
                layout.shape.as_ptr(),
                layout.strides.as_ptr(),
                memory.cast(),
                C_ARRAY,
                ptr::null_mut(),
            )
        };
        // SAFETY: a new reference, or null with an exception set.
        let array = unsafe { Bound::from_owned_ptr_or_err(py, array) }?;
        // SAFETY: the array is new and has no base; the function takes the reference to the owner.
        let status = unsafe { (self.set_base_object)(array.as_ptr(), owner.into_ptr()) };
        if status == 0 { Ok(array) } else { Err(PyErr::fetch(py)) }
    }
}

/// Creates a numpy array on `storage`, without a copy. The array keeps the storage.
pub(crate) fn array_over<'py>(
    py: Python<'py>,
    storage: Storage,
    layout: &Arc<ArrayLayout>,
) -> PyResult<Bound<'py, PyAny>> {
    let owner = Bound::new(py, OutputBuffer { storage, layout: Arc::clone(layout) })?;
    let known = dtype_of(&layout.format);
    let interface = INTERFACE.get_or_init(py, || Interface::find(py));
    if let (Some(interface), Some(dtype)) = (interface, known.and_then(|dtype| dtype.get(py))) {
        return interface.array(owner, layout, dtype.bind(py));
    }
    let array = as_array(owner.as_any())?;
    if let Some(known) = known {
        let _ = known.set(py, array.getattr("dtype")?.unbind());
    }
    Ok(array)
}

/// Returns `numpy.asarray` of a value.
pub(crate) fn as_array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static AS_ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    AS_ARRAY.import(value.py(), "numpy", "asarray")?.call1((value,))
}

/// Returns the cell that keeps the element type of a format; `None` for formats of more than one letter.
fn dtype_of(format: &CStr) -> Option<&'static PyOnceLock<Py<PyAny>>> {
    match format.to_bytes() {
        [letter] => DTYPES.get(usize::from(*letter)),
        _ => None,
    }
}
