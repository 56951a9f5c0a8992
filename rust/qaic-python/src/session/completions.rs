//! Ends of inferences, collected for the one thread that sets the futures.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use qaic_runtime::process::ForkGuard;
use qaic_runtime::process::cancellation::CHECK_PERIOD;

use super::pending::PendingInference;
use crate::gil::{Detach, Reaped};

/// Inferences that are awaited, and those that have ended and were not reported yet.
pub(super) struct Completions {
    state: Mutex<State>,
    changed: Condvar,
    fork_guard: ForkGuard,
}

#[derive(Default)]
struct State {
    // Kept until they have left the device, also when their time was up long before.
    awaited: HashMap<u64, Arc<PendingInference>>,
    ended: Vec<u64>,
    is_woken: bool,
    // When an inference has to be checked next.
    next_check: Option<Instant>,
}

impl Completions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after `inference` from now on, until it ends. One that has ended is reported already.
    pub(super) fn expect(&self, token: u64, inference: &Arc<PendingInference>) {
        let mut state = self.state();
        if inference.set().is_none() {
            return;
        }
        state.awaited.insert(token, Arc::clone(inference));
        let look = next_check(Instant::now(), inference);
        if state.next_check.is_none_or(|next| look < next) {
            state.next_check = Some(look);
            self.changed.notify_all();
        }
    }

    /// Reports an end.
    pub(super) fn add(&self, token: u64) {
        let mut state = self.state();
        state.ended.push(token);
        let left = state.leave(token);
        drop(state);
        self.changed.notify_all();
        drop(left);
    }

    /// Looks no longer after an inference that was reported.
    pub(super) fn forget(&self, token: u64) {
        let left = self.state().awaited.remove(&token);
        drop(left);
    }

    fn wake(&self) {
        self.state().is_woken = true;
        self.changed.notify_all();
    }

    /// Tokens of inferences that ended, in order; none after `limit`, or after `wake`.
    fn wait(&self, limit: Duration) -> Vec<u64> {
        let until = Instant::now().checked_add(limit);
        let mut state = self.state();
        loop {
            let now = Instant::now();
            if state.next_check.is_some_and(|next| next <= now) {
                let inferences: Vec<_> =
                    state.awaited.iter().map(|(token, inference)| (*token, Arc::clone(inference))).collect();
                state.next_check = inferences.iter().map(|(_, inference)| next_check(now, inference)).min();
                // What is found may be reported.
                drop(state);
                for (token, inference) in &inferences {
                    if !inference.check(now) {
                        self.forget(*token);
                    }
                }
                drop(inferences);
                state = self.state();
            }
            if !state.ended.is_empty() || state.is_woken {
                state.is_woken = false;
                return std::mem::take(&mut state.ended);
            }
            let rest = |until: Instant| until.saturating_duration_since(now);
            if until.is_some_and(|until| rest(until).is_zero()) {
                return Vec::new();
            }
            let slice = until.into_iter().chain(state.next_check).map(rest).min().unwrap_or(CHECK_PERIOD);
            state = self.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// Lets go of an inference that was reported, unless the device still has it.
    fn leave(&mut self, token: u64) -> Option<Arc<PendingInference>> {
        let is_gone = self.awaited.get(&token).is_some_and(|inference| inference.set().is_none());
        if is_gone { self.awaited.remove(&token) } else { None }
    }
}

/// When an inference has to be looked after: at its deadline, and now and then before and after.
fn next_check(now: Instant, inference: &PendingInference) -> Instant {
    let soon = now + CHECK_PERIOD;
    inference.deadline().filter(|deadline| deadline.at > now).map_or(soon, |deadline| deadline.at.min(soon))
}

/// Ends of inferences that futures wait for. Made by `Session`.
#[pyclass(frozen, name = "Completions", module = "qaic._core")]
pub(crate) struct PyCompletions {
    shared: Reaped<Completions>,
}

impl PyCompletions {
    pub(super) fn shared(&self) -> &Arc<Completions> {
        &self.shared
    }
}

#[pymethods]
impl PyCompletions {
    #[new]
    fn new() -> Self {
        let shared =
            Completions { state: Mutex::default(), changed: Condvar::new(), fork_guard: ForkGuard::new() };
        Self { shared: Reaped::new(Arc::new(shared)) }
    }

    /// Tokens of inferences that ended, in order; none after `seconds` or a `wake`.
    ///
    /// Blocking, without the interpreter lock. One thread at a time.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<Vec<u64>> {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        py.detached(|| {
            self.shared.fork_guard.check()?;
            Ok(self.shared.wait(limit))
        })
    }

    /// Inferences that the device has not let go of.
    #[getter]
    fn awaited(&self) -> usize {
        if self.shared.fork_guard.is_current() { self.shared.state().awaited.len() } else { 0 }
    }

    /// Ends a `wait`.
    fn wake(&self) {
        if self.shared.fork_guard.is_current() {
            self.shared.wake();
        }
    }
}
