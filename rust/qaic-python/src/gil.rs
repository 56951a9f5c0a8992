//! All calls that release the interpreter lock. This module handles panics, errors and Ctrl-C of such calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::types::PyCFunction;
use qaic_runtime::process::cancellation::watch;
use qaic_runtime::process::reaper::{self, Teardown};
use qaic_runtime::process::{self, DropWait, ignore_signals_on_this_thread};
use qaic_runtime::{CancellationToken, Deadline, Detached, ErrorDetail, ForkGuard, RuntimeError, WaitScope};

use crate::errors;

/// Extension of the interpreter token.
pub(crate) trait Detach<'py>: Sized {
    /// Runs `work` without the interpreter lock on the calling thread.
    ///
    /// The work must end within milliseconds, or wait in the scope of [`answering_signals`].
    fn detached<T: Ungil + Send>(
        self,
        work: impl FnOnce(Detached) -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T>;

    /// [`Self::detached`] for a caller that handles errors. Raises only for a signal or a panic.
    fn attempted<T: Ungil + Send>(
        self,
        work: impl FnOnce(Detached) -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<Result<T, RuntimeError>> {
        let outcome = self.detached(|detached| Ok(work(detached)))?;
        if matches!(&outcome, Err(error) if error.is_interrupted())
            && let Some(signal) = take_signal()
        {
            return Err(signal);
        }
        Ok(outcome)
    }

    /// [`Self::detached`] for `wait`, whose scope ends at `deadline` and handles signals.
    fn waiting<T: Ungil + Send>(
        self,
        deadline: Option<Deadline>,
        wait: impl FnOnce(&mut WaitScope<'_>) -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T> {
        self.detached(|detached| answering_signals(detached, deadline, wait))
    }

    /// Runs long `work` that does not handle signals, and ends it at Ctrl-C.
    ///
    /// On the main thread, the work moves to another thread while this one checks for signals. Other threads receive
    /// no signals, so they run the work themselves. `token` is the work's current token; it is cancelled repeatedly
    /// until the work has ended.
    fn watched<T: Ungil + Send>(
        self,
        token: &CancellationToken,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T> {
        self.watched_until(None, "a call", token, work)
    }

    /// [`Self::watched`] with a `deadline`; the timeout error contains `what`.
    fn watched_until<T: Ungil + Send>(
        self,
        deadline: Option<Deadline>,
        what: &'static str,
        token: &CancellationToken,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T>;

    /// [`Self::watched`] for requests to a card, which only the current token ends.
    fn asking<T: Ungil + Send>(
        self,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T> {
        self.watched(&CancellationToken::default(), work)
    }

    /// Runs an explicit teardown on a reaper thread. After Ctrl-C or [`reaper::LIMIT`], the teardown continues there.
    fn torn_down<T: Ungil + Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send + 'static,
    ) -> PyResult<Result<T, RuntimeError>> {
        let limit = Deadline::after(reaper::LIMIT);
        self.attempted(|detached| answering_signals(detached, limit, |scope| reaper::run(scope, work)))
    }
}

/// A value with a slow teardown. Its drop waits briefly for the teardown, without the interpreter lock.
pub(crate) type Reaped<T> = process::Reaped<T, DetachedWait>;

/// Waits without the interpreter lock, if there is an interpreter.
#[derive(Debug)]
pub(crate) struct DetachedWait;

impl DropWait for DetachedWait {
    fn wait(teardown: &Teardown) {
        if Python::try_attach(|py| py.detach(|| teardown.wait_briefly())).is_none() {
            teardown.wait_briefly();
        }
    }
}

/// Makes interpreter exit wait for running teardowns.
pub(crate) fn finish_with_interpreter(py: Python<'_>) -> PyResult<()> {
    let finish = PyCFunction::new_closure(py, None, None, |arguments, _| {
        arguments.py().detached(|detached| match answering_signals(detached, None, reaper::finish) {
            Err(error) if error.is_interrupted() => Err(error),
            // The kernel releases the rest.
            _ => Ok(()),
        })
    })?;
    py.import("atexit")?.call_method1("register", (finish,)).map(drop)
}

/// Waits for all running teardowns; returns false if `seconds` pass first.
///
/// Blocking, without the interpreter lock; Ctrl-C ends it.
#[pyfunction]
pub(crate) fn await_teardown(py: Python<'_>, seconds: f64) -> PyResult<bool> {
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
    py.detached(|detached| match answering_signals(detached, Deadline::after(limit), reaper::drain) {
        Err(error) if matches!(error.detail(), ErrorDetail::Timeout { .. }) => Ok(false),
        outcome => outcome.map(|()| true),
    })
}

/// Handle to wait for the teardown of a loaded program after its last use. It does not keep the program alive.
#[pyclass(frozen, name = "Teardown", module = "qaic._core")]
pub(crate) struct PyTeardown {
    teardown: Arc<Teardown>,
}

impl PyTeardown {
    pub(crate) fn new(teardown: &Arc<Teardown>) -> Self {
        Self { teardown: Arc::clone(teardown) }
    }
}

#[pymethods]
impl PyTeardown {
    /// Waits until the program is torn down if its last reference is gone, for at most `seconds` (default: one
    /// minute). Loads that find the device busy wait for its teardown from now on.
    ///
    /// Blocking, without the interpreter lock. The teardown continues after Ctrl-C and after the limit.
    #[pyo3(signature = (seconds = None))]
    fn wait(&self, py: Python<'_>, seconds: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let deadline = match seconds {
            None => Deadline::after(reaper::LIMIT),
            limit => deadline_after(py, limit)?,
        };
        reaper::announce(&self.teardown);
        py.waiting(deadline, |scope| self.teardown.wait(scope))
    }
}

/// Returns the point in time `seconds` from now; `None` if there is no limit.
pub(crate) fn deadline_after(
    py: Python<'_>,
    seconds: Option<Bound<'_, PyAny>>,
) -> PyResult<Option<Deadline>> {
    let Some(given) = seconds else { return Ok(None) };
    match given.extract::<f64>() {
        // If the clock cannot represent the limit, the wait is unlimited.
        Ok(seconds) if seconds >= 0.0 => {
            Ok(Duration::try_from_secs_f64(seconds).ok().and_then(Deadline::after))
        }
        _ => {
            let text = format!("timeout is {}; a number of seconds of at least 0 is expected", given.repr()?);
            Err(errors::Raise::new(py, "OptionError", "option.timeout", text).build())
        }
    }
}

impl<'py> Detach<'py> for Python<'py> {
    fn detached<T: Ungil + Send>(
        self,
        work: impl FnOnce(Detached) -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T> {
        match self.detach(|| catch_unwind(AssertUnwindSafe(|| work(Detached::assume())))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(to_exception(self, error)),
            Err(payload) => Err(errors::panicked(self, payload.as_ref())),
        }
    }

    fn watched_until<T: Ungil + Send>(
        self,
        deadline: Option<Deadline>,
        what: &'static str,
        token: &CancellationToken,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T> {
        let is_main = on_main_thread(self)?;
        if !is_main && deadline.is_none() {
            return self.detached(|_| work());
        }
        let mut signal = None;
        let mut check = || {
            signal = if is_main { Python::attach(check_signals).err() } else { None };
            signal.is_some()
        };
        let outcome =
            self.detach(|| watch(token, &mut WaitScope::until(deadline).checked_by(&mut check), work));
        match (signal, outcome) {
            (_, Err(payload)) => Err(errors::panicked(self, payload.as_ref())),
            (Some(signal), _) => Err(signal),
            (None, Ok(Ok(value))) => Ok(value),
            // Several errors can mean that an inference was cancelled at the deadline.
            (None, Ok(Err(error))) if token.is_cancelled() => {
                let late = deadline.map_or(error, |deadline| deadline.error(what).into());
                Err(to_exception(self, late))
            }
            (None, Ok(Err(error))) => Err(to_exception(self, error)),
        }
    }
}

/// Runs the Python handlers of pending signals; returns the exception that a handler raised.
fn check_signals(py: Python<'_>) -> PyResult<()> {
    py.check_signals()
}

/// Maps an error; an interrupted wait raises the exception of the signal handler.
fn to_exception(py: Python<'_>, error: RuntimeError) -> PyErr {
    if error.is_interrupted()
        && let Some(signal) = take_signal()
    {
        return signal;
    }
    errors::from_runtime(py, error)
}

thread_local! {
    static MAIN: std::cell::Cell<Option<(ForkGuard, bool)>> = const { std::cell::Cell::new(None) };
    // Exception that a signal handler raised during a wait of this thread, until the wait has returned.
    static PENDING: std::cell::Cell<Option<PyErr>> = const { std::cell::Cell::new(None) };
}

/// Takes the exception of the signal handler that ended a wait of this thread.
pub(crate) fn take_signal() -> Option<PyErr> {
    PENDING.take()
}

/// Runs a call in a wait scope that ends at `deadline` and handles signals. Only this function creates scopes, so no
/// wait holds the interpreter lock.
pub(crate) fn answering_signals<T>(
    _: Detached,
    deadline: Option<Deadline>,
    wait: impl FnOnce(&mut WaitScope<'_>) -> T,
) -> T {
    let mut check = signal_pending;
    wait(&mut WaitScope::until(deadline).checked_by(&mut check))
}

/// Returns true if a signal handler raised an exception on this thread. For waits inside [`Detach::detached`].
pub(crate) fn signal_pending() -> bool {
    // If thousands of waiting threads took the interpreter lock here, working threads would starve.
    if known_main() == Some(false) {
        return false;
    }
    match Python::attach(|py| if on_main_thread(py)? { check_signals(py) } else { Ok(()) }) {
        Ok(()) => false,
        Err(error) => {
            PENDING.set(Some(error));
            true
        }
    }
}

/// Returns true if signals are delivered to this thread. The answer is computed once per thread, and again in a
/// forked process, whose main thread is the thread that forked.
fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    if let Some(answer) = known_main() {
        return Ok(answer);
    }
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    let answer = threading.call_method0("get_ident")?.eq(main)?;
    MAIN.set(Some((ForkGuard::new(), answer)));
    if !answer {
        ignore_signals_on_this_thread();
    }
    Ok(answer)
}

/// Returns the result of [`on_main_thread`] for this thread in this process.
fn known_main() -> Option<bool> {
    MAIN.get().filter(|(asked, _)| asked.is_current()).map(|(_, answer)| answer)
}
