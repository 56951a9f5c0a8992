//! One inference through a device: the wired buffers in, the device, the wired buffers out.
//!
//! A [`Carrier`] is what an exec object owns of its device. On a device that works on host memory, tensors that need no
//! conversion are used where they lie; everything else goes through the DMA buffers.

use std::sync::Arc;

use qaic_qpc::network_desc::NetworkDesc;

use crate::buffer::{HostSlice, HostSliceMut};
use crate::clock;
use crate::described::Described;
use crate::device::{Activation, Canceller, Exec};
use crate::error::RuntimeError;
use crate::log;
use crate::profiling::{Stages, Watch};
use crate::retained::{Retained, window};
use crate::tensors;
use crate::transfer::{BindingTransfer, Place, Route, TransferPlan};
use crate::wiring::{InputWire, OutputWire, Shapes, Wiring};

/// Asked now and then by who waits, whether to go on.
pub(crate) type Look<'a> = &'a mut dyn FnMut() -> bool;

/// The same for a part of the time.
fn meanwhile<'a>(look: &'a mut Option<Look<'_>>) -> Option<Look<'a>> {
    match look {
        Some(look) => Some(&mut **look),
        None => None,
    }
}

/// The device's side of an exec object.
#[derive(Debug)]
pub(crate) struct Carrier {
    exec: Box<dyn Exec>,
    variants: Arc<[Arc<TransferPlan>]>,
    variant: usize,
    // Views of the device's DMA buffers, taken when they are first needed.
    dma_buffers: Vec<Option<HostSliceMut>>,
    // All of them in order, for runs that use all.
    staging: Vec<HostSliceMut>,
    // Per DMA buffer, the bytes in use where partial inputs were packed, else 0.
    resize: Vec<u32>,
    described: Described,
    // Sources of the present inference, one per input.
    sources: Vec<HostSlice>,
    stats: Option<StatsPlace>,
    // Whether the device has an inference that was not waited for to its end.
    is_started: bool,
    // Whether the device may have the buffers: of that one, or of one that failed.
    needs_reclaim: bool,
    // Whether the device was told to measure the present inference.
    is_measured: bool,
}

/// Where the statistics of a program are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatsPlace {
    // DMA buffer.
    buffer: usize,
    // The output that is a copy of it, and no tensor of the model.
    output: Option<usize>,
}

impl StatsPlace {
    /// `None` for a program without statistics.
    pub(crate) fn of(network: &NetworkDesc) -> Option<Self> {
        let buffer = network.stats.as_ref()?.buff_num as usize;
        Some(Self { buffer, output: tensors::stats_output(network) })
    }
}

impl Carrier {
    pub(crate) fn new(
        activation: &Arc<dyn Activation>,
        variants: &Arc<[Arc<TransferPlan>]>,
        stats: Option<StatsPlace>,
    ) -> Result<Self, RuntimeError> {
        let exec = activation.create_exec()?;
        // There is at least one variant, and all have the same DMA buffers.
        let first = variants.first().ok_or_else(|| no_variant(0))?;
        Ok(Self {
            exec,
            variant: 0,
            dma_buffers: vec![None; first.dma_bytes().len()],
            staging: Vec::new(),
            resize: Vec::new(),
            described: Described::default(),
            sources: Vec::with_capacity(first.inputs().len()),
            variants: Arc::clone(variants),
            stats,
            is_started: false,
            needs_reclaim: false,
            is_measured: false,
        })
    }

    /// The handle that ends a run early.
    pub(crate) fn canceller(&self) -> Arc<dyn Canceller> {
        self.exec.canceller()
    }

    /// Bytes of the caller's tensors of the last inference, per output.
    pub(crate) fn output_bytes(&self) -> impl Iterator<Item = usize> {
        let outputs = self.variants.get(self.variant).map(|transfers| transfers.outputs());
        outputs.unwrap_or_default().iter().map(|transfer| transfer.user_bytes())
    }

    /// Whether the caller wired memory for the statistics.
    pub(crate) fn has_stats_wired(&self, wiring: &Wiring) -> bool {
        self.stats_wire(wiring).is_some()
    }

    fn stats_wire(&self, wiring: &Wiring) -> Option<(usize, HostSliceMut)> {
        let output = self.stats?.output?;
        match wiring.outputs.get(output)? {
            OutputWire::Memory { memory, .. } if !memory.is_empty() => Some((output, *memory)),
            _ => None,
        }
    }

