//! The state of an inference that a caller starts and collects later, in one word.
//!
//! ```text
//!              hold              publish               end
//!  prepared  --------->  held  ----------->  started  ------->  ended
//!            <---------   |                                       ^
//!             release     +---------------------------------------+
//!                                            end
//! ```
//!
//! * *Prepared*: no thread holds the inference.
//! * *Held*: the calling thread alone owns the inference's memory, to start or to end the inference.
//! * *Started*: a request carries the inference, and the thread that ends the request ends the inference.
//! * *Ended*: the inference holds no device resources.
//!
//! The outcome may be *settled* earlier: at the deadline, while the device still has the inference, or when a caller
//! withdraws the inference. The step that settles the outcome determines how it becomes known. Exactly one of these
//! applies: the end is reported, the end precedes the return of the call that starts the inference, or the thread that
//! withdrew the inference knows it.
//!
//! A request is referenced together with its generation, so that a thread that asks this inference to end never affects
//! the next inference of that request.

use std::time::Duration;

use qaic_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use qaic_sync::{Event, EventCount};

use super::{AskedToEnd, Generation};

const PHASE: u32 = 3;
const PREPARED: u32 = 0;
const HELD: u32 = 1;
const STARTED: u32 = 2;
const ENDED: u32 = 3;

/// The outcome is known.
const SETTLED: u32 = 1 << 2;
/// Set with `SETTLED`: the inference ended at its deadline.
const LATE: u32 = 1 << 3;
/// Set with `SETTLED`: a caller withdrew the inference.
const TAKEN_BACK: u32 = 1 << 4;
/// Set with `SETTLED`: the inference failed for another reason.
const FAILED: u32 = 1 << 5;
/// A thread asked the inference to end.
const ASKED: u32 = 1 << 6;
/// A thread is inside the call that starts the inference.
const STARTING: u32 = 1 << 7;
/// The inference ended in that call.
const ENDED_IN_START: u32 = 1 << 8;
/// A completion queue counts the inference as awaited.
const COUNTED: u32 = 1 << 9;
/// A thread waits until the inference is settled or ended, or has waited.
const AWAITED: u32 = 1 << 10;

/// The request that carries an inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    /// Number of the request.
    pub(crate) number: u32,
    /// Number of the inference among those of the request.
    pub(crate) generation: Generation,
}

/// Outcome of an inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The inference succeeded.
    Succeeded,
    /// The inference failed.
    Failed,
    /// The deadline of the inference passed.
    Late,
    /// A caller withdrew the inference.
    TakenBack,
}

/// The result of [`PendingState::take_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeBack {
    /// The inference had not begun and is withdrawn. The calling thread holds the inference and must end it.
    Held,
    /// A request carries the inference. If the calling thread takes the inference from the request, it must call
    /// [`PendingState::set_taken_back`] next.
    Started(RequestKey),
    /// The inference has ended, or was withdrawn before.
    TooLate,
}

/// The result of [`PendingState::expire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The inference had not begun. The calling thread holds the inference, and must end and report it.
    Held,
    /// Another thread or the device has the inference. The calling thread must report the end.
    Settled,
    /// The outcome was already known.
    Known,
}

/// Tasks of a thread after it ended an inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// True if the thread must report the end.
    pub(crate) needs_report: bool,
    /// True if a queue counts the inference.
    pub(crate) is_counted: bool,
}

/// The state word of a pending inference, the request that carries it, and the threads that wait for its end.
///
/// Every step is one exchange with acquire and release. The thread of a step therefore sees all that the threads of
/// earlier steps did before theirs.
pub(crate) struct PendingState {
    word: AtomicU32,
    // Written once, before the state word reports the start of the inference.
    number: AtomicU32,
    generation: AtomicU64,
    changed: EventCount,
}

impl PendingState {
    /// Creates the state of an inference that no thread holds.
    pub(crate) fn prepared() -> Self {
        Self {
            word: AtomicU32::new(PREPARED),
            number: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            changed: EventCount::default(),
        }
    }

