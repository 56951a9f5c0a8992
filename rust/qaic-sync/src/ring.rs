//! A bounded first-in-first-out queue of numbers for any number of producers and consumers.
//!
//! Positions increase forever, and every `capacity`th position uses the same slot. A stamp in the slot identifies the
//! position that the slot is ready for, as in Dmitry Vyukov's bounded MPMC queue. In this queue, stamp and number
//! share one word, and one exchange of that word is the whole step. A number is in the ring as soon as its position
//! is claimed, and a slot is free as soon as its number is claimed. An empty or full result is therefore exact.

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bounded queue of `u32`.
///
/// ```
/// let ring = qaic_sync::Ring::new(2);
/// assert_eq!([ring.push(1), ring.push(2), ring.push(3)], [Ok(false), Ok(false), Err(3)]);
/// assert_eq!([ring.pop(), ring.pop(), ring.pop()], [Some(1), Some(2), None]);
/// ```
pub struct Ring {
    /// Position of the next number to take. All earlier numbers were taken.
    head: CachePadded<AtomicU32>,
    /// Position of the next free slot. All earlier positions were filled.
    tail: CachePadded<AtomicU32>,
    /// Slots with a stamp in the upper half and a number in the lower. The stamp of a slot for position `p` is `p` if
    /// the slot waits for a number, `p + 1` if the slot has one, and `p + capacity` after the number was taken: the
    /// slot then waits for the next lap. A waiting slot has [`AWAITED`] or 0 instead of a number.
    ///
    /// Stamps and positions wrap. A thread that pauses between two of its steps, while a multiple of 2^32 numbers (or
    /// up to a capacity less) passes through, would mistake one lap for another.
    slots: Box<[AtomicU64]>,
}

/// Mark: a thread may sleep until the slot has a number.
const AWAITED: u64 = 1;

/// State of a slot for a thread that reads it for a position.
enum Look {
    /// The slot waits for the number of this position.
    Waits,
    /// The slot has the number of this position.
    Holds,
    /// The slot has the number of the previous lap.
    HoldsLapBefore,
    /// Other threads have advanced further. The fields are the first positions that may still be open, for a push and
    /// for a pop.
    Ahead { put: u32, take: u32 },
}

impl Ring {
    /// Maximum capacity of a ring.
    pub(crate) const MAX_CAPACITY: u32 = 1 << 30;

    /// Creates a ring with room for `capacity` numbers, rounded up to a power of two of at least two. With one slot,
    /// the stamps for "has a number" and "waits for the next" would be equal.
    ///
    /// # Panics
    ///
    /// If `capacity` is above 2^30.
    pub fn new(capacity: u32) -> Self {
        assert!(
            capacity <= Self::MAX_CAPACITY,
            "a ring of {capacity} numbers; at most {}",
            Self::MAX_CAPACITY
        );
        let slots = capacity.next_power_of_two().max(2);
        Self {
            head: CachePadded::new(AtomicU32::new(0)),
            tail: CachePadded::new(AtomicU32::new(0)),
            slots: (0..slots).map(|position| AtomicU64::new(word_of(position, 0))).collect(),
        }
    }

    /// Number of slots.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Adds a number, or returns it as an error if the ring is full. Returns true if a thread may sleep until the
    /// ring has a number ([`Ring::await_next`]).
    ///
    /// Earlier writes of the caller are visible to the thread that pops the number.
    pub fn push(&self, value: u32) -> Result<bool, u32> {
        // Acquire, here and for slots: a thread that fills a position follows the threads that filled the earlier
        // ones. A thread that sees this number therefore sees those too.
        let mut tail = self.tail.load(Ordering::Acquire);
        loop {
            let word = self.slot(tail).load(Ordering::Acquire);
            match self.look(word, tail) {
                Look::Waits => {
                    let next = tail.wrapping_add(1);
                    // Release: publishes the number and the caller's earlier writes. Acquire: the earlier writes of a
                    // thread that has marked the slot and is about to sleep.
                    if self.exchange(tail, word, word_of(next, value)) {
                        // Release: publishes the position together with the slot. A store may move this hint to an
                        // earlier position; the stamps of the slots there lead to the present one.
                        self.tail.store(next, Ordering::Release);
                        return Ok(word & AWAITED != 0);
                    }
                }
                Look::HoldsLapBefore => return Err(value),
                Look::Holds => tail = tail.wrapping_add(1),
                Look::Ahead { put, .. } => tail = put,
            }
        }
    }

    /// Takes the oldest number; `None` only if the ring was empty.
    pub fn pop(&self) -> Option<u32> {
        loop {
            let (head, word) = self.front();
            if !matches!(self.look(word, head), Look::Holds) {
                return None;
            }
            // Passes the slot to the producer of the next lap.
            if self.exchange(head, word, word_of(head.wrapping_add(self.lap()), 0)) {
                // As in `push`.
                self.head.store(head.wrapping_add(1), Ordering::Release);
                #[allow(clippy::cast_possible_truncation)] // the lower half
                return Some(word as u32);
            }
        }
    }

