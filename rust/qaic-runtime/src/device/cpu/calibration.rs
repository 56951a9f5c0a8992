//! Cost of measuring: durations of inferences with and without the engine's profile.

use serde::Serialize;

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of repetitions, and maximum duration of all, before the first measured inference.
pub(super) const REPEATS: u64 = 3;
pub(super) const REPEATING_NS: u64 = 20_000_000;

/// Number of recent durations that the medians are computed from.
const KEPT: usize = 32;

/// The durations of a program's inferences, by specialization. Recording a duration takes no lock.
#[derive(Debug)]
pub(super) struct Calibration {
    variants: Box<[Times]>,
}

#[derive(Debug, Default)]
struct Times {
    plain: Recent,
    profiled: Recent,
    // True if a thread repeats or has repeated an inference.
    is_claimed: AtomicBool,
}

/// Recent durations of one kind.
#[derive(Debug, Default)]
struct Recent {
    // 0 for values that are not yet written.
    values_ns: [AtomicU64; KEPT],
    count: AtomicU64,
}

/// Medians, in the format of a stats buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Medians {
    /// Number of the program's inferences without a profile.
    pub(super) plain_count: u64,
    /// Median duration of the most recent ones.
    pub(super) plain_us: Option<f64>,
    /// Inferences with a profile.
    pub(super) profiled_count: u64,
    /// Median duration of the most recent ones, without the time to write the profile.
    pub(super) profiled_us: Option<f64>,
}

impl Calibration {
    /// Creates a calibration for a program with this number of specializations, at least one.
    pub(super) fn new(variants: usize) -> Self {
        Self { variants: (0..variants.max(1)).map(|_| Times::default()).collect() }
    }

    /// Records an inference without a profile.
    pub(super) fn add_plain(&self, variant: usize, duration_ns: u64) {
        if let Some(times) = self.variants.get(variant) {
            times.plain.add(duration_ns);
        }
    }

    /// Records an inference with a profile and returns the medians.
    pub(super) fn add_profiled(&self, variant: usize, duration_ns: u64) -> Medians {
        let Some(times) = self.variants.get(variant) else { return Medians::default() };
        times.profiled.add(duration_ns);
        Medians {
            plain_count: times.plain.count(),
            plain_us: times.plain.median_us(),
            profiled_count: times.profiled.count(),
            profiled_us: times.profiled.median_us(),
        }
    }

    /// Returns true, once, if inferences must be repeated because too few have run without a profile. The first of
    /// these inferences is slower than later ones.
    pub(super) fn claim_repeats(&self, variant: usize) -> bool {
        let Some(times) = self.variants.get(variant) else { return false };
        times.plain.count() < REPEATS && !times.is_claimed.swap(true, Ordering::Relaxed)
    }
}

impl Recent {
    // Relaxed: a median needs no order between durations, and may miss one that is being written.
    fn add(&self, duration_ns: u64) {
        let place = usize::try_from(self.count.fetch_add(1, Ordering::Relaxed)).unwrap_or(0) % KEPT;
        self.values_ns[place].store(duration_ns.max(1), Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    #[allow(clippy::cast_precision_loss)] // nanoseconds of three months fit
    fn median_us(&self) -> Option<f64> {
        let values = self.values_ns.iter().map(|value| value.load(Ordering::Relaxed));
        let mut sorted: Vec<_> = values.filter(|&value| value != 0).collect();
        sorted.sort_unstable();
        let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
        Some((sorted[low] as f64 + sorted[high] as f64) / 2000.0)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn calibration_gives_medians_of_the_last_durations_of_a_specialization() {
        let calibration = Calibration::new(2);
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
        assert_eq!(calibration.add_profiled(2, 1000), Medians::default());
    }

    #[test]
    fn calibration_noted_by_many_threads_counts_all() {
        let calibration = Calibration::new(1);
        let claims = thread::scope(|scope| {
            let note = || {
                let is_mine = calibration.claim_repeats(0);
                (0..1000).for_each(|_| calibration.add_plain(0, 5000));
                usize::from(is_mine)
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(note)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        let medians = calibration.add_profiled(0, 1000);
        assert_eq!((medians.plain_count, medians.plain_us), (4000, Some(5.0)));
        assert!(claims <= 1);
    }
}
