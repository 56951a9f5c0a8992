//! A request: carries one inference at a time through an activated program.
//!
//! A [`Request`] has one state word ([`RequestState`]) and one [`Task`]. The thread that changes the state word to
//! *running* takes the task out of its slot, and is the only thread that works on the task. The thread puts the task
//! back before it ends the *running* phase. Other threads read the state word, ask the inference to end, and wait.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use qaic_sync::Slot;
use qaic_sync::atomic::{AtomicU32, AtomicU64, Mutex, Ordering};

use crate::request_state::{Generation, PriorPhase, Reason, RequestState};
use crate::{Canceller, Error, Job, RequestLists, Task};

/// Guard value that means that the time on the caller's thread has expired.
const CALLED_AWAY: u64 = u64::MAX;

/// Name of a request in errors about waiting for it.
pub const INFERENCE: &str = "an inference";

/// Carries one inference at a time. A request outlives its exec object, and is then used for another one. A thread
/// that finds the number of a request in a queue therefore holds no cores.
///
/// ```
/// # mod counted {
/// #     #![allow(dead_code)]
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/counted.rs"));
/// # }
/// # use counted::{Counted, Device};
/// use qaic_sched::{Error, Scheduler};
///
/// let device = std::sync::Arc::new(Device::default());
/// let request = Scheduler::new(device.options()).take_request(0).unwrap();
/// request.attach(Counted::new(&device));
/// assert_eq!(request.edit(|job| job.variant), Ok(0));
/// request.state.begin(false).unwrap();
/// assert_eq!(request.edit(|job| job.variant), Err(Error::InFlight));
/// request.fail(Error::Cancelled);
/// assert_eq!(request.outcome(), Err(Error::Cancelled));
/// ```
#[derive(Debug)]
pub struct Request<J: Job> {
    /// State of the request.
    pub state: RequestState,
    // Empty while the owner of the running inference has the task, and while the request has no exec object.
    task: Slot<Task<J>>,
    /// Number among the requests of the scheduler.
    pub(crate) number: u32,
    pub(crate) queue: u32,
    // Combination of shapes of the inference that started last.
    variant: AtomicU32,
    // Time at which the inference exceeds its limit, on the process's clock; 0 without a limit. The owner clears it
    // before completion.
    deadline_ns: AtomicU64,
    // Time limit of the inference.
    limit_ms: AtomicU64,
    // Time at which the caller's thread must stop running the inference and continue; 0 on other threads, CALLED_AWAY
    // afterwards.
    guard_ns: AtomicU64,
    // Reason why the last inference failed; read if the state word reports a failure.
    failure: Mutex<Option<J::Error>>,
    canceller: Mutex<Option<Arc<dyn Canceller>>>,
    // Maximum duration of an inference.
    pub(crate) limit: Option<Duration>,
    // The inference set of the request, and its number there.
    lists: OnceLock<(Arc<RequestLists>, u32)>,
}

impl<J: Job> Request<J> {
    /// Creates a request without a job.
    pub(crate) fn new(number: u32, queue: u32, limit: Option<Duration>) -> Self {
        Self {
            state: RequestState::idle(),
            task: Slot::empty(),
            number,
            queue,
            variant: AtomicU32::new(0),
            deadline_ns: AtomicU64::new(0),
            limit_ms: AtomicU64::new(0),
            guard_ns: AtomicU64::new(0),
            failure: Mutex::new(None),
            canceller: Mutex::new(None),
            limit,
            lists: OnceLock::new(),
        }
    }

    /// Stores the job of a new exec object in the request.
    pub fn attach(&self, job: J) {
        *self.canceller.lock() = Some(job.canceller());
        self.task.put(Box::new(Task::new(job)));
    }

    /// Removes the job of a dropped exec object, whose inference has ended.
    pub fn detach(&self) -> Option<Box<Task<J>>> {
        *self.canceller.lock() = None;
        self.task.take()
    }

