//! A fixed number of exec objects over a number of activations, shared by any number of threads.
//!
//! Each handle is in one state at a time, and whoever changes the state by an atomic step owns the handle:
//!
//! ```text
//! available -> acquired -> submitted -> done -> collected -> available
//! ```
//!
//! The lists of available and of completed handles may hold entries that are out of date, because a handle can leave a
//! state without passing through its list: it is collected by id, or submitted again by a caller who kept it. Whoever
//! takes an entry therefore checks the state (`queue::Roster`).

mod benchmark;
mod ids;

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::buffer::{HostSlice, HostSliceMut};
use crate::context::Context;
use crate::device::Placement;
use crate::error::RuntimeError;
use crate::exec_obj::{ExecObj, Observer, until};
use crate::executor::Executor;
use crate::fork;
use crate::image::Image;
use crate::interrupts::{ENFORCE_PERIOD, look_period};
use crate::program::{Program, ProgramOptions};
use crate::queue::{IndexStack, Ring, Roster, Waiters};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::wiring::{InputWire, OutputWire, Shapes, Wiring};
use ids::Ids;

pub use benchmark::{BenchmarkOutcome, BenchmarkProgress};

/// Exec objects of a set at most. Each costs kilobytes, and none beyond the threads that call can ever run.
const MAX_EXEC_OBJECTS: u32 = 1 << 16;

// States of a handle.
const AVAILABLE: u32 = 1;
const ACQUIRED: u32 = 1 << 1;
const SUBMITTED: u32 = 1 << 2;
const DONE: u32 = 1 << 3;
const COLLECTED: u32 = 1 << 4;

/// Number of an exec object of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId(pub u32);

/// `set_size` exec objects for each of `num_activations` activations of one container.
#[derive(Debug)]
pub struct InferenceSet {
    execs: Box<[Arc<ExecObj>]>,
    ledger: Arc<Ledger>,
    executor: Arc<Executor>,
    image: Arc<Image>,
    generation: u32,
    time_limit: Option<Duration>,
    // When somebody last looked for inferences beyond the time limit, in nanoseconds since the set was made.
    looked_ns: AtomicU64,
    epoch: Instant,
    // Declared, so dropped, last: the exec objects refer to the activations.
    programs: Vec<Arc<Program>>,
}

/// Who has which handle. Apart from the exec objects, so that a thread which ends an inference keeps no cores.
#[derive(Debug)]
struct Ledger {
    handles: Box<[Handle]>,
    available: Roster<IndexStack>,
    completed: Roster<Ring>,
    // Threads that wait for the end of all inferences.
    drained: Waiters,
    submitted: AtomicU32,
    // Submitted, or done and not collected.
    outstanding: AtomicU32,
    ids: Mutex<Ids>,
}

