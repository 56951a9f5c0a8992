//! How often a waiting thread looks up from its sleep.
//!
//! A wait asks its caller now and then whether to give up, and ends what takes too long. Thousands of threads that all
//! woke twenty times a second for that would take a CPU from those that work. So a thread that nobody ever interrupts
//! says so once, and sleeps longer: Python delivers signals to the main thread only.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use crate::device::LoadToken;
use crate::fork::Origin;

/// How often whoever may be interrupted, or enforces time limits, looks up.
pub const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// How often an inference that has to end is asked to, as a device may overlook it.
pub const CANCEL_PERIOD: Duration = Duration::from_millis(1);

/// How often a wait for a card looks whether its inference was cancelled.
pub const WAIT_SLICE_MS: u32 = 200;

/// Of others: a guard, since what they wait for wakes them.
const LONG: Duration = Duration::from_secs(1);

/// A time limit is enforced this much too late at most, as a part of it, or after [`LOOK_PERIOD`].
const LATENESS: u32 = 8;

thread_local! {
    // In a forked process the thread that forked is the main one, whatever it was before.
    static NEVER: Cell<Option<Origin>> = const { Cell::new(None) };
    static CALL: RefCell<Option<Arc<LoadToken>>> = const { RefCell::new(None) };
}

/// Runs work of the calling thread that another thread may end: with the token cancelled, whatever can end early does.
///
/// For what is far below the caller and is handed no token: the control messages of a card, and the cores of emulated
/// cards, which make their programs on the thread that activates them.
pub fn within<T>(token: &Arc<LoadToken>, work: impl FnOnce() -> T) -> T {
    let _restored = Restored(CALL.replace(Some(Arc::clone(token))));
    work()
}

/// Also after a panic, which threads of pools survive.
struct Restored(Option<Arc<LoadToken>>);

impl Drop for Restored {
    fn drop(&mut self) {
        CALL.set(self.0.take());
    }
}

/// Whether the work that the calling thread is in was told to end.
pub fn was_interrupted() -> bool {
    CALL.with_borrow(|token| token.as_ref().is_some_and(|token| token.was_cancelled()))
}

/// What ends the work that the calling thread is in; a token that nobody cancels where nothing does.
pub(crate) fn token() -> Arc<LoadToken> {
    CALL.with_borrow(Clone::clone).unwrap_or_default()
}

/// Says that the calling thread's waits are never interrupted.
pub fn never_on_this_thread() {
    NEVER.set(Some(Origin::here()));
}

/// How long a wait of the calling thread may last before it looks up; `limit` is the time limit of what it waits for.
pub(crate) fn look_period(limit: Option<Duration>) -> Duration {
    if NEVER.get().is_none_or(|origin| !origin.is_here()) {
        return LOOK_PERIOD;
    }
    limit.map_or(LONG, |limit| (limit / LATENESS).clamp(LOOK_PERIOD, LONG))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Canceller;
    use std::panic::catch_unwind;
    use std::thread;

    #[test]
    fn work_is_told_to_end_until_it_has_ended() {
        let (outer, inner) = (LoadToken::new(), LoadToken::new());
        assert!(!was_interrupted());
        within(&outer, || {
            assert!(!was_interrupted());
            token().cancel();
            assert!(was_interrupted());
            assert!(!within(&inner, was_interrupted), "of the inner work nobody said so");
            let panicked = catch_unwind(|| within(&LoadToken::new(), || panic!("in the work")));
            assert!(panicked.is_err() && was_interrupted());
            assert!(!thread::spawn(was_interrupted).join().unwrap(), "it is work of this thread");
        });
        assert!(outer.was_cancelled() && !inner.was_cancelled() && !was_interrupted());
    }

    #[test]
    fn a_thread_that_is_never_interrupted_sleeps_longer() {
        let other = thread::spawn(|| {
            let before = look_period(None);
            never_on_this_thread();
            let limits = [None, Some(5000), Some(1000), Some(100), Some(0), Some(60_000)];
            (before, limits.map(|limit| look_period(limit.map(Duration::from_millis)).as_millis()))
        });
        let (before, after) = other.join().unwrap();
        assert_eq!((before, look_period(None)), (LOOK_PERIOD, LOOK_PERIOD));
        assert_eq!(after, [1000, 625, 125, 50, 50, 1000]);
    }
}
