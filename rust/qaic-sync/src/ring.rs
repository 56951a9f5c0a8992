//! A bounded first-in-first-out queue of numbers for any number of producers and consumers.
//!
//! The scheme is Dmitry Vyukov's bounded MPMC queue: positions count up for ever, a slot is used by every `capacity`th
//! position, and a stamp in the slot says for which position it is ready. Here stamp and value share one word, so a
//! consumer reads both at once and no cell of memory is ever shared without synchronization.

use std::fmt;

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU64, Ordering};

/// Bounded queue of `u32`.
///
/// A producer takes a position first and fills its slot a moment later. In between, a consumer that arrives at this slot
/// finds nothing, even when later slots are filled: [`Ring::pop`] says "none" while [`Ring::is_empty`] says "not empty".
/// For sleeping consumers this means: one wake-up per pushed number is not enough, since the one for the later slot may
/// find nothing. So a consumer that got a number and sees that the ring is not empty wakes another one;
/// [`crate::ReadyList`] does. In the same way [`Ring::push`] may find the ring full while a consumer is about to free a
/// slot.
pub struct Ring {
    /// Position of the next number to take. Changed by the consumer that claims it.
    head: CachePadded<AtomicU64>,
    /// Position of the next number to put. Changed by the producer that claims it.
    tail: CachePadded<AtomicU64>,
    /// Stamp in the upper half, number in the lower. The stamp of a slot for position `p` is `p` when the slot waits for
    /// a number, `p + 1` when it has one, `p + capacity` when that was taken: the slot then waits for the next lap.
    ///
    /// Stamps have the lower 32 bits of a position. Nothing confuses two positions with the same stamp, 2^32 apart:
    /// claims compare all 64 bits, and while the head (or the tail) stands at `p`, the slot's stamps are those of `p`.
    slots: Box<[AtomicU64]>,
}

impl Ring {
    /// Numbers a ring can be made for.
    pub const MAX_CAPACITY: u32 = 1 << 30;

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
        let slots = u64::from(capacity.next_power_of_two().max(2));
        Self {
            head: CachePadded::new(AtomicU64::new(0)),
            tail: CachePadded::new(AtomicU64::new(0)),
            slots: (0..slots).map(|position| AtomicU64::new(filled(position, 0))).collect(),
        }
    }

    /// Numbers it has room for.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Adds a number, or gives it back when there is no room.
    ///
    /// What the caller did before is visible to the thread that pops the number.
    pub fn push(&self, value: u32) -> Result<(), u32> {
        // Relaxed: a stale position is found out by the slot's stamp or by the exchange.
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(tail);
            // Acquires the claim of the producer that got there first, so that the next look at `tail` is further on.
            match signed_distance(slot.load(Ordering::Acquire), tail) {
                0 => {
                    // Relaxed: claims a position and publishes nothing; the slot does.
                    match self.tail.compare_exchange_weak(
                        tail,
                        tail + 1,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => {
                            // Publishes the number and what the caller did before to the consumer, the claim to producers.
                            slot.store(filled(tail + 1, value), Ordering::Release);
                            return Ok(());
                        }
                        Err(found) => tail = found,
                    }
                }
                ahead if ahead > 0 => tail = self.tail.load(Ordering::Relaxed),
                // The number of a lap ago is still there, or its consumer has not freed the slot yet.
                _ => {
                    let now = self.tail.load(Ordering::Relaxed);
                    if now == tail {
                        return Err(value);
                    }
                    tail = now;
                }
            }
        }
    }

    /// Takes the oldest number, if its producer has finished.
    pub fn pop(&self) -> Option<u32> {
        // Relaxed: as in `push`.
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(head);
            // Acquires what the producer published with the number, or the claim of the consumer that got there first.
            let word = slot.load(Ordering::Acquire);
            match signed_distance(word, head + 1) {
                0 => {
                    // Relaxed: claims the number; all that is needed was read with it.
                    match self.head.compare_exchange_weak(
                        head,
                        head + 1,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => {
                            // Hands the slot to the next lap's producer. Publishes the claim to consumers.
                            slot.store(filled(head + self.slots.len() as u64, 0), Ordering::Release);
                            #[allow(clippy::cast_possible_truncation)] // the lower half
                            return Some(word as u32);
                        }
                        Err(found) => head = found,
                    }
                }
                ahead if ahead > 0 => head = self.head.load(Ordering::Relaxed),
                _ => return None,
            }
        }
    }

    /// The oldest number, if its producer has finished; for the only consumer of a ring, which then finds it there.
    pub fn peek(&self) -> Option<u32> {
        // Relaxed: only the calling thread takes numbers.
        let head = self.head.load(Ordering::Relaxed);
        // Acquires what the producer published with the number.
        let word = self.slot(head).load(Ordering::Acquire);
        #[allow(clippy::cast_possible_truncation)] // the lower half
        (signed_distance(word, head + 1) == 0).then_some(word as u32)
    }

    /// Whether no position is taken by a number. A number whose producer has not finished counts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers in the ring; only a guess while others push and pop.
    pub fn len(&self) -> usize {
        // Relaxed: two counters cannot be read at one instant anyway. Head first, so that the difference errs upwards.
        let head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        usize::try_from(tail.saturating_sub(head)).unwrap_or(usize::MAX).min(self.slots.len())
    }

    fn slot(&self, position: u64) -> &AtomicU64 {
        // The length is a power of two, and the mask keeps the index below it.
        #[allow(clippy::cast_possible_truncation)]
        &self.slots[position as usize & (self.slots.len() - 1)]
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("capacity", &self.capacity()).field("len", &self.len()).finish()
    }
}