    /// Runs one inference on the calling thread. Windows stay wired: who consumes an inference clears them. A watch is
    /// told when it passes what; without one, the device measures nothing.
    ///
    /// Blocking: as long as the device takes, or until `look` says so; the device then still has the inference, which
    /// [`Self::finish`] or [`Self::discard`] ends.
    pub(crate) fn run(
        &mut self,
        wiring: &Wiring,
        retained: Option<&mut Retained>,
        mut watch: Option<&mut Watch>,
        mut look: Option<Look<'_>>,
    ) -> Result<(), RuntimeError> {
        self.start(wiring, retained.as_deref(), watch.as_deref_mut(), meanwhile(&mut look))?;
        self.finish(wiring, retained, watch, look)
    }

    /// Whether [`Self::start`] has to wait for the device first, because the last inference failed.
    pub(crate) fn needs_reclaim(&self) -> bool {
        self.needs_reclaim
    }

    /// The first half of [`Self::run`]: gives the device the inputs, and the inference where it works by itself. After an
    /// error nothing has begun.
    ///
    /// Blocking: only where [`Self::needs_reclaim`], as long as the device has the buffers, or until `look` says so.
    pub(crate) fn start(
        &mut self,
        wiring: &Wiring,
        retained: Option<&Retained>,
        mut watch: Option<&mut Watch>,
        look: Option<Look<'_>>,
    ) -> Result<(), RuntimeError> {
        // One that its caller runs at once has begun when it came.
        stamp(watch.as_deref_mut().filter(|watch| watch.stages.begun_ns == 0), |stages| &mut stages.begun_ns);
        self.is_measured = watch.as_deref().is_some_and(|watch| {
            self.stats.is_some() && (watch.wants_device || self.has_stats_wired(wiring))
        });
        let variant = match &wiring.shapes {
            Shapes::Variant(variant) => *variant,
            Shapes::Mismatch(text) => {
                return Err(RuntimeError::NoMatchingShape { what: Arc::clone(text) });
            }
        };
        let transfers = Arc::clone(self.variants.get(variant).ok_or_else(|| no_variant(variant))?);
        if self.needs_reclaim {
            self.exec.reclaim(look.unwrap_or(&mut || false))?;
            self.needs_reclaim = false;
        }
        if variant != self.variant {
            self.exec.select_shapes(variant)?;
            self.variant = variant;
        }
        self.described.bind(&mut *self.exec, wiring, &transfers)?;
        self.choose_sources(wiring, &transfers, retained)?;
        if self.is_in_place(&transfers) {
            self.bind(wiring, &transfers, retained)?;
        } else {
            self.stage(wiring, &transfers)?;
        }
        if let Some(watch) = watch.as_deref_mut().filter(|_| self.is_measured) {
            self.exec.identify(watch.identity);
            self.announce_measuring(&mut watch.stages)?;
        }
        stamp(watch, |stages| &mut stages.inputs_ready_ns);
        self.exec.submit()?;
        (self.is_started, self.needs_reclaim) = (true, true);
        Ok(())
    }

    /// The second half: waits for the device, and gives the outputs to the caller.
    ///
    /// Blocking: as [`Self::run`].
    pub(crate) fn finish(
        &mut self,
        wiring: &Wiring,
        retained: Option<&mut Retained>,
        mut watch: Option<&mut Watch>,
        look: Option<Look<'_>>,
    ) -> Result<(), RuntimeError> {
        let mut is_left = false;
        let executed = match look {
            Some(look) => self.exec.execute_interruptibly(&mut || {
                is_left |= look();
                is_left
            }),
            None => self.exec.execute(),
        };
        self.is_started = is_left && executed.is_err();
        executed?;
        self.needs_reclaim = false;
        stamp(watch.as_deref_mut(), |stages| &mut stages.executed_ns);
        let transfers = Arc::clone(self.variants.get(self.variant).ok_or_else(|| no_variant(self.variant))?);
        let held = retained.as_deref();
        let has_moved = if self.is_in_place(&transfers) {
            self.deliver(wiring, &transfers, held)?
        } else {
            self.fetch(wiring, &transfers, held)?;
            true
        };
        if has_moved {
            stamp(watch.as_deref_mut(), |stages| &mut stages.outputs_ready_ns);
        } else if let Some(watch) = watch.as_deref_mut() {
            // Nothing was done since; another look at the clock would only cost.
            watch.stages.outputs_ready_ns = watch.stages.executed_ns;
        }
        if let Some(watch) = watch.filter(|_| self.is_measured) {
            self.deliver_stats(wiring, &transfers, watch);
        }
        if let Some(retained) = retained {
            retained.advance();
        }
        Ok(())
    }

