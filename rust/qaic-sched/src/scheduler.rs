//! Selects the thread that runs a request.
//!
//! **Basic rule.** A request enters the run queue of its activation, and a worker is woken for it. A thread that
//! waits for its own inference may take it from the queue. Only workers run inferences of other callers. No thread
//! polls.
//!
//! **Execution on the caller's thread.** An inference runs on the thread of its caller if waking another thread would
//! cost more. This applies to devices that promise a bound ([`Executor::is_bounded`]), and to the host if recent
//! inferences with the same shapes were short. Recent durations are a hint and no promise, so the watchdog guards
//! these inferences. An inference that takes longer than [`CALLER_LIMIT_NS`] releases its caller's thread and begins
//! again on a worker. The caller then continues, or waits as for any other inference. The caller's thread also
//! submits inferences to asynchronous devices.
//!
//! **Asynchronous devices.** A request on the device belongs to no thread. A thread that waits for this request, or
//! for any request, takes it from the device and ends it. Workers do so if no caller is going to.
//!
//! **Order.** A run queue is first in, first out. The queue of a program that retains state is ordered: the thread
//! with the turn runs one inference, and passes the turn on when the state is complete. Reads and writes of the state
//! wait for their turn like inferences.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use qaic_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use qaic_sync::{Event, EventCount};

use crate::durations::Durations;
use crate::on_device::{MOST_PER_THREAD, OnDevice, Permit};
use crate::request_state::{AskedToEnd, Generation};
use crate::requests::{NUMBER_BITS, Requests};
use crate::run_queue::{RunQueues, Turn};
use crate::state_access::{self, StateAccess};
use crate::watchdog::Watchdog;
use crate::worker::Workers;
use crate::{
    CancellationCheck, Deadline, Error, Executor, Finished, ForkGuard, Job, Request, Task, WaitScope, clock,
};

/// Duration below which an inference runs on the thread that submits it, because waking a thread costs about as much.
pub(crate) const SHORT_NS: u64 = 20_000;

/// Maximum time that an inference may occupy its caller's thread, which handles no signals in that time.
const CALLER_LIMIT_NS: u64 = 20_000_000;

/// Extra capacity of the queues, for revoked inferences that keep their places in ordered queues, and for exec
/// objects beyond the number in the program's options. Loom models have no extra capacity, so that they fill their
/// queues.
const SPARE: u32 = if cfg!(loom) { 0 } else { 768 };

// An entry of a run queue: the number of a request and, above, bits of the generation; or a ticket of a state access.
pub(crate) const STATE_ACCESS: u32 = 1 << 31;
pub(crate) const GENERATION_MASK: u32 = (1 << (31 - NUMBER_BITS)) - 1;

/// Settings of a scheduler.
///
/// ```
/// # mod counted {
/// #     #![allow(dead_code)]
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/counted.rs"));
/// # }
/// # use counted::Device;
/// use qaic_sched::{Scheduler, SchedulerOptions};
///
/// let device = std::sync::Arc::new(Device::default());
/// let options = SchedulerOptions { queues: 2, is_ordered: true, ..device.options() };
/// let scheduler = Scheduler::<counted::Counted>::new(options);
/// assert_eq!(scheduler.waiting(1), 0);
/// ```
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Number of run queues, one per activation.
    pub queues: u32,
    /// True if the inferences of a queue run one after the other.
    pub is_ordered: bool,
    /// Number of inferences that can be queued at a time.
    pub capacity: u32,
    /// Average number of inferences per queue that run at a time.
    pub threads: u32,
    /// Number of combinations of shapes.
    pub variants: usize,
    /// Time limit of an inference.
    pub limit: Option<Duration>,
    /// The device that runs the inferences.
    pub device: Arc<dyn Executor>,
    /// Called on each new worker.
    pub begin_worker: fn(),
    /// Logs a line about an unexpected event.
    pub warn: fn(&str),
}

impl SchedulerOptions {
    /// Maximum number of workers, with `threads` for each queue. A device that computes on the host uses at most one
    /// per CPU.
    pub(crate) fn most_workers(&self, threads: u32) -> u32 {
        let all = threads.max(1).saturating_mul(self.queues.max(1));
        let useful =
            if self.device.executes_on_host() { all.min(self.queues.max(usable_cpus())) } else { all };
        useful.min(self.capacity).max(1)
    }

