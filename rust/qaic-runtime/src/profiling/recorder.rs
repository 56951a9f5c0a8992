//! Keeps samples until the profiler fetches them.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use qaic_stats::HostSample;
use qaic_sync::{Event, EventCount};

use super::quota::{SampleQuota, SamplingRule};
use crate::sync::{AtomicBool, Mutex, Ordering};

/// Maximum amounts that a recorder keeps; further samples are counted and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of samples.
    pub samples: usize,
    /// Total bytes of the device's stats buffers.
    pub stats_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { samples: 1 << 20, stats_bytes: 1 << 30 }
    }
}

/// Selection of programs whose stats buffers are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceStats {
    /// None, which costs the least.
    #[default]
    Never,
    /// Programs that were compiled with an output for the stats buffer.
    WhereAskedFor,
    /// All programs that have a stats buffer.
    Always,
}

/// One inference of a profile.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Times and numbers of the host.
    pub host: HostSample,
    /// The device's stats buffer, if the profiler keeps it and the program has one.
    pub stats: Option<Arc<[u8]>>,
}

/// Samples since the last time they were fetched.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Samples in the order in which the inferences ended.
    pub samples: Vec<Sample>,
    /// Number of samples beyond the limits, by number of the program.
    pub dropped: BTreeMap<u32, u64>,
}

impl Collected {
    /// Returns the samples of one program, and its count of dropped samples.
    #[must_use]
    pub(crate) fn of_program(&self, program: u32) -> Self {
        let samples = self.samples.iter().filter(|sample| sample.host.program == program).cloned();
        let dropped = self.dropped.get_key_value(&program).map(|(program, count)| (*program, *count));
        Self { samples: samples.collect(), dropped: dropped.into_iter().collect() }
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    rule: SamplingRule,
    limits: Limits,
    device: DeviceStats,
    state: Mutex<RecorderState>,
    // Notifies threads that wait for all samples.
    complete: EventCount,
}

#[derive(Debug, Default)]
struct RecorderState {
    subscriptions: Vec<Arc<Subscription>>,
    collected: Collected,
    stats_bytes: usize,
    // True if all samples have been complete at some time since the start. Programs may end before a caller waits for
    // the samples.
    was_complete: bool,
}

impl RecorderState {
    fn add(&mut self, subscription: Arc<Subscription>) {
        self.was_complete = false;
        self.subscriptions.push(subscription);
    }

    fn is_complete(&self) -> bool {
        let mut quotas = self.subscriptions.iter().map(|subscription| &subscription.quota);
        self.was_complete || !self.subscriptions.is_empty() && quotas.all(SampleQuota::is_complete)
    }
}

/// A program that a recorder samples, from its addition or the recorder's start until its removal or the recorder's
/// stop.
#[derive(Debug)]
pub(crate) struct Subscription {
    recorder: Arc<Recorder>,
    // Number of the program in the recorder.
    program: u32,
    quota: SampleQuota,
    // True if the stats buffers of this program are kept.
    wants_device: bool,
    // Changes only under the lock of the recorder's state.
    is_over: AtomicBool,
}

/// Reservation for the sample of one inference. Dropping it before [`Self::record`] releases the reservation.
#[derive(Debug)]
pub(crate) struct SampleSlot {
    subscription: Arc<Subscription>,
    activation: u32,
    is_open: bool,
}

impl Recorder {
    pub(crate) fn new(rule: SamplingRule, limits: Limits, device: DeviceStats) -> Arc<Self> {
        Arc::new(Self { rule, limits, device, state: Mutex::default(), complete: EventCount::default() })
    }

    /// Samples inferences of program `program` from number `begin` on. `stats` contains two flags: the program has a
    /// stats buffer, and the program has the stats buffer as an output.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        program: u32,
        begin: u64,
        activations: u32,
        stats: (bool, bool),
    ) -> Arc<Subscription> {
        let (has_buffer, has_output) = stats;
        let subscription = Arc::new(Subscription {
            recorder: Arc::clone(self),
            program,
            quota: SampleQuota::new(self.rule, begin, activations),
            wants_device: match self.device {
                DeviceStats::Never => false,
                DeviceStats::WhereAskedFor => has_output,
                DeviceStats::Always => has_buffer,
            },
            is_over: AtomicBool::new(false),
        });
        self.state.lock().add(Arc::clone(&subscription));
        subscription
    }

    /// Discards samples that were not fetched, and clears the completion state.
    pub(crate) fn clear(&self) {
        drop(self.drain());
        self.state.lock().was_complete = false;
    }

    /// Returns the samples since the last call.
    pub(crate) fn drain(&self) -> Collected {
        let mut state = self.state.lock();
        state.stats_bytes = 0;
        mem::take(&mut state.collected)
    }

    /// Returns true if all samples of the rule are recorded; never true for a rule without a count.
    pub(crate) fn is_complete(&self) -> bool {
        self.state.lock().is_complete()
    }

    /// Waits for [`Self::is_complete`], at most `limit`. A spurious notification ends the wait early.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.complete.wait(limit, || self.is_complete().then_some(())).is_some()
    }
}

impl Subscription {
    /// Returns true if this recorder owns the sample.
    pub(crate) fn is_of(&self, recorder: &Arc<Recorder>) -> bool {
        Arc::ptr_eq(&self.recorder, recorder)
    }

