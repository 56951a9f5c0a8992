//! Exec objects: each carries one inference at a time through an activated program.
//!
//! An [`ExecObj`] is wired to memory, then run on the calling thread or enqueued and waited for. It may be used from any
//! thread; while its inference is under way it can be waited for and cancelled, and nothing else.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use qaic_qpc::network_desc::IoBinding;

use crate::carrier::{Carrier, StatsPlace};
use crate::clock;
use crate::device::Canceller;
use crate::error::RuntimeError;
use crate::fork::Origin;
use crate::interrupts::{CANCEL_PERIOD, look_period};
use crate::io_crc::{IoCheck, IoCrcs};
use crate::profiling::Arrival;
use crate::program::{Activated, Program};
use crate::queue::Waiters;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::wiring::{InputWire, Wiring};

// Phases of an exec object: the low bits of a stage, whose other bits count the inferences.
const PHASE: u64 = 3;
const IDLE: u64 = 0;
const QUEUED: u64 = 1;
const RUNNING: u64 = 2;
const DONE: u64 = 3;

// Why an inference is asked to end, in the same bits.
const NO_REASON: u64 = 0;
const CANCELLED: u64 = 1;
const TIMED_OUT: u64 = 2;

/// One of the inferences that an exec object carries, one after the other. Who asks for the end of an inference that has
/// just ended must not hit the next one, and the place of a revoked one in a queue is not the next one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// Carries one inference of an activated program.
#[derive(Debug)]
pub struct ExecObj {
    program: Arc<Program>,
    activated: Arc<Activated>,
    inference: Arc<Inference>,
    progress: Arc<Progress>,
    id: AtomicU32,
}

/// What an executor needs to run the inference of an exec object.
pub(crate) struct Inference {
    core: Mutex<Core>,
    // Whether the core has a check; known without its lock.
    is_checked: bool,
    activated: Arc<Activated>,
    progress: Arc<Progress>,
    observer: OnceLock<(Weak<dyn Observer>, u32)>,
    // Of the executor: whether the queue holds an entry of it, which may be older than its last submission.
    pub(crate) is_listed: AtomicBool,
}

/// Told of the ends of the inferences that it started.
pub(crate) trait Observer: Send + Sync {
    /// An inference has ended. `number` is what the observer gave with itself.
    fn completed(&self, number: u32);
}

#[derive(Debug)]
struct Core {
    carrier: Carrier,
    wiring: Wiring,
    check: Option<IoCheck>,
}