    /// Ends an inference that was cancelled, whatever it comes to, if the device still has it.
    pub(crate) fn discard(&mut self) {
        if std::mem::take(&mut self.is_started) {
            self.needs_reclaim = self.exec.execute().is_err();
        }
    }

    fn is_in_place(&self, transfers: &TransferPlan) -> bool {
        self.exec.binds_in_place() && !transfers.has_partial_inputs()
    }

    /// Tells the device to measure. The time that takes is no part of any stage.
    fn announce_measuring(&mut self, stages: &mut Stages) -> Result<(), RuntimeError> {
        let before = clock::now_ns();
        self.exec.measure()?;
        let spent = clock::now_ns().saturating_sub(before);
        for earlier in [&mut stages.enqueued_ns, &mut stages.begun_ns] {
            if *earlier != 0 {
                *earlier = earlier.saturating_add(spent);
            }
        }
        Ok(())
    }

    /// Copies what the device measured to whoever wants it. The inference has succeeded, whatever becomes of it.
    fn deliver_stats(&mut self, wiring: &Wiring, transfers: &TransferPlan, watch: &mut Watch) {
        let wired = self.stats_wire(wiring);
        let delivered = self.try_deliver_stats(wired, transfers, watch);
        if let Err(error) = delivered {
            log::global().warn(|| format!("statistics of an inference are lost: {error}"));
            if let Some((_, memory)) = wired {
                memory.fill(0);
            }
        }
    }

    fn try_deliver_stats(
        &mut self,
        wired: Option<(usize, HostSliceMut)>,
        transfers: &TransferPlan,
        watch: &mut Watch,
    ) -> Result<(), RuntimeError> {
        let Some(place) = self.stats else { return Ok(()) };
        self.exec.write_stats(&watch.stages, watch.identity)?;
        let buffer = self.dma_buffer(place.buffer)?.as_const();
        if let Some((output, memory)) = wired {
            transfers.fetch_output(output, buffer, memory)?;
        }
        if watch.wants_device {
            watch.stats = Some(buffer.to_vec().into_boxed_slice());
        }
        Ok(())
    }

    /// Output `index`, if the graph computes it.
    fn is_computed(&self, index: usize) -> bool {
        self.stats.and_then(|stats| stats.output) != Some(index)
    }

    /// Decides where each input is read, after writing uploaded boxes into the retained tensors.
    fn choose_sources(
        &mut self,
        wiring: &Wiring,
        transfers: &TransferPlan,
        retained: Option<&Retained>,
    ) -> Result<(), RuntimeError> {
        self.sources.clear();
        for (index, (wire, transfer)) in wiring.inputs.iter().zip(transfers.inputs()).enumerate() {
            let held = || retained.and_then(|retained| retained.input(index));
            let mut uploads = wiring.windows.iter().filter(|window| window.binding == index).peekable();
            let source = match wire {
                // Boxes change the value on the device, whatever array was wired before.
                _ if uploads.peek().is_some() => {
                    let target = held().ok_or_else(|| state_required(transfer.name()))?;
                    for upload in uploads {
                        window::upload(upload, target.dims, target.memory)?;
                    }
                    target.memory.as_const()
                }
                InputWire::Memory { memory, .. } => *memory,
                InputWire::DmaBuf { .. } => HostSlice::empty(),
                InputWire::Unset | InputWire::Held if transfer.place().is_none() => HostSlice::empty(),
                InputWire::Unset | InputWire::Held => match held() {
                    Some(tensor) => tensor.memory.as_const(),
                    None if transfer.is_partial() => HostSlice::empty(),
                    None => return Err(state_required(transfer.name())),
                },
            };
            self.sources.push(source);
        }
        if self.sources.len() != transfers.inputs().len() || wiring.outputs.len() != transfers.outputs().len()
        {
            return Err(RuntimeError::Argument {
                what: format!(
                    "{} inputs and {} outputs are wired; the program has {} and {}",
                    wiring.inputs.len(),
                    wiring.outputs.len(),
                    transfers.inputs().len(),
                    transfers.outputs().len()
                ),
            });
        }
        Ok(())
    }

