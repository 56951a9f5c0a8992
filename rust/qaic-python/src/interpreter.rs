//! Refusal of sub-interpreters, at whose end the module cannot stop its threads.

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Checks that the module is imported by the main interpreter.
///
/// # Errors
/// `ImportError` in a sub-interpreter: the process would hang at exit.
pub(crate) fn require_main(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: `_py` shows that a thread state is current, so its interpreter exists.
    let current = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: `current` is the interpreter that runs this call.
    let id = unsafe { ffi::PyInterpreterState_GetID(current) };
    if id == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err(format!(
        "qaic cannot be imported in a sub-interpreter; found interpreter {id}, expected the main interpreter; import qaic \
         in the main interpreter, or use processes (multiprocessing) instead of sub-interpreters"
    )))
}