    /// Reserves a sample for an inference that begins, if the rule selects it.
    pub(crate) fn reserve(self: &Arc<Self>, activation: u32, number: u64) -> Option<SampleSlot> {
        let is_wanted = self.quota.reserve(activation, number);
        is_wanted.then(|| SampleSlot { subscription: Arc::clone(self), activation, is_open: true })
    }

    /// Ends the subscription. Inferences in flight are not recorded; recorded samples stay.
    pub(crate) fn end(&self) {
        let mut state = self.recorder.state.lock();
        self.is_over.store(true, Ordering::Relaxed);
        state.subscriptions.retain(|other| !std::ptr::eq(&raw const **other, self));
        drop(state);
        self.recorder.complete.notify_all();
    }
}

impl SampleSlot {
    /// Returns true if the sample keeps the device's stats buffer.
    pub(crate) fn wants_device(&self) -> bool {
        self.subscription.wants_device
    }

    /// Records the sample of an inference that succeeded.
    pub(crate) fn record(mut self, mut host: HostSample, buffer: Option<&Arc<[u8]>>) {
        self.is_open = false;
        let Subscription { recorder, program, quota, wants_device, is_over } = &*self.subscription;
        host.program = *program;
        let buffer = buffer.filter(|_| *wants_device).cloned();
        let mut state = recorder.state.lock();
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let bytes = state.stats_bytes.saturating_add(buffer.as_ref().map_or(0, |buffer| buffer.len()));
        if state.collected.samples.len() < recorder.limits.samples && bytes <= recorder.limits.stats_bytes {
            state.stats_bytes = bytes;
            state.collected.samples.push(Sample { host, stats: buffer });
        } else {
            *state.collected.dropped.entry(*program).or_default() += 1;
        }
        quota.commit(self.activation);
        let is_complete = quota.is_complete() && state.is_complete();
        state.was_complete |= is_complete;
        drop(state);
        if is_complete {
            recorder.complete.notify_all();
        }
    }
}

impl Drop for SampleSlot {
    fn drop(&mut self) {
        if self.is_open {
            self.subscription.quota.release(self.activation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscribed(count: Option<u64>, limits: Limits) -> (Arc<Recorder>, Arc<Subscription>) {
        let recorder =
            Recorder::new(SamplingRule { count, ..SamplingRule::default() }, limits, DeviceStats::Always);
        let subscription = recorder.subscribe(0, 0, 1, (true, false));
        (recorder, subscription)
    }

    #[test]
    fn recorder_at_its_limits_counts_dropped_samples() {
        let limits = Limits { samples: 3, stats_bytes: 100 };
        let (recorder, subscription) = subscribed(None, limits);
        let stats: Arc<[u8]> = vec![0; 40].into();
        for number in 0..4 {
            subscription.reserve(0, number).unwrap().record(HostSample::default(), Some(&stats));
        }
        let first = recorder.drain();
        assert_eq!((first.samples.len(), first.dropped), (2, [(0, 2)].into()));
        for number in 4..9 {
            subscription.reserve(0, number).unwrap().record(HostSample::default(), None);
        }
        let next = recorder.drain();
        assert_eq!((next.samples.len(), next.dropped), (3, [(0, 2)].into()));
    }

    #[test]
    fn collected_of_two_programs_separates_them() {
        let recorder = Recorder::new(
            SamplingRule::default(),
            Limits { samples: 3, ..Limits::default() },
            DeviceStats::Never,
        );
        let programs = [0, 1].map(|program| recorder.subscribe(program, 0, 1, (false, false)));
        for number in 0..5 {
            let [first, second] = &programs;
            let subscription = if number == 0 { first } else { second };
            subscription.reserve(0, number).unwrap().record(HostSample::default(), None);
        }
        let collected = recorder.drain();
        let of = |program| {
            let of_it = collected.of_program(program);
            (of_it.samples.len(), of_it.dropped.values().sum::<u64>())
        };
        assert_eq!([of(0), of(1), of(2)], [(1, 0), (2, 2), (0, 0)]);
    }

    #[test]
    fn recorder_after_the_end_of_a_complete_program_stays_complete() {
        let (recorder, subscription) = subscribed(Some(1), Limits::default());
        subscription.reserve(0, 0).unwrap().record(HostSample::default(), None);
        subscription.end();
        assert!(recorder.is_complete());
        recorder.clear();
        assert!(!recorder.is_complete());
    }

    #[test]
    fn slot_of_an_ended_subscription_records_nothing() {
        let (recorder, first) = subscribed(Some(1), Limits::default());
        let old = first.reserve(0, 0).unwrap();
        assert!(first.reserve(0, 1).is_none());
        first.end();
        assert!(!recorder.is_complete());
        let next = recorder.subscribe(0, 5, 1, (true, true));
        old.record(HostSample::default(), None);
        assert!(!recorder.is_complete());
        next.reserve(0, 5).unwrap().record(HostSample::default(), None);
        assert!(recorder.wait(Duration::from_mins(1)));
        assert_eq!(recorder.drain().samples.len(), 1);
    }

    #[test]
    fn slot_dropped_without_a_sample_is_reserved_again() {
        let (recorder, subscription) = subscribed(Some(1), Limits::default());
        drop(subscription.reserve(0, 0).unwrap());
        subscription.reserve(0, 1).unwrap().record(HostSample::default(), None);
        assert!(recorder.is_complete());
        assert!(subscription.reserve(0, 2).is_none());
    }
}
