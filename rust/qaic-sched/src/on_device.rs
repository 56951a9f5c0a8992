//! The requests that an asynchronous device is executing.

use std::sync::Arc;

use qaic_sync::Ring;
use qaic_sync::atomic::{AtomicU32, Ordering, yield_now};

/// Number of requests on the device at a time, for each thread that waits for the device. This number keeps a card
/// busy while the host prepares the next request. A larger number would let ended requests wait longer for their
/// collection.
pub(crate) const MOST_PER_THREAD: u32 = 64;

/// Request numbers in the order of submission, in which a device usually ends the requests. An entry may be stale:
/// the state word of a request determines whether the request is on the device. A request has at most one entry.
#[derive(Debug)]
pub(crate) struct OnDevice {
    order: Ring,
    // Requests that a thread took and returned to the device; they are older than the others.
    returned: Ring,
    // Number of existing permits.
    permits: Arc<AtomicU32>,
}

/// A place on the device. Dropping the permit frees the place.
#[derive(Debug)]
pub(crate) struct Permit(Arc<AtomicU32>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl OnDevice {
    /// Creates an empty list, with room for the entries of `requests`.
    pub(crate) fn new(requests: u32) -> Self {
        let ring = || Ring::new(requests);
        Self { order: ring(), returned: ring(), permits: Arc::new(AtomicU32::new(0)) }
    }

    /// Returns true if the list is empty. A request that another thread waits for is not in the list.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty() && self.returned.is_empty()
    }

    /// Returns true if fewer than `most` inferences are on the device, for a thread that is about to sleep.
    pub(crate) fn has_room(&self, most: u32) -> bool {
        // RMW: either this thread sees that a permit was dropped, or the thread that drops it sees the queue as the
        // caller saw it.
        self.permits.fetch_add(0, Ordering::AcqRel) < most
    }

    /// Returns a place for a request that is about to be submitted; `None` if `most` places are in use.
    pub(crate) fn acquire(&self, most: u32) -> Option<Permit> {
        let more = |count| (count < most).then_some(count + 1);
        self.permits.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Permit(Arc::clone(&self.permits)))
    }

    /// Adds the entry of a request, after the list's bit was set in its state word.
    pub(crate) fn push(&self, number: u32, is_returned: bool) {
        let list = if is_returned { &self.returned } else { &self.order };
        // If a program has more exec objects than the list has room for, waits until another thread takes an entry.
        while list.push(number).is_err() {
            yield_now();
        }
    }

    /// Takes the oldest request whose `claim` succeeds.
    pub(crate) fn take_oldest(&self, claim: impl Fn(u32) -> bool) -> Option<u32> {
        std::iter::from_fn(|| self.returned.pop().or_else(|| self.order.pop())).find(|&number| claim(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_has_no_permit() {
        let on_device = OnDevice::new(2);
        assert!(!on_device.has_room(0) && on_device.acquire(0).is_none());
        let first = on_device.acquire(1).unwrap();
        assert!(!on_device.has_room(1) && on_device.acquire(1).is_none());
        let second = on_device.acquire(2).unwrap();
        assert!(!on_device.has_room(2) && on_device.acquire(2).is_none());
        drop(first);
        assert!(on_device.has_room(2) && !on_device.has_room(1));
        drop(second);
        assert!(on_device.has_room(1));
    }

    #[test]
    fn oldest_is_one_that_was_returned_then_the_one_that_was_handed_over_first() {
        let on_device = OnDevice::new(4);
        assert!(on_device.is_empty());
        for (number, is_returned) in [(3, false), (1, false), (2, true), (0, false)] {
            on_device.push(number, is_returned);
            assert!(!on_device.is_empty());
        }
        // Stale entries are skipped and removed.
        let oldest = [(); 4].map(|()| on_device.take_oldest(|number| number != 3));
        assert_eq!(oldest, [Some(2), Some(1), Some(0), None]);
        assert!(on_device.is_empty());
        on_device.push(2, true);
        assert!(!on_device.is_empty());
        assert_eq!(on_device.take_oldest(|_| false), None);
        assert!(on_device.is_empty());
    }
}