/// How far the inference is. Apart from the exec object, so that whoever ends an inference can let go of everything else
/// before he says so: who was waiting may want to give back the cores next.
struct Progress {
    stage: AtomicU64,
    // Whether the observer started the inference under way. Another one is reported to whoever waits for it, and may be
    // long over, and the next one begun, when the thread that ended it gets on.
    is_observed: AtomicBool,
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

impl ExecObj {
    /// An exec object of `program`. With `auto_activate` the program is loaded and activated first where necessary, and
    /// deactivated with its last exec object.
    ///
    /// Blocking: as [`Program::load`] when it is not loaded.
    pub fn new(program: &Arc<Program>, auto_activate: bool) -> Result<Arc<Self>, RuntimeError> {
        let activated = program.enter(auto_activate)?;
        match Inference::new(program, &activated) {
            Ok(inference) => Ok(Arc::new(Self {
                program: Arc::clone(program),
                progress: Arc::clone(&inference.progress),
                inference: Arc::new(inference),
                activated,
                id: AtomicU32::new(0),
            })),
            Err(error) => {
                activated.leave();
                Err(error)
            }
        }
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// A number the user gave it; 0 at first.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    /// Gives it a number.
    pub fn set_id(&self, id: u32) {
        self.id.store(id, Ordering::Relaxed);
    }

    /// Whether its inference is queued or running.
    pub fn is_in_flight(&self) -> bool {
        self.progress.is_in_flight()
    }

    /// Whether the device has its inference.
    pub fn is_running(&self) -> bool {
        self.progress.phase() == RUNNING
    }

    /// Takes its inference back if no thread has begun it; it then has ended with [`RuntimeError::Cancelled`]. Never
    /// blocks.
    pub fn revoke(&self) -> bool {
        self.progress.under_way().is_some_and(|which| self.take_back(which))
    }

    fn take_back(&self, which: Ticket) -> bool {
        let is_mine = self.progress.claim(which);
        if is_mine {
            let observer = self.inference.observer();
            self.progress.conclude(Err(RuntimeError::Cancelled), observer);
        }
        is_mine
    }

    /// Reads or changes what the next inference reads and writes. Fails while one is under way.
    ///
    /// Never blocks. Whoever wires memory without an owner keeps it valid until it is wired elsewhere.
    pub fn wire<T>(&self, change: impl FnOnce(&mut Wiring) -> T) -> Result<T, RuntimeError> {
        self.progress.origin.check()?;
        if self.is_in_flight() {
            return Err(RuntimeError::InFlight);
        }
        // Held by a thread that has just begun to run it.
        let mut core = self.inference.core.try_lock().ok_or(RuntimeError::InFlight)?;
        Ok(change(&mut core.wiring))
    }

    /// Starts the wired inference and returns at once. Inferences of one activation that retain state run in the order
    /// in which they were enqueued. One that is known to be short is left to whoever waits for it, and to a worker that
    /// looks within a millisecond.
    pub fn enqueue(&self) -> Result<(), RuntimeError> {
        self.start(false)
    }

    pub(crate) fn start(&self, eager: bool) -> Result<(), RuntimeError> {
        self.start_as(eager, false)
    }

    /// [`Self::start`] by the observer.
    pub(crate) fn start_observed(&self, eager: bool) -> Result<(), RuntimeError> {
        self.start_as(eager, true)
    }

    fn start_as(&self, eager: bool, is_observed: bool) -> Result<(), RuntimeError> {
        self.progress.origin.check()?;
        let arrival = self.activated.arrival();
        self.check_wiring()?;
        self.sum_inputs()?;
        let which = self.progress.begin(QUEUED)?;
        self.progress.arrived(arrival);
        // Published by the queue to the thread that runs the inference.
        self.progress.is_observed.store(is_observed, Ordering::Relaxed);
        let (executor, lane) = self.activated.executor();
        executor.submit(lane, &self.inference, which, eager).inspect_err(|_| self.progress.abandon(which))
    }

    /// Runs the wired inference: on the calling thread where that is as good as anywhere else. Interrupted, it is
    /// cancelled, and the call returns when it has ended.
    ///
    /// Blocking: as long as the device takes, and inferences before it where state is retained; `interrupted` is asked
    /// about every 50 ms, except during an inference that is known to be short.
    pub fn run(&self, interrupted: impl FnMut() -> bool) -> Result<(), RuntimeError> {
        self.run_until(None, interrupted)
    }

    /// [`Self::run`], ended with [`RuntimeError::Timeout`] at `deadline`.
    pub fn run_until(
        &self,
        deadline: Option<Instant>,
        interrupted: impl FnMut() -> bool,
    ) -> Result<(), RuntimeError> {
        let (executor, _) = self.activated.executor();
        if executor.callers_may_run() && !self.activated.is_serial() {
            self.progress.origin.check()?;
            let arrival = self.activated.arrival();
            self.sum_inputs()?;
            self.progress.begin(RUNNING)?;
            self.progress.arrived(arrival);
            let outcome = executor.run_here(|| self.inference.run(true));
            let outcome = self.progress.explained(outcome);
            self.progress.finish(outcome.clone());
            return self.collected(outcome);
        }
        self.start(false)?;
        let awaited = self.wait(deadline, interrupted);
        if self.is_in_flight() {
            self.end();
        }
        awaited
    }

    /// Waits for the inference under way and returns how it ended; without one, how the last ended, and `Ok` when there
    /// never was one. An inference that takes longer than the program's time limit is ended with
    /// [`RuntimeError::Timeout`].
    ///
    /// Blocking: until it ends, `deadline`, or `interrupted`, which is asked about every 50 ms. In the last two cases
    /// the inference goes on and can be waited for again.
    pub fn wait(
        &self,
        deadline: Option<Instant>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<(), RuntimeError> {
        self.progress.origin.check()?;
        let began = Instant::now();
        let (executor, _) = self.activated.executor();
        loop {
            if let Some(outcome) = self.progress.ended() {
                return self.collected(outcome);
            }
            if self.progress.phase() == QUEUED && executor.help() {
                continue;
            }
            let limit = until(deadline).min(look_period(self.progress.limit));
            if let Some(outcome) = self.progress.waiters.wait(limit, || self.progress.ended()) {
                return self.collected(outcome);
            }
            self.progress.enforce_limit();
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(RuntimeError::Timeout {
                    what: "an inference",
                    timeout_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                });
            }
            if interrupted() {
                return Err(RuntimeError::Interrupted);
            }
        }
    }

    /// Asks the inference under way to end; it then ends with [`RuntimeError::Cancelled`], unless it was just ending. One
    /// that has not begun ends at once. Never blocks.
    pub fn cancel(&self) {
        if let Some(which) = self.progress.under_way()
            && !self.take_back(which)
        {
            self.progress.ask_to_end(which, CANCELLED);
        }
    }

    /// Ends an inference that has run for longer than its program allows. For those who wait in other ways than by
    /// [`Self::wait`].
    pub fn enforce_limit(&self) {
        self.progress.enforce_limit();
    }

    /// How the last inference ended.
    pub fn outcome(&self) -> Result<(), RuntimeError> {
        let outcome = self.progress.outcome.lock().clone();
        self.collected(outcome)
    }

    /// The CRCs of the last inference of a program that has its buffers checked; `None` for other programs, and while an
    /// inference is under way.
    pub fn io_crcs(&self) -> Option<IoCrcs> {
        if !self.inference.is_checked || self.is_in_flight() {
            return None;
        }
        let core = self.inference.core.try_lock()?;
        core.check.as_ref().map(|check| check.taken().clone())
    }

    /// Sums the inputs of the inference that is about to be submitted.
    fn sum_inputs(&self) -> Result<(), RuntimeError> {
        if !self.inference.is_checked {
            return Ok(());
        }
        if self.is_in_flight() {
            return Err(RuntimeError::InFlight);
        }
        let mut core = self.inference.core.try_lock().ok_or(RuntimeError::InFlight)?;
        let Core { wiring, check, .. } = &mut *core;
        if let Some(check) = check {
            check.take_inputs(wiring);
        }
        Ok(())
    }

    /// Compares the outputs of an inference that ended well, the first time it is asked about.
    fn collected(&self, outcome: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
        if !self.inference.is_checked || outcome.is_err() || self.is_in_flight() {
            return outcome;
        }
        // Somebody else is just wiring the next one, and has collected this one.
        let Some(mut core) = self.inference.core.try_lock() else { return outcome };
        let Core { wiring, check, .. } = &mut *core;
        let Some(check) = check else { return outcome };
        let network = self.program.image().network();
        check.check_outputs(wiring, |index| name_of(&network.outputs, index))
    }

    pub(crate) fn observe(&self, observer: Weak<dyn Observer>, number: u32) {
        // Set once, by the inference set that makes the exec object.
        let _ = self.inference.observer.set((observer, number));
    }

    /// Says at once what could only fail later: an input without memory or state.
    fn check_wiring(&self) -> Result<(), RuntimeError> {
        let inputs = self.program.variants();
        let Some(transfers) = inputs.first() else { return Ok(()) };
        self.wire(|wiring| {
            let unfed =
                wiring.inputs.iter().zip(transfers.inputs()).enumerate().find(|(index, (wire, transfer))| {
                    !matches!(wire, InputWire::Memory { .. } | InputWire::DmaBuf { .. })
                        && transfer.place().is_some()
                        && !transfer.is_partial()
                        && !self.activated.retains_input(*index)
                });
            match unfed {
                Some((_, (_, transfer))) => {
                    Err(RuntimeError::StateRequired { binding: transfer.name().to_owned() })
                }
                None => Ok(()),
            }
        })?
    }

    /// Cancels the inference under way and waits until it has ended.
    pub(crate) fn end(&self) {
        while self.is_in_flight() {
            self.cancel();
            let _ = self.progress.waiters.wait(CANCEL_PERIOD, || self.progress.ended());
        }
    }
}

impl Drop for ExecObj {
    fn drop(&mut self) {
        if self.progress.origin.is_here() {
            self.end();
        }
        self.activated.leave();
    }
}

impl Inference {
    fn new(program: &Program, activated: &Arc<Activated>) -> Result<Self, RuntimeError> {
        let network = program.image().network();
        let stats = StatsPlace::of(network);
        let carrier = Carrier::new(activated.activation(), program.shared_variants(), stats)?;
        let wiring = Wiring::new(network.inputs.len(), network.outputs.len());
        let check = program.duties().io_crc.map(IoCheck::new);
        let progress = Progress::new(carrier.canceller(), program.time_limit());
        Ok(Self {
            is_checked: check.is_some(),
            core: Mutex::new(Core { carrier, wiring, check }),
            activated: Arc::clone(activated),
            progress: Arc::new(progress),
            observer: OnceLock::new(),
            is_listed: AtomicBool::new(false),
        })
    }

