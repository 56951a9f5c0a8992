//! Decides which thread runs a request.
//!
//! **The rule.** A request goes to the run queue of its activation, and a worker is woken for it. A thread that waits for its
//! own inference may take it from there. No thread runs the inference of another caller but a worker. No thread polls.
//!
//! **On the thread of its caller** an inference runs where that costs less than to wake another thread: on a device that promises
//! a bound ([`Device::is_bounded`]); on the host where inferences with the same shapes were short lately, which is a hint and
//! no promise. So the [`watchdog`] guards what runs there: one that takes longer than [`CALLER_LIMIT_NS`] is called away from its
//! caller and begins again on a worker, and the caller goes on, or waits as for any other. The call that gives an inference to a
//! device which works by itself is made by the caller too.
//!
//! **Devices that work by themselves.** A request on the device belongs to no thread. A thread that waits for it, or for any,
//! takes it from there and ends it. Workers do where no caller is going to.
//!
//! **Order.** A run queue is first in, first out. That of a program that retains state is ordered: the thread with its turn
//! runs one inference, and the state is complete before the turn goes on. Reads and writes of the state take their turn
//! like inferences.

mod durations;
mod in_flight;
#[allow(unsafe_code)] // two system calls without memory of their own
mod priority;
mod requests;
mod state_access;
#[cfg(test)]
mod tests;
mod watchdog;
mod worker;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use qaic_sync::{AskedToEnd, Event, EventCount, Generation, RunQueues, Turn};

use crate::device::Device;
use crate::error::{ErrorDetail, RuntimeError, StateError};
use crate::process::{CancellationCheck, Deadline, ForkGuard, WaitScope, clock};
use crate::request::{Body, Finished, Request, clock_after};
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use durations::Durations;
use in_flight::{InFlight, MOST_PER_THREAD};
use requests::{NUMBER_BITS, Requests};
use state_access::StateAccess;
use watchdog::Watchdog;
use worker::Workers;

/// Inferences shorter than this run on the thread that submits them: to wake a thread costs about as much.
const SHORT_NS: u64 = 20_000;

/// How long an inference may keep the thread of its caller, which answers no signals meanwhile.
const CALLER_LIMIT_NS: u64 = 20_000_000;

/// Room for entries of ordered queues whose inferences were revoked, which keep their places, and for exec objects beyond those
/// that the options of the program count.
const SPARE: u32 = 768;

// An entry of a run queue: the number of a request and, above, bits of the generation; or a ticket of a state access.
const STATE_ACCESS: u32 = 1 << 31;
const GENERATION_MASK: u32 = (1 << (31 - NUMBER_BITS)) - 1;

/// Settings of a scheduler.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerOptions {
    /// One run queue per activation.
    pub(crate) queues: u32,
    /// True if the inferences of a queue run one after the other.
    pub(crate) is_ordered: bool,
    /// Inferences that can be queued at a time.
    pub(crate) capacity: u32,
    /// Inferences of a queue that run at a time, on average.
    pub(crate) threads: u32,
    /// Combinations of shapes.
    pub(crate) variants: usize,
    /// How long an inference may take.
    pub(crate) limit: Option<Duration>,
    /// The device that runs them.
    pub(crate) device: Arc<dyn Device>,
}

impl SchedulerOptions {
    /// Workers, with `threads` for each queue. A device that computes on the host gains nothing from more than CPUs.
    fn most_workers(&self, threads: u32) -> u32 {
        let all = threads.max(1).saturating_mul(self.queues.max(1));
        let useful =
            if self.device.executes_on_host() { all.min(self.queues.max(usable_cpus())) } else { all };
        useful.min(self.capacity).max(1)
    }

    /// Returns whether inferences are given to the device before others are waited for. If state is retained,
    /// each inference completes before the next begins.
    fn is_pipelined(&self) -> bool {
        self.device.queues_on_device() && !self.is_ordered
    }
}

