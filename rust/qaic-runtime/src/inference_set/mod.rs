//! A fixed number of exec objects over a number of activations, shared by any number of threads.

mod benchmark;
mod handles;
mod ids;

use std::fmt::Debug;
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::buffer::{HostSlice, HostSliceMut};
use crate::context::Context;
use crate::device::Placement;
use crate::error::RuntimeError;
use crate::exec_obj::{ExecObj, gives_up, until};
use crate::executor::Executor;
use crate::fork::Origin;
use crate::image::Image;
use crate::interrupts::{LOOK_PERIOD, look_period};
use crate::program::{Program, ProgramOptions};
use crate::progress::Observer;
use crate::queue::Waiters;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::wiring::{InputWire, OutputWire, Shapes, Wiring};
use handles::{Handles, Refusal};

pub use benchmark::{BenchmarkOutcome, BenchmarkProgress};

/// Exec objects of a set at most. Each costs kilobytes, and none beyond the threads that call can ever run.
const MAX_EXEC_OBJECTS: u32 = 1 << 16;

/// Number of an exec object of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId(pub u32);

/// `set_size` exec objects for each of `num_activations` activations of one container.
#[derive(Debug)]
pub struct InferenceSet {
    execs: Box<[Arc<ExecObj>]>,
    told: Arc<Told>,
    executor: Arc<Executor>,
    image: Arc<Image>,
    origin: Origin,
    time_limit: Option<Duration>,
    // When somebody last looked for inferences beyond the time limit, in nanoseconds since the set was made.
    looked_ns: AtomicU64,
    epoch: Instant,
    // Declared, so dropped, last: the exec objects refer to the activations.
    programs: Vec<Arc<Program>>,
}

/// The states of the handles, and whom to tell of inferences that were started for somebody.
#[derive(Debug)]
struct Told {
    handles: Handles,
    completions: Box<[Mutex<ToldOf>]>,
}

/// Whom to tell of the inference of one handle.
type ToldOf = Option<Arc<dyn Completion>>;

/// Told that an inference has ended.
pub trait Completion: Debug + Send + Sync {
    /// Called once, on whichever thread ended the inference: it must not block. The handle is still acquired;
    /// [`InferenceSet::outcome`] says how it went.
    fn completed(&self, handle: HandleId);
}

