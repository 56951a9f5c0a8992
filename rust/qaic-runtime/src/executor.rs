//! Runs submitted inferences: on threads of its own, and on callers that wait anyway.
//!
//! An inference that is submitted goes into the lane of its activation, and the lane into the list of ready lanes.
//! Whoever has a permit takes the next one from there. Permits bound how many run at once: a device that computes on
//! the host gains nothing from more threads than CPUs.
//!
//! **Devices that work by themselves.** Whoever has a permit hands ready inferences over, up to [`MOST_PER_THREAD`] for
//! each thread, and when there is none to hand over he waits for the oldest. One permit more than threads were asked for
//! sees to it that somebody is always free to hand over. Any thread may wait for any inference that is on the device, and
//! end it: who needs that one, who cancels it, a worker.
//!
//! **Order.** A lane is first in, first out. The lane of a program that retains state is serial: it is in the ready
//! list at most once, so its inferences run one after the other in the order of submission; on a device that works by
//! itself too, where the state of one is complete before the next begins. Other inferences are handed over in the order of
//! their lane, as far as threads do not overtake each other between taking one and handing it over.
//!
//! **Wake-ups** cost more than a tiny inference. Short ones are therefore left to the caller, who comes back to collect
//! them; a worker that has just run out of work looks again every millisecond for a while, so that nothing waits longer
//! than that for a caller who never comes. On a device that works by itself, where more threads make nothing faster, such a
//! worker does nothing as long as callers get on from look to look, unless something is there that is not theirs.

use std::mem::{self, ManuallyDrop};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::carrier::Look;
use crate::device::Device;
use crate::error::RuntimeError;
use crate::flights::{Flights, MOST_PER_THREAD};
use crate::fork::Origin;
use crate::inference::{Begun, Inference, Landed};
use crate::progress::{Progress, Ticket};
use crate::queue::{IndexStack, Lanes, Waiters};
use crate::scheduling::give_way_when_woken;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, yield_now};

/// How often a worker that ran out of work looks again, and how many times, before it sleeps until it is woken.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOKS: u32 = 64;

/// A worker that was not woken looks anyway after this long: a guard against what the model did not cover.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Inferences shorter than this are left to a caller who waits.
const SHORT_NS: u64 = 20_000;

/// Inferences shorter than this may run on a waiting caller's thread, which answers Ctrl-C only between them.
const HELPABLE_NS: u64 = 20_000_000;

/// Short inferences that are handed over under one permit.
const TOGETHER: u32 = 16;

/// One in this many inferences is timed.
const TIMED_EVERY: u32 = 16;

/// Room for numbers of inferences that were revoked: their exec objects may be submitted again at once, and a worker comes
/// across the numbers only when it is done with what it runs.
const REVOKED: u32 = 256;

/// What decides how an executor works.
#[derive(Clone, Debug)]
pub(crate) struct ExecutorOptions {
    /// One lane per activation.
    pub(crate) lanes: u32,
    /// Whether the inferences of a lane run one after the other.
    pub(crate) serial: bool,
    /// Inferences that can be submitted at a time.
    pub(crate) capacity: u32,
    /// Inferences of a lane that run at a time, on average.
    pub(crate) threads: u32,
    /// Whether a waiting caller may run inferences itself, as far as the program goes: not where the next inference may
    /// take far longer than the last, and not where nobody could call him away from one.
    pub(crate) steady: bool,
    /// Where they run; no caller runs one on a device that may stall.
    pub(crate) device: Arc<dyn Device>,
}

impl ExecutorOptions {
    /// Permits, with `threads` for each lane.
    fn limit(&self, threads: u32) -> u32 {
        let all = threads.max(1).saturating_mul(self.lanes);
        let useful =
            if self.device.executes_on_host() { all.min(self.lanes.max(usable_cpus())) } else { all };
        let limit = useful.min(self.capacity).max(1);
        if self.is_pipelined() { limit.saturating_add(1) } else { limit }
    }

    /// Whether inferences are handed over to the device before others are waited for. Where state is retained, what one
    /// leaves behind is complete before the next begins.
    fn is_pipelined(&self) -> bool {
        self.device.queues_on_device() && !self.serial
    }
}

