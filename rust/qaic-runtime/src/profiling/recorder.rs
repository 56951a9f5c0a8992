//! Where samples are kept until somebody fetches them.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use qaic_stats::sample::HostSample;
use qaic_sync::EventCount;

use super::book::{Book, Choice};
use crate::sync::{AtomicBool, Mutex, Ordering};

/// What is kept at most; beyond, samples are counted and not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Samples.
    pub samples: usize,
    /// Bytes of the device's stats buffers, all together.
    pub stats_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { samples: 1 << 20, stats_bytes: 1 << 30 }
    }
}

/// Whose stats buffers are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceStats {
    /// Nobody's: that costs least.
    #[default]
    Never,
    /// Those of programs that were compiled with an output for them.
    WhereAskedFor,
    /// Those of all programs that have one.
    Always,
}

/// One inference of a profile.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What the host saw.
    pub host: HostSample,
    /// The device's stats buffer, where that was wanted and there is one.
    pub stats: Option<Arc<[u8]>>,
}

/// Samples since the last time they were fetched.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// In the order in which the inferences ended.
    pub samples: Vec<Sample>,
    /// Samples that there was no room for, by number of the program.
    pub dropped: BTreeMap<u32, u64>,
}

impl Collected {
    /// The samples of one program, and what there was no room for of it.
    #[must_use]
    pub fn of_program(&self, program: u32) -> Self {
        let samples = self.samples.iter().filter(|sample| sample.host.program == program).cloned();
        let dropped = self.dropped.get_key_value(&program).map(|(program, count)| (*program, *count));
        Self { samples: samples.collect(), dropped: dropped.into_iter().collect() }
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    choice: Choice,
    limits: Limits,
    device: DeviceStats,
    state: Mutex<State>,
    // Threads that wait for all samples.
    complete: EventCount,
}

#[derive(Debug, Default)]
struct State {
    enrolled: Vec<Arc<Enrolment>>,
    collected: Collected,
    stats_bytes: usize,
    // Whether all samples were there at some time since the start. Programs may be gone before anybody looks.
    was_complete: bool,
}

impl State {
    fn add(&mut self, enrolment: Arc<Enrolment>) {
        self.was_complete = false;
        self.enrolled.push(enrolment);
    }

    fn is_complete(&self) -> bool {
        let mut books = self.enrolled.iter().map(|enrolment| &enrolment.book);
        self.was_complete || !self.enrolled.is_empty() && books.all(Book::is_complete)
    }
}

/// A program of which a recorder takes samples, from its addition or the recorder's start until its removal or the
/// recorder's stop.
#[derive(Debug)]
pub(crate) struct Enrolment {
    recorder: Arc<Recorder>,
    // Number of the program among the recorder's.
    program: u32,
    book: Book,
    // Whether the stats buffers of this program are kept.
    wants_device: bool,
    // Changed with the recorder's state locked.
    is_over: AtomicBool,
}

/// An inference that is going to be a sample. Dropped without having been one, it gives its place back.
#[derive(Debug)]
pub(crate) struct Claim {
    enrolment: Arc<Enrolment>,
    lane: u32,
    is_open: bool,
}

impl Recorder {
    pub(crate) fn new(choice: Choice, limits: Limits, device: DeviceStats) -> Arc<Self> {
        Arc::new(Self { choice, limits, device, state: Mutex::default(), complete: EventCount::new() })
    }

    /// Takes inferences of program `program` from number `begin` on. `stats` says where the program has a stats buffer:
    /// at all, and as an output.
    pub(crate) fn enrol(
        self: &Arc<Self>,
        program: u32,
        begin: u64,
        lanes: u32,
        stats: (bool, bool),
    ) -> Arc<Enrolment> {
        let (has_buffer, has_output) = stats;
        let enrolment = Arc::new(Enrolment {
            recorder: Arc::clone(self),
            program,
            book: Book::new(self.choice, begin, lanes),
            wants_device: match self.device {
                DeviceStats::Never => false,
                DeviceStats::WhereAskedFor => has_output,
                DeviceStats::Always => has_buffer,
            },
            is_over: AtomicBool::new(false),
        });
        self.state.lock().add(Arc::clone(&enrolment));
        enrolment
    }

    /// Forgets what was not fetched, and that it was all.
    pub(crate) fn clear(&self) {
        drop(self.drain());
        self.state.lock().was_complete = false;
    }

    /// What was recorded since the last time.
    pub(crate) fn drain(&self) -> Collected {
        let mut state = self.state.lock();
        state.stats_bytes = 0;
        mem::take(&mut state.collected)
    }

    /// Whether all samples that were wanted are there; never where no number was given.
    pub(crate) fn is_complete(&self) -> bool {
        self.state.lock().is_complete()
    }

    /// Waits until then, for `limit` at most, or until somebody wakes it for nothing.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.complete.wait(limit, || self.is_complete().then_some(())).is_some()
    }
}

