//! A container on one or several devices, through the states created, loaded and activated.

use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use qaic_qpc::shape::{RequestedShape, ShapeMatch};

use crate::buffer::{HostSlice, HostSliceMut};
use crate::carrier::{Carrier, Look};
use crate::context::Context;
use crate::device::{Activation, DeviceKind, LoadOptions, LoadedProgram, Placement};
use crate::error::RuntimeError;
use crate::executor::{Executor, ExecutorOptions};
use crate::fork::Origin;
use crate::image::Image;
use crate::profiling::{Arrival, Hub, Watch, Watched, newcomers};
use crate::retained::Retained;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::tensors::{self, Duties, RetainedPair};
use crate::transfer::TransferPlan;
use crate::wiring::{OutputWire, Wiring};

/// Inferences of a program that can be enqueued at a time, unless it says otherwise: the elements of a card's ring
/// (device-kmd §4.4).
pub const DEFAULT_EXEC_OBJS: u32 = 512;

/// Wait for one completion on devices that have a limit of their own (device-kmd §4.5).
const DEVICE_TRY: Duration = Duration::from_secs(5);

/// How long the completion of an inference is waited for (device-kmd §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    /// Milliseconds of one wait; 0 is the device's default: 5000 ms, and no limit on `cpu`, because a slow host is not a
    /// stuck card.
    pub try_ms: u32,
    /// Further waits after one has timed out.
    pub retries: u32,
    /// A card is asked in waits of this length, that a cancelled inference ends soon; `None` asks once per wait, and then
    /// the end of a cancelled one is noticed only between them.
    pub slice_ms: Option<u32>,
}

impl Default for WaitLimits {
    fn default() -> Self {
        Self { try_ms: 0, retries: 5, slice_ms: None }
    }
}

impl WaitLimits {
    /// All waits together, where somebody else than the device has to end them: a card counts its waits itself.
    pub fn total(self, kind: DeviceKind) -> Option<Duration> {
        let one = match (self.try_ms, kind) {
            (0, DeviceKind::Cpu) | (_, DeviceKind::Kmd) => return None,
            (0, _) => DEVICE_TRY,
            (try_ms, _) => Duration::from_millis(try_ms.into()),
        };
        Some(one.saturating_mul(self.retries.saturating_add(1)))
    }
}

/// How a program is loaded and run.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// What the device is told.
    pub load: LoadOptions,
    /// When an inference counts as stuck.
    pub wait: WaitLimits,
    /// Threads that run enqueued inferences, per activation; a host device uses no more than it has CPUs.
    pub threads_per_queue: u32,
    /// Inferences that can be enqueued at a time.
    pub exec_objs: u32,
}

impl Default for ProgramOptions {
    fn default() -> Self {
        Self {
            load: LoadOptions::default(),
            wait: WaitLimits::default(),
            threads_per_queue: 4,
            exec_objs: DEFAULT_EXEC_OBJS,
        }
    }
}

/// States of a program; the numbers are those of `QAicProgramStatus` (device-kmd §4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProgramStatus {
    /// Created, or unloaded.
    Init = 0,
    /// Loaded, without cores.
    Loaded = 1,
    /// Activated.
    FullyActivated = 2,
    /// The device was lost.
    Error = 100,
    /// The last load failed.
    LoadError = 101,
    /// The last activation failed.
    ActivateError = 102,
}

/// One instance of a container. Activating it takes the program's cores; deactivating it, or dropping it and its exec
/// objects, gives them back.
#[derive(Debug)]
pub struct Program {
    context: Arc<Context>,
    placement: Placement,
    options: ProgramOptions,
    image: Arc<Image>,
    variants: Arc<[Arc<TransferPlan>]>,
    retained: Arc<[RetainedPair]>,
    duties: Duties,
    executor: Arc<Executor>,
    lane: u32,
    unique_id: u32,
    user_id: AtomicU32,
    completed: Arc<AtomicU64>,
    hub: Arc<Hub>,
    origin: Origin,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    loaded: Option<Arc<dyn LoadedProgram>>,
    // Held by the exec objects, and here when the user activated.
    activated: Weak<Activated>,
    manual: Option<Arc<Activated>>,
    // Whether the user deactivated what exec objects still hold.
    is_ending: bool,
    failed: Option<ProgramStatus>,
}

