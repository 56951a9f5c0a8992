//! Time limits of waits for room in the ring and for running inferences.

use std::sync::Arc;
use std::time::Duration;

use qaic_kmd::Clock;

use super::errno::MOST_SIGNALS;
use crate::program::WaitLimits;

/// Number of submission attempts for a full ring.
pub(super) const RING_ATTEMPTS: u32 = 50;
/// Interval in which a wait for room calls its caller's check.
pub(super) const CHECK_PERIOD: Duration = Duration::from_millis(200);

/// Default time limit of a wait on a card.
pub(super) const DEVICE_DEFAULT_MS: u32 = 5000;

/// Pause before the next attempt, after the attempt with this number; the first is 1.
pub(super) fn pause_after(attempt: u32) -> Duration {
    let steps = attempt.saturating_mul(attempt.saturating_sub(1)) / 2;
    Duration::from_millis(5).saturating_mul(steps.saturating_add(1))
}

/// Returns the time limits of the calls of one wait, in milliseconds; 0 is the kernel's default. A wait without
/// slices is a single call.
pub(super) fn calls(limits: WaitLimits) -> impl Iterator<Item = u32> {
    let whole = whole_ms(limits.try_ms);
    let (mut left, slice, one) = match limits.slice_ms {
        Some(slice) => (whole, slice.max(1), None),
        None => (0, 1, Some(limits.try_ms)),
    };
    one.into_iter().chain(std::iter::from_fn(move || {
        let next = left.min(slice);
        left -= next;
        (next > 0).then_some(next)
    }))
}

const fn whole_ms(limit_ms: u32) -> u32 {
    if limit_ms == 0 { DEVICE_DEFAULT_MS } else { limit_ms }
}

/// Remaining time of a call after the first signal that interrupted it.
#[derive(Debug)]
pub(super) struct RemainingTime {
    clock: Arc<dyn Clock>,
    begin: Duration,
    limit_ms: u32,
    tries: u32,
}

impl RemainingTime {
    /// Starts the clock.
    pub(super) fn new(clock: Arc<dyn Clock>, limit_ms: u32) -> Self {
        Self { begin: clock.now(), clock, limit_ms, tries: 0 }
    }

    /// Time limit of the next attempt; `None` if no time remains.
    pub(super) fn left_ms(&mut self) -> Option<u32> {
        let passed = self.clock.now().saturating_sub(self.begin);
        self.tries = self.tries.saturating_add(1);
        if passed.is_zero() {
            // A clock that stops between signals would make the retries endless.
            return (self.tries <= MOST_SIGNALS).then_some(self.limit_ms);
        }
        let passed_ms = u32::try_from(passed.as_millis()).unwrap_or(u32::MAX);
        whole_ms(self.limit_ms).checked_sub(passed_ms).filter(|&left_ms| left_ms > 0)
    }
}

/// Total length of all waits, for messages.
pub(super) fn total_ms(limits: WaitLimits) -> u64 {
    u64::from(whole_ms(limits.try_ms)) * (u64::from(limits.retries) + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use qaic_kmd::VirtualClock;

    use super::*;

    fn limits(try_ms: u32, slice_ms: Option<u32>) -> WaitLimits {
        WaitLimits { try_ms, retries: 5, slice_ms }
    }

    #[test]
    fn pauses_of_fifty_attempts_follow_the_table() {
        let first: Vec<_> = (1..=5).map(|attempt| pause_after(attempt).as_millis()).collect();
        assert_eq!(first, [5, 10, 20, 35, 55]);
        let all: Duration = (1..RING_ATTEMPTS).map(pause_after).sum();
        assert_eq!(all.as_millis(), 98_245);
        assert!(pause_after(u32::MAX) > Duration::from_secs(1));
    }

    #[test]
    fn wait_after_a_signal_has_the_remaining_time() {
        for (limit_ms, whole) in [(0, 5000), (70, 70)] {
            let clock = Arc::new(VirtualClock::default());
            let mut remaining = RemainingTime::new(clock.clone(), limit_ms);
            assert_eq!(remaining.left_ms(), Some(limit_ms));
            clock.advance_to(Duration::from_millis(20));
            assert_eq!(remaining.left_ms(), Some(whole - 20));
            clock.advance_to(Duration::from_millis(u64::from(whole) - 1));
            assert_eq!(remaining.left_ms(), Some(1));
            clock.advance_to(Duration::from_millis(whole.into()));
            assert_eq!(remaining.left_ms(), None);
        }
    }

    #[test]
    fn wait_with_endless_signals_ends() {
        let mut remaining = RemainingTime::new(Arc::new(VirtualClock::default()), 7);
        for _ in 0..MOST_SIGNALS {
            assert_eq!(remaining.left_ms(), Some(7));
        }
        assert_eq!(remaining.left_ms(), None);
    }

    #[test]
    fn wait_without_slices_is_the_kernels() {
        assert_eq!(calls(limits(0, None)).collect::<Vec<_>>(), [0]);
        assert_eq!(calls(limits(7, None)).collect::<Vec<_>>(), [7]);
        assert_eq!((total_ms(limits(0, None)), total_ms(limits(7, None))), (30_000, 42));
    }

    proptest! {
        #[test]
        fn wait_in_slices_has_the_same_total(try_ms in 0_u32..100_000, slice in 0_u32..10_000) {
            let found: Vec<u32> = calls(limits(try_ms, Some(slice.max(50)))).collect();
            let whole = if try_ms == 0 { 5000 } else { try_ms };
            prop_assert_eq!(found.iter().sum::<u32>(), whole);
            prop_assert!(found.iter().all(|&ms| ms > 0 && ms <= slice.max(50)));
            prop_assert!(found.len() <= whole.div_ceil(slice.max(50)) as usize);
        }
    }
}
