//! Ends of inferences, collected for the one thread that sets the futures.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::PendingInference;
use crate::error::RuntimeError;
use crate::process::cancellation::CHECK_PERIOD;
use crate::process::{Deadline, ForkGuard};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Inferences that are awaited, and those that have ended and were not reported yet.
#[derive(Default)]
pub struct CompletionQueue {
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

impl CompletionQueue {
    /// A queue without inferences.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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

    /// Ends a [`CompletionQueue::wait`], the next one if there is none now. In a forked process there is none.
    pub fn wake(&self) {
        if self.fork_guard.is_current() {
            self.state().is_woken = true;
            self.changed.notify_all();
        }
    }

    /// Inferences that the device has not let go of; none of a parent process.
    pub fn awaited(&self) -> usize {
        if self.fork_guard.is_current() { self.state().awaited.len() } else { 0 }
    }

    /// Tokens of inferences that ended, in order; none after `limit`, or after `wake`.
    ///
    /// Blocking: until then. One thread at a time.
    pub fn wait(&self, limit: Duration) -> Result<Vec<u64>, RuntimeError> {
        self.fork_guard.check()?;
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
                return Ok(std::mem::take(&mut state.ended));
            }
            let rest = |until: Instant| until.saturating_duration_since(now);
            if until.is_some_and(|until| rest(until).is_zero()) {
                return Ok(Vec::new());
            }
            let slice = until.into_iter().chain(state.next_check).map(rest).min().unwrap_or(CHECK_PERIOD);
            state = self.changed.wait_at_most(state, slice);
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CompletionQueue")
            .field("fork_guard", &self.fork_guard)
            .finish_non_exhaustive()
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
    inference.deadline().map(Deadline::at).filter(|&at| at > now).map_or(soon, |at| at.min(soon))
}
