//! Executions in two phases, as on a card: submit, then wait.
//!
//! The device ends submissions in order. Each submission has its own fault, and does not end before a closed barrier
//! lets it pass. As on a card, a running submission cannot be stopped: a cancellation only ends the wait, and the
//! device keeps the buffers until the submission ends. A stuck submission ends when it is cancelled.

use std::time::{Duration, Instant};

use qaic_emu::fault::{Action, Trigger};

use super::control::{Control, Delay, Stop};
use crate::error::{ErrorDetail, RuntimeError};
use crate::sync::{MutexGuard, Ordering};
use qaic_sched::{CHECK_PERIOD, CancellationCheck};

/// A submitted execution.
#[derive(Debug)]
pub(super) struct Submission {
    // Index among all submissions, and number among the calls from 1.
    number: u64,
    nth: u64,
    fault: Option<Action>,
    delay: Delay,
    /// Sum of the bytes that the device reads.
    pub(super) sum: u32,
}

impl Control {
    /// Makes programs that are created from now on submit their executions before they wait for them.
    #[cfg(test)]
    pub(crate) fn queue(&self) {
        self.queues.store(true, Ordering::Relaxed);
    }

    /// Returns true if executions are submitted before they are waited for.
    pub(super) fn is_queueing(&self) -> bool {
        self.queues.load(Ordering::Relaxed)
    }

    /// Lets `count` more submissions through the closed barrier, the oldest first.
    #[cfg(test)]
    pub(crate) fn let_through(&self, count: u64) -> Result<(), RuntimeError> {
        self.state()?.first_held += count;
        self.changed.notify_all();
        Ok(())
    }

    /// Maximum number of executions that were inside the device at a time.
    #[cfg(test)]
    pub(crate) fn most_executing(&self) -> Result<u32, RuntimeError> {
        Ok(self.state()?.most_inside)
    }

    pub(super) fn submit(&self, losses: u32, stop: &Stop, sum: u32) -> Result<Submission, RuntimeError> {
        let nth = self.count(Trigger::Execute);
        let mut state = self.state()?;
        self.check_loaded(losses)?;
        let fault = state.plan.action(Trigger::Execute, nth);
        let number = state.next;
        state.next += 1;
        state.inside += 1;
        state.most_inside = state.most_inside.max(state.inside);
        stop.asked.store(false, Ordering::Relaxed);
        stop.inside.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        Ok(Submission { number, nth, fault, delay: Delay::of(fault), sum })
    }

    /// Waits for the end of a submission. With `is_reclaim`, waits until the device has released the buffers,
    /// whatever the outcome.
    pub(super) fn await_end(
        &self,
        submission: &Submission,
        losses: u32,
        stop: &Stop,
        mut check: Option<CancellationCheck<'_>>,
        is_reclaim: bool,
    ) -> Result<(), RuntimeError> {
        let mut state = self.state()?;
        if is_reclaim {
            // The cancellation applied to the execution, not to this wait.
            stop.asked.store(false, Ordering::Relaxed);
            if !stop.inside.swap(true, Ordering::Relaxed) {
                state.inside += 1;
            }
        }
        loop {
            if let Err(error) = self.check_loaded(losses) {
                self.leave(state, stop);
                return if is_reclaim { Ok(()) } else { Err(error) };
            }
            let is_through = !state.held || submission.number < state.first_held;
            let left = match submission.delay {
                Delay::Until(end) => end.saturating_duration_since(Instant::now()),
                // The delay lasts until it is cancelled.
                Delay::Forever if is_reclaim => Duration::ZERO,
                Delay::Forever => CHECK_PERIOD,
            };
            if is_through && left.is_zero() {
                break;
            }
            if stop.asked.load(Ordering::Relaxed) {
                self.leave(state, stop);
                return Err(ErrorDetail::Interrupted.into());
            }
            let limit = if left.is_zero() { CHECK_PERIOD } else { left.min(CHECK_PERIOD) };
            state = self.changed.wait_at_most(state, limit);
            if let Some(check) = check.as_deref_mut() {
                drop(state);
                if check() {
                    return Err(ErrorDetail::Interrupted.into());
                }
                state = self.state()?;
            }
        }
        let outcome = match submission.fault {
            Some(Action::Lost) if !is_reclaim => Err(self.reset(&state)),
            Some(Action::FailInference) if !is_reclaim => Err(self.failure(submission.nth)),
            _ => Ok(()),
        };
        self.leave(state, stop);
        outcome
    }

    /// Removes a submission whose exec was dropped.
    pub(super) fn forget(&self, _: &Submission, stop: &Stop) {
        if let Ok(state) = self.state()
            && stop.inside.load(Ordering::Relaxed)
        {
            self.leave(state, stop);
        }
    }

    fn leave(&self, mut state: MutexGuard<'_, super::control::ControlState>, stop: &Stop) {
        state.inside -= 1;
        stop.inside.store(false, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }
}
