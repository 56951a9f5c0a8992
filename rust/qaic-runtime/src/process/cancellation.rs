//! How work that blocks is ended early: by another thread, at a deadline, or by a signal.
//!
//! A [`CancellationToken`] is a reference to one flag. Work that has it asks [`CancellationToken::is_cancelled`] where it
//! can end; work far below the caller, which is handed no token, asks [`CancellationToken::current`]. A [`WaitScope`] is
//! what a wait of the calling thread has to watch beside what it waits for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::fork::ForkGuard;
use crate::error::{ErrorDetail, RuntimeError};
use crate::sync::{AtomicBool, Mutex, Ordering};

/// How often a wait that answers signals asks whether one arrived.
pub(crate) const CHECK_PERIOD: Duration = Duration::from_millis(50);

/// How often an inference that has to end is asked to, as a device may overlook it.
pub(crate) const CANCEL_PERIOD: Duration = Duration::from_millis(1);

/// How often a wait for a card asks whether its inference was cancelled.
pub const WAIT_SLICE_MS: u32 = 200;

/// How long a wait sleeps that answers no signals: what it waits for wakes it. No period guards against a lost wake-up, which
/// the models of `qaic-sync` exclude; an idle process would wake for it.
pub(crate) const UNTIL_WOKEN: Duration = Duration::MAX;

/// How often a wait asks on a thread that no signal reaches.
const RARE_CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Asked by a device that waits, a few times a second, and whenever it wakes: true ends the wait.
pub type CancellationCheck<'a> = &'a mut dyn FnMut() -> bool;

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

// A panic in the work leaves the flag and the hooks as whole as they were.
impl UnwindSafe for CancellationToken {}
impl RefUnwindSafe for CancellationToken {}

impl CancellationToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the work to end. It ends with [`ErrorDetail::Interrupted`] where it can, which may be never.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
        self.0.hooks.lock().by_number.values().for_each(|hook| hook());
    }

    /// Returns whether the work was asked to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// [`ErrorDetail::Interrupted`] once the work was asked to end.
    pub fn check(&self) -> Result<(), RuntimeError> {
        if self.is_cancelled() { Err(ErrorDetail::Interrupted.into()) } else { Ok(()) }
    }

    /// Makes the token of work that was cancelled good for the next.
    pub fn renew(&self) {
        self.0.is_cancelled.store(false, Ordering::Release);
    }

    /// Registers `hook`, which runs with the hooks of other work when the token is cancelled, until the returned guard is
    /// dropped. Fails when the token already is cancelled.
    ///
    /// The hook runs with an internal lock held, so that it never runs after the guard is gone.
    pub(crate) fn on_cancel(&self, hook: Hook) -> Result<OnCancel<'_>, RuntimeError> {
        let mut hooks = self.0.hooks.lock();
        let number = hooks.next;
        hooks.next += 1;
        hooks.by_number.insert(number, hook);
        drop(hooks);
        let guard = OnCancel { token: self, number };
        self.check().map(|()| guard)
    }

    /// Runs work of the calling thread that this token ends: inside, it is [`Self::current`].
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let _restored = Restored(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// The token of the work that the calling thread is in; outside of any, one that is never cancelled.
    ///
    /// For what is far below the caller: the control messages of a card, and the cores of emulated cards, which make their
    /// programs on the thread that activates them.
    pub fn current() -> Self {
        CURRENT.with_borrow(Clone::clone).unwrap_or_default()
    }

    /// Returns whether [`Self::current`] is cancelled.
    pub(crate) fn is_current_cancelled() -> bool {
        CURRENT.with_borrow(|token| token.as_ref().is_some_and(Self::is_cancelled))
    }
}

/// Runs `work`, which `token` ends, on another thread, while this one watches `scope`. Once that ends the wait, the token is
/// cancelled again and again until the work has ended, as a call that begins late may overlook it.
///
/// Blocking: until the work has ended; a panic of it is the error.
pub fn watch<T: Send>(
    token: &CancellationToken,
    scope: &mut WaitScope<'_>,
    work: impl FnOnce() -> T + Send,
) -> thread::Result<T> {
    thread::scope(|threads| {
        let (done, ended) = channel();
        let worker = threads.spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| token.enter(work)));
            // The watcher may have stopped listening only after the worker was joined.
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

impl fmt::Debug for CancellationToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CancellationToken")
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// While this lives, cancelling the token runs the hook.
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
    // In a forked process the thread that forked is the main one, whatever it was before.
    static WITHOUT_SIGNALS: Cell<Option<ForkGuard>> = const { Cell::new(None) };
}