    /// Runs it on the calling thread, unless it was cancelled, and tells everybody. Takes the reference, and gives it up
    /// before it tells. With a ticket, no other inference than that one.
    pub(crate) fn execute(inference: Arc<Self>, which: Option<Ticket>) {
        let progress = Arc::clone(&inference.progress);
        if which.map_or_else(|| progress.claim_queued(), |which| progress.claim(which)) {
            let observer = inference.observer();
            let outcome = progress.explained(inference.run(false));
            drop(inference);
            progress.conclude(outcome, observer);
        }
    }

    fn observer(&self) -> Option<(Arc<dyn Observer>, u32)> {
        if !self.progress.is_observed.load(Ordering::Relaxed) {
            return None;
        }
        let (observer, number) = self.observer.get()?;
        Some((observer.upgrade()?, *number))
    }

    /// `at_once`: it was not queued.
    fn run(&self, at_once: bool) -> Result<(), RuntimeError> {
        if self.progress.reason() != NO_REASON {
            return Err(RuntimeError::Interrupted);
        }
        let run = || {
            let mut core = self.core.lock();
            let Core { carrier, wiring, check } = &mut *core;
            let mut watched = self.activated.watch(wiring, || self.progress.arrival(at_once));
            let checked = match &*check {
                Some(check) => {
                    let network = self.activated.image().network();
                    check.check_inputs(wiring, |index| name_of(&network.inputs, index))
                }
                None => Ok(()),
            };
            let outcome = loop {
                let watch = watched.as_mut().map(|watched| &mut watched.watch);
                let outcome = checked.clone().and_then(|()| self.activated.run(carrier, wiring, watch));
                let is_interrupted = matches!(outcome, Err(RuntimeError::Interrupted));
                // Nobody asked for the end of this one: it was meant for the one before, which had just ended.
                if !is_interrupted || self.progress.reason() != NO_REASON {
                    break outcome;
                }
            };
            wiring.windows.clear();
            if let (Some(check), Ok(())) = (check, &outcome) {
                check.take_outputs(wiring);
            }
            if let (Some(mut watched), Ok(())) = (watched, &outcome) {
                let stages = &mut watched.watch.stages;
                // Where nothing was done since, another look at the clock would only cost.
                let is_over = !self.is_checked && watched.watch.stats.is_none();
                stages.completed_ns = if is_over { stages.outputs_ready_ns } else { clock::now_ns() };
                watched.record();
            }
            outcome
        };
        catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err(RuntimeError::Internal { what: "an inference panicked".to_owned() }))
    }
}

impl Progress {
    fn new(canceller: Arc<dyn Canceller>, limit: Option<Duration>) -> Self {
        Self {
            stage: AtomicU64::new(IDLE),
            is_observed: AtomicBool::new(false),
            reason: AtomicU64::new(NO_REASON),
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

    fn phase(&self) -> u64 {
        self.stage.load(Ordering::Acquire) & PHASE
    }

    /// The inference that is queued or running.
    fn under_way(&self) -> Option<Ticket> {
        let stage = self.stage.load(Ordering::Acquire);
        matches!(stage & PHASE, QUEUED | RUNNING).then_some(Ticket(stage & !PHASE))
    }

    fn is_in_flight(&self) -> bool {
        self.under_way().is_some()
    }

    fn begin(&self, phase: u64) -> Result<Ticket, RuntimeError> {
        let next = |stage: u64| (stage & !PHASE).wrapping_add(PHASE + 1);
        let idle = |stage| matches!(stage & PHASE, IDLE | DONE).then_some(next(stage) | phase);
        let before = self.stage.fetch_update(Ordering::AcqRel, Ordering::Acquire, idle);
        before.map(|stage| Ticket(next(stage))).map_err(|_| RuntimeError::InFlight)
    }

    /// Notes when the inference that was just begun came. Relaxed: published with it.
    fn arrived(&self, arrival: Option<Arrival>) {
        let Arrival { enqueued_ns, queue_depth, .. } = arrival.unwrap_or_default();
        self.enqueued_ns.store(enqueued_ns, Ordering::Relaxed);
        if enqueued_ns != 0 {
            self.queue_depth.store(queue_depth, Ordering::Relaxed);
        }
    }

    fn arrival(&self, is_begin: bool) -> Arrival {
        Arrival {
            is_begin,
            enqueued_ns: self.enqueued_ns.load(Ordering::Relaxed),
            queue_depth: self.queue_depth.load(Ordering::Relaxed),
        }
    }

    /// Takes back a [`Self::begin`] that came to nothing.
    fn abandon(&self, which: Ticket) {
        let (queued, idle) = (which.0 | QUEUED, which.0 | IDLE);
        // Not where it was cancelled in between, and has ended.
        let _ = self.stage.compare_exchange(queued, idle, Ordering::AcqRel, Ordering::Acquire);
        self.waiters.wake_all();
    }

    /// Takes the queued inference, to run it; false when another thread has.
    fn claim_queued(&self) -> bool {
        self.under_way().is_some_and(|which| self.claim(which))
    }

    /// Takes a queued inference, to run it or to end it; false when another thread has.
    fn claim(&self, which: Ticket) -> bool {
        let (queued, running) = (which.0 | QUEUED, which.0 | RUNNING);
        // AcqRel: from the thread that wired and queued it; and to it, if it asks whether the inference has begun.
        let claimed = self.stage.compare_exchange(queued, running, Ordering::AcqRel, Ordering::Acquire);
        if claimed.is_ok() && self.limit.is_some() {
            let since = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.started_ns.store(since.saturating_add(1), Ordering::Release);
        }
        claimed.is_ok()
    }

    /// The outcome with the reason for which the inference was asked to end.
    fn explained(&self, outcome: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
        match (outcome, self.reason()) {
            (Err(RuntimeError::Interrupted), TIMED_OUT) => Err(RuntimeError::Timeout {
                what: "an inference",
                timeout_ms: self
                    .limit
                    .map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            }),
            (Err(RuntimeError::Interrupted), CANCELLED) => Err(RuntimeError::Cancelled),
            (outcome, _) => outcome,
        }
    }

    fn finish(&self, outcome: Result<(), RuntimeError>) {
        *self.outcome.lock() = outcome;
        self.started_ns.store(0, Ordering::Release);
        // Relaxed: nobody else changes the stage of a running inference. Release: publishes the outcome and what the device
        // wrote.
        self.stage.store(self.stage.load(Ordering::Relaxed) & !PHASE | DONE, Ordering::Release);
        self.waiters.wake_all();
    }

    fn conclude(&self, outcome: Result<(), RuntimeError>, observer: Option<(Arc<dyn Observer>, u32)>) {
        self.finish(outcome);
        if let Some((observer, number)) = observer {
            observer.completed(number);
        }
    }

    fn ended(&self) -> Option<Result<(), RuntimeError>> {
        (!self.is_in_flight()).then(|| self.outcome.lock().clone())
    }

    /// Why the present inference is asked to end.
    fn reason(&self) -> u64 {
        let reason = self.reason.load(Ordering::Acquire);
        let is_its = reason & !PHASE == self.stage.load(Ordering::Acquire) & !PHASE;
        if is_its { reason & PHASE } else { NO_REASON }
    }

    /// Asks an inference to end, unless it has ended. The first reason counts.
    fn ask_to_end(&self, which: Ticket, reason: u64) {
        let first = |known: u64| (known & !PHASE < which.0).then_some(which.0 | reason);
        let _ = self.reason.fetch_update(Ordering::AcqRel, Ordering::Acquire, first);
        if self.under_way() == Some(which) {
            self.canceller.cancel();
        }
    }

    /// Ends an inference that has run for too long, and asks again for one that was asked before: a device may have
    /// overlooked it.
    fn enforce_limit(&self) {
        let Some(which) = self.under_way() else { return };
        let reason = self.reason();
        if reason != NO_REASON {
            self.ask_to_end(which, reason);
        } else if let Some(limit) = self.limit {
            let started = self.started_ns.load(Ordering::Acquire);
            if started != 0 && self.epoch.elapsed().saturating_sub(Duration::from_nanos(started - 1)) >= limit
            {
                self.ask_to_end(which, TIMED_OUT);
            }
        }
    }
}

fn name_of(bindings: &[IoBinding], index: usize) -> String {
    bindings.get(index).map(|binding| binding.name.clone()).unwrap_or_default()
}

/// Time left until a deadline.
pub(crate) fn until(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}

impl fmt::Debug for Inference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Inference").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Progress").field("stage", &self.stage).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::path::Path;