/// A program that holds cores, with what lives as long as it does.
#[derive(Debug)]
pub(crate) struct Activated {
    activation: Arc<dyn Activation>,
    image: Arc<Image>,
    // A new activation begins with zeros.
    retained: Option<Mutex<Retained>>,
    pairs: Arc<[RetainedPair]>,
    executor: Arc<Executor>,
    lane: u32,
    live_exec_objs: AtomicU32,
    completed: Arc<AtomicU64>,
    hub: Arc<Hub>,
    // The output through which a user may ask for the stats buffer.
    stats_output: Option<usize>,
    program_id: u32,
}

impl Program {
    /// A program that is not yet loaded. Fails when a device does not exist or a binding's transform sequence is not
    /// valid.
    pub fn new(
        context: &Arc<Context>,
        image: &Arc<Image>,
        placement: &Placement,
        options: &ProgramOptions,
    ) -> Result<Arc<Self>, RuntimeError> {
        let mut programs = Self::lanes(context, image, placement, options, 1, None)?;
        programs.pop().ok_or_else(|| RuntimeError::Internal { what: "no program was made".to_owned() })
    }

    /// `count` programs that share the threads which run their inferences; `set_size` is what an inference set has of exec
    /// objects for each.
    pub(crate) fn lanes(
        context: &Arc<Context>,
        image: &Arc<Image>,
        placement: &Placement,
        options: &ProgramOptions,
        count: u32,
        set_size: Option<u32>,
    ) -> Result<Vec<Arc<Self>>, RuntimeError> {
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);
        let devices = context.placed_on(placement)?;
        let first =
            *devices.first().ok_or_else(|| RuntimeError::Internal { what: "no device".to_owned() })?;
        let on_host = first.executes_on_host();
        let variants: Arc<[_]> = TransferPlan::variants(image.network())?.into();
        let retained: Arc<[_]> = tensors::retained_pairs(image)?.into();
        let duties = tensors::duties(image)?;
        let serial = !retained.is_empty();
        // What waits for its turn runs to its end there, and no caller of his own could be told of a signal.
        let holds_callers = serial && first.queues_on_device();
        let executor = Executor::new(ExecutorOptions {
            lanes: count,
            serial,
            capacity: options.exec_objs,
            threads: options.threads_per_queue,
            steady: !holds_callers && (!on_host || tensors::is_steady(image)?),
            device: Arc::clone(first),
        });
        let completed: Box<[Arc<AtomicU64>]> = (0..count).map(|_| Arc::default()).collect();
        let hub = Hub::new(image, set_size, completed.clone());
        newcomers::announce(&hub);
        Ok((0..count)
            .zip(completed)
            .map(|(lane, completed)| {
                Arc::new(Self {
                    context: Arc::clone(context),
                    placement: placement.clone(),
                    options: options.clone(),
                    image: Arc::clone(image),
                    variants: Arc::clone(&variants),
                    retained: Arc::clone(&retained),
                    duties,
                    executor: Arc::clone(&executor),
                    lane,
                    unique_id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                    user_id: AtomicU32::new(0),
                    completed,
                    hub: Arc::clone(&hub),
                    origin: Origin::here(),
                    state: Mutex::default(),
                })
            })
            .collect())
    }

    /// Uses what `other`, made together with this program, has loaded.
    pub(crate) fn share_loaded(&self, other: &Self) {
        let loaded = other.state.lock().loaded.clone();
        self.state.lock().loaded = loaded;
    }

    /// The devices' context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The container.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// The devices.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// How it is loaded and run.
    pub fn options(&self) -> &ProgramOptions {
        &self.options
    }

    /// Transfers for each permitted combination of shapes, at least one.
    pub fn variants(&self) -> &[Arc<TransferPlan>] {
        &self.variants
    }

    pub(crate) fn shared_variants(&self) -> &Arc<[Arc<TransferPlan>]> {
        &self.variants
    }

    pub(crate) fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// Has `threads` run enqueued inferences, per activation, in place of what the options say. Programs of one inference
    /// set share their threads. Never blocks.
    pub fn allow_threads(&self, threads: u32) {
        if self.origin.is_here() {
            self.executor.allow(threads);
        }
    }

    /// Tensors that stay on the device between inferences.
    pub fn retained(&self) -> &[RetainedPair] {
        &self.retained
    }

    /// What it was compiled to do beside computing.
    pub fn duties(&self) -> Duties {
        self.duties
    }

    /// Position in [`Self::variants`] of the first combination that fits tensors of these shapes, inputs then outputs;
    /// `None` in the list is a buffer that is left out.
    pub fn match_shapes(&self, requested: &[Option<RequestedShape>]) -> Option<usize> {
        match self.image.network().match_shapes(requested)? {
            ShapeMatch::Static => Some(0),
            ShapeMatch::Entry(entry) => Some(entry),
        }
    }

    /// A number no other program of this process has.
    pub fn unique_id(&self) -> u32 {
        self.unique_id
    }

    /// A number the user gave it; 0 at first.
    pub fn id(&self) -> u32 {
        self.user_id.load(Ordering::Relaxed)
    }

    /// Gives it a number.
    pub fn set_id(&self, id: u32) {
        self.user_id.store(id, Ordering::Relaxed);
    }

    /// Inferences that ended well.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Where profilers learn of its inferences; the activations of an inference set share one.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// How long an inference may take.
    pub(crate) fn time_limit(&self) -> Option<Duration> {
        self.options.wait.total(self.context.kind_of(&self.placement)?)
    }

    /// Whether it is loaded or activated. Blocking while another thread loads it.
    pub fn is_loaded(&self) -> bool {
        self.origin.is_here() && self.state.lock().loaded.is_some()
    }

    /// Whether it holds cores. Blocking while another thread loads it.
    pub fn is_activated(&self) -> bool {
        self.origin.is_here() && self.state.lock().activated.strong_count() > 0
    }

    /// Its state. Blocking while another thread loads it.
    pub fn status(&self) -> ProgramStatus {
        if !self.origin.is_here() {
            return ProgramStatus::Init;
        }
        let state = self.state.lock();
        match state.failed {
            Some(failed) => failed,
            None if state.activated.strong_count() > 0 => ProgramStatus::FullyActivated,
            None if state.loaded.is_some() => ProgramStatus::Loaded,
            None => ProgramStatus::Init,
        }
    }

    /// Prepares the program on its devices. A no-op when it is loaded.
    ///
    /// Blocking: reads and prepares the weights.
    pub fn load(&self) -> Result<(), RuntimeError> {
        self.origin.check()?;
        self.loaded(&mut self.state.lock()).map(drop)
    }

    /// Gives back what [`Self::load`] took. Fails while exec objects exist; then nothing changes.
    pub fn unload(&self) -> Result<(), RuntimeError> {
        self.origin.check()?;
        let mut state = self.state.lock();
        let count = state.live_exec_objs();
        if count > 0 {
            return Err(RuntimeError::LiveExecObjs { count });
        }
        state.deactivate();
        state.loaded = None;
        Ok(())
    }

    /// Takes the cores, loading first if needed, and keeps them until [`Self::deactivate`]. A no-op when it did.
    ///
    /// Blocking: as [`Self::load`] when it is not loaded.
    pub fn activate(&self) -> Result<(), RuntimeError> {
        self.origin.check()?;
        let mut state = self.state.lock();
        let activated = self.activated(&mut state)?;
        state.manual = Some(activated);
        Ok(())
    }

    /// Gives the cores back: at once, or with the last exec object while some exist, which may be used until then. A
    /// no-op when it holds none.
    pub fn deactivate(&self) -> Result<(), RuntimeError> {
        self.origin.check()?;
        self.state.lock().deactivate();
        Ok(())
    }

    /// The activation for something that needs it to last; [`Activated::leave`] ends that.
    pub(crate) fn enter(&self, activate: bool) -> Result<Arc<Activated>, RuntimeError> {
        self.origin.check()?;
        let mut state = self.state.lock();
        let activated = if activate {
            self.activated(&mut state)?
        } else {
            let activated = state.activated.upgrade().filter(|_| !state.is_ending);
            activated.ok_or_else(|| RuntimeError::State {
                what: "the program is not activated; activate it before making exec objects".to_owned(),
            })?
        };
        activated.live_exec_objs.fetch_add(1, Ordering::AcqRel);
        Ok(activated)
    }

    /// Copies the bytes from `offset` on of the state of input `input` into `into`, which they have to fill.
    ///
    /// Blocking: until the inference that runs has ended.
    pub fn read_state(&self, input: usize, offset: usize, into: HostSliceMut) -> Result<(), RuntimeError> {
        self.with_state(input, |state| {
            let held = state.subslice(offset, into.len()).ok_or(state.len())?;
            into.copy_from(held.as_const());
            Ok(())
        })
    }

    /// Replaces the bytes from `offset` on of the state of input `input`; the next inference reads them.
    ///
    /// Blocking: until the inference that runs has ended.
    pub fn write_state(&self, input: usize, offset: usize, from: HostSlice) -> Result<(), RuntimeError> {
        self.with_state(input, |state| {
            let held = state.subslice(offset, from.len()).ok_or(state.len())?;
            held.copy_from(from);
            Ok(())
        })
    }

    /// Works on the present value of a state; `work` fails with its size.
    fn with_state(
        &self,
        input: usize,
        work: impl FnOnce(HostSliceMut) -> Result<(), usize>,
    ) -> Result<(), RuntimeError> {
        self.origin.check()?;
        let activated = self.state.lock().activated.upgrade().ok_or_else(|| RuntimeError::State {
            what: "the program is not activated, so it has no state".to_owned(),
        })?;
        let retained = activated.retained.as_ref().map(Mutex::lock);
        let held = retained.as_ref().and_then(|retained| retained.input(input));
        let Some(held) = held else {
            return Err(RuntimeError::Argument {
                what: format!("the device keeps no value of input {input}"),
            });
        };
        work(held.memory).map_err(|bytes| RuntimeError::Argument {
            what: format!("the state of input {input} has {bytes} bytes, and what is asked for lies outside"),
        })
    }

    fn loaded(&self, state: &mut State) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        if let Some(loaded) = &state.loaded {
            return Ok(Arc::clone(loaded));
        }
        let load = LoadOptions { wait: self.options.wait, ..self.options.load.clone() };
        let result = self.context.load(&self.image, &self.placement, &load);
        let loaded = result.inspect_err(|_| state.failed = Some(ProgramStatus::LoadError))?;
        state.failed = None;
        state.loaded = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    fn activated(&self, state: &mut State) -> Result<Arc<Activated>, RuntimeError> {
        let is_new = mem::take(&mut state.is_ending);
        if let Some(activated) = state.activated.upgrade() {
            if is_new {
                activated.forget_state();
            }
            return Ok(activated);
        }
        let loaded = self.loaded(state)?;
        let activate = || -> Result<_, RuntimeError> {
            let first = self
                .variants
                .first()
                .ok_or_else(|| RuntimeError::Internal { what: "the program has no transfers".to_owned() })?;
            Ok(Arc::new(Activated {
                activation: loaded.activate()?,
                image: Arc::clone(&self.image),
                retained: Retained::new(&self.retained, first)?.map(Mutex::new),
                pairs: Arc::clone(&self.retained),
                executor: Arc::clone(&self.executor),
                lane: self.lane,
                live_exec_objs: AtomicU32::new(0),
                completed: Arc::clone(&self.completed),
                hub: Arc::clone(&self.hub),
                stats_output: tensors::stats_output(self.image.network()),
                program_id: self.id(),
            }))
        };
        let activated = activate().inspect_err(|error| {
            state.failed = Some(match error {
                RuntimeError::DeviceLost { .. } | RuntimeError::DeviceUnavailable { .. } => {
                    ProgramStatus::Error
                }
                _ => ProgramStatus::ActivateError,
            });
        })?;
        state.failed = None;
        state.activated = Arc::downgrade(&activated);
        Ok(activated)
    }
}

