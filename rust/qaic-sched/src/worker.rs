//! The threads that process the run queues. Each thread starts when it is first needed.

use std::mem::{self, ManuallyDrop};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use qaic_sync::atomic::{AtomicU32, Mutex, Ordering};
use qaic_sync::{Event, EventCount, Thread};

use crate::scheduler::Shared;
use crate::{Job, UNTIL_WOKEN};

/// Workers of a scheduler.
#[derive(Debug)]
pub(crate) struct Workers {
    idle: EventCount,
    most: AtomicU32,
    spawned: AtomicU32,
    // Not dropped automatically: a forked process must not access its parent's handles.
    handles: ManuallyDrop<Mutex<Vec<Thread>>>,
}

impl Workers {
    /// Creates an empty set of workers, with `most` workers at a time.
    pub(crate) fn new(most: u32) -> Self {
        Self {
            idle: EventCount::default(),
            most: AtomicU32::new(most),
            spawned: AtomicU32::new(0),
            handles: ManuallyDrop::default(),
        }
    }

    /// Maximum number of workers at a time.
    pub(crate) fn most(&self) -> u32 {
        self.most.load(Ordering::Acquire)
    }

    /// Returns true if there are no workers, because none was needed or the system provides no threads.
    pub(crate) fn are_missing(&self) -> bool {
        self.spawned.load(Ordering::Acquire) == 0
    }

    /// Number of idle workers; an estimate while workers start and stop.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn sleeping(&self) -> u32 {
        self.idle.waiting()
    }

    /// Changes the maximum number of workers. Returns true if the number has increased.
    pub(crate) fn allow(&self, most: u32) -> bool {
        self.most.swap(most, Ordering::AcqRel) < most
    }

    /// Wakes an idle worker, or starts one.
    pub(crate) fn call<J: Job>(&self, shared: &Arc<Shared<J>>) {
        if !self.idle.notify_one() && self.spawned.load(Ordering::Relaxed) < self.most() {
            self.spawn(shared);
        }
    }

    /// Removes the calling worker from the count if there are more workers than allowed.
    fn is_surplus(&self) -> bool {
        let fewer = |spawned| (spawned > self.most()).then(|| spawned - 1);
        self.spawned.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_ok()
    }

    fn spawn<J: Job>(&self, shared: &Arc<Shared<J>>) {
        // Counts in one step: a worker that saw a count over the limit would end as surplus.
        let more = |spawned| (spawned < self.most()).then(|| spawned + 1);
        if shared.is_stopping() {
            return;
        }
        let Ok(number) = self.spawned.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) else { return };
        let life = {
            let shared = Arc::clone(shared);
            move || {
                (shared.options.begin_worker)();
                work(&shared);
            }
        };
        match Thread::spawn(format!("qaic-exec-{number}"), life) {
            Ok(handle) => {
                let mut handles = self.handles.lock();
                handles.retain(|thread| !thread.has_ended());
                handles.push(handle);
            }
            // Waiting callers run the queued inferences.
            Err(error) => {
                self.spawned.fetch_sub(1, Ordering::AcqRel);
                (shared.options.warn)(&format!(
                    "a worker did not start: {error}; waiting callers run the inferences"
                ));
            }
        }
    }

    /// Ends all workers, after the scheduler has announced the stop.
    pub(crate) fn stop(&self) {
        let handles = mem::take(&mut *self.handles.lock());
        self.idle.notify_all();
        // A worker may have held the last reference to the scheduler.
        handles.into_iter().filter(|thread| !thread.is_current()).for_each(Thread::join);
    }
}

/// Main function of a worker thread.
fn work<J: Job>(shared: &Arc<Shared<J>>) {
    let workers = &shared.workers;
    while !shared.is_stopping() {
        if workers.is_surplus() {
            // The call that woke this worker was for a worker within the limit.
            if shared.has_work() {
                shared.call_worker();
            }
            return;
        }
        // Errors of inferences are caught in deeper layers. A panic must not end a worker, because its place would be
        // lost.
        match catch_unwind(AssertUnwindSafe(|| shared.work(None))) {
            Ok(true) => {}
            Ok(false) => {
                let is_wanted = || (shared.has_work() || shared.is_stopping()).then_some(());
                let _ = workers.idle.wait(UNTIL_WOKEN, is_wanted);
            }
            Err(_) => (shared.options.warn)("a worker panicked and continues"),
        }
    }
}
