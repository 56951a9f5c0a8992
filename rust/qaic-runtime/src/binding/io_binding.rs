//! One inference on a device: copies the inputs, executes, copies the outputs.
//!
//! An [`IoBinding`] contains the device resources of an exec object. A device that works on host memory receives the
//! tensors directly; for other devices, the tensors are copied through DMA buffers.

use std::mem;
use std::sync::Arc;

use qaic_qpc::{NetworkDesc, counted};

use super::dma_buf::DmaBufBindings;
use super::in_place::InPlace;
use super::retained::Retained;
use super::staged::Staged;
use super::window;
use crate::binding::{Bindings, OutputBinding, Shapes, TransferPlan};
use crate::device::{Activation, Canceller, Exec, HostTensors};
use crate::error::{InputError, RuntimeError};
use crate::process::clock;
use crate::process::log;
use crate::profiling::{Stages, Watch};

pub(crate) use crate::process::CancellationCheck;

/// Reborrows the check for a part of the call.
fn meanwhile<'a>(check: &'a mut Option<CancellationCheck<'_>>) -> Option<CancellationCheck<'a>> {
    match check {
        Some(check) => Some(&mut **check),
        None => None,
    }
}

/// Device resources of an exec object.
#[derive(Debug)]
pub(crate) struct IoBinding {
    exec: Box<dyn Exec>,
    variants: Arc<[Arc<TransferPlan>]>,
    variant: usize,
    path: Path,
    dma_bufs: DmaBufBindings,
    stats: Option<StatsPlace>,
    // True while the device has an inference whose end was not awaited.
    is_started: bool,
    /// True if [`Self::submit`] must wait for the device first: from the start of an inference until it succeeds, so also
    /// after a failure.
    pub(crate) needs_reclaim: bool,
    // True if the present inference is measured.
    is_measured: bool,
}

/// Transfer method of the tensors.
#[derive(Debug)]
enum Path {
    InPlace(InPlace),
    Staged(Staged),
}

/// Location of a program's statistics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatsPlace {
    // Output with a copy of the statistics buffer, which is not a tensor of the model.
    output: Option<usize>,
}

impl StatsPlace {
    /// Returns the location; `None` for a program without statistics.
    pub(crate) fn of(network: &NetworkDesc) -> Option<Self> {
        network.stats.as_ref()?;
        Some(Self { output: network.stats_output() })
    }

    /// Returns the output, if the caller bound it to memory.
    fn bound(self, bindings: &Bindings) -> Option<usize> {
        match bindings.outputs.get(self.output?)? {
            OutputBinding::Memory(memory) if !memory.as_slice().is_empty() => self.output,
            _ => None,
        }
    }
}

impl IoBinding {
    pub(crate) fn new(
        activation: &Arc<dyn Activation>,
        variants: &Arc<[Arc<TransferPlan>]>,
        stats: Option<StatsPlace>,
    ) -> Result<Self, RuntimeError> {
        let exec = activation.create_exec()?;
        // There is at least one variant, and all variants have the same bindings.
        let first = variants.first().ok_or_else(|| no_variant(0))?;
        let stats_output = stats.and_then(|stats| stats.output);
        let path = if exec.works_in_place() {
            Path::InPlace(InPlace::new(first, stats_output))
        } else {
            Path::Staged(Staged::new(first, stats_output))
        };
        Ok(Self {
            exec,
            variant: 0,
            path,
            dma_bufs: DmaBufBindings::default(),
            variants: Arc::clone(variants),
            stats,
            is_started: false,
            needs_reclaim: false,
            is_measured: false,
        })
    }

    /// Returns the handle that ends a run early.
    pub(crate) fn canceller(&self) -> Arc<dyn Canceller> {
        self.exec.canceller()
    }

    /// Bytes of the caller's tensors of the last inference, per output.
    pub(crate) fn output_bytes(&self) -> impl Iterator<Item = usize> {
        let outputs = self.variants.get(self.variant).map(|transfers| &*transfers.outputs);
        outputs.unwrap_or_default().iter().map(|transfer| transfer.user_bytes)
    }