/// Puts the token of the surrounding work back, also after a panic, which threads of pools survive.
struct Restored(Option<CancellationToken>);

impl Drop for Restored {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// A point in time, and the limit it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now; `None` where the clock cannot express that, which is no limit.
    pub fn after(limit: Duration) -> Option<Self> {
        Instant::now().checked_add(limit).map(|at| Self { at, limit })
    }

    /// The limit it came from.
    pub fn limit(self) -> Duration {
        self.limit
    }

    /// When it is.
    pub fn at(self) -> Instant {
        self.at
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn has_passed(self) -> bool {
        Instant::now() >= self.at
    }

    /// Time left.
    pub(crate) fn remaining(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns the error for `what` that did not come in time.
    pub fn error(self, what: &'static str) -> RuntimeError {
        ErrorDetail::Timeout { what, timeout_ms: u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX) }
            .into()
    }
}

/// Conditions that end a blocking call: a deadline, and a check for signals. One scope serves all waits of a
/// call.
#[derive(Default)]
pub struct WaitScope<'a> {
    deadline: Option<Deadline>,
    check: Option<CancellationCheck<'a>>,
    // When the check is due; at once where it was never made.
    due: Option<Instant>,
    // Whether anything was waited for yet.
    has_waited: bool,
}

impl<'a> WaitScope<'a> {
    /// Waits until `deadline`, for ever without one, and answers no signals.
    pub fn until(deadline: Option<Deadline>) -> Self {
        Self { deadline, ..Self::default() }
    }

    /// Answers signals: `check` is asked about every [`CHECK_PERIOD`] and says whether the call is to end. On a thread that no
    /// signal reaches it is asked once a second.
    #[must_use]
    pub fn checked_by(self, check: CancellationCheck<'a>) -> Self {
        Self { check: Some(check), ..self }
    }

    /// This scope for a part of its call, which has to end by `deadline` too.
    pub(crate) fn narrowed(&mut self, deadline: Option<Deadline>) -> WaitScope<'_> {
        let earlier = self.deadline.into_iter().chain(deadline).min_by_key(|deadline| deadline.at);
        WaitScope {
            deadline: earlier,
            check: self.check.as_mut().map(|check| &mut **check as CancellationCheck<'_>),
            due: self.due,
            has_waited: self.has_waited,
        }
    }

    /// The deadline.
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    /// Ends the wait for `what` once the deadline has passed or the check says so. Called whenever the wait wakes.
    ///
    /// Before anything was waited for it does nothing: to look at the clock, and to ask Python, costs more than a short
    /// inference.
    pub fn poll(&mut self, what: &'static str) -> Result<(), RuntimeError> {
        let is_first = !mem::replace(&mut self.has_waited, true);
        if is_first || self.deadline.is_none() && self.check.is_none() {
            return Ok(());
        }
        self.poll_at(Instant::now(), what)
    }

    fn poll_at(&mut self, now: Instant, what: &'static str) -> Result<(), RuntimeError> {
        if let Some(deadline) = self.deadline.filter(|deadline| now >= deadline.at) {
            return Err(deadline.error(what));
        }
        if let Some(check) = self.check.as_mut()
            && self.due.is_none_or(|due| now >= due)
        {
            self.due = Some(now + check_period());
            if check() {
                return Err(ErrorDetail::Interrupted.into());
            }
        }
        Ok(())
    }

    /// How long the calling thread may sleep now, before it polls again.
    pub(crate) fn sleep_limit(&mut self) -> Duration {
        self.has_waited = true;
        let left = self.deadline.map_or(Duration::MAX, Deadline::remaining);
        left.min(if self.check.is_some() { check_period() } else { UNTIL_WOKEN })
    }
}

impl fmt::Debug for WaitScope<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WaitScope")
            .field("deadline", &self.deadline)
            .field("is_checked", &self.check.is_some())
            .finish_non_exhaustive()
    }
}

/// Turns off signal checks in the waits of the calling thread: Python delivers signals to the main thread
/// only. Thousands of threads that wake twenty times a second to check would take a CPU from those that work.
pub fn ignore_signals_on_this_thread() {
    WITHOUT_SIGNALS.set(Some(ForkGuard::new()));
}

