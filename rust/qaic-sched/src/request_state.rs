//! The state of a request, in one word that threads change with atomic exchanges.
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
//! The step that changes the phase to *running* makes the calling thread the only owner of the request, until the step
//! that ends that phase. Available, idle and completed requests have no inference in flight. *Completed* is the phase of
//! requests whose outcome is collected from a list; other requests become idle at once.
//!
//! The word also contains the following state. All of it changes in the same order of exchanges.
//!
//! * A generation, which counts the inferences, so that a thread that refers to one inference never affects the next.
//! * The reason why the inference was asked to end.
//! * The result: whether the inference failed.
//! * A bit that is set while a thread edits the idle request.
//! * One bit for each list that the request has an entry in ([`qaic_sync::ReadyList`]).
//! * Bits that are set if a thread may sleep until the inference ends, or until it was collected. Without such a thread,
//!   a step costs only its exchange.

use std::time::Duration;

use qaic_sync::atomic::{AtomicU64, Ordering};
use qaic_sync::{Event, EventCount};

const PHASE: u64 = 7;
const AVAILABLE: u64 = 0;
const IDLE: u64 = 1;
const QUEUED: u64 = 2;
const RUNNING: u64 = 3;
const ON_DEVICE: u64 = 4;
const COMPLETED: u64 = 5;

/// The outcome is collected from a list.
const COLLECTABLE: u64 = 1 << 3;
const CANCELLED: u64 = 1 << 4;
const TIMED_OUT: u64 = 1 << 5;
const FAILED: u64 = 1 << 6;
const EDITED: u64 = 1 << 7;
const QUEUE_ENTRY: u64 = 1 << 8;
const AVAILABLE_ENTRY: u64 = 1 << 9;
const COMPLETED_ENTRY: u64 = 1 << 10;
const DEVICE_ENTRY: u64 = 1 << 11;
/// A thread waits for the end of the inference, or has waited.
const AWAITED: u64 = 1 << 12;
/// A thread waits until no inference is outstanding, while this inference is outstanding.
const COLLECTION_AWAITED: u64 = 1 << 13;

/// Bits that belong to one inference.
const OF_INFERENCE: u64 = COLLECTABLE | CANCELLED | TIMED_OUT | FAILED;

/// The other bits count the inferences.
const GENERATION: u64 = !0x3FFF;
const NEXT_GENERATION: u64 = 0x4000;

/// Number of an inference among all inferences of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(pub u64);

impl Generation {
    /// The lower bits of the inference's number, for entries of ordered queues.
    #[allow(clippy::cast_possible_truncation)] // the lower bits
    pub(crate) fn low_bits(self) -> u32 {
        (self.0 / NEXT_GENERATION) as u32
    }
}

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The request can be acquired.
    Available,
    /// A caller has acquired the request, and no inference is in flight.
    Idle,
    /// The request's inference waits for a thread.
    Queued,
    /// A thread works on the inference.
    Running,
    /// The device has the inference, and no thread waits for it.
    OnDevice,
    /// The inference has ended and was not collected.
    Completed,
}

/// Reason why an inference is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A caller cancelled the inference.
    Cancelled,
    /// The inference exceeded its time limit.
    TimedOut,
}

/// Error: an inference is in flight, or another thread edits the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight;

/// Error: the inference was asked to end in the meantime; the calling thread still owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedToEnd;

/// State of a request when an inference began, for `RequestState::withdraw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorPhase {
    /// The request was available, and the list of available requests may still contain its entry.
    Available,
    /// A caller had acquired the request.
    Idle,
}

/// An inference that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Number of the inference.
    pub generation: Generation,
    /// State of the request before.
    pub prior_phase: PriorPhase,
}

/// Reason why a request cannot be made available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBackError {
    /// The request's inference has not ended.
    InFlight,
    /// The request is already available.
    Available,
    /// This inference has ended and was not collected.
    Completed(Generation),
}

/// An inference that the calling thread has collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collected {
    /// True if a thread may sleep until no inference is outstanding.
    pub(crate) was_awaited: bool,
}

/// Result of a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Withdrawn {
    /// True if the request must be pushed to the list of available ones.
    pub(crate) needs_entry: bool,
    /// True if a thread may sleep until no inference is outstanding.
    pub(crate) was_awaited: bool,
}

/// The state word of a request, and the threads that wait for the end of its inference.
///
/// Every step is one exchange with acquire and release. The thread of a step therefore sees all that the threads of
/// earlier steps did before theirs.
pub struct RequestState {
    word: AtomicU64,
    ended: EventCount,
}