    /// Runs one inference on the calling thread. Windows stay bound: the code that collects an inference clears them.
    /// A watch receives the times of the stages; without one, the device measures nothing.
    ///
    /// Blocking: as long as the device takes, or until `check` ends the wait. In the latter case the device still has
    /// the inference, which [`Self::complete`] or [`Self::discard`] ends.
    pub(crate) fn run(
        &mut self,
        bindings: &mut Bindings,
        mut retained: Option<&mut Retained>,
        mut watch: Option<&mut Watch>,
        mut check: Option<CancellationCheck<'_>>,
    ) -> Result<(), RuntimeError> {
        self.submit(bindings, retained.as_deref_mut(), watch.as_deref_mut(), meanwhile(&mut check))?;
        self.complete(bindings, retained, watch, check)
    }

    /// Does the first half of [`Self::run`]: copies the inputs, and submits the inference if the device is
    /// asynchronous. After an error, no inference has begun.
    ///
    /// Blocking: only if [`Self::needs_reclaim`], until the device has released the buffers or `check` ends the wait.
    pub(crate) fn submit(
        &mut self,
        bindings: &mut Bindings,
        mut retained: Option<&mut Retained>,
        mut watch: Option<&mut Watch>,
        check: Option<CancellationCheck<'_>>,
    ) -> Result<(), RuntimeError> {
        // An inference that its caller runs immediately has already recorded its start.
        stamp(watch.as_deref_mut().filter(|watch| watch.stages.begun_ns == 0), |stages| &mut stages.begun_ns);
        self.is_measured = watch
            .as_deref()
            .zip(self.stats)
            .is_some_and(|(watch, stats)| watch.wants_device || stats.bound(bindings).is_some());
        let variant = match &bindings.shapes {
            Shapes::Variant(variant) => *variant,
            Shapes::Mismatch(text) => {
                return Err(InputError::NoMatchingShape { what: Arc::clone(text) }.into());
            }
        };
        let transfers = self.variants.get(variant).ok_or_else(|| no_variant(variant))?;
        if self.needs_reclaim {
            self.exec.reclaim(check.unwrap_or(&mut || false))?;
            self.needs_reclaim = false;
        }
        if variant != self.variant {
            self.exec.select_shapes(variant)?;
            self.variant = variant;
        }
        check_counts(bindings, transfers)?;
        self.dma_bufs.bind(&mut *self.exec, bindings, transfers)?;
        window::upload_all(&mut bindings.windows, transfers, retained.as_deref_mut())?;
        // In place, inputs and outputs are passed to the device together.
        let Path::Staged(staged) = &mut self.path else { return Ok(()) };
        let values = retained.map(|retained| retained.split().0);
        staged.stage(&mut *self.exec, bindings, transfers, values.as_ref())?;
        if let Some(watch) = watch.as_deref_mut().filter(|_| self.is_measured) {
            announce_measuring(&mut *self.exec, &mut HostTensors::none(), watch)?;
        }
        stamp(watch, |stages| &mut stages.inputs_ready_ns);
        self.exec.submit()?;
        (self.is_started, self.needs_reclaim) = (true, true);
        Ok(())
    }

    /// Does the second half: waits for the device, and copies the outputs to the caller.
    ///
    /// Blocking: as [`Self::run`].
    pub(crate) fn complete(
        &mut self,
        bindings: &mut Bindings,
        mut retained: Option<&mut Retained>,
        mut watch: Option<&mut Watch>,
        check: Option<CancellationCheck<'_>>,
    ) -> Result<(), RuntimeError> {
        if matches!(self.path, Path::Staged(_)) {
            self.execute(check)?;
        }
        let transfers = self.variants.get(self.variant).ok_or_else(|| no_variant(self.variant))?;
        let (exec, is_measured) = (&mut *self.exec, self.is_measured);
        let has_moved = match &mut self.path {
            Path::InPlace(in_place) => {
                in_place.with_tensors(bindings, transfers, retained.as_deref_mut(), |tensors| {
                    if let Some(watch) = watch.as_deref_mut().filter(|_| is_measured) {
                        announce_measuring(exec, tensors, watch)?;
                    }
                    stamp(watch.as_deref_mut(), |stages| &mut stages.inputs_ready_ns);
                    exec.execute_in_place(tensors)
                })?;
                if let Some(retained) = retained.as_deref_mut() {
                    InPlace::write_state(exec, bindings, transfers, retained)?;
                }
                stamp(watch.as_deref_mut(), |stages| &mut stages.executed_ns);
                in_place.deliver(bindings, transfers, retained.as_deref_mut())?
            }
            Path::Staged(staged) => {
                stamp(watch.as_deref_mut(), |stages| &mut stages.executed_ns);
                staged.fetch(exec, bindings, transfers, retained.as_deref_mut())?;
                true
            }
        };
        if has_moved {
            stamp(watch.as_deref_mut(), |stages| &mut stages.outputs_ready_ns);
        } else if let Some(watch) = watch.as_deref_mut() {
            // Nothing happened in between, so the clock is not read again.
            watch.stages.outputs_ready_ns = watch.stages.executed_ns;
        }
        if let Some(watch) = watch.filter(|_| is_measured) {
            let output = self.stats.and_then(|stats| stats.bound(bindings));
            deliver_stats(&mut *self.exec, output, bindings, transfers, watch);
        }
        if let Some(retained) = retained {
            retained.advance();
        }
        Ok(())
    }

