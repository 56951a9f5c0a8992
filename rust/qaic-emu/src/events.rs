//! Events of emulated cards, for all subscribers.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::card::Card;
use super::options::EmuClock;
use qaic_kmd::{Errno, Event, EventKind, EventSource, Readiness};

/// Maximum number of unread events of a subscriber; a kernel also drops events.
const MAX_PENDING: usize = 65_536;

/// Delivers events to subscribers.
#[derive(Debug, Default)]
pub(crate) struct EventBroadcast {
    channels: Mutex<Vec<Weak<EventChannel>>>,
}

/// Events that a subscriber has not read.
#[derive(Debug, Default)]
struct EventChannel {
    state: Mutex<PendingEvents>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PendingEvents {
    events: VecDeque<Event>,
    /// Number of waits to end.
    wakes: u64,
    /// Number of changes of the schedule.
    schedules: u64,
}

impl EventBroadcast {
    /// Delivers an event. Never blocks.
    pub(crate) fn publish(&self, node: &str, kind: EventKind) {
        self.each(|pending| {
            if pending.events.len() >= MAX_PENDING {
                pending.events.pop_front();
            }
            pending.events.push_back(Event { node: node.to_owned(), kind });
        });
    }

    /// Reports that the schedule has changed; the next change may be earlier.
    pub(crate) fn rescheduled(&self) {
        self.each(|pending| pending.schedules += 1);
    }

    fn each(&self, mut change: impl FnMut(&mut PendingEvents)) {
        self.lock().retain(|channel| {
            let Some(channel) = channel.upgrade() else { return false };
            change(&mut channel.lock());
            channel.changed.notify_all();
            true
        });
    }

    /// Subscribes to later events.
    pub(crate) fn subscribe(&self, cards: &[Arc<Card>], clock: &EmuClock) -> EmuEvents {
        let channel = Arc::default();
        self.lock().push(Arc::downgrade(&channel));
        EmuEvents(Arc::new(Subscription { channel, cards: cards.to_vec(), clock: clock.clone() }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<EventChannel>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventChannel {
    fn lock(&self) -> MutexGuard<'_, PendingEvents> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Events of emulated cards. Time limits are in real time, even if the cards' time is virtual: a subscriber does not
/// advance virtual time.
#[derive(Debug)]
pub(crate) struct EmuEvents(Arc<Subscription>);

#[derive(Debug)]
struct Subscription {
    channel: Arc<EventChannel>,
    cards: Vec<Arc<Card>>,
    clock: EmuClock,
}

impl EventSource for EmuEvents {
    fn next(&mut self, limit: Duration) -> Result<Option<Event>, Errno> {
        let began = Instant::now();
        loop {
            let next_due = self.0.catch_up();
            let mut pending = self.0.channel.lock();
            if let Some(event) = pending.events.pop_front() {
                return Ok(Some(event));
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            drop(self.0.wait_for_change(pending, next_due, Some(left)));
        }
    }

    fn readiness(&self) -> Arc<dyn Readiness> {
        Arc::clone(&self.0) as Arc<dyn Readiness>
    }
}

impl Readiness for Subscription {
    fn wait(&self, limit: Option<Duration>) {
        // Later events may change before they are read again below; that counts as a change.
        let before = self.channel.lock().schedules;
        let next_due = self.catch_up();
        let mut pending = self.channel.lock();
        if pending.events.is_empty() && pending.wakes == 0 && pending.schedules == before {
            pending = self.wait_for_change(pending, next_due, limit);
        }
        pending.wakes = pending.wakes.saturating_sub(1);
    }

    fn wake(&self) {
        self.channel.lock().wakes += 1;
        self.channel.changed.notify_all();
    }
}

impl Subscription {
    /// Applies the changes that are due, which may cause the awaited event. Returns the time until the next change.
    fn catch_up(&self) -> Option<Duration> {
        let dues = self.cards.iter().filter_map(|card| card.catch_up());
        dues.min().map(|due| due.saturating_sub(self.clock.now()))
    }

    fn wait_for_change<'a>(
        &'a self,
        pending: MutexGuard<'a, PendingEvents>,
        next_due: Option<Duration>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, PendingEvents> {
        let limit = match &self.clock {
            EmuClock::Virtual(_) => limit,
            EmuClock::System(_) => limit.into_iter().chain(next_due).min(),
        };
        match limit {
            None => self.channel.changed.wait(pending).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.channel.changed.wait_timeout(pending, limit);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}
