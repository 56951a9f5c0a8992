//! Run queues, one per activation, each first in, first out. An ordered queue runs one request at a time.

use qaic_sync::Ring;
use qaic_sync::atomic::{AtomicBool, Ordering, yield_now};

/// Capacity of the list that orders the queues. When the list is full, a pushing thread waits for a taking thread.
const MOST_READY: u32 = 1 << 16;

/// Queues of entries, and the order in which the queues are served.
///
/// In ordered queues, a thread that takes an entry has the [`Turn`] of the queue until it drops the turn. No other
/// thread takes an entry in the meantime.
#[derive(Debug)]
pub(crate) struct RunQueues {
    all: Box<[RunQueue]>,
    // Queues with entries. An ordered queue occurs at most once, others once per entry.
    ready: Ring,
    /// True if the entries of a queue are processed one at a time.
    pub(crate) is_ordered: bool,
}

#[derive(Debug)]
struct RunQueue {
    pending: Ring,
    // True for an ordered queue that is in the ready list or whose turn a thread has.
    is_scheduled: AtomicBool,
}

/// The exclusive right to work on the entries of an ordered queue, released on drop.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    queues: &'a RunQueues,
    queue: u32,
}

/// An entry taken from a queue.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    /// The pushed entry.
    pub(crate) entry: u32,
    /// The turn of an ordered queue.
    pub(crate) turn: Option<Turn<'a>>,
}

impl RunQueues {
    /// Creates empty queues, with room for `capacity` entries in each.
    pub(crate) fn new(count: u32, capacity: u32, is_ordered: bool) -> Self {
        let queue = |_| RunQueue { pending: Ring::new(capacity), is_scheduled: AtomicBool::new(false) };
        let entries = if is_ordered { 1 } else { capacity };
        let ready = Ring::new(count.saturating_mul(entries).min(MOST_READY.max(count)));
        Self { all: (0..count).map(queue).collect(), ready, is_ordered }
    }

    /// Returns true if all queues are empty or have their turn taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Number of entries in a queue; an estimate if it changes concurrently.
    pub(crate) fn waiting(&self, queue: u32) -> usize {
        self.all.get(queue as usize).map_or(0, |queue| queue.pending.len())
    }

    /// Adds an entry at the end of a queue. Returns the entry as an error if the queue is full or does not exist.
    pub(crate) fn push(&self, queue: u32, entry: u32) -> Result<(), u32> {
        let Some(run_queue) = self.all.get(queue as usize) else { return Err(entry) };
        run_queue.pending.push(entry)?;
        // AcqRel: a thread that finds the queue scheduled leaves the entry to the thread with the turn, which must
        // see the entry after it has cleared the flag.
        if !self.is_ordered || !run_queue.is_scheduled.swap(true, Ordering::AcqRel) {
            self.schedule(queue);
        }
        Ok(())
    }

    /// Takes the turn of an ordered queue that is empty and that no thread works on.
    pub(crate) fn try_turn(&self, queue: u32) -> Option<Turn<'_>> {
        let run_queue = self.all.get(queue as usize)?;
        // Acquire: sees the writes of the last turn. The check follows the exchange: an earlier entry has a scheduled
        // queue, and a later one is seen at the end of the turn.
        if run_queue.is_scheduled.swap(true, Ordering::AcqRel) {
            return None;
        }
        let turn = Turn { queues: self, queue };
        // Dropping the turn here passes on the entries that arrived in between.
        run_queue.pending.is_empty().then_some(turn)
    }

    /// Takes the next entry.
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        let queue = self.ready.pop()?;
        let run_queue = self.all.get(queue as usize)?;
        if !self.is_ordered {
            // Every entry of the ready list has an entry in the queue.
            return run_queue.pending.pop().map(|entry| Taken { entry, turn: None });
        }
        let turn = Turn { queues: self, queue };
        // The turn makes this thread the only consumer.
        let entry = run_queue.pending.pop()?;
        Some(Taken { entry, turn: Some(turn) })
    }

    fn schedule(&self, queue: u32) {
        // If the queues together contain more entries than the list has room for, waits until another thread takes
        // one.
        while self.ready.push(queue).is_err() {
            yield_now();
        }
    }
}

