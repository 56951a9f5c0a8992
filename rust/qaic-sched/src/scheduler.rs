//! Decides which thread runs a request.
//!
//! **The rule.** A request goes to the run queue of its activation, and a worker is woken for it. A thread that waits for its
//! own inference may take it from there. No thread runs the inference of another caller but a worker. No thread polls.
//!
//! **On the thread of its caller** an inference runs where that costs less than to wake another thread: on a device that promises
//! a bound ([`Executor::is_bounded`]); on the host where inferences with the same shapes were short lately, which is a hint and
//! no promise. So the watchdog guards what runs there: one that takes longer than [`CALLER_LIMIT_NS`] is called away from its
//! caller and begins again on a worker, and the caller goes on, or waits as for any other. The call that gives an inference to a
//! device which works by itself is made by the caller too.
//!
//! **Devices that work by themselves.** A request on the device belongs to no thread. A thread that waits for it, or for any,
//! takes it from there and ends it. Workers do where no caller is going to.
//!
//! **Order.** A run queue is first in, first out. That of a program that retains state is ordered: the thread with its turn
//! runs one inference, and the state is complete before the turn goes on. Reads and writes of the state take their turn
//! like inferences.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use qaic_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use qaic_sync::{AskedToEnd, Event, EventCount, Generation, RunQueues, Turn};

use crate::durations::Durations;
use crate::on_device::{MOST_PER_THREAD, OnDevice, Permit};
use crate::requests::{NUMBER_BITS, Requests};
use crate::state_access::{self, StateAccess};
use crate::watchdog::Watchdog;
use crate::worker::Workers;
use crate::{
    CancellationCheck, Deadline, Error, Executor, Finished, ForkGuard, Job, Request, Task, WaitScope, clock,
};

/// Inferences shorter than this run on the thread that submits them: to wake a thread costs about as much.
pub(crate) const SHORT_NS: u64 = 20_000;

/// How long an inference may keep the thread of its caller, which answers no signals meanwhile.
const CALLER_LIMIT_NS: u64 = 20_000_000;

/// Room for entries of ordered queues whose inferences were revoked, which keep their places, and for exec objects beyond those
/// that the options of the program count. Models have none: they fill their queues.
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
    /// One run queue per activation.
    pub queues: u32,
    /// True if the inferences of a queue run one after the other.
    pub is_ordered: bool,
    /// Inferences that can be queued at a time.
    pub capacity: u32,
    /// Inferences of a queue that run at a time, on average.
    pub threads: u32,
    /// Combinations of shapes.
    pub variants: usize,
    /// How long an inference may take.
    pub limit: Option<Duration>,
    /// The device that runs them.
    pub device: Arc<dyn Executor>,
    /// Called on each new worker.
    pub begin_worker: fn(),
    /// Takes a line about something that was not expected.
    pub warn: fn(&str),
}

impl SchedulerOptions {
    /// Workers, with `threads` for each queue. A device that computes on the host gains nothing from more than CPUs.
    pub(crate) fn most_workers(&self, threads: u32) -> u32 {
        let all = threads.max(1).saturating_mul(self.queues.max(1));
        let useful =
            if self.device.executes_on_host() { all.min(self.queues.max(usable_cpus())) } else { all };
        useful.min(self.capacity).max(1)
    }

    /// Returns whether inferences are given to the device before others are waited for. If state is retained,
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
/// let begun = request.state().begin(false).unwrap();
/// scheduler.submit(&request, request.take_task().unwrap(), begun.generation, None).unwrap();
/// let mut scope = WaitScope::default();
/// while request.state().is_in_flight() {
///     let ended = || (!request.state().is_in_flight()).then_some(());
///     let _ = request.state().wait(scope.sleep_limit(), ended);
/// }
/// assert_eq!(request.outcome(), Ok(()));
/// ```
#[derive(Debug)]
pub struct Scheduler<J: Job> {
    pub(crate) shared: Arc<Shared<J>>,
    fork_guard: ForkGuard,
}

/// State that the workers share with the scheduler, which ends them when it is dropped.
#[derive(Debug)]
pub(crate) struct Shared<J: Job> {
    pub(crate) options: SchedulerOptions,
    pub(crate) requests: Requests<J>,
    pub(crate) queues: RunQueues,
    pub(crate) state_access: StateAccess,
    // `None` where each inference is run at once.
    on_device: Option<OnDevice>,
    pub(crate) durations: Durations,
    pub(crate) workers: Workers,
    pub(crate) watchdog: Watchdog,
    // Callers that sleep until an inference ends, on a pipelined device.
    sleeping_callers: AtomicU32,
    is_stopping: AtomicBool,
}

/// A task whose inference has to begin again, on a worker.
#[derive(Debug)]
pub(crate) struct CalledAway<J>(pub(crate) Box<Task<J>>);

/// Another inference has the turn of the queue.
#[derive(Clone, Copy, Debug)]
struct OutOfTurn;

impl<J: Job> Scheduler<J> {
    /// Makes a scheduler without threads; they begin when they are needed.
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

