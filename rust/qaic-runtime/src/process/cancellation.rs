//! Early end of blocking work: by another thread, at a deadline, or by a signal.
//!
//! A [`CancellationToken`] is a reference to one flag. Work with a token calls [`CancellationToken::is_cancelled`] at
//! points where it can end. Work in lower layers, which receives no token, uses the token of the thread. A
//! [`WaitScope`] contains the conditions that end a wait of the calling thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use qaic_sched::{CHECK_PERIOD, WaitScope};

use crate::error::{ErrorDetail, RuntimeError};
use crate::sync::{AtomicBool, Mutex, Ordering};

/// Interval in which a wait for a card checks whether its inference was cancelled.
pub const WAIT_SLICE_MS: u32 = 200;

/// Runs when a token is cancelled. Must not block.
type Hook = Box<dyn Fn() + Send>;

/// Ends work early, from any thread. A clone refers to the same flag.
#[derive(Clone, Default)]
pub struct CancellationToken(Arc<TokenState>);

#[derive(Default)]
struct TokenState {
    is_cancelled: AtomicBool,
    hooks: Mutex<Hooks>,
}

#[derive(Default)]
struct Hooks {
    next: u64,
    by_number: BTreeMap<u64, Hook>,
}

// A panic in the work leaves the flag and the hooks consistent.
impl UnwindSafe for CancellationToken {}
impl RefUnwindSafe for CancellationToken {}

impl CancellationToken {
    /// Asks the work to end. The work ends with [`ErrorDetail::Interrupted`] at its next check, if there is one.
    pub(crate) fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
        self.0.hooks.lock().by_number.values().for_each(|hook| hook());
    }

    /// Returns true if the work was asked to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Returns [`ErrorDetail::Interrupted`] if the work was asked to end.
    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        if self.is_cancelled() { Err(ErrorDetail::Interrupted.into()) } else { Ok(()) }
    }

    /// Resets the token of cancelled work for its next use.
    pub fn renew(&self) {
        self.0.is_cancelled.store(false, Ordering::Release);
    }

    /// Registers `hook`, which runs with the hooks of other work when the token is cancelled, until the returned
    /// guard is dropped. Fails if the token is already cancelled.
    ///
    /// The hook runs while an internal lock is held, so that it never runs after the guard is dropped.
    pub(crate) fn on_cancel(&self, hook: Hook) -> Result<OnCancel<'_>, RuntimeError> {
        let mut hooks = self.0.hooks.lock();
        let number = hooks.next;
        hooks.next += 1;
        hooks.by_number.insert(number, hook);
        drop(hooks);
        let guard = OnCancel { token: self, number };
        self.check().map(|()| guard)
    }

    /// Runs work of the calling thread that this token can end. During the work, this token is [`Self::current`].
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let _restored = Restored(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// Returns the token of the calling thread's current work, or a token that is never cancelled.
    ///
    /// Code in lower layers uses this: the control messages of a card, and the cores of emulated cards, which prepare
    /// their programs on the thread that activates them.
    pub(crate) fn current() -> Self {
        CURRENT.with_borrow(Clone::clone).unwrap_or_default()
    }

    pub(crate) fn is_current_cancelled() -> bool {
        CURRENT.with_borrow(|token| token.as_ref().is_some_and(Self::is_cancelled))
    }
}

/// Runs `work`, which `token` can end, on another thread, while this thread watches `scope`. If `scope` ends the
/// wait, the token is cancelled repeatedly until the work has ended, because a call that begins late may miss a
/// cancellation.
///
/// Blocking: until the work has ended; a panic of it becomes the error.
pub fn watch<T: Send>(
    token: &CancellationToken,
    scope: &mut WaitScope<'_>,
    work: impl FnOnce() -> T + Send,
) -> thread::Result<T> {
    thread::scope(|threads| {
        let (done, ended) = channel();
        let worker = threads.spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| token.enter(work)));
            // The watcher stops listening only after the worker was joined.
            let _ = done.send(());
            result
        });
        let mut has_to_end = false;
        while matches!(
            ended.recv_timeout(scope.sleep_limit().min(CHECK_PERIOD)),
            Err(RecvTimeoutError::Timeout)
        ) {
            has_to_end = has_to_end || scope.poll("a call").is_err();
            if has_to_end {
                token.cancel();
            }
        }
        worker.join().unwrap_or_else(Err)
    })
}