#[derive(Debug)]
struct Handle {
    state: AtomicU32,
    id: AtomicU64,
    waiters: Waiters,
    // Whom to tell of an inference that was started for somebody.
    told: Mutex<Option<Arc<dyn Completion>>>,
}

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
        let programs = Program::lanes(context, image, placement, &options, num_activations)?;
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
        let ledger = Arc::new(Ledger::new(count));
        let observer: Weak<dyn Observer> = Arc::downgrade(&ledger) as Weak<dyn Observer>;
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
        // The last one listed is taken first.
        (0..count).rev().for_each(|number| ledger.available.enter(number));
        let executor = Arc::clone(first.executor());
        Ok(Arc::new(Self {
            execs: execs.into(),
            ledger,
            executor,
            image: Arc::clone(image),
            generation: fork::generation(),
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

    /// A free exec object if there is one now. Never blocks.
    pub fn try_acquire(&self) -> Option<HandleId> {
        self.ledger.try_acquire().map(HandleId)
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
        let ledger = &self.ledger;
        self.wait_for(ledger.available.waiters(), "a free exec object", deadline, interrupted, || {
            ledger.try_acquire().map(Ok)
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
        self.check_process()?;
        let exec = self.exec_obj(handle)?;
        let ledger = &self.ledger;
        let before = ledger.begin(handle.0, id)?;
        exec.start_observed(eager).inspect_err(|_| ledger.take_back(handle.0, id, before))
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
        let ledger = &self.ledger;
        self.wait_for(ledger.completed.waiters(), "a completed inference", deadline, interrupted, || {
            if let Some(number) = ledger.completed.take(|number| ledger.collect(number)) {
                return Some(Ok(number));
            }
            (ledger.outstanding.load(Ordering::Acquire) == 0).then_some(Err(RuntimeError::NothingSubmitted))
        })
        .map(HandleId)
    }

    /// A completed handle if there is one now. Never blocks.
    pub fn try_get_completed(&self) -> Option<HandleId> {
        self.ledger.completed.take(|number| self.ledger.collect(number)).map(HandleId)
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
        self.check_process()?;
        let ledger = &self.ledger;
        loop {
            let number = ledger.ids.lock().first(id).ok_or(RuntimeError::UnknownInference { id })?;
            let handle = ledger.handle(number)?;
            let found = self.wait_for(&handle.waiters, "an inference", deadline, &mut interrupted, || {
                if handle.id.load(Ordering::Acquire) == id && ledger.collect(number) {
                    return Some(Ok(true));
                }
                let is_gone = handle.id.load(Ordering::Acquire) != id
                    || handle.state.load(Ordering::Acquire) & (SUBMITTED | DONE) == 0;
                is_gone.then_some(Ok(false))
            })?;
            if found {
                return Ok(HandleId(number));
            }
            // Somebody else collected it; there may be another with this id.
        }
    }

    /// Makes a handle available again. Fails while its inference is under way, and when it is available.
    pub fn put_completed(&self, handle: HandleId) -> Result<(), RuntimeError> {
        self.check_process()?;
        self.ledger.put_back(handle.0)
    }

    /// Waits until every submitted inference has ended.
    ///
    /// Blocking: until then or `interrupted`.
    pub fn wait_for_completion(&self, interrupted: impl FnMut() -> bool) -> Result<(), RuntimeError> {
        let ledger = &self.ledger;
        self.wait_for(&ledger.drained, "all inferences", None, interrupted, || {
            (ledger.submitted.load(Ordering::Acquire) == 0).then_some(Ok(()))
        })
    }

    /// How the last inference of a handle ended.
    pub fn outcome(&self, handle: HandleId) -> Result<(), RuntimeError> {
        self.exec_obj(handle)?.outcome()
    }

    /// The id under which a handle was last submitted.
    pub fn id_of(&self, handle: HandleId) -> u64 {
        self.ledger.handle(handle.0).map_or(0, |handle| handle.id.load(Ordering::Acquire))
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
        self.check_process()?;
        let exec = self.exec_obj(handle)?;
        let slot = &self.ledger.handle(handle.0)?.told;
        *slot.lock() = Some(told);
        exec.start_observed(eager).inspect_err(|_| drop(slot.lock().take()))
    }

    fn check_process(&self) -> Result<(), RuntimeError> {
        if self.generation == fork::generation() { Ok(()) } else { Err(RuntimeError::Forked) }
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
        self.check_process()?;
        let mut began = None;
        let mut asked = None;
        loop {
            if let Some(taken) = take() {
                return taken;
            }
            if self.executor.help() {
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
            let began = *began.get_or_insert_with(Instant::now);
            if let Some(taken) = waiters.wait(until(deadline).min(look_period(self.time_limit)), &mut take) {
                return taken;
            }
            self.enforce_limits();
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let timeout_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Err(RuntimeError::Timeout { what, timeout_ms });
            }
            if interrupted() {
                return Err(RuntimeError::Interrupted);
            }
        }
    }
}

impl InferenceSet {
    /// Ends what takes too long: one of the waiting threads looks, not each of them at each exec object.
    fn enforce_limits(&self) {
        let now = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let period = u64::try_from(ENFORCE_PERIOD.as_nanos() / 2).unwrap_or(u64::MAX);
        // Relaxed: which thread looks, and nothing else.
        let due = |looked: u64| (now.saturating_sub(looked) >= period).then_some(now);
        if self.looked_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok() {
            self.execs.iter().for_each(|exec| exec.enforce_limit());
        }
    }
}

impl Ledger {
    fn new(count: u32) -> Self {
        let handle = |_| Handle {
            state: AtomicU32::new(AVAILABLE),
            id: AtomicU64::new(0),
            waiters: Waiters::new(),
            told: Mutex::default(),
        };
        Self {
            handles: (0..count).map(handle).collect(),
            available: Roster::latest_first(count),
            completed: Roster::in_order(count),
            drained: Waiters::new(),
            submitted: AtomicU32::new(0),
            outstanding: AtomicU32::new(0),
            ids: Mutex::new(Ids::new(count as usize)),
        }
    }

    fn handle(&self, number: u32) -> Result<&Handle, RuntimeError> {
        self.handles.get(number as usize).ok_or_else(|| unknown_handle(HandleId(number)))
    }

    /// Moves a handle from one of the states `from` to `to` and returns where it was; else where it is.
    fn move_to(&self, number: u32, from: u32, to: u32) -> Result<u32, u32> {
        let Some(handle) = self.handles.get(number as usize) else { return Err(0) };
        handle.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| (now & from != 0).then_some(to))
    }

    fn try_acquire(&self) -> Option<u32> {
        self.available.take(|number| self.move_to(number, AVAILABLE, ACQUIRED).is_ok())
    }

    /// Makes a handle submitted and returns its state before.
    fn begin(&self, number: u32, id: u64) -> Result<u32, RuntimeError> {
        let handle = self.handle(number)?;
        let before = self
            .move_to(number, AVAILABLE | ACQUIRED | COLLECTED, SUBMITTED)
            .map_err(|_| RuntimeError::InFlight)?;
        handle.id.store(id, Ordering::Release);
        self.submitted.fetch_add(1, Ordering::AcqRel);
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        self.ids.lock().insert(id, number);
        Ok(before)
    }

    /// Undoes [`Self::begin`].
    fn take_back(&self, number: u32, id: u64, before: u32) {
        self.ids.lock().remove(id, number);
        let _ = self.move_to(number, SUBMITTED, before);
        if before == AVAILABLE {
            self.available.enter(number);
        }
        self.leave_submitted();
        self.leave_outstanding();
        if let Ok(handle) = self.handle(number) {
            handle.waiters.wake_all();
        }
    }

    /// Takes a completed handle, if it still is one.
    fn collect(&self, number: u32) -> bool {
        if self.move_to(number, DONE, COLLECTED).is_err() {
            return false;
        }
        if let Ok(handle) = self.handle(number) {
            self.ids.lock().remove(handle.id.load(Ordering::Acquire), number);
        }
        self.leave_outstanding();
        true
    }

    fn put_back(&self, number: u32) -> Result<(), RuntimeError> {
        self.handle(number)?;
        // Collected on the way by whoever waited for all inferences together.
        self.collect(number);
        match self.move_to(number, ACQUIRED | COLLECTED, AVAILABLE) {
            Ok(_) => {
                self.available.enter(number);
                Ok(())
            }
            Err(AVAILABLE) => Err(RuntimeError::State {
                what: format!("handle {number} was put back already; get it or submit it first"),
            }),
            Err(_) => Err(RuntimeError::InFlight),
        }
    }

    fn leave_submitted(&self) {
        if self.submitted.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drained.wake_all();
        }
    }

    fn leave_outstanding(&self) {
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            // There is nothing to wait for any more.
            self.completed.waiters().wake_all();
        }
    }
}

impl Observer for Ledger {
    fn completed(&self, number: u32) {
        if self.move_to(number, SUBMITTED, DONE).is_ok() {
            self.report(number);
        } else {
            let told = self.handle(number).ok().and_then(|handle| handle.told.lock().take());
            if let Some(told) = told {
                told.completed(HandleId(number));
            }
        }
    }

    fn left_queue(&self, number: u32, end: &mut dyn FnMut()) {
        let Ok(handle) = self.handle(number) else { return end() };
        let told = {
            // Locked, so that a lease which is dropped sees the end, or is told of it.
            let mut told = handle.told.lock();
            end();
            told.take()
        };
        match told {
            Some(told) => told.completed(HandleId(number)),
            None if self.move_to(number, SUBMITTED, DONE).is_ok() => self.report(number),
            None => {}
        }
    }
}

impl Ledger {
    /// Makes known that a handle is done.
    fn report(&self, number: u32) {
        self.completed.enter(number);
        self.leave_submitted();
        if let Ok(handle) = self.handle(number) {
            handle.waiters.wake_all();
        }
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
        let ledger = &self.set.ledger;
        if let Ok(handle) = ledger.handle(self.handle.0) {
            // Locked, so that the end of the inference comes before this or after it.
            let mut told = handle.told.lock();
            if self.exec.is_in_flight() {
                *told = Some(Arc::new(PutBack { ledger: Arc::downgrade(ledger) }));
                return;
            }
        }
        // It was acquired, so it can be put back.
        let _ = ledger.put_back(self.handle.0);
    }
}

/// Puts a handle back when an inference that was taken back has left the queue.
#[derive(Debug)]
struct PutBack {
    ledger: Weak<Ledger>,
}

impl Completion for PutBack {
    fn completed(&self, handle: HandleId) {
        if let Some(ledger) = self.ledger.upgrade() {
            // It was acquired, so it can be put back.
            let _ = ledger.put_back(handle.0);
        }
    }
}
