//! Who is in a given state, told without ever removing anybody from the middle.

use std::fmt;
use std::time::Duration;

use super::{IndexStack, Ring, Waiters};
use crate::sync::{AtomicBool, Ordering, yield_now};

/// A list of numbers that a [`Roster`] is kept in.
pub trait Numbers {
    /// Whether [`Numbers::take`] may find nothing while there is something behind an entry that is not finished.
    const MAY_HIDE: bool;

    /// Adds a number that is not in the list; there is room for all.
    fn put(&self, number: u32);

    /// Takes the next number.
    fn take(&self) -> Option<u32>;

    /// Whether there is none. Hidden ones count.
    fn is_empty(&self) -> bool;
}

impl Numbers for Ring {
    const MAY_HIDE: bool = true;

    fn put(&self, number: u32) {
        // There is room for all numbers. When the ring is full nevertheless, a consumer stands between claiming a number
        // and freeing its slot.
        while self.push(number).is_err() {
            yield_now();
        }
    }

    fn take(&self) -> Option<u32> {
        self.pop()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Numbers for IndexStack {
    const MAY_HIDE: bool = false;

    fn put(&self, number: u32) {
        self.push(number);
    }

    fn take(&self) -> Option<u32> {
        self.pop()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// The handles in one state, whose entries may be stale, and the threads that wait for one.
///
/// A handle's state is an atomic of its owner. Whoever brings a handle into the state sets that atomic first and then
/// calls [`Roster::enter`]. Whoever wants any handle in the state calls [`Roster::take`] with a closure that claims one by
/// exchanging the state for the next one. Others may claim a handle by its number, with the same exchange and without the
/// roster; they leave an entry behind for which the closure will say no. A handle has one entry at most, however often it
/// came and went meanwhile, so nothing ever runs full; and when it comes back while its old entry is still there, that
/// entry stands for it, at its old place.
///
/// ```text
/// enter:  state = DONE;                 popper:  n = next entry;
///         if !listed.swap(true):                 listed.swap(false);
///             add an entry                       exchange state DONE -> COLLECTED, else next
/// ```
///
/// Nothing is lost: an `enter` that finds `listed` set comes, in the order of `listed`, before the swap of the popper that
/// has or will have the entry, so this popper sees the state. Nothing comes twice: only the exchange decides.
pub struct Roster<L> {
    list: L,
    /// Whether a number has an entry, or will have one at once.
    listed: Box<[AtomicBool]>,
    waiters: Waiters,
}

impl Roster<Ring> {
    /// An empty roster of the numbers `0..capacity`, first come, first served.
    ///
    /// # Panics
    ///
    /// If `capacity` is above half of [`Ring::MAX_CAPACITY`].
    pub fn in_order(capacity: u32) -> Self {
        // Twice the room: a consumer that is slow to free a slot is a whole lap away.
        Self::over(Ring::new(capacity.saturating_mul(2)), capacity)
    }
}

impl Roster<IndexStack> {
    /// An empty roster of the numbers `0..capacity`, last come, first served.
    ///
    /// # Panics
    ///
    /// If `capacity` is above [`IndexStack::MAX_CAPACITY`].
    pub fn latest_first(capacity: u32) -> Self {
        Self::over(IndexStack::new_empty(capacity), capacity)
    }
}

impl<L: Numbers> Roster<L> {
    fn over(list: L, capacity: u32) -> Self {
        let listed = (0..capacity).map(|_| AtomicBool::new(false)).collect();
        Self { list, listed, waiters: Waiters::new() }
    }

    /// Tells that handle `number` has come into the state, and wakes one thread that waits for a handle.
    ///
    /// # Panics
    ///
    /// If `number` is not below the capacity.
    pub fn enter(&self, number: u32) {
        // Release: publishes the state to the popper's swap, if that takes the entry which is there already. Acquire:
        // from the popper that took the last entry, so that adding one comes after it.
        if !self.listed[number as usize].swap(true, Ordering::AcqRel) {
            // Publishes the state to the popper.
            self.list.put(number);
            self.waiters.wake_one();
        }
        // Else whoever set `listed` wakes somebody once the entry is there, or the popper is about to try.
    }

    /// Takes the next handle that `claim` says yes to. Never blocks.
    ///
    /// `claim` exchanges the state, with acquire, and says whether it could; it is called for stale entries too.
    pub fn take(&self, claim: impl FnMut(u32) -> bool) -> Option<u32> {
        let taken = self.pop(claim)?;
        if L::MAY_HIDE && !self.list.is_empty() {
            // An entry may be behind this one whose own wake-up found it hidden. It is seen here if that wake-up is
            // over: the thread that now has this entry slept after it. If it is to come, it will do.
            self.waiters.wake_one();
        }
        Some(taken)
    }

    fn pop(&self, mut claim: impl FnMut(u32) -> bool) -> Option<u32> {
        loop {
            let number = self.list.take()?;
            // Acquire: from an `enter` that relied on this entry, its state. Release: to the next that adds one.
            self.listed[number as usize].swap(false, Ordering::AcqRel);
            if claim(number) {
                return Some(number);
            }
        }
    }

    /// As [`Roster::take`], waiting for a handle.
    ///
    /// Blocking: at most `limit`; may come back early with nothing.
    pub fn wait(&self, limit: Duration, mut claim: impl FnMut(u32) -> bool) -> Option<u32> {
        self.waiters.wait(limit, || self.take(&mut claim))
    }

    /// The threads in [`Roster::wait`].
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Whether there is no entry, stale ones included; only a guess among threads.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl<L: fmt::Debug> fmt::Debug for Roster<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roster")
            .field("list", &self.list)
            .field("waiters", &self.waiters)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::AtomicU32;
    use std::thread;

    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn serves_in_its_order() {
        let (ordered, latest) = (Roster::in_order(3), Roster::latest_first(3));
        for number in [1, 0, 2] {
            ordered.enter(number);
            latest.enter(number);
        }
        let any = |_| true;
        assert_eq!([(); 4].map(|()| ordered.take(any)), [Some(1), Some(0), Some(2), None]);
        assert_eq!([(); 4].map(|()| latest.take(any)), [Some(2), Some(0), Some(1), None]);
        assert!(ordered.is_empty() && latest.is_empty());
    }

    #[test]
    fn a_number_has_one_entry_however_often_it_enters() {
        let roster = Roster::in_order(1);
        for _ in 0..10 {
            roster.enter(0);
        }
        assert_eq!([roster.take(|_| true), roster.take(|_| true)], [Some(0), None]);
        roster.enter(0);
        assert_eq!(roster.take(|_| true), Some(0));
    }

    #[test]
    fn skips_stale_entries_and_takes_them_for_good() {
        let roster = Roster::latest_first(3);
        (0..3).for_each(|number| roster.enter(number));
        let mut asked = Vec::new();
        let taken = roster.take(|number| {
            asked.push(number);
            number == 0
        });
        assert_eq!((taken, asked), (Some(0), vec![2, 1, 0]));
        assert_eq!(roster.take(|_| true), None);
        roster.enter(2);
        assert_eq!(roster.take(|_| true), Some(2));
    }

    /// What an inference set does: handles go round between two rosters, some are collected by number.
    #[test]
    fn every_completion_is_collected_once_among_threads() {
        const HANDLES: u32 = 4;
        const ROUNDS: u32 = 20_000;
        const FREE: u32 = 0;
        const TAKEN: u32 = 1;
        const DONE: u32 = 2;
        let states: Vec<AtomicU32> = (0..HANDLES).map(|_| AtomicU32::new(FREE)).collect();
        let (free, done) = (Roster::latest_first(HANDLES), Roster::in_order(HANDLES));
        (0..HANDLES).for_each(|number| free.enter(number));
        let exchange = |number: u32, from, to| {
            states[number as usize].compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let (begun, collected) = (AtomicU32::new(0), AtomicU32::new(0));
        let put_back = |number: u32| {
            collected.fetch_add(1, Ordering::Relaxed);
            states[number as usize].store(FREE, Ordering::Release);
            free.enter(number);
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while begun.fetch_add(1, Ordering::Relaxed) < ROUNDS {
                        let number = loop {
                            if let Some(number) = free.wait(LONG, |number| exchange(number, FREE, TAKEN)) {
                                break number;
                            }
                        };
                        states[number as usize].store(DONE, Ordering::Release);
                        done.enter(number);
                        // Collected by number, leaving an entry, every now and then.
                        if number == 0 && exchange(0, DONE, TAKEN) {
                            put_back(0);
                        }
                    }
                    done.waiters().wake_all();
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while collected.load(Ordering::Relaxed) < ROUNDS {
                        let limit = Duration::from_millis(10);
                        if let Some(number) = done.wait(limit, |number| exchange(number, DONE, TAKEN)) {
                            put_back(number);
                        }
                    }
                });
            }
        });
        assert_eq!(collected.into_inner(), ROUNDS);
        assert_eq!(done.take(|number| exchange(number, DONE, TAKEN)), None);
    }
}