    /// Adds the request to an inference set; must be called before its first inference.
    pub fn join(&self, lists: &Arc<RequestLists>, number: u32) {
        let _ = self.lists.set((Arc::clone(lists), number));
    }

    /// Adds the inference that just began to the list of its set, under an id.
    pub fn list(&self, id: u64) {
        if let Some((lists, number)) = self.lists.get() {
            lists.submitted(*number, id);
        }
    }

    /// Undoes [`Request::list`] of an inference that was not submitted.
    pub fn unlist(&self) {
        if let Some((lists, number)) = self.lists.get() {
            lists.withdrawn(*number);
        }
    }

    /// Undoes the start of an inference that was not submitted; the task must be in its slot.
    pub fn withdraw(&self, prior_phase: PriorPhase) {
        // Relaxed: as in `conclude`.
        self.deadline_ns.store(0, Ordering::Relaxed);
        let withdrawn = self.state.withdraw(prior_phase);
        let Some((lists, number)) = self.lists.get() else { return };
        if withdrawn.needs_entry {
            lists.available(*number);
        }
        if withdrawn.was_awaited {
            lists.settled();
        }
    }

    /// Combination of shapes of the current inference.
    pub(crate) fn variant(&self) -> usize {
        self.variant.load(Ordering::Relaxed) as usize
    }