qaic_sync::debug_fields!(CancellationToken, |token| is_cancelled: token.is_cancelled());

/// Guard of a hook, which runs when the token is cancelled while the guard exists.
#[derive(Debug)]
pub(crate) struct OnCancel<'a> {
    token: &'a CancellationToken,
    number: u64,
}

impl Drop for OnCancel<'_> {
    fn drop(&mut self) {
        self.token.0.hooks.lock().by_number.remove(&self.number);
    }
}

thread_local! {
    static CURRENT: RefCell<Option<CancellationToken>> = const { RefCell::new(None) };
}

/// Restores the token of the surrounding work on drop, also after a panic, because threads of pools continue.
struct Restored(Option<CancellationToken>);

impl Drop for Restored {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn watched_work_ends_when_it_is_interrupted() {
        let token = CancellationToken::default();
        let mut asked = 0;
        let mut check = || {
            asked += 1;
            asked == 2
        };
        // Ignores the first request to end.
        let work = || {
            while !CancellationToken::is_current_cancelled() {
                thread::yield_now();
            }
            CancellationToken::current().renew();
            while !CancellationToken::is_current_cancelled() {
                thread::yield_now();
            }
            "ended"
        };
        let mut scope = WaitScope::default().checked_by(&mut check);
        assert_eq!(watch(&token, &mut scope, work).unwrap(), "ended");
        assert_eq!(asked, 2, "nothing is asked once it was interrupted");
    }

    #[test]
    fn watched_work_that_ends_by_itself_is_not_cancelled() {
        let token = CancellationToken::default();
        let caller = thread::current().id();
        let ran_on = watch(&token, &mut WaitScope::default(), || thread::current().id()).unwrap();
        assert_ne!(ran_on, caller);
        assert!(!token.is_cancelled());
        let panic = watch(&token, &mut WaitScope::default(), || panic!("in the work")).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"in the work"));
    }

    #[test]
    fn token_entered_inside_another_ends_its_own_work_only() {
        let (outer, inner) = (CancellationToken::default(), CancellationToken::default());
        assert!(!CancellationToken::is_current_cancelled());
        outer.enter(|| {
            assert!(!CancellationToken::is_current_cancelled());
            CancellationToken::current().cancel();
            assert!(CancellationToken::is_current_cancelled());
            assert!(!inner.enter(CancellationToken::is_current_cancelled));
            let panicked = catch_unwind(|| CancellationToken::default().enter(|| panic!("in the work")));
            assert!(panicked.is_err() && CancellationToken::is_current_cancelled());
            assert!(!thread::spawn(CancellationToken::is_current_cancelled).join().unwrap());
        });
        assert!(outer.is_cancelled() && !inner.is_cancelled() && !CancellationToken::is_current_cancelled());
    }

    #[test]
    fn token_cancelled_runs_its_hook_while_the_guard_lives() {
        let runs = Arc::new(AtomicU32::new(0));
        let hook = || {
            let runs = Arc::clone(&runs);
            Box::new(move || {
                runs.fetch_add(1, Ordering::Relaxed);
            })
        };
        let token = CancellationToken::default();
        let guard = token.on_cancel(hook()).unwrap();
        token.cancel();
        drop(guard);
        token.cancel();
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        assert_eq!(token.on_cancel(hook()).unwrap_err().code(), "call.interrupted");
        token.cancel();
        assert_eq!(runs.load(Ordering::Relaxed), 1, "a hook that was refused is gone");
        token.renew();
        assert!(token.check().is_ok() && token.on_cancel(hook()).is_ok());
    }

    #[test]
    fn token_of_two_loads_runs_the_hook_of_each_that_goes_on() {
        let runs = [const { AtomicU32::new(0) }; 2].map(Arc::new);
        let token = CancellationToken::default();
        let guards = runs.each_ref().map(|count| {
            let count = Arc::clone(count);
            token.on_cancel(Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            }))
        });
        token.cancel();
        let [first, second] = guards;
        drop(first);
        token.cancel();
        drop(second);
        token.cancel();
        assert_eq!(runs.map(|count| count.load(Ordering::Relaxed)), [1, 2]);
    }
}
