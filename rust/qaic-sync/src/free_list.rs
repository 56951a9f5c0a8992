//! A last-in-first-out list of numbers below a bound, for any number of threads.
//!
//! The nodes are the numbers themselves, in an array that is allocated once, so no node disappears while a thread
//! reads it. A tag next to the top distinguishes two times at which the same number was on top.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Stack of the numbers `0..capacity`. Each number is in the stack at most once.
///
/// ```
/// let list = qaic_sync::FreeList::empty(2);
/// list.push(0);
/// list.push(1);
/// assert_eq!([list.pop(), list.pop(), list.pop()], [Some(1), Some(0), None]);
/// ```
pub struct FreeList {
    /// Tag in the upper half; the top number plus one in the lower half. A lower half of 0 or [`AWAITED`] is the
    /// empty stack.
    ///
    /// Each push increments the tag. A pop reads the top `n` and the number below it, then replaces the one with the
    /// other. If `n` was removed and pushed again in between, with another number below it, a push has changed the
    /// tag, and the exchange fails. The tag wraps after 2^32 pushes. The exchange would be wrong only if a thread
    /// paused between its two steps for exactly a multiple of 2^32 pushes, with `n` on top again.
    top: AtomicU64,
    /// For each number in the stack, the number below it, in the format of `top`. For other numbers, [`OUT`] in debug
    /// builds.
    below: Box<[AtomicU32]>,
}

/// Mark of a number that is not in the stack.
const OUT: u32 = u32::MAX;

/// Mark of an empty stack: a thread may sleep until the stack has a number.
const AWAITED: u64 = 1 << 31;

impl FreeList {
    /// Maximum capacity of a stack.
    pub(crate) const MAX_CAPACITY: u32 = 1 << 30;

    /// Creates an empty stack for the numbers `0..capacity`.
    ///
    /// # Panics
    ///
    /// If `capacity` is above 2^30.
    pub fn empty(capacity: u32) -> Self {
        assert!(
            capacity <= Self::MAX_CAPACITY,
            "a stack of {capacity} numbers; at most {}",
            Self::MAX_CAPACITY
        );
        Self { top: AtomicU64::new(0), below: (0..capacity).map(|_| AtomicU32::new(OUT)).collect() }
    }

    /// Capacity of the stack.
    pub(crate) fn capacity(&self) -> usize {
        self.below.len()
    }

    /// Pushes a number that is not in the stack. Returns true if a thread may sleep until the stack has a number
    /// (`FreeList::await_next`).
    ///
    /// Earlier writes of the caller are visible to the thread that pops the number.
    ///
    /// # Panics
    ///
    /// If `number` is not below the capacity; in debug builds, if it is in the stack.
    pub fn push(&self, number: u32) -> bool {
        let below = &self.below[number as usize];
        // Relaxed: only the owner of a number outside the stack writes here, and the exchange below publishes the
        // write.
        debug_assert_eq!(below.load(Ordering::Relaxed), OUT, "{number} is in the stack already");
        // Relaxed: no data is read through this value.
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            below.store(number_of(top), Ordering::Relaxed);
            let next = (top >> 32).wrapping_add(1) << 32 | u64::from(number + 1);
            // Release: publishes `below` and the caller's earlier writes to each thread that reads this top or a
            // later one; only exchanges change the top, so they continue the release sequence. Acquire: the earlier
            // writes of a thread that has marked the stack and is about to sleep.
            match self.top.compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return top & AWAITED != 0,
                Err(found) => top = found,
            }
        }
    }

    /// Takes the top number; `None` only if the stack was empty.
    pub fn pop(&self) -> Option<u32> {
        // Acquires `below` and the callers' earlier writes from all pushes that led to this top.
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let number = number_of(top).checked_sub(1)?;
            let below = &self.below[number as usize];
            // Relaxed: written before the acquired push. A later value means that the number was popped and pushed
            // again; then the tag makes the exchange fail.
            let next = top & !u64::from(u32::MAX) | u64::from(below.load(Ordering::Relaxed));
            // Acquire on failure: the new top is used like the first one.
            match self.top.compare_exchange_weak(top, next, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => {
                    if cfg!(debug_assertions) {
                        below.store(OUT, Ordering::Relaxed);
                    }
                    return Some(number);
                }
                Err(found) => top = found,
            }
        }
    }

    /// Requests that the push of the next number reports that a thread may sleep until then. Returns false if the
    /// stack has a number.
    pub(crate) fn await_next(&self) -> bool {
        // Relaxed: no data is read through this value. Release: the push of the next number follows the caller's
        // earlier writes.
        let awaited = |top: u64| (number_of(top) == 0).then_some(top | AWAITED);
        self.top.fetch_update(Ordering::Release, Ordering::Relaxed, awaited).is_ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: the answer may be stale as soon as it is returned.
        number_of(self.top.load(Ordering::Relaxed)) == 0
    }
}

