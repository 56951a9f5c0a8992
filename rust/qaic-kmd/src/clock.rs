//! Time that tests can replace: waits of a minute then take none.

use std::fmt::Debug;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A clock to look at and to wait by.
pub trait Clock: Debug + Send + Sync {
    /// Time since some moment of the past.
    fn now(&self) -> Duration;

    /// Waits until `limit` has passed or the alarm has rung more often than `heard` times; whether it has.
    ///
    /// Blocking: so long. A clock of tests goes on by `limit` at once instead.
    fn wait(&self, limit: Duration, alarm: &Alarm, heard: u64) -> bool;
}

/// Wakes those who wait by a clock. To ring costs no system call while nobody waits.
#[derive(Debug, Default)]
pub struct Alarm {
    heard: Mutex<Heard>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Heard {
    rung: u64,
    // Threads that sleep.
    waiting: usize,
}

impl Alarm {
    /// Rings. Never blocks.
    pub fn ring(&self) {
        let mut heard = self.lock();
        heard.rung += 1;
        let is_awaited = heard.waiting > 0;
        drop(heard);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// How often it has rung.
    pub fn rung(&self) -> u64 {
        self.lock().rung
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, limit: Duration, before: u64) -> bool {
        let mut heard = self.lock();
        heard.waiting += 1;
        let waited = self.changed.wait_timeout_while(heard, limit, |heard| heard.rung <= before);
        let mut heard = waited.unwrap_or_else(PoisonError::into_inner).0;
        heard.waiting -= 1;
        heard.rung > before
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

    fn wait(&self, limit: Duration, alarm: &Alarm, heard: u64) -> bool {
        alarm.wait(limit, heard)
    }
}

/// A clock that goes on when somebody waits by it, and at no other time.
#[derive(Debug, Default)]
pub struct VirtualClock {
    now: Mutex<Duration>,
}

impl VirtualClock {
    /// Goes on to `time`, if that is in the future.
    pub fn advance_to(&self, time: Duration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = time.max(*now);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, limit: Duration, alarm: &Alarm, heard: u64) -> bool {
        let has_rung = alarm.rung() > heard;
        if !has_rung {
            *self.now.lock().unwrap_or_else(PoisonError::into_inner) += limit;
        }
        has_rung
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_waits_take_no_time_and_move_the_clock() {
        let (clock, alarm) = (VirtualClock::default(), Alarm::default());
        let began = Instant::now();
        assert!(!clock.wait(Duration::from_hours(1), &alarm, 0));
        assert_eq!(clock.now(), Duration::from_hours(1));
        alarm.ring();
        assert!(clock.wait(Duration::from_hours(1), &alarm, 0));
        assert_eq!(clock.now(), Duration::from_hours(1));
        clock.advance_to(Duration::from_secs(1));
        assert_eq!(clock.now(), Duration::from_hours(1));
        assert!(began.elapsed() < Duration::from_hours(1));
    }

    #[test]
    fn an_alarm_that_rang_before_the_wait_ends_it() {
        let (clock, alarm) = (SystemClock::default(), Alarm::default());
        let heard = alarm.rung();
        alarm.ring();
        assert!(clock.wait(Duration::from_hours(1), &alarm, heard));
        assert!(!clock.wait(Duration::ZERO, &alarm, alarm.rung()));
    }
}
