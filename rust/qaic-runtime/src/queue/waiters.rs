//! Threads that sleep until there is something for them, where "something" lives in atomics elsewhere.
//!
//! Waking costs one operation on an atomic while nobody waits, so whoever adds something always calls it.

use std::time::Duration;

use crate::sync::{AtomicU32, Condvar, Mutex, Ordering};

/// Threads that wait for the same kind of thing.
///
/// "The same" matters: [`Waiters::wake_one`] wakes any one of them, and one that cannot use what was added leaves the
/// others asleep. Where threads wait for different things (each for its own inference, say), each thing has its own
/// `Waiters`, 16 bytes without anything behind them.
///
/// There is no spinning before sleep: what is waited for here takes a device longer than any spin worth its heat, and a
/// thread that could do the work itself does so instead of waiting.
#[derive(Debug, Default)]
pub struct Waiters {
    /// Threads between registering and leaving. Only ever changed by read-modify-write operations, so all of them form
    /// one order, and a later one acquires what an earlier one released.
    waiting: AtomicU32,
    /// Wake-ups that found somebody waiting. Written with `parking` locked.
    wakes: AtomicU32,
    /// Held from the last look at `wakes` until the thread sleeps.
    parking: Mutex<()>,
    changed: Condvar,
}

impl Waiters {
    /// Nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes one waiting thread, after something for one thread was added, and says whether there was any. If not,
    /// whoever begins to wait later finds what was added.
    pub fn wake_one(&self) -> bool {
        let awaited = self.announce();
        if awaited {
            self.changed.notify_one();
        }
        awaited
    }

    /// Wakes all waiting threads, after something changed that concerns all.
    pub fn wake_all(&self) {
        if self.announce() {
            self.changed.notify_all();
        }
    }

    /// Whether there is somebody to notify, who cannot now fall asleep without having looked again.
    fn announce(&self) -> bool {
        // An exchange of nothing for nothing. It is in one order with the waiters' registrations: a thread that registers
        // later acquires from it what was added before, and needs no waking; one that registered earlier makes it fail.
        // Relaxed where it fails: nothing of the waiter's is used.
        if self.waiting.compare_exchange(0, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return false;
        }
        let parking = self.parking.lock();
        // Relaxed load: the lock orders the writers. Release store: who sees this wake-up sees what was added.
        self.wakes.store(self.wakes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        drop(parking);
        true
    }

    /// Waits until `try_take` has something, until somebody wakes this thread for nothing, or for `limit`.
    ///
    /// Blocking: at most `limit`. `try_take` is asked before and after sleeping, with no lock held; a caller that still
    /// wants something comes again. What it looks at must be published with release and read with acquire.
    pub fn wait<T>(&self, limit: Duration, mut try_take: impl FnMut() -> Option<T>) -> Option<T> {
        let _registered = Registered::new(&self.waiting);
        // Acquire: whose wake-up is counted in here, its addition is seen below. One that is not counted yet is noticed
        // under the lock.
        let seen = self.wakes.load(Ordering::Acquire);
        if let Some(taken) = try_take() {
            return Some(taken);
        }
        let parking = self.parking.lock();
        // Relaxed: written under this lock.
        if self.wakes.load(Ordering::Relaxed) == seen {
            drop(self.changed.wait_at_most(parking, limit));
        } else {
            drop(parking);
        }
        try_take()
    }

    /// Threads that wait; only a guess while they come and go.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A thread's place among those waiting, given up even when what it tries panics.
struct Registered<'a>(&'a AtomicU32);

impl<'a> Registered<'a> {
    fn new(waiting: &'a AtomicU32) -> Self {
        // Acquires from the `announce` calls that came before what was added before them.
        waiting.fetch_add(1, Ordering::Acquire);
        Self(waiting)
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // Relaxed: publishes nothing; a wake-up that comes too early for it notifies in vain.
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

    /// `wait` until it has something, as callers do.
    fn wait_for<T>(waiters: &Waiters, mut try_take: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(taken) = waiters.wait(LONG, &mut try_take) {
                return taken;
            }
        }
    }

    #[test]
    fn does_not_sleep_over_what_is_there() {
        let waiters = Waiters::new();
        assert_eq!(waiters.wait(LONG, || Some(waiters.waiting())), Some(1));
        assert_eq!(waiters.waiting(), 0);
    }

    #[test]
    fn waits_no_longer_than_its_limit() {
        let waiters = Waiters::new();
        let mut asked = 0;
        let nothing = waiters.wait(Duration::from_millis(1), || {
            asked += 1;
            None::<()>
        });
        assert_eq!((nothing, asked, waiters.waiting()), (None, 2, 0));
    }

    #[test]
    fn does_not_sleep_when_woken_while_it_looked() {
        let waiters = Waiters::new();
        let mut asked = 0;
        let started = Instant::now();
        let taken = waiters.wait(LONG, || {
            asked += 1;
            if asked == 1 {
                // What a producer does between this look and the sleep.
                waiters.wake_one();
                return None;
            }
            Some(asked)
        });
        assert_eq!(taken, Some(2));
        assert!(started.elapsed() < LONG);
    }

    #[test]
    fn leaves_when_the_attempt_panics() {
        let waiters = Waiters::new();
        let attempt = AssertUnwindSafe(|| waiters.wait(LONG, || -> Option<()> { panic!("no") }));
        assert!(catch_unwind(attempt).is_err());
        assert_eq!(waiters.waiting(), 0);
    }

    #[test]
    fn one_item_wakes_one_thread_and_a_change_for_all_wakes_all() {
        const THREADS: u32 = 8;
        let (waiters, items, over) = (Waiters::new(), AtomicU32::new(0), AtomicBool::new(false));
        let taken = AtomicU32::new(0);
        let (at_work, done) = (Waiters::new(), AtomicU32::new(0));
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
                    while wait_for(&waiters, try_take) {
                        taken.fetch_add(1, Ordering::Relaxed);
                        done.fetch_add(1, Ordering::Release);
                        at_work.wake_one();
                    }
                });
            }
            for item in 1..=1000 {
                items.fetch_add(1, Ordering::Release);
                waiters.wake_one();
                if item % 10 == 0 {
                    wait_for(&at_work, || (done.load(Ordering::Acquire) == item).then_some(()));
                }
            }
            over.store(true, Ordering::Release);
            waiters.wake_all();
        });
        assert_eq!((taken.into_inner(), items.into_inner(), waiters.waiting()), (1000, 0, 0));
    }
}
