//! Which requests carry the inferences of an id, oldest first.
//!
//! Callers choose ids freely and may use one for several inferences at a time. Ids fall into buckets. A bucket numbers its
//! inferences with tickets, and a table holds, at a place that bucket and ticket give, the request; consecutive tickets
//! have neighboring places, so inferences that share one id do not meet each other. A request is in the table before its
//! ticket is published, so a published ticket that is not found there is of an inference that was collected.

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Places after the first that a request may have. The table is a quarter full at most.
const WINDOW: u64 = 8;

/// The place of a request that found none: lookups then look at all requests.
const NO_PLACE: u64 = u64::MAX;

/// Requests by id.
#[derive(Debug)]
pub struct IdIndex {
    buckets: Box<[CachePadded<Bucket>]>,
    // Number of the request plus one, 0 for a free place.
    table: Box<[AtomicU64]>,
    entries: Box<[RequestEntry]>,
    // Requests without a place.
    unplaced: AtomicU32,
    // Of the request that was added last, or one of the last: how often it was added above, its number below. No two additions
    // store the same, but for 2^32 of one request.
    latest: AtomicU64,
}

#[derive(Debug)]
struct Bucket {
    // Tickets below are published.
    next: AtomicU64,
    // The inferences of tickets below were collected.
    first: AtomicU64,
}

/// What its owner wrote of a request; it stays so until the next inference begins.
#[derive(Debug)]
struct RequestEntry {
    id: AtomicU64,
    ticket: AtomicU64,
    place: AtomicU64,
    additions: AtomicU32,
}

impl IdIndex {
    /// An empty index of the requests `0..count`.
    pub fn new(count: u32) -> Self {
        let size = |factor: usize| (count.max(1) as usize * factor).next_power_of_two();
        let bucket = || CachePadded::new(Bucket { next: AtomicU64::new(0), first: AtomicU64::new(0) });
        let entry = || RequestEntry {
            id: AtomicU64::new(0),
            ticket: AtomicU64::new(0),
            place: AtomicU64::new(NO_PLACE),
            additions: AtomicU32::new(0),
        };
        Self {
            buckets: std::iter::repeat_with(bucket).take(size(1)).collect(),
            table: std::iter::repeat_with(|| AtomicU64::new(0)).take(size(4)).collect(),
            entries: std::iter::repeat_with(entry).take(count as usize).collect(),
            unplaced: AtomicU32::new(0),
            latest: AtomicU64::new(0),
        }
    }

    /// The id under which a request was added last; 0 at first.
    pub fn id_of(&self, number: u32) -> Option<u64> {
        Some(self.entries.get(number as usize)?.id.load(Ordering::Acquire))
    }

