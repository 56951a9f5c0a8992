//! Time that tests can replace, so that waits of a minute take no time.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A clock for reading the time and for waiting.
pub trait Clock: Debug + Send + Sync {
    /// Time since an arbitrary moment in the past.
    fn now(&self) -> Duration;

    /// Waits until `limit` has passed or `listener` has an event. Returns true if there was an event.
    ///
    /// Blocking: until then. A test clock advances by `limit` at once instead.
    fn wait(&self, limit: Duration, listener: &Listener<'_>) -> bool;

    /// Waits for `time`.
    ///
    /// Blocking: for that time.
    fn sleep(&self, time: Duration) {
        self.wait(time, &EventCounter::default().listen());
    }
}

/// Counts events of one kind for threads that wait for the next one. An event costs no lock and no write while no
/// thread listens.
#[derive(Debug, Default)]
pub struct EventCounter {
    listeners: AtomicU32,
    // Number of events that found a listening thread.
    events: Mutex<u64>,
    changed: Condvar,
}

impl EventCounter {
    /// Reports an event. Never blocks.
    pub fn notify(&self) {
        // With the fence of `listen`: either this thread sees the listener, or the listener sees the cause of the
        // event.
        fence(Ordering::SeqCst);
        if self.listeners.load(Ordering::Relaxed) == 0 {
            return;
        }
        *self.lock() += 1;
        self.changed.notify_all();
    }

    /// Listens for events from now on. Code that checks the state afterwards sees the changes of earlier events.
    pub fn listen(&self) -> Listener<'_> {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Listener { counter: self, seen: *self.lock() }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Observes the events of an [`EventCounter`] since its creation.
#[derive(Debug)]
pub struct Listener<'a> {
    counter: &'a EventCounter,
    seen: u64,
}

impl Listener<'_> {
    /// Returns true if there was an event since the subscription began or was renewed.
    pub(crate) fn has_event(&self) -> bool {
        *self.counter.lock() != self.seen
    }

    /// Restarts the observation. Code that checks the state afterwards sees the changes of earlier events.
    pub fn renew(&mut self) {
        self.seen = *self.counter.lock();
    }

    /// Waits for an event; returns true if there was one.
    ///
    /// Blocking: at most `limit` of real time.
    pub fn wait(&self, limit: Duration) -> bool {
        let EventCounter { changed, .. } = self.counter;
        let waited = changed.wait_timeout_while(self.counter.lock(), limit, |events| *events == self.seen);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != self.seen
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.counter.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The clock of the system.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    begin: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { begin: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn wait(&self, limit: Duration, listener: &Listener<'_>) -> bool {
        listener.wait(limit)
    }
}

/// A clock that advances only during waits.
#[derive(Debug, Default)]
pub struct VirtualClock {
    now: Mutex<Duration>,
}

impl VirtualClock {
    /// Advances the clock to `time`, if that is in the future.
    pub fn advance_to(&self, time: Duration) {
        let mut now = self.lock();
        *now = time.max(*now);
    }

    fn lock(&self) -> MutexGuard<'_, Duration> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        *self.lock()
    }

    fn wait(&self, limit: Duration, listener: &Listener<'_>) -> bool {
        let has_event = listener.has_event();
        if !has_event {
            *self.lock() += limit;
        }
        has_event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_hours(1);

    #[test]
    fn virtual_wait_takes_no_time_and_moves_the_clock() {
        let (clock, counter) = (VirtualClock::default(), EventCounter::default());
        let began = Instant::now();
        let mut listener = counter.listen();
        assert!(!clock.wait(LONG, &listener));
        assert_eq!(clock.now(), LONG);
        counter.notify();
        assert!(clock.wait(LONG, &listener));
        assert_eq!(clock.now(), LONG);
        listener.renew();
        assert!(!clock.wait(LONG, &listener));
        clock.advance_to(Duration::from_secs(1));
        assert_eq!(clock.now(), 2 * LONG);
        clock.sleep(LONG);
        assert_eq!(clock.now(), 3 * LONG);
        assert!(began.elapsed() < LONG);
    }

    #[test]
    fn wait_after_an_event_returns_at_once() {
        let (clock, counter) = (SystemClock::default(), EventCounter::default());
        let listener = counter.listen();
        counter.notify();
        assert!(clock.wait(LONG, &listener));
        assert!(!clock.wait(Duration::ZERO, &counter.listen()));
    }

    #[test]
    fn event_without_a_listener_is_not_counted() {
        let counter = EventCounter::default();
        counter.notify();
        assert_eq!(*counter.lock(), 0);
        drop(counter.listen());
        counter.notify();
        assert_eq!(*counter.lock(), 0);
        assert!(!counter.listen().has_event());
    }

    /// Code that listens before it checks the state never misses a change that was published before an event.
    #[test]
    fn listener_that_looks_after_listening_misses_nothing() {
        let (counter, published) = (EventCounter::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 1..=10_000 {
                    published.store(value, Ordering::Relaxed);
                    counter.notify();
                }
            });
            let mut seen = 0;
            while seen < 10_000 {
                let listener = counter.listen();
                let found = published.load(Ordering::Relaxed);
                assert!(found != seen || listener.wait(LONG));
                seen = seen.max(found);
            }
        });
    }
}
