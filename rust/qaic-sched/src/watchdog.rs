//! Ends inferences that exceed their time limit, wherever they are, and even if no thread waits. Also moves
//! inferences that occupy the thread of their caller for too long to a worker.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use qaic_sync::atomic::{AtomicU64, Mutex, Ordering};
use qaic_sync::{Event, EventCount, Thread};

use crate::request_state::Reason;
use crate::scheduler::Shared;
use crate::{CANCEL_PERIOD, Error, Job, UNTIL_WOKEN, clock};

/// A thread that sleeps until the earliest deadline of a request. The first deadline starts the thread.
#[derive(Debug)]
pub(crate) struct Watchdog {
    // Earliest time at which the thread has work, on the process's clock; MAX without watched requests.
    next_ns: AtomicU64,
    woken: EventCount,
    // Not dropped automatically: a forked process must not access its parent's handle.
    thread: ManuallyDrop<Mutex<Option<Thread>>>,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self {
            next_ns: AtomicU64::new(u64::MAX),
            woken: EventCount::default(),
            thread: ManuallyDrop::default(),
        }
    }

    /// Monitors a request that just received a deadline.
    pub(crate) fn watch<J: Job>(&self, shared: &Arc<Shared<J>>, deadline_ns: u64) {
        // RMW: either the thread is awake for an earlier deadline and then sees the request's deadline, or it sleeps
        // and this call wakes it.
        if self.next_ns.fetch_min(deadline_ns, Ordering::AcqRel) <= deadline_ns {
            return;
        }
        if !self.woken.notify_one() {
            self.start(shared);
        }
    }

    /// Number of sleeping threads: 1, or 0 while the thread is awake or not started.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn sleeping(&self) -> u32 {
        self.woken.waiting()
    }

    pub(crate) fn start<J: Job>(&self, shared: &Arc<Shared<J>>) {
        let mut thread = self.thread.lock();
        if thread.is_some() || shared.is_stopping() {
            return;
        }
        let life = {
            let shared = Arc::clone(shared);
            move || watch(&shared)
        };
        match Thread::spawn("qaic-watchdog".to_owned(), life) {
            Ok(handle) => *thread = Some(handle),
            // Waiting threads enforce their own deadlines.
            Err(error) => {
                (shared.options.warn)(&format!("cannot start the thread that enforces time limits: {error}"))
            }
        }
    }

    /// Stops the thread, after the scheduler has announced the stop.
    pub(crate) fn stop(&self) {
        let handle = self.thread.lock().take();
        self.woken.notify_all();
        // The thread itself may have held the last reference to the scheduler.
        if let Some(thread) = handle.filter(|thread| !thread.is_current()) {
            thread.join();
        }
    }
}

/// Main function of the watchdog thread.
fn watch<J: Job>(shared: &Arc<Shared<J>>) {
    let watchdog = &shared.watchdog;
    while !shared.is_stopping() {
        // From here on, a request with a new deadline wakes this thread. RMW: see `Watchdog::watch`.
        watchdog.next_ns.swap(u64::MAX, Ordering::AcqRel);
        let next_ns = enforce(shared);
        watchdog.next_ns.fetch_min(next_ns, Ordering::AcqRel);
        let planned = watchdog.next_ns.load(Ordering::Acquire);
        let left = Duration::from_nanos(planned.saturating_sub(clock::now_ns()));
        let limit = if planned == u64::MAX { UNTIL_WOKEN } else { left };
        let is_earlier = || {
            let is_earlier = watchdog.next_ns.load(Ordering::Acquire) < planned;
            (is_earlier || shared.is_stopping()).then_some(())
        };
        if !limit.is_zero() {
            let _ = watchdog.woken.wait(limit, is_earlier);
        }
    }
}

/// Ends inferences that are past their deadline. Returns the time of the next check.
fn enforce<J: Job>(shared: &Arc<Shared<J>>) -> u64 {
    let now_ns = clock::now_ns();
    let mut next_ns = u64::MAX;
    for request in shared.requests.iter() {
        if let Some(guard_ns) = request.guard_ns() {
            // Repeats until the caller's thread is released, because a device may ignore the request.
            next_ns = next_ns.min(if request.call_away(guard_ns, now_ns) {
                clock::after(CANCEL_PERIOD)
            } else {
                guard_ns
            });
        }
        let Some((generation, deadline_ns)) = request.deadline() else { continue };
        if deadline_ns > now_ns {
            next_ns = next_ns.min(deadline_ns);
            continue;
        }
        request.ask_to_end(generation, Reason::TimedOut);
        // An inference without a thread ends here, without a wait for the device.
        if request.state.claim(generation) {
            request.fail(Error::Interrupted.into());
        } else if request.state.take_from_device(generation) {
            shared.finish(request, None);
        }
        // A device may ignore the request.
        next_ns = next_ns.min(clock::after(CANCEL_PERIOD));
    }
    next_ns
}