/// How long a wait of the calling thread may last before it asks whether to end.
fn check_period() -> Duration {
    let is_unreached = WITHOUT_SIGNALS.get().is_some_and(ForkGuard::is_current);
    if is_unreached { RARE_CHECK_PERIOD } else { CHECK_PERIOD }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn watched_work_ends_when_it_is_interrupted() {
        let token = CancellationToken::new();
        let mut asked = 0;
        let mut check = || {
            asked += 1;
            asked == 2
        };
        // Overlooks the first time that it is asked to end.
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
        let token = CancellationToken::new();
        let caller = thread::current().id();
        let ran_on = watch(&token, &mut WaitScope::default(), || thread::current().id()).unwrap();
        assert_ne!(ran_on, caller);
        assert!(!token.is_cancelled());
        let panic = watch(&token, &mut WaitScope::default(), || panic!("in the work")).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"in the work"));
    }

    #[test]
    fn token_entered_inside_another_ends_its_own_work_only() {
        let (outer, inner) = (CancellationToken::new(), CancellationToken::new());
        assert!(!CancellationToken::is_current_cancelled());
        outer.enter(|| {
            assert!(!CancellationToken::is_current_cancelled());
            CancellationToken::current().cancel();
            assert!(CancellationToken::is_current_cancelled());
            assert!(!inner.enter(CancellationToken::is_current_cancelled));
            let panicked = catch_unwind(|| CancellationToken::new().enter(|| panic!("in the work")));
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
        let token = CancellationToken::new();
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
        let token = CancellationToken::new();
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

    #[test]
    fn scope_past_its_deadline_names_the_limit() {
        let mut never = || panic!("asked although the deadline has passed");
        let mut scope = WaitScope::until(Deadline::after(Duration::ZERO)).checked_by(&mut never);
        assert!(scope.poll("an inference").is_ok(), "nothing was waited for");
        let error = scope.poll("an inference").unwrap_err();
        assert_eq!(error.to_string(), "timed out after 0 ms waiting for an inference");
        assert_eq!(scope.sleep_limit(), Duration::ZERO);
        assert!(Deadline::after(Duration::MAX).is_none());
    }

    #[test]
    fn scope_that_has_slept_is_checked_at_the_first_poll() {
        let mut check = || true;
        let mut scope = WaitScope::default().checked_by(&mut check);
        scope.sleep_limit();
        assert!(scope.poll("an inference").unwrap_err().is_interrupted());
    }

    #[test]
    fn scope_narrowed_ends_at_the_earlier_deadline_and_asks_its_check() {
        let (near, far) = (Duration::from_millis(7), Duration::from_hours(1));
        let deadline = |limit| Deadline::after(limit);
        for (own, part) in
            [(Some(near), Some(far)), (Some(far), Some(near)), (None, Some(near)), (Some(near), None)]
        {
            let mut check = || true;
            let mut scope = WaitScope::until(own.and_then(deadline)).checked_by(&mut check);
            let mut part = scope.narrowed(part.and_then(deadline));
            assert_eq!(part.deadline().map(Deadline::limit), Some(near));
            part.sleep_limit();
            assert!(part.poll_at(Instant::now(), "a part").is_err());
        }
        assert!(WaitScope::default().narrowed(None).deadline().is_none());
    }

    #[test]
    fn scope_polled_often_asks_once_a_period() {
        let mut asked = 0_u32;
        let mut check = || {
            asked += 1;
            asked == 3
        };
        let mut scope = WaitScope::default().checked_by(&mut check);
        let begin = Instant::now();
        let ms = Duration::from_millis(1);
        let ended = (0..1000).find(|after| scope.poll_at(begin + ms * *after, "an inference").is_err());
        assert_eq!(ended.map(|after| ms * after), Some(CHECK_PERIOD * 2));
        assert_eq!(asked, 3);
    }

    #[test]
    fn scope_without_signals_sleeps_until_it_is_woken() {
        assert_eq!(WaitScope::default().sleep_limit(), UNTIL_WOKEN);
        let mut check = || false;
        assert_eq!(WaitScope::default().checked_by(&mut check).sleep_limit(), CHECK_PERIOD);
        let mut scope = WaitScope::default();
        assert!((0..2).all(|_| scope.poll("an inference").is_ok()));
    }

    #[test]
    fn thread_without_signals_sleeps_longer() {
        let limit = || WaitScope::default().checked_by(&mut || false).sleep_limit();
        let other = thread::spawn(move || {
            let before = limit();
            ignore_signals_on_this_thread();
            (before, limit())
        });
        assert_eq!(other.join().unwrap(), (CHECK_PERIOD, RARE_CHECK_PERIOD));
        assert_eq!(limit(), CHECK_PERIOD);
    }
}