crate::debug_fields!(
    FreeList,
    |list| capacity: list.capacity(), top: number_of(list.top.load(Ordering::Relaxed)).checked_sub(1)
);

/// The number, plus one, of a top.
#[allow(clippy::cast_possible_truncation)] // the lower half
fn number_of(top: u64) -> u32 {
    (top & !AWAITED) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    #[test]
    fn free_list_pops_the_last_number_first() {
        let stack = FreeList::empty(3);
        assert_eq!((stack.capacity(), stack.is_empty(), stack.pop()), (3, true, None));
        for number in [1, 0, 2] {
            stack.push(number);
        }
        assert!(!stack.is_empty());
        assert_eq!(stack.pop(), Some(2));
        stack.push(2);
        assert_eq!([stack.pop(), stack.pop(), stack.pop(), stack.pop()], [Some(2), Some(0), Some(1), None]);
        assert!(stack.is_empty());
    }

    #[test]
    fn free_list_that_is_awaited_says_so_at_the_next_push_only() {
        let stack = FreeList::empty(2);
        for _ in 0..3 {
            assert!(stack.await_next() && stack.await_next());
            assert_eq!((stack.is_empty(), stack.pop()), (true, None));
            assert!(stack.push(1) && !stack.await_next() && !stack.push(0));
            assert_eq!([stack.pop(), stack.pop(), stack.pop()], [Some(0), Some(1), None]);
            assert!(!stack.push(0));
            assert_eq!(stack.pop(), Some(0));
        }
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn free_list_with_a_number_beyond_its_capacity_panics() {
        FreeList::empty(2).push(2);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "0 is in the stack already")]
    fn free_list_with_a_number_pushed_twice_panics() {
        let stack = FreeList::empty(2);
        stack.push(0);
        stack.push(0);
    }

    #[test]
    fn free_list_with_a_returned_top_has_another_tag() {
        let stack = FreeList::empty(2);
        stack.push(1);
        stack.push(0);
        let before = stack.top.load(Ordering::Relaxed);
        assert_eq!([stack.pop(), stack.pop()], [Some(0), Some(1)]);
        stack.push(0);
        let after = stack.top.load(Ordering::Relaxed);
        assert_eq!(number_of(before), number_of(after));
        assert_ne!(before, after);
    }

    #[test]
    fn free_list_whose_tag_wraps_keeps_its_numbers() {
        let stack = FreeList::empty(2);
        stack.top.store(u64::from(u32::MAX) << 32, Ordering::Relaxed);
        stack.push(1);
        stack.push(0);
        assert_eq!([stack.pop(), stack.pop(), stack.pop()], [Some(0), Some(1), None]);
    }

    proptest! {
        #[test]
        fn free_list_behaves_like_a_vector(steps in proptest::collection::vec(proptest::option::of(0_u32..9), 0..200)) {
            let stack = FreeList::empty(8);
            let mut model = Vec::new();
            let mut is_awaited = false;
            for step in steps {
                match step {
                    Some(8) => {
                        is_awaited |= model.is_empty();
                        prop_assert_eq!(stack.await_next(), model.is_empty());
                    }
                    Some(number) if !model.contains(&number) => {
                        prop_assert_eq!(stack.push(number), std::mem::take(&mut is_awaited));
                        model.push(number);
                    }
                    Some(_) => {}
                    None => prop_assert_eq!(stack.pop(), model.pop()),
                }
                prop_assert_eq!(stack.is_empty(), model.is_empty());
            }
        }
    }

    /// Threads repeatedly take one or two numbers and return them in the opposite order: each number has one owner.
    #[test]
    fn free_list_among_threads_gives_each_number_one_owner() {
        const NUMBERS: u32 = 4;
        let stack = FreeList::empty(NUMBERS);
        for number in 0..NUMBERS {
            stack.push(number);
        }
        let owned: Vec<AtomicBool> = (0..NUMBERS).map(|_| AtomicBool::new(false)).collect();
        let start = Barrier::new(4);
        let take = || {
            let number = stack.pop()?;
            assert!(!owned[number as usize].swap(true, Ordering::Relaxed), "{number} has two owners");
            Some(number)
        };
        let put = |number: u32| {
            owned[number as usize].store(false, Ordering::Relaxed);
            stack.push(number);
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..20_000 {
                        let (first, second) = (take(), take());
                        first.into_iter().for_each(put);
                        second.into_iter().for_each(put);
                    }
                });
            }
        });
        let mut left: Vec<_> = std::iter::from_fn(|| stack.pop()).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2, 3]);
    }
}