/// A slot's word: the stamp of `position` and a number.
fn filled(position: u64, value: u32) -> u64 {
    position << 32 | u64::from(value)
}

/// How far a slot's stamp is ahead of `position`.
#[allow(clippy::cast_possible_truncation)] // stamps are the lower half of positions
fn signed_distance(word: u64, position: u64) -> i32 {
    ((word >> 32) as u32).wrapping_sub(position as u32).cast_signed()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    impl Ring {
        /// A ring whose positions have come to `position`.
        fn at(capacity: u32, position: u64) -> Self {
            let ring = Self::new(capacity);
            let slots = ring.slots.len() as u64;
            for next in position..position + slots {
                ring.slot(next).store(filled(next, 0), Ordering::Relaxed);
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
            assert_eq!(ring.push(value), Ok(()));
        }
        assert_eq!(ring.push(5), Err(5));
        assert_eq!((ring.len(), ring.is_empty()), (4, false));
        assert_eq!([ring.pop(), ring.pop(), ring.pop()], [Some(7), Some(0), Some(u32::MAX)]);
        assert_eq!(ring.push(6), Ok(()));
        assert_eq!([ring.pop(), ring.pop(), ring.pop()], [Some(7), Some(6), None]);
    }

    #[test]
    fn ring_of_any_small_capacity_has_two_slots() {
        for capacity in [0, 1, 2] {
            let ring = Ring::new(capacity);
            assert_eq!([ring.push(1), ring.push(2), ring.push(3)], [Ok(()), Ok(()), Err(3)]);
        }
    }

    #[test]
    #[should_panic(expected = "at most 1073741824")]
    fn ring_with_a_capacity_beyond_its_stamps_panics() {
        Ring::new(Ring::MAX_CAPACITY + 1);
    }

    #[test]
    fn ring_with_a_claimed_slot_hides_later_entries() {
        let ring = Ring::new(4);
        // A producer that was interrupted between its two steps.
        ring.tail.store(1, Ordering::Relaxed);
        ring.push(8).unwrap();
        assert_eq!((ring.pop(), ring.is_empty(), ring.len()), (None, false, 2));
        ring.slot(0).store(filled(1, 9), Ordering::Relaxed);
        assert_eq!([ring.pop(), ring.pop(), ring.pop()], [Some(9), Some(8), None]);
    }

    #[test]
    fn ring_whose_stamps_wrap_keeps_its_order() {
        let ring = Ring::at(4, u64::from(u32::MAX) - 5);
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
            start in prop_oneof![Just(0_u64), (u64::from(u32::MAX) - 20)..(u64::from(u32::MAX) + 2)],
            steps in proptest::collection::vec(proptest::option::of(any::<u32>()), 0..200),
        ) {
            let ring = Ring::at(capacity, start);
            let mut model = VecDeque::new();
            for step in steps {
                match step {
                    Some(value) if model.len() < ring.capacity() => {
                        prop_assert_eq!(ring.push(value), Ok(()));
                        model.push_back(value);
                    }
                    Some(value) => prop_assert_eq!(ring.push(value), Err(value)),
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
