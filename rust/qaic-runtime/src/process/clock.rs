//! The clock that everything measured here is on, so that times of the host and ticks of its device can be compared.
//!
//! It is monotonic and begins when the process first asks. A forked child goes on with its parent's.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Ticks of a card's timer a second. The host device counts the same, from the begin of this
/// clock.
pub(crate) const UCYCLE_HZ: u64 = 19_200_000;

const NS_PER_S: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Epoch {
    begin: Instant,
    utc_ns: u64,
}

static EPOCH: OnceLock<Epoch> = OnceLock::new();

fn epoch() -> Epoch {
    *EPOCH.get_or_init(|| {
        let utc = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Epoch { begin: Instant::now(), utc_ns: u64::try_from(utc.as_nanos()).unwrap_or(0) }
    })
}

/// Nanoseconds since the clock began.
pub fn now_ns() -> u64 {
    // Enough for 584 years.
    u64::try_from(epoch().begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// UTC nanoseconds at the begin of the clock; 0 where the system's date is before 1970. Later changes of that date do not
/// change it.
pub fn epoch_utc_ns() -> u64 {
    epoch().utc_ns
}

/// Ticks of [`UCYCLE_HZ`] at a time of this clock.
pub const fn ucycles(ns: u64) -> u64 {
    // In two parts, as the product does not fit.
    (ns / NS_PER_S) * UCYCLE_HZ + (ns % NS_PER_S) * UCYCLE_HZ / NS_PER_S
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_forward_from_a_date_that_is_today() {
        let before = now_ns();
        let utc = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let after = now_ns();
        assert!(before <= after);
        let shown = u128::from(epoch_utc_ns()) + u128::from(after);
        assert!(shown.abs_diff(utc) < 60 * u128::from(NS_PER_S), "{shown} and {utc}");
    }

    proptest! {
        #[test]
        fn ticks_are_those_of_exact_arithmetic(ns in 0_u64..u64::MAX / 2) {
            let exact = u128::from(ns) * u128::from(UCYCLE_HZ) / u128::from(NS_PER_S);
            prop_assert_eq!(u128::from(ucycles(ns)), exact);
        }
    }
}