    /// Returns true if inferences are submitted to the device before earlier ones have ended. If state is retained,
    /// each inference completes before the next begins.
    pub(crate) fn is_pipelined(&self) -> bool {
        self.device.queues_on_device() && !self.is_ordered
    }
}

/// CPUs this process may use, respecting affinity and control groups.
fn usable_cpus() -> u32 {
    thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// The run queues of a program, or of those of an inference set, and the threads that empty them.
///
/// ```
/// # mod counted {
/// #     #![allow(dead_code)]
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/counted.rs"));
/// # }
/// # use counted::{Counted, Device};
/// use qaic_sched::{Scheduler, WaitScope};
/// use qaic_sync::Event;
///
/// let device = std::sync::Arc::new(Device::default());
/// let scheduler = Scheduler::new(device.options());
/// let request = scheduler.take_request(0).unwrap();
/// request.attach(Counted::new(&device));
///
/// let begun = request.state.begin(false).unwrap();
/// scheduler.submit(&request, request.take_task().unwrap(), begun.generation, None).unwrap();
/// let mut scope = WaitScope::default();
/// while request.state.is_in_flight() {
///     let ended = || (!request.state.is_in_flight()).then_some(());
///     let _ = request.state.wait(scope.sleep_limit(), ended);
/// }
/// assert_eq!(request.outcome(), Ok(()));
/// ```
#[derive(Debug)]
pub struct Scheduler<J: Job> {
    pub(crate) shared: Arc<Shared<J>>,
    fork_guard: ForkGuard,
}

/// State shared by the scheduler and its workers. Dropping the scheduler ends the workers.
#[derive(Debug)]
pub(crate) struct Shared<J: Job> {
    pub(crate) options: SchedulerOptions,
    pub(crate) requests: Requests<J>,
    pub(crate) queues: RunQueues,
    pub(crate) state_access: StateAccess,
    // `None` if each inference runs immediately.
    on_device: Option<OnDevice>,
    pub(crate) durations: Durations,
    pub(crate) workers: Workers,
    pub(crate) watchdog: Watchdog,
    // Number of callers that sleep until an inference ends, on a pipelined device.
    sleeping_callers: AtomicU32,
    is_stopping: AtomicBool,
}

/// A task whose inference must begin again on a worker.
#[derive(Debug)]
pub(crate) struct CalledAway<J>(pub(crate) Box<Task<J>>);

/// Error: another inference has the turn of the queue.
#[derive(Clone, Copy, Debug)]
struct OutOfTurn;

impl<J: Job> Scheduler<J> {
    /// Creates a scheduler without threads; threads start when they are needed.
    pub fn new(options: SchedulerOptions) -> Arc<Self> {
        let (capacity, queues) = (options.capacity.max(1), options.queues.max(1));
        let room = capacity.saturating_add(SPARE);
        let of_queue = capacity.div_ceil(queues).saturating_add(SPARE).saturating_add(state_access::TICKETS);
        let shared = Shared {
            requests: Requests::new(queues, options.limit),
            queues: RunQueues::new(queues, of_queue, options.is_ordered),
            state_access: StateAccess::new(),
            on_device: options.is_pipelined().then(|| OnDevice::new(room)),
            durations: Durations::new(options.variants),
            workers: Workers::new(options.most_workers(options.threads)),
            watchdog: Watchdog::new(),
            sleeping_callers: AtomicU32::new(0),
            is_stopping: AtomicBool::new(false),
            options,
        };
        Arc::new(Self { shared: Arc::new(shared), fork_guard: ForkGuard::new() })
    }

    /// Returns a request for a new exec object of an activation.
    pub fn take_request(&self, queue: u32) -> Result<Arc<Request<J>>, Error> {
        self.shared.requests.take(queue)
    }

    /// Returns the request of a dropped exec object to the scheduler.
    pub fn give_back_request(&self, request: &Request<J>) {
        self.shared.requests.give_back(request);
    }

    /// Number of inferences that wait in a queue; an estimate if it changes concurrently.
    pub fn waiting(&self, queue: u32) -> usize {
        self.shared.queues.waiting(queue)
    }

    /// Changes the average number of inferences per queue that run at a time. Running inferences continue.
    pub fn allow(&self, threads: u32) {
        if self.shared.workers.allow(self.shared.options.most_workers(threads)) && self.shared.has_work() {
            self.shared.call_worker();
        }
    }

    /// Takes over an inference that the calling thread has begun and prepared, and that has to end by `deadline`. If
    /// this fails, no inference has begun: the task is in its slot, and the caller must withdraw the inference.
    pub fn submit(
        &self,
        request: &Request<J>,
        mut task: Box<Task<J>>,
        generation: Generation,
        deadline: Option<Deadline>,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        let variant = task.variant();
        request.set_variant(variant);
        task.time_if(shared.durations.is_unknown(variant));
        shared.watch(request, deadline);
        if shared.suits_caller(variant, SHORT_NS)
            && let Ok(turn) = shared.turn_of(request)
        {
            match shared.run_for_caller(request, task, turn, None) {
                Ok(()) => return Ok(()),
                Err(CalledAway(again)) => task = again,
            }
        }
        if let Some(on_device) = &shared.on_device
            && shared.queues.is_empty()
            && let Some(permit) = on_device.acquire(shared.most_on_device())
        {
            // A completion callback must run even if no caller waits.
            let is_for_workers = task.has_completion();
            shared.hand_over(on_device, request, task, permit);
            // RMW: either this thread sees the caller that is about to sleep, or that caller sees the inferences on
            // the device.
            if is_for_workers || shared.sleeping_callers.fetch_add(0, Ordering::AcqRel) > 0 {
                shared.call_worker();
            }
            return Ok(());
        }
        request.put_task(task);
        shared.enqueue(request, generation)
    }

    /// Returns true if an inference may run on the calling thread, which cannot handle signals until the
    /// inference ends.
    pub fn may_run_here(&self, task: &Task<J>) -> bool {
        self.shared.on_device.is_some() || self.shared.suits_caller(task.variant(), CALLER_LIMIT_NS)
    }

    /// Runs an inference that the calling thread has begun and prepared, on that thread. Returns the task if another
    /// inference has the turn, the device has no room, or the inference takes too long. `check` may end the
    /// inference.
    pub fn run_here(
        &self,
        request: &Request<J>,
        mut task: Box<Task<J>>,
        deadline: Option<Deadline>,
        check: CancellationCheck<'_>,
    ) -> Result<(), Box<Task<J>>> {
        let shared = &self.shared;
        let variant = task.variant();
        request.set_variant(variant);
        task.time_if(shared.durations.is_unknown(variant));
        task.begin_at_once();
        if let Some(on_device) = &shared.on_device {
            let Some(permit) = on_device.acquire(shared.most_on_device()) else { return Err(task) };
            task.permit(permit);
            shared.watch(request, deadline);
            shared.begin_limit(request);
            let outcome = task.run(request, Some(check));
            shared.complete(request, task, outcome);
            shared.serve_queue();
            return Ok(());
        }
        let Ok(turn) = shared.turn_of(request) else { return Err(task) };
        shared.watch(request, deadline);
        shared.run_for_caller(request, task, turn, Some(check)).map_err(|CalledAway(task)| task)
    }

    /// Makes progress for a caller that waits for any inference: waits for the oldest inference on the device, or
    /// runs a queued one if the system provided no threads. Returns false if there was nothing to do, or if `check`
    /// ended the wait.
    pub fn help(&self, check: CancellationCheck<'_>) -> bool {
        let shared = &self.shared;
        (shared.on_device.is_some() || shared.workers.are_missing()) && shared.work(Some(check))
    }

    /// Takes a queued inference out of the queue and runs it for its waiting caller. Returns false if a worker must
    /// run the inference.
    pub fn run_queued(
        &self,
        request: &Request<J>,
        generation: Generation,
        check: CancellationCheck<'_>,
    ) -> bool {
        let shared = &self.shared;
        if shared.queues.is_ordered || !shared.suits_caller(request.variant(), CALLER_LIMIT_NS) {
            return self.help(check);
        }
        // Its entry represents the next inference of the request.
        if !request.state.claim(generation) {
            return false;
        }
        let Ok(task) = request.take_task() else { return false };
        if let Err(CalledAway(task)) = shared.run_for_caller(request, task, None, Some(check)) {
            request.put_task(task);
            if let Err(error) = shared.enqueue(request, generation) {
                request.fail(error.into());
            }
        }
        true
    }

    /// Waits for the inference of a request on the device, on the calling thread. Returns false if the inference is
    /// not on the device, or if `check` ended the wait.
    pub fn finish(
        &self,
        request: &Request<J>,
        generation: Generation,
        check: Option<CancellationCheck<'_>>,
    ) -> bool {
        request.state.take_from_device(generation) && self.shared.finish(request, check)
    }

    /// Wakes or starts a worker that waits for the inferences on the device, in case no caller waits for them.
    pub fn watch_device(&self) {
        self.shared.call_worker();
    }

    /// Sleeps on `event` until `take` returns a value, a notification arrives, or `limit` has passed. Ensures that
    /// workers handle inferences that arrive in the meantime.
    pub fn sleep<T>(
        &self,
        event: &impl Event,
        limit: Duration,
        mut take: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let shared = &self.shared;
        if shared.on_device.is_none() {
            return event.wait(limit, take);
        }
        let _asleep = Asleep::new(&shared.sleeping_callers);
        let mut is_first = true;
        let taken = event.wait(limit, || {
            if let Some(taken) = take() {
                return Some(Some(taken));
            }
            // Handles inferences that arrived before this caller was counted as asleep.
            (std::mem::take(&mut is_first) && shared.has_work()).then_some(None)
        });
        taken.flatten()
    }

    /// Calls `work` when the calling thread has the turn of an ordered queue.
    ///
    /// Blocking: until the inferences and accesses before it have ended, or until `scope` ends the wait.
    pub fn with_turn<T>(
        &self,
        queue: u32,
        scope: &mut WaitScope<'_>,
        work: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        let _turn = self.turn(queue, scope)?;
        Ok(work())
    }

    fn turn(&self, queue: u32, scope: &mut WaitScope<'_>) -> Result<ServedTurn<'_, J>, Error> {
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
            return Err(Error::QueueFull { capacity: shared.options.capacity });
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

impl<J: Job> Drop for Scheduler<J> {
    fn drop(&mut self) {
        // The threads of a forked process's parent do not exist here: a join would never end, and locks may be held
        // forever.
        if self.fork_guard.is_current() {
            self.shared.stop();
        }
    }
}

impl<J: Job> Shared<J> {
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.workers.stop();
        self.watchdog.stop();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn request(&self, entry: u32) -> Option<&Arc<Request<J>>> {
        self.requests.get(entry & ((1 << NUMBER_BITS) - 1))
    }

    /// Returns true if an inference of these shapes runs on the thread of its caller because it usually takes
    /// less than `limit_ns`.
    pub(crate) fn suits_caller(&self, variant: usize, limit_ns: u64) -> bool {
        let device = &self.options.device;
        // Bounded devices with their own queue have a separate path.
        let is_short = || device.executes_on_host() && self.durations.of(variant) < limit_ns;
        self.on_device.is_none() && (device.is_bounded() || is_short())
    }

    /// Maximum number of inferences on the device at a time.
    fn most_on_device(&self) -> u32 {
        MOST_PER_THREAD.saturating_mul(self.workers.most()).min(self.options.capacity).max(1)
    }

    /// Acquires the turn of the queue, if the calling thread needs the turn to run a request at once.
    fn turn_of(&self, request: &Request<J>) -> Result<Option<Turn<'_>>, OutOfTurn> {
        if !self.queues.is_ordered {
            return Ok(None);
        }
        self.queues.try_turn(request.queue).map(Some).ok_or(OutOfTurn)
    }

    /// Adds a running request, whose task is in its slot, to the run queue.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        request: &Request<J>,
        generation: Generation,
    ) -> Result<(), Error> {
        let entry = request.number | (generation.low_bits() & GENERATION_MASK) << NUMBER_BITS;
        match request.state.enqueue(!self.queues.is_ordered) {
            Err(AskedToEnd) => {
                request.fail(Error::Interrupted.into());
                Ok(())
            }
            // The entry of the revoked inference also represents this one.
            Ok(false) => {
                self.call_worker();
                Ok(())
            }
            Ok(true) => match self.queues.push(request.queue, entry) {
                Ok(()) => {
                    self.call_worker();
                    Ok(())
                }
                Err(_) => self.refuse(request, generation),
            },
        }
    }

    /// Undoes the queueing of a request that found no room. If another thread has cancelled the request and begun its
    /// next inference in the meantime, that inference fails, because it relies on the queue entry.
    pub(crate) fn refuse(&self, request: &Request<J>, generation: Generation) -> Result<(), Error> {
        let full = Error::QueueFull { capacity: self.options.capacity };
        if !request.state.claim_entry() {
            return Ok(());
        }
        if request.state.generation() == generation {
            return Err(full);
        }
        request.fail(full.into());
        Ok(())
    }

    /// Wakes or starts a worker for the available work, unless all workers are busy.
    pub(crate) fn call_worker(self: &Arc<Self>) {
        self.workers.call(self);
    }

    pub(crate) fn has_work(&self) -> bool {
        match &self.on_device {
            None => !self.queues.is_empty(),
            Some(on_device) => {
                !on_device.is_empty() || !self.queues.is_empty() && on_device.has_room(self.most_on_device())
            }
        }
    }

    /// Processes one request, or waits for the oldest request on the device. Returns false if there was nothing to
    /// do.
    pub(crate) fn work(self: &Arc<Self>, check: Option<CancellationCheck<'_>>) -> bool {
        match &self.on_device {
            None => self.run_next(),
            Some(on_device) => {
                if self.hand_over_next(on_device) {
                    return true;
                }
                let claim =
                    |number| self.request(number).is_some_and(|request| request.state.claim_device_entry());
                let oldest = on_device.take_oldest(claim).and_then(|number| self.request(number));
                oldest.is_some_and(|request| self.finish(request, check))
            }
        }
    }

    /// Runs the next queued request.
    fn run_next(self: &Arc<Self>) -> bool {
        let Some(taken) = self.queues.take() else { return false };
        // A worker may have been woken for several inferences that arrived together.
        if !self.queues.is_empty() {
            self.call_worker();
        }
        let Some((request, turn)) = self.claim(taken.entry, taken.turn) else { return true };
        if let Ok(task) = request.take_task() {
            self.begin_limit(request);
            self.run(request, task, turn);
        }
        true
    }

    /// Claims the request of a popped entry. Returns `None` if the entry is stale, or if a state access received the
    /// turn.
    fn claim<'a>(
        &'a self,
        entry: u32,
        turn: Option<Turn<'a>>,
    ) -> Option<(&'a Arc<Request<J>>, Option<Turn<'a>>)> {
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
            request.state.claim_numbered(entry >> NUMBER_BITS, GENERATION_MASK)
        } else {
            request.state.claim_entry()
        };
        is_claimed.then_some((request, turn))
    }

    /// Runs a request that the calling thread owns, and reports its outcome.
    fn run<'a>(self: &'a Arc<Self>, request: &Request<J>, mut task: Box<Task<J>>, turn: Option<Turn<'a>>) {
        let turn = turn.map(|turn| ServedTurn { shared: self, turn: Some(turn) });
        let outcome = task.run(request, None);
        drop(turn);
        self.complete(request, task, outcome);
    }

    /// Runs a request on the thread of its caller. Returns the task if the inference takes too long, because the
    /// caller must continue soon.
    pub(crate) fn run_for_caller<'a>(
        self: &'a Arc<Self>,
        request: &Request<J>,
        mut task: Box<Task<J>>,
        turn: Option<Turn<'a>>,
        check: Option<CancellationCheck<'_>>,
    ) -> Result<(), CalledAway<J>> {
        let turn = turn.map(|turn| ServedTurn { shared: self, turn: Some(turn) });
        if !self.options.device.is_bounded() {
            self.begin_limit(request);
            let guard_ns = clock::now_ns() + CALLER_LIMIT_NS;
            request.guard(guard_ns);
            self.watchdog.watch(self, guard_ns);
        }
        let outcome = task.run(request, check);
        drop(turn);
        if request.end_guard() && outcome.as_ref().is_err_and(J::is_interrupted) && !request.is_asked_to_end()
        {
            self.durations.note_called_away(request.variant());
            return Err(CalledAway(task));
        }
        self.complete(request, task, outcome);
        Ok(())
    }

    /// Ends a request that just began at `deadline`, regardless of its phase at that time.
    fn watch(self: &Arc<Self>, request: &Request<J>, deadline: Option<Deadline>) {
        if let Some(deadline) = deadline {
            let deadline_ns = clock::after(deadline.remaining());
            request.set_deadline(deadline.limit, deadline_ns);
            self.watchdog.watch(self, deadline_ns);
        }
    }

    /// Starts the time limit of the program for an inference that begins now.
    fn begin_limit(self: &Arc<Self>, request: &Request<J>) {
        let Some(limit) = request.limit else { return };
        let deadline_ns = clock::after(limit);
        if request.deadline().is_none_or(|(_, earlier_ns)| deadline_ns < earlier_ns) {
            request.set_deadline(limit, deadline_ns);
            self.watchdog.watch(self, deadline_ns);
        }
    }

    /// Submits the next queued request to the device, if there is one and the device has room.
    fn hand_over_next(self: &Arc<Self>, on_device: &OnDevice) -> bool {
        if self.queues.is_empty() {
            return false;
        }
        let Some(permit) = on_device.acquire(self.most_on_device()) else { return false };
        let Some(taken) = self.queues.take() else { return false };
        if let Some((request, _)) = self.claim(taken.entry, taken.turn)
            && let Ok(task) = request.take_task()
        {
            self.hand_over(on_device, request, task, permit);
            // The caller of that inference may sleep, and the calling thread may leave.
            self.call_worker();
        }
        true
    }

    /// Submits a request that the calling thread owns to the device.
    fn hand_over(
        self: &Arc<Self>,
        on_device: &OnDevice,
        request: &Request<J>,
        mut task: Box<Task<J>>,
        permit: Permit,
    ) {
        task.permit(permit);
        self.begin_limit(request);
        if let Err(error) = task.submit(request) {
            return request.complete(task, Err(error));
        }
        request.put_task(task);
        self.leave_to_device(on_device, request, false);
    }

    /// Leaves a running request, whose task is in its slot, to the device. Ends the request here if it was asked to
    /// end in the meantime.
    fn leave_to_device(self: &Arc<Self>, on_device: &OnDevice, request: &Request<J>, is_returned: bool) {
        match request.state.leave_to_device() {
            Ok(true) => on_device.push(request.number, is_returned),
            Ok(false) => {}
            Err(AskedToEnd) => {
                self.finish(request, None);
            }
        }
    }

    /// Waits for a request that was taken from the device, and reports its outcome. Returns false if `check` ended
    /// the wait; the device then has the request again.
    pub(crate) fn finish(
        self: &Arc<Self>,
        request: &Request<J>,
        check: Option<CancellationCheck<'_>>,
    ) -> bool {
        let Some(on_device) = &self.on_device else { return false };
        let Ok(mut task) = request.take_task() else { return false };
        match task.finish(request, check) {
            Finished::Ended(outcome) => {
                self.complete(request, task, outcome);
                self.serve_queue();
                true
            }
            Finished::LeftToDevice => {
                request.put_task(task);
                self.leave_to_device(on_device, request, true);
                // The caller no longer waits for the inference.
                self.call_worker();
                false
            }
        }
    }

    /// Records the duration of an inference that has ended, and reports its end.
    fn complete(&self, request: &Request<J>, task: Box<Task<J>>, outcome: Result<(), J::Error>) {
        if let Some(took_ns) = task.spent_ns {
            self.durations.note(request.variant(), took_ns);
        }
        request.complete(task, outcome);
    }

    /// Uses the place on the device that the calling thread has just freed.
    fn serve_queue(self: &Arc<Self>) {
        if let Some(on_device) = &self.on_device {
            while self.hand_over_next(on_device) {}
        }
    }
}

/// A turn whose end wakes a worker for the entries behind it.
struct ServedTurn<'a, J: Job> {
    shared: &'a Arc<Shared<J>>,
    turn: Option<Turn<'a>>,
}

impl<J: Job> Drop for ServedTurn<'_, J> {
    fn drop(&mut self) {
        drop(self.turn.take());
        if !self.shared.queues.is_empty() {
            self.shared.call_worker();
        }
    }
}

/// Counts a caller as asleep until this object is dropped, also after a panic.
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