impl State {
    fn live_exec_objs(&self) -> u32 {
        let activated = self.activated.upgrade();
        activated.map_or(0, |activated| activated.live_exec_objs.load(Ordering::Acquire))
    }

    fn deactivate(&mut self) {
        self.is_ending = self.live_exec_objs() > 0;
        self.manual = None;
        if !self.is_ending {
            self.activated = Weak::new();
        }
        self.failed = None;
    }
}

impl Activated {
    pub(crate) fn activation(&self) -> &Arc<dyn Activation> {
        &self.activation
    }

    pub(crate) fn image(&self) -> &Arc<Image> {
        &self.image
    }

    pub(crate) fn executor(&self) -> (&Arc<Executor>, u32) {
        (&self.executor, self.lane)
    }

    /// Whether inferences run one after the other.
    pub(crate) fn is_serial(&self) -> bool {
        self.retained.is_some()
    }

    pub(crate) fn retains_input(&self, index: usize) -> bool {
        self.pairs.iter().any(|pair| pair.input == index)
    }

    /// Has the next inference find the state of a new activation.
    ///
    /// Blocking: until the inference that runs has ended.
    fn forget_state(&self) {
        if let Some(retained) = &self.retained {
            retained.lock().clear();
        }
    }

    /// Undoes [`Program::enter`].
    pub(crate) fn leave(&self) {
        self.live_exec_objs.fetch_sub(1, Ordering::AcqRel);
    }

