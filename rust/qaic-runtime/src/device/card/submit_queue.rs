//! Execute calls of one channel: one at a time, in order, and without a lock.
//!
//! Before Linux 6.18, which guards the head and tail pointers, kernels corrupt the queue of a channel if two threads
//! submit at once. Therefore, only one thread at a time makes the calls. A thread that finds another active thread
//! leaves its submission in a queue and continues; the active thread also makes that call. No thread waits to submit,
//! and submissions reach the card in the order of the queue.

use crossbeam_queue::ArrayQueue;
use qaic_kmd::abi::{ExecuteEntry, PartialExecuteEntry};
use qaic_kmd::{AccelFile, Errno, EventCounter};
use std::sync::Arc;
use std::time::Duration;

use super::errno::uninterrupted;
use super::slices::{BufferLayout, RING_ELEMENTS};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The calls of one channel.
#[derive(Debug)]
pub(super) struct SubmitQueue {
    dbc_id: u32,
    /// True while a thread makes calls.
    is_active: AtomicBool,
    /// Submissions of threads that found another active thread.
    waiting: ArrayQueue<Arc<Submission>>,
    /// Counts the calls that a thread made for another thread.
    made: EventCounter,
}

/// Requests of an exec on the card, and the result of its latest submission.
#[derive(Debug)]
pub(super) struct Submission {
    list: List,
    /// [`PENDING`], or an outcome.
    outcome: AtomicU32,
}

/// Entries of the execute call, one per buffer object.
#[derive(Debug)]
enum List {
    Whole(Vec<ExecuteEntry>),
    Partial(Vec<PartialEntry>),
}

/// Buffer object of a program with partial inputs.
#[derive(Debug)]
struct PartialEntry {
    handle: u32,
    dir: u32,
    /// Number of bytes to transfer in the next inference.
    resize: AtomicU64,
}

// All other values are error numbers.
const TAKEN: u32 = 0;
const PENDING: u32 = u32::MAX;

/// Entries of a call with partial inputs. A thread fills the entries for each call and keeps the allocation.
pub(super) type Scratch = Vec<PartialExecuteEntry>;

impl Submission {
    /// Creates the requests from buffer objects, given by handle and layout, in submission order.
    pub(super) fn new<'a>(
        objects: impl Iterator<Item = (u32, &'a BufferLayout)>,
        is_partial: bool,
    ) -> Arc<Self> {
        let list = if is_partial {
            let entry = |(handle, layout): (u32, &BufferLayout)| PartialEntry {
                handle,
                dir: layout.dir,
                resize: AtomicU64::new(layout.bytes),
            };
            List::Partial(objects.map(entry).collect())
        } else {
            let entry = |(handle, layout): (u32, &BufferLayout)| ExecuteEntry { handle, dir: layout.dir };
            List::Whole(objects.map(entry).collect())
        };
        Arc::new(Self { list, outcome: AtomicU32::new(TAKEN) })
    }

    /// Handle of a buffer object.
    pub(super) fn handle(&self, position: usize) -> u32 {
        match &self.list {
            List::Whole(entries) => entries.get(position).map_or(0, |entry| entry.handle),
            List::Partial(entries) => entries.get(position).map_or(0, |entry| entry.handle),
        }
    }