    fn word(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Changes the word to the result of `next`. Returns the word before, or the word for which `next` returned
    /// `None`. Wakes the waiting threads if the step settles or ends the inference.
    fn step(&self, mut next: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
        let mut word = self.word();
        loop {
            let Some(mut after) = next(word) else { return Err(word) };
            let is_awaited = word & AWAITED != 0 && is_news(word, after);
            if is_awaited {
                after &= !AWAITED;
            }
            match self.word.compare_exchange_weak(word, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    if is_awaited {
                        self.changed.notify_all();
                    }
                    return Ok(word);
                }
                Err(found) => word = found,
            }
        }
    }

    /// Holds a prepared inference, to start it. Returns false if it has begun or ended.
    pub(crate) fn hold(&self) -> bool {
        let next = |word: u32| (word & PHASE == PREPARED).then_some(word | HELD | STARTING);
        self.step(next).is_ok()
    }

    /// Undoes [`PendingState::hold`]. Fails if the inference was asked to end in the meantime or its deadline has
    /// passed; the calling thread then still holds it and must end it.
    pub(crate) fn release(&self) -> Result<(), AskedToEnd> {
        let next =
            |word: u32| (word & (ASKED | SETTLED) == 0).then_some(word & !(PHASE | STARTING) | PREPARED);
        self.step(next).map(drop).map_err(|_| AskedToEnd)
    }

    /// Publishes the request that carries the held inference, before another thread receives that request. Fails if
    /// the inference was asked to end in the meantime or its deadline has passed; the calling thread must then end
    /// the request.
    pub(crate) fn publish(&self, key: RequestKey) -> Result<(), AskedToEnd> {
        // Relaxed: the step publishes both.
        self.number.store(key.number, Ordering::Relaxed);
        self.generation.store(key.generation.0, Ordering::Relaxed);
        match self.step(|word| Some(word & !PHASE | STARTED)) {
            Ok(before) if before & (ASKED | SETTLED) == 0 => Ok(()),
            _ => Err(AskedToEnd),
        }
    }

    /// Ends the call that starts the inference. With `is_counted`, marks it as counted; returns false if it has
    /// already ended.
    pub(crate) fn leave_start(&self, is_counted: bool) -> bool {
        let counted = if is_counted { COUNTED } else { 0 };
        let next = |word: u32| {
            let left = word & !STARTING;
            Some(if word & PHASE == ENDED { left } else { left | counted })
        };
        self.step(next).is_ok_and(|before| before & PHASE != ENDED)
    }

    /// Marks the inference as counted. Returns false if it is already counted or has ended.
    pub(crate) fn count(&self) -> bool {
        let next = |word: u32| (word & PHASE != ENDED && word & COUNTED == 0).then_some(word | COUNTED);
        self.step(next).is_ok()
    }

    /// Withdraws the inference if no thread has begun it.
    pub(crate) fn take_back(&self) -> TakeBack {
        let next = |word: u32| {
            let is_free = word & (PHASE | SETTLED) == PREPARED;
            is_free.then_some(word | HELD | SETTLED | TAKEN_BACK)
        };
        match self.step(next) {
            Ok(_) => TakeBack::Held,
            Err(word) if word & (PHASE | SETTLED) == STARTED => TakeBack::Started(self.published()),
            Err(_) => TakeBack::TooLate,
        }
    }

    /// Settles the inference as withdrawn, for a thread that has claimed its request and is about to end it. Returns
    /// false if the outcome is known.
    pub(crate) fn set_taken_back(&self) -> bool {
        self.step(|word| (word & SETTLED == 0).then_some(word | SETTLED | TAKEN_BACK)).is_ok()
    }

    /// Asks the inference to end, unless it has ended. Returns the request that carries it, if any, which the caller
    /// must also ask. An inference that no thread has begun ends when it is started.
    pub(crate) fn ask_to_end(&self) -> Option<RequestKey> {
        let before = self.step(|word| (word & PHASE != ENDED).then_some(word | ASKED)).ok()?;
        (before & PHASE == STARTED).then(|| self.published())
    }

