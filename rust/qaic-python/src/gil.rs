//! The one door through which calls leave the interpreter lock: panics, errors and Ctrl-C are handled here, once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::marker::Ungil;
use pyo3::prelude::*;
use qaic_runtime::device::{Canceller, LoadToken};
use qaic_runtime::error::RuntimeError;
use qaic_runtime::fork::Origin;
use qaic_runtime::interrupts::{self, LOOK_PERIOD};

use crate::errors;

/// Extension of the interpreter token.
pub(crate) trait Door<'py> {
    /// Runs `work` without the interpreter lock on the calling thread.
    ///
    /// For work that ends by itself within milliseconds, or that asks [`signal_pending`] while it waits.
    fn detached<T: Ungil + Send>(
        self,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T>;

    /// Runs `work`, which may take long and knows nothing of signals, so that Ctrl-C ends it.
    ///
    /// On the main thread the work moves to another thread while this one watches; elsewhere no signal can arrive and it
    /// runs right here. `cancel` is asked again and again until the work has ended, and [`interrupts::was_interrupted`]
    /// says so to it.
    fn watched<T: Ungil + Send>(
        self,
        cancel: &Arc<dyn Canceller>,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T>;

    /// [`Self::watched`] for work that nothing but [`interrupts::was_interrupted`] ends: questions to a card.
    fn asking<T: Ungil + Send>(
        self,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T>;
}

/// A point in time and the limit it came from.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    pub(crate) limit: Duration,
}

impl Deadline {
    /// `seconds` from now; `None` when there is no limit.
    pub(crate) fn after(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Self>> {
        let Some(seconds) = seconds else { return Ok(None) };
        let limit = match Duration::try_from_secs_f64(seconds) {
            Ok(limit) => limit,
            // A limit beyond what the clock can express is no limit.
            Err(_) if seconds > 0.0 => return Ok(None),
            Err(_) => {
                return Err(errors::Raise::new(
                    py,
                    "OptionError",
                    "option.timeout",
                    format!("timeout is {seconds}; it must be a number of seconds, 0 or more"),
                )
                .build());
            }
        };
        Ok(Instant::now().checked_add(limit).map(|at| Self { at, limit }))
    }

    pub(crate) fn has_passed(self) -> bool {
        Instant::now() >= self.at
    }

    /// Says that `what` did not come in time.
    pub(crate) fn error(self, what: &'static str) -> RuntimeError {
        let timeout_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX);
        RuntimeError::Timeout { what, timeout_ms }
    }
}

impl<'py> Door<'py> for Python<'py> {
    fn detached<T: Ungil + Send>(
        self,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T> {
        match self.detach(|| catch_unwind(AssertUnwindSafe(work))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(to_exception(self, error)),
            Err(payload) => Err(errors::panicked(self, payload.as_ref())),
        }
    }

    fn watched<T: Ungil + Send>(
        self,
        cancel: &Arc<dyn Canceller>,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T> {
        if !on_main_thread(self)? {
            return self.detached(work);
        }
        let mut signal = None;
        let token = LoadToken::new();
        let outcome = self.detach(|| {
            thread::scope(|scope| {
                let (done, ended) = channel();
                let within = &token;
                let worker = scope.spawn(move || {
                    let result = catch_unwind(AssertUnwindSafe(|| interrupts::within(within, work)));
                    // The watcher may have stopped listening only after the worker was joined.
                    let _ = done.send(());
                    result
                });
                while matches!(ended.recv_timeout(LOOK_PERIOD), Err(RecvTimeoutError::Timeout)) {
                    if signal.is_none() {
                        signal = Python::attach(check_signals).err();
                    }
                    if signal.is_some() {
                        cancel.cancel();
                        token.cancel();
                    }
                }
                worker.join().unwrap_or_else(Err)
            })
        });
        match (signal, outcome) {
            (_, Err(payload)) => Err(errors::panicked(self, payload.as_ref())),
            (Some(signal), _) => Err(signal),
            (None, Ok(Ok(value))) => Ok(value),
            (None, Ok(Err(error))) => Err(to_exception(self, error)),
        }
    }

    fn asking<T: Ungil + Send>(
        self,
        work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
    ) -> PyResult<T> {
        let token: Arc<dyn Canceller> = LoadToken::new();
        self.watched(&token, work)
    }
}

/// Runs the Python handlers of signals that arrived; the exception one of them raised is the error.
fn check_signals(py: Python<'_>) -> PyResult<()> {
    py.check_signals()
}

/// Maps an error; an interrupted wait raises what the signal handler raised.
fn to_exception(py: Python<'_>, error: RuntimeError) -> PyErr {
    if matches!(error, RuntimeError::Interrupted)
        && let Some(signal) = take_signal()
    {
        return signal;
    }
    errors::from_runtime(py, error)
}

thread_local! {
    static MAIN: std::cell::Cell<Option<(Origin, bool)>> = const { std::cell::Cell::new(None) };
    // The exception a signal handler raised during a wait of this thread, until the wait has unwound.
    static PENDING: std::cell::Cell<Option<PyErr>> = const { std::cell::Cell::new(None) };
}

/// What a signal handler raised during a wait of this thread that ended because of it.
pub(crate) fn take_signal() -> Option<PyErr> {
    PENDING.take()
}

/// Whether a signal handler raised on this thread. For waits inside [`Door::detached`].
pub(crate) fn signal_pending() -> bool {
    // Taking the interpreter lock for nothing, thousands of waiting threads would keep it from those that work.
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

/// Whether signals are delivered to this thread. Asked once per thread, and again in a forked process, where the thread
/// that forked is the main one.
fn on_main_thread(py: Python<'_>) -> PyResult<bool> {
    if let Some(answer) = known_main() {
        return Ok(answer);
    }
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    let answer = threading.call_method0("get_ident")?.eq(main)?;
    MAIN.set(Some((Origin::here(), answer)));
    if !answer {
        interrupts::never_on_this_thread();
    }
    Ok(answer)
}

/// What [`on_main_thread`] found for this thread in this process.
fn known_main() -> Option<bool> {
    MAIN.get().filter(|(asked, _)| asked.is_here()).map(|(_, answer)| answer)
}