    use super::*;
    use crate::context::Context;
    use crate::device::{DeviceId, Placement, RegistryOptions};
    use crate::image::Image;
    use crate::program::ProgramOptions;
    use crate::wiring::Window;

    #[test]
    fn an_end_that_nobody_asked_of_this_inference_does_not_reach_it() {
        let options = RegistryOptions {
            kind: Some("noop".to_owned()),
            engine_candidates: vec!["stray-cancel".into()],
            ..RegistryOptions::default()
        };
        let context = Context::new(&options).unwrap();
        let gate = context.noop_control(DeviceId(0)).unwrap();
        let file = "../../tests/data/qpc/s01_simple_f32_file.qpc";
        let image = Image::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file), true).unwrap();
        let place = Placement::one(DeviceId(0));
        let program = Program::new(&context, &image, &place, &ProgramOptions::default()).unwrap();
        let exec = ExecObj::new(&program, true).unwrap();
        let input = crate::buffer::Storage::new(768).unwrap();
        let memory = input.memory();
        exec.wire(|wiring| {
            wiring.inputs[0] = InputWire::Memory { memory: memory.as_const(), owner: None };
            let (origin, extent, strides) = (vec![0, 0], vec![1, 1], vec![4, 4]);
            let window = Window { binding: 1, origin, extent, item_bytes: 4, memory, strides, owner: None };
            wiring.windows.push(window);
        })
        .unwrap();
        gate.hold().unwrap();
        exec.enqueue().unwrap();
        assert!(gate.wait_executing(1, Duration::from_mins(1), || false).unwrap());
        exec.progress.canceller.cancel();
        gate.release().unwrap();
        exec.wait(None, || false).unwrap();
        assert_eq!(exec.wire(|wiring| wiring.windows.len()).unwrap(), 0);
    }
}
