//! The state of an inference that a caller starts and asks about later, as one word.
//!
//! ```text
//!              hold              publish               end
//!  prepared  --------->  held  ----------->  started  ------->  ended
//!            <---------   |                                       ^
//!             release     +---------------------------------------+
//!                                            end
//! ```
//!
//! *Prepared*: no thread has it. *Held*: the calling thread alone has its memory, to start it or to end it. *Started*: a
//! request carries it, and the thread that ends the request ends this. *Ended*: nothing of the device is held for it.
//!
//! How it ended may be *settled* earlier: at its deadline while the device has it still, or when it is taken back. The step
//! that settles it decides which thread learns of it, in exactly one way: the end is reported; or it comes before the call that
//! starts the inference returns; or the thread that took it back knows it.
//!
//! A request is named with its generation, so that a thread that asks for the end of this inference never hits the next one
//! of that request.

use std::fmt;
use std::time::Duration;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::request_state::{AskedToEnd, Generation};
use crate::{Event, EventCount};

const PHASE: u32 = 3;
const PREPARED: u32 = 0;
const HELD: u32 = 1;
const STARTED: u32 = 2;
const ENDED: u32 = 3;

/// Its outcome is known.
const SETTLED: u32 = 1 << 2;
/// Set with `SETTLED`: it ended at its deadline.
const LATE: u32 = 1 << 3;
/// Set with `SETTLED`: a caller took it back.
const TAKEN_BACK: u32 = 1 << 4;
/// Set with `SETTLED`: it failed otherwise.
const FAILED: u32 = 1 << 5;
/// A thread asked it to end.
const ASKED: u32 = 1 << 6;
/// A thread is inside the call that starts it.
const STARTING: u32 = 1 << 7;
/// It ended in that call.
const ENDED_IN_START: u32 = 1 << 8;
/// A completion queue counts it as awaited.
const COUNTED: u32 = 1 << 9;
/// A thread waits for a settled or an ended one, or did.
const AWAITED: u32 = 1 << 10;

/// The request that carries an inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// Number of the request.
    pub number: u32,
    /// Which of the request's inferences it is.
    pub generation: Generation,
}

/// How an inference ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Well.
    Succeeded,
    /// Otherwise.
    Failed,
    /// Its time was up.
    Late,
    /// A caller took it back.
    TakenBack,
}

/// The result of [`PendingState::take_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeBack {
    /// It had not begun, and is taken back: the calling thread holds it and has to end it.
    Held,
    /// A request carries it. Where the calling thread takes it from there, [`PendingState::set_taken_back`] comes next.
    Started(RequestKey),
    /// It is too late, or was done before.
    TooLate,
}

/// The result of [`PendingState::expire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// It had not begun: the calling thread holds it, and has to end and to report it.
    Held,
    /// Another thread, or the device, has it; the calling thread has to report it.
    Settled,
    /// Its outcome was known.
    Known,
}

/// Tasks of a thread after it ended an inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// True if the thread must report the end.
    pub needs_report: bool,
    /// True if a queue counts the inference.
    pub is_counted: bool,
}

/// The state word of a pending inference, the request that carries it, and the threads that wait for its end.
///
/// Every step is one exchange with acquire and release: its thread sees what the threads of all earlier steps did before
/// them.
///
/// ```
/// use qaic_sync::{PendingState, RequestKey, RequestState, Settled};
///
/// let (pending, request) = (PendingState::prepared(), RequestState::idle());
/// assert!(pending.hold());
/// let generation = request.begin(false).unwrap().generation;
/// pending.publish(RequestKey { number: 0, generation }).unwrap();
/// pending.end(false);
/// assert_eq!(pending.settled(), Some(Settled::Succeeded));
/// assert_eq!(pending.settled(), Some(Settled::Succeeded));
pub struct PendingState {
    word: AtomicU32,
    // Written once, before the word says that the inference was started.
    number: AtomicU32,
    generation: AtomicU64,
    changed: EventCount,
}

impl PendingState {
    /// The state of an inference that no thread has.
    pub fn prepared() -> Self {
        Self {
            word: AtomicU32::new(PREPARED),
            number: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            changed: EventCount::new(),
        }
    }

