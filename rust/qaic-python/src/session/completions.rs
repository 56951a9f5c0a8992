//! Ends of inferences, collected for one thread that tells the futures.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use qaic_runtime::process::ForkGuard;
use qaic_runtime::process::cancellation::CHECK_PERIOD;

use super::flight::Flight;
use crate::gil::{Door, Reaped};

/// Inferences that are awaited, and those that have ended and were not reported yet.
pub(super) struct Completions {
    state: Mutex<State>,
    changed: Condvar,
    fork_guard: ForkGuard,
}

#[derive(Default)]
struct State {
    // Kept until they have left the device, also when their time was up long before.
    awaited: HashMap<u64, Arc<Flight>>,
    ended: Vec<u64>,
    is_woken: bool,
    // When somebody has to be looked after next.
    next_look: Option<Instant>,
}

impl Completions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after `flight` from now on, until it ends. One that has ended is reported already.
    pub(super) fn expect(&self, token: u64, flight: &Arc<Flight>) {
        let mut state = self.state();
        if flight.set().is_none() {
            return;
        }
        state.awaited.insert(token, Arc::clone(flight));
        let look = next_look(Instant::now(), flight);
        if state.next_look.is_none_or(|next| look < next) {
            state.next_look = Some(look);
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

    /// Tokens of inferences that ended, in order; none after `limit`, or when somebody called `wake`.
    fn wait(&self, limit: Duration) -> Vec<u64> {
        let until = Instant::now().checked_add(limit);
        let mut state = self.state();
        loop {
            let now = Instant::now();
            if state.next_look.is_some_and(|next| next <= now) {
                let flights: Vec<_> =
                    state.awaited.iter().map(|(token, flight)| (*token, Arc::clone(flight))).collect();
                state.next_look = flights.iter().map(|(_, flight)| next_look(now, flight)).min();
                // What is found may be reported.
                drop(state);
                for (token, flight) in &flights {
                    if !flight.look_after(now) {
                        self.forget(*token);
                    }
                }
                drop(flights);
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
            let slice = until.into_iter().chain(state.next_look).map(rest).min().unwrap_or(CHECK_PERIOD);
            state = self.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// Lets go of an inference that was reported, unless the device still has it.
    fn leave(&mut self, token: u64) -> Option<Arc<Flight>> {
        let is_gone = self.awaited.get(&token).is_some_and(|flight| flight.set().is_none());
        if is_gone { self.awaited.remove(&token) } else { None }
    }
}

/// When an inference has to be looked after: at its deadline, and now and then before and after.
fn next_look(now: Instant, flight: &Flight) -> Instant {
    let soon = now + CHECK_PERIOD;
    flight.deadline().filter(|deadline| deadline.at > now).map_or(soon, |deadline| deadline.at.min(soon))
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