    /// All inputs into the DMA buffers.
    fn stage(&mut self, wiring: &Wiring, transfers: &TransferPlan) -> Result<(), RuntimeError> {
        for index in self.staging.len()..self.dma_buffers.len() {
            let buffer = self.dma_buffer(index)?;
            self.staging.push(buffer);
        }
        if self.described.is_empty() {
            transfers.pre_process(&self.sources, &self.staging, &mut self.resize)?;
        } else {
            self.stage_seen(wiring, transfers)?;
        }
        if transfers.has_partial_inputs() {
            self.exec.set_transfer_bytes(&self.resize);
        }
        Ok(())
    }

    /// All outputs from the DMA buffers.
    fn fetch(
        &mut self,
        wiring: &Wiring,
        transfers: &TransferPlan,
        retained: Option<&Retained>,
    ) -> Result<(), RuntimeError> {
        for (index, (transfer, wire)) in transfers.outputs().iter().zip(&wiring.outputs).enumerate() {
            let Some(place) = transfer.place().filter(|_| self.is_computed(index)) else { continue };
            let buffer = self.dma_buffer(place.buffer)?.as_const();
            let kept = retained.and_then(|retained| retained.output(index));
            if let Some(tensor) = kept {
                transfers.fetch_output(index, buffer, tensor.memory)?;
            }
            if let OutputWire::Memory { memory, .. } = wire {
                transfers.fetch_output(index, buffer, *memory)?;
            }
            let result = match kept {
                Some(tensor) => tensor.memory,
                None => self.tensor_in_dma(place)?,
            };
            download(wiring, transfers, index, result)?;
        }
        Ok(())
    }

    /// Moves the inputs that do not lie behind descriptors. Programs that take descriptors pack nothing.
    fn stage_seen(&mut self, wiring: &Wiring, transfers: &TransferPlan) -> Result<(), RuntimeError> {
        self.resize.clear();
        self.resize.resize(self.staging.len(), 0);
        let inputs = wiring.inputs.iter().zip(transfers.inputs()).zip(&self.sources).enumerate();
        for (index, ((wire, transfer), source)) in inputs {
            let Some(place) = transfer.place() else { continue };
            if !matches!(wire, InputWire::DmaBuf { .. }) {
                transfers.stage_input(index, *source, self.staging[place.buffer])?;
            }
        }
        Ok(())
    }

    /// Has the device work where the tensors lie. Only what needs a conversion, or has no memory of the caller's, touches a
    /// DMA buffer.
    fn bind(
        &mut self,
        wiring: &Wiring,
        transfers: &TransferPlan,
        retained: Option<&Retained>,
    ) -> Result<(), RuntimeError> {
        for (index, transfer) in transfers.inputs().iter().enumerate() {
            let Some(place) = transfer.place() else { continue };
            let memory = self.sources.get(index).copied().unwrap_or(HostSlice::empty());
            let bound = if matches!(transfer.route(), Route::Direct) && has_whole_elements(transfer, memory) {
                memory.subslice(0, transfer.user_bytes()).ok_or_else(|| wrong_size(transfer, memory.len()))?
            } else {
                transfers.stage_input(index, memory, self.dma_buffer(place.buffer)?)?;
                self.tensor_in_dma(place)?.as_const()
            };
            self.exec.bind_input(index, bound)?;
        }
        for (index, (transfer, wire)) in transfers.outputs().iter().zip(&wiring.outputs).enumerate() {
            let Some(place) = transfer.place().filter(|_| self.is_computed(index)) else { continue };
            let kept = retained.and_then(|retained| retained.output(index));
            let bound = match (kept, wire) {
                (Some(tensor), _) if matches!(transfer.route(), Route::Direct) => tensor.memory,
                (None, OutputWire::Memory { memory, .. })
                    if delivers_in_place(transfer, *memory, &self.sources) =>
                {
                    // The rest of memory that is larger stays as it is.
                    memory.subslice(0, transfer.user_bytes()).unwrap_or(*memory)
                }
                _ => self.tensor_in_dma(place)?,
            };
            self.exec.bind_output(index, bound)?;
        }
        Ok(())
    }

