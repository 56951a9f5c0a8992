//! What measuring costs: how long inferences take with the engine's profile and without (stats-profiling §9.3, §9.4).

use std::collections::HashMap;

use serde::Serialize;

use crate::sync::Mutex;

/// How often an inference is repeated at most, and for how long, before the first one that is measured.
pub(super) const REPEATS: u64 = 3;
pub(super) const REPEATING_NS: u64 = 20_000_000;

/// As many of the last durations as medians are taken of.
const KEPT: usize = 32;

/// The durations of a program's inferences, by specialization.
#[derive(Debug, Default)]
pub(super) struct Calibration {
    times: Mutex<HashMap<usize, Times>>,
}

#[derive(Debug, Default)]
struct Times {
    plain: Recent,
    profiled: Recent,
    // Whether somebody is just repeating an inference.
    is_claimed: bool,
}

/// The last durations of a kind.
#[derive(Debug, Default)]
struct Recent {
    values_ns: Vec<u64>,
    count: u64,
}

/// Medians, as they are written into a stats buffer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Medians {
    /// Inferences without a profile that the program has run.
    pub(super) plain_count: u64,
    /// Median of the last of them.
    pub(super) plain_us: Option<f64>,
    /// Inferences with a profile.
    pub(super) profiled_count: u64,
    /// Median of the last of them, without the time in which the engine writes the profile.
    pub(super) profiled_us: Option<f64>,
}

impl Calibration {
    /// Notes an inference without a profile. Never waits: what comes at a bad time is not noted.
    pub(super) fn add_plain(&self, variant: usize, duration_ns: u64) {
        if let Some(mut times) = self.times.try_lock() {
            times.entry(variant).or_default().plain.add(duration_ns);
        }
    }

    /// Notes one with a profile and gives the medians.
    pub(super) fn add_profiled(&self, variant: usize, duration_ns: u64) -> Medians {
        let mut times = self.times.lock();
        let times = times.entry(variant).or_default();
        times.profiled.add(duration_ns);
        Medians {
            plain_count: times.plain.count,
            plain_us: times.plain.median_us(),
            profiled_count: times.profiled.count,
            profiled_us: times.profiled.median_us(),
        }
    }

    /// Whether inferences are to be repeated because too few have been run without a profile, of which the first is
    /// slower than others; true once.
    pub(super) fn claim_repeats(&self, variant: usize) -> bool {
        let mut times = self.times.lock();
        let times = times.entry(variant).or_default();
        let is_mine = times.plain.count < REPEATS && !times.is_claimed;
        times.is_claimed |= is_mine;
        is_mine
    }
}

impl Recent {
    fn add(&mut self, duration_ns: u64) {
        let place = usize::try_from(self.count).unwrap_or(0) % KEPT;
        match self.values_ns.get_mut(place) {
            Some(value) => *value = duration_ns,
            None => self.values_ns.push(duration_ns),
        }
        self.count += 1;
    }

    #[allow(clippy::cast_precision_loss)] // nanoseconds of three months fit
    fn median_us(&self) -> Option<f64> {
        let mut sorted = self.values_ns.clone();
        sorted.sort_unstable();
        let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
        Some((sorted[low] as f64 + sorted[high] as f64) / 2000.0)
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp)] // halves are exact
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_last_ones_of_a_specialization() {
        let calibration = Calibration::default();
        assert!(calibration.claim_repeats(0));
        assert!(!calibration.claim_repeats(0));
        for duration_us in [9, 1, 5, 3] {
            calibration.add_plain(0, duration_us * 1000);
        }
        let medians = calibration.add_profiled(0, 70_500);
        assert_eq!((medians.plain_count, medians.plain_us), (4, Some(4.0)));
        assert_eq!((medians.profiled_count, medians.profiled_us), (1, Some(70.5)));
        for _ in 0..KEPT {
            calibration.add_plain(0, 2000);
        }
        assert_eq!(calibration.add_profiled(0, 1).plain_us, Some(2.0));
        let other = calibration.add_profiled(1, 1000);
        assert_eq!((other.plain_count, other.plain_us, other.profiled_us), (0, None, Some(1.0)));
        assert!(calibration.claim_repeats(1));
    }
}