impl InferenceSet {
    /// Loads the container once, activates it `num_activations` times and makes the exec objects.
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
            return Err(RuntimeError::Argument {
                what: format!("set_size {set_size} and num_activations {num_activations} must be at least 1"),
            });
        }
        let count = num_activations.saturating_mul(set_size);
        options.load.activations = num_activations;
        options.exec_objs = count;
        let share_group = options.load.share_group.clone();
        let cores = image.network().num_cores.max(1);
        context.check_free_cores(placement, cores, num_activations, share_group.as_deref())?;
        if count > MAX_EXEC_OBJECTS {
            return Err(RuntimeError::Argument {
                what: format!(
                    "set_size {set_size} times num_activations {num_activations} is {count}; \
                     at most {MAX_EXEC_OBJECTS} inferences can be in flight"
                ),
            });
        }
        let programs = Program::lanes(context, image, placement, &options, num_activations, Some(set_size))?;
        let Some(first) = programs.first() else {
            return Err(RuntimeError::Internal { what: "a set without programs".to_owned() });
        };
        first.load()?;
        let mut activated = Vec::with_capacity(programs.len());
        for program in &programs {
            program.share_loaded(first);
            // The cores of all before the memory of any.
            activated.push(program.enter(true)?);
        }
        let told = Arc::new(Told::new(count));
        let observer: Weak<dyn Observer> = Arc::downgrade(&told) as Weak<dyn Observer>;
        let mut execs = Vec::with_capacity(count as usize);
        let made = (0..set_size).try_for_each(|_| {
            // Neighbours are on different activations.
            programs.iter().try_for_each(|program| {
                execs.push(ExecObj::new(program, false)?);
                Ok::<_, RuntimeError>(())
            })
        });
        for holds in activated {
            holds.leave();
        }
        made?;
        for (number, exec) in (0..count).zip(&execs) {
            exec.observe(Weak::clone(&observer), number);
        }
        let executor = Arc::clone(first.executor());
        Ok(Arc::new(Self {
            execs: execs.into(),
            told,
            executor,
            image: Arc::clone(image),
            origin: Origin::here(),
            time_limit: first.time_limit(),
            looked_ns: AtomicU64::new(0),
            epoch: Instant::now(),
            programs,
        }))
    }

    /// The container.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Number of exec objects.
    pub fn handle_count(&self) -> usize {
        self.execs.len()
    }

    /// The programs, one per activation.
    pub fn programs(&self) -> &[Arc<Program>] {
        &self.programs
    }

    /// Position in [`Self::programs`] of the one a handle belongs to.
    pub fn activation_of(&self, handle: HandleId) -> u32 {
        let activations = u32::try_from(self.programs.len()).unwrap_or(u32::MAX);
        handle.0 % activations.max(1)
    }

    /// The exec object of a handle.
    pub fn exec_obj(&self, handle: HandleId) -> Result<&Arc<ExecObj>, RuntimeError> {
        self.execs.get(handle.0 as usize).ok_or_else(|| unknown_handle(handle))
    }

    /// A free exec object if there is one now; none in a forked process. Never blocks.
    pub fn try_acquire(&self) -> Option<HandleId> {
        self.origin.check().ok()?;
        self.told.handles.acquire().map(HandleId)
    }

    /// A free exec object.
    ///
    /// Blocking: until one is put back, until `deadline`, or until `interrupted` says so; it is asked about every
    /// 50 ms, without any lock held.
    pub fn acquire(
        &self,
        deadline: Option<Instant>,
        interrupted: impl FnMut() -> bool,
    ) -> Result<HandleId, RuntimeError> {
        let handles = &self.told.handles;
        self.wait_for(handles.for_available(), "a free exec object", deadline, interrupted, || {
            handles.acquire().map(Ok)
        })
        .map(HandleId)
    }

    /// [`Self::try_acquire`] for as long as the result lives.
    pub fn try_lease(&self) -> Option<Lease<'_>> {
        let handle = self.try_acquire()?;
        let exec = self.execs.get(handle.0 as usize)?;
        Some(Lease { set: self, handle, exec })
    }

    /// [`Self::acquire`] for as long as the result lives.
    pub fn lease(
        &self,
        deadline: Option<Instant>,
        interrupted: impl FnMut() -> bool,
    ) -> Result<Lease<'_>, RuntimeError> {
        let handle = match self.try_acquire() {
            Some(handle) => handle,
            None => self.acquire(deadline, interrupted)?,
        };
        Ok(Lease { set: self, handle, exec: self.exec_obj(handle)? })
    }

    /// Starts the wired inference of a handle, under an id of the caller's choice, and returns at once.
    ///
    /// Fails with [`RuntimeError::InFlight`] while the handle's last inference is under way. A handle that was put back
    /// and is still free may be submitted again: it leaves the list of free ones.
    pub fn submit(&self, handle: HandleId, id: u64) -> Result<(), RuntimeError> {
        self.start(handle, id, false)
    }

    /// [`Self::submit`] for an inference that nobody is going to wait for here: it begins at once.
    pub fn submit_eager(&self, handle: HandleId, id: u64) -> Result<(), RuntimeError> {
        self.start(handle, id, true)
    }

    fn start(&self, handle: HandleId, id: u64, eager: bool) -> Result<(), RuntimeError> {
        self.origin.check()?;
        let exec = self.exec_obj(handle)?;
        let handles = &self.told.handles;
        let before = handles.submit(handle.0, id).map_err(|refusal| refused(handle, refusal))?;
        exec.start_observed(eager).inspect_err(|_| handles.take_back(handle.0, before))
    }

    /// The next completed handle.
    ///
    /// Blocking: until an inference ends, until `deadline`, or until `interrupted`. Fails with
    /// [`RuntimeError::NothingSubmitted`] when there is none to wait for.
    pub fn get_completed(
        &self,
        deadline: Option<Instant>,
        interrupted: impl FnMut() -> bool,
    ) -> Result<HandleId, RuntimeError> {
        let handles = &self.told.handles;
        self.wait_for(handles.for_completed(), "a completed inference", deadline, interrupted, || {
            if let Some(number) = handles.collect_next() {
                return Some(Ok(number));
            }
            handles.is_settled().then_some(Err(RuntimeError::NothingSubmitted))
        })
        .map(HandleId)
    }

    /// A completed handle if there is one now; none in a forked process. Never blocks.
    pub fn try_get_completed(&self) -> Option<HandleId> {
        self.origin.check().ok()?;
        self.told.handles.collect_next().map(HandleId)
    }

    /// The handle that carries the inference with this id, completed; the oldest one if there are several.
    ///
    /// Blocking: as [`Self::get_completed`]. Fails with [`RuntimeError::UnknownInference`] when no such inference is
    /// under way or waits to be collected.
    pub fn get_completed_id(
        &self,
        id: u64,
        deadline: Option<Instant>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<HandleId, RuntimeError> {
        self.origin.check()?;
        let handles = &self.told.handles;
        loop {
            let number = handles.first_of(id).ok_or(RuntimeError::UnknownInference { id })?;
            let waiters = handles.for_end_of(number).ok_or_else(|| unknown_handle(HandleId(number)))?;
            let found = self.wait_for(waiters, "an inference", deadline, &mut interrupted, || {
                if handles.collect_as(number, id) {
                    return Some(Ok(true));
                }
                (!handles.carries(number, id)).then_some(Ok(false))
            })?;
            if found {
                return Ok(HandleId(number));
            }
            // Somebody else collected it; there may be another with this id.
        }
    }

    /// Makes a handle available again. Fails while its inference is under way, and when it is available.
    pub fn put_completed(&self, handle: HandleId) -> Result<(), RuntimeError> {
        self.origin.check()?;
        self.told.handles.put_back(handle.0).map_err(|refusal| refused(handle, refusal))
    }

    /// Waits until every submitted inference has ended.
    ///
    /// Blocking: until then or `interrupted`.
    pub fn wait_for_completion(&self, interrupted: impl FnMut() -> bool) -> Result<(), RuntimeError> {
        let handles = &self.told.handles;
        self.wait_for(handles.for_drained(), "all inferences", None, interrupted, || {
            handles.is_drained().then_some(Ok(()))
        })
    }

    /// How the last inference of a handle ended.
    pub fn outcome(&self, handle: HandleId) -> Result<(), RuntimeError> {
        self.exec_obj(handle)?.outcome()
    }

    /// The id under which a handle was last submitted.
    pub fn id_of(&self, handle: HandleId) -> u64 {
        self.told.handles.id_of(handle.0).unwrap_or(0)
    }

    /// Asks the inference of a handle to end; see [`ExecObj::cancel`]. Never blocks.
    pub fn cancel(&self, handle: HandleId) -> Result<(), RuntimeError> {
        self.exec_obj(handle)?.cancel();
        Ok(())
    }

    /// Starts the wired inference of a handle that was acquired, and returns at once. When it has ended, `told` is told
    /// and nobody else; the handle stays acquired until it is put back. `eager` as in [`Self::submit_eager`].
    pub fn start_told(
        &self,
        handle: HandleId,
        told: Arc<dyn Completion>,
        eager: bool,
    ) -> Result<(), RuntimeError> {
        self.origin.check()?;
        let exec = self.exec_obj(handle)?;
        let slot = self.told.completions.get(handle.0 as usize).ok_or_else(|| unknown_handle(handle))?;
        *slot.lock() = Some(told);
        exec.start_observed(eager).inspect_err(|_| drop(slot.lock().take()))
    }

    /// Waits until `take` gives something, and meanwhile runs what is ready and ends what takes too long. Whoever makes
    /// `take` give something wakes `waiters`; `what` names it.
    ///
    /// Blocking: until then, until `deadline`, or until `interrupted`, which is asked about every 50 ms.
    pub fn wait_for<T>(
        &self,
        waiters: &Waiters,
        what: &'static str,
        deadline: Option<Instant>,
        mut interrupted: impl FnMut() -> bool,
        mut take: impl FnMut() -> Option<Result<T, RuntimeError>>,
    ) -> Result<T, RuntimeError> {
        self.origin.check()?;
        // Only a deadline asks what time it is.
        let began = deadline.map(|_| Instant::now());
        let mut asked = None;
        loop {
            if let Some(taken) = take() {
                return taken;
            }
            let mut given_up = None;
            let mut has_waited = false;
            let mut look = || {
                // Not where nothing was waited for yet: to ask Python costs more than a short inference.
                if !mem::replace(&mut has_waited, true) {
                    return false;
                }
                self.enforce_limits();
                given_up = given_up.take().or_else(|| gives_up(what, deadline, began, &mut interrupted));
                given_up.is_some()
            };
            let has_helped = self.executor.help(&mut look);
            if let Some(error) = given_up {
                return Err(error);
            }
            if has_helped {
                // There may be something to run for as long as others submit.
                let now = Instant::now();
                if now.duration_since(*asked.get_or_insert(now)) >= look_period(None) {
                    asked = Some(now);
                    if interrupted() {
                        return Err(RuntimeError::Interrupted);
                    }
                }
                continue;
            }
            if let Some(taken) = waiters.wait(until(deadline).min(look_period(self.time_limit)), &mut take) {
                return taken;
            }
            self.enforce_limits();
            if let Some(error) = gives_up(what, deadline, began, &mut interrupted) {
                return Err(error);
            }
        }
    }
}

