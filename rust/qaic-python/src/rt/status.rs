//! Conversion of outcomes to `QStatus` objects. Each failure is logged.

use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use qaic_runtime::process::FailureSource;
use qaic_runtime::{Context, Deadline, Detached, ErrorDetail, QStatus, RuntimeError, StateError, WaitScope};

use crate::gil::{Detach, answering_signals};

/// Returns the member of `qaicrt.QStatus`.
pub(crate) fn member(py: Python<'_>, status: QStatus) -> PyResult<Py<PyAny>> {
    static MEMBERS: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();
    let members = MEMBERS.get_or_try_init(py, || {
        let class = py.import("qaic.rt.enums")?.getattr("QStatus")?;
        QStatus::NAMES.iter().map(|name| class.getattr(*name).map(Bound::unbind)).collect::<PyResult<_>>()
    })?;
    Ok(members[status as usize].clone_ref(py))
}

/// Reason of a failed call: a Python exception, or an error that becomes a status.
pub(crate) enum Refusal {
    Raised(PyErr),
    Failed(QStatus, RuntimeError),
}

pub(crate) type Answer<T = ()> = Result<T, Refusal>;

impl From<PyErr> for Refusal {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl From<RuntimeError> for Refusal {
    fn from(error: RuntimeError) -> Self {
        Self::Failed(QStatus::of(&error), error)
    }
}

impl Refusal {
    /// Returns the exception for a construction that failed for this reason.
    pub(crate) fn of_construction(self, py: Python<'_>, object: &'static str) -> PyErr {
        match self {
            Self::Raised(error) => error,
            Self::Failed(_, error) => super::construction_failed(py, object, error),
        }
    }

    /// Returns the refusal with `status`, if `is_one` accepts its error.
    pub(crate) fn with_status(self, status: QStatus, is_one: impl FnOnce(&ErrorDetail) -> bool) -> Self {
        match self {
            Self::Failed(_, error) if is_one(error.detail()) => Self::Failed(status, error),
            other => other,
        }
    }

    /// Returns the refusal with [`QStatus::Busy`] if an inference is in flight, because the call can succeed later.
    pub(crate) fn busy_in_flight(self) -> Self {
        self.with_status(QStatus::Busy, |detail| matches!(detail, ErrorDetail::State(StateError::InFlight)))
    }
}

/// Returns the error for a caller's mistake.
pub(crate) fn refused(what: impl Into<String>) -> RuntimeError {
    RuntimeError::argument(what)
}

/// Runs `work` without the interpreter lock. Raises only for a signal or a panic, which have no status.
pub(crate) fn outcome<T: Ungil + Send>(
    py: Python<'_>,
    work: impl FnOnce(Detached) -> Result<T, RuntimeError> + Ungil + Send,
) -> Answer<T> {
    Ok(py.attempted(work)??)
}

/// [`outcome`] of `wait`, whose scope ends at `deadline` and handles signals.
pub(crate) fn waited<T: Ungil + Send>(
    py: Python<'_>,
    deadline: Option<Deadline>,
    wait: impl FnOnce(&mut WaitScope<'_>) -> Result<T, RuntimeError> + Ungil + Send,
) -> Answer<T> {
    outcome(py, |detached| answering_signals(detached, deadline, wait))
}

/// Returns the status of a call without a result.
pub(crate) fn reply(
    py: Python<'_>,
    context: &Context,
    source: FailureSource,
    answer: Answer,
) -> PyResult<Py<PyAny>> {
    match answer {
        Ok(()) => member(py, QStatus::Success),
        Err(refusal) => refuse(py, context, source, refusal),
    }
}

/// (status, value) of a call, or (status, `None`).
pub(crate) fn reply_with<'py, T: IntoPyObject<'py>>(
    py: Python<'py>,
    context: &Context,
    source: FailureSource,
    answer: Answer<T>,
) -> PyResult<Bound<'py, PyTuple>> {
    match answer {
        Ok(value) => (member(py, QStatus::Success)?, value).into_pyobject(py),
        Err(refusal) => (refuse(py, context, source, refusal)?, py.None()).into_pyobject(py),
    }
}

/// Logs the reason of a failed call and returns its status. Failures that are not the caller's mistake also go to the
/// error handler.
pub(crate) fn refuse(
    py: Python<'_>,
    context: &Context,
    source: FailureSource,
    refusal: Refusal,
) -> PyResult<Py<PyAny>> {
    let (status, error) = match refusal {
        Refusal::Raised(error) => return Err(error),
        Refusal::Failed(status, error) => (status, error),
    };
    context.logger.call_failed(source, status, &error);
    member(py, status)
}