    /// Ends a cancelled inference and ignores its outcome, if the device still has it.
    pub(crate) fn discard(&mut self) {
        if mem::take(&mut self.is_started) {
            self.needs_reclaim = self.exec.execute().is_err();
        }
    }

    /// Waits for the inference on the device.
    fn execute(&mut self, check: Option<CancellationCheck<'_>>) -> Result<(), RuntimeError> {
        let mut is_left = false;
        let executed = match check {
            Some(check) => self.exec.execute_interruptibly(&mut || {
                is_left |= check();
                is_left
            }),
            None => self.exec.execute(),
        };
        self.is_started = is_left && executed.is_err();
        executed?;
        self.needs_reclaim = false;
        Ok(())
    }
}

/// Requests a measurement from the device. The time of the request is not part of any stage.
fn announce_measuring(
    exec: &mut dyn Exec,
    tensors: &mut HostTensors<'_, '_>,
    watch: &mut Watch,
) -> Result<(), RuntimeError> {
    exec.identify(watch.identity);
    let before = clock::now_ns();
    exec.measure(tensors)?;
    let spent = clock::now_ns().saturating_sub(before);
    for earlier in [&mut watch.stages.enqueued_ns, &mut watch.stages.begun_ns] {
        if *earlier != 0 {
            *earlier = earlier.saturating_add(spent);
        }
    }
    Ok(())
}

/// Copies the device's measurements to the requesters, including output `output`. The inference has succeeded, even
/// if this copy fails.
fn deliver_stats(
    exec: &mut dyn Exec,
    output: Option<usize>,
    bindings: &mut Bindings,
    transfers: &TransferPlan,
    watch: &mut Watch,
) {
    let delivered = try_deliver_stats(exec, output, bindings, transfers, watch);
    if let Err(error) = delivered {
        log::global().warn(|| format!("the statistics of an inference are lost: {error}"));
        if let Some(OutputBinding::Memory(memory)) =
            output.and_then(|output| bindings.outputs.get_mut(output))
        {
            memory.as_mut().fill(0);
        }
    }
}

fn try_deliver_stats(
    exec: &mut dyn Exec,
    output: Option<usize>,
    bindings: &mut Bindings,
    transfers: &TransferPlan,
    watch: &mut Watch,
) -> Result<(), RuntimeError> {
    let buffer = exec.write_stats(&watch.stages, watch.identity)?;
    if let Some(output) = output
        && let Some(OutputBinding::Memory(memory)) = bindings.outputs.get_mut(output)
    {
        transfers.fetch_output(output, buffer, memory.as_mut())?;
    }
    if watch.wants_device {
        watch.stats = Some(buffer.to_vec().into_boxed_slice());
    }
    Ok(())
}

/// Records the time, if an inference is watched.
fn stamp(watch: Option<&mut Watch>, which: impl FnOnce(&mut Stages) -> &mut u64) {
    if let Some(watch) = watch {
        *which(&mut watch.stages) = clock::now_ns();
    }
}

fn check_counts(bindings: &Bindings, transfers: &TransferPlan) -> Result<(), RuntimeError> {
    let found = (bindings.inputs.len(), bindings.outputs.len());
    let expected = (transfers.inputs.len(), transfers.outputs.len());
    if found == expected {
        return Ok(());
    }
    Err(RuntimeError::argument(format!(
        "found {} and {}, expected {} and {}",
        counted(found.0, "bound input"),
        counted(found.1, "bound output"),
        expected.0,
        expected.1
    )))
}

fn no_variant(variant: usize) -> RuntimeError {
    RuntimeError::internal(format!("the program has no combination of shapes {variant}"))
}