impl InferenceSet {
    /// Ends what takes too long: one of the waiting threads looks, not each of them at each exec object.
    fn enforce_limits(&self) {
        let now = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let period = u64::try_from(LOOK_PERIOD.as_nanos() / 2).unwrap_or(u64::MAX);
        // Relaxed: which thread looks, and nothing else.
        let due = |looked: u64| (now.saturating_sub(looked) >= period).then_some(now);
        if self.looked_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok() {
            self.execs.iter().for_each(|exec| exec.enforce_limit());
        }
    }
}

impl Drop for InferenceSet {
    fn drop(&mut self) {
        if self.origin.is_here() {
            // All before any: those that run stand in the way of those that wait.
            self.execs.iter().for_each(|exec| exec.cancel());
        }
    }
}

impl Told {
    fn new(count: u32) -> Self {
        Self { handles: Handles::new(count), completions: (0..count).map(|_| Mutex::default()).collect() }
    }
}

impl Observer for Told {
    fn completed(&self, number: u32) {
        if self.handles.complete(number) {
            return;
        }
        // Not submitted: it was started for somebody. Not told under the lock.
        let told = self.completions.get(number as usize).and_then(|slot| slot.lock().take());
        if let Some(told) = told {
            told.completed(HandleId(number));
        }
    }
}

