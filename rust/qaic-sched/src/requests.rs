//! Table of the requests of a scheduler, by number.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use qaic_sync::atomic::{AtomicU32, Mutex, Ordering};

use crate::{Error, Job, Request};

/// Number of bits of a request number, limited by the entries of run queues.
pub(crate) const NUMBER_BITS: u32 = 16;

/// Number of requests in the first segment. Each further segment doubles the number.
const FIRST: u32 = 64;
const SEGMENTS: usize = 11;

/// A part of the table, allocated with its first request.
type Segment<J> = OnceLock<Box<[OnceLock<Arc<Request<J>>>]>>;

/// Requests of a scheduler, created when first needed and kept as long as the scheduler. A lookup takes no lock.
#[derive(Debug)]
pub(crate) struct Requests<J: Job> {
    segments: [Segment<J>; SEGMENTS],
    count: AtomicU32,
    // Requests without exec objects, per run queue.
    unused: Box<[Mutex<Vec<u32>>]>,
    limit: Option<Duration>,
}

impl<J: Job> Requests<J> {
    /// Creates an empty table for `queues` run queues. Inferences have the time limit `limit`.
    pub(crate) fn new(queues: u32, limit: Option<Duration>) -> Self {
        Self {
            segments: [const { OnceLock::new() }; SEGMENTS],
            count: AtomicU32::new(0),
            unused: (0..queues).map(|_| Mutex::default()).collect(),
            limit,
        }
    }

    /// Returns a request of a run queue that no exec object uses.
    pub(crate) fn take(&self, queue: u32) -> Result<Arc<Request<J>>, Error> {
        if let Some(unused) = self.unused.get(queue as usize)
            && let Some(number) = unused.lock().pop()
            && let Some(request) = self.get(number)
        {
            return Ok(Arc::clone(request));
        }
        let more = |count| (count < 1 << NUMBER_BITS).then_some(count + 1);
        let number = self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .map_err(|most| Error::TooManyRequests { most })?;
        let request = Arc::new(Request::new(number, queue, self.limit));
        let (segment, index) = place(number);
        // Numbers are below `1 << NUMBER_BITS`, and each of those has a place.
        let segment = self.segments.get(segment).ok_or(Error::NoJob { number })?;
        let segment =
            segment.get_or_init(|| (0..segment_len(place(number).0)).map(|_| OnceLock::new()).collect());
        if let Some(slot) = segment.get(index) {
            let _ = slot.set(Arc::clone(&request));
        }
        Ok(request)
    }

    /// Returns a request to the table after its exec object was dropped.
    pub(crate) fn give_back(&self, request: &Request<J>) {
        if let Some(unused) = self.unused.get(request.queue as usize) {
            unused.lock().push(request.number);
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Arc<Request<J>>> {
        let (segment, index) = place(number);
        self.segments.get(segment)?.get()?.get(index)?.get()
    }

    /// Iterates over all existing requests.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Request<J>>> {
        (0..self.count.load(Ordering::Acquire)).filter_map(|number| self.get(number))
    }
}

/// Segment of a number, and the index in the segment.
fn place(number: u32) -> (usize, usize) {
    let segment = (number / FIRST + 1).ilog2();
    let before = FIRST * ((1 << segment) - 1);
    (segment as usize, (number - before) as usize)
}

fn segment_len(segment: usize) -> usize {
    (FIRST as usize) << segment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Counted, Device};
    use crate::{Scheduler, SchedulerOptions};

    #[test]
    fn places_of_all_numbers_are_different_and_in_their_segments() {
        let mut expected = (0, 0);
        for number in 0..1 << NUMBER_BITS {
            assert_eq!(place(number), expected);
            expected.1 += 1;
            if expected.1 == segment_len(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(expected.0 < SEGMENTS);
    }

    #[test]
    fn request_given_back_is_used_again_in_its_queue_only() {
        let options = SchedulerOptions { queues: 2, ..Arc::new(Device::default()).options() };
        let scheduler = Scheduler::<Counted>::new(options);
        let first = scheduler.take_request(0).unwrap();
        scheduler.give_back_request(&first);
        assert_eq!(scheduler.take_request(1).unwrap().number, 1);
        assert!(Arc::ptr_eq(&scheduler.take_request(0).unwrap(), &first));
        assert_eq!(scheduler.shared.requests.iter().count(), 2);
    }

    /// Larger numbers would overlap the generation bits of a queue entry.
    #[test]
    fn requests_are_no_more_than_their_numbers_have_bits_for() {
        let requests = Requests::<Counted>::new(1, None);
        assert!(requests.get(0).is_none());
        for number in 0..1 << NUMBER_BITS {
            let request = requests.take(0).unwrap();
            assert_eq!(request.number, number);
            assert!(Arc::ptr_eq(requests.get(number).unwrap(), &request));
        }
        assert_eq!(requests.take(0).unwrap_err(), Error::TooManyRequests { most: 1 << NUMBER_BITS });
        assert_eq!(requests.iter().count(), 1 << NUMBER_BITS);
        let last = Arc::clone(requests.get((1 << NUMBER_BITS) - 1).unwrap());
        requests.give_back(&last);
        assert!(Arc::ptr_eq(&requests.take(0).unwrap(), &last));
    }
}