    /// What the device left in other places than the caller wants it, after [`Self::bind`]. Returns whether there was any.
    fn deliver(
        &mut self,
        wiring: &Wiring,
        transfers: &TransferPlan,
        retained: Option<&Retained>,
    ) -> Result<bool, RuntimeError> {
        let mut has_moved = !wiring.windows.is_empty();
        for (index, (transfer, wire)) in transfers.outputs().iter().zip(&wiring.outputs).enumerate() {
            let Some(place) = transfer.place().filter(|_| self.is_computed(index)) else { continue };
            let direct = matches!(transfer.route(), Route::Direct);
            let kept = retained.and_then(|retained| retained.output(index));
            if let Some(tensor) = kept.filter(|_| !direct) {
                has_moved = true;
                transfers.fetch_output(index, self.dma_buffer(place.buffer)?.as_const(), tensor.memory)?;
            }
            if let OutputWire::Memory { memory, .. } = wire {
                match kept {
                    Some(tensor) => {
                        has_moved = true;
                        let _ = memory.copy_from(tensor.memory.as_const());
                    }
                    None if delivers_in_place(transfer, *memory, &self.sources) => {}
                    None => {
                        has_moved = true;
                        let buffer = self.dma_buffer(place.buffer)?;
                        transfers.fetch_output(index, buffer.as_const(), *memory)?;
                    }
                }
            }
            if !wiring.windows.is_empty() {
                let result = match (kept, wire) {
                    (Some(tensor), _) => tensor.memory,
                    (None, OutputWire::Memory { memory, .. })
                        if delivers_in_place(transfer, *memory, &self.sources) =>
                    {
                        *memory
                    }
                    _ => self.tensor_in_dma(place)?,
                };
                download(wiring, transfers, index, result)?;
            }
        }
        Ok(has_moved)
    }

    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut, RuntimeError> {
        let outside = || RuntimeError::Internal { what: format!("DMA buffer {index} does not exist") };
        let slot = self.dma_buffers.get_mut(index).ok_or_else(outside)?;
        match slot {
            Some(memory) => Ok(*memory),
            None => Ok(*slot.insert(self.exec.dma_buffer(index)?)),
        }
    }

    fn tensor_in_dma(&mut self, place: Place) -> Result<HostSliceMut, RuntimeError> {
        let memory = self.dma_buffer(place.buffer)?;
        memory.subslice(place.offset, place.bytes).ok_or_else(|| RuntimeError::Internal {
            what: format!("{place:?} does not lie in a DMA buffer of {} bytes", memory.len()),
        })
    }
}

/// Notes the time, where somebody watches.
fn stamp(watch: Option<&mut Watch>, which: impl FnOnce(&mut Stages) -> &mut u64) {
    if let Some(watch) = watch {
        *which(&mut watch.stages) = clock::now_ns();
    }
}

/// Copies the boxes wanted of output `index` to the host.
fn download(
    wiring: &Wiring,
    transfers: &TransferPlan,
    index: usize,
    result: HostSliceMut,
) -> Result<(), RuntimeError> {
    let binding = transfers.inputs().len() + index;
    for wanted in wiring.windows.iter().filter(|window| window.binding == binding) {
        let transfer = &transfers.outputs()[index];
        if !matches!(transfer.route(), Route::Direct) {
            return Err(RuntimeError::Argument {
                what: format!(
                    "output `{}` is converted on its way; no box of it can be read",
                    transfer.name()
                ),
            });
        }
        window::download(wanted, transfer.dims(), result.as_const())?;
    }
    Ok(())
}

/// Whether the device can write this output where the caller wants it: unconverted, with room for all of it, and not
/// over an input, which it may read after it has written.
fn delivers_in_place(transfer: &BindingTransfer, memory: HostSliceMut, sources: &[HostSlice]) -> bool {
    matches!(transfer.route(), Route::Direct)
        && memory.len() >= transfer.user_bytes()
        && has_whole_elements(transfer, memory.as_const())
        && !sources.iter().any(|source| source.overlaps(memory.as_const()))
}

/// Whether the memory begins where an element may: kernels load whole ones.
fn has_whole_elements(transfer: &BindingTransfer, memory: HostSlice) -> bool {
    let address = memory.as_ptr().addr();
    // No element is larger.
    if address.is_multiple_of(8) {
        return true;
    }
    let count = transfer.dims().iter().product::<usize>().max(1);
    address.is_multiple_of((transfer.user_bytes() / count).max(1))
}

fn wrong_size(transfer: &BindingTransfer, found: usize) -> RuntimeError {
    RuntimeError::BufferSize {
        buffer: transfer.name().to_owned(),
        expected: transfer.user_bytes() as u64,
        found: found as u64,
    }
}

fn state_required(name: &str) -> RuntimeError {
    RuntimeError::StateRequired { binding: name.to_owned() }
}

fn no_variant(variant: usize) -> RuntimeError {
    RuntimeError::Internal { what: format!("the program has no combination of shapes {variant}") }
}