    fn word(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Exchanges the word for what `next` gives for it; returns the word before, or the word that `next` refused. Wakes the
    /// threads that wait where the step settles or ends the inference.
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

    /// Holds a prepared inference, to start it; false where it has begun or ended.
    pub fn hold(&self) -> bool {
        let next = |word: u32| (word & PHASE == PREPARED).then_some(word | HELD | STARTING);
        self.step(next).is_ok()
    }

    /// Undoes [`PendingState::hold`]. One that was asked to end meanwhile, or whose time is up, stays held: the calling thread
    /// has to end it.
    pub fn release(&self) -> Result<(), AskedToEnd> {
        let next =
            |word: u32| (word & (ASKED | SETTLED) == 0).then_some(word & !(PHASE | STARTING) | PREPARED);
        self.step(next).map(drop).map_err(|_| AskedToEnd)
    }

    /// Publishes which request carries the held inference, before that request is handed to another thread. Fails where it was
    /// asked to end meanwhile, or its time is up: the calling thread has to end the request.
    pub fn publish(&self, key: RequestKey) -> Result<(), AskedToEnd> {
        // Relaxed: the step publishes both.
        self.number.store(key.number, Ordering::Relaxed);
        self.generation.store(key.generation.0, Ordering::Relaxed);
        match self.step(|word| Some(word & !PHASE | STARTED)) {
            Ok(before) if before & (ASKED | SETTLED) == 0 => Ok(()),
            _ => Err(AskedToEnd),
        }
    }

    /// Ends the call that starts it. Marks it as counted with `is_counted`, unless it has ended: then false.
    pub fn leave_start(&self, is_counted: bool) -> bool {
        let counted = if is_counted { COUNTED } else { 0 };
        let next = |word: u32| {
            let left = word & !STARTING;
            Some(if word & PHASE == ENDED { left } else { left | counted })
        };
        self.step(next).is_ok_and(|before| before & PHASE != ENDED)
    }

    /// Marks it as counted, unless it is or has ended: then false.
    pub fn count(&self) -> bool {
        let next = |word: u32| (word & PHASE != ENDED && word & COUNTED == 0).then_some(word | COUNTED);
        self.step(next).is_ok()
    }

    /// Takes it back, if no thread has begun it.
    pub fn take_back(&self) -> TakeBack {
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

    /// Settles it as taken back, for a thread that has claimed its request and is about to end it; false where its outcome is
    /// known.
    pub fn set_taken_back(&self) -> bool {
        self.step(|word| (word & SETTLED == 0).then_some(word | SETTLED | TAKEN_BACK)).is_ok()
    }

    /// Asks it to end, unless it has; the request to ask as well, if one carries it. One that no thread has ends when it is started.
    pub fn ask_to_end(&self) -> Option<RequestKey> {
        let before = self.step(|word| (word & PHASE != ENDED).then_some(word | ASKED)).ok()?;
        (before & PHASE == STARTED).then(|| self.published())
    }

    /// Settles it as late, unless its outcome is known.
    pub fn expire(&self) -> Expired {
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

    /// Ends it, by the thread that holds it or ended its request. Nothing that others wait for may be left to do.
    pub fn end(&self, has_failed: bool) -> End {
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

    /// How it ended, if that is known; the device may have it still.
    pub fn settled(&self) -> Option<Settled> {
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

    /// Returns whether the inference has ended and the device has released it.
    pub fn has_ended(&self) -> bool {
        self.word() & PHASE == ENDED
    }

    /// Returns whether the inference ended before the call that started it returned. Such an end is not
    /// reported.
    pub fn has_ended_in_start(&self) -> bool {
        self.word() & ENDED_IN_START != 0
    }

    /// Returns whether the inference was asked to end and has not.
    pub fn is_asked_to_end(&self) -> bool {
        let word = self.word();
        word & ASKED != 0 && word & PHASE != ENDED
    }

    /// Returns whether a queue counts the inference.
    pub fn is_counted(&self) -> bool {
        self.word() & COUNTED != 0
    }

    /// The request that carries it.
    pub fn request_key(&self) -> Option<RequestKey> {
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
    /// Waits until it is settled, or ended: `try_take` must have something then.
    fn wait<T>(&self, limit: Duration, mut try_take: impl FnMut() -> Option<T>) -> Option<T> {
        // As in `RequestState`: the step that the thread waits for finds the bit, or the second look finds what it did.
        self.changed.wait(limit, || {
            try_take().or_else(|| {
                self.word.fetch_or(AWAITED, Ordering::AcqRel);
                try_take()
            })
        })
    }
}

/// Returns whether a step changes a condition that threads wait for.
fn is_news(before: u32, after: u32) -> bool {
    let is_settled_now = before & SETTLED != after & SETTLED;
    is_settled_now || before & PHASE != ENDED && after & PHASE == ENDED
}

impl fmt::Debug for PendingState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PendingState")
            .field("settled", &self.settled())
            .field("has_ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "pending_state/tests.rs"]
mod tests;