impl Turn<'_> {
    /// Releases the turn to another thread, which receives it through [`RunQueues::adopt_turn`].
    pub(crate) fn hand_over(self) -> u32 {
        let queue = self.queue;
        std::mem::forget(self);
        queue
    }
}

impl RunQueues {
    /// Returns the turn that [`Turn::hand_over`] released.
    pub(crate) fn adopt_turn(&self, queue: u32) -> Turn<'_> {
        Turn { queues: self, queue }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(run_queue) = self.queues.all.get(self.queue as usize) else { return };
        if !run_queue.pending.is_empty() {
            return self.queues.schedule(self.queue);
        }
        // An exchange instead of a store: it is ordered with the exchange of a thread that pushes. If it comes later,
        // the entry is seen below; if it comes earlier, that thread finds the queue not scheduled.
        run_queue.is_scheduled.swap(false, Ordering::AcqRel);
        if !run_queue.pending.is_empty() && !run_queue.is_scheduled.swap(true, Ordering::AcqRel) {
            self.queues.schedule(self.queue);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    #[test]
    fn run_queues_serve_each_queue_in_order() {
        for is_ordered in [false, true] {
            let queues = RunQueues::new(2, 8, is_ordered);
            for entry in 0..8 {
                queues.push(entry % 2, entry).unwrap();
            }
            let mut seen = Vec::new();
            while let Some(taken) = queues.take() {
                seen.push(taken.entry);
            }
            assert!(queues.is_empty());
            for queue in 0..2 {
                let own: Vec<_> = seen.iter().copied().filter(|entry| entry % 2 == queue).collect();
                assert!(own.is_sorted() && own.len() == 4, "{seen:?}");
            }
        }
        assert_eq!(RunQueues::new(1, 1, true).push(1, 7), Err(7));
    }

    #[test]
    fn run_queue_that_is_full_leaves_the_others_their_room() {
        for is_ordered in [false, true] {
            let queues = RunQueues::new(2, 2, is_ordered);
            let pushed = [0, 0, 0, 1, 1, 1].map(|queue| queues.push(queue, 7));
            assert_eq!(pushed, [Ok(()), Ok(()), Err(7), Ok(()), Ok(()), Err(7)]);
        }
    }

    #[test]
    fn turn_is_given_while_nothing_waits_and_no_thread_works() {
        let queues = RunQueues::new(1, 4, true);
        let turn = queues.try_turn(0).unwrap();
        assert!(queues.try_turn(0).is_none());
        queues.push(0, 1).unwrap();
        assert!(queues.take().is_none());
        let queue = turn.hand_over();
        assert!(queues.take().is_none());
        drop(queues.adopt_turn(queue));
        assert!(queues.try_turn(0).is_none());
        assert_eq!(queues.take().unwrap().entry, 1);
        assert!(queues.try_turn(0).is_some());
    }

    #[test]
    fn ordered_queue_among_threads_is_served_by_one_at_a_time_and_loses_nothing() {
        const ENTRIES: u32 = 64;
        let queues = RunQueues::new(1, ENTRIES, true);
        let inside = AtomicBool::new(false);
        let done = AtomicU32::new(0);
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while done.load(Ordering::Acquire) < ENTRIES {
                        let Some(taken) = queues.take() else { continue };
                        assert!(!inside.swap(true, Ordering::AcqRel));
                        order.lock().unwrap().push(taken.entry);
                        inside.store(false, Ordering::Release);
                        done.fetch_add(1, Ordering::AcqRel);
                    }
                });
            }
            for entry in 0..ENTRIES {
                queues.push(0, entry).unwrap();
            }
        });
        assert!(order.into_inner().unwrap().into_iter().eq(0..ENTRIES));
    }
}
