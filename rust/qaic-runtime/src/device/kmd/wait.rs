//! How long a full ring and a running inference are waited for (device-kmd §4.4, §4.5).

use std::time::Duration;

use crate::program::WaitLimits;

/// Times that an inference is offered to a full ring.
pub(super) const RING_ATTEMPTS: u32 = 50;
/// Of a wait for room, how often a caller is asked whether to go on.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// What a wait without a time limit of its own waits on a card (device-kmd §2.8).
const DEVICE_DEFAULT_MS: u32 = 5000;

/// How long to wait for room after the attempt of this number, from 1.
pub(super) fn pause_after(attempt: u32) -> Duration {
    let steps = attempt.saturating_mul(attempt.saturating_sub(1)) / 2;
    Duration::from_millis(5).saturating_mul(steps.saturating_add(1))
}

/// The time limits of the calls that one wait is made of, in milliseconds; 0 is the kernel's default. Where they need not
/// be cut short there is one.
pub(super) fn calls(limits: WaitLimits) -> impl Iterator<Item = u32> {
    let whole = if limits.try_ms == 0 { DEVICE_DEFAULT_MS } else { limits.try_ms };
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

/// All waits together, for people.
pub(super) fn total_ms(limits: WaitLimits) -> u64 {
    let whole = if limits.try_ms == 0 { DEVICE_DEFAULT_MS } else { limits.try_ms };
    u64::from(whole) * (u64::from(limits.retries) + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(try_ms: u32, slice_ms: Option<u32>) -> WaitLimits {
        WaitLimits { try_ms, retries: 5, slice_ms }
    }

    #[test]
    fn pauses_are_those_of_the_table() {
        let first: Vec<_> = (1..=5).map(|attempt| pause_after(attempt).as_millis()).collect();
        assert_eq!(first, [5, 10, 20, 35, 55]);
        let all: Duration = (1..RING_ATTEMPTS).map(pause_after).sum();
        assert_eq!(all.as_millis(), 98_245);
        assert!(pause_after(u32::MAX) > Duration::from_secs(1));
    }

    #[test]
    fn waits_without_slices_are_the_kernels() {
        assert_eq!(calls(limits(0, None)).collect::<Vec<_>>(), [0]);
        assert_eq!(calls(limits(7, None)).collect::<Vec<_>>(), [7]);
        assert_eq!((total_ms(limits(0, None)), total_ms(limits(7, None))), (30_000, 42));
    }

    proptest! {
        #[test]
        fn slices_add_up(try_ms in 0_u32..100_000, slice in 0_u32..10_000) {
            let found: Vec<u32> = calls(limits(try_ms, Some(slice.max(50)))).collect();
            let whole = if try_ms == 0 { 5000 } else { try_ms };
            prop_assert_eq!(found.iter().sum::<u32>(), whole);
            prop_assert!(found.iter().all(|&ms| ms > 0 && ms <= slice.max(50)));
            prop_assert!(found.len() <= whole.div_ceil(slice.max(50)) as usize);
        }
    }
}
