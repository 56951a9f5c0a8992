//! The clock of all measurements, which makes times of the host and ticks of its device comparable.

pub(crate) use qaic_sched::clock::after;
pub use qaic_sched::clock::{epoch_utc_ns, now_ns};

/// Ticks per second of a card's timer. The host device counts ticks at the same rate, from the start of this clock.
pub(crate) const UCYCLE_HZ: u64 = 19_200_000;

const NS_PER_S: u64 = 1_000_000_000;

/// Ticks of [`UCYCLE_HZ`] at a time of this clock.
pub(crate) const fn ucycles(ns: u64) -> u64 {
    // Computed in two parts, because the product overflows.
    (ns / NS_PER_S) * UCYCLE_HZ + (ns % NS_PER_S) * UCYCLE_HZ / NS_PER_S
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ticks_are_those_of_exact_arithmetic(ns in 0_u64..u64::MAX / 2) {
            let exact = u128::from(ns) * u128::from(UCYCLE_HZ) / u128::from(NS_PER_S);
            prop_assert_eq!(u128::from(ucycles(ns)), exact);
        }
    }
}
