//! The state of a request, as one word that threads step with atomic exchanges.
//!
//! ```text
//!               acquire           begin                 enqueue
//!  available  ----------->  idle  ----->  running  ----------------->  queued
//!      ^  ^      put_back    ^ ^            |  ^  ^       claim           |
//!      |  +------------------+ |            |  |  +-----------------------+
//!      |                       | complete   |  | take_from_device
//!      |              collect  +------------+  +-------------------+
//!      |   put_back  +---------             |  leave_to_device     |
//!      +-------- completed  <---------------+--------------->  on device
//! ```
//!
//! The step that brings a request to *running* makes the calling thread its only owner, until the step that leaves that
//! phase. Available, idle and completed requests have no inference under way; *completed* is for requests whose end is
//! collected from a list, others become idle at once.
//!
//! The word also holds, in the same order of exchanges: a generation that counts the inferences, so that a thread that
//! names one inference never hits the next; why the inference was asked to end; whether it failed; whether a thread edits the
//! idle request; one bit for each list that the request has an entry in ([`crate::ReadyList`]); and whether a thread may
//! sleep until the inference ends, or until it was collected, so that what no thread waits for costs no more than its
//! exchange.

use std::fmt;

use std::time::Duration;

use crate::atomic::{AtomicU64, Ordering};
use crate::{Event, EventCount};

const PHASE: u64 = 7;
const AVAILABLE: u64 = 0;
const IDLE: u64 = 1;
const QUEUED: u64 = 2;
const RUNNING: u64 = 3;
const ON_DEVICE: u64 = 4;
const COMPLETED: u64 = 5;

/// The end is collected from a list.
const COLLECTABLE: u64 = 1 << 3;
const CANCELLED: u64 = 1 << 4;
const TIMED_OUT: u64 = 1 << 5;
const FAILED: u64 = 1 << 6;
const EDITED: u64 = 1 << 7;
const QUEUE_ENTRY: u64 = 1 << 8;
const AVAILABLE_ENTRY: u64 = 1 << 9;
const COMPLETED_ENTRY: u64 = 1 << 10;
const DEVICE_ENTRY: u64 = 1 << 11;
/// A thread waits for the end, or did.
const AWAITED: u64 = 1 << 12;
/// A thread waits until no inference is outstanding, and this one is.
const COLLECTION_AWAITED: u64 = 1 << 13;

/// Bits that belong to one inference.
const OF_INFERENCE: u64 = COLLECTABLE | CANCELLED | TIMED_OUT | FAILED;

/// The other bits count the inferences.
const GENERATION: u64 = !0x3FFF;
const NEXT_GENERATION: u64 = 0x4000;

/// One of the inferences that a request carries, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(pub(crate) u64);

impl Generation {
    /// The lower bits of its number, for entries of ordered queues.
    #[allow(clippy::cast_possible_truncation)] // the lower bits
    pub fn low_bits(self) -> u32 {
        (self.0 / NEXT_GENERATION) as u32
    }
}

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It may be acquired.
    Available,
    /// A caller has it, and no inference is under way.
    Idle,
    /// Its inference waits for a thread.
    Queued,
    /// A thread works on it.
    Running,
    /// The device has it, and no thread waits for it.
    OnDevice,
    /// Its inference has ended and was not collected.
    Completed,
}

/// Why an inference is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A caller cancelled it.
    Cancelled,
    /// It took longer than it may.
    TimedOut,
}

/// An inference is under way, or another thread edits the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight;

/// The inference was asked to end meanwhile; the calling thread still owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedToEnd;

/// State of a request when an inference began, for [`RequestState::withdraw`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorPhase {
    /// It was available, and its entry in that list may be there still.
    Available,
    /// A caller had it.
    Idle,
}

/// An inference that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Which one.
    pub generation: Generation,
    /// State of the request before.
    pub prior_phase: PriorPhase,
}

/// Why a request cannot be made available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBackError {
    /// Its inference has not ended.
    InFlight,
    /// It is available.
    Available,
    /// This inference has ended and was not collected.
    Completed(Generation),
}

/// An inference that the calling thread has collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected {
    /// True if a thread may sleep until no inference is outstanding.
    pub was_awaited: bool,
}

/// A begin that came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawn {
    /// True if the request must be pushed to the list of available ones.
    pub needs_entry: bool,
    /// True if a thread may sleep until no inference is outstanding.
    pub was_awaited: bool,
}