    /// A request for a new exec object of an activation.
    pub fn take_request(&self, queue: u32) -> Result<Arc<Request<J>>, Error> {
        self.shared.requests.take(queue)
    }

    /// Gives back the request of an exec object that is gone.
    pub fn give_back_request(&self, request: &Request<J>) {
        self.shared.requests.give_back(request);
    }

    /// Inferences that wait in a queue; only a guess while others come and go.
    pub fn waiting(&self, queue: u32) -> usize {
        self.shared.queues.waiting(queue)
    }

    /// From now on `threads` inferences of a queue run at a time, on average. Those that run go on.
    pub fn allow(&self, threads: u32) {
        if self.shared.workers.allow(self.shared.options.most_workers(threads)) && self.shared.has_work() {
            self.shared.call_worker();
        }
    }

    /// Takes over an inference that the calling thread has begun and prepared, and that has to end by `deadline`. Where it fails,
    /// nothing has begun, and the caller has to withdraw it; the task is in its place.
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
            // A completion callback has to come whether or not a caller waits.
            let is_for_workers = task.has_completion();
            shared.hand_over(on_device, request, task, permit);
            // RMW: either this sees the caller that is about to sleep, or that caller sees what is on the device.
            if is_for_workers || shared.sleeping_callers.fetch_add(0, Ordering::AcqRel) > 0 {
                shared.call_worker();
            }
            return Ok(());
        }
        request.put_task(task);
        shared.enqueue(request, generation)
    }

    /// Returns whether an inference may run on the calling thread, which answers signals only after it.
    pub fn may_run_here(&self, task: &Task<J>) -> bool {
        self.shared.on_device.is_some() || self.shared.suits_caller(task.variant(), CALLER_LIMIT_NS)
    }

    /// Runs an inference that the calling thread has begun and prepared, on that thread; gives the task back where another
    /// inference has the turn, the device has no room, or it takes too long. `check` may end it.
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

    /// Works on behalf of a caller that waits for any inference: for the oldest that the device has, or, where the system gave no
    /// threads, on what is queued. False when there was nothing, and when `check` said to wait no longer.
    pub fn help(&self, check: CancellationCheck<'_>) -> bool {
        let shared = &self.shared;
        (shared.on_device.is_some() || shared.workers.are_missing()) && shared.work(Some(check))
    }

    /// Takes a queued inference out of the queue and runs it for its caller, which waits for it; false where that is for a worker.
    pub fn run_queued(
        &self,
        request: &Request<J>,
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
        let Ok(task) = request.take_task() else { return false };
        if let Err(CalledAway(task)) = shared.run_for_caller(request, task, None, Some(check)) {
            request.put_task(task);
            if let Err(error) = shared.enqueue(request, generation) {
                request.fail(error.into());
            }
        }
        true
    }

    /// Waits for the inference of a request on the device, on the calling thread; false when it is not there, and when
    /// `check` said to wait no longer.
    pub fn finish(
        &self,
        request: &Request<J>,
        generation: Generation,
        check: Option<CancellationCheck<'_>>,
    ) -> bool {
        request.state().take_from_device(generation) && self.shared.finish(request, check)
    }

    /// Sees to it that what is on the device ends without a caller that waits for it.
    pub fn watch_device(&self) {
        self.shared.call_worker();
    }

    /// Sleeps on `event` until `take` gives something, a notification, or `limit`. Sees to it that what comes meanwhile is
    /// worked on.
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
            // What came before this caller counted as asleep is for this caller.
            (std::mem::take(&mut is_first) && shared.has_work()).then_some(None)
        });
        taken.flatten()
    }

    /// Works with the turn of an ordered queue, when it comes.
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
        // The threads of a forked process's parent are not here: joining would wait forever, and locks may be held for good.
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

    pub(crate) fn warn(&self, text: &str) {
        (self.options.warn)(text);
    }

    fn request(&self, entry: u32) -> Option<&Arc<Request<J>>> {
        self.requests.get(entry & ((1 << NUMBER_BITS) - 1))
    }

    /// Returns whether an inference of these shapes runs on the thread of its caller because it usually takes
    /// less than `limit_ns`.
    pub(crate) fn suits_caller(&self, variant: usize, limit_ns: u64) -> bool {
        let device = &self.options.device;
        // Bounded devices that queue by themselves have a path of their own.
        let is_short = || device.executes_on_host() && self.durations.of(variant) < limit_ns;
        self.on_device.is_none() && (device.is_bounded() || is_short())
    }

    /// Inferences on the device at a time.
    fn most_on_device(&self) -> u32 {
        MOST_PER_THREAD.saturating_mul(self.workers.most()).min(self.options.capacity).max(1)
    }

    /// Returns the turn of the queue that the calling thread needs to run a request at once, if it needs one.
    fn turn_of(&self, request: &Request<J>) -> Result<Option<Turn<'_>>, OutOfTurn> {
        if !self.queues.is_ordered() {
            return Ok(None);
        }
        self.queues.try_turn(request.queue()).map(Some).ok_or(OutOfTurn)
    }

    /// Leaves a running request, whose task is in its place, to the threads of its queue.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        request: &Request<J>,
        generation: Generation,
    ) -> Result<(), Error> {
        let entry = request.number() | (generation.low_bits() & GENERATION_MASK) << NUMBER_BITS;
        match request.state().enqueue(!self.queues.is_ordered()) {
            Err(AskedToEnd) => {
                request.fail(Error::Interrupted.into());
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
    pub(crate) fn refuse(&self, request: &Request<J>, generation: Generation) -> Result<(), Error> {
        let full = Error::QueueFull { capacity: self.options.capacity };
        if !request.state().claim_entry() {
            return Ok(());
        }
        if request.state().generation() == generation {
            return Err(full);
        }
        request.fail(full.into());
        Ok(())
    }

    /// Gets a worker for what is there, unless all are at work.
    pub(crate) fn call_worker(self: &Arc<Self>) {
        self.workers.call(self);
    }

    /// Returns whether there is work for a worker now.
    pub(crate) fn has_work(&self) -> bool {
        match &self.on_device {
            None => !self.queues.is_empty(),
            Some(on_device) => {
                !on_device.is_empty() || !self.queues.is_empty() && on_device.has_room(self.most_on_device())
            }
        }
    }

    /// Works on one request, or for the oldest that the device has; false when there was nothing to do.
    pub(crate) fn work(self: &Arc<Self>, check: Option<CancellationCheck<'_>>) -> bool {
        match &self.on_device {
            None => self.run_next(),
            Some(on_device) => {
                if self.hand_over_next(on_device) {
                    return true;
                }
                let claim =
                    |number| self.request(number).is_some_and(|request| request.state().claim_device_entry());
                let oldest = on_device.take_oldest(claim).and_then(|number| self.request(number));
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
        if let Ok(task) = request.take_task() {
            self.begin_limit(request);
            self.run(request, task, turn);
        }
        true
    }

    /// Claims the request of a popped entry; none where it is stale, or the turn went to a state access.
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
            request.state().claim_numbered(entry >> NUMBER_BITS, GENERATION_MASK)
        } else {
            request.state().claim_entry()
        };
        is_claimed.then_some((request, turn))
    }

    /// Runs a request that the calling thread owns, and says how it ended.
    fn run<'a>(self: &'a Arc<Self>, request: &Request<J>, mut task: Box<Task<J>>, turn: Option<Turn<'a>>) {
        let turn = turn.map(|turn| ServedTurn { shared: self, turn: Some(turn) });
        let outcome = task.run(request, None);
        drop(turn);
        self.complete(request, task, outcome);
    }

    /// Runs a request on the thread of its caller, which has to go on soon: gives the task back where the inference takes too
    /// long.
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

    /// Has a request that was just begun end by `deadline`, wherever it is then.
    fn watch(self: &Arc<Self>, request: &Request<J>, deadline: Option<Deadline>) {
        if let Some(deadline) = deadline {
            let deadline_ns = clock::after(deadline.remaining());
            request.set_deadline(deadline.limit(), deadline_ns);
            self.watchdog.watch(self, deadline_ns);
        }
    }

    /// Has an inference that begins now count as stuck after the time limit of its program.
    fn begin_limit(self: &Arc<Self>, request: &Request<J>) {
        let Some(limit) = request.limit() else { return };
        let deadline_ns = clock::after(limit);
        if request.deadline().is_none_or(|(_, earlier_ns)| deadline_ns < earlier_ns) {
            request.set_deadline(limit, deadline_ns);
            self.watchdog.watch(self, deadline_ns);
        }
    }

    /// Gives the next queued request to the device, if there is one and room for it.
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
            // The caller of that inference may sleep, and the calling thread may go.
            self.call_worker();
        }
        true
    }

    /// Gives a request that the calling thread owns to the device.
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

    /// Leaves a running request, whose task is in its place, to the device. One that was asked to end meanwhile ends here.
    fn leave_to_device(self: &Arc<Self>, on_device: &OnDevice, request: &Request<J>, is_returned: bool) {
        match request.state().leave_to_device() {
            Ok(true) => on_device.push(request.number(), is_returned),
            Ok(false) => {}
            Err(AskedToEnd) => {
                self.finish(request, None);
            }
        }
    }

    /// Waits for a request that was taken from the device, and says how it ended; false where `check` said to wait no longer,
    /// and the device has it again.
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
                // The caller no longer waits for it.
                self.call_worker();
                false
            }
        }
    }

    /// Takes note of an inference that has ended, and reports its end.
    fn complete(&self, request: &Request<J>, task: Box<Task<J>>, outcome: Result<(), J::Error>) {
        if let Some(took_ns) = task.spent_ns() {
            self.durations.note(request.variant(), took_ns);
        }
        request.complete(task, outcome);
    }

    /// Uses the room on the device that the calling thread has just made.
    fn serve_queue(self: &Arc<Self>) {
        if let Some(on_device) = &self.on_device {
            while self.hand_over_next(on_device) {}
        }
    }
}

/// A turn whose end gets a worker for what waits behind it.
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
