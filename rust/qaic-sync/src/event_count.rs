//! Sleep and wakeup of threads that wait for items in atomics elsewhere.
//!
//! A notification costs one atomic operation while no thread sleeps.

use std::time::Duration;

use crate::atomic::{AtomicU32, Condvar, Mutex, Ordering};

/// An event that threads sleep on.
pub trait Event {
    /// Waits until `try_take` returns an item, until a notification, or for `limit`.
    ///
    /// Blocking: at most `limit`. `try_take` is called before and after sleeping, without any lock; a caller that
    /// still needs an item calls `wait` again. Data that `try_take` reads must be published with release and read
    /// with acquire.
    fn wait<T>(&self, limit: Duration, try_take: impl FnMut() -> Option<T>) -> Option<T>;
}

/// An event count for threads that wait for the same kind of item.
///
/// The kind must be the same, because [`EventCount::notify_one`] wakes an arbitrary thread. If that thread cannot use
/// the item, the other threads stay asleep. Threads that wait for different items, such as their own inferences, need
/// one event count per item; each takes 16 bytes.
///
/// Threads do not spin before they sleep: a device takes longer than any useful spin, and a thread that can do the
/// work itself does so instead of waiting.
///
/// ```
/// use std::time::Duration;
/// use qaic_sync::{Event, EventCount};
///
/// let event = EventCount::default();
/// assert!(!event.notify_one(), "no thread waits");
/// assert_eq!(event.wait(Duration::MAX, || Some(7)), Some(7));
/// ```
#[derive(Debug, Default)]
pub struct EventCount {
    /// Number of threads between registering and leaving. Only read-modify-write operations change the number. They
    /// form one order, in which each operation acquires the releases of all earlier ones.
    listening: AtomicU32,
    /// Number of notifications that found a listening thread. Written while `parking` is locked.
    events: AtomicU32,
    /// Lock that a thread holds from its last read of `events` until it sleeps.
    parking: Mutex<()>,
    changed: Condvar,
}

impl EventCount {
    /// Wakes one waiting thread after an item for one thread was added. Returns true if a thread was waiting. If not,
    /// a thread that begins to wait later finds the item.
    pub fn notify_one(&self) -> bool {
        let is_heard = self.advance();
        if is_heard {
            self.changed.notify_one();
        }
        is_heard
    }

    /// Wakes all waiting threads, after a change that concerns all of them.
    pub fn notify_all(&self) {
        if self.advance() {
            self.changed.notify_all();
        }
    }

    /// Counts a notification if a thread listens, and returns true in that case. A listening thread does not fall
    /// asleep without calling `try_take` again.
    fn advance(&self) -> bool {
        // The exchange does not change the value, but it is ordered with the registrations. A thread that registers
        // later acquires the earlier additions from it and needs no notification; an earlier registration makes the
        // exchange fail. Relaxed on failure: no data of the listener is used.
        if self.listening.compare_exchange(0, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return false;
        }
        let parking = self.parking.lock();
        // Relaxed load: the lock orders the writers. Release store: a thread that sees this event sees the additions
        // before it.
        self.events.store(self.events.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        drop(parking);
        true
    }

    /// Number of waiting threads; an estimate if it changes concurrently.
    pub fn waiting(&self) -> u32 {
        self.listening.load(Ordering::Relaxed)
    }
}

impl Event for EventCount {
    fn wait<T>(&self, limit: Duration, mut try_take: impl FnMut() -> Option<T>) -> Option<T> {
        let _listening = Listening::new(&self.listening);
        // Acquire: additions before a counted notification are visible below. A notification that is not yet counted
        // is detected under the lock.
        let seen = self.events.load(Ordering::Acquire);
        if let Some(taken) = try_take() {
            return Some(taken);
        }
        let parking = self.parking.lock();
        // Relaxed: written under this lock.
        if self.events.load(Ordering::Relaxed) == seen {
            drop(self.changed.wait_at_most(parking, limit));
        } else {
            drop(parking);
        }
        try_take()
    }
}

/// Registration of a listening thread, removed on drop, also after a panic in `try_take`.
struct Listening<'a>(&'a AtomicU32);

impl<'a> Listening<'a> {
    fn new(listening: &'a AtomicU32) -> Self {
        // Acquires the additions before the earlier `advance` calls.
        listening.fetch_add(1, Ordering::Acquire);
        Self(listening)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        // Relaxed: publishes nothing; an unneeded notification is harmless.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Instant;

    const LONG: Duration = Duration::from_mins(1);

    /// Calls `wait` until it returns an item, as callers do.
    fn wait_for<T>(events: &EventCount, mut try_take: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(taken) = events.wait(LONG, &mut try_take) {
                return taken;
            }
        }
    }

    #[test]
    fn wait_with_an_item_does_not_sleep() {
        let events = EventCount::default();
        assert_eq!(events.wait(LONG, || Some(events.waiting())), Some(1));
        assert_eq!(events.waiting(), 0);
    }

    #[test]
    fn wait_without_a_notification_ends_at_its_limit() {
        let events = EventCount::default();
        let mut asked = 0;
        let nothing = events.wait(Duration::from_millis(1), || {
            asked += 1;
            None::<()>
        });
        assert_eq!((nothing, asked, events.waiting()), (None, 2, 0));
    }

    #[test]
    fn wait_notified_during_the_attempt_does_not_sleep() {
        let events = EventCount::default();
        let mut asked = 0;
        let started = Instant::now();
        let taken = events.wait(LONG, || {
            asked += 1;
            if asked == 1 {
                // Simulates a producer between this check and the sleep.
                events.notify_one();
                return None;
            }
            Some(asked)
        });
        assert_eq!(taken, Some(2));
        assert!(started.elapsed() < LONG);
    }

    #[test]
    fn wait_whose_attempt_panics_unregisters() {
        let events = EventCount::default();
        let attempt = AssertUnwindSafe(|| events.wait(LONG, || -> Option<()> { panic!("no") }));
        assert!(catch_unwind(attempt).is_err());
        assert_eq!(events.waiting(), 0);
    }

    #[test]
    fn notify_one_wakes_one_thread_and_notify_all_wakes_all() {
        const THREADS: u32 = 8;
        let (events, items, over) = (EventCount::default(), AtomicU32::new(0), AtomicBool::new(false));
        let taken = AtomicU32::new(0);
        let (at_work, done) = (EventCount::default(), AtomicU32::new(0));
        let try_take = || {
            if over.load(Ordering::Acquire) {
                return Some(false);
            }
            items
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1))
                .ok()
                .map(|_| true)
        };
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while wait_for(&events, try_take) {
                        taken.fetch_add(1, Ordering::Relaxed);
                        done.fetch_add(1, Ordering::Release);
                        at_work.notify_one();
                    }
                });
            }
            for item in 1..=1000 {
                items.fetch_add(1, Ordering::Release);
                events.notify_one();
                if item % 10 == 0 {
                    wait_for(&at_work, || (done.load(Ordering::Acquire) == item).then_some(()));
                }
            }
            over.store(true, Ordering::Release);
            events.notify_all();
        });
        assert_eq!((taken.into_inner(), items.into_inner(), events.waiting()), (1000, 0, 0));
    }
}