    /// Sets the number of bytes of a buffer object to transfer in the next inference, for programs that transfer
    /// parts of buffers.
    pub(super) fn set_resize(&self, position: usize, bytes: u64) {
        if let List::Partial(entries) = &self.list
            && let Some(entry) = entries.get(position)
        {
            // Relaxed: published with the submission.
            entry.resize.store(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the result of the submission; `None` if another thread is going to make the call.
    pub(super) fn outcome(&self) -> Option<Result<(), Errno>> {
        // Acquires the writes of the thread that made the call.
        match self.outcome.load(Ordering::Acquire) {
            PENDING => None,
            TAKEN => Some(Ok(())),
            errno => Some(Err(Errno::from_raw_os_error(errno.cast_signed()))),
        }
    }

    fn set_outcome(&self, outcome: Result<(), Errno>) {
        let word = outcome.map_or_else(|errno| errno.raw_os_error().cast_unsigned(), |()| TAKEN);
        // Publishes the call to the owner.
        self.outcome.store(word, Ordering::Release);
    }

    fn call(&self, file: &dyn AccelFile, dbc_id: u32, scratch: &mut Scratch) -> Result<(), Errno> {
        match &self.list {
            List::Whole(entries) => uninterrupted(|| file.execute(dbc_id, entries)),
            List::Partial(entries) => {
                scratch.clear();
                scratch.extend(entries.iter().map(|entry| PartialExecuteEntry {
                    handle: entry.handle,
                    dir: entry.dir,
                    resize: entry.resize.load(Ordering::Relaxed),
                }));
                uninterrupted(|| file.partial_execute(dbc_id, scratch))
            }
        }
    }
}

impl SubmitQueue {
    pub(super) fn new(dbc_id: u32) -> Self {
        Self {
            dbc_id,
            is_active: AtomicBool::new(false),
            // The ring of the channel has fewer elements.
            waiting: ArrayQueue::new(RING_ELEMENTS as usize),
            made: EventCounter::default(),
        }
    }

    /// Ensures that the call of a submission is made, by this thread or by the active thread; [`Submission::outcome`]
    /// returns the result.
    ///
    /// Does not wait for other threads, but also makes their calls.
    pub(super) fn submit(&self, submission: &Arc<Submission>, file: &dyn AccelFile, scratch: &mut Scratch) {
        // Relaxed: the owner reads its own word, and the queue publishes it to others.
        submission.outcome.store(PENDING, Ordering::Relaxed);
        if self.is_active.swap(true, Ordering::SeqCst) {
            if self.waiting.push(Arc::clone(submission)).is_err() {
                return submission.set_outcome(Err(Errno::AGAIN));
            }
            // The other thread may have finished its last check of the queue before the push.
            if !self.is_active.swap(true, Ordering::SeqCst) {
                self.make_calls(None, file, scratch);
            }
        } else {
            self.make_calls(Some(submission), file, scratch);
        }
    }

    /// Makes the waiting calls, then this thread's own call. The caller must have set `is_active`.
    fn make_calls(&self, own: Option<&Arc<Submission>>, file: &dyn AccelFile, scratch: &mut Scratch) {
        let mut own = own;
        loop {
            let active = ActiveGuard(self);
            while let Some(submission) = self.waiting.pop() {
                self.make_call(&submission, file, scratch);
                self.made.notify();
            }
            if let Some(own) = own.take() {
                self.make_call(own, file, scratch);
            }
            drop(active);
            // An owner may have pushed an entry after the last check and found this thread active. Sequentially
            // consistent: either the owner sees that this thread has ended, or this thread sees the remaining
            // entries.
            if self.waiting.is_empty() || self.is_active.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }

    fn make_call(&self, submission: &Arc<Submission>, file: &dyn AccelFile, scratch: &mut Scratch) {
        // A panic in the call, for example in the cores of emulated cards, also produces a result.
        let mut guard = OutcomeGuard { submission, outcome: Err(Errno::IO) };
        guard.outcome = submission.call(file, self.dbc_id, scratch);
    }

    /// Waits until the call of a submission was made.
    ///
    /// Blocking: as long as the active thread makes calls.
    pub(super) fn wait(&self, submission: &Submission) -> Result<(), Errno> {
        loop {
            if let Some(outcome) = submission.outcome() {
                return outcome;
            }
            let listener = self.made.listen();
            if submission.outcome().is_none() {
                listener.wait(Duration::MAX);
            }
        }
    }
}

/// Clears `is_active` on drop, also after a panic in a call.
struct ActiveGuard<'a>(&'a SubmitQueue);

impl Drop for ActiveGuard<'_> {
    fn drop(&mut self) {
        self.0.is_active.store(false, Ordering::SeqCst);
    }
}

struct OutcomeGuard<'a> {
    submission: &'a Submission,
    outcome: Result<(), Errno>,
}

impl Drop for OutcomeGuard<'_> {
    fn drop(&mut self) {
        self.submission.set_outcome(self.outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use qaic_kmd::Ioctl;
    use qaic_kmd::abi::DIR_TO_DEVICE;
    use qaic_mem::Mapping;

    use super::*;

    /// A card that records the first handle of each call, refuses handle 13, and panics if two threads call it
    /// concurrently.
    #[derive(Debug, Default)]
    struct Card {
        is_in_call: AtomicBool,
        taken: Mutex<Vec<(u32, u64)>>,
    }

    impl AccelFile for Card {
        fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
            assert!(!self.is_in_call.swap(true, Ordering::SeqCst), "two calls at once");
            let entry = match call {
                Ioctl::Execute { dbc_id: 3, entries } => (entries[0].handle, 0),
                Ioctl::PartialExecute { dbc_id: 3, entries } => (entries[0].handle, entries[0].resize),
                other => panic!("{other:?}"),
            };
            thread::yield_now();
            self.taken.lock().unwrap().push(entry);
            self.is_in_call.store(false, Ordering::SeqCst);
            if entry.0 == 13 { Err(Errno::AGAIN) } else { Ok(()) }
        }

        fn map(&self, _: u64, _: usize) -> Result<Mapping, Errno> {
            Err(Errno::NOSYS)
        }
    }

    fn layout() -> BufferLayout {
        BufferLayout { dma: Some(0), bytes: 4096, dir: DIR_TO_DEVICE, slices: Vec::new() }
    }

    fn submission(handle: u32, is_partial: bool) -> Arc<Submission> {
        Submission::new(std::iter::once((handle, &layout())), is_partial)
    }

    #[test]
    fn submission_without_others_is_made_at_once_with_its_outcome() {
        let (queue, card, mut scratch) = (SubmitQueue::new(3), Card::default(), Scratch::new());
        let partial = submission(7, true);
        partial.set_resize(0, 17);
        queue.submit(&partial, &card, &mut scratch);
        assert_eq!(partial.outcome(), Some(Ok(())));
        let refused = submission(13, false);
        queue.submit(&refused, &card, &mut scratch);
        assert_eq!((refused.outcome(), queue.wait(&refused)), (Some(Err(Errno::AGAIN)), Err(Errno::AGAIN)));
        assert_eq!(*card.taken.lock().unwrap(), [(7, 17), (13, 0)]);
    }

    #[test]
    fn submissions_left_while_a_thread_is_active_are_made_by_it_in_order() {
        let (queue, card, mut scratch) = (SubmitQueue::new(3), Card::default(), Scratch::new());
        queue.is_active.store(true, Ordering::SeqCst);
        let left: Vec<_> = (1..4).map(|handle| submission(handle, false)).collect();
        for submission in &left {
            queue.submit(submission, &card, &mut scratch);
            assert_eq!(submission.outcome(), None);
        }
        assert!(card.taken.lock().unwrap().is_empty());
        // The active thread has finished its last check; the next one finds the remaining entries.
        queue.is_active.store(false, Ordering::SeqCst);
        queue.submit(&submission(4, false), &card, &mut scratch);
        let handles: Vec<_> = card.taken.lock().unwrap().iter().map(|entry| entry.0).collect();
        assert_eq!(handles, [1, 2, 3, 4]);
        assert!(left.iter().all(|submission| submission.outcome() == Some(Ok(()))));
    }

    #[test]
    fn more_submissions_than_the_ring_holds_fail_with_ring_full() {
        let (queue, card, mut scratch) = (SubmitQueue::new(3), Card::default(), Scratch::new());
        queue.is_active.store(true, Ordering::SeqCst);
        for handle in 0..RING_ELEMENTS {
            queue.submit(&submission(handle, false), &card, &mut scratch);
        }
        let beyond = submission(7, false);
        queue.submit(&beyond, &card, &mut scratch);
        assert_eq!(beyond.outcome(), Some(Err(Errno::AGAIN)));
    }

    #[test]
    fn call_that_panics_is_answered_and_ends_the_turn() {
        let (queue, card, mut scratch) = (SubmitQueue::new(4), Card::default(), Scratch::new());
        let other = submission(1, false);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            queue.submit(&other, &card, &mut scratch);
        }));
        assert!(outcome.is_err());
        assert_eq!(other.outcome(), Some(Err(Errno::IO)));
        assert!(!queue.is_active.load(Ordering::SeqCst));
    }

    #[test]
    fn threads_that_submit_at_once_make_each_call_once_and_one_at_a_time() {
        const THREADS: u32 = 8;
        const ROUNDS: u64 = 500;
        let (queue, card) = (SubmitQueue::new(3), Card::default());
        thread::scope(|scope| {
            for handle in 100..100 + THREADS {
                let (queue, card) = (&queue, &card);
                scope.spawn(move || {
                    let (mine, mut scratch) = (submission(handle, true), Scratch::new());
                    for round in 0..ROUNDS {
                        mine.set_resize(0, round);
                        queue.submit(&mine, card, &mut scratch);
                        assert_eq!(queue.wait(&mine), Ok(()));
                    }
                });
            }
        });
        let taken = card.taken.lock().unwrap();
        for handle in 100..100 + THREADS {
            let rounds: Vec<_> =
                taken.iter().filter(|entry| entry.0 == handle).map(|entry| entry.1).collect();
            assert_eq!(rounds, (0..ROUNDS).collect::<Vec<_>>());
        }
    }
}
