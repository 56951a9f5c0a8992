//! A fixed number of exec objects over one or several activations, shared by any number of threads.

mod benchmark;
mod completion_queue;
mod lease;
mod pending;
mod pending_state;

use std::fmt::Debug;
use std::mem;
use std::sync::Arc;

use qaic_sched::{AskedToEnd, Generation, Phase, PutBackError, RequestLists, RequestState};
use qaic_sync::Event;

use crate::context::Context;
use crate::device::Placement;
use crate::error::{RuntimeError, StateError};
use crate::image::Image;
use crate::process::reaper::{Ended, Teardown};
use crate::process::{CancellationCheck, Detached, ForkGuard, WaitScope};
use crate::program::{Program, ProgramOptions};
use crate::request::{ExecObj, INFERENCE, Request, Scheduler};

pub use benchmark::{BenchmarkOutcome, BenchmarkProgress};
pub use completion_queue::CompletionQueue;
pub use lease::Lease;
pub use pending::PendingInference;
pub(crate) use pending::PendingInput;

/// Maximum number of exec objects of a set. Each costs kilobytes, and more than the number of calling threads can
/// never run.
const MAX_EXEC_OBJECTS: u32 = 1 << 16;

/// Number of an exec object of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId(pub u32);

/// Manages `set_size` exec objects for each of `num_activations` activations of one container.
///
/// A handle is available, acquired by a caller, submitted until its inference has ended, or completed until it is
/// collected ([`RequestState`]). No step from acquiring to putting back takes a lock, unless a thread
/// sleeps.
#[derive(Debug)]
pub struct InferenceSet {
    execs: Box<[Arc<ExecObj>]>,
    lists: Arc<RequestLists>,
    pub(crate) scheduler: Arc<Scheduler>,
    /// The container.
    pub image: Arc<Image>,
    fork_guard: ForkGuard,
    /// The programs, one per activation.
    // Dropped after the exec objects, which refer to the activations.
    pub programs: Vec<Arc<Program>>,
    // Dropped after everything that uses a device.
    ended: Ended,
}

/// Receives a call when an inference has ended.
pub(crate) trait Completion: Debug + Send + Sync {
    /// Called once, on the thread that ended the inference, which may be the submitting thread: this function must
    /// not block. The handle is still acquired, and [`InferenceSet::outcome`] returns the outcome.
    fn completed(&self, handle: HandleId);
}

impl InferenceSet {
    /// Loads the container once, activates it `num_activations` times and creates the exec objects.
    ///
    /// Blocking: as [`Program::load`].
    pub fn new(
        context: &Arc<Context>,
        image: &Arc<Image>,
        placement: &Placement,
        set_size: u32,
        num_activations: u32,
        mut options: ProgramOptions,
    ) -> Result<Arc<Self>, RuntimeError> {
        if set_size == 0 || num_activations == 0 {
            return Err(RuntimeError::argument(format!(
                "set_size {set_size} and num_activations {num_activations} must be at least 1"
            )));
        }
        let count = num_activations.saturating_mul(set_size);
        options.load.activations = num_activations;
        options.exec_objs = count;
        let share_group = options.load.share_group.clone();
        let cores = image.network.num_cores.max(1);
        context.check_free_cores(placement, cores, num_activations, share_group.as_deref())?;
        if count > MAX_EXEC_OBJECTS {
            return Err(RuntimeError::argument(format!(
                "set_size {set_size} times num_activations {num_activations} is {count}; \
                     at most {MAX_EXEC_OBJECTS} inferences can be in flight"
            )));
        }
        let programs =
            Program::with_queues(context, image, placement, &options, num_activations, Some(set_size))?;
        let Some(first) = programs.first() else {
            return Err(RuntimeError::internal("a set without programs"));
        };
        first.load()?;
        let mut activated = Vec::with_capacity(programs.len());
        for program in &programs {
            program.share_loaded(first);
            // Reserves the cores of all programs before the memory of any.
            activated.push(program.enter(true)?);
        }
        let lists = Arc::new(RequestLists::new(count));
        let mut execs = Vec::with_capacity(count as usize);
        let made = (0..set_size).try_for_each(|_| {
            // Consecutive handles use different activations.
            programs.iter().try_for_each(|program| {
                execs.push(ExecObj::new(program, false)?);
                Ok::<_, RuntimeError>(())
            })
        });
        for activated in activated {
            activated.leave();
        }
        made?;
        for (number, exec) in (0..count).zip(&execs) {
            exec.join(&lists, number);
        }
        let scheduler = Arc::clone(&first.scheduler);
        let set = Arc::new(Self {
            execs: execs.into(),
            lists,
            scheduler,
            image: Arc::clone(image),
            fork_guard: ForkGuard::new(),
            programs,
            ended: Ended::new(Teardown::of_devices(placement.devices.iter().map(|id| id.0).collect())),
        });
        // The handle with the lowest number is acquired first.
        (0..count).rev().try_for_each(|number| set.put_completed(HandleId(number)))?;
        Ok(set)
    }

