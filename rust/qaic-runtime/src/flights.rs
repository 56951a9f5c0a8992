//! The inferences of a program that are on the device, between the two phases of their execution.
//!
//! The list is in the order in which they were handed over, which is the order in which a device usually ends them. It is
//! a hint: whoever takes an inference from the device by its [`Progress`] owns it, and may do so without the list, which
//! then has an entry for nothing. An exec object has one entry at most: when its next inference is on the device while an
//! older entry is there, that one stands for it. `make loom` checks that with the state machine of [`crate::progress`].

use std::mem;
use std::sync::{Arc, Weak};

use crate::inference::Inference;
use crate::progress::{Phase, Progress};
use crate::queue::{IndexStack, Ring};
use crate::sync::{AtomicU32, Mutex, Ordering, yield_now};

/// Inferences on the device at a time, for each thread that waits for them: enough to keep a card busy while the host prepares
/// the next, and few enough that one which has ended is not left waiting for long.
pub(crate) const MOST_PER_THREAD: u32 = 64;

/// Room for entries of inferences that somebody took without the list.
const STALE: u32 = if cfg!(loom) { 1 } else { 256 };

/// Inferences on the device.
#[derive(Debug)]
pub(crate) struct Flights {
    order: Ring,
    // By number. Exec objects own both.
    entries: Box<[Mutex<Entry>]>,
    numbers: IndexStack,
    // Handed over and not ended, and those about to be.
    count: AtomicU32,
}

type Entry = (Weak<Progress>, Weak<Inference>);

impl Flights {
    /// None, and room for `most` at a time.
    pub(crate) fn new(most: u32) -> Self {
        let room = most.saturating_add(STALE);
        let numbers = IndexStack::new_empty(room);
        (0..room).rev().for_each(|number| numbers.push(number));
        Self {
            // Twice the room: a consumer that is slow to free a slot is a whole lap away.
            order: Ring::new(room.saturating_mul(2)),
            entries: (0..room).map(|_| Mutex::default()).collect(),
            numbers,
            count: AtomicU32::new(0),
        }
    }

    /// Whether there is nothing to wait for; an inference that another thread waits for is not in the list.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Inferences that were counted and have not ended.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Counts an inference that is about to begin; false when there are `most` already.
    pub(crate) fn take_off(&self, most: u32) -> bool {
        let more = |count| (count < most).then_some(count + 1);
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Counts one that has ended, or did not begin.
    pub(crate) fn over(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Adds an inference that was left to the device.
    pub(crate) fn add(&self, progress: &Arc<Progress>, inference: Weak<Inference>) {
        // AcqRel: either this comes before the swap of whoever takes the entry that is there, who then sees the inference on
        // the device; or after it, and adds one.
        if progress.is_in_flight_list.swap(true, Ordering::AcqRel) {
            return;
        }
        let number = loop {
            match self.numbers.pop() {
                Some(number) => break number,
                None => self.drop_stale(),
            }
        };
        if let Some(entry) = self.entries.get(number as usize) {
            *entry.lock() = (Arc::downgrade(progress), inference);
        }
        self.push(number);
    }

    /// Takes the oldest from the device; the caller then waits for it.
    pub(crate) fn take_oldest(&self) -> Option<Arc<Inference>> {
        loop {
            let number = self.order.pop()?;
            let (progress, inference) = mem::take(&mut *self.entries.get(number as usize)?.lock());
            self.numbers.push(number);
            let Some(progress) = progress.upgrade() else { continue };
            progress.is_in_flight_list.swap(false, Ordering::AcqRel);
            // Only then may the exec object be looked at: it waits for the end of what was taken.
            if progress.take_from_device(None)
                && let Some(inference) = inference.upgrade()
            {
                return Some(inference);
            }
        }
    }

    /// Looks at the front of a full list, where more than can be on the device are; most of them are not.
    fn drop_stale(&self) {
        let Some(number) = self.order.pop() else { return yield_now() };
        let Some(entry) = self.entries.get(number as usize) else { return };
        let progress = entry.lock().0.upgrade();
        // As in `take_oldest`, and then as in `add`.
        let is_live = progress.is_some_and(|progress| {
            progress.is_in_flight_list.swap(false, Ordering::AcqRel);
            progress.phase() == Phase::OnDevice && !progress.is_in_flight_list.swap(true, Ordering::AcqRel)
        });
        if is_live { self.push(number) } else { self.numbers.push(number) }
    }

    /// There is room; a ring that is full nevertheless waits for a consumer between claiming a number and freeing its slot.
    fn push(&self, number: u32) {
        while self.order.push(number).is_err() {
            yield_now();
        }
    }
}
