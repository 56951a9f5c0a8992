//! What happens to emulated cards, for everybody who listens.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::card::Card;
use super::options::EmuClock;
use crate::Errno;
use crate::kmd::{Bell, Event, EventKind, EventSource};

/// Events that a listener may leave unread; a kernel forgets some, too.
const MAX_UNREAD: usize = 65_536;

/// Passes events on to those who listen.
#[derive(Debug, Default)]
pub(crate) struct EventHub {
    listeners: Mutex<Vec<Weak<Mailbox>>>,
}

#[derive(Debug, Default)]
struct Mailbox {
    unread: Mutex<VecDeque<Event>>,
    arrived: Condvar,
}

impl EventHub {
    /// Tells everybody. Never blocks.
    pub(crate) fn publish(&self, node: &str, kind: EventKind) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| {
            let Some(mailbox) = listener.upgrade() else { return false };
            let mut unread = mailbox.unread.lock().unwrap_or_else(PoisonError::into_inner);
            if unread.len() >= MAX_UNREAD {
                unread.pop_front();
            }
            unread.push_back(Event { node: node.to_owned(), kind });
            mailbox.arrived.notify_all();
            true
        });
    }

    /// Listens from now on.
    pub(crate) fn listen(&self, cards: &[Arc<Card>], clock: &EmuClock) -> EmuEvents {
        let mailbox = Arc::default();
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.push(Arc::downgrade(&mailbox));
        EmuEvents(Arc::new(Ear { mailbox, cards: cards.to_vec(), clock: clock.clone() }))
    }
}

/// Events of emulated cards. Its time limits are of real time, even where the cards' time is virtual: whoever listens does
/// not make time go by.
#[derive(Debug)]
pub(crate) struct EmuEvents(Arc<Ear>);

#[derive(Debug)]
struct Ear {
    mailbox: Arc<Mailbox>,
    cards: Vec<Arc<Card>>,
    clock: EmuClock,
}

impl EventSource for EmuEvents {
    fn next(&mut self, limit: Duration) -> Result<Option<Event>, Errno> {
        let began = Instant::now();
        loop {
            let (mut unread, next_due) = self.0.unread();
            if let Some(event) = unread.pop_front() {
                return Ok(Some(event));
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.0.nap(unread, next_due, left);
        }
    }

    fn bell(&self) -> Option<Arc<dyn Bell>> {
        Some(Arc::clone(&self.0) as Arc<dyn Bell>)
    }
}

impl Bell for Ear {
    fn wait(&self, limit: Duration) {
        let (unread, next_due) = self.unread();
        if unread.is_empty() {
            self.nap(unread, next_due, limit);
        }
    }
}

impl Ear {
    /// What nobody has fetched yet, and how soon something more is going to happen.
    fn unread(&self) -> (MutexGuard<'_, VecDeque<Event>>, Option<Duration>) {
        // What is due happens when somebody looks, and may be what is waited for.
        let dues = self.cards.iter().filter_map(|card| card.catch_up());
        let next_due = dues.min().map(|due| due.saturating_sub(self.clock.now()));
        (self.mailbox.unread.lock().unwrap_or_else(PoisonError::into_inner), next_due)
    }

    fn nap(&self, unread: MutexGuard<'_, VecDeque<Event>>, next_due: Option<Duration>, limit: Duration) {
        let nap = match &self.clock {
            EmuClock::Virtual(_) => limit,
            EmuClock::System(_) => next_due.map_or(limit, |due| due.min(limit)),
        };
        drop(self.mailbox.arrived.wait_timeout(unread, nap).unwrap_or_else(PoisonError::into_inner));
    }
}