/// CPUs this process may use, respecting affinity and control groups.
fn usable_cpus() -> u32 {
    thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// Lanes and the threads that empty them. Threads are made when they are first needed.
#[derive(Debug)]
pub(crate) struct Executor {
    shared: Arc<Shared>,
    origin: Origin,
}

#[derive(Debug)]
struct Shared {
    options: ExecutorOptions,
    lanes: Lanes,
    // Submitted inferences by number, and the numbers not in use.
    // Exec objects own them: one that is gone while its entry waits takes its cores along.
    cells: Box<[Mutex<Entry>]>,
    numbers: IndexStack,
    // Inferences on the device; `None` where each is run at once.
    flights: Option<Flights>,
    idle: Waiters,
    // Workers that look again soon by themselves.
    warm: AtomicU32,
    // Changes with everything that callers do for inferences on the device, and whether something is not for callers.
    tended: AtomicU32,
    is_pressing: AtomicBool,
    // Whether one of the workers looks on while callers do all there is.
    has_lookout: AtomicBool,
    spawned: AtomicU32,
    // Not dropped by themselves: a forked process must not touch its parent's handles.
    workers: ManuallyDrop<Mutex<Vec<JoinHandle<()>>>>,
    // Threads with a permit, those of them that hand over to the device and that wait for it, and permits.
    running: AtomicU32,
    handing_over: AtomicU32,
    watching: AtomicU32,
    limit: AtomicU32,
    stop: AtomicBool,
    // Sampled duration of an inference; MAX before the first.
    typical_ns: AtomicU64,
    started: AtomicU32,
}

/// What a place in a lane is for; where the order counts, for one inference only.
type Entry = (Weak<Progress>, Weak<Inference>, Option<Ticket>);

impl Executor {
    pub(crate) fn new(options: ExecutorOptions) -> Arc<Self> {
        let capacity = options.capacity.max(1).saturating_add(REVOKED);
        let numbers = IndexStack::new_empty(capacity);
        for number in (0..capacity).rev() {
            numbers.push(number);
        }
        let shared = Arc::new(Shared {
            flights: options.is_pipelined().then(|| Flights::new(options.capacity.max(1))),
            handing_over: AtomicU32::new(0),
            watching: AtomicU32::new(0),
            lanes: Lanes::new(options.lanes.max(1), capacity, options.serial),
            cells: (0..capacity).map(|_| Mutex::default()).collect(),
            numbers,
            idle: Waiters::new(),
            warm: AtomicU32::new(0),
            tended: AtomicU32::new(0),
            is_pressing: AtomicBool::new(false),
            has_lookout: AtomicBool::new(false),
            spawned: AtomicU32::new(0),
            workers: ManuallyDrop::default(),
            running: AtomicU32::new(0),
            limit: AtomicU32::new(options.limit(options.threads)),
            stop: AtomicBool::new(false),
            typical_ns: AtomicU64::new(u64::MAX),
            started: AtomicU32::new(0),
            options,
        });
        Arc::new(Self { shared, origin: Origin::here() })
    }

    /// Puts an inference into its lane. Never blocks.
    ///
    /// `eager` wakes a worker whatever the inference usually costs: nobody is going to wait for it.
    pub(crate) fn submit(
        &self,
        lane: u32,
        inference: &Arc<Inference>,
        which: Ticket,
        eager: bool,
    ) -> Result<(), RuntimeError> {
        let shared = &self.shared;
        // An entry of an inference that was revoked serves for the next as well, so that revoking and submitting again
        // never fills the queue. Where the order counts, each submission has a place of its own.
        let progress = inference.progress();
        if !shared.options.serial && progress.is_listed.swap(true, Ordering::AcqRel) {
            // Whoever takes that entry lowers the flag first and then sees that the inference is queued.
            shared.call_worker(eager);
            return Ok(());
        }
        let Some(number) = shared.numbers.pop() else {
            progress.is_listed.store(false, Ordering::Release);
            return Err(RuntimeError::QueueFull { capacity: shared.options.capacity });
        };
        if let Some(cell) = shared.cells.get(number as usize) {
            let which = shared.options.serial.then_some(which);
            *cell.lock() = (Arc::downgrade(progress), Arc::downgrade(inference), which);
        }
        if !shared.lanes.enter(lane, number) {
            return Err(RuntimeError::Internal { what: format!("lane {lane} does not exist") });
        }
        shared.call_worker(eager);
        Ok(())
    }

    /// Inferences that wait in a lane; only a guess while others come and go.
    pub(crate) fn waiting(&self, lane: u32) -> usize {
        self.shared.lanes.waiting(lane)
    }

    /// From now on `threads` inferences of a lane run at a time, on average. Those that run go on.
    pub(crate) fn allow(&self, threads: u32) {
        let limit = self.shared.options.limit(threads);
        // Release: a worker that this wakes sees it.
        if self.shared.limit.swap(limit, Ordering::AcqRel) < limit {
            self.shared.idle.wake_all();
        }
    }

    /// Whether an inference may run on a caller's thread: it uses the CPU anyway, and is known to be short enough that
    /// the caller may answer Ctrl-C after it.
    pub(crate) fn callers_may_run(&self) -> bool {
        self.shared.is_shorter_than(HELPABLE_NS)
    }

    /// Runs one ready inference on the calling thread if that is sensible, or gets on with one that the device has; false
    /// when there was none, and when `look` said to wait no longer.
    pub(crate) fn help(&self, look: Look<'_>) -> bool {
        self.shared.tend();
        self.callers_may_help() && self.shared.run_one(Some(look))
    }

    /// Whether a caller may run inferences of others while he waits, because they are short or because nobody else would.
    pub(crate) fn callers_may_help(&self) -> bool {
        self.callers_may_run() || self.shared.spawned.load(Ordering::Acquire) == 0
    }

    /// Says that the calling thread has ended an inference that was on the device; `took` is the time that threads spent
    /// on it.
    pub(crate) fn landed(&self, took: Option<Duration>) {
        self.shared.tend();
        self.shared.landed(took);
        // RMW: as where a permit is given back.
        self.shared.running.fetch_add(0, Ordering::AcqRel);
        self.shared.call_for_what_is_ready();
    }

    /// Says that the calling thread took an inference from the device, and left it there.
    pub(crate) fn left_to_device(&self, inference: &Arc<Inference>) {
        self.shared.left_to_device(inference.progress(), Arc::downgrade(inference));
        self.shared.call_worker(true);
    }

    /// Runs `work`, an inference, on the calling thread, and learns how long one takes.
    pub(crate) fn run_here<T>(&self, work: impl FnOnce() -> T) -> T {
        self.shared.timed(work)
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The threads are the parent's: joining would wait forever, detaching could hit a thread of the child that
            // has the memory of one of them, and the lock may be held for good.
            return;
        }
        let workers = mem::take(&mut *self.shared.workers.lock());
        self.shared.stop.store(true, Ordering::Release);
        self.shared.idle.wake_all();
        let own = thread::current().id();
        for handle in workers {
            // The last reference may be one that a worker held.
            if handle.thread().id() != own {
                // A worker catches the panics of what it runs.
                let _ = handle.join();
            }
        }
    }
}

