//! Who has which handle of an inference set.
//!
//! A handle is in one state at a time, and whoever changes the state by an atomic step owns the handle:
//!
//! ```text
//! available -> acquired -> submitted -> done -> collected -> available
//! ```
//!
//! The lists of available and of completed handles may hold entries that are out of date, because a handle can leave a
//! state without passing through its list: it is collected by id, or submitted again by a caller who kept it. Whoever
//! takes an entry therefore checks the state ([`Roster`]).
//!
//! Nothing here knows exec objects, so that a thread which ends an inference keeps no cores, and loom can check this
//! file as it is (`rust/qaic-runtime/loom`).

use super::ids::Ids;
use crate::queue::{IndexStack, Ring, Roster, Waiters};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

// States of a handle.
pub(super) const AVAILABLE: u32 = 1;
const ACQUIRED: u32 = 1 << 1;
const SUBMITTED: u32 = 1 << 2;
const DONE: u32 = 1 << 3;
const COLLECTED: u32 = 1 << 4;

/// Why a handle cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is no such handle.
    Unknown,
    /// Its inference has not ended.
    InFlight,
    /// It is available.
    Available,
}

/// States of the handles `0..count`.
#[derive(Debug)]
pub(super) struct Handles {
    all: Box<[Handle]>,
    available: Roster<IndexStack>,
    completed: Roster<Ring>,
    // Threads that wait for the end of all inferences.
    drained: Waiters,
    submitted: AtomicU32,
    // Submitted, or done and not collected.
    outstanding: AtomicU32,
    ids: Mutex<Ids>,
}

#[derive(Debug)]
struct Handle {
    state: AtomicU32,
    id: AtomicU64,
    // Threads that wait for the end of this inference.
    ended: Waiters,
}

impl Handles {
    /// All available; the lowest is acquired first.
    pub(super) fn new(count: u32) -> Self {
        let handle =
            |_| Handle { state: AtomicU32::new(AVAILABLE), id: AtomicU64::new(0), ended: Waiters::new() };
        let handles = Self {
            all: (0..count).map(handle).collect(),
            available: Roster::latest_first(count),
            completed: Roster::in_order(count),
            drained: Waiters::new(),
            submitted: AtomicU32::new(0),
            outstanding: AtomicU32::new(0),
            ids: Mutex::new(Ids::new(count as usize)),
        };
        (0..count).rev().for_each(|number| handles.available.enter(number));
        handles
    }

    /// Where threads wait for an available handle.
    pub(super) fn for_available(&self) -> &Waiters {
        self.available.waiters()
    }

    /// Where threads wait for a completed handle, or for there being none to wait for.
    pub(super) fn for_completed(&self) -> &Waiters {
        self.completed.waiters()
    }

    /// Where threads wait until no inference is under way.
    pub(super) fn for_drained(&self) -> &Waiters {
        &self.drained
    }

    /// Where threads wait for the inference of one handle.
    pub(super) fn for_end_of(&self, number: u32) -> Option<&Waiters> {
        Some(&self.all.get(number as usize)?.ended)
    }

    /// Whether no inference is under way.
    pub(super) fn is_drained(&self) -> bool {
        self.submitted.load(Ordering::Acquire) == 0
    }

    /// Whether no inference is under way or waits to be collected.
    pub(super) fn is_settled(&self) -> bool {
        self.outstanding.load(Ordering::Acquire) == 0
    }

    /// The oldest handle with this id whose inference is under way or waits to be collected.
    pub(super) fn first_of(&self, id: u64) -> Option<u32> {
        self.ids.lock().first(id)
    }

    /// The id under which a handle was last submitted.
    pub(super) fn id_of(&self, number: u32) -> Option<u64> {
        Some(self.all.get(number as usize)?.id.load(Ordering::Acquire))
    }

    /// Whether the handle carries the inference `id`, collected or not.
    pub(super) fn carries(&self, number: u32, id: u64) -> bool {
        self.all.get(number as usize).is_some_and(|handle| {
            handle.id.load(Ordering::Acquire) == id
                && handle.state.load(Ordering::Acquire) & (SUBMITTED | DONE) != 0
        })
    }

    /// Takes an available handle.
    pub(super) fn acquire(&self) -> Option<u32> {
        self.available.take(|number| self.shift(number, AVAILABLE, ACQUIRED).is_ok())
    }