    /// Settles the inference as late, unless its outcome is known.
    pub(crate) fn expire(&self) -> Expired {
        let next = |word: u32| {
            let held = if word & PHASE == PREPARED { HELD } else { 0 };
            (word & SETTLED == 0).then_some(word | held | SETTLED | LATE)
        };
        match self.step(next) {
            Ok(before) if before & PHASE == PREPARED => Expired::Held,
            Ok(_) => Expired::Settled,
            Err(_) => Expired::Known,
        }
    }

    /// Ends the inference, on the thread that holds it or ended its request. All work that other threads wait for
    /// must be complete.
    pub(crate) fn end(&self, has_failed: bool) -> End {
        let next = |word: u32| {
            let mut after = word & !COUNTED | ENDED | SETTLED;
            if word & SETTLED == 0 {
                after |= if has_failed { FAILED } else { 0 };
                after |= if word & STARTING == 0 { 0 } else { ENDED_IN_START };
            }
            Some(after)
        };
        let (Ok(before) | Err(before)) = self.step(next);
        End { needs_report: before & (SETTLED | STARTING) == 0, is_counted: before & COUNTED != 0 }
    }

    /// Outcome of the inference, if it is known; the device may still have the inference.
    pub(crate) fn settled(&self) -> Option<Settled> {
        let word = self.word();
        if word & SETTLED == 0 {
            return None;
        }
        Some(match word & (LATE | TAKEN_BACK | FAILED) {
            0 => Settled::Succeeded,
            LATE => Settled::Late,
            TAKEN_BACK => Settled::TakenBack,
            _ => Settled::Failed,
        })
    }

    /// Returns true if the inference has ended and the device has released it.
    pub(crate) fn has_ended(&self) -> bool {
        self.word() & PHASE == ENDED
    }

    /// Returns true if the inference ended before the call that started it returned. Such an end is not
    /// reported.
    pub(crate) fn has_ended_in_start(&self) -> bool {
        self.word() & ENDED_IN_START != 0
    }

    /// Returns true if the inference was asked to end and has not.
    pub(crate) fn is_asked_to_end(&self) -> bool {
        let word = self.word();
        word & ASKED != 0 && word & PHASE != ENDED
    }

    /// Returns true if a queue counts the inference.
    pub(crate) fn is_counted(&self) -> bool {
        self.word() & COUNTED != 0
    }

    /// The request that carries the inference.
    pub(crate) fn request_key(&self) -> Option<RequestKey> {
        (self.word() & PHASE == STARTED).then(|| self.published())
    }

    /// Returns the data published before a word that the calling thread has read.
    fn published(&self) -> RequestKey {
        RequestKey {
            number: self.number.load(Ordering::Relaxed),
            generation: Generation(self.generation.load(Ordering::Relaxed)),
        }
    }
}

impl Event for PendingState {
    /// Waits until the inference is settled or ended; `try_take` must return a value then.
    fn wait<T>(&self, limit: Duration, mut try_take: impl FnMut() -> Option<T>) -> Option<T> {
        // As in `RequestState`: either the awaited step finds the bit, or the second check finds its result.
        self.changed.wait(limit, || {
            try_take().or_else(|| {
                self.word.fetch_or(AWAITED, Ordering::AcqRel);
                try_take()
            })
        })
    }
}

/// Returns true if a step changes a condition that threads wait for.
fn is_news(before: u32, after: u32) -> bool {
    let is_settled_now = before & SETTLED != after & SETTLED;
    is_settled_now || before & PHASE != ENDED && after & PHASE == ENDED
}

qaic_sync::debug_fields!(PendingState, |state| settled: state.settled(), has_ended: state.has_ended());

#[cfg(all(test, not(loom)))]
#[path = "pending_state/tests.rs"]
mod tests;
