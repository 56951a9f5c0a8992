//! Where samples are kept until somebody fetches them.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use qaic_stats::host::HostSample;

use super::book::{Book, Choice};
use crate::queue::Waiters;
use crate::sync::Mutex;

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
    /// Samples that there was no room for.
    pub dropped: u64,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    choice: Choice,
    limits: Limits,
    wants_device: bool,
    state: Mutex<State>,
    // Threads that wait for all samples.
    complete: Waiters,
}

#[derive(Debug, Default)]
struct State {
    // An inference that was claimed before a restart, or before its program was removed, is none of the present ones.
    generation: u64,
    // By number of the program; `None` is one that was removed.
    books: Vec<Option<Book>>,
    collected: Collected,
    stats_bytes: usize,
}

/// An inference that is going to be a sample of a recorder. Dropped without an end, it gives its place back.
#[derive(Debug)]
pub(crate) struct Claim {
    recorder: Option<Arc<Recorder>>,
    generation: u64,
    program: u32,
    lane: u32,
}

impl Recorder {
    pub(crate) fn new(choice: Choice, limits: Limits, wants_device: bool) -> Arc<Self> {
        Arc::new(Self { choice, limits, wants_device, state: Mutex::default(), complete: Waiters::new() })
    }

    /// Whether the device's stats buffers are wanted.
    pub(crate) fn wants_device(&self) -> bool {
        self.wants_device
    }

    /// Forgets everything.
    pub(crate) fn restart(&self) {
        let mut state = self.state.lock();
        let generation = state.generation + 1;
        *state = State { generation, ..State::default() };
    }

    /// Takes inferences of program `program` from number `begin` on.
    pub(crate) fn open(&self, program: u32, begin: u64, lanes: u32) {
        let mut state = self.state.lock();
        let place = program as usize;
        if state.books.len() <= place {
            state.books.resize(place + 1, None);
        }
        state.books[place] = Some(Book::new(self.choice, begin, lanes));
    }

    /// Takes no more of it; those under way are not recorded.
    pub(crate) fn close(&self, program: u32) {
        if let Some(book) = self.state.lock().books.get_mut(program as usize) {
            *book = None;
        }
        self.complete.wake_all();
    }

    /// Takes no more of any; what was recorded stays.
    pub(crate) fn close_all(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.books.clear();
        drop(state);
        self.complete.wake_all();
    }

    /// Whether the inference that begins is wanted.
    pub(crate) fn claim(self: &Arc<Self>, program: u32, lane: u32, number: u64) -> Option<Claim> {
        let mut state = self.state.lock();
        let generation = state.generation;
        let is_wanted = state.books.get_mut(program as usize)?.as_mut()?.claim(lane, number);
        is_wanted.then(|| Claim { recorder: Some(Arc::clone(self)), generation, program, lane })
    }

    /// What was recorded since the last time.
    pub(crate) fn drain(&self) -> Collected {
        let mut state = self.state.lock();
        state.stats_bytes = 0;
        mem::take(&mut state.collected)
    }

    /// Whether all samples that were wanted are there; never where no number was given.
    pub(crate) fn is_complete(&self) -> bool {
        let state = self.state.lock();
        let mut books = state.books.iter().flatten().peekable();
        books.peek().is_some() && books.all(Book::is_complete)
    }

    /// Waits until then, for `limit` at most, or until somebody wakes it for nothing.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.complete.wait(limit, || self.is_complete().then_some(())).is_some()
    }
}

impl Claim {
    /// Whether the device's stats buffer is wanted.
    pub(crate) fn wants_device(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.wants_device)
    }

    /// The inference has ended well.
    pub(crate) fn record(mut self, mut host: HostSample, buffer: Option<&Arc<[u8]>>) {
        let Some(recorder) = self.recorder.take() else { return };
        host.program = self.program;
        let buffer = buffer.filter(|_| recorder.wants_device).cloned();
        let mut state = recorder.state.lock();
        let State { generation, books, collected, stats_bytes } = &mut *state;
        let book = books.get_mut(self.program as usize).and_then(Option::as_mut);
        let Some(book) = book.filter(|_| *generation == self.generation) else { return };
        book.taken(self.lane);
        let is_complete = recorder.choice.count.is_some() && book.is_complete();
        let bytes = stats_bytes.saturating_add(buffer.as_ref().map_or(0, |buffer| buffer.len()));
        if collected.samples.len() < recorder.limits.samples && bytes <= recorder.limits.stats_bytes {
            *stats_bytes = bytes;
            collected.samples.push(Sample { host, stats: buffer });
        } else {
            collected.dropped += 1;
        }
        drop(state);
        if is_complete {
            recorder.complete.wake_all();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(recorder) = self.recorder.take() else { return };
        let mut state = recorder.state.lock();
        let is_its = state.generation == self.generation;
        let book = state.books.get_mut(self.program as usize).and_then(Option::as_mut);
        if let Some(book) = book.filter(|_| is_its) {
            book.given_back(self.lane);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use super::*;

    fn recorder(count: Option<u64>, limits: Limits) -> Arc<Recorder> {
        let recorder = Recorder::new(Choice { count, ..Choice::default() }, limits, true);
        recorder.restart();
        recorder.open(0, 0, 1);
        recorder
    }

    #[test]
    fn a_full_recorder_counts_what_it_does_not_keep() {
        let limits = Limits { samples: 3, stats_bytes: 100 };
        let recorder = recorder(None, limits);
        let stats: Arc<[u8]> = vec![0; 40].into();
        for number in 0..4 {
            recorder.claim(0, 0, number).unwrap().record(HostSample::default(), Some(&stats));
        }
        let first = recorder.drain();
        assert_eq!((first.samples.len(), first.dropped), (2, 2));
        for number in 4..9 {
            recorder.claim(0, 0, number).unwrap().record(HostSample::default(), None);
        }
        let next = recorder.drain();
        assert_eq!((next.samples.len(), next.dropped), (3, 2));
    }

    #[test]
    fn what_began_before_a_restart_is_not_recorded_after_it() {
        let recorder = recorder(Some(1), Limits::default());
        let old = recorder.claim(0, 0, 0).unwrap();
        let dropped = recorder.claim(0, 0, 1);
        assert!(dropped.is_none());
        recorder.restart();
        recorder.open(0, 5, 1);
        old.record(HostSample::default(), None);
        assert!(!recorder.is_complete());
        recorder.claim(0, 0, 5).unwrap().record(HostSample::default(), None);
        assert!(recorder.wait(Duration::from_secs(5)));
        assert_eq!(recorder.drain().samples.len(), 1);
    }

    #[test]
    fn a_claim_that_is_dropped_gives_its_place_to_another() {
        let recorder = recorder(Some(1), Limits::default());
        drop(recorder.claim(0, 0, 0).unwrap());
        recorder.claim(0, 0, 1).unwrap().record(HostSample::default(), None);
        assert!(recorder.is_complete());
        recorder.close(0);
        assert!(!recorder.is_complete());
        assert!(recorder.claim(0, 0, 2).is_none());
    }
}
