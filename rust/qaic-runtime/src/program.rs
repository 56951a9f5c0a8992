//! A container on one or several devices: created, loaded, then activated.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::time::Duration;

use qaic_mem::{HostSlice, HostSliceMut};
use qaic_sched::SchedulerOptions;
use qaic_sync::{OwnerCounts, Slot};

use crate::binding;
use crate::binding::{Bindings, IoOptions, Retained, RetainedPair, TransferPlan};
use crate::context::Context;
use crate::device::{Activation, DeviceKind, Executor, LoadOptions, LoadedProgram, Placement};
use crate::error::{RuntimeError, StateError};
use crate::image::Image;
use crate::process::priority::give_way_when_woken;
use crate::process::{ForkGuard, WaitScope, log};
use crate::profiling::{ActiveSample, Arrival, SubscriptionRegistry, observer};
use crate::request::{Scheduler, is_stats_bound};
use crate::sync::{AtomicU32, Mutex, Ordering};

/// Default number of inferences of a program that can be enqueued at a time: the number of elements of a card's ring
/// (docs/reference/card.md).
pub(crate) const DEFAULT_EXEC_OBJS: u32 = 512;

/// Default length of one wait for a completion, on devices that have such a limit (docs/reference/card.md).
const DEVICE_TRY: Duration = Duration::from_secs(5);

/// Time limits of the wait for the completion of an inference (docs/reference/card.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    /// Milliseconds of one wait. 0 means the device's default: 5000 ms, but no limit on `cpu`, because a slow host is
    /// not a stuck card.
    pub try_ms: u32,
    /// Further waits after one has timed out.
    pub retries: u32,
    /// Milliseconds of one call to the card within a wait. Short slices let a cancelled inference end soon. With
    /// `None`, each wait is a single call, and the end of a cancelled inference is noticed only between waits.
    pub slice_ms: Option<u32>,
}

impl Default for WaitLimits {
    fn default() -> Self {
        Self { try_ms: 0, retries: 5, slice_ms: None }
    }
}

impl WaitLimits {
    /// Returns the total length of all waits, if the runtime has to enforce it: a card's driver limits its waits
    /// itself.
    pub(crate) fn total(self, kind: DeviceKind) -> Option<Duration> {
        let one = match (self.try_ms, kind) {
            (0, DeviceKind::Cpu) | (_, DeviceKind::Card) => return None,
            (0, _) => DEVICE_TRY,
            (try_ms, _) => Duration::from_millis(try_ms.into()),
        };
        Some(one.saturating_mul(self.retries.saturating_add(1)))
    }
}

/// Options for loading and running a program.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// Options of the load on the device.
    pub load: LoadOptions,
    /// Time limits after which an inference counts as stuck.
    pub wait: WaitLimits,
    /// Number of threads per activation that run enqueued inferences. A host device uses at most one thread per CPU.
    pub threads_per_queue: u32,
    /// Number of inferences that can be enqueued at a time.
    pub exec_objs: u32,
    /// True if the program's user named no device; its inferences then go through a queue that all devices
    /// share.
    pub is_placed_freely: bool,
}

impl Default for ProgramOptions {
    fn default() -> Self {
        Self {
            load: LoadOptions::default(),
            wait: WaitLimits::default(),
            threads_per_queue: 4,
            exec_objs: DEFAULT_EXEC_OBJS,
            is_placed_freely: false,
        }
    }
}

/// One instance of a container. Activation takes the program's cores. Deactivation releases them, as does dropping
/// the program and its exec objects.
#[derive(Debug)]
pub struct Program {
    /// The context of the program's devices.
    pub context: Arc<Context>,
    /// The devices of the program.
    pub placement: Placement,
    /// Options for loading and running the program.
    pub(crate) options: ProgramOptions,
    /// The container.
    pub image: Arc<Image>,
    /// Transfers for each permitted combination of shapes; at least one.
    pub(crate) variants: Arc<[Arc<TransferPlan>]>,
    /// Tensors that stay on the device between inferences.
    pub(crate) retained: Arc<[RetainedPair]>,
    /// Options other than the computation.
    pub(crate) io_options: IoOptions,
    pub(crate) scheduler: Arc<Scheduler>,
    queue: u32,
    /// Number of the program, unique in this process.
    pub unique_id: u32,
    /// Number that the user assigned to the program; 0 by default.
    pub user_id: AtomicU32,
    /// Counters of the inferences that succeeded, one for each exec object.
    pub completed: Arc<OwnerCounts>,
    /// Registry that informs profilers of the program's inferences. The activations of an inference set share one
    /// registry.
    pub subscriptions: Arc<SubscriptionRegistry>,
    fork_guard: ForkGuard,
    state: Mutex<ProgramState>,
}

