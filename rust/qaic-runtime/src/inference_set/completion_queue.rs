//! A queue of ended inferences for the one thread that sets the futures.

use std::cmp::{Ordering as By, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use qaic_sched::UNTIL_WOKEN;
use qaic_sync::{Event, EventCount, ExclusiveCell, MpscQueue};

use super::PendingInference;
use crate::error::{RuntimeError, StateError};
use crate::process::{Deadline, ForkGuard, clock};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Number of ended inferences that may stay in the watch list before it is cleaned up.
const LEFT_OVER: usize = 64;

/// Collects ended inferences that were not reported yet, and the times at which inferences must be checked.
///
/// The waiting thread sleeps until an inference ends or must be checked: at its deadline, and repeatedly after a
/// cancellation until it ends. The cost per wakeup does not depend on the number of awaited inferences. A report
/// takes no lock while the waiting thread is awake.
pub struct CompletionQueue {
    entries: MpscQueue<QueueEntry>,
    collector: ExclusiveCell<PlannedChecks>,
    changed: EventCount,
    awaited: AtomicU32,
    is_woken: AtomicBool,
    // Earliest time at which the queue needs attention, on the process's clock; MAX if it needs none.
    next_check_ns: AtomicU64,
    fork_guard: ForkGuard,
}

enum QueueEntry {
    /// An inference has ended. The thread that removes this event also decrements the count if the inference is
    /// counted.
    Ended { token: u64, is_counted: bool },
    /// An inference must be checked at a time.
    Watch { at_ns: u64, inference: Weak<PendingInference> },
}

impl CompletionQueue {
    /// Counts an inference as awaited.
    pub(super) fn count(&self) {
        self.awaited.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes from the count an inference that is not reported, or not reported again.
    pub(super) fn count_off(&self) {
        self.awaited.fetch_sub(1, Ordering::AcqRel);
    }

    /// Schedules a check of an inference, unless it ends before that time.
    pub(super) fn watch(&self, at: Instant, inference: &Weak<PendingInference>) {
        let at_ns = clock::after(at.saturating_duration_since(Instant::now()));
        self.entries.push(QueueEntry::Watch { at_ns, inference: Weak::clone(inference) });
        // RMW: either this thread sees the plan of the collector, or the collector sees the entry or this time.
        if self.next_check_ns.fetch_min(at_ns, Ordering::AcqRel) > at_ns {
            self.changed.notify_one();
        }
    }

    /// Reports the end of an inference.
    pub(super) fn add(&self, token: u64, is_counted: bool) {
        self.entries.push(QueueEntry::Ended { token, is_counted });
        self.changed.notify_one();
    }

    /// Wakes the thread in [`CompletionQueue::wait`], or ends the next call if no thread waits. Does nothing in a
    /// forked process.
    pub fn wake(&self) {
        if self.fork_guard.is_current() {
            self.is_woken.store(true, Ordering::Release);
            self.changed.notify_one();
        }
    }

    /// Number of inferences that the device still holds, or whose end was not reported. Inferences of a parent
    /// process are not counted.
    pub fn awaited(&self) -> usize {
        if self.fork_guard.is_current() { self.awaited.load(Ordering::Acquire) as usize } else { 0 }
    }

    /// Returns the tokens of ended inferences, in order; none after `limit`, or after `wake`.
    ///
    /// Blocking: until an inference ends, `limit` passes or `wake` is called. Only one thread may wait at a time; a
    /// second one is refused.
    pub fn wait(&self, limit: Duration) -> Result<Vec<u64>, RuntimeError> {
        self.fork_guard.check()?;
        let until = Deadline::after(limit);
        self.collector.try_with(|checks| self.wait_with(checks, until)).ok_or_else(|| {
            let what = "another thread already waits for these inferences".to_owned();
            StateError::Invalid { what }.into()
        })
    }

    fn wait_with(&self, checks: &mut PlannedChecks, until: Option<Deadline>) -> Vec<u64> {
        let mut tokens = Vec::new();
        loop {
            // RMW: see `watch`. An entry after one that is being pushed is not yet visible, so its time still counts.
            let announced_ns = self.next_check_ns.swap(u64::MAX, Ordering::AcqRel);
            self.drain(checks, &mut tokens);
            let now_ns = clock::now_ns();
            checks.check_due(now_ns);
            // Tokens that were found can be reported.
            self.drain(checks, &mut tokens);
            checks.clear_away(self.awaited());
            let announced_ns = if announced_ns > now_ns { announced_ns } else { u64::MAX };
            let planned_ns = checks.next_ns().min(announced_ns);
            self.next_check_ns.fetch_min(planned_ns, Ordering::AcqRel);
            let is_woken = self.is_woken.swap(false, Ordering::AcqRel);
            if is_woken || !tokens.is_empty() || until.is_some_and(|until| until.remaining().is_zero()) {
                return tokens;
            }
            let rest = if planned_ns == u64::MAX {
                UNTIL_WOKEN
            } else {
                Duration::from_nanos(planned_ns.saturating_sub(clock::now_ns()))
            };
            let rest = until.map_or(rest, |until| rest.min(until.remaining()));
            let _ = self.changed.wait(rest, || {
                self.drain(checks, &mut tokens);
                let is_earlier = self.next_check_ns.load(Ordering::Acquire) < planned_ns;
                (is_earlier || !tokens.is_empty() || self.is_woken.load(Ordering::Acquire)).then_some(())
            });
        }
    }

    fn drain(&self, checks: &mut PlannedChecks, tokens: &mut Vec<u64>) {
        self.entries.drain(|entry| match entry {
            QueueEntry::Ended { token, is_counted } => {
                tokens.push(*token);
                if *is_counted {
                    self.count_off();
                }
            }
            QueueEntry::Watch { at_ns, inference } => checks.add(*at_ns, Weak::clone(inference)),
        });
    }
}

impl Default for CompletionQueue {
    fn default() -> Self {
        Self {
            entries: MpscQueue::new(),
            collector: ExclusiveCell::new(PlannedChecks::default()),
            changed: EventCount::default(),
            awaited: AtomicU32::new(0),
            is_woken: AtomicBool::new(false),
            next_check_ns: AtomicU64::new(u64::MAX),
            fork_guard: ForkGuard::new(),
        }
    }
}

qaic_sync::debug_fields!(CompletionQueue, |queue| awaited: queue.awaited, fork_guard: queue.fork_guard);

/// Inferences by the time of their next check, the earliest first.
#[derive(Default)]
struct PlannedChecks(BinaryHeap<Reverse<PlannedCheck>>);

struct PlannedCheck {
    at_ns: u64,
    inference: Weak<PendingInference>,
}

impl PlannedCheck {
    /// The inference, if it has not ended.
    fn inference(&self) -> Option<Arc<PendingInference>> {
        self.inference.upgrade().filter(|inference| !inference.has_left())
    }
}

impl PartialEq for PlannedCheck {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PlannedCheck {}

impl PartialOrd for PlannedCheck {
    fn partial_cmp(&self, other: &Self) -> Option<By> {
        Some(self.cmp(other))
    }
}

impl Ord for PlannedCheck {
    fn cmp(&self, other: &Self) -> By {
        self.at_ns.cmp(&other.at_ns)
    }
}

impl PlannedChecks {
    fn add(&mut self, at_ns: u64, inference: Weak<PendingInference>) {
        self.0.push(Reverse(PlannedCheck { at_ns, inference }));
    }

    /// Checks the inferences whose time has come.
    fn check_due(&mut self, now_ns: u64) {
        while let Some(Reverse(check)) = self.0.peek()
            && check.at_ns <= now_ns
        {
            let inference = check.inference();
            self.0.pop();
            let now = Instant::now();
            if let Some(inference) = inference
                && let Some(next) = inference.check(now)
            {
                // Later than now, so that the loop ends.
                let at_ns = clock::after(next.saturating_duration_since(now)).max(now_ns.saturating_add(1));
                self.add(at_ns, Arc::downgrade(&inference));
            }
        }
    }

    /// Time of the next check.
    fn next_ns(&mut self) -> u64 {
        while let Some(Reverse(check)) = self.0.peek() {
            if check.inference().is_some() {
                return check.at_ns;
            }
            self.0.pop();
        }
        u64::MAX
    }

    /// Removes ended inferences if they outnumber the `awaited` ones.
    fn clear_away(&mut self, awaited: usize) {
        if self.0.len() > 2 * awaited + LEFT_OVER {
            self.0.retain(|Reverse(check)| check.inference().is_some());
        }
    }
}
