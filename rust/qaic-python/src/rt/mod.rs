//! The classes of `qaicrt`: the vendor's names and status codes for the runtime.
//!
//! Calls return a `QStatus` ([`status`]) and log the reason of a failure; constructors raise.

pub(crate) mod argument;
pub(crate) mod benchmark;
pub(crate) mod callback_channel;
pub(crate) mod context;
pub(crate) mod dims;
pub(crate) mod exec_obj;
pub(crate) mod inference_handle;
pub(crate) mod inference_set;
pub(crate) mod inference_vector;
pub(crate) mod numbers;
pub(crate) mod program;
pub(crate) mod qpc;
pub(crate) mod queue;
pub(crate) mod slicing;
pub(crate) mod status;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use qaic_runtime::process::FailureSource;
use qaic_runtime::{Context, DeviceError, ErrorDetail, RuntimeError};

use status::Refusal;

use crate::errors::from_runtime;
use crate::gil;

/// Calls the constructor of the class with its arguments.
#[pyfunction]
#[pyo3(name = "Factory", signature = (cls, *args, **kwargs))]
fn factory<'py>(
    cls: &Bound<'py, PyType>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    cls.call(args, kwargs)
}

/// Returns the class method ``Factory``, the vendor's alternative to the constructor.
pub(crate) fn factory_method(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("builtins")?.getattr("classmethod")?.call1((wrap_pyfunction!(factory, py)?,))
}

/// Returns the exception for a failed construction.
pub(crate) fn construction_failed(py: Python<'_>, object: &'static str, error: RuntimeError) -> PyErr {
    if error.is_interrupted()
        && let Some(signal) = gil::take_signal()
    {
        return signal;
    }
    let class = match error.detail() {
        ErrorDetail::Device(DeviceError::OutOfMemory { .. }) => "ExceptionNullPtr",
        _ => "ExceptionInit",
    };
    let (code, text) = (error.code(), error.to_string());
    raise(py, class, Some(object), code, &text, Some(&from_runtime(py, error)))
}

/// [`construction_failed`], which also notifies the log and the error handler of `context`.
pub(crate) fn construction_reported(
    py: Python<'_>,
    context: &Context,
    source: FailureSource,
    refusal: Refusal,
) -> PyErr {
    if let Refusal::Failed(_, error) = &refusal {
        context.logger.construction_failed(source, error);
    }
    refusal.of_construction(py, source.name())
}

/// Returns the exception for a required object that is `None`.
pub(crate) fn missing(py: Python<'_>, object: &'static str, what: &str) -> PyErr {
    let text = format!("{what} is None; an object is expected");
    raise(py, "ExceptionNullPtr", Some(object), "call.argument", &text, None)
}

/// Returns the exception for a construction that raised `cause`. Interrupts by the user stay as they are.
pub(crate) fn construction_failed_by(py: Python<'_>, object: &'static str, cause: PyErr) -> PyErr {
    if !cause.is_instance_of::<pyo3::exceptions::PyException>(py) {
        return cause;
    }
    let value = cause.value(py);
    let text_of = |name: &str| value.getattr(name).and_then(|text| text.extract::<String>()).ok();
    let (code, text) = if cause.is_instance_of::<pyo3::exceptions::PyOSError>(py) {
        let file = text_of("filename")
            .map(|file| if file.is_empty() { "'': ".to_owned() } else { format!("{file}: ") })
            .unwrap_or_default();
        ("file.io".to_owned(), text_of("strerror").map(|reason| format!("{file}{reason}")))
    } else {
        (text_of("code").unwrap_or_default(), text_of("message"))
    };
    let text = text.unwrap_or_else(|| value.to_string());
    raise(py, "ExceptionInit", Some(object), &code, &text, Some(&cause))
}

/// Returns the exception for a failed call that has no status.
pub(crate) fn call_failed(py: Python<'_>, code: &str, text: &str) -> PyErr {
    raise(py, "ExceptionRuntime", None, code, text, None)
}

/// Builds an exception of `qaicrt` with the values and hints of its cause.
fn raise(
    py: Python<'_>,
    class: &str,
    object: Option<&str>,
    code: &str,
    text: &str,
    cause: Option<&PyErr>,
) -> PyErr {
    let prefix = match class {
        "ExceptionInit" => "Initialization Exception: ",
        "ExceptionNullPtr" => "Null Pointer Exception: ",
        _ => "Runtime Exception: ",
    };
    let origin = object.map(|object| format!("in object: {object} ")).unwrap_or_default();
    let make = || -> PyResult<PyErr> {
        let keywords = PyDict::new(py);
        keywords.set_item("code", code)?;
        keywords.set_item("context", detail(py, cause, "context")?.unwrap_or(PyDict::new(py).into_any()))?;
        keywords.set_item("hints", detail(py, cause, "hints")?.unwrap_or(PyTuple::empty(py).into_any()))?;
        let class = py.import("qaic.rt.exceptions")?.getattr(class)?;
        let exception = class.call((format!("{prefix}{origin}{text}"),), Some(&keywords))?;
        let error = PyErr::from_value(exception);
        error.set_cause(py, cause.map(|cause| cause.clone_ref(py)));
        Ok(error)
    };
    make().unwrap_or_else(|error| error)
}

fn detail<'py>(py: Python<'py>, cause: Option<&PyErr>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    match cause {
        Some(cause) => cause.value(py).getattr_opt(name),
        None => Ok(None),
    }
}