/// The state word of a request, and the threads that wait for the end of its inference.
///
/// Every step is one exchange with acquire and release: its thread sees what the threads of all earlier steps did
/// before them.
///
/// ```
/// use qaic_sync::{Phase, Reason, RequestState};
///
/// let state = RequestState::idle();
/// let generation = state.begin(false).unwrap().generation;
/// assert_eq!(state.enqueue(true), Ok(true), "the request has to be pushed to its queue");
/// assert!(state.claim(generation), "this thread runs it");
/// assert!(state.ask_to_end(generation, Reason::Cancelled));
/// state.complete(true);
/// assert_eq!((state.phase(), state.has_failed()), (Phase::Idle, true));
/// ```
pub struct RequestState {
    word: AtomicU64,
    ended: EventCount,
}

impl RequestState {
    /// A request that its caller has.
    pub fn idle() -> Self {
        Self::of(IDLE)
    }

    /// A request that is available and has an entry in that list.
    pub fn available() -> Self {
        Self::of(AVAILABLE | AVAILABLE_ENTRY)
    }

    fn of(word: u64) -> Self {
        Self { word: AtomicU64::new(word), ended: EventCount::new() }
    }

    fn word(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// One step: to what `next` gives for the word; the words before and after, or the word that `next` refused.
    fn step(&self, mut next: impl FnMut(u64) -> Option<u64>) -> Result<(u64, u64), u64> {
        let mut word = self.word();
        loop {
            let Some(after) = next(word) else { return Err(word) };
            match self.word.compare_exchange_weak(word, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok((word, after)),
                Err(found) => word = found,
            }
        }
    }

    /// A step of the owner of a running request, which can only meet other bits than the phase.
    fn step_always(&self, mut next: impl FnMut(u64) -> u64) -> (u64, u64) {
        loop {
            if let Ok(stepped) = self.step(|word| Some(next(word))) {
                return stepped;
            }
        }
    }

    /// State of the request.
    pub fn phase(&self) -> Phase {
        phase_of(self.word())
    }

    /// The inference that has begun and not ended.
    pub fn under_way(&self) -> Option<Generation> {
        let word = self.word();
        is_in_flight(word).then_some(Generation(word & GENERATION))
    }

    /// The inference that began last.
    pub fn generation(&self) -> Generation {
        Generation(self.word() & GENERATION)
    }

    /// Returns whether an inference has begun and not ended.
    pub fn is_in_flight(&self) -> bool {
        is_in_flight(self.word())
    }

    /// Returns whether an inference has begun and was not collected.
    pub fn is_outstanding(&self) -> bool {
        is_outstanding(self.word())
    }

    /// Has the step that collects the outstanding inference, or withdraws it, say that a thread may sleep until then. False
    /// where none is outstanding. What the caller did before is visible to the thread that takes that step.
    pub fn await_collection(&self) -> bool {
        // Also where it is marked: that step has to come after this one.
        self.step(|word| is_outstanding(word).then_some(word | COLLECTION_AWAITED)).is_ok()
    }

    /// Returns whether the last inference ended, and failed.
    pub fn has_failed(&self) -> bool {
        self.word() & FAILED != 0
    }

    /// Begins an inference, which the calling thread owns. `is_collectable`: its end is collected from a list.
    pub fn begin(&self, is_collectable: bool) -> Result<Submitted, InFlight> {
        let next = |word: u64| {
            let is_free = matches!(word & PHASE, AVAILABLE | IDLE) && word & EDITED == 0;
            let collectable = if is_collectable { COLLECTABLE } else { 0 };
            is_free.then_some(
                (word & !(PHASE | OF_INFERENCE)).wrapping_add(NEXT_GENERATION) | RUNNING | collectable,
            )
        };
        let (before, after) = self.step(next).map_err(|_| InFlight)?;
        let prior_phase = if before & PHASE == AVAILABLE { PriorPhase::Available } else { PriorPhase::Idle };
        Ok(Submitted { generation: Generation(after & GENERATION), prior_phase })
    }

    /// Undoes a begin, and wakes the threads that wait for the end.
    pub fn withdraw(&self, prior_phase: PriorPhase) -> Withdrawn {
        let (before, _) = self.step_always(|word| {
            let word = word & !(PHASE | OF_INFERENCE | AWAITED | COLLECTION_AWAITED);
            match prior_phase {
                PriorPhase::Available => word | AVAILABLE | AVAILABLE_ENTRY,
                PriorPhase::Idle => word | IDLE,
            }
        });
        self.notify(before);
        Withdrawn {
            needs_entry: prior_phase == PriorPhase::Available && before & AVAILABLE_ENTRY == 0,
            was_awaited: before & COLLECTION_AWAITED != 0,
        }
    }

    /// Leaves the running request to the threads of its queue. True: it has to be pushed there. With `is_single`, it has
    /// one entry however often it came; else every inference has its own.
    pub fn enqueue(&self, is_single: bool) -> Result<bool, AskedToEnd> {
        let bit = if is_single { QUEUE_ENTRY } else { 0 };
        let next =
            |word: u64| (word & (CANCELLED | TIMED_OUT) == 0).then_some((word & !PHASE) | QUEUED | bit);
        let (before, _) = self.step(next).map_err(|_| AskedToEnd)?;
        Ok(before & bit == 0)
    }

    /// Claims a popped entry of a queue, or one that found no room there. False: the inference has ended meanwhile. The caller
    /// owns the request otherwise, maybe with a later inference that relied on the entry.
    pub fn claim_entry(&self) -> bool {
        let claimed = self.step(|word| {
            let word = word & !QUEUE_ENTRY;
            Some(if word & PHASE == QUEUED { (word & !PHASE) | RUNNING } else { word })
        });
        claimed.is_ok_and(|(before, _)| before & PHASE == QUEUED)
    }

    /// Takes a queued inference, to run it or to end it; false where another thread has.
    pub fn claim(&self, generation: Generation) -> bool {
        self.exchange(generation, QUEUED, RUNNING)
    }

    /// [`RequestState::claim`] of the inference whose number ends in `low_bits`, of `bits` bits.
    pub fn claim_numbered(&self, low_bits: u32, mask: u32) -> bool {
        self.step(|word| {
            let is_meant = Generation(word & GENERATION).low_bits() & mask == low_bits & mask;
            (is_meant && word & PHASE == QUEUED).then_some((word & !PHASE) | RUNNING)
        })
        .is_ok()
    }

    /// Leaves the running request to the device. True: it has to be pushed to the list of those.
    pub fn leave_to_device(&self) -> Result<bool, AskedToEnd> {
        let next = |word: u64| {
            (word & (CANCELLED | TIMED_OUT) == 0).then_some((word & !PHASE) | ON_DEVICE | DEVICE_ENTRY)
        };
        let (before, _) = self.step(next).map_err(|_| AskedToEnd)?;
        Ok(before & DEVICE_ENTRY == 0)
    }

    /// Takes an inference from the device, to wait for it or to end it; false where it is not there.
    pub fn take_from_device(&self, generation: Generation) -> bool {
        self.exchange(generation, ON_DEVICE, RUNNING)
    }

    /// Claims a popped entry of the list of requests on the device; true: the calling thread owns the request.
    pub fn claim_device_entry(&self) -> bool {
        self.claim_listed(DEVICE_ENTRY, ON_DEVICE, RUNNING)
    }

    /// The inference of a running request has ended. Wakes the threads that wait for it. True: the request has to be pushed to
    /// the list of completed ones.
    pub fn complete(&self, has_failed: bool) -> bool {
        let failed = if has_failed { FAILED } else { 0 };
        let (before, after) = self.step_always(|word| {
            let to = if word & COLLECTABLE != 0 { COMPLETED | COMPLETED_ENTRY } else { IDLE };
            (word & !(PHASE | AWAITED)) | to | failed
        });
        self.notify(before);
        after & PHASE == COMPLETED && before & COMPLETED_ENTRY == 0
    }

    /// Takes a completed request; none where it is not that inference, or another thread has.
    pub fn collect(&self, generation: Generation) -> Option<Collected> {
        let stepped = self.step(|word| {
            let is_meant = word & GENERATION == generation.0 && word & PHASE == COMPLETED;
            is_meant.then_some((word & !(PHASE | COLLECTION_AWAITED)) | IDLE)
        });
        stepped.ok().map(|(before, _)| Collected { was_awaited: before & COLLECTION_AWAITED != 0 })
    }

    /// Claims a popped entry of the list of completed requests.
    pub fn claim_completed_entry(&self) -> Option<Collected> {
        let (before, _) = self.step_always(|word| {
            let word = word & !COMPLETED_ENTRY;
            if word & PHASE == COMPLETED { (word & !(PHASE | COLLECTION_AWAITED)) | IDLE } else { word }
        });
        let is_collected = before & PHASE == COMPLETED;
        is_collected.then_some(Collected { was_awaited: before & COLLECTION_AWAITED != 0 })
    }

    /// Claims a popped entry of the list of available requests.
    pub fn claim_available_entry(&self) -> bool {
        self.claim_listed(AVAILABLE_ENTRY, AVAILABLE, IDLE)
    }

    /// Makes a request available that a caller has. True: it has to be pushed to that list.
    pub fn put_back(&self) -> Result<bool, PutBackError> {
        let next =
            |word: u64| (word & PHASE == IDLE).then_some((word & !PHASE) | AVAILABLE | AVAILABLE_ENTRY);
        let refused = match self.step(next) {
            Ok((before, _)) => return Ok(before & AVAILABLE_ENTRY == 0),
            Err(word) => word,
        };
        Err(match refused & PHASE {
            AVAILABLE => PutBackError::Available,
            COMPLETED => PutBackError::Completed(Generation(refused & GENERATION)),
            _ => PutBackError::InFlight,
        })
    }

    /// Keeps inferences from beginning, until [`RequestState::edited`]; for one thread at a time.
    pub fn edit(&self) -> Result<(), InFlight> {
        let next = |word: u64| (!is_in_flight(word) && word & EDITED == 0).then_some(word | EDITED);
        self.step(next).map(drop).map_err(|_| InFlight)
    }

    /// Ends [`RequestState::edit`].
    pub fn edited(&self) {
        self.word.fetch_and(!EDITED, Ordering::AcqRel);
    }

    /// Asks an inference to end; the first reason counts. False where it has ended.
    pub fn ask_to_end(&self, generation: Generation, reason: Reason) -> bool {
        let bit = match reason {
            Reason::Cancelled => CANCELLED,
            Reason::TimedOut => TIMED_OUT,
        };
        let next = |word: u64| {
            let is_meant = word & GENERATION == generation.0 && is_in_flight(word);
            let is_first = word & (CANCELLED | TIMED_OUT) == 0;
            is_meant.then_some(if is_first { word | bit } else { word })
        };
        self.step(next).is_ok()
    }

    /// Why the present inference was asked to end.
    pub fn reason(&self) -> Option<Reason> {
        match self.word() & (CANCELLED | TIMED_OUT) {
            0 => None,
            TIMED_OUT => Some(Reason::TimedOut),
            _ => Some(Reason::Cancelled),
        }
    }

    /// Wakes the threads that wait for the end, after the step that found `before`.
    fn notify(&self, before: u64) {
        if before & AWAITED != 0 {
            self.ended.notify_all();
        }
    }

    fn exchange(&self, generation: Generation, from: u64, to: u64) -> bool {
        self.step(|word| {
            let is_meant = word & GENERATION == generation.0 && word & PHASE == from;
            is_meant.then_some((word & !PHASE) | to)
        })
        .is_ok()
    }

    fn claim_listed(&self, entry: u64, from: u64, to: u64) -> bool {
        let (before, _) = self.step_always(|word| {
            let word = word & !entry;
            if word & PHASE == from { (word & !PHASE) | to } else { word }
        });
        before & PHASE == from
    }
}

impl Event for RequestState {
    /// Waits for the end of an inference: `try_take` must have something once that inference is not under way.
    fn wait<T>(&self, limit: Duration, mut try_take: impl FnMut() -> Option<T>) -> Option<T> {
        // The calling thread is listening when it sets the bit. The step that ends the inference finds the bit then, and
        // notifies; or it came before, and the second look finds the end.
        self.ended.wait(limit, || {
            try_take().or_else(|| {
                self.word.fetch_or(AWAITED, Ordering::AcqRel);
                try_take()
            })
        })
    }
}

fn is_in_flight(word: u64) -> bool {
    matches!(word & PHASE, QUEUED | RUNNING | ON_DEVICE)
}

fn is_outstanding(word: u64) -> bool {
    is_in_flight(word) && word & COLLECTABLE != 0 || word & PHASE == COMPLETED
}

fn phase_of(word: u64) -> Phase {
    match word & PHASE {
        AVAILABLE => Phase::Available,
        QUEUED => Phase::Queued,
        RUNNING => Phase::Running,
        ON_DEVICE => Phase::OnDevice,
        COMPLETED => Phase::Completed,
        _ => Phase::Idle,
    }
}

impl fmt::Debug for RequestState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word();
        formatter
            .debug_struct("RequestState")
            .field("phase", &phase_of(word))
            .field("generation", &(word / NEXT_GENERATION))
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "request_state/tests.rs"]
mod tests;