    /// Progress of the teardown, which ends with the last use of the set, for example by an inference in flight.
    pub fn teardown(&self) -> &Arc<Teardown> {
        &self.ended.teardown
    }

    /// Number of exec objects.
    pub fn handle_count(&self) -> usize {
        self.execs.len()
    }

    /// Position in [`Self::programs`] of the handle's program.
    pub(crate) fn activation_of(&self, handle: HandleId) -> u32 {
        let activations = u32::try_from(self.programs.len()).unwrap_or(u32::MAX);
        handle.0 % activations.max(1)
    }

    /// The exec object of a handle.
    pub fn exec_obj(&self, handle: HandleId) -> Result<&Arc<ExecObj>, RuntimeError> {
        self.execs.get(handle.0 as usize).ok_or_else(|| unknown_handle(handle))
    }

    /// The request of an existing handle.
    fn request(&self, number: u32) -> &Request {
        &self.execs[number as usize].request
    }

    fn state_of<'a>(&'a self) -> impl Fn(u32) -> &'a RequestState {
        |number| &self.request(number).state
    }

    /// Acquires a free exec object if there is one; always returns `None` in a forked process. Never blocks.
    pub fn try_acquire(&self) -> Option<HandleId> {
        self.fork_guard.check().ok()?;
        self.lists.acquire(self.state_of()).map(HandleId)
    }

    /// Acquires a free exec object.
    ///
    /// Blocking: until one is put back, or until `scope` ends the wait.
    pub fn acquire(&self, scope: &mut WaitScope<'_>) -> Result<HandleId, RuntimeError> {
        let free = self.lists.for_available();
        self.wait_for(free, "a free exec object", Help::Nothing, scope, || self.try_acquire().map(Ok))
    }

    /// Acquires an exec object as [`Self::try_acquire`] does, for the lifetime of the result.
    pub fn try_lease(&self) -> Option<Lease<'_>> {
        let handle = self.try_acquire()?;
        let exec = self.execs.get(handle.0 as usize)?;
        Some(Lease { set: self, handle, exec })
    }

    /// Acquires an exec object as [`Self::acquire`] does, for the lifetime of the result.
    pub(crate) fn lease(&self, scope: &mut WaitScope<'_>) -> Result<Lease<'_>, RuntimeError> {
        let handle = match self.try_acquire() {
            Some(handle) => handle,
            None => self.acquire(scope)?,
        };
        Ok(Lease { set: self, handle, exec: self.exec_obj(handle)? })
    }

    /// Starts the bound inference of a handle, under an id of the caller's choice, and returns at once. An inference
    /// that is known to be short has already ended by then, and can be collected.
    ///
    /// Fails with [`StateError::InFlight`] while the handle's last inference is in flight or was not collected. A
    /// handle that was put back and is still free may be submitted again: submitting removes the handle from the list
    /// of free ones.
    pub fn submit(&self, handle: HandleId, id: u64, detached: Detached) -> Result<(), RuntimeError> {
        self.exec_obj(handle)?.submit(Some(id), None, detached)
    }

    /// Returns the next completed handle.
    ///
    /// Blocking: until an inference ends, or until `scope` ends the wait. Fails with [`StateError::NothingSubmitted`]
    /// if there is no inference to wait for.
    pub fn get_completed(&self, scope: &mut WaitScope<'_>) -> Result<HandleId, RuntimeError> {
        let completed = self.lists.for_completed();
        self.wait_for(completed, "a completed inference", Help::Any, scope, || {
            if let Some(handle) = self.try_get_completed() {
                return Some(Ok(handle));
            }
            self.is_settled().then(|| Err(StateError::NothingSubmitted.into()))
        })
    }

    /// Returns a completed handle if there is one; always returns `None` in a forked process. Never blocks.
    pub fn try_get_completed(&self) -> Option<HandleId> {
        self.fork_guard.check().ok()?;
        self.lists.collect(self.state_of()).map(HandleId)
    }

    /// Returns the same handle as [`Self::get_completed_id`] if the inference has ended, otherwise `None`. Always
    /// returns `None` in a forked process. Never blocks.
    pub fn try_get_completed_id(&self, id: u64) -> Option<HandleId> {
        self.fork_guard.check().ok()?;
        let number = self.lists.oldest(id, self.state_of())?;
        let state = &self.request(number).state;
        let generation = state.generation();
        // The id does not change between the start of the inference and its collection.
        let has_ended = state.phase() == Phase::Completed && self.lists.id_of(number) == Some(id);
        let is_collected = has_ended && self.lists.collect_one(number, generation, self.state_of());
        is_collected.then_some(HandleId(number))
    }

    /// Returns the handle of the inference with this id once it is completed; the oldest one if several have the id.
    ///
    /// Blocking: as [`Self::get_completed`]. Fails with [`StateError::UnknownInference`] if no inference with this id
    /// is in flight or can be collected.
    pub fn get_completed_id(&self, id: u64, scope: &mut WaitScope<'_>) -> Result<HandleId, RuntimeError> {
        self.fork_guard.check()?;
        loop {
            let oldest = self.lists.oldest(id, self.state_of());
            let number = oldest.ok_or(StateError::UnknownInference { id })?;
            let request = self.request(number);
            let state = &request.state;
            let generation = state.generation();
            let carries = || state.generation() == generation && self.lists.id_of(number) == Some(id);
            let help = Help::With(HandleId(number));
            let is_collected = self.wait_for(state, INFERENCE, help, scope, || {
                // The id does not change between the start of the inference and its collection.
                if state.phase() == Phase::Completed
                    && carries()
                    && self.lists.collect_one(number, generation, self.state_of())
                {
                    return Some(Ok(true));
                }
                (!carries() || !state.is_outstanding()).then_some(Ok(false))
            })?;
            if is_collected {
                return Ok(HandleId(number));
            }
            // Another thread collected this inference; another one may have the same id.
        }
    }

    /// Makes a handle available again. Fails while its inference is in flight, and if the handle is already
    /// available.
    pub fn put_completed(&self, handle: HandleId) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        self.exec_obj(handle)?;
        self.lists.put_back(handle.0, self.state_of()).map_err(|refused| match refused {
            PutBackError::Available => StateError::Invalid {
                what: format!("handle {} was already returned; get it or submit it first", handle.0),
            }
            .into(),
            PutBackError::InFlight | PutBackError::Completed(_) => StateError::InFlight.into(),
        })
    }

    /// Returns true if there is no inference to wait for. If this returns false while the calling thread listens for
    /// completions, the thread is notified once there is none.
    fn is_settled(&self) -> bool {
        self.lists.is_settled(self.state_of())
    }

    /// Waits until every inference that was submitted before this call has ended.
    ///
    /// Blocking: until these inferences have ended, or until `scope` ends the wait.
    pub fn wait_for_completion(&self, scope: &mut WaitScope<'_>) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        for (number, exec) in (0..).zip(&self.execs) {
            let request = &exec.request;
            let Some(generation) = request.state.under_way() else { continue };
            let help = Help::With(HandleId(number));
            self.wait_for(&request.state, "all inferences", help, scope, || {
                (request.state.under_way() != Some(generation)).then_some(Ok(()))
            })?;
        }
        Ok(())
    }

    /// Checks the inferences that have ended but were not collected; returns the failure of the first failed handle.
    pub fn check_completed(&self) -> Result<(), RuntimeError> {
        let mut completed = self.execs.iter().filter(|exec| exec.request.state.phase() == Phase::Completed);
        completed.try_for_each(|exec| exec.outcome())
    }

    /// Id of the last submission of a handle.
    #[cfg(test)]
    pub(crate) fn id_of(&self, handle: HandleId) -> u64 {
        self.lists.id_of(handle.0).unwrap_or(0)
    }

    /// Waits until `take` returns a value; meanwhile, the thread does the work that `help` selects. A thread that
    /// makes `take` succeed must notify `event`. `what` is a description of the awaited value.
    ///
    /// Blocking: until `take` succeeds, or until `scope` ends the wait.
    pub(crate) fn wait_for<T>(
        &self,
        event: &impl Event,
        what: &'static str,
        help: Help,
        scope: &mut WaitScope<'_>,
        mut take: impl FnMut() -> Option<Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        self.fork_guard.check()?;
        loop {
            let mut taken = take();
            let (mut given_up, mut is_first) = (None, true);
            let mut check = || {
                if !mem::take(&mut is_first) && taken.is_none() {
                    taken = take();
                }
                if taken.is_none() && given_up.is_none() {
                    given_up = scope.poll(what).err();
                }
                taken.is_some() || given_up.is_some()
            };
            let has_helped = !check() && self.help(help, &mut check);
            if let Some(taken) = taken {
                return taken;
            }
            if let Some(error) = given_up {
                return Err(error.into());
            }
            // After this thread has helped, more work may exist while other threads submit.
            if !has_helped && let Some(taken) = self.scheduler.sleep(event, scope.sleep_limit(), &mut take) {
                return taken;
            }
        }
    }

    fn help(&self, help: Help, check: CancellationCheck<'_>) -> bool {
        match help {
            Help::Any => self.scheduler.help(check),
            Help::With(handle) => self.exec_obj(handle).is_ok_and(|exec| exec.help(check)),
            Help::Nothing => {
                self.scheduler.watch_device();
                false
            }
        }
    }
}

/// Work that a thread does while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Help {
    /// Any runnable inference, or else the oldest inference on the device.
    Any,
    /// The inference of a handle, and the inferences that must run before it.
    With(HandleId),
    /// No help: other threads do the work.
    Nothing,
}

impl Drop for InferenceSet {
    fn drop(&mut self) {
        if self.fork_guard.is_current() {
            // All are cancelled before the first wait, because running inferences block waiting ones.
            self.execs.iter().for_each(|exec| exec.cancel());
        }
    }
}

fn unknown_handle(handle: HandleId) -> RuntimeError {
    RuntimeError::argument(format!("handle {} does not belong to this inference set", handle.0))
}
