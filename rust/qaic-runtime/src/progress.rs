//! How far the inference of an exec object is, as a state machine that threads step with atomics.
//!
//! ```text
//! idle -> queued -> running -> done -> queued ...
//!                    |   ^
//!                    v   |
//!                  on device
//! ```
//!
//! Whoever takes an inference from `queued`, or from `on device`, to `running` is the only one to work on it, and takes it
//! further. `on device` is between the two phases of an execution: no thread is concerned with it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::Canceller;
use crate::error::RuntimeError;
use crate::fork::Origin;
use crate::profiling::Arrival;
use crate::queue::Waiters;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};

// Phases of an exec object: the low bits of a stage, whose other bits count the inferences.
const PHASE: u64 = 7;
const IDLE: u64 = 0;
const QUEUED: u64 = 1;
const RUNNING: u64 = 2;
const DONE: u64 = 3;
const ON_DEVICE: u64 = 4;

/// Why an inference is asked to end; in the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Reason {
    Cancelled = 1,
    TimedOut = 2,
}

/// How an exec object stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has no inference, or that has ended.
    Idle,
    /// Its inference waits for a thread.
    Queued,
    /// A thread works on it.
    Running,
    /// The device has it, and no thread waits for it.
    OnDevice,
}

/// One of the inferences that an exec object carries, one after the other. Who asks for the end of an inference that has
/// just ended must not hit the next one, and the place of a revoked one in a queue is not the next one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// Told of the ends of the inferences that it started.
pub(crate) trait Observer: Send + Sync {
    /// An inference has ended. `number` is what the observer gave with itself.
    fn completed(&self, number: u32);
}

/// How far the inference is. Apart from the exec object, so that whoever ends an inference can let go of everything else
/// before he says so: who was waiting may want to give back the cores next.
pub(crate) struct Progress {
    stage: AtomicU64,
    // Whether the observer started the inference under way. Another one is reported to whoever waits for it, and may be
    // long over, and the next one begun, when the thread that ended it gets on.
    is_observed: AtomicBool,
    // Of the executor: whether the queue holds an entry of it, which may be older than its last submission.
    pub(crate) is_listed: AtomicBool,
    // Of the executor: whether its list of inferences on the device has an entry of it, which may be older than the last.
    pub(crate) is_in_flight_list: AtomicBool,
    // Why the inference it names is asked to end.
    reason: AtomicU64,
    // Nanoseconds since the exec object was made, plus one; zero while it is not running or has no time limit.
    started_ns: AtomicU64,
    // Of the inference under way, for whoever profiles it: when it came (0: nobody asked) and behind how many.
    enqueued_ns: AtomicU64,
    queue_depth: AtomicU32,
    epoch: Instant,
    waiters: Waiters,
    outcome: Mutex<Result<(), RuntimeError>>,
    canceller: Arc<dyn Canceller>,
    limit: Option<Duration>,
    origin: Origin,
}

impl Progress {
    pub(crate) fn new(canceller: Arc<dyn Canceller>, limit: Option<Duration>) -> Self {
        Self {
            stage: AtomicU64::new(IDLE),
            is_observed: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            is_in_flight_list: AtomicBool::new(false),
            reason: AtomicU64::new(0),
            started_ns: AtomicU64::new(0),
            enqueued_ns: AtomicU64::new(0),
            queue_depth: AtomicU32::new(0),
            epoch: Instant::now(),
            waiters: Waiters::new(),
            outcome: Mutex::new(Ok(())),
            canceller,
            limit,
            origin: Origin::here(),
        }
    }

