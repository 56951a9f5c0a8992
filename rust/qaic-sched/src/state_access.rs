//! Reads and writes of retained state, in the order of the queue.
//!
//! A thread that accesses the state of an activation waits in the run queue like an inference. At its turn, the
//! thread that serves the queue hands the turn over. A thread that stops waiting leaves its ticket in the queue.

use qaic_sync::atomic::{AtomicU32, Ordering};
use qaic_sync::{EventCount, FreeList, ReadyList};

/// Number of threads that can wait for a state at a time; further threads wait for a ticket.
pub(crate) const TICKETS: u32 = if cfg!(loom) { 1 } else { 64 };

const FREE: u32 = 0;
const WAITING: u32 = 1;
const GRANTED: u32 = 2;
const ABANDONED: u32 = 3;

/// Tickets of the threads that wait in the queues.
#[derive(Debug)]
pub(crate) struct StateAccess {
    tickets: Box<[Ticket]>,
    free: ReadyList<FreeList>,
}

#[derive(Debug)]
struct Ticket {
    state: AtomicU32,
    granted: EventCount,
}

impl StateAccess {
    /// Creates tickets that are all free.
    pub(crate) fn new() -> Self {
        let free = ReadyList::lifo(TICKETS);
        (0..TICKETS).rev().for_each(|ticket| free.push(ticket));
        let ticket = |_| Ticket { state: AtomicU32::new(FREE), granted: EventCount::default() };
        Self { tickets: (0..TICKETS).map(ticket).collect(), free }
    }

    /// Takes a ticket, if one is free.
    pub(crate) fn take(&self) -> Option<u32> {
        let ticket = self.free.take(|_| true)?;
        self.state(ticket).store(WAITING, Ordering::Release);
        Some(ticket)
    }

    /// Event for threads that wait for a ticket.
    pub(crate) fn freed(&self) -> &EventCount {
        &self.free.waiters
    }

    /// Event for the thread with a ticket that waits for its turn.
    pub(crate) fn granted(&self, ticket: u32) -> &EventCount {
        &self.tickets[ticket as usize].granted
    }

    /// Returns true if the ticket's thread has the turn.
    pub(crate) fn is_granted(&self, ticket: u32) -> bool {
        self.state(ticket).load(Ordering::Acquire) == GRANTED
    }

    /// Passes the turn to the ticket's thread. Returns false if that thread has stopped waiting; the caller then
    /// keeps the turn.
    pub(crate) fn grant(&self, ticket: u32) -> bool {
        // Release: the thread sees the writes of earlier turns.
        let granted = self
            .state(ticket)
            .compare_exchange(WAITING, GRANTED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if granted {
            self.granted(ticket).notify_all();
        } else {
            self.give_back(ticket);
        }
        granted
    }

    /// Leaves a ticket in the queue. Returns false if the turn was granted in the meantime; the calling thread then
    /// has the turn.
    pub(crate) fn abandon(&self, ticket: u32) -> bool {
        self.state(ticket).compare_exchange(WAITING, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Frees a ticket that is in no queue.
    pub(crate) fn give_back(&self, ticket: u32) {
        self.state(ticket).store(FREE, Ordering::Release);
        self.free.push(ticket);
    }

    fn state(&self, ticket: u32) -> &AtomicU32 {
        &self.tickets[ticket as usize].state
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::ptr;
    use std::time::{Duration, Instant};

    use qaic_sync::Event;

    use super::*;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn ticket_belongs_to_one_thread_at_a_time() {
        let access = StateAccess::new();
        let taken: Vec<_> = iter::from_fn(|| access.take()).collect();
        assert_eq!(taken, (0..TICKETS).collect::<Vec<_>>());
        access.give_back(7);
        assert_eq!((access.take(), access.take()), (Some(7), None));
    }

    #[test]
    fn turn_is_granted_to_a_thread_that_still_wants_it() {
        let access = StateAccess::new();
        let [wanted, unwanted] = [(); 2].map(|()| access.take().unwrap());
        assert!(!access.is_granted(wanted) && !access.is_granted(unwanted));
        assert!(access.grant(wanted));
        assert!(access.is_granted(wanted) && !access.is_granted(unwanted));
        // The access has the turn, so it cannot abandon the ticket.
        assert!(!access.abandon(wanted));
        assert!(access.abandon(unwanted));
        assert!(!access.abandon(unwanted));
        // The abandoned ticket becomes free with its turn.
        assert!(!access.grant(unwanted));
        assert_eq!(access.take(), Some(unwanted));
        assert!(!access.is_granted(unwanted));
        access.give_back(wanted);
        assert_eq!(access.take(), Some(wanted));
        assert!(!access.is_granted(wanted));
    }

    #[test]
    fn each_ticket_has_a_place_to_wait_of_its_own() {
        let access = StateAccess::new();
        let places: Vec<_> = (0..TICKETS).map(|ticket| ptr::from_ref(access.granted(ticket))).collect();
        for (ticket, place) in (0..).zip(&places) {
            assert_eq!(ptr::from_ref(access.granted(ticket)), *place);
            assert_eq!(places.iter().filter(|other| *other == place).count(), 1);
        }
        assert!(ptr::eq(access.freed(), access.freed()));
    }

    /// The turn is granted, and a ticket becomes free, between a thread's check and its sleep.
    #[test]
    fn thread_that_is_about_to_sleep_hears_of_its_turn_and_of_a_free_ticket() {
        let access = StateAccess::new();
        let taken: Vec<_> = iter::from_fn(|| access.take()).collect();
        let began = Instant::now();
        let mut is_first = true;
        let granted = access.granted(taken[3]).wait(LONG, || {
            if std::mem::take(&mut is_first) {
                assert!(access.grant(taken[3]));
                return None;
            }
            access.is_granted(taken[3]).then_some(())
        });
        let mut is_first = true;
        let freed = access.freed().wait(LONG, || {
            let ticket = access.take();
            if std::mem::take(&mut is_first) {
                assert_eq!(ticket, None);
                access.give_back(taken[5]);
            }
            ticket
        });
        assert_eq!((granted, freed), (Some(()), Some(taken[5])));
        assert!(began.elapsed() < LONG);
    }
}