impl RequestState {
    /// Creates the state of a request that a caller has acquired.
    pub(crate) fn idle() -> Self {
        Self::of(IDLE)
    }

    fn of(word: u64) -> Self {
        Self { word: AtomicU64::new(word), ended: EventCount::default() }
    }

    fn word(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Changes the word to the result of `next`. Returns the words before and after, or the word for which `next`
    /// returned `None`.
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

    /// Changes the word of a running request, on its owner's thread. Other threads can only change other bits than
    /// the phase.
    fn step_always(&self, mut next: impl FnMut(u64) -> u64) -> (u64, u64) {
        loop {
            if let Ok(stepped) = self.step(|word| Some(next(word))) {
                return stepped;
            }
        }
    }

    /// Current phase of the request.
    pub fn phase(&self) -> Phase {
        phase_of(self.word())
    }

    /// The inference that has begun and not ended, if there is one.
    pub fn under_way(&self) -> Option<Generation> {
        let word = self.word();
        is_in_flight(word).then_some(Generation(word & GENERATION))
    }

    /// The inference that began last.
    pub fn generation(&self) -> Generation {
        Generation(self.word() & GENERATION)
    }

    /// Returns true if an inference has begun and not ended.
    pub fn is_in_flight(&self) -> bool {
        is_in_flight(self.word())
    }

    /// Returns true if an inference has begun and was not collected.
    pub fn is_outstanding(&self) -> bool {
        is_outstanding(self.word())
    }

    /// Requests that the step that collects or withdraws the outstanding inference reports that a thread may sleep
    /// until then. Returns false if no inference is outstanding. Earlier writes of the caller are visible to the
    /// thread of that step.
    pub(crate) fn await_collection(&self) -> bool {
        // The step also runs if the bit is set, because it must follow this thread's earlier writes.
        self.step(|word| is_outstanding(word).then_some(word | COLLECTION_AWAITED)).is_ok()
    }

    /// Returns true if the last inference ended, and failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.word() & FAILED != 0
    }

    /// Begins an inference, which the calling thread then owns. With `is_collectable`, its outcome is collected from
    /// a list.
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

