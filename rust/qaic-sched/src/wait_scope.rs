//! End conditions of blocking calls: a deadline, and a check for signals.

use std::cell::Cell;
use std::mem;
use std::time::{Duration, Instant};

use crate::{CancellationCheck, Error, ForkGuard};

/// Interval of signal checks in a wait that handles signals.
pub const CHECK_PERIOD: Duration = Duration::from_millis(50);

/// Interval of repeated cancellations of an inference, because a device may miss one.
pub const CANCEL_PERIOD: Duration = Duration::from_millis(1);

/// Maximum sleep of a wait that handles no signals: only the awaited event wakes the thread. No timeout
/// guards against a lost wakeup. The loom models exclude lost wakeups, and a timeout would wake idle
/// processes.
pub const UNTIL_WOKEN: Duration = Duration::MAX;

/// Interval of signal checks on a thread that receives no signals.
const RARE_CHECK_PERIOD: Duration = Duration::from_secs(1);

thread_local! {
    // In a forked process, the thread that forked is the main thread.
    static WITHOUT_SIGNALS: Cell<Option<ForkGuard>> = const { Cell::new(None) };
}

/// A point in time, and the limit that it was computed from.
///
/// ```
/// use std::time::Duration;
///
/// let deadline = qaic_sched::Deadline::after(Duration::from_millis(5)).unwrap();
/// assert_eq!(deadline.error("a reply").to_string(), "timed out after 5 ms waiting for a reply");
/// assert!(qaic_sched::Deadline::after(Duration::MAX).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Time of the deadline.
    pub at: Instant,
    /// The limit that the deadline was computed from.
    pub limit: Duration,
}

impl Deadline {
    /// Returns the deadline `limit` from now; `None` if the clock cannot express that time, which means no limit.
    pub fn after(limit: Duration) -> Option<Self> {
        Instant::now().checked_add(limit).map(|at| Self { at, limit })
    }

    /// Time until the deadline; zero if it has passed.
    pub fn remaining(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns the timeout error for the event `what`.
    pub fn error(self, what: &'static str) -> Error {
        Error::Timeout { what, timeout_ms: u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX) }
    }
}

/// Conditions that end a blocking call: a deadline, and a check for signals. One scope serves all waits of a
/// call.
///
/// ```
/// use std::time::Duration;
/// use qaic_sched::{Deadline, Error, WaitScope};
///
/// let mut scope = WaitScope::until(Deadline::after(Duration::ZERO));
/// assert!(scope.poll("a reply").is_ok(), "nothing was waited for yet");
/// assert_eq!(scope.poll("a reply"), Err(Error::Timeout { what: "a reply", timeout_ms: 0 }));
///
/// let mut has_signal = || true;
/// let mut scope = WaitScope::default().checked_by(&mut has_signal);
/// scope.sleep_limit();
/// assert_eq!(scope.poll("a reply"), Err(Error::Interrupted));
/// ```
#[derive(Default)]
pub struct WaitScope<'a> {
    /// The deadline.
    pub deadline: Option<Deadline>,
    check: Option<CancellationCheck<'a>>,
    // Time of the next check; `None` before the first one, which is due immediately.
    due: Option<Instant>,
    // True after the first wait.
    has_waited: bool,
}

impl<'a> WaitScope<'a> {
    /// Creates a scope that ends at `deadline`, or never without one, and handles no signals.
    pub fn until(deadline: Option<Deadline>) -> Self {
        Self { deadline, ..Self::default() }
    }

    /// Adds a signal check: `check` is called about every [`CHECK_PERIOD`] and returns true if the call must end. A
    /// thread that receives no signals calls it once a second.
    #[must_use]
    pub fn checked_by(self, check: CancellationCheck<'a>) -> Self {
        Self { check: Some(check), ..self }
    }

    /// Returns this scope for a part of its call that must also end by `deadline`.
    pub fn narrowed(&mut self, deadline: Option<Deadline>) -> WaitScope<'_> {
        let earlier = self.deadline.into_iter().chain(deadline).min_by_key(|deadline| deadline.at);
        WaitScope {
            deadline: earlier,
            check: self.check.as_mut().map(|check| &mut **check as CancellationCheck<'_>),
            due: self.due,
            has_waited: self.has_waited,
        }
    }

    /// Fails if the deadline has passed or the check ends the wait for `what`. Callers call this at every wakeup.
    ///
    /// The first call does nothing, because reading the clock and asking Python costs more than a short inference.
    pub fn poll(&mut self, what: &'static str) -> Result<(), Error> {
        let is_first = !mem::replace(&mut self.has_waited, true);
        if is_first || self.deadline.is_none() && self.check.is_none() {
            return Ok(());
        }
        self.poll_at(Instant::now(), what)
    }

    pub(crate) fn poll_at(&mut self, now: Instant, what: &'static str) -> Result<(), Error> {
        if let Some(deadline) = self.deadline.filter(|deadline| now >= deadline.at) {
            return Err(deadline.error(what));
        }
        if let Some(check) = self.check.as_mut()
            && self.due.is_none_or(|due| now >= due)
        {
            self.due = Some(now + check_period());
            if check() {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// Maximum time that the calling thread may sleep before the next poll.
    pub fn sleep_limit(&mut self) -> Duration {
        self.has_waited = true;
        let left = self.deadline.map_or(Duration::MAX, Deadline::remaining);
        left.min(if self.check.is_some() { check_period() } else { UNTIL_WOKEN })
    }
}

qaic_sync::debug_fields!(WaitScope<'a>, |scope| deadline: scope.deadline, is_checked: scope.check.is_some());

/// Disables signal checks in the waits of the calling thread, because Python delivers signals only to the main
/// thread. Thousands of threads that wake twenty times a second would occupy a CPU.
pub fn ignore_signals_on_this_thread() {
    WITHOUT_SIGNALS.set(Some(ForkGuard::new()));
}

/// Maximum time that the calling thread waits between two checks.
fn check_period() -> Duration {
    let is_unreached = WITHOUT_SIGNALS.get().is_some_and(ForkGuard::is_current);
    if is_unreached { RARE_CHECK_PERIOD } else { CHECK_PERIOD }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

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
        assert!(scope.poll("an inference").unwrap_err() == Error::Interrupted);
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
            assert_eq!(part.deadline.map(|deadline| deadline.limit), Some(near));
            part.sleep_limit();
            assert!(part.poll_at(Instant::now(), "a part").is_err());
        }
        assert!(WaitScope::default().narrowed(None).deadline.is_none());
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
