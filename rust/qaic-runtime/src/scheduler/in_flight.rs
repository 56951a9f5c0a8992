//! The requests that are on a device which works by itself.

use qaic_sync::Ring;

use crate::sync::{AtomicU32, Ordering, yield_now};

/// Requests on the device at a time, for each thread that waits for it: enough to keep a card busy while the host prepares
/// the next, and few enough that one which has ended is not left waiting for long.
pub(super) const MOST_PER_THREAD: u32 = 64;

/// Numbers in the order in which requests were handed over, which is the order in which a device usually ends them. The
/// state word of a request says whether it is there: an entry may be stale, and a request has one at most.
#[derive(Debug)]
pub(super) struct InFlight {
    order: Ring,
    // Requests that a thread took and left to the device again: older than the others.
    returned: Ring,
    // Handed over and not ended, and those about to be.
    count: AtomicU32,
}

impl InFlight {
    /// None, with room for the entries of `requests`.
    pub(super) fn new(requests: u32) -> Self {
        let ring = || Ring::new(requests);
        Self { order: ring(), returned: ring(), count: AtomicU32::new(0) }
    }

    /// Returns whether there is nothing to wait for; a request that another thread waits for is not in the
    /// list.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty() && self.returned.is_empty()
    }

    /// Returns whether fewer than `most` inferences are on the device.
    pub(super) fn has_room(&self, most: u32) -> bool {
        self.count.load(Ordering::Acquire) < most
    }

    /// Counts a request that is about to be handed over; false when there are `most`.
    pub(super) fn reserve(&self, most: u32) -> bool {
        let more = |count| (count < most).then_some(count + 1);
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Counts a request that has ended, or was not handed over.
    pub(super) fn release(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Adds the entry of a request whose state word was just given the bit.
    pub(super) fn push(&self, number: u32, is_returned: bool) {
        let list = if is_returned { &self.returned } else { &self.order };
        // Where a program has more exec objects than it has room for, until another thread takes an entry.
        while list.push(number).is_err() {
            yield_now();
        }
    }

    /// Takes the oldest whose `claim` succeeds.
    pub(super) fn take_oldest(&self, claim: impl Fn(u32) -> bool) -> Option<u32> {
        std::iter::from_fn(|| self.returned.pop().or_else(|| self.order.pop())).find(|&number| claim(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_was_not_reserved() {
        let in_flight = InFlight::new(2);
        assert!(!in_flight.has_room(0) && !in_flight.reserve(0));
        assert!(in_flight.has_room(1) && in_flight.reserve(1));
        assert!(!in_flight.has_room(1) && !in_flight.reserve(1));
        assert!(in_flight.has_room(2) && in_flight.reserve(2));
        assert!(!in_flight.has_room(2) && !in_flight.reserve(2));
        in_flight.release();
        assert!(in_flight.has_room(2) && !in_flight.has_room(1) && in_flight.reserve(2));
        assert!(!in_flight.reserve(2));
    }

    #[test]
    fn oldest_is_one_that_was_returned_then_the_one_that_was_handed_over_first() {
        let in_flight = InFlight::new(4);
        assert!(in_flight.is_empty());
        for (number, is_returned) in [(3, false), (1, false), (2, true), (0, false)] {
            in_flight.push(number, is_returned);
            assert!(!in_flight.is_empty());
        }
        // Stale entries are passed over, and are gone.
        let oldest = [(); 4].map(|()| in_flight.take_oldest(|number| number != 3));
        assert_eq!(oldest, [Some(2), Some(1), Some(0), None]);
        assert!(in_flight.is_empty());
        in_flight.push(2, true);
        assert!(!in_flight.is_empty());
        assert_eq!(in_flight.take_oldest(|_| false), None);
        assert!(in_flight.is_empty());
    }
}
