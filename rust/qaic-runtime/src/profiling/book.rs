//! Which inferences of a program are taken: the arithmetic of first, count and rate.

use crate::sync::{AtomicU64, Ordering};

/// Which inferences somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Inferences of the program that are let pass at the begin.
    pub first: u64,
    /// Inferences of each activation, at most.
    pub count: Option<u64>,
    /// One in this many inferences of each activation; 1 is all.
    pub every: u32,
}

impl Default for Choice {
    fn default() -> Self {
        Self { first: 0, count: None, every: 1 }
    }
}

/// What was taken of one program.
///
/// The rate counts through each activation by itself: with one count for all, two activations that take turns and a rate
/// of two would never show one of them.
#[derive(Debug)]
pub(crate) struct Book {
    choice: Choice,
    begin: u64,
    lanes: Box<[Lane]>,
}

// Counters; nothing is published with them.
#[derive(Debug, Default)]
struct Lane {
    seen: AtomicU64,
    claimed: AtomicU64,
    taken: AtomicU64,
}

impl Book {
    /// Counts from inference number `begin` on.
    pub(crate) fn new(choice: Choice, begin: u64, lanes: u32) -> Self {
        Self { choice, begin, lanes: (0..lanes).map(|_| Lane::default()).collect() }
    }

    /// Whether an inference that begins is wanted. It is then [`Self::taken`] or [`Self::given_back`].
    pub(crate) fn claim(&self, lane: u32, number: u64) -> bool {
        let since = number.checked_sub(self.begin);
        if since.is_none_or(|since| since < self.choice.first) {
            return false;
        }
        let Some(lane) = self.lanes.get(lane as usize) else { return false };
        let seen = lane.seen.fetch_add(1, Ordering::Relaxed);
        if !seen.is_multiple_of(u64::from(self.choice.every.max(1))) {
            return false;
        }
        let Some(count) = self.choice.count else { return true };
        let more = |claimed| (claimed < count).then_some(claimed + 1);
        lane.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// A claimed inference ended well.
    pub(crate) fn taken(&self, lane: u32) {
        if self.choice.count.is_some()
            && let Some(lane) = self.lanes.get(lane as usize)
        {
            lane.taken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A claimed inference failed: another one may have its place.
    pub(crate) fn given_back(&self, lane: u32) {
        if self.choice.count.is_some()
            && let Some(lane) = self.lanes.get(lane as usize)
        {
            lane.claimed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether every activation has given all that was wanted of it.
    pub(crate) fn is_complete(&self) -> bool {
        let count = self.choice.count;
        count.is_some_and(|count| self.lanes.iter().all(|lane| lane.taken.load(Ordering::Relaxed) >= count))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against lists: the numbers of each lane from `first` on, every nth of them, the first `count` of those.
        #[test]
        fn takes_what_slices_of_the_lanes_would(
            lanes in proptest::collection::vec(0_u32..3, 0..200),
            begin in 0_u64..5,
            first in 0_u64..20,
            count in proptest::option::of(0_u64..10),
            every in 1_u32..17,
        ) {
            let book = Book::new(Choice { first, count, every }, begin, 3);
            let mut found = vec![Vec::new(); 3];
            for (number, &lane) in (0_u64..).zip(&lanes) {
                if book.claim(lane, number) {
                    book.taken(lane);
                    found[lane as usize].push(number);
                }
            }
            let limit = count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
            for lane in 0..3_u32 {
                let numbers = (0_u64..).zip(&lanes).filter(|&(_, found)| *found == lane).map(|(number, _)| number);
                let expected: Vec<u64> =
                    numbers.filter(|&number| number >= begin + first).step_by(every as usize).take(limit).collect();
                prop_assert_eq!(&found[lane as usize], &expected);
            }
            let full = count.is_some_and(|count| found.iter().all(|lane| lane.len() as u64 == count));
            prop_assert_eq!(book.is_complete(), full);
        }

        /// Failures never make it take more than was wanted, and it ends up with all of it.
        #[test]
        fn failures_are_made_up_for(fails in proptest::collection::vec(any::<bool>(), 0..60), count in 1_u64..10) {
            let book = Book::new(Choice { count: Some(count), ..Choice::default() }, 0, 1);
            let mut taken = 0;
            for (number, &fails) in (0_u64..).zip(fails.iter().chain([&false; 10])) {
                if book.claim(0, number) {
                    if fails { book.given_back(0) } else { book.taken(0); taken += 1 }
                }
            }
            prop_assert_eq!(taken, count);
            prop_assert!(book.is_complete());
        }
    }
}