    /// Withdraws a started inference, and wakes the threads that wait for its end.
    pub(crate) fn withdraw(&self, prior_phase: PriorPhase) -> Withdrawn {
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

    /// Leaves the running request to the threads of its queue. Returns true if the request must be pushed to the
    /// queue. With `is_single`, a request has one entry, however often it is enqueued; otherwise every inference has
    /// its own entry.
    pub(crate) fn enqueue(&self, is_single: bool) -> Result<bool, AskedToEnd> {
        let bit = if is_single { QUEUE_ENTRY } else { 0 };
        let next =
            |word: u64| (word & (CANCELLED | TIMED_OUT) == 0).then_some((word & !PHASE) | QUEUED | bit);
        let (before, _) = self.step(next).map_err(|_| AskedToEnd)?;
        Ok(before & bit == 0)
    }

    /// Claims a popped entry of a queue, or an entry that found no room in the queue. Returns false if the inference
    /// has ended in the meantime. Otherwise the caller owns the request, possibly with a later inference that relies
    /// on the entry.
    pub(crate) fn claim_entry(&self) -> bool {
        let claimed = self.step(|word| {
            let word = word & !QUEUE_ENTRY;
            Some(if word & PHASE == QUEUED { (word & !PHASE) | RUNNING } else { word })
        });
        claimed.is_ok_and(|(before, _)| before & PHASE == QUEUED)
    }

    /// Takes a queued inference, to run or to end it. Returns false if another thread has taken it.
    pub fn claim(&self, generation: Generation) -> bool {
        self.exchange(generation, QUEUED, RUNNING)
    }

    /// Takes a queued inference as [`RequestState::claim`] does, if the bits of its number in `mask` equal
    /// `low_bits`.
    pub(crate) fn claim_numbered(&self, low_bits: u32, mask: u32) -> bool {
        self.step(|word| {
            let is_meant = Generation(word & GENERATION).low_bits() & mask == low_bits & mask;
            (is_meant && word & PHASE == QUEUED).then_some((word & !PHASE) | RUNNING)
        })
        .is_ok()
    }

    /// Leaves the running request to the device. Returns true if the request must be pushed to the list of requests
    /// on the device.
    pub(crate) fn leave_to_device(&self) -> Result<bool, AskedToEnd> {
        let next = |word: u64| {
            (word & (CANCELLED | TIMED_OUT) == 0).then_some((word & !PHASE) | ON_DEVICE | DEVICE_ENTRY)
        };
        let (before, _) = self.step(next).map_err(|_| AskedToEnd)?;
        Ok(before & DEVICE_ENTRY == 0)
    }

    /// Takes an inference from the device, to wait for it or to end it. Returns false if the inference is not on the
    /// device.
    pub(crate) fn take_from_device(&self, generation: Generation) -> bool {
        self.exchange(generation, ON_DEVICE, RUNNING)
    }

    /// Claims a popped entry of the list of requests on the device. Returns true if the calling thread now owns the
    /// request.
    pub(crate) fn claim_device_entry(&self) -> bool {
        self.claim_listed(DEVICE_ENTRY, ON_DEVICE, RUNNING)
    }

    /// Ends the inference of a running request, and wakes the threads that wait for the end. Returns true if the
    /// request must be pushed to the list of completed requests.
    pub(crate) fn complete(&self, has_failed: bool) -> bool {
        let failed = if has_failed { FAILED } else { 0 };
        let (before, after) = self.step_always(|word| {
            let to = if word & COLLECTABLE != 0 { COMPLETED | COMPLETED_ENTRY } else { IDLE };
            (word & !(PHASE | AWAITED)) | to | failed
        });
        self.notify(before);
        after & PHASE == COMPLETED && before & COMPLETED_ENTRY == 0
    }

    /// Collects a completed inference. Returns `None` if the request is not completed with this inference, or if
    /// another thread has collected it.
    pub(crate) fn collect(&self, generation: Generation) -> Option<Collected> {
        let stepped = self.step(|word| {
            let is_meant = word & GENERATION == generation.0 && word & PHASE == COMPLETED;
            is_meant.then_some((word & !(PHASE | COLLECTION_AWAITED)) | IDLE)
        });
        stepped.ok().map(|(before, _)| Collected { was_awaited: before & COLLECTION_AWAITED != 0 })
    }

    /// Claims a popped entry of the list of completed requests.
    pub(crate) fn claim_completed_entry(&self) -> Option<Collected> {
        let (before, _) = self.step_always(|word| {
            let word = word & !COMPLETED_ENTRY;
            if word & PHASE == COMPLETED { (word & !(PHASE | COLLECTION_AWAITED)) | IDLE } else { word }
        });
        let is_collected = before & PHASE == COMPLETED;
        is_collected.then_some(Collected { was_awaited: before & COLLECTION_AWAITED != 0 })
    }

    /// Claims a popped entry of the list of available requests.
    pub(crate) fn claim_available_entry(&self) -> bool {
        self.claim_listed(AVAILABLE_ENTRY, AVAILABLE, IDLE)
    }

    /// Makes a request of a caller available. Returns true if the request must be pushed to the list of available
    /// requests.
    pub(crate) fn put_back(&self) -> Result<bool, PutBackError> {
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

    /// Prevents inferences from beginning, until [`RequestState::edited`]. Only one thread at a time can edit.
    pub(crate) fn edit(&self) -> Result<(), InFlight> {
        let next = |word: u64| (!is_in_flight(word) && word & EDITED == 0).then_some(word | EDITED);
        self.step(next).map(drop).map_err(|_| InFlight)
    }

    /// Ends [`RequestState::edit`].
    pub(crate) fn edited(&self) {
        self.word.fetch_and(!EDITED, Ordering::AcqRel);
    }

    /// Asks an inference to end. The first reason counts. Returns false if the inference has ended.
    pub(crate) fn ask_to_end(&self, generation: Generation, reason: Reason) -> bool {
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

    /// Reason why the current inference was asked to end.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self.word() & (CANCELLED | TIMED_OUT) {
            0 => None,
            TIMED_OUT => Some(Reason::TimedOut),
            _ => Some(Reason::Cancelled),
        }
    }

    /// Wakes the threads that wait for the end of the inference, if `before`, the word before the step, marks any.
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
    /// Waits for the end of an inference. `try_take` must return a value once that inference is not in flight.
    fn wait<T>(&self, limit: Duration, mut try_take: impl FnMut() -> Option<T>) -> Option<T> {
        // The calling thread listens when it sets the bit. The step that ends the inference either finds the bit and
        // notifies, or came before it, and the second check finds the end.
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

qaic_sync::debug_fields!(
    RequestState,
    |state| phase: phase_of(state.word()), generation: state.word() / NEXT_GENERATION
);

#[cfg(all(test, not(loom)))]
#[path = "request_state/tests.rs"]
mod tests;
