//! An index of requests by the id of their inference, oldest first.
//!
//! Callers choose ids freely and may use one id for several inferences at a time. Each id with an inference has a
//! list of its requests. The cost of a step depends neither on the length of that list nor on other ids. The index
//! hashes ids into buckets. The first requests of the lists of a bucket form a chain. A list is a ring, so its first
//! request links to the last.
//!
//! Changes of a bucket are serialized without a lock. A change that adds or removes a list at the head of the chain
//! is one exchange of the bucket's word. For any other change, a thread announces the change in that word. Every
//! thread that finds an announced change completes it before it continues. All threads write the same values to the
//! same links, each link once per change. A link carries the stamp of the change that wrote it, and is written with
//! an exchange, so a late thread changes nothing.

use crossbeam_utils::CachePadded;
use qaic_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bits of the number of a request.
const NUMBER_BITS: u32 = 16;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

// The word of a bucket contains a request that is about to be added or removed, the kind of the change, the first
// request of the first list plus one, and the number of the change, which stamps its writes.
const KINDS: u64 = 3 << NUMBER_BITS;
const ADDITION: u64 = 1 << NUMBER_BITS;
const REMOVAL: u64 = 2 << NUMBER_BITS;
const FIRST_SHIFT: u32 = NUMBER_BITS + 2;
const FIRST_MASK: u64 = (1 << (NUMBER_BITS + 1)) - 1;
const CHANGE_SHIFT: u32 = FIRST_SHIFT + NUMBER_BITS + 1;

/// Mask of a link's stamp, which is the lower half of the link's word.
const STAMP_MASK: u64 = u32::MAX as u64;

/// Marks the stamps of links that the owner of a request wrote before it was added.
const OF_OWNER: u64 = 1 << 31;

/// Requests by id.
#[derive(Debug)]
pub(crate) struct IdIndex {
    buckets: Box<[CachePadded<AtomicU64>]>,
    entries: Box<[Entry]>,
    // The request that was added last, or one of the last: its number of additions in the upper half, its own number
    // in the lower half. Two additions store the same value only after 2^32 additions of one request.
    latest: AtomicU64,
}

/// Links of a request in its list.
#[derive(Debug)]
struct Entry {
    id: AtomicU64,
    // The previous and the next request in the list.
    peers: AtomicU64,
    // In the first request of a list: a link to the first request of the next list.
    chain: AtomicU64,
    additions: AtomicU32,
}

/// Error: another thread has changed the bucket in the meantime.
struct Stale;

/// State of a bucket: between two changes, or with an announced change.
#[derive(Clone, Copy)]
struct State<'a> {
    bucket: &'a AtomicU64,
    word: u64,
}