    /// Stores the combination of shapes of the inference that just began. Relaxed: the state word publishes the
    /// value.
    pub(crate) fn set_variant(&self, variant: usize) {
        self.variant.store(u32::try_from(variant).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Takes the task, for the owner of a running inference.
    pub fn take_task(&self) -> Result<Box<Task<J>>, Error> {
        self.task.take().ok_or(Error::NoJob { number: self.number })
    }

    /// Puts the task back, before the state leaves the running phase.
    pub fn put_task(&self, task: Box<Task<J>>) {
        self.task.put(task);
    }

    /// Changes the job while no inference is in flight, and prevents inferences from beginning meanwhile.
    pub fn edit<T>(&self, change: impl FnOnce(&mut J) -> T) -> Result<T, Error> {
        self.state.edit().map_err(|_| Error::InFlight)?;
        // The task also returns after a panic in `change`.
        let mut edited = Edited { request: self, task: self.task.take() };
        match &mut edited.task {
            Some(task) => Ok(change(task)),
            None => Err(Error::NoJob { number: self.number }),
        }
    }

    /// Reports the end of the inference that the calling thread owns to waiting threads, the set, or the completion
    /// callback. The inference holds no resources of the program by then.
    pub fn complete(&self, mut task: Box<Task<J>>, outcome: Result<(), J::Error>) {
        let completion = task.end();
        self.task.put(task);
        self.conclude(outcome, completion);
    }

    /// [`Request::complete`] after the task was put back.
    fn conclude(&self, outcome: Result<(), J::Error>, completion: Option<J::Completion>) {
        let outcome = outcome.map_err(|error| self.explained(error));
        let has_failed = outcome.is_err();
        if let Err(error) = outcome {
            *self.failure.lock() = Some(error);
        }
        // Relaxed: the state word publishes it.
        self.deadline_ns.store(0, Ordering::Relaxed);
        let needs_entry = self.state.complete(has_failed);
        if let Some((lists, number)) = self.lists.get() {
            if needs_entry {
                lists.completed(*number);
            }
            if let Some(completion) = completion {
                J::completed(completion, *number);
            }
        }
    }

    /// Returns the error of an inference. For an interrupted inference, returns the reason why it was asked to end.
    fn explained(&self, error: J::Error) -> J::Error {
        if !J::is_interrupted(&error) {
            return error;
        }
        match self.state.reason() {
            Some(Reason::TimedOut) => {
                Error::Timeout { what: INFERENCE, timeout_ms: self.limit_ms.load(Ordering::Relaxed) }.into()
            }
            Some(Reason::Cancelled) => Error::Cancelled.into(),
            None => error,
        }
    }

    /// Outcome of the last inference; `Ok` if there was none.
    pub fn outcome(&self) -> Result<(), J::Error> {
        if !self.state.has_failed() {
            return Ok(());
        }
        self.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// Returns true if the inference was asked to end.
    pub fn is_asked_to_end(&self) -> bool {
        self.state.reason().is_some()
    }

    /// Ends a queued inference as cancelled, if no thread has taken it.
    pub fn revoke(&self, generation: Generation) -> bool {
        if !self.state.claim(generation) {
            return false;
        }
        self.fail(Error::Cancelled.into());
        true
    }

    /// Ends the inference that the calling thread owns with an error; the task must be in its slot.
    pub fn fail(&self, error: J::Error) {
        match self.take_task() {
            Ok(task) => self.complete(task, Err(error)),
            Err(missing) => self.conclude(Err(missing.into()), None),
        }
    }

    /// Asks an inference to end, unless it has ended. The first reason counts.
    pub fn ask_to_end(&self, generation: Generation, reason: Reason) {
        if self.state.ask_to_end(generation, reason) {
            self.cancel_on_device();
        }
    }

    /// Makes the device end the inference, which was asked to end.
    pub fn cancel_on_device(&self) {
        let canceller = self.canceller.lock().clone();
        if let Some(canceller) = canceller {
            canceller.cancel();
        }
    }

    /// Sets the time at which the running inference must release the calling thread.
    pub(crate) fn guard(&self, guard_ns: u64) {
        self.guard_ns.store(guard_ns, Ordering::Release);
    }

    /// Ends [`Request::guard`]. Returns true if the calling thread must continue with other work.
    pub(crate) fn end_guard(&self) -> bool {
        let is_called_away = self.is_called_away();
        self.guard_ns.store(0, Ordering::Release);
        is_called_away
    }

    /// Returns true if the calling thread, which runs the inference for its caller, must continue with other
    /// work.
    pub fn is_called_away(&self) -> bool {
        self.guard_ns.load(Ordering::Acquire) == CALLED_AWAY
    }

    /// Time at which the inference must release the caller's thread.
    pub(crate) fn guard_ns(&self) -> Option<u64> {
        Some(self.guard_ns.load(Ordering::Acquire)).filter(|&guard_ns| guard_ns != 0)
    }

    /// Makes the inference release the caller's thread if the time of this guard has expired; returns true if so.
    /// Later inferences have another guard, or none.
    pub(crate) fn call_away(&self, guard_ns: u64, now_ns: u64) -> bool {
        let is_over = guard_ns == CALLED_AWAY || guard_ns <= now_ns;
        let called = |now| (now == guard_ns).then_some(CALLED_AWAY);
        if is_over && self.guard_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, called).is_ok() {
            self.cancel_on_device();
        }
        is_over
    }

    /// Sets the deadline of the running inference to `deadline_ns`, which results from `limit`.
    pub(crate) fn set_deadline(&self, limit: Duration, deadline_ns: u64) {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.limit_ms.store(limit_ms, Ordering::Relaxed);
        self.deadline_ns.store(deadline_ns.max(1), Ordering::Release);
    }

    /// Deadline of the inference in flight; `None` if it has no time limit.
    pub(crate) fn deadline(&self) -> Option<(Generation, u64)> {
        // The word is read first: a deadline that is read afterwards is of this inference, or of a later one, which
        // the generation shows.
        let generation = self.state.under_way()?;
        let deadline_ns = self.deadline_ns.load(Ordering::Acquire);
        (deadline_ns != 0).then_some((generation, deadline_ns))
    }
}

/// An idle request whose slot is empty while a thread edits the job.
struct Edited<'a, J: Job> {
    request: &'a Request<J>,
    task: Option<Box<Task<J>>>,
}

impl<J: Job> Drop for Edited<'_, J> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.request.task.put(task);
        }
        self.request.state.edited();
    }
}