    /// Adds a request that is not in the index; for its owner.
    pub fn insert(&self, id: u64, number: u32) {
        let (Some(entry), bucket) = (self.entries.get(number as usize), self.bucket_of(id)) else { return };
        entry.id.store(id, Ordering::Release);
        // Relaxed: written by the owner before this one.
        let additions = entry.additions.load(Ordering::Relaxed).wrapping_add(1);
        entry.additions.store(additions, Ordering::Relaxed);
        // A store, which costs no exchange. A thread that sees what this one does later sees it.
        self.latest.store(u64::from(additions) << 32 | u64::from(number), Ordering::Release);
        loop {
            // Acquire: with the release of the exchange below, tickets come in the order of their publications.
            let ticket = self.buckets[bucket].next.load(Ordering::Acquire);
            entry.ticket.store(ticket, Ordering::Release);
            let Some(place) = self.take_place(bucket, ticket, number) else {
                entry.place.store(NO_PLACE, Ordering::Relaxed);
                self.unplaced.fetch_add(1, Ordering::AcqRel);
                return;
            };
            entry.place.store(place as u64, Ordering::Relaxed);
            let next = &self.buckets[bucket].next;
            // Release: a lookup that sees the ticket sees the place.
            if next.compare_exchange(ticket, ticket + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
            self.table[place].store(0, Ordering::Release);
        }
    }

    /// Removes a request; for its owner, once after each [`IdIndex::insert`].
    pub fn remove(&self, number: u32) {
        let Some(entry) = self.entries.get(number as usize) else { return };
        // Relaxed: written by the owner before this one.
        match usize::try_from(entry.place.load(Ordering::Relaxed))
            .ok()
            .and_then(|place| self.table.get(place))
        {
            // Release: a thread that takes the place next comes after what this owner did.
            Some(place) => place.store(0, Ordering::Release),
            None => {
                self.unplaced.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// The oldest request of `id`. Requests come and go meanwhile: a caller looks at the request's state and at
    /// [`IdIndex::id_of`] again before it takes it.
    pub fn oldest(&self, id: u64, is_outstanding: impl Fn(u32) -> bool) -> Option<u32> {
        let bucket = self.bucket_of(id);
        let Bucket { next, first } = &*self.buckets[bucket];
        let found = |number: u32| {
            let entry = self.entries.get(number as usize)?;
            (entry.id.load(Ordering::Acquire) == id && is_outstanding(number)).then_some(number)
        };
        if self.unplaced.load(Ordering::Acquire) > 0 {
            let all = (0..)
                .zip(&self.entries)
                .filter_map(|(number, entry)| Some((entry.ticket.load(Ordering::Acquire), found(number)?)));
            return all.min().map(|(_, number)| number);
        }
        let mut is_prefix = true;
        let mut ticket = first.load(Ordering::Acquire);
        while ticket < next.load(Ordering::Acquire) {
            let mut placed = self.placed(bucket, ticket).peekable();
            if placed.peek().is_some() {
                is_prefix = false;
            } else if is_prefix {
                // Collected. Each ticket is passed over once as long as none before it is in use.
                let _ = first.compare_exchange(ticket, ticket + 1, Ordering::AcqRel, Ordering::Relaxed);
            }
            // Beside the request that published the ticket there may be one that is about to find it taken.
            if let Some(number) = placed.find_map(found) {
                return Some(number);
            }
            ticket += 1;
        }
        None
    }

    /// The first request in the index that `matches`; one that was added lately is asked about first. Requests come and go
    /// meanwhile.
    pub fn find(&self, matches: impl Fn(u32) -> bool) -> Option<u32> {
        loop {
            let latest = self.latest.load(Ordering::Acquire);
            let found = self.find_once(latest, &matches);
            // While it looked, a request may have been added at a place it had passed, and then the one it was about to see
            // removed.
            if found.is_some() || self.latest.load(Ordering::Acquire) == latest {
                return found;
            }
        }
    }

    #[allow(clippy::cast_possible_truncation)] // the lower half
    fn find_once(&self, latest: u64, matches: impl Fn(u32) -> bool) -> Option<u32> {
        let latest = latest as u32;
        if matches(latest) {
            return Some(latest);
        }
        if self.unplaced.load(Ordering::Acquire) > 0 {
            return (0..).zip(&self.entries).map(|(number, _)| number).find(|&number| matches(number));
        }
        // Acquire: comes after what the owner did before it added the request.
        let placed = self.table.iter().map(|place| place.load(Ordering::Acquire));
        placed.filter_map(|place| u32::try_from(place.checked_sub(1)?).ok()).find(|&number| matches(number))
    }

    fn bucket_of(&self, id: u64) -> usize {
        spread(id) & (self.buckets.len() - 1)
    }

    fn places(&self, bucket: usize, ticket: u64) -> impl Iterator<Item = usize> + '_ {
        let begin = spread(bucket as u64 ^ 0x5bd1_e995);
        #[allow(clippy::cast_possible_truncation)] // the mask keeps the lower bits
        (0..WINDOW).map(move |step| begin.wrapping_add((ticket + step) as usize) & (self.table.len() - 1))
    }

    fn take_place(&self, bucket: usize, ticket: u64, number: u32) -> Option<usize> {
        let entry = u64::from(number) + 1;
        self.places(bucket, ticket).find(|&place| {
            let slot = &self.table[place];
            // Relaxed: a hint. AcqRel: after the removal of the last owner, and before lookups.
            slot.load(Ordering::Relaxed) == 0
                && slot.compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    fn placed(&self, bucket: usize, ticket: u64) -> impl Iterator<Item = u32> + '_ {
        self.places(bucket, ticket).filter_map(move |place| {
            let number = u32::try_from(self.table[place].load(Ordering::Acquire).checked_sub(1)?).ok()?;
            let entry = self.entries.get(number as usize)?;
            let is_meant = entry.ticket.load(Ordering::Acquire) == ticket
                && self.bucket_of(entry.id.load(Ordering::Acquire)) == bucket;
            is_meant.then_some(number)
        })
    }
}

/// Spreads numbers, which are usually small and consecutive; a caller that chooses bad ids slows itself only.
#[allow(clippy::cast_possible_truncation)] // callers take the lower bits
fn spread(value: u64) -> usize {
    // The golden ratio: neighbors end far apart, and the high bits depend on all others.
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::sync::atomic::AtomicBool;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a list in order of insertion; few ids, so that they share buckets and places.
        #[test]
        fn index_behaves_like_a_list(steps in prop::collection::vec((0_u32..8, 0_u64..5), 0..300)) {
            let index = IdIndex::new(8);
            let mut model: Vec<(u64, u32)> = Vec::new();
            for (number, id) in steps {
                if let Some(position) = model.iter().position(|entry| entry.1 == number) {
                    model.remove(position);
                    index.remove(number);
                } else {
                    model.push((id, number));
                    index.insert(id, number);
                }
                for wanted in 0..8 {
                    let is_there = model.iter().any(|entry| entry.1 == wanted);
                    let found = index.find(|number| number == wanted && model.iter().any(|entry| entry.1 == number));
                    prop_assert_eq!(found, is_there.then_some(wanted));
                }
                for id in 0..5 {
                    let oldest = model.iter().find(|entry| entry.0 == id).map(|entry| entry.1);
                    prop_assert_eq!(index.oldest(id, |number| model.iter().any(|entry| entry.1 == number)), oldest);
                }
            }
        }
    }

    #[test]
    fn id_of_a_request_is_that_of_its_last_insertion() {
        let index = IdIndex::new(2);
        assert_eq!((index.id_of(1), index.id_of(2)), (Some(0), None));
        index.insert(7, 1);
        index.remove(1);
        assert_eq!(index.id_of(1), Some(7));
        index.insert(9, 1);
        assert_eq!((index.id_of(0), index.id_of(1)), (Some(0), Some(9)));
    }

    /// Where all ids fell into one bucket, or all buckets began at one place, lookups would pass over the inferences of others.
    #[test]
    fn ids_and_buckets_are_spread_evenly() {
        let index = IdIndex::new(1024);
        let buckets: std::collections::HashSet<_> = (0..1024).map(|id| index.bucket_of(id)).collect();
        assert!(buckets.len() > 512, "{}", buckets.len());
        let places: std::collections::HashSet<_> =
            (0..1024).filter_map(|bucket| index.places(bucket, 0).next()).collect();
        assert!(places.len() > 512, "{}", places.len());
    }

    #[test]
    fn index_with_one_id_for_all_keeps_their_order() {
        let index = IdIndex::new(4096);
        (0..4096).rev().for_each(|number| index.insert(7, number));
        let gone = AtomicU32::new(4096);
        for expected in (0..4096).rev() {
            let oldest = index.oldest(7, |number| number < gone.load(Ordering::Relaxed)).unwrap();
            assert_eq!(oldest, expected);
            index.remove(oldest);
            gone.store(oldest, Ordering::Relaxed);
        }
        assert_eq!(index.oldest(7, |_| true), None);
        assert_eq!(index.unplaced.load(Ordering::Relaxed), 0);
    }

    /// A set of many asks often whether one is outstanding, usually the latest.
    #[test]
    fn request_that_was_added_last_is_asked_about_first() {
        let index = IdIndex::new(4096);
        for number in [4000, 17, 0, 4095] {
            index.insert(7, number);
            let asked = std::cell::Cell::new(0);
            let found = index.find(|_| asked.replace(asked.get() + 1) == 0);
            assert_eq!((found, asked.get()), (Some(number), 1));
        }
    }

    /// A request is added behind the search, and then the only other one is removed before it.
    #[test]
    fn request_added_while_another_is_searched_for_is_found() {
        for id in 0..64 {
            let index = IdIndex::new(4);
            let is_there = [true, false, false].map(AtomicBool::new);
            index.insert(id, 0);
            // The latest is gone.
            index.insert(1, 1);
            index.remove(1);
            let found = index.find(|number| {
                let Some(here) = is_there.get(number as usize) else { return false };
                if number == 0 && here.swap(false, Ordering::Relaxed) {
                    index.insert(7, 2);
                    is_there[2].store(true, Ordering::Relaxed);
                    index.remove(0);
                }
                here.load(Ordering::Relaxed)
            });
            assert_eq!(found, Some(2), "{id}");
        }
    }

    #[test]
    fn index_without_a_place_finds_the_request_anyway() {
        let index = IdIndex::new(2);
        index.table.iter().for_each(|place| place.store(99, Ordering::Relaxed));
        index.insert(3, 0);
        index.insert(3, 1);
        assert_eq!(index.oldest(3, |number| number == 1), Some(1));
        assert_eq!(index.oldest(4, |_| true), None);
        assert_eq!([index.find(|number| number == 0), index.find(|number| number == 1)], [Some(0), Some(1)]);
        assert_eq!(index.find(|_| false), None);
        index.remove(0);
        index.remove(1);
        assert_eq!(index.unplaced.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn index_among_threads_that_share_ids_finds_what_its_thread_added() {
        const THREADS: u32 = 4;
        let index = IdIndex::new(THREADS);
        let present: Vec<AtomicBool> = (0..THREADS).map(|_| AtomicBool::new(false)).collect();
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (index, present) = (&index, &present);
                scope.spawn(move || {
                    for round in 0..20_000_u64 {
                        let id = round % 2;
                        present[number as usize].store(true, std::sync::atomic::Ordering::SeqCst);
                        index.insert(id, number);
                        let oldest = index.oldest(id, |number| {
                            present[number as usize].load(std::sync::atomic::Ordering::SeqCst)
                        });
                        assert!(oldest.is_some(), "{number} is there at least");
                        index.remove(number);
                        present[number as usize].store(false, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