#[derive(Debug, Default)]
struct ProgramState {
    loaded: Option<Arc<dyn LoadedProgram>>,
    // The exec objects hold the activation; so does the program if the user activated it.
    activated: Weak<Activated>,
    manual: Option<Arc<Activated>>,
    // True if the user deactivated a program that exec objects still hold.
    is_ending: bool,
}

/// A program that holds cores, with the objects that live as long as its activation.
#[derive(Debug)]
pub(crate) struct Activated {
    pub(crate) activation: Arc<dyn Activation>,
    pub(crate) image: Arc<Image>,
    // A new activation begins with zeros.
    retained: Option<Slot<Retained>>,
    pairs: Arc<[RetainedPair]>,
    scheduler: Arc<Scheduler>,
    queue: u32,
    live_exec_objs: AtomicU32,
    subscriptions: Arc<SubscriptionRegistry>,
    // The output in which a user can request the stats buffer.
    stats_output: Option<usize>,
    program_id: u32,
}

impl Program {
    /// Creates a program that is not yet loaded. Fails if a device does not exist or the transform sequence of a
    /// binding is invalid.
    pub fn new(
        context: &Arc<Context>,
        image: &Arc<Image>,
        placement: &Placement,
        options: &ProgramOptions,
    ) -> Result<Arc<Self>, RuntimeError> {
        let mut programs = Self::with_queues(context, image, placement, options, 1, None)?;
        programs.pop().ok_or_else(|| RuntimeError::internal("no program was made"))
    }