/// CPUs this process may use, respecting affinity and control groups.
fn usable_cpus() -> u32 {
    thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// The run queues of a program, or of those of an inference set, and the threads that empty them.
#[derive(Debug)]
pub(crate) struct Scheduler {
    shared: Arc<Shared>,
    fork_guard: ForkGuard,
}

/// State that the workers share with the scheduler, which ends them when it is dropped.
#[derive(Debug)]
pub(crate) struct Shared {
    options: SchedulerOptions,
    requests: Requests,
    queues: RunQueues,
    state_access: StateAccess,
    // `None` where each inference is run at once.
    in_flight: Option<InFlight>,
    durations: Durations,
    workers: Workers,
    watchdog: Watchdog,
    // Callers that sleep until an inference ends, on a pipelined device.
    sleeping_callers: AtomicU32,
    is_stopping: AtomicBool,
}

/// A body whose inference has to begin again, on a worker.
#[derive(Debug)]
struct CalledAway(Box<Body>);

/// Another inference has the turn of the queue.
#[derive(Clone, Copy, Debug)]
struct OutOfTurn;

impl Scheduler {
    pub(crate) fn new(options: SchedulerOptions) -> Arc<Self> {
        let capacity = options.capacity.max(1);
        let room = capacity.saturating_add(SPARE).saturating_add(state_access::TICKETS);
        let shared = Shared {
            requests: Requests::new(options.queues.max(1), options.limit),
            queues: RunQueues::new(options.queues.max(1), room, options.is_ordered),
            state_access: StateAccess::new(),
            in_flight: options.is_pipelined().then(|| InFlight::new(room)),
            durations: Durations::new(options.variants),
            workers: Workers::new(options.most_workers(options.threads)),
            watchdog: Watchdog::new(),
            sleeping_callers: AtomicU32::new(0),
            is_stopping: AtomicBool::new(false),
            options,
        };
        Arc::new(Self { shared: Arc::new(shared), fork_guard: ForkGuard::new() })
    }

    /// A request for a new exec object of an activation.
    pub(crate) fn take_request(&self, queue: u32) -> Result<Arc<Request>, RuntimeError> {
        self.shared.requests.take(queue)
    }

    /// Gives back the request of an exec object that is gone.
    pub(crate) fn give_back_request(&self, request: &Request) {
        self.shared.requests.give_back(request);
    }

    /// Inferences that wait in a queue; only a guess while others come and go.
    pub(crate) fn waiting(&self, queue: u32) -> usize {
        self.shared.queues.waiting(queue)
    }

    /// From now on `threads` inferences of a queue run at a time, on average. Those that run go on.
    pub(crate) fn allow(&self, threads: u32) {
        if self.shared.workers.allow(self.shared.options.most_workers(threads)) && self.shared.has_work() {
            self.shared.call_worker();
        }
    }

    /// Takes over an inference that the calling thread has begun and prepared, and that has to end by `deadline`. Where it fails,
    /// nothing has begun, and the caller has to withdraw it; the body is in its place.
    pub(crate) fn submit(
        &self,
        request: &Request,
        mut body: Box<Body>,
        generation: Generation,
        deadline: Option<Deadline>,
    ) -> Result<(), RuntimeError> {
        let shared = &self.shared;
        let variant = body.variant();
        request.set_variant(variant);
        body.time_if(shared.durations.is_unknown(variant));
        shared.watch(request, deadline);
        if shared.suits_caller(variant, SHORT_NS)
            && let Ok(turn) = shared.turn_of(request)
        {
            match shared.run_for_caller(request, body, turn, None) {
                Ok(()) => return Ok(()),
                Err(CalledAway(again)) => body = again,
            }
        }
        if let Some(in_flight) = &shared.in_flight
            && shared.queues.is_empty()
            && in_flight.reserve(shared.most_on_device())
        {
            // A completion callback has to come whether or not a caller waits.
            let is_for_workers = body.has_completion();
            shared.hand_over(in_flight, request, body);
            // RMW: either this sees the caller that is about to sleep, or that caller sees what is on the device.
            if is_for_workers || shared.sleeping_callers.fetch_add(0, Ordering::AcqRel) > 0 {
                shared.call_worker();
            }
            return Ok(());
        }
        request.put_body(body);
        shared.enqueue(request, generation)
    }

    /// Returns whether an inference may run on the calling thread, which answers signals only after it.
    pub(crate) fn may_run_here(&self, variant: usize) -> bool {
        self.shared.in_flight.is_some() || self.shared.suits_caller(variant, CALLER_LIMIT_NS)
    }

    /// Runs an inference that the calling thread has begun and prepared, on that thread; gives the body back where another
    /// inference has the turn, the device has no room, or it takes too long. `check` may end it.
    pub(crate) fn run_here(
        &self,
        request: &Request,
        mut body: Box<Body>,
        deadline: Option<Deadline>,
        check: CancellationCheck<'_>,
    ) -> Result<(), Box<Body>> {
        let shared = &self.shared;
        let variant = body.variant();
        request.set_variant(variant);
        body.time_if(shared.durations.is_unknown(variant));
        body.begin_at_once();
        if let Some(in_flight) = &shared.in_flight {
            if !in_flight.reserve(shared.most_on_device()) {
                return Err(body);
            }
            shared.watch(request, deadline);
            shared.begin_limit(request);
            let (outcome, took) = body.run(request, Some(check));
            shared.ended(request, took);
            request.complete(body, outcome);
            shared.serve_queue();
            return Ok(());
        }
        let Ok(turn) = shared.turn_of(request) else { return Err(body) };
        shared.watch(request, deadline);
        shared.run_for_caller(request, body, turn, Some(check)).map_err(|CalledAway(body)| body)
    }

    /// Works on behalf of a caller that waits for any inference: for the oldest that the device has, or, where the system gave no
    /// threads, on what is queued. False when there was nothing, and when `check` said to wait no longer.
    pub(crate) fn help(&self, check: CancellationCheck<'_>) -> bool {
        let shared = &self.shared;
        (shared.in_flight.is_some() || shared.workers.are_missing()) && shared.work(Some(check))
    }

    /// Takes a queued inference out of the queue and runs it for its caller, which waits for it; false where that is for a worker.
    pub(crate) fn run_queued(
        &self,
        request: &Request,
        generation: Generation,
        check: CancellationCheck<'_>,
    ) -> bool {
        let shared = &self.shared;
        if shared.queues.is_ordered() || !shared.suits_caller(request.variant(), CALLER_LIMIT_NS) {
            return self.help(check);
        }
        // Its entry stands for the next inference of the request.
        if !request.state().claim(generation) {
            return false;
        }
        let Ok(body) = request.take_body() else { return false };
        if let Err(CalledAway(body)) = shared.run_for_caller(request, body, None, Some(check)) {
            request.put_body(body);
            if let Err(error) = shared.enqueue(request, generation) {
                request.fail(error);
            }
        }
        true
    }

    /// Waits for the inference of a request on the device, on the calling thread; false when it is not there, and when
    /// `check` said to wait no longer.
    pub(crate) fn finish(
        &self,
        request: &Request,
        generation: Generation,
        check: Option<CancellationCheck<'_>>,
    ) -> bool {
        request.state().take_from_device(generation) && self.shared.finish(request, check)
    }

    /// Sees to it that what is on the device ends without a caller that waits for it.
    pub(crate) fn watch_device(&self) {
        self.shared.call_worker();
    }

    /// Sleeps on `event` until `take` gives something, a notification, or `limit`. Sees to it that what comes meanwhile is
    /// worked on.
    pub(crate) fn sleep<T>(
        &self,
        event: &impl Event,
        limit: Duration,
        mut take: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let shared = &self.shared;
        if shared.in_flight.is_none() {
            return event.wait(limit, take);
        }
        let _asleep = Asleep::new(&shared.sleeping_callers);
        let mut is_first = true;
        let taken = event.wait(limit, || {
            if let Some(taken) = take() {
                return Some(Some(taken));
            }
            // What came before this caller counted as asleep is for this caller.
            (std::mem::take(&mut is_first) && shared.has_work()).then_some(None)
        });
        taken.flatten()
    }

    /// Works with the turn of an ordered queue, when it comes.
    ///
    /// Blocking: until the inferences and accesses before it have ended, or until `scope` ends the wait.
    pub(crate) fn with_turn<T>(
        &self,
        queue: u32,
        scope: &mut WaitScope<'_>,
        work: impl FnOnce() -> T,
    ) -> Result<T, RuntimeError> {
        let _turn = self.turn(queue, scope)?;
        Ok(work())
    }

    fn turn(&self, queue: u32, scope: &mut WaitScope<'_>) -> Result<ServedTurn<'_>, RuntimeError> {
        const WHAT: &str = "the state of a program";
        let shared = &self.shared;
        if let Some(turn) = shared.queues.try_turn(queue) {
            return Ok(ServedTurn { shared, turn: Some(turn) });
        }
        let access = &shared.state_access;
        let mut wait = |event: &EventCount, is_there: &dyn Fn() -> Option<u32>| loop {
            if let Some(found) = event.wait(scope.sleep_limit(), is_there) {
                return Ok(found);
            }
            scope.poll(WHAT)?;
        };
        let ticket = wait(access.freed(), &|| access.take())?;
        if shared.queues.push(queue, STATE_ACCESS | ticket).is_err() {
            access.give_back(ticket);
            return Err(StateError::QueueFull { capacity: shared.options.capacity }.into());
        }
        shared.call_worker();
        let granted = wait(access.granted(ticket), &|| access.is_granted(ticket).then_some(ticket));
        match granted {
            Err(error) if access.abandon(ticket) => Err(error),
            granted => {
                let turn = ServedTurn { shared, turn: Some(shared.queues.adopt_turn(queue)) };
                access.give_back(ticket);
                granted.map(|_| turn)
            }
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // The threads of a forked process's parent are not here: joining would wait forever, and locks may be held for good.
        if self.fork_guard.is_current() {
            self.shared.stop();
        }
    }
}

impl Shared {
    fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.workers.stop();
        self.watchdog.stop();
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn request(&self, entry: u32) -> Option<&Arc<Request>> {
        self.requests.get(entry & ((1 << NUMBER_BITS) - 1))
    }

    /// Returns whether an inference of these shapes runs on the thread of its caller because it usually takes
    /// less than `limit_ns`.
    fn suits_caller(&self, variant: usize, limit_ns: u64) -> bool {
        let device = &self.options.device;
        // Bounded devices that queue by themselves have a path of their own.
        let is_short = || device.executes_on_host() && self.durations.of(variant) < limit_ns;
        self.in_flight.is_none() && (device.is_bounded() || is_short())
    }

    /// Inferences on the device at a time.
    fn most_on_device(&self) -> u32 {
        MOST_PER_THREAD.saturating_mul(self.workers.most()).min(self.options.capacity).max(1)
    }

    /// Returns the turn of the queue that the calling thread needs to run a request at once, if it needs one.
    fn turn_of(&self, request: &Request) -> Result<Option<Turn<'_>>, OutOfTurn> {
        if !self.queues.is_ordered() {
            return Ok(None);
        }
        self.queues.try_turn(request.queue()).map(Some).ok_or(OutOfTurn)
    }

    /// Leaves a running request, whose body is in its place, to the threads of its queue.
    fn enqueue(self: &Arc<Self>, request: &Request, generation: Generation) -> Result<(), RuntimeError> {
        let entry = request.number() | (generation.low_bits() & GENERATION_MASK) << NUMBER_BITS;
        match request.state().enqueue(!self.queues.is_ordered()) {
            Err(AskedToEnd) => {
                request.fail(ErrorDetail::Interrupted.into());
                Ok(())
            }
            // The entry of an inference that was revoked stands for this one as well.
            Ok(false) => {
                self.call_worker();
                Ok(())
            }
            Ok(true) => match self.queues.push(request.queue(), entry) {
                Ok(()) => {
                    self.call_worker();
                    Ok(())
                }
                Err(_) => self.refuse(request, generation),
            },
        }
    }

    /// Undoes the queueing of a request that found no room. Another thread may have cancelled it meanwhile, and begun the
    /// next inference in reliance on the entry: that one fails then.
    fn refuse(&self, request: &Request, generation: Generation) -> Result<(), RuntimeError> {
        let full = ErrorDetail::State(StateError::QueueFull { capacity: self.options.capacity });
        if !request.state().claim_entry() {
            return Ok(());
        }
        if request.state().generation() == generation {
            return Err(full.into());
        }
        request.fail(full.into());
        Ok(())
    }

    /// Gets a worker for what is there, unless all are at work.
    fn call_worker(self: &Arc<Self>) {
        self.workers.call(self);
    }

    /// Returns whether there is work for a worker now.
    fn has_work(&self) -> bool {
        match &self.in_flight {
            None => !self.queues.is_empty(),
            Some(in_flight) => {
                !in_flight.is_empty() || !self.queues.is_empty() && in_flight.has_room(self.most_on_device())
            }
        }
    }

    /// Works on one request, or for the oldest that the device has; false when there was nothing to do.
    fn work(self: &Arc<Self>, check: Option<CancellationCheck<'_>>) -> bool {
        match &self.in_flight {
            None => self.run_next(),
            Some(in_flight) => {
                if self.hand_over_next(in_flight) {
                    return true;
                }
                let claim =
                    |number| self.request(number).is_some_and(|request| request.state().claim_device_entry());
                let oldest = in_flight.take_oldest(claim).and_then(|number| self.request(number));
                oldest.is_some_and(|request| self.finish(request, check))
            }
        }
    }

    /// Runs the next queued request.
    fn run_next(self: &Arc<Self>) -> bool {
        let Some(taken) = self.queues.take() else { return false };
        // A worker may have been woken for several that came at once.
        if !self.queues.is_empty() {
            self.call_worker();
        }
        let Some((request, turn)) = self.claim(taken.entry, taken.turn) else { return true };
        if let Ok(body) = request.take_body() {
            self.begin_limit(request);
            self.run(request, body, turn);
        }
        true
    }

    /// Claims the request of a popped entry; none where it is stale, or the turn went to a state access.
    fn claim<'a>(
        &'a self,
        entry: u32,
        turn: Option<Turn<'a>>,
    ) -> Option<(&'a Arc<Request>, Option<Turn<'a>>)> {
        if entry & STATE_ACCESS != 0 {
            if let Some(turn) = turn
                && self.state_access.grant(entry & !STATE_ACCESS)
            {
                turn.hand_over();
            }
            return None;
        }
        let request = self.request(entry)?;
        let is_claimed = if turn.is_some() {
            request.state().claim_numbered(entry >> NUMBER_BITS, GENERATION_MASK)
        } else {
            request.state().claim_entry()
        };
        is_claimed.then_some((request, turn))
    }

    /// Runs a request that the calling thread owns, and says how it ended.
    fn run<'a>(self: &'a Arc<Self>, request: &Request, mut body: Box<Body>, turn: Option<Turn<'a>>) {
        let turn = turn.map(|turn| ServedTurn { shared: self, turn: Some(turn) });
        let (outcome, took) = body.run(request, None);
        drop(turn);
        self.ended(request, took);
        request.complete(body, outcome);
    }

    /// Runs a request on the thread of its caller, which has to go on soon: gives the body back where the inference takes too
    /// long.
    fn run_for_caller<'a>(
        self: &'a Arc<Self>,
        request: &Request,
        mut body: Box<Body>,
        turn: Option<Turn<'a>>,
        check: Option<CancellationCheck<'_>>,
    ) -> Result<(), CalledAway> {
        let turn = turn.map(|turn| ServedTurn { shared: self, turn: Some(turn) });
        if !self.options.device.is_bounded() {
            self.begin_limit(request);
            let guard_ns = clock::now_ns() + CALLER_LIMIT_NS;
            request.guard(guard_ns);
            self.watchdog.watch(self, guard_ns);
        }
        let (outcome, took) = body.run(request, check);
        drop(turn);
        if request.end_guard()
            && outcome.as_ref().is_err_and(RuntimeError::is_interrupted)
            && !request.is_asked_to_end()
        {
            self.durations.note_called_away(request.variant());
            return Err(CalledAway(body));
        }
        self.ended(request, took);
        request.complete(body, outcome);
        Ok(())
    }

    /// Has a request that was just begun end by `deadline`, wherever it is then.
    fn watch(self: &Arc<Self>, request: &Request, deadline: Option<Deadline>) {
        if let Some(deadline) = deadline {
            let deadline_ns = clock_after(deadline.remaining());
            request.set_deadline(deadline.limit(), deadline_ns);
            self.watchdog.watch(self, deadline_ns);
        }
    }

    /// Has an inference that begins now count as stuck after the time limit of its program.
    fn begin_limit(self: &Arc<Self>, request: &Request) {
        let Some(limit) = request.limit() else { return };
        let deadline_ns = clock_after(limit);
        if request.deadline().is_none_or(|(_, earlier_ns)| deadline_ns < earlier_ns) {
            request.set_deadline(limit, deadline_ns);
            self.watchdog.watch(self, deadline_ns);
        }
    }

    /// Gives the next queued request to the device, if there is one and room for it.
    fn hand_over_next(self: &Arc<Self>, in_flight: &InFlight) -> bool {
        if self.queues.is_empty() || !in_flight.reserve(self.most_on_device()) {
            return false;
        }
        let Some(taken) = self.queues.take() else {
            in_flight.release();
            return false;
        };
        let claimed = self
            .claim(taken.entry, taken.turn)
            .and_then(|(request, _)| Some((request, request.take_body().ok()?)));
        match claimed {
            Some((request, body)) => self.hand_over(in_flight, request, body),
            None => in_flight.release(),
        }
        true
    }

    /// Gives a request that the calling thread owns, and has reserved room for, to the device.
    fn hand_over(self: &Arc<Self>, in_flight: &InFlight, request: &Request, mut body: Box<Body>) {
        self.begin_limit(request);
        if let Err(error) = body.submit(request) {
            in_flight.release();
            return request.complete(body, Err(error));
        }
        request.put_body(body);
        self.leave_to_device(in_flight, request, false);
    }

    /// Leaves a running request, whose body is in its place, to the device. One that was asked to end meanwhile ends here.
    fn leave_to_device(self: &Arc<Self>, in_flight: &InFlight, request: &Request, is_returned: bool) {
        match request.state().leave_to_device() {
            Ok(true) => in_flight.push(request.number(), is_returned),
            Ok(false) => {}
            Err(AskedToEnd) => {
                self.finish(request, None);
            }
        }
    }

    /// Waits for a request that was taken from the device, and says how it ended; false where `check` said to wait no longer,
    /// and the device has it again.
    fn finish(self: &Arc<Self>, request: &Request, check: Option<CancellationCheck<'_>>) -> bool {
        let Some(in_flight) = &self.in_flight else { return false };
        let Ok(mut body) = request.take_body() else { return false };
        match body.finish(request, check) {
            Finished::Ended(outcome, took) => {
                self.ended(request, took);
                request.complete(body, outcome);
                self.serve_queue();
                true
            }
            Finished::LeftToDevice => {
                request.put_body(body);
                self.leave_to_device(in_flight, request, true);
                // The caller no longer waits for it.
                self.call_worker();
                false
            }
        }
    }

    /// Takes note of an inference that left the device.
    fn ended(&self, request: &Request, took: Option<Duration>) {
        if let Some(in_flight) = &self.in_flight {
            in_flight.release();
        }
        if let Some(took) = took {
            self.durations.note(request.variant(), took);
        }
    }

    /// Uses the room on the device that the calling thread has just made.
    fn serve_queue(self: &Arc<Self>) {
        if let Some(in_flight) = &self.in_flight {
            while self.hand_over_next(in_flight) {}
        }
    }
}

/// A turn whose end gets a worker for what waits behind it.
struct ServedTurn<'a> {
    shared: &'a Arc<Shared>,
    turn: Option<Turn<'a>>,
}

impl Drop for ServedTurn<'_> {
    fn drop(&mut self) {
        drop(self.turn.take());
        if !self.shared.queues.is_empty() {
            self.shared.call_worker();
        }
    }
}

/// A caller that sleeps, also when what it waits for panics.
struct Asleep<'a>(&'a AtomicU32);

impl<'a> Asleep<'a> {
    fn new(sleeping: &'a AtomicU32) -> Self {
        // AcqRel: see `Scheduler::submit`.
        sleeping.fetch_add(1, Ordering::AcqRel);
        Self(sleeping)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
