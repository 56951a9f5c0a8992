//! The exception classes and the only mapping from Rust errors to them.
//!
//! Each class has several bases (an input error is also a `ValueError`). The stable ABI can create such classes only
//! from Python source: `exceptions.py` in this folder, which is compiled into the module.

use std::ffi::CString;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use qaic_qpc::{ErrorReport, Figure, QpcError};
use qaic_runtime::{ErrorDetail, RuntimeError};
use qaic_stats::StatsError;

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

fn module(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    MODULE
        .get_or_try_init(py, || {
            let source = CString::new(include_str!("exceptions.py"))?;
            // The classes report `qaic.errors` as their module, although this source runs in the compiled module.
            PyModule::from_code(py, &source, c"qaic/exceptions.py", c"qaic._core").map(Bound::unbind)
        })
        .map(|module| module.bind(py))
}

pub(crate) fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    module(py)?.getattr(name)
}

/// Adds every class, and the function that unpickles them, to the compiled module.
pub(crate) fn register(target: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = target.py();
    // The source runs under the name of this module, so it also replaces the module's docstring.
    let (name, file) = (target.getattr("__name__")?, target.getattr("__file__")?);
    let classes = module(py)?.dict().copy()?;
    target.setattr("__name__", name)?;
    target.setattr("__file__", file)?;
    for (name, class) in classes {
        if class.is_instance_of::<PyType>() {
            target.add(name.cast::<PyString>()?, class)?;
        }
    }
    target.add("_rebuild", class(py, "_rebuild")?)
}

/// An exception of the tree that is ready to raise.
pub(crate) struct Raise<'py> {
    py: Python<'py>,
    code: &'static str,
    message: String,
    report: ErrorReport,
}

impl<'py> Raise<'py> {
    pub(crate) fn new(
        py: Python<'py>,
        class: &'static str,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { py, code, message: message.into(), report: ErrorReport::of(class) }
    }

    /// Converts an error with its code, message and report.
    fn reported(py: Python<'py>, code: &'static str, message: String, report: ErrorReport) -> Self {
        Self { py, code, message, report }
    }

    /// Adds a figure to the context.
    pub(crate) fn with(mut self, key: &'static str, value: impl Into<Figure>) -> Self {
        self.report = self.report.with(key, value);
        self
    }

    pub(crate) fn hint(mut self, hint: &'static str) -> Self {
        self.report = self.report.hint(hint);
        self
    }

    pub(crate) fn build(self) -> PyErr {
        let make = || -> PyResult<PyErr> {
            let (keywords, context) = (PyDict::new(self.py), PyDict::new(self.py));
            for (name, value) in &self.report.figures {
                context.set_item(name, figure(self.py, value)?)?;
            }
            keywords.set_item("code", self.code)?;
            keywords.set_item("context", context)?;
            keywords.set_item("hints", PyTuple::new(self.py, self.report.hint)?)?;
            let exception = class(self.py, self.report.class)?.call((&self.message,), Some(&keywords))?;
            Ok(PyErr::from_value(exception))
        };
        make().unwrap_or_else(|error| error)
    }
}

fn figure<'py>(py: Python<'py>, value: &Figure) -> PyResult<Bound<'py, PyAny>> {
    let all = |values: &[Figure]| values.iter().map(|value| figure(py, value)).collect::<PyResult<Vec<_>>>();
    match value {
        Figure::Unknown => Ok(py.None().into_bound(py)),
        Figure::Number(number) => number.into_bound_py_any(py),
        Figure::Text(text) => text.into_bound_py_any(py),
        Figure::Path(path) => path.into_bound_py_any(py),
        Figure::List(values) => all(values)?.into_bound_py_any(py),
        Figure::Tuple(values) => PyTuple::new(py, all(values)?).map(Bound::into_any),
    }
}

pub(crate) fn from_qpc(py: Python<'_>, error: &QpcError) -> PyErr {
    Raise::reported(py, error.code(), error.to_string(), error.report()).build()
}

/// Returns the exception for an error of a container file.
pub(crate) fn from_qpc_file(py: Python<'_>, error: &QpcError, path: &str) -> PyErr {
    let report = error.report().with("path", path);
    Raise::reported(py, error.code(), format!("{path}: {error}"), report).build()
}

/// Returns the exception for an error of statistics, which were read from the file `path`.
pub(crate) fn from_stats(py: Python<'_>, error: &StatsError, path: Option<&str>) -> PyErr {
    let Some(path) = path else {
        return Raise::reported(py, error.code(), error.to_string(), error.report()).build();
    };
    let report = error.report().with("path", path);
    Raise::reported(py, error.code(), format!("{path}: {error}"), report).build()
}

pub(crate) fn from_runtime(py: Python<'_>, error: impl Into<RuntimeError>) -> PyErr {
    let error = error.into();
    match error.detail() {
        ErrorDetail::Io { path, source } => os_error(py, &path.display().to_string(), source),
        ErrorDetail::Interrupted => PyKeyboardInterrupt::new_err(()),
        _ => Raise::reported(py, error.code(), error.to_string(), error.report()).build(),
    }
}

/// Returns the built-in `OSError` subclass for an I/O error, with errno and file name.
pub(crate) fn os_error(py: Python<'_>, path: &str, source: &std::io::Error) -> PyErr {
    let errno = source.raw_os_error().unwrap_or(match source.kind() {
        std::io::ErrorKind::IsADirectory => 21,
        _ => 5,
    });
    let text = py
        .import("os")
        .and_then(|os| os.call_method1("strerror", (errno,)))
        .and_then(|text| text.extract::<String>())
        .unwrap_or_else(|_| source.to_string());
    PyOSError::new_err((errno, text, path.to_owned()))
}

/// Serializes a value of this module as JSON; this cannot fail for the types in use.
pub(crate) fn to_json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value)
        .map_err(|error| Raise::new(py, "InternalError", "internal.json", error.to_string()).build())
}

/// Converts a value to Python objects by way of JSON.
pub(crate) fn record<'py>(py: Python<'py>, value: &impl serde::Serialize) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (to_json(py, value)?,))
}

/// Returns the exception for a panic in Rust code.
pub(crate) fn panicked(py: Python<'_>, payload: &(dyn std::any::Any + Send)) -> PyErr {
    let text = payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    Raise::new(py, "InternalError", "internal.panic", format!("a defect in openqaic: {text}"))
        .hint("please report it with this message")
        .build()
}