    /// Creates `count` programs that share the threads which run their inferences. `set_size` is the number of exec
    /// objects that an inference set has for each program.
    pub(crate) fn with_queues(
        context: &Arc<Context>,
        image: &Arc<Image>,
        placement: &Placement,
        options: &ProgramOptions,
        count: u32,
        set_size: Option<u32>,
    ) -> Result<Vec<Arc<Self>>, RuntimeError> {
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);
        let devices = context.placed_on(placement)?;
        let first = *devices.first().ok_or_else(|| RuntimeError::internal("no device"))?;
        let variants: Arc<[_]> = TransferPlan::variants(&image.network)?.into();
        let retained: Arc<[_]> = binding::retained_pairs(image)?.into();
        let io_options = binding::io_options(image)?;
        let is_ordered = !retained.is_empty();
        let scheduler = Scheduler::new(SchedulerOptions {
            queues: count,
            is_ordered,
            capacity: options.exec_objs,
            threads: options.threads_per_queue,
            variants: variants.len(),
            limit: options.wait.total(first.kind()),
            device: Arc::clone(first) as Arc<dyn Executor>,
            // Otherwise a woken worker may take the CPU from the thread that has just submitted and is about to wait;
            // that thread would then return from `submit` only after the inference.
            begin_worker: if first.executes_on_host() { give_way_when_woken } else { || () },
            warn: |text| log::global().warn(|| text.to_owned()),
        });
        let completed: Box<[Arc<OwnerCounts>]> = (0..count).map(|_| Arc::default()).collect();
        let subscriptions = SubscriptionRegistry::new(image, set_size, completed.clone());
        observer::notify_created(&subscriptions);
        Ok((0..count)
            .zip(completed)
            .map(|(queue, completed)| {
                Arc::new(Self {
                    context: Arc::clone(context),
                    placement: placement.clone(),
                    options: options.clone(),
                    image: Arc::clone(image),
                    variants: Arc::clone(&variants),
                    retained: Arc::clone(&retained),
                    io_options,
                    scheduler: Arc::clone(&scheduler),
                    queue,
                    unique_id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                    user_id: AtomicU32::new(0),
                    completed,
                    subscriptions: Arc::clone(&subscriptions),
                    fork_guard: ForkGuard::new(),
                    state: Mutex::default(),
                })
            })
            .collect())
    }

    /// Shares the loaded data of `other`, which was created together with this program.
    pub(crate) fn share_loaded(&self, other: &Self) {
        let loaded = other.state.lock().loaded.clone();
        self.state.lock().loaded = loaded;
    }

    /// Fails if `context` is not the context of the program.
    pub fn check_context(&self, context: &Arc<Context>) -> Result<(), RuntimeError> {
        if Arc::ptr_eq(context, &self.context) {
            return Ok(());
        }
        let what = "the program belongs to another context; pass the context that created it".to_owned();
        Err(RuntimeError::argument(what))
    }

    /// Sets the number of threads per activation that run enqueued inferences, instead of the number in the options.
    /// Programs of one inference set share their threads. Never blocks.
    pub(crate) fn allow_threads(&self, threads: u32) {
        if self.fork_guard.is_current() {
            self.scheduler.allow(threads);
        }
    }

    /// Returns true if the program is loaded or activated. Blocks while another thread loads it.
    pub fn is_loaded(&self) -> bool {
        self.fork_guard.is_current() && self.state.lock().loaded.is_some()
    }

    /// Returns true if the program holds cores. Blocks while another thread loads it.
    pub fn is_activated(&self) -> bool {
        self.fork_guard.is_current() && self.state.lock().activated.strong_count() > 0
    }

    /// Prepares the program on its devices. Does nothing if the program is loaded.
    ///
    /// Blocking: reads and prepares the weights.
    pub fn load(&self) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        self.loaded(&mut self.state.lock()).map(drop)
    }

    /// Releases the resources that [`Self::load`] took. Fails without any change while exec objects exist.
    pub fn unload(&self) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        let mut state = self.state.lock();
        let count = state.live_exec_objs();
        if count > 0 {
            return Err(StateError::LiveExecObjs { count }.into());
        }
        let released = (state.deactivate(), state.loaded.take());
        // Drops the lock before the resources: a card may take minutes, and other threads query the status.
        drop(state);
        drop(released);
        Ok(())
    }

    /// Takes the cores, loading the program first if needed, and keeps them until [`Self::deactivate`]. Does nothing
    /// if the program is activated.
    ///
    /// Blocking: as [`Self::load`] if the program is not loaded.
    pub fn activate(&self) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        let mut state = self.state.lock();
        let activated = self.activated(&mut state)?;
        state.manual = Some(activated);
        Ok(())
    }

    /// Releases the cores at once, or with the last exec object if any exist. Existing exec objects remain usable.
    /// Does nothing if the program holds no cores.
    pub fn deactivate(&self) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        let released = self.state.lock().deactivate();
        // As in `unload`.
        drop(released);
        Ok(())
    }

    /// Returns the activation for a user that needs it to last, until [`Activated::leave`].
    pub(crate) fn enter(&self, activate: bool) -> Result<Arc<Activated>, RuntimeError> {
        self.fork_guard.check()?;
        let mut state = self.state.lock();
        let activated = if activate {
            self.activated(&mut state)?
        } else {
            let activated = state.activated.upgrade().filter(|_| !state.is_ending);
            activated.ok_or_else(|| StateError::Invalid {
                what: "the program is not activated; activate it before you create exec objects".to_owned(),
            })?
        };
        activated.live_exec_objs.fetch_add(1, Ordering::AcqRel);
        Ok(activated)
    }

    /// Copies the bytes of the state of input `input` from `offset` on, until `into` is full. The copy waits for its
    /// turn among the inferences.
    ///
    /// Blocking: until the inferences submitted before have ended, or until `scope` ends the wait.
    pub(crate) fn read_state(
        &self,
        input: usize,
        offset: usize,
        mut into: HostSliceMut<'_>,
        scope: &mut WaitScope<'_>,
    ) -> Result<(), RuntimeError> {
        self.with_state(input, scope, |state| {
            let found = state.len();
            let held = state.subslice(offset, into.len()).ok_or(found)?;
            into.copy_from(held.into_const());
            Ok(())
        })
    }

    /// Replaces the bytes of the state of input `input` from `offset` on; the next inference reads the new bytes.
    /// Blocking as [`Self::read_state`].
    pub(crate) fn write_state(
        &self,
        input: usize,
        offset: usize,
        from: HostSlice<'_>,
        scope: &mut WaitScope<'_>,
    ) -> Result<(), RuntimeError> {
        self.with_state(input, scope, |state| {
            let found = state.len();
            let mut held = state.subslice(offset, from.len()).ok_or(found)?;
            held.copy_from(from);
            Ok(())
        })
    }

    /// Calls `work` with the current value of a state. An error of `work` contains the size of the state.
    fn with_state(
        &self,
        input: usize,
        scope: &mut WaitScope<'_>,
        work: impl FnOnce(HostSliceMut<'_>) -> Result<(), usize>,
    ) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        let activated = self.state.lock().activated.upgrade().ok_or_else(|| StateError::Invalid {
            what: "the program is not activated, so it has no state".to_owned(),
        })?;
        let not_kept = || RuntimeError::argument(format!("the device keeps no state of input {input}"));
        if !activated.retains_input(input) {
            return Err(not_kept());
        }
        let (scheduler, queue) = activated.scheduler();
        scheduler.with_turn(queue, scope, || {
            let mut retained = activated.take_state()?;
            let (held, _) = retained.value_mut(input).ok_or_else(not_kept)?;
            work(held).map_err(|bytes| {
                RuntimeError::argument(format!(
                    "the state of input {input} has {bytes} bytes; the requested range is outside"
                ))
            })
        })?
    }

    fn loaded(&self, state: &mut ProgramState) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        if let Some(loaded) = &state.loaded {
            return Ok(Arc::clone(loaded));
        }
        let load = LoadOptions { wait: self.options.wait, ..self.options.load.clone() };
        let loaded = self.context.load(&self.image, &self.placement, &load)?;
        state.loaded = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    fn activated(&self, state: &mut ProgramState) -> Result<Arc<Activated>, RuntimeError> {
        let is_new = mem::take(&mut state.is_ending);
        if let Some(activated) = state.activated.upgrade() {
            if is_new {
                activated.forget_state()?;
            }
            return Ok(activated);
        }
        let loaded = self.loaded(state)?;
        let first =
            self.variants.first().ok_or_else(|| RuntimeError::internal("the program has no transfers"))?;
        let activation = loaded.activate()?;
        let retained = Retained::new(&self.retained, first, |pair| activation.updates_state(pair.output))?;
        let activated = Arc::new(Activated {
            activation,
            image: Arc::clone(&self.image),
            retained: retained.map(|retained| Slot::new(Box::new(retained))),
            pairs: Arc::clone(&self.retained),
            scheduler: Arc::clone(&self.scheduler),
            queue: self.queue,
            live_exec_objs: AtomicU32::new(0),
            subscriptions: Arc::clone(&self.subscriptions),
            stats_output: self.image.network.stats_output(),
            program_id: self.user_id.load(Ordering::Relaxed),
        });
        state.activated = Arc::downgrade(&activated);
        Ok(activated)
    }
}