impl Shared {
    /// Gets a thread for what is ready, unless it is left to callers.
    fn call_worker(self: &Arc<Self>, eager: bool) {
        if eager {
            // Release: who takes note of this sees what is ready.
            self.is_pressing.store(true, Ordering::Release);
        } else if self.is_left_to_callers() {
            return;
        }
        if !self.idle.wake_one() && self.spawned.load(Ordering::Relaxed) < self.limit() {
            self.spawn();
        }
    }

    fn spawn(self: &Arc<Self>) {
        let number = self.spawned.fetch_add(1, Ordering::AcqRel);
        if number >= self.limit() {
            self.spawned.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let shared = Arc::clone(self);
        let life = move || {
            // Else a worker that is woken may take the CPU from the thread that has just submitted and is about to wait,
            // and that thread returns from `submit` only when the inference is over.
            if shared.options.device.executes_on_host() {
                give_way_when_woken();
            }
            shared.work();
        };
        let worker = thread::Builder::new().name(format!("qaic-exec-{number}")).spawn(life);
        match worker {
            Ok(handle) => self.workers.lock().push(handle),
            // Callers that wait run what nobody else does.
            Err(_) => {
                self.spawned.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// The life of a worker.
    fn work(self: &Arc<Self>) {
        let mut looks = 0;
        // What callers had done at the last look.
        let mut seen = self.tended.load(Ordering::Relaxed);
        while !self.stop.load(Ordering::Acquire) {
            if self.run_one(None) {
                looks = 0;
            } else if looks < LOOKS && self.is_shorter_than(SHORT_NS) {
                looks += 1;
                self.look_again(true);
                if self.is_tended(&mut seen) {
                    self.look_on(&mut seen);
                    looks = 0;
                }
            } else {
                let runnable = || (self.may_run() || self.stop.load(Ordering::Acquire)).then_some(());
                let _ = self.idle.wait(LONGEST_SLEEP, runnable);
            }
        }
    }

    /// Waits for a moment; `is_free`: or until there is something to do.
    fn look_again(&self, is_free: bool) {
        self.warm.fetch_add(1, Ordering::AcqRel);
        let _ = self.idle.wait(LOOK_AGAIN, || (is_free && self.may_run() || self.is_called()).then_some(()));
        self.warm.fetch_sub(1, Ordering::AcqRel);
    }

    /// Leaves everything to callers as long as they get on. One worker sees to that; others sleep until they are woken.
    fn look_on(&self, seen: &mut u32) {
        if self.has_lookout.swap(true, Ordering::AcqRel) {
            let _ = self.idle.wait(LONGEST_SLEEP, || self.is_called().then_some(()));
            return;
        }
        while !self.stop.load(Ordering::Acquire) {
            self.look_again(false);
            if !self.is_tended(seen) {
                break;
            }
        }
        self.has_lookout.store(false, Ordering::Release);
    }

    /// Whether something is there that is not for callers; or the end.
    fn is_called(&self) -> bool {
        self.is_pressing.load(Ordering::Acquire) || self.stop.load(Ordering::Acquire)
    }

    /// Whether callers have got on since the last look, and there is nothing but what is theirs. The calls into a device get
    /// no faster by more threads; what is computed here does.
    fn is_tended(&self, seen: &mut u32) -> bool {
        let now = self.tended.load(Ordering::Relaxed);
        let has_changed = mem::replace(seen, now) != now;
        !self.is_pressing.swap(false, Ordering::AcqRel) && self.flights.is_some() && has_changed
    }

    /// Says that a caller is busy with inferences that workers would be busy with else.
    fn tend(&self) {
        if self.flights.is_some() {
            // Two callers may count once: it only has to change.
            let before = self.tended.load(Ordering::Relaxed);
            self.tended.store(before.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Whether an inference is known to take less, and sure to.
    fn is_shorter_than(&self, limit_ns: u64) -> bool {
        self.options.steady
            && self.typical_ns.load(Ordering::Relaxed) < limit_ns
            && !self.options.device.may_stall()
    }

    /// Whether nobody needs to be woken for what is ready: it is short, and a worker looks soon should no caller come.
    fn is_left_to_callers(&self) -> bool {
        // RMW: either this sees the worker that looks again, or that worker sees what is ready.
        self.is_shorter_than(SHORT_NS) && self.warm.fetch_add(0, Ordering::AcqRel) > 0
    }

    fn limit(&self) -> u32 {
        self.limit.load(Ordering::Acquire)
    }

    fn may_run(&self) -> bool {
        if self.flights.is_none() && self.lanes.is_empty() {
            return false;
        }
        // RMW: either this sees the permit that was given back, and what its owner did before; or who gives it back sees
        // what is ready. So it comes before the look at what others are busy with.
        self.running.fetch_add(0, Ordering::AcqRel) < self.limit() && self.has_work()
    }

    /// Whether there is something to do for who has a permit.
    fn has_work(&self) -> bool {
        match &self.flights {
            None => !self.lanes.is_empty(),
            Some(flights) => {
                !flights.is_empty() && self.is_free(&self.watching) || self.may_hand_over(flights)
            }
        }
    }

    /// Whether an inference is ready, and there is room for it on the device and for who hands it over.
    fn may_hand_over(&self, flights: &Flights) -> bool {
        !self.lanes.is_empty() && self.is_free(&self.handing_over) && flights.count() < self.most_on_device()
    }

    /// Whether fewer than [`Self::threads`] are `busy` with the like.
    fn is_free(&self, busy: &AtomicU32) -> bool {
        busy.load(Ordering::Acquire) < self.threads()
    }

    /// Threads that may hand over at a time, and that may wait for the device at a time.
    fn threads(&self) -> u32 {
        self.limit().saturating_sub(1).max(1)
    }

    /// Does `work` unless all of [`Self::threads`] are `busy` with the like.
    fn as_one_of(&self, busy: &AtomicU32, work: impl FnOnce() -> bool) -> bool {
        let more = |busy| (busy < self.threads()).then_some(busy + 1);
        if busy.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return false;
        }
        let has_worked = work();
        busy.fetch_sub(1, Ordering::AcqRel);
        has_worked
    }

    /// Inferences on the device at a time.
    fn most_on_device(&self) -> u32 {
        MOST_PER_THREAD.saturating_mul(self.threads()).min(self.options.capacity).max(1)
    }

    /// Runs one inference, or a part of one, if there is one and a permit for it.
    fn run_one(self: &Arc<Self>, look: Option<Look<'_>>) -> bool {
        if !self.has_work() || !self.take_permit() {
            return false;
        }
        let ran = match &self.flights {
            None => self.lanes.run_next(|number| self.run(number)),
            Some(flights) => loop {
                if self.as_one_of(&self.handing_over, || self.hand_over_some(flights)) {
                    break true;
                }
                // RMW: either this thread, which is going to wait for long, sees what came while it seemed to hand over;
                // or who was called for that sees that it no longer does.
                self.running.fetch_add(0, Ordering::AcqRel);
                if !self.may_hand_over(flights) {
                    break self.as_one_of(&self.watching, || self.land_one(flights, look));
                }
                // There is one whose entry is not finished yet, or somebody else is about to take it.
                yield_now();
            },
        };
        self.give_back_permit();
        ran
    }

    /// Hands over what is ready, as long as that takes no time to speak of.
    fn hand_over_some(self: &Arc<Self>, flights: &Flights) -> bool {
        let most = if self.is_shorter_than(SHORT_NS) { TOGETHER } else { 1 };
        (0..most).take_while(|_| self.hand_over_one(flights)).count() > 0
    }

    fn hand_over_one(self: &Arc<Self>, flights: &Flights) -> bool {
        if self.lanes.is_empty() || !flights.take_off(self.most_on_device()) {
            return false;
        }
        let mut is_on_device = false;
        let ran = self.lanes.run_next(|number| is_on_device = self.hand_over(number, flights));
        if !is_on_device {
            flights.over();
        }
        ran
    }

    /// Begins an inference; whether it is on the device now.
    fn hand_over(self: &Arc<Self>, number: u32, flights: &Flights) -> bool {
        let Some(inference) = self.taken(number) else { return false };
        let handle = Arc::downgrade(&inference);
        let is_sampled = self.started.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED_EVERY);
        let Begun::OnDevice(progress) = Inference::begin(inference, is_sampled) else { return false };
        flights.add(&progress, handle);
        true
    }

    /// Waits for the oldest inference on the device; false when there was none, or `look` ended the wait.
    fn land_one(&self, flights: &Flights, look: Option<Look<'_>>) -> bool {
        flights.take_oldest().is_some_and(|inference| self.land(inference, look))
    }

    fn land(&self, inference: Arc<Inference>, look: Option<Look<'_>>) -> bool {
        let (progress, handle) = (Arc::clone(inference.progress()), Arc::downgrade(&inference));
        match Inference::land(inference, look) {
            Landed::Ended(took) => {
                self.landed(took);
                true
            }
            Landed::LeftToDevice => {
                self.left_to_device(&progress, handle);
                false
            }
        }
    }

    fn landed(&self, took: Option<Duration>) {
        if let Some(flights) = &self.flights {
            flights.over();
        }
        if let Some(took) = took {
            self.learn(took);
        }
    }

    fn left_to_device(&self, progress: &Arc<Progress>, inference: Weak<Inference>) {
        if let Some(flights) = &self.flights {
            flights.add(progress, inference);
        }
    }

    fn take_permit(&self) -> bool {
        let more = |running| (running < self.limit()).then_some(running + 1);
        self.running.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn give_back_permit(&self) {
        self.running.fetch_sub(1, Ordering::AcqRel);
        self.call_for_what_is_ready();
    }

    /// Wakes a worker for what the calling thread leaves undone.
    fn call_for_what_is_ready(&self) {
        if self.has_work() && !self.is_left_to_callers() {
            self.idle.wake_one();
        }
    }

    fn run(self: &Arc<Self>, number: u32) {
        if let Some(inference) = self.taken(number) {
            self.timed(|| Inference::execute(inference));
        }
    }

    /// The inference that was submitted under a number, which is free then. The caller is to run it; none where another
    /// thread has, or it was revoked.
    fn taken(self: &Arc<Self>, number: u32) -> Option<Arc<Inference>> {
        let (progress, inference, which) = mem::take(&mut *self.cells.get(number as usize)?.lock());
        self.numbers.push(number);
        // One waiting worker may have been woken for several inferences that came at once. Whoever takes one sees to it
        // that somebody comes for the next.
        if self.may_run() {
            self.call_worker(false);
        }
        let progress = progress.upgrade()?;
        progress.is_listed.swap(false, Ordering::AcqRel);
        // Only then may it be looked at: its exec object waits for the end of what was claimed. Another one may be gone, and
        // must not get its cores back later because of this thread.
        let is_mine = which.map_or_else(|| progress.claim_queued(), |which| progress.claim(which));
        if is_mine { inference.upgrade() } else { None }
    }

    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.started.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED_EVERY) {
            return work();
        }
        let started = Instant::now();
        let result = work();
        self.learn(started.elapsed());
        result
    }

    /// Learns how long a thread was busy with an inference.
    fn learn(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Grows slowly: one that was long because its thread had no CPU says nothing about the next.
        let known = self.typical_ns.load(Ordering::Relaxed);
        self.typical_ns.store(took.min(known.saturating_mul(2).max(1)), Ordering::Relaxed);
    }
}
