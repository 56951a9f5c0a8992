//! A bounded first-in-first-out queue of numbers for any number of producers and consumers.
//!
//! Positions count up for ever, a slot is used by every `capacity`th position, and a stamp in the slot says for which
//! position it is ready, as in Dmitry Vyukov's bounded MPMC queue. Here stamp and number share one word, and the exchange
//! of that word is the whole step: a number is in the ring as soon as its position is claimed, and a slot is free as soon
//! as its number is. So a ring that is found empty is empty, and one that is found full is full.

use std::fmt;

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
    /// Position of the next number to take. Numbers before this position were taken.
    head: CachePadded<AtomicU32>,
    /// Position of the next free place. Positions before this one were filled.
    tail: CachePadded<AtomicU32>,
    /// Stamp in the upper half, number in the lower. The stamp of a slot for position `p` is `p` when the slot waits for
    /// a number, `p + 1` when it has one, `p + capacity` when that was taken: the slot then waits for the next lap. One
    /// that waits has [`AWAITED`] or 0 in place of a number.
    ///
    /// Stamps and positions wrap. A thread that stood still between two of its steps while a multiple of 2^32 numbers
    /// went through (or up to a capacity less) would take one lap for another.
    slots: Box<[AtomicU64]>,
}

/// A thread may sleep until the slot has a number.
const AWAITED: u64 = 1;

/// State of a slot for a thread that looks at it for a position.
enum Look {
    /// It waits for the number of this position.
    Waits,
    /// It has that number.
    Holds,
    /// It has the number of a lap before.
    HoldsLapBefore,
    /// Other threads have come further: the first position that the slot does not tell to be over, for one that puts and
    /// for one that takes.
    Ahead { put: u32, take: u32 },
}

impl Ring {
    /// Numbers a ring can be made for.
    pub(crate) const MAX_CAPACITY: u32 = 1 << 30;

    /// A ring with room for `capacity` numbers: the next power of two, two at least. With one slot, "has a number" and
    /// "waits for the next" would be the same stamp.
    ///
    /// # Panics
    ///
    /// If `capacity` is above [`Ring::MAX_CAPACITY`].
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

    /// Numbers it has room for.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Adds a number, or gives it back when there is no room. True: a thread may sleep until there is one
    /// ([`Ring::await_next`]).
    ///
    /// What the caller did before is visible to the thread that pops the number.
    pub fn push(&self, value: u32) -> Result<bool, u32> {
        // Acquire, here and of slots: a thread that fills a position comes after those that filled the ones before, so that
        // a thread that sees this number sees those as well.
        let mut tail = self.tail.load(Ordering::Acquire);
        loop {
            let word = self.slot(tail).load(Ordering::Acquire);
            match self.look(word, tail) {
                Look::Waits => {
                    let next = tail.wrapping_add(1);
                    // Release: publishes the number, and what the caller did before. Acquire: what a thread did that is going to
                    // sleep, which has marked the slot.
                    if self.exchange(tail, word, word_of(next, value)) {
                        // Release: the position, with the slot. A store, which may take the hint back to an earlier position: the
                        // slots there say how to go on.
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

    /// Takes the oldest number; none only when the ring was empty.
    pub fn pop(&self) -> Option<u32> {
        loop {
            let (head, word) = self.front();
            if !matches!(self.look(word, head), Look::Holds) {
                return None;
            }
            // Hands the slot to the next lap's producer.
            if self.exchange(head, word, word_of(head.wrapping_add(self.lap()), 0)) {
                // As in `push`.
                self.head.store(head.wrapping_add(1), Ordering::Release);
                #[allow(clippy::cast_possible_truncation)] // the lower half
                return Some(word as u32);
            }
        }
    }

    /// Has the push of the next number say that a thread may sleep until then; false where there is a number.
    pub fn await_next(&self) -> bool {
        loop {
            let (head, word) = self.front();
            if !matches!(self.look(word, head), Look::Waits) {
                return false;
            }
            // Also where it is marked: the producer has to see what this thread did before.
            if self.exchange(head, word, word | AWAITED) {
                return true;
            }
        }
    }

    /// The oldest number; for the only consumer of a ring, which then finds it there.
    pub(crate) fn peek(&self) -> Option<u32> {
        let (head, word) = self.front();
        #[allow(clippy::cast_possible_truncation)] // the lower half
        matches!(self.look(word, head), Look::Holds).then_some(word as u32)
    }

    /// Returns whether there is no number.
    pub fn is_empty(&self) -> bool {
        self.peek().is_none()
    }

    /// Numbers in the ring; only a guess while others push and pop.
    pub(crate) fn len(&self) -> usize {
        let head = self.head.load(Ordering::Acquire);
        let count = self.tail.load(Ordering::Acquire).wrapping_sub(head).cast_signed();
        usize::try_from(count).unwrap_or(0).min(self.slots.len())
    }

    /// The position of the oldest number, or of the next where there is none, and its slot's word.
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

    /// Positions from one use of a slot to the next.
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    fn lap(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the state of the slot of `position`, read from the slot's word.
    #[allow(clippy::cast_possible_truncation)] // the upper half
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
        // The position before the lap of the stamp was taken.
        let lap_before = stamp.wrapping_sub(self.lap());
        if ahead % self.lap() == 1 {
            Look::Ahead { put: stamp, take: lap_before }
        } else {
            let next = lap_before.wrapping_add(1);
            Look::Ahead { put: next, take: next }
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("capacity", &self.capacity()).field("len", &self.len()).finish()
    }
}

/// A slot's word: a stamp, and a number.
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
        /// A ring whose positions have come to `position`.
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

    /// Threads that were interrupted before they moved a hint on, and move it back when they go on.
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
