//! Selection of the inferences that become samples, by first, count and rate.

use crate::sync::{AtomicU64, Ordering};

/// Rule that selects the sampled inferences of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingRule {
    /// Number of inferences of the program that are skipped at the start.
    pub first: u64,
    /// Maximum number of samples of each activation.
    pub count: Option<u64>,
    /// Sampling rate: one in this many inferences of each activation; 1 samples all.
    pub every: u32,
}

impl Default for SamplingRule {
    fn default() -> Self {
        Self { first: 0, count: None, every: 1 }
    }
}

/// Counts the samples of one program against a [`SamplingRule`].
///
/// The rate applies to each activation separately. With a common count, two activations that alternate and a rate of
/// two would leave one of them without samples.
#[derive(Debug)]
pub(crate) struct SampleQuota {
    rule: SamplingRule,
    begin: u64,
    activations: Box<[ActivationCounts]>,
}

// Counters; they publish no other data.
#[derive(Debug, Default)]
struct ActivationCounts {
    seen: AtomicU64,
    reserved: AtomicU64,
    taken: AtomicU64,
}

impl SampleQuota {
    /// Starts to count at inference number `begin`.
    pub(crate) fn new(rule: SamplingRule, begin: u64, activations: u32) -> Self {
        Self { rule, begin, activations: (0..activations).map(|_| ActivationCounts::default()).collect() }
    }

    /// Reserves a sample for an inference that begins; returns false if the rule skips the inference. Each
    /// reservation ends with [`Self::commit`] or [`Self::release`].
    pub(crate) fn reserve(&self, activation: u32, number: u64) -> bool {
        let since = number.checked_sub(self.begin);
        if since.is_none_or(|since| since < self.rule.first) {
            return false;
        }
        let Some(activation) = self.activations.get(activation as usize) else { return false };
        let seen = activation.seen.fetch_add(1, Ordering::Relaxed);
        if !seen.is_multiple_of(u64::from(self.rule.every.max(1))) {
            return false;
        }
        let Some(count) = self.rule.count else { return true };
        let more = |reserved| (reserved < count).then_some(reserved + 1);
        activation.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts the sample of an inference that succeeded.
    pub(crate) fn commit(&self, activation: u32) {
        if self.rule.count.is_some()
            && let Some(activation) = self.activations.get(activation as usize)
        {
            activation.taken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the reservation of an inference that failed; a later inference takes it.
    pub(crate) fn release(&self, activation: u32) {
        if self.rule.count.is_some()
            && let Some(activation) = self.activations.get(activation as usize)
        {
            activation.reserved.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns true if every activation has as many samples as the rule requires.
    pub(crate) fn is_complete(&self) -> bool {
        let count = self.rule.count;
        count.is_some_and(|count| {
            self.activations.iter().all(|activation| activation.taken.load(Ordering::Relaxed) >= count)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The model is a list: the numbers of each activation from `first` on, every nth of them, the first `count` of those.
        #[test]
        fn quota_with_any_rule_reserves_the_slice_of_each_activation(
            activations in proptest::collection::vec(0_u32..3, 0..200),
            begin in 0_u64..5,
            first in 0_u64..20,
            count in proptest::option::of(0_u64..10),
            every in 1_u32..17,
        ) {
            let quota = SampleQuota::new(SamplingRule { first, count, every }, begin, 3);
            let mut found = vec![Vec::new(); 3];
            for (number, &activation) in (0_u64..).zip(&activations) {
                if quota.reserve(activation, number) {
                    quota.commit(activation);
                    found[activation as usize].push(number);
                }
            }
            let limit = count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
            for activation in 0..3_u32 {
                let numbers = (0_u64..).zip(&activations).filter(|&(_, found)| *found == activation).map(|(number, _)| number);
                let expected: Vec<u64> =
                    numbers.filter(|&number| number >= begin + first).step_by(every as usize).take(limit).collect();
                prop_assert_eq!(&found[activation as usize], &expected);
            }
            let full = count.is_some_and(|count| found.iter().all(|activation| activation.len() as u64 == count));
            prop_assert_eq!(quota.is_complete(), full);
        }

        /// Failed inferences neither raise nor lower the number of samples.
        #[test]
        fn quota_with_failures_ends_with_exactly_count_samples(fails in proptest::collection::vec(any::<bool>(), 0..60), count in 1_u64..10) {
            let quota = SampleQuota::new(SamplingRule { count: Some(count), ..SamplingRule::default() }, 0, 1);
            let mut taken = 0;
            for (number, &fails) in (0_u64..).zip(fails.iter().chain([&false; 10])) {
                if quota.reserve(0, number) {
                    if fails { quota.release(0) } else { quota.commit(0); taken += 1 }
                }
            }
            prop_assert_eq!(taken, count);
            prop_assert!(quota.is_complete());
        }
    }
}