    /// When an inference is started, where anybody wants to know.
    pub(crate) fn arrival(&self) -> Option<Arrival> {
        let is_wanted = self.hub.is_on() || self.stats_output.is_some();
        is_wanted.then(|| Arrival::now(self.executor.waiting(self.lane)))
    }

    /// Who wants to know about an inference that begins.
    pub(crate) fn watch(&self, wiring: &Wiring, arrival: impl FnOnce() -> Arrival) -> Option<Watched> {
        let is_asked = self.stats_output.is_some_and(|output| {
            matches!(wiring.outputs.get(output), Some(OutputWire::Memory { memory, .. }) if !memory.is_empty())
        });
        if !is_asked && !self.hub.is_on() {
            return None;
        }
        self.hub.watch(self.program_id, self.lane, arrival(), is_asked)
    }

    /// Runs an inference; [`Carrier::run`].
    pub(crate) fn run(
        &self,
        carrier: &mut Carrier,
        wiring: &Wiring,
        watch: Option<&mut Watch>,
        look: Option<Look<'_>>,
    ) -> Result<(), RuntimeError> {
        match &self.retained {
            Some(retained) => carrier.run(wiring, Some(&mut retained.lock()), watch, look)?,
            None => carrier.run(wiring, None, watch, look)?,
        }
        self.completed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends an inference that was started, of a program that retains no state; [`Carrier::finish`].
    pub(crate) fn finish(
        &self,
        carrier: &mut Carrier,
        wiring: &Wiring,
        watch: Option<&mut Watch>,
        look: Option<Look<'_>>,
    ) -> Result<(), RuntimeError> {
        carrier.finish(wiring, None, watch, look)?;
        self.completed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