    /// Makes a handle submitted under `id`, and returns the state it was in for [`Self::take_back`]. One that is
    /// available leaves its stale entry in the list.
    pub(super) fn submit(&self, number: u32, id: u64) -> Result<u32, Refusal> {
        let handle = self.all.get(number as usize).ok_or(Refusal::Unknown)?;
        // Locked from before the state changes until the id has: see `collect_as`.
        let mut ids = self.ids.lock();
        let before =
            self.shift(number, AVAILABLE | ACQUIRED | COLLECTED, SUBMITTED).map_err(|_| Refusal::InFlight)?;
        // Release: publishes the id to who finds the handle in the table or done.
        handle.id.store(id, Ordering::Release);
        self.submitted.fetch_add(1, Ordering::AcqRel);
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        ids.insert(id, number);
        Ok(before)
    }

    /// Undoes a [`Self::submit`] whose inference was never started.
    pub(super) fn take_back(&self, number: u32, before: u32) {
        let Some(handle) = self.all.get(number as usize) else { return };
        self.ids.lock().remove(handle.id.load(Ordering::Acquire), number);
        // Nobody else moves a submitted handle whose inference cannot end.
        let _ = self.shift(number, SUBMITTED, before);
        if before == AVAILABLE {
            self.available.enter(number);
        }
        self.leave_submitted();
        self.leave_outstanding();
        handle.ended.wake_all();
    }

    /// The inference of a submitted handle has ended; false when the handle was not submitted.
    pub(super) fn complete(&self, number: u32) -> bool {
        if self.shift(number, SUBMITTED, DONE).is_err() {
            return false;
        }
        self.completed.enter(number);
        self.leave_submitted();
        if let Some(handle) = self.all.get(number as usize) {
            handle.ended.wake_all();
        }
        true
    }

    /// Takes the next completed handle.
    pub(super) fn collect_next(&self) -> Option<u32> {
        self.completed.take(|number| self.collect(number))
    }

    /// Takes a handle if its inference has ended and nobody has taken it.
    pub(super) fn collect(&self, number: u32) -> bool {
        if self.shift(number, DONE, COLLECTED).is_err() {
            return false;
        }
        let id = self.all.get(number as usize).map(|handle| handle.id.load(Ordering::Acquire));
        id.inspect(|&id| self.ids.lock().remove(id, number));
        self.was_collected(number);
        true
    }

    /// [`Self::collect`] only if the handle carries the inference `id`.
    pub(super) fn collect_as(&self, number: u32, id: u64) -> bool {
        let Some(handle) = self.all.get(number as usize) else { return false };
        if handle.state.load(Ordering::Acquire) != DONE {
            return false;
        }
        // Whoever collects this inference, puts the handle back and submits it under another id does that before or
        // after the two steps here, never between them.
        let mut ids = self.ids.lock();
        if handle.id.load(Ordering::Acquire) != id || self.shift(number, DONE, COLLECTED).is_err() {
            return false;
        }
        ids.remove(id, number);
        drop(ids);
        self.was_collected(number);
        true
    }

    fn was_collected(&self, number: u32) {
        if let Some(handle) = self.all.get(number as usize) {
            // Others may wait for the same inference, in vain now.
            handle.ended.wake_all();
        }
        self.leave_outstanding();
    }

    /// Makes a handle available; one that is done is collected on the way, by whoever waited for all together.
    pub(super) fn put_back(&self, number: u32) -> Result<(), Refusal> {
        if self.all.get(number as usize).is_none() {
            return Err(Refusal::Unknown);
        }
        self.collect(number);
        match self.shift(number, ACQUIRED | COLLECTED, AVAILABLE) {
            Ok(_) => {
                self.available.enter(number);
                Ok(())
            }
            Err(AVAILABLE) => Err(Refusal::Available),
            Err(_) => Err(Refusal::InFlight),
        }
    }

    /// Moves a handle from one of the states `from` to `to` and returns where it was; else where it is.
    ///
    /// `AcqRel`: who takes a handle over sees all that its last owner did with it.
    fn shift(&self, number: u32, from: u32, to: u32) -> Result<u32, u32> {
        let Some(handle) = self.all.get(number as usize) else { return Err(0) };
        handle.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| (now & from != 0).then_some(to))
    }

    fn leave_submitted(&self) {
        // AcqRel: who sees zero sees what the ended inferences wrote.
        if self.submitted.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drained.wake_all();
        }
    }

    fn leave_outstanding(&self) {
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            // There is nothing to wait for any more.
            self.completed.waiters().wake_all();
        }
    }
}