impl ProgramState {
    fn live_exec_objs(&self) -> u32 {
        let activated = self.activated.upgrade();
        activated.map_or(0, |activated| activated.live_exec_objs.load(Ordering::Acquire))
    }

    /// Releases the user's activation; the caller drops the result.
    fn deactivate(&mut self) -> Option<Arc<Activated>> {
        self.is_ending = self.live_exec_objs() > 0;
        if !self.is_ending {
            self.activated = Weak::new();
        }
        self.manual.take()
    }
}

impl Activated {
    pub(crate) fn scheduler(&self) -> (&Arc<Scheduler>, u32) {
        (&self.scheduler, self.queue)
    }

    /// Returns true if inferences run one after the other.
    pub(crate) fn is_ordered(&self) -> bool {
        self.retained.is_some()
    }

    /// Returns the retained tensors to the thread whose turn it is in the queue.
    pub(crate) fn take_state(&self) -> Result<TakenState<'_>, RuntimeError> {
        let slot = self.retained.as_ref();
        let (slot, retained) = slot
            .and_then(|slot| Some((slot, slot.take()?)))
            .ok_or_else(|| RuntimeError::internal("another thread has the state of the activation"))?;
        Ok(TakenState { slot, retained: Some(retained) })
    }

    pub(crate) fn retains_input(&self, index: usize) -> bool {
        self.pairs.iter().any(|pair| pair.input == index)
    }

    /// Resets the state, so that the next inference finds the state of a new activation.
    ///
    /// Blocking: until the inferences submitted before have ended.
    fn forget_state(&self) -> Result<(), RuntimeError> {
        if self.is_ordered() {
            self.scheduler.with_turn(self.queue, &mut WaitScope::default(), || {
                self.take_state().map(|mut retained| retained.clear())
            })??;
        }
        Ok(())
    }

    /// Undoes [`Program::enter`].
    pub(crate) fn leave(&self) {
        self.live_exec_objs.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the submission time of an inference, if a profiler or the user requests it.
    pub(crate) fn arrival(&self) -> Option<Arrival> {
        let is_wanted = self.subscriptions.is_on() || self.stats_output.is_some();
        is_wanted.then(|| Arrival::now(self.scheduler.waiting(self.queue)))
    }

    /// Returns the sample of a starting inference, if a profiler or the caller requests one.
    pub(crate) fn begin_sample(&self, bindings: &Bindings, arrival: Arrival) -> Option<ActiveSample> {
        let is_asked = is_stats_bound(bindings, self.stats_output);
        if !is_asked && !self.subscriptions.is_on() {
            return None;
        }
        self.subscriptions.begin_sample(self.program_id, self.queue, arrival, is_asked)
    }
}

/// Retained tensors of an activation, taken from it until this object is dropped.
#[derive(Debug)]
pub(crate) struct TakenState<'a> {
    slot: &'a Slot<Retained>,
    retained: Option<Box<Retained>>,
}

impl Deref for TakenState<'_> {
    type Target = Retained;

    #[allow(clippy::expect_used)] // present until the drop
    fn deref(&self) -> &Retained {
        self.retained.as_deref().expect("the state is there until it is put back")
    }
}

impl DerefMut for TakenState<'_> {
    #[allow(clippy::expect_used)] // as above
    fn deref_mut(&mut self) -> &mut Retained {
        self.retained.as_deref_mut().expect("the state is there until it is put back")
    }
}

impl Drop for TakenState<'_> {
    fn drop(&mut self) {
        if let Some(retained) = self.retained.take() {
            self.slot.put(retained);
        }
    }
}
