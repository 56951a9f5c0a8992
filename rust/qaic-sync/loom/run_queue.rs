//! Threads share run queues: every entry is taken once, those of an ordered queue by one thread at a time.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::{RunQueues, with_preemptions};

struct Work {
    queues: RunQueues,
    // The thread with the turn accesses this number; loom reports concurrent accesses.
    runs: UnsafeCell<u32>,
}

impl Work {
    fn new(is_ordered: bool) -> Arc<Self> {
        Arc::new(Self { queues: RunQueues::new(1, 2, is_ordered), runs: UnsafeCell::new(0) })
    }

    fn touch(&self) {
        self.runs.with_mut(|runs| unsafe { *runs += 1 });
    }

    /// Takes one entry, if there is one.
    fn run(&self) -> u32 {
        let Some(taken) = self.queues.take() else { return 0 };
        if taken.turn.is_some() {
            self.touch();
        }
        1
    }
}

/// Two threads each push an entry and take available entries; together with a last take, they take both
/// entries.
fn every_entry_is_taken_once(is_ordered: bool) {
    with_preemptions(3, move || {
        let work = Work::new(is_ordered);
        let threads = [0, 1].map(|entry| {
            let work = Arc::clone(&work);
            thread::spawn(move || {
                work.queues.push(0, entry).unwrap();
                work.run()
            })
        });
        let mut ran: u32 = threads.map(|thread| thread.join().unwrap()).iter().sum();
        while !work.queues.is_empty() {
            ran += work.run();
        }
        assert_eq!(ran, 2);
        if is_ordered {
            work.runs.with(|runs| assert_eq!(unsafe { *runs }, 2));
        }
    });
}

#[test]
fn every_entry_of_an_ordered_queue_is_taken_once_by_one_thread_at_a_time() {
    every_entry_is_taken_once(true);
}

#[test]
fn every_entry_of_a_queue_without_order_is_taken_once() {
    every_entry_is_taken_once(false);
}

/// A caller that finds the queue idle takes the turn, while another thread pushes an entry. The entry is not
/// left behind.
#[test]
fn turn_of_a_caller_leaves_no_entry_behind() {
    with_preemptions(3, || {
        let work = Work::new(true);
        let pusher = {
            let work = Arc::clone(&work);
            thread::spawn(move || {
                work.queues.push(0, 1).unwrap();
                work.run()
            })
        };
        if let Some(turn) = work.queues.try_turn(0) {
            work.touch();
            drop(turn);
        }
        let mut ran = pusher.join().unwrap();
        while !work.queues.is_empty() {
            ran += work.run();
        }
        assert_eq!(ran, 1);
        assert!(work.queues.try_turn(0).is_some(), "nothing waits and no thread works");
    });
}
