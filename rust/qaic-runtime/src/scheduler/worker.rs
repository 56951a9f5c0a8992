//! The threads that empty the run queues. They are made when they are first needed.

use std::mem::{self, ManuallyDrop};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use qaic_sync::{Event, EventCount};

use super::Shared;
use super::priority::give_way_when_woken;
use crate::process::cancellation::UNTIL_WOKEN;
use crate::process::log;
use crate::sync::{AtomicU32, Mutex, Ordering};

/// Workers of a scheduler.
#[derive(Debug)]
pub(super) struct Workers {
    idle: EventCount,
    most: AtomicU32,
    spawned: AtomicU32,
    // Not dropped by themselves: a forked process must not touch its parent's handles.
    handles: ManuallyDrop<Mutex<Vec<JoinHandle<()>>>>,
}

impl Workers {
    /// None yet, and `most` at a time.
    pub(super) fn new(most: u32) -> Self {
        Self {
            idle: EventCount::new(),
            most: AtomicU32::new(most),
            spawned: AtomicU32::new(0),
            handles: ManuallyDrop::default(),
        }
    }

    /// Workers at a time.
    pub(super) fn most(&self) -> u32 {
        self.most.load(Ordering::Acquire)
    }

    /// Returns true if there are no workers, because none was needed or the system gives no threads.
    pub(super) fn are_missing(&self) -> bool {
        self.spawned.load(Ordering::Acquire) == 0
    }

    /// Workers that wait for work; only a guess while they come and go.
    #[cfg(test)]
    pub(super) fn sleeping(&self) -> u32 {
        self.idle.waiting()
    }

    /// Has `most` work at a time from now on; true where that is more than before.
    pub(super) fn allow(&self, most: u32) -> bool {
        self.most.swap(most, Ordering::AcqRel) < most
    }

    /// Wakes an idle worker, or makes one.
    pub(super) fn call(&self, shared: &Arc<Shared>) {
        if !self.idle.notify_one() && self.spawned.load(Ordering::Relaxed) < self.most() {
            self.spawn(shared);
        }
    }

    /// Counts the calling worker off where there are more than may work.
    fn is_surplus(&self) -> bool {
        let fewer = |spawned| (spawned > self.most()).then(|| spawned - 1);
        self.spawned.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_ok()
    }

    fn spawn(&self, shared: &Arc<Shared>) {
        // In one step: a worker that saw one too many would take itself for surplus.
        let more = |spawned| (spawned < self.most()).then(|| spawned + 1);
        if shared.is_stopping() {
            return;
        }
        let Ok(number) = self.spawned.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) else { return };
        let life = {
            let shared = Arc::clone(shared);
            move || {
                // Else a worker that is woken may take the CPU from the thread that has just submitted and is about to wait,
                // and that thread returns from `submit` only when the inference is over.
                if shared.options.device.executes_on_host() {
                    give_way_when_woken();
                }
                work(&shared);
            }
        };
        match thread::Builder::new().name(format!("qaic-exec-{number}")).spawn(life) {
            Ok(handle) => {
                let mut handles = self.handles.lock();
                handles.retain(|handle| !handle.is_finished());
                handles.push(handle);
            }
            // Callers that wait run what is queued.
            Err(error) => {
                self.spawned.fetch_sub(1, Ordering::AcqRel);
                log::global()
                    .warn(|| format!("no thread for queued inferences: {error}; callers that wait run them"));
            }
        }
    }

    /// Ends all, after the scheduler says that it stops.
    pub(super) fn stop(&self) {
        let handles = mem::take(&mut *self.handles.lock());
        self.idle.notify_all();
        let own = thread::current().id();
        for handle in handles {
            // The last reference to the scheduler may be one that a worker held.
            if handle.thread().id() != own {
                let _ = handle.join();
            }
        }
    }
}

/// The life of a worker.
fn work(shared: &Arc<Shared>) {
    let workers = &shared.workers;
    while !shared.is_stopping() {
        if workers.is_surplus() {
            // The call that woke this worker was for one that may work.
            if shared.has_work() {
                shared.call_worker();
            }
            return;
        }
        // What an inference does is caught below this; nothing ends a worker, which would take its place along.
        match catch_unwind(AssertUnwindSafe(|| shared.work(None))) {
            Ok(true) => {}
            Ok(false) => {
                let is_wanted = || (shared.has_work() || shared.is_stopping()).then_some(());
                let _ = workers.idle.wait(UNTIL_WOKEN, is_wanted);
            }
            Err(_) => log::global().warn(|| "a worker panicked and goes on".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::time::Instant;

    use super::super::Scheduler;
    use super::super::tests::{LONG, context, options};
    use super::*;
    use crate::device::DeviceId;

    #[test]
    fn worker_sleeps_where_nothing_is_queued_and_nothing_on_the_device() {
        for is_pipelined in [false, true] {
            let context = context("noop", &format!("idle-worker-{is_pipelined}"));
            if is_pipelined {
                context.noop_control(DeviceId(0)).unwrap().queue();
            }
            let scheduler = Scheduler::new(options(&context));
            let workers = &scheduler.shared.workers;
            scheduler.shared.call_worker();
            let began = Instant::now();
            while workers.idle.waiting() == 0 {
                assert!(began.elapsed() < LONG);
                thread::yield_now();
            }
            // One that looks again and again would be found between two looks.
            for look in 0..2_000 {
                assert_eq!(workers.idle.waiting(), 1, "it woke without a reason before look {look}");
                thread::yield_now();
            }
        }
    }
}