    /// The process it was made in.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// How long an inference may take.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Where threads wait for the end.
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.stage.load(Ordering::Acquire) & PHASE {
            QUEUED => Phase::Queued,
            RUNNING => Phase::Running,
            ON_DEVICE => Phase::OnDevice,
            _ => Phase::Idle,
        }
    }

    /// The inference that has begun and not ended.
    pub(crate) fn under_way(&self) -> Option<Ticket> {
        let stage = self.stage.load(Ordering::Acquire);
        matches!(stage & PHASE, QUEUED | RUNNING | ON_DEVICE).then_some(Ticket(stage & !PHASE))
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.under_way().is_some()
    }

    /// Begins an inference that waits for a thread.
    pub(crate) fn begin_queued(&self) -> Result<Ticket, RuntimeError> {
        self.begin(QUEUED)
    }

    /// Begins an inference that the calling thread runs.
    pub(crate) fn begin_running(&self) -> Result<Ticket, RuntimeError> {
        self.begin(RUNNING)
    }

    fn begin(&self, phase: u64) -> Result<Ticket, RuntimeError> {
        let next = |stage: u64| (stage & !PHASE).wrapping_add(PHASE + 1);
        let idle = |stage| matches!(stage & PHASE, IDLE | DONE).then_some(next(stage) | phase);
        let before = self.stage.fetch_update(Ordering::AcqRel, Ordering::Acquire, idle);
        before.map(|stage| Ticket(next(stage))).map_err(|_| RuntimeError::InFlight)
    }

    /// Notes whether the observer began it. Published by the queue to the thread that runs the inference.
    pub(crate) fn observed(&self, is_observed: bool) {
        self.is_observed.store(is_observed, Ordering::Relaxed);
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.is_observed.load(Ordering::Relaxed)
    }

    /// Notes when the inference that was just begun came. Relaxed: published with it.
    pub(crate) fn arrived(&self, arrival: Option<Arrival>) {
        let Arrival { enqueued_ns, queue_depth, .. } = arrival.unwrap_or_default();
        self.enqueued_ns.store(enqueued_ns, Ordering::Relaxed);
        if enqueued_ns != 0 {
            self.queue_depth.store(queue_depth, Ordering::Relaxed);
        }
    }

    pub(crate) fn arrival(&self, is_begin: bool) -> Arrival {
        Arrival {
            is_begin,
            enqueued_ns: self.enqueued_ns.load(Ordering::Relaxed),
            queue_depth: self.queue_depth.load(Ordering::Relaxed),
        }
    }

    /// Takes back a begin that came to nothing.
    pub(crate) fn abandon(&self, which: Ticket) {
        let (queued, idle) = (which.0 | QUEUED, which.0 | IDLE);
        // Not where it was cancelled in between, and has ended.
        let _ = self.stage.compare_exchange(queued, idle, Ordering::AcqRel, Ordering::Acquire);
        self.waiters.wake_all();
    }

    /// Takes the queued inference, to run it; false when another thread has.
    pub(crate) fn claim_queued(&self) -> bool {
        self.under_way().is_some_and(|which| self.claim(which))
    }

    /// Takes a queued inference, to run it or to end it; false when another thread has.
    pub(crate) fn claim(&self, which: Ticket) -> bool {
        let (queued, running) = (which.0 | QUEUED, which.0 | RUNNING);
        // AcqRel: from the thread that wired and queued it; and to it, if it asks whether the inference has begun.
        let claimed = self.stage.compare_exchange(queued, running, Ordering::AcqRel, Ordering::Acquire);
        if claimed.is_ok() && self.limit.is_some() {
            let since = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.started_ns.store(since.saturating_add(1), Ordering::Release);
        }
        claimed.is_ok()
    }

    /// Leaves a running inference to the device, and to whichever thread waits for it next. Who leaves one that is asked to
    /// end ([`Self::is_asked_to_end`], after this) takes it again: either he sees that, or who asked sees it here.
    pub(crate) fn leave_to_device(&self) {
        // Relaxed load: nobody else changes the stage of a running inference. SeqCst store: publishes what was begun to who
        // takes it, and stands in one order with the reason, see above.
        let stage = self.stage.load(Ordering::Relaxed);
        self.stage.store(stage & !PHASE | ON_DEVICE, Ordering::SeqCst);
    }

    /// Takes the inference from the device, to wait for it or to end it; with a ticket, no other than that one. False when it
    /// is not there, or another thread has taken it.
    pub(crate) fn take_from_device(&self, which: Option<Ticket>) -> bool {
        // SeqCst: see `leave_to_device`. From the thread that began it.
        let stage = self.stage.load(Ordering::SeqCst);
        let number = which.map_or(stage & !PHASE, |which| which.0);
        let (on_device, running) = (number | ON_DEVICE, number | RUNNING);
        stage == on_device
            && self.stage.compare_exchange(on_device, running, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The outcome with the reason for which the inference was asked to end.
    pub(crate) fn explained(&self, outcome: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
        match (outcome, self.reason()) {
            (Err(RuntimeError::Interrupted), Some(Reason::TimedOut)) => Err(RuntimeError::Timeout {
                what: "an inference",
                timeout_ms: self
                    .limit
                    .map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            }),
            (Err(RuntimeError::Interrupted), Some(Reason::Cancelled)) => Err(RuntimeError::Cancelled),
            (outcome, _) => outcome,
        }
    }

    pub(crate) fn finish(&self, outcome: Result<(), RuntimeError>) {
        *self.outcome.lock() = outcome;
        self.started_ns.store(0, Ordering::Release);
        // Relaxed: nobody else changes the stage of a running inference. Release: publishes the outcome and what the device
        // wrote.
        self.stage.store(self.stage.load(Ordering::Relaxed) & !PHASE | DONE, Ordering::Release);
        self.waiters.wake_all();
    }

    pub(crate) fn conclude(
        &self,
        outcome: Result<(), RuntimeError>,
        observer: Option<(Arc<dyn Observer>, u32)>,
    ) {
        self.finish(outcome);
        if let Some((observer, number)) = observer {
            observer.completed(number);
        }
    }

    /// How the last inference ended.
    pub(crate) fn outcome(&self) -> Result<(), RuntimeError> {
        self.outcome.lock().clone()
    }

    pub(crate) fn ended(&self) -> Option<Result<(), RuntimeError>> {
        (!self.is_in_flight()).then(|| self.outcome())
    }

    /// Why the present inference is asked to end.
    fn reason(&self) -> Option<Reason> {
        let reason = self.reason.load(Ordering::SeqCst);
        let is_its = reason & !PHASE == self.stage.load(Ordering::Acquire) & !PHASE;
        match reason & PHASE {
            1 if is_its => Some(Reason::Cancelled),
            2 if is_its => Some(Reason::TimedOut),
            _ => None,
        }
    }

    pub(crate) fn is_asked_to_end(&self) -> bool {
        self.reason().is_some()
    }

    /// Asks an inference to end, unless it has ended. The first reason counts.
    pub(crate) fn ask_to_end(&self, which: Ticket, reason: Reason) {
        let first = |known: u64| (known & !PHASE < which.0).then_some(which.0 | reason as u64);
        let _ = self.reason.fetch_update(Ordering::SeqCst, Ordering::SeqCst, first);
        if self.under_way() == Some(which) {
            self.canceller.cancel();
        }
    }

    /// Has the device end the inference, which was asked to end.
    pub(crate) fn cancel_on_device(&self) {
        self.canceller.cancel();
    }

    /// Ends an inference that has run for too long, and asks again for one that was asked before: a device may have
    /// overlooked it. Whether the inference is asked to end now.
    pub(crate) fn enforce_limit(&self) -> bool {
        let Some(which) = self.under_way() else { return false };
        if let Some(reason) = self.reason() {
            self.ask_to_end(which, reason);
            return true;
        }
        let Some(limit) = self.limit else { return false };
        let started = self.started_ns.load(Ordering::Acquire);
        let is_late =
            started != 0 && self.epoch.elapsed().saturating_sub(Duration::from_nanos(started - 1)) >= limit;
        if is_late {
            self.ask_to_end(which, Reason::TimedOut);
        }
        is_late
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Progress").field("stage", &self.stage).finish_non_exhaustive()
    }
}