/// A refusal of the ledger for a handle of the caller's.
fn refused(handle: HandleId, refusal: Refusal) -> RuntimeError {
    match refusal {
        Refusal::Unknown => unknown_handle(handle),
        Refusal::InFlight => RuntimeError::InFlight,
        Refusal::Available => RuntimeError::State {
            what: format!("handle {} was put back already; get it or submit it first", handle.0),
        },
    }
}

fn unknown_handle(handle: HandleId) -> RuntimeError {
    RuntimeError::Argument { what: format!("handle {} is not of this inference set", handle.0) }
}

/// An exec object on loan; dropping it returns it to the set.
#[derive(Debug)]
pub struct Lease<'a> {
    set: &'a InferenceSet,
    handle: HandleId,
    exec: &'a Arc<ExecObj>,
}

impl Lease<'_> {
    /// Its number.
    pub fn handle(&self) -> HandleId {
        self.handle
    }

    /// Wires tensors in binding order and runs one inference of them; an output that is `None` is not delivered. All
    /// inputs are in the program's first combination of shapes.
    ///
    /// Blocking: as [`ExecObj::run_until`].
    pub fn run(
        &self,
        inputs: &[HostSlice],
        outputs: &[Option<HostSliceMut>],
        deadline: Option<Instant>,
        interrupted: impl FnMut() -> bool,
    ) -> Result<(), RuntimeError> {
        self.wire(|wiring| {
            let expected = (wiring.inputs.len(), wiring.outputs.len());
            if (inputs.len(), outputs.len()) != expected {
                return Err(RuntimeError::Argument {
                    what: format!(
                        "{} inputs and {} outputs given; the program has {} and {}",
                        inputs.len(),
                        outputs.len(),
                        expected.0,
                        expected.1
                    ),
                });
            }
            wiring.shapes = Shapes::Variant(0);
            wiring.inputs.clear();
            wiring.inputs.extend(inputs.iter().map(|&memory| InputWire::Memory { memory, owner: None }));
            wiring.outputs.clear();
            wiring.outputs.extend(outputs.iter().map(|memory| match *memory {
                Some(memory) => OutputWire::Memory { memory, owner: None },
                None => OutputWire::Dropped,
            }));
            Ok(())
        })??;
        self.run_until(deadline, interrupted)
    }

    /// Keeps it beyond the lease; [`InferenceSet::put_completed`] returns it.
    pub fn keep(self) -> HandleId {
        let handle = self.handle;
        std::mem::forget(self);
        handle
    }
}

impl Deref for Lease<'_> {
    type Target = ExecObj;

    fn deref(&self) -> &ExecObj {
        self.exec
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // The memory wired may be gone after this.
        let _ = self.exec.wire(Wiring::clear);
        // It was acquired, so it can be put back.
        let _ = self.set.told.handles.put_back(self.handle.0);
    }
}