impl State<'_> {
    fn stamp(self) -> u64 {
        self.word >> CHANGE_SHIFT
    }

    /// The first request of the first list.
    fn first(self) -> Option<u32> {
        plus_one(self.word >> FIRST_SHIFT & FIRST_MASK)
    }

    /// Checks that values read since then belong to this state.
    fn check(self) -> Result<(), Stale> {
        if self.bucket.load(Ordering::Acquire) == self.word { Ok(()) } else { Err(Stale) }
    }

    /// Begins the next change: stores the resulting first list and the announced request. Returns false if the bucket
    /// is in another state.
    fn change(self, first: Option<u32>, announced: u64) -> bool {
        self.exchange(self.stamp() + 1, first, announced)
    }

    /// Completes an announced change and stores the resulting first list.
    fn settle(self, first: Option<u32>) {
        let _ = self.exchange(self.stamp(), first, 0);
    }

    fn exchange(self, stamp: u64, first: Option<u32>, announced: u64) -> bool {
        // The shift drops the high bits of the change number.
        let word = stamp << CHANGE_SHIFT | with_one(first) << FIRST_SHIFT | announced;
        // AcqRel: orders the writes before and for this change before all later ones.
        self.bucket.compare_exchange(self.word, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Writes a link, unless this change has already written it. `value` computes the new value from the old one.
    fn write(self, link: &AtomicU64, value: impl FnOnce(u64) -> u64) -> Result<(), Stale> {
        let seen = link.load(Ordering::Acquire);
        if seen & STAMP_MASK == self.stamp() {
            return Ok(());
        }
        self.check()?;
        let written = value(seen) & !STAMP_MASK | self.stamp();
        // On failure, another thread has written the link.
        let _ = link.compare_exchange(seen, written, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }
}

/// Encodes an optional number.
fn with_one(number: Option<u32>) -> u64 {
    u64::from(number.map_or(0, |number| number + 1))
}

#[allow(clippy::cast_possible_truncation)] // the callers leave 17 bits
fn plus_one(stored: u64) -> Option<u32> {
    (stored as u32).checked_sub(1)
}

/// Links to the requests before and after one in its list.
fn peers(before: u32, after: u32) -> u64 {
    u64::from(before) << 48 | u64::from(after) << 32
}

fn before(peers: u64) -> u32 {
    (peers >> 48) as u32
}

fn after(peers: u64) -> u32 {
    number(peers >> 32)
}

/// A link to the first request of a list, if there is one.
fn chain(first: Option<u32>) -> u64 {
    with_one(first) << 32
}

fn first_of(chain: u64) -> Option<u32> {
    plus_one(chain >> 32)
}

fn number(word: u64) -> u32 {
    (word & NUMBER_MASK) as u32
}

impl IdIndex {
    /// Creates an empty index of the requests `0..count`, at most 65536.
    pub(crate) fn new(count: u32) -> Self {
        let count = count.min(1 << NUMBER_BITS) as usize;
        let bucket = || CachePadded::new(AtomicU64::new(0));
        let entry = || Entry {
            id: AtomicU64::new(0),
            peers: AtomicU64::new(0),
            chain: AtomicU64::new(0),
            additions: AtomicU32::new(0),
        };
        Self {
            buckets: std::iter::repeat_with(bucket).take(count.max(1).next_power_of_two()).collect(),
            entries: std::iter::repeat_with(entry).take(count).collect(),
            latest: AtomicU64::new(0),
        }
    }

    /// Id with which a request was last added; 0 by default.
    pub(crate) fn id_of(&self, number: u32) -> Option<u64> {
        Some(self.entries.get(number as usize)?.id.load(Ordering::Acquire))
    }

    /// Adds a request that is not in the index. Only the owner of the request may call this.
    pub(crate) fn insert(&self, id: u64, number: u32) {
        let Some(entry) = self.entries.get(number as usize) else { return };
        // Relaxed: only an owner writes here, and ownership orders the owners.
        let additions = entry.additions.load(Ordering::Relaxed).wrapping_add(1);
        entry.additions.store(additions, Ordering::Relaxed);
        let stamp = OF_OWNER | u64::from(additions) & (OF_OWNER - 1);
        // The request is in no list, so no other thread writes its links. The exchange publishes them.
        entry.id.store(id, Ordering::Release);
        // A store costs less than an exchange. A thread that sees a later write of this thread also sees this one.
        self.latest.store(u64::from(additions) << 32 | u64::from(number), Ordering::Release);
        let bucket = self.bucket_of(id);
        loop {
            let settled = self.settled(bucket);
            let Ok(head) = self.list_of(settled, id) else { continue };
            let is_added = if let Some(head) = head {
                let last = before(self.entry(head).peers.load(Ordering::Acquire));
                entry.peers.store(peers(last, head) | stamp, Ordering::Release);
                entry.chain.store(stamp, Ordering::Release);
                settled.change(settled.first(), ADDITION | u64::from(number))
            } else {
                entry.peers.store(peers(number, number) | stamp, Ordering::Release);
                entry.chain.store(chain(settled.first()) | stamp, Ordering::Release);
                settled.change(Some(number), 0)
            };
            if is_added {
                // Completes the announced change.
                self.settled(bucket);
                return;
            }
        }
    }

    /// Removes a request, once after each [`IdIndex::insert`]. Only the owner of the request may call this.
    pub(crate) fn remove(&self, number: u32) {
        let Some(entry) = self.entries.get(number as usize) else { return };
        let bucket = self.bucket_of(entry.id.load(Ordering::Acquire));
        loop {
            let settled = self.settled(bucket);
            let is_alone = after(entry.peers.load(Ordering::Acquire)) == number;
            if is_alone && settled.first() == Some(number) {
                if settled.change(first_of(entry.chain.load(Ordering::Acquire)), 0) {
                    return;
                }
            } else if settled.change(settled.first(), REMOVAL | u64::from(number)) {
                // Completes the announced change: the request is in no list when this function returns.
                self.settled(bucket);
                return;
            }
        }
    }

    /// Returns the oldest request of `id`. Other threads add and remove requests concurrently: a caller checks the
    /// request's state and [`IdIndex::id_of`] again before it takes the request.
    pub(crate) fn oldest(&self, id: u64, is_outstanding: impl Fn(u32) -> bool) -> Option<u32> {
        let bucket = self.bucket_of(id);
        loop {
            if let Ok(found) = self.search(self.settled(bucket), id, &is_outstanding) {
                return found;
            }
        }
    }

    /// Returns the first request in the index that `matches`, starting with the request that was added last. Other
    /// threads add and remove requests concurrently.
    pub(crate) fn find(&self, matches: impl Fn(u32) -> bool) -> Option<u32> {
        loop {
            let latest = self.latest.load(Ordering::Acquire);
            let all = (0..).zip(&self.entries).map(|(number, _)| number);
            let found = std::iter::once(number(latest)).chain(all).find(|&number| matches(number));
            // During the search, a request may have been added at a position that the search had passed, and the
            // request at the next position may have been removed.
            if found.is_some() || self.latest.load(Ordering::Acquire) == latest {
                return found;
            }
        }
    }

    fn bucket_of(&self, id: u64) -> &AtomicU64 {
        // Multiplication by the golden ratio spreads consecutive ids evenly. A caller with unfavorable ids only slows
        // its own lookups.
        let spread = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = spread.checked_shr(u64::BITS - self.buckets.len().ilog2()).unwrap_or(0);
        &self.buckets[usize::try_from(place).unwrap_or(0)]
    }

    fn entry(&self, number: u32) -> &Entry {
        &self.entries[number as usize]
    }

    /// Returns a state without an announced change, after completing any such change.
    fn settled<'a>(&self, bucket: &'a AtomicU64) -> State<'a> {
        loop {
            let state = State { bucket, word: bucket.load(Ordering::Acquire) };
            match state.word & KINDS {
                0 => return state,
                // The request stays until the next change, so the change may be repeated.
                ADDITION if self.append(state, number(state.word)).is_ok() => return state,
                REMOVAL => drop(self.unlink(state, number(state.word))),
                _ => {}
            }
        }
    }

    /// Appends a request to its list. The request's own links must already point to the first and the last request of
    /// the list.
    fn append(&self, state: State<'_>, number: u32) -> Result<(), Stale> {
        let own = self.entry(number).peers.load(Ordering::Acquire);
        let (last, head) = (before(own), after(own));
        if last == head {
            state.write(&self.entry(head).peers, |_| peers(number, number))
        } else {
            state.write(&self.entry(last).peers, |seen| peers(before(seen), number))?;
            state.write(&self.entry(head).peers, |seen| peers(number, after(seen)))
        }
    }

    /// Removes a request from its list, and the list if it becomes empty, and completes the change.
    fn unlink(&self, state: State<'_>, number: u32) -> Result<(), Stale> {
        let own = self.entry(number).peers.load(Ordering::Acquire);
        let (last, next) = (before(own), after(own));
        let chained = self.entry(number).chain.load(Ordering::Acquire);
        let is_alone = next == number;
        let replacement = if is_alone { first_of(chained) } else { Some(next) };
        let is_first = state.first() == Some(number);
        let link = if is_first { None } else { self.link_to(state, number)? };
        if !is_alone {
            if is_first || link.is_some() {
                state.write(&self.entry(next).chain, |_| chained)?;
            }
            if last == next {
                state.write(&self.entry(next).peers, |_| peers(next, next))?;
            } else {
                state.write(&self.entry(last).peers, |seen| peers(before(seen), next))?;
                state.write(&self.entry(next).peers, |seen| peers(last, after(seen)))?;
            }
        }
        if let Some(link) = link {
            state.write(link, |_| chain(replacement))?;
        }
        state.settle(if is_first { replacement } else { state.first() });
        Ok(())
    }

    /// Returns the first request of the list of an id.
    fn list_of(&self, state: State<'_>, id: u64) -> Result<Option<u32>, Stale> {
        let mut head = state.first();
        while let Some(number) = head {
            let is_found = self.entry(number).id.load(Ordering::Acquire) == id;
            let next = self.entry(number).chain.load(Ordering::Acquire);
            state.check()?;
            if is_found {
                break;
            }
            head = first_of(next);
        }
        Ok(head)
    }

    /// Returns the link to a request that is the first of its list, but not of the chain. Returns `None` if the
    /// request is not, or if the link was already written.
    fn link_to(&self, state: State<'_>, number: u32) -> Result<Option<&AtomicU64>, Stale> {
        let mut head = state.first();
        while let Some(before) = head {
            let link = &self.entry(before).chain;
            head = first_of(link.load(Ordering::Acquire));
            state.check()?;
            if head == Some(number) {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }

    fn search(
        &self,
        settled: State<'_>,
        id: u64,
        is_outstanding: &impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, Stale> {
        let Some(head) = self.list_of(settled, id)? else { return Ok(None) };
        let mut number = head;
        loop {
            let next = after(self.entry(number).peers.load(Ordering::Acquire));
            let is_found = is_outstanding(number);
            settled.check()?;
            if is_found {
                return Ok(Some(number));
            }
            if next == head {
                return Ok(None);
            }
            number = next;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use proptest::prelude::*;
    use qaic_sync::atomic::Operations;

    use super::*;

    /// Counts the loads and read-modify-writes of a round for each of `size` inferences: find the oldest of
    /// its id, remove it, add it again. The first `kept` inferences are never collected.
    fn of_rounds_by_id(size: u32, kept: u32, id_of: impl Fn(u32) -> u64) -> u64 {
        let index = IdIndex::new(size);
        for number in 0..size {
            index.insert(id_of(number), number);
        }
        let Operations { updates, loads, .. } = Operations::during(|| {
            for number in (0..3).flat_map(|_| kept..size) {
                let id = id_of(number);
                assert!(index.oldest(id, |_| true).is_some());
                index.remove(number);
                index.insert(id, number);
            }
        });
        (updates + loads) / u64::from(3 * (size - kept))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Tests shared ids, a separate id for each inference, and both, also together with inferences that
        /// are never collected.
        #[test]
        fn inference_is_found_by_its_id_at_the_same_cost_in_a_small_and_in_a_large_set(
            kept in 0_u32..8,
            shared_of_8 in 0_u32..9,
            shared_ids in 1_u64..4,
            first_id in any::<u64>(),
        ) {
            let id_of = |number: u32| {
                let is_shared = number % 8 < shared_of_8;
                let own = if is_shared { u64::from(number) % shared_ids } else { 16 + u64::from(number) };
                first_id.wrapping_add(own)
            };
            let [few, many] = [64, 16_384].map(|size| of_rounds_by_id(size, kept, id_of));
            prop_assert!(many <= few + few / 2, "{few} {many}");
        }
    }

    proptest! {
        /// Compares with a list in order of insertion; few ids, so that they share buckets and places.
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

    /// Protects the links of a later addition from a late thread of an earlier change.
    #[test]
    fn links_of_each_addition_have_a_stamp_of_their_own_that_no_change_has() {
        let index = IdIndex::new(1);
        let stamps = [(); 3].map(|()| {
            index.insert(7, 0);
            index.remove(0);
            index.entry(0).peers.load(Ordering::Acquire) & STAMP_MASK
        });
        assert_eq!(stamps, [1, 2, 3].map(|addition| OF_OWNER | addition));
    }

    /// If all ids fell into one bucket, lookups would pass over the lists of others.
    #[test]
    fn ids_are_spread_evenly() {
        let index = IdIndex::new(1024);
        let buckets: std::collections::HashSet<_> =
            (0..1024).map(|id| std::ptr::from_ref(index.bucket_of(id))).collect();
        assert!(buckets.len() > 512, "{}", buckets.len());
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
    }

    /// An inference set often checks whether any request is outstanding; it is usually the latest one.
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

    /// A request is added at a position that the search has passed, and then the only other request is
    /// removed before the search reaches it.
    #[test]
    fn request_added_while_another_is_searched_for_is_found() {
        for id in 0..64 {
            let index = IdIndex::new(4);
            let is_there = [true, false, false].map(AtomicBool::new);
            index.insert(id, 0);
            // The latest entry was removed.
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