    /// Requests that the next push reports that a thread may sleep until then. Returns false if the ring has a
    /// number.
    pub fn await_next(&self) -> bool {
        loop {
            let (head, word) = self.front();
            if !matches!(self.look(word, head), Look::Waits) {
                return false;
            }
            // The exchange also happens if the entry is marked: the producer must see the earlier writes of this
            // thread.
            if self.exchange(head, word, word | AWAITED) {
                return true;
            }
        }
    }

    /// Returns the oldest number without taking it. Only for a ring with a single consumer, which can then take that
    /// number.
    pub(crate) fn peek(&self) -> Option<u32> {
        let (head, word) = self.front();
        #[allow(clippy::cast_possible_truncation)] // the lower half
        matches!(self.look(word, head), Look::Holds).then_some(word as u32)
    }

    /// Returns true if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.peek().is_none()
    }

    /// Number of elements; an estimate while others push and pop.
    pub fn len(&self) -> usize {
        let head = self.head.load(Ordering::Acquire);
        let count = self.tail.load(Ordering::Acquire).wrapping_sub(head).cast_signed();
        usize::try_from(count).unwrap_or(0).min(self.slots.len())
    }

    /// Returns the position of the oldest number, or of the next one if the ring is empty, and the word of its slot.
    fn front(&self) -> (u32, u64) {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let word = self.slot(head).load(Ordering::Acquire);
            match self.look(word, head) {
                Look::Ahead { take, .. } => head = take,
                Look::Waits | Look::Holds | Look::HoldsLapBefore => return (head, word),
            }
        }
    }

    fn exchange(&self, position: u32, before: u64, after: u64) -> bool {
        let slot = self.slot(position);
        slot.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn slot(&self, position: u32) -> &AtomicU64 {
        // The length is a power of two, and the mask keeps the index below it.
        &self.slots[position as usize & (self.slots.len() - 1)]
    }

    /// Distance between two positions that use the same slot.
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    fn lap(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the state of the slot of `position`, read from the slot's word.
    fn look(&self, word: u64, position: u32) -> Look {
        let stamp = (word >> 32) as u32;
        let ahead = stamp.wrapping_sub(position);
        if ahead == 0 {
            return Look::Waits;
        }
        if ahead == 1 {
            return Look::Holds;
        }
        if ahead == 1_u32.wrapping_sub(self.lap()) {
            return Look::HoldsLapBefore;
        }
        // The position in the previous lap was taken.
        let lap_before = stamp.wrapping_sub(self.lap());
        if ahead % self.lap() == 1 {
            Look::Ahead { put: stamp, take: lap_before }
        } else {
            let next = lap_before.wrapping_add(1);
            Look::Ahead { put: next, take: next }
        }
    }
}

crate::debug_fields!(Ring, |ring| capacity: ring.capacity(), len: ring.len());

/// Combines a stamp and a number into the word of a slot.
fn word_of(stamp: u32, number: u32) -> u64 {
    u64::from(stamp) << 32 | u64::from(number)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Barrier;
    use std::thread;

    impl Ring {
        /// Creates a ring whose positions start at `position`.
        fn at(capacity: u32, position: u32) -> Self {
            let ring = Self::new(capacity);
            for next in (0..ring.lap()).map(|step| position.wrapping_add(step)) {
                ring.slot(next).store(word_of(next, 0), Ordering::Relaxed);
            }
            ring.head.store(position, Ordering::Relaxed);
            ring.tail.store(position, Ordering::Relaxed);
            ring
        }
    }

    #[test]
    fn ring_is_first_in_first_out_up_to_its_capacity() {
        let ring = Ring::new(3);
        assert_eq!((ring.capacity(), ring.len(), ring.is_empty()), (4, 0, true));
        assert_eq!(ring.pop(), None);
        for value in [7, 0, u32::MAX, 7] {
            assert_eq!(ring.push(value), Ok(false));
        }
        assert_eq!(ring.push(5), Err(5));
        assert_eq!((ring.len(), ring.is_empty()), (4, false));
        assert_eq!([ring.pop(), ring.pop(), ring.pop()], [Some(7), Some(0), Some(u32::MAX)]);
        assert_eq!(ring.push(6), Ok(false));
        assert_eq!([ring.pop(), ring.pop(), ring.pop()], [Some(7), Some(6), None]);
    }

    #[test]
    fn ring_of_any_small_capacity_has_two_slots() {
        for capacity in [0, 1, 2] {
            let ring = Ring::new(capacity);
            assert_eq!([ring.push(1), ring.push(2), ring.push(3)], [Ok(false), Ok(false), Err(3)]);
        }
    }

    #[test]
    #[should_panic(expected = "at most 1073741824")]
    fn ring_with_a_capacity_beyond_its_stamps_panics() {
        Ring::new(Ring::MAX_CAPACITY + 1);
    }

    /// Threads that were interrupted before they advanced a hint, and move it back when they continue.
    #[test]
    fn ring_with_hints_that_stand_behind_goes_on_where_it_was() {
        for (lap, behind) in (0..4).flat_map(|lap| (0..=4 * lap).map(move |behind| (lap, behind))) {
            for filled in 0..=4 {
                let ring = Ring::at(4, 4 * lap);
                (0..filled).for_each(|value| assert_eq!(ring.push(value), Ok(false)));
                ring.head.store(4 * lap - behind, Ordering::Relaxed);
                ring.tail.store(4 * lap - behind, Ordering::Relaxed);
                assert_eq!(ring.is_empty(), filled == 0);
                assert_eq!(ring.push(filled), if filled < 4 { Ok(false) } else { Err(filled) });
                let all: Vec<_> = std::iter::from_fn(|| ring.pop()).collect();
                assert!(all.into_iter().eq(0..(filled + 1).min(4)));
                assert_eq!((ring.push(9), ring.pop(), ring.pop()), (Ok(false), Some(9), None));
            }
        }
    }

    #[test]
    fn ring_that_is_awaited_says_so_at_the_next_push_only() {
        let ring = Ring::new(2);
        for _ in 0..5 {
            assert!(ring.await_next() && ring.await_next());
            assert!(ring.is_empty());
            assert_eq!((ring.pop(), ring.push(7)), (None, Ok(true)));
            assert!(!ring.await_next());
            assert_eq!((ring.push(8), ring.pop()), (Ok(false), Some(7)));
            assert!(!ring.await_next());
            assert_eq!((ring.pop(), ring.pop()), (Some(8), None));
        }
    }

    #[test]
    fn ring_whose_stamps_wrap_keeps_its_order() {
        let ring = Ring::at(4, u32::MAX - 5);
        for value in 0..20 {
            ring.push(value).unwrap();
            ring.push(value + 100).unwrap();
            assert_eq!([ring.pop(), ring.pop(), ring.pop()], [Some(value), Some(value + 100), None]);
        }
        for value in 0..4 {
            ring.push(value).unwrap();
        }
        assert_eq!(ring.push(4), Err(4));
    }

    proptest! {
        #[test]
        fn ring_behaves_like_a_bounded_deque(
            capacity in 1_u32..9,
            start in prop_oneof![Just(0), (u32::MAX - 20)..=u32::MAX],
            steps in proptest::collection::vec(proptest::option::weighted(0.5, proptest::option::of(any::<u32>())), 0..200),
        ) {
            let ring = Ring::at(capacity, start);
            let mut model = VecDeque::new();
            let mut is_awaited = false;
            for step in steps {
                match step {
                    Some(None) => {
                        is_awaited |= model.is_empty();
                        prop_assert_eq!(ring.await_next(), model.is_empty());
                    }
                    Some(Some(value)) if model.len() < ring.capacity() => {
                        prop_assert_eq!(ring.push(value), Ok(std::mem::take(&mut is_awaited)));
                        model.push_back(value);
                    }
                    Some(Some(value)) => prop_assert_eq!(ring.push(value), Err(value)),
                    None => prop_assert_eq!(ring.pop(), model.pop_front()),
                }
                prop_assert_eq!(ring.len(), model.len());
                prop_assert_eq!(ring.is_empty(), model.is_empty());
            }
        }
    }

    /// Every number arrives once, and those of one producer in order, on a ring that is full and empty all the time.
    #[test]
    fn ring_among_threads_delivers_each_entry_once() {
        const PRODUCERS: u32 = 3;
        const EACH: u32 = 20_000;
        let ring = Ring::new(4);
        let seen: Vec<AtomicU32> = (0..PRODUCERS * EACH).map(|_| AtomicU32::new(0)).collect();
        let taken = AtomicU32::new(0);
        let start = Barrier::new(PRODUCERS as usize + 3);
        thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let (ring, start) = (&ring, &start);
                scope.spawn(move || {
                    start.wait();
                    for value in producer * EACH..(producer + 1) * EACH {
                        while ring.push(value).is_err() {
                            thread::yield_now();
                        }
                    }
                });
            }
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = [None; PRODUCERS as usize];
                    start.wait();
                    while taken.load(Ordering::Relaxed) < PRODUCERS * EACH {
                        let Some(value) = ring.pop() else {
                            thread::yield_now();
                            continue;
                        };
                        taken.fetch_add(1, Ordering::Relaxed);
                        assert_eq!(
                            seen[value as usize].fetch_add(1, Ordering::Relaxed),
                            0,
                            "{value} came twice"
                        );
                        let before = last[(value / EACH) as usize].replace(value);
                        assert!(before < Some(value), "{value} after {before:?}");
                    }
                });
            }
        });
        assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        assert!(ring.is_empty());
    }
}