impl Enrolment {
    /// Whether it is of this recorder.
    pub(crate) fn is_of(&self, recorder: &Arc<Recorder>) -> bool {
        Arc::ptr_eq(&self.recorder, recorder)
    }

    /// Whether the inference that begins is wanted.
    pub(crate) fn claim(self: &Arc<Self>, lane: u32, number: u64) -> Option<Claim> {
        let is_wanted = self.book.claim(lane, number);
        is_wanted.then(|| Claim { enrolment: Arc::clone(self), lane, is_open: true })
    }

    /// Takes no more; inferences under way are not recorded. What was recorded stays.
    pub(crate) fn end(&self) {
        let mut state = self.recorder.state.lock();
        self.is_over.store(true, Ordering::Relaxed);
        state.enrolled.retain(|other| !std::ptr::eq(&raw const **other, self));
        drop(state);
        self.recorder.complete.notify_all();
    }
}

impl Claim {
    /// Whether the device's stats buffer is wanted.
    pub(crate) fn wants_device(&self) -> bool {
        self.enrolment.wants_device
    }

    /// The inference has ended well.
    pub(crate) fn record(mut self, mut host: HostSample, buffer: Option<&Arc<[u8]>>) {
        self.is_open = false;
        let Enrolment { recorder, program, book, wants_device, is_over } = &*self.enrolment;
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
        book.taken(self.lane);
        let is_complete = book.is_complete() && state.is_complete();
        state.was_complete |= is_complete;
        drop(state);
        if is_complete {
            recorder.complete.notify_all();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_open {
            self.enrolment.book.given_back(self.lane);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use super::*;

    fn enrolled(count: Option<u64>, limits: Limits) -> (Arc<Recorder>, Arc<Enrolment>) {
        let recorder = Recorder::new(Choice { count, ..Choice::default() }, limits, DeviceStats::Always);
        let enrolment = recorder.enrol(0, 0, 1, (true, false));
        (recorder, enrolment)
    }

    #[test]
    fn a_full_recorder_counts_what_it_does_not_keep() {
        let limits = Limits { samples: 3, stats_bytes: 100 };
        let (recorder, enrolment) = enrolled(None, limits);
        let stats: Arc<[u8]> = vec![0; 40].into();
        for number in 0..4 {
            enrolment.claim(0, number).unwrap().record(HostSample::default(), Some(&stats));
        }
        let first = recorder.drain();
        assert_eq!((first.samples.len(), first.dropped), (2, [(0, 2)].into()));
        for number in 4..9 {
            enrolment.claim(0, number).unwrap().record(HostSample::default(), None);
        }
        let next = recorder.drain();
        assert_eq!((next.samples.len(), next.dropped), (3, [(0, 2)].into()));
    }

    #[test]
    fn programs_are_told_apart() {
        let recorder =
            Recorder::new(Choice::default(), Limits { samples: 3, ..Limits::default() }, DeviceStats::Never);
        let programs = [0, 1].map(|program| recorder.enrol(program, 0, 1, (false, false)));
        for number in 0..5 {
            let [first, second] = &programs;
            let enrolment = if number == 0 { first } else { second };
            enrolment.claim(0, number).unwrap().record(HostSample::default(), None);
        }
        let collected = recorder.drain();
        let of = |program| {
            let of_it = collected.of_program(program);
            (of_it.samples.len(), of_it.dropped.values().sum::<u64>())
        };
        assert_eq!([of(0), of(1), of(2)], [(1, 0), (2, 2), (0, 0)]);
    }

    #[test]
    fn a_program_that_is_gone_was_complete() {
        let (recorder, enrolment) = enrolled(Some(1), Limits::default());
        enrolment.claim(0, 0).unwrap().record(HostSample::default(), None);
        enrolment.end();
        assert!(recorder.is_complete());
        recorder.clear();
        assert!(!recorder.is_complete());
    }

    #[test]
    fn what_began_before_a_restart_is_not_recorded_after_it() {
        let (recorder, first) = enrolled(Some(1), Limits::default());
        let old = first.claim(0, 0).unwrap();
        assert!(first.claim(0, 1).is_none());
        first.end();
        assert!(!recorder.is_complete());
        let next = recorder.enrol(0, 5, 1, (true, true));
        old.record(HostSample::default(), None);
        assert!(!recorder.is_complete());
        next.claim(0, 5).unwrap().record(HostSample::default(), None);
        assert!(recorder.wait(Duration::from_secs(5)));
        assert_eq!(recorder.drain().samples.len(), 1);
    }

    #[test]
    fn a_claim_that_is_dropped_gives_its_place_to_another() {
        let (recorder, enrolment) = enrolled(Some(1), Limits::default());
        drop(enrolment.claim(0, 0).unwrap());
        enrolment.claim(0, 1).unwrap().record(HostSample::default(), None);
        assert!(recorder.is_complete());
        assert!(enrolment.claim(0, 2).is_none());
    }
}
