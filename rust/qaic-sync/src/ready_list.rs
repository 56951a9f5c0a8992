//! The requests in one state, by number, and the threads that wait for one of them.

use std::time::Duration;

use crate::{Event, EventCount, FreeList, Ring};

/// A list of numbers that a [`ReadyList`] stores its entries in.
pub trait Numbers {
    /// Adds a number that is not in the list; the list has room for all numbers. Returns true if a thread may sleep
    /// until the list has a number.
    fn put(&self, number: u32) -> bool;

    /// Takes the next number; `None` only if the list was empty.
    fn take(&self) -> Option<u32>;

    /// Requests that the next [`Numbers::put`] reports that a thread may sleep until then. Returns false if the list
    /// has a number. Earlier writes of the caller are visible to the thread of that `put`.
    fn await_next(&self) -> bool;

    /// Returns true if the list is empty.
    fn is_empty(&self) -> bool;
}

impl Numbers for Ring {
    fn put(&self, number: u32) -> bool {
        let pushed = self.push(number);
        debug_assert!(pushed.is_ok(), "no room for {number}");
        pushed.is_ok_and(|is_awaited| is_awaited)
    }

    fn take(&self) -> Option<u32> {
        self.pop()
    }

    fn await_next(&self) -> bool {
        self.await_next()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl Numbers for FreeList {
    fn put(&self, number: u32) -> bool {
        self.push(number)
    }

    fn take(&self) -> Option<u32> {
        self.pop()
    }

    fn await_next(&self) -> bool {
        self.await_next()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// The requests in one state, and the threads that wait for one of them. Entries may be stale.
///
/// The state word of a request (`qaic_sched::RequestState`) records whether the request has an entry. The step that
/// brings a request into the state sets that bit, and pushes an entry only if the bit was clear. Another step claims
/// a popped entry: one exchange clears the bit and, if the request is in the state, moves the request to its next
/// state. A request may leave the state by another step, which leaves a stale entry behind; a claim of a stale entry
/// moves nothing. A request therefore has at most one entry, and the list never overflows. If the request returns
/// while its old entry exists, that entry represents the request, at its old position.
///
/// No request is lost: a bit that is found set belongs to an entry that is not claimed yet, because the claim clears
/// the bit in the same order of exchanges. No request is returned twice, because only the exchange decides.
///
/// **Waking.** A thread that finds the list empty and is about to wait marks the list as awaited, in the word that
/// the next push exchanges. That push clears the mark and wakes one thread. While no thread waits, a push costs only
/// its own exchange. A thread that takes an entry while others wait marks the list again, or wakes the next thread if
/// there is another entry.
///
/// ```
/// let list = qaic_sync::ReadyList::fifo(2);
/// list.push(0);
/// list.push(1);
/// // The entry of request 0 is stale.
/// assert_eq!(list.take(|number| number != 0), Some(1));
/// ```
pub struct ReadyList<L> {
    list: L,
    /// Event for threads that wait for a request in the state. Each thread calls [`ReadyList::take`] before and after
    /// it sleeps.
    pub waiters: EventCount,
}

impl ReadyList<Ring> {
    /// Creates an empty first-in-first-out list of the numbers `0..capacity`.
    ///
    /// # Panics
    ///
    /// If `capacity` is above 2^30.
    pub fn fifo(capacity: u32) -> Self {
        Self { list: Ring::new(capacity), waiters: EventCount::default() }
    }
}

impl ReadyList<FreeList> {
    /// Creates an empty last-in-first-out list of the numbers `0..capacity`.
    ///
    /// # Panics
    ///
    /// If `capacity` is above 2^30.
    pub fn lifo(capacity: u32) -> Self {
        Self { list: FreeList::empty(capacity), waiters: EventCount::default() }
    }
}

impl<L: Numbers> ReadyList<L> {
    /// Adds the entry of a request, after the list's bit was set in its state word, and wakes one waiting thread.
    ///
    /// # Panics
    ///
    /// If `number` is not below the capacity.
    pub fn push(&self, number: u32) {
        // Publishes the caller's earlier writes to the thread that takes the number.
        if self.list.put(number) {
            self.waiters.notify_one();
        }
    }

    /// Takes the next request whose `claim` succeeds. Never blocks.
    ///
    /// `claim` exchanges the state word with acquire, and returns true if the request was in the state. `claim` is
    /// also called for stale entries.
    pub fn take(&self, mut claim: impl FnMut(u32) -> bool) -> Option<u32> {
        let taken = loop {
            match self.list.take() {
                Some(number) if claim(number) => break number,
                Some(_) => {}
                None if self.is_awaited() && !self.list.await_next() => {}
                None => return None,
            }
        };
        // The push of this entry woke at most one thread, and the next push woke none.
        if self.is_awaited() && !self.list.await_next() {
            self.waiters.notify_one();
        }
        Some(taken)
    }

    /// Returns true if a thread waits, including the calling thread. A thread that begins to wait later, and is
    /// missed here, checks the list before it sleeps.
    fn is_awaited(&self) -> bool {
        self.waiters.waiting() > 0
    }

    /// Takes a request as [`ReadyList::take`] does, and waits for one.
    ///
    /// Blocking: at most `limit`; may return early without a request.
    pub fn wait(&self, limit: Duration, mut claim: impl FnMut(u32) -> bool) -> Option<u32> {
        self.waiters.wait(limit, || self.take(&mut claim))
    }

    /// Returns true if the list has no entries, including stale ones; an estimate while other threads change the
    /// list.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

crate::debug_fields!(ReadyList<L>, |list| waiters: list.waiters);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ready_list_serves_in_its_order() {
        let (ordered, latest) = (ReadyList::fifo(3), ReadyList::lifo(3));
        for number in [1, 0, 2] {
            ordered.push(number);
            latest.push(number);
        }
        let any = |_| true;
        assert_eq!([(); 4].map(|()| ordered.take(any)), [Some(1), Some(0), Some(2), None]);
        assert_eq!([(); 4].map(|()| latest.take(any)), [Some(2), Some(0), Some(1), None]);
        assert!(ordered.is_empty() && latest.is_empty());
    }

    #[test]
    fn ready_list_with_an_entry_is_not_empty() {
        let (ordered, latest) = (ReadyList::fifo(2), ReadyList::lifo(2));
        ordered.push(1);
        latest.push(1);
        assert!(!ordered.is_empty() && !latest.is_empty());
    }

    #[test]
    fn wait_for_a_request_returns_it_or_nothing_at_the_limit() {
        let list = ReadyList::fifo(3);
        assert_eq!(list.wait(Duration::ZERO, |_| true), None);
        list.push(2);
        assert_eq!(list.wait(Duration::MAX, |_| true), Some(2));
    }

    #[test]
    fn thread_that_found_nothing_does_not_sleep_through_the_next_push() {
        fn check<L: Numbers>(list: &ReadyList<L>) {
            let mut looks = 0;
            let taken = list.waiters.wait(Duration::MAX, || {
                looks += 1;
                let taken = list.take(|_| true);
                if looks == 1 {
                    // Another thread adds an entry while this one is about to sleep.
                    list.push(1);
                }
                taken
            });
            assert_eq!((taken, looks), (Some(1), 2));
        }
        check(&ReadyList::fifo(3));
        check(&ReadyList::lifo(3));
    }

    /// The notification of an entry may have arrived before the previous one was processed.
    #[test]
    fn thread_that_takes_an_entry_passes_on_that_there_is_another() {
        const LONG: Duration = Duration::from_mins(1);
        let list = ReadyList::fifo(2);
        (0..2).for_each(|number| list.push(number));
        let began = std::time::Instant::now();
        let mut looks = 0;
        let taken = list.waiters.wait(LONG, || {
            looks += 1;
            // Another thread takes the first entry while this one is about to sleep.
            let taken = list.take(|_| true);
            taken.filter(|_| looks > 1)
        });
        assert_eq!((taken, looks), (Some(1), 2));
        assert!(began.elapsed() < LONG);
    }

    #[test]
    fn ready_list_with_stale_entries_takes_them_for_good() {
        let list = ReadyList::lifo(3);
        (0..3).for_each(|number| list.push(number));
        let mut asked = Vec::new();
        let taken = list.take(|number| {
            asked.push(number);
            number == 0
        });
        assert_eq!((taken, asked), (Some(0), vec![2, 1, 0]));
        assert_eq!(list.take(|_| true), None);
        list.push(2);
        assert_eq!(list.take(|_| true), Some(2));
    }
}
