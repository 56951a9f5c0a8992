//! The device interface: the functions that the runtime needs from a device that runs programs.
//!
//! # Contract
//!
//! **Objects.** A `Device` has cores. `Device::load` turns a container into a `LoadedProgram`, which holds the
//! data that all its activations share (weights, a prepared graph). `LoadedProgram::activate` takes cores and
//! returns an `Activation`; dropping the activation releases the cores. An activation creates `Exec`s; each
//! carries one inference at a time.
//!
//! **Resources.** A card's firmware counts its cores; the `ResourceTracker` counts those of a virtual card.
//! The context wraps the program of a virtual card. The wrapper takes the cores on every card of the [`Placement`]
//! before it activates the program.
//!
//! **Validation.** The caller of a device validates. The caller has parsed the container, has checked every transform
//! sequence and every buffer size, and converts between the formats of its tensors and the device's. A device may
//! assume that memory has the size in the network descriptor. A device must not assume anything about the *content*
//! of that memory, which may change at any time, nor about the container beyond the checks of `qaic-qpc`.
//!
//! **Two kinds of devices.** A device with DMA buffers (`Exec::dma_buffer`) takes the tensors of the next submitted
//! inference from these buffers. Alternatively, a device works in place (`Exec::works_in_place`):
//! `Exec::execute_in_place` lends it all tensors in the host's memory for the duration of the call. No exec keeps
//! memory that it does not own.
//!
//! **Statistics.** The descriptor of a program with statistics specifies their DMA buffer. Only an inference that
//! `Exec::measure` announced fills the buffer, so other inferences have no extra cost. An error of a measurement is
//! recorded in the statistics and does not fail the inference. The output binding of that buffer, if there is one, is
//! not a tensor of `HostTensors`.
//!
//! **Blocking calls.** `load`, `activate`, `Exec::execute`, `Exec::reclaim`, and functions with a "Blocking"
//! paragraph may take long. No other function may. `execute` works on the calling thread if the device is
//! synchronous. After `Canceller::cancel`, `execute` ends early with [`crate::ErrorDetail::Interrupted`].
//!
//! **Two phases.** An asynchronous device returns true from `Executor::queues_on_device`. An execution then begins
//! with `Exec::submit` and ends with `execute`, which waits for it. Other inferences can be prepared in between,
//! and two different threads may call the two functions. Without a submission, `execute` does both. The DMA buffers
//! belong to the device from `submit` until `execute` has returned. After an interrupted or timed-out execution, they
//! still belong to the device, because no call stops a card: `reclaim` waits for the device before the exec is used
//! again.
//!
//! **Errors.** A device reports only errors that a caller cannot foresee: the device is busy, lost, out of memory,
//! timed out, or the inference failed. After `DeviceLost`, every later call on the program fails with the same error;
//! the program can be dropped and loaded again.
//!
//! **Threads.** Any number of threads may use devices, loaded programs and activations. An `Exec` may move between
//! threads, but only one thread at a time may use it.
//!
//! **Drop order.** Exec, activation, loaded program, device. Each object keeps the next one alive, so owners need no
//! order.
//!
//! The traits are object-safe and used as trait objects: one indirect call per inference costs about a nanosecond
//! (docs/adr/0004).

pub(crate) mod card;
#[cfg(feature = "cpu")]
pub mod cpu;
mod description;
#[cfg(all(feature = "cpu", feature = "emu"))]
pub mod emulated_cores;
mod environment;
mod kernel;
pub mod noop;
mod placement;
mod registry;
mod stats_records;
pub(crate) mod virtual_card;

use std::fmt::Debug;
use std::sync::Arc;

use qaic_mem::{DmaBuf, HostSlice, HostSliceMut};

use crate::error::{DeviceError, RuntimeError};
use crate::image::Image;
use crate::process::{CancellationCheck, CancellationToken};
use crate::profiling::{Identity, Stages};
use crate::program::WaitLimits;

pub(crate) use qaic_sched::{Canceller, Executor};

pub(crate) use description::DeviceDescription;
pub use environment::named_engine;
pub use kernel::KernelOptions;
pub use placement::{Placed, Placement};
pub(crate) use placement::{find, visible};
pub use registry::RegistryOptions;
pub(crate) use registry::{MAX_VIRTUAL_CARDS, Registry};
pub use virtual_card::UserDirectory;
pub(crate) use virtual_card::{CORES, ResourceTracker};

/// Number of a device; called QID in Qualcomm's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// Kinds of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Virtual cards on the host.
    Cpu,
    /// Cards of the kernel's driver, or emulated cards.
    Card,
    /// Test device with real memory and without computation; used only if selected by name.
    Noop,
}

impl DeviceKind {
    /// Name of the kind in `QAIC_DEVICE`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Card => "kmd",
            Self::Noop => "noop",
        }
    }
}

/// Total and free resources of a device. The numbers of a virtual card are those of a real card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Resources {
    pub(crate) dram_total_mb: u64,
    pub(crate) dram_free_mb: u64,
    /// Cores.
    pub(crate) nsp_total: u32,
    pub(crate) nsp_free: u32,
    /// Virtual channels.
    pub(crate) vc_total: u32,
    pub(crate) vc_free: u32,
    /// Multicast ids.
    pub(crate) mcid_total: u32,
    pub(crate) mcid_free: u32,
    pub(crate) semaphore_total: u32,
    pub(crate) semaphore_free: u32,
    pub(crate) programs_loaded: u32,
    /// Active activations of loaded programs.
    pub(crate) programs_active: u32,
    /// Loaded programs that have constants.
    pub(crate) constants_loaded: u32,
    /// Loaded programs with constants that have an activation.
    pub(crate) constants_in_use: u32,
}

/// State of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceStatus {
    /// The device can run programs.
    Ready,
    /// The device was lost and has not returned.
    Error { reason: String },
}

/// Options for loading a program.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Expected number of activations; a host device divides its threads among them.
    pub activations: u32,
    /// Token that ends the load early, with [`crate::ErrorDetail::Interrupted`].
    pub token: CancellationToken,
    /// Name of a group of programs that share cores. Programs with the same name on the same device take turns on the
    /// cores of the largest program.
    pub share_group: Option<String>,
    /// True if the device accepts a program of another hardware family.
    pub any_hardware: bool,
    /// Time limits of a device that enforces its own limits.
    pub wait: WaitLimits,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            activations: 1,
            token: CancellationToken::default(),
            share_group: None,
            any_hardware: false,
            wait: WaitLimits::default(),
        }
    }
}

/// One device.
pub(crate) trait Device: Executor {
    /// Number of the device.
    fn id(&self) -> DeviceId;

    /// Kind of the device.
    fn kind(&self) -> DeviceKind;

    /// Name of the device for display.
    fn name(&self) -> String;

    /// Total and free resources; all zeros for a card that does not answer.
    ///
    /// Blocking: at most a minute, while a card answers.
    fn resources(&self) -> Resources {
        self.resource_tracker().map_or_else(Resources::default, |tracker| tracker.resources())
    }

    /// Returns the state of the device.
    ///
    /// Blocking: opens and queries a card, unless the last query is still valid.
    fn status(&self) -> DeviceStatus {
        DeviceStatus::Ready
    }

    /// Facts that a card reports; `None` for devices that are not cards.
    ///
    /// Blocking: at most a minute, while the card answers.
    fn facts(&self) -> Option<card::CardFacts> {
        None
    }

    /// Resets the device for all processes. All loaded programs are lost.
    ///
    /// Blocking: until the reset has begun.
    fn reset(&self) -> Result<(), RuntimeError> {
        Err(DeviceError::Unsupported {
            what: format!(
                "a reset of device {}, of kind `{}`, which keeps no state between processes",
                self.id().0,
                self.kind().name()
            ),
        }
        .into())
    }

    /// Hardware family that the device represents, unless it is a card that reports the family itself.
    fn family(&self) -> &'static str {
        qaic_qpc::hardware::FAMILIES[0].name
    }

    /// The tracker of a virtual card's resources; `None` for a device that tracks its own resources.
    fn resource_tracker(&self) -> Option<&Arc<ResourceTracker>>;

    /// Number of devices that a program was partitioned for, and therefore needs; `None` if any number works.
    fn partitions(&self, image: &Image) -> Result<Option<u32>, RuntimeError>;

    /// Prepares a program. Takes no cores.
    fn load(&self, image: &Arc<Image>, options: &LoadOptions)
    -> Result<Arc<dyn LoadedProgram>, RuntimeError>;
}

/// A program on a device.
pub(crate) trait LoadedProgram: Debug + Send + Sync {
    /// Takes the program's cores, if the device tracks its own resources.
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError>;
}

/// A program that holds cores.
pub(crate) trait Activation: Debug + Send + Sync {
    /// Creates an exec for one inference at a time.
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError>;

    /// Returns true if an output is the value of an input with only some rows changed. [`Exec::write_state`] then
    /// writes these rows, and the pair needs only one buffer. There is no default implementation: a wrapper without
    /// this method would copy each state whole, with the same results.
    fn updates_state(&self, output: usize) -> bool;
}

/// The tensors of an execution on host memory, by binding. A tensor is `None` if the graph does not have it, because
/// it is optimized away or contains statistics.
#[derive(Debug)]
#[cfg_attr(not(feature = "cpu"), allow(dead_code))] // only the engine works on tensors of the host
pub(crate) struct HostTensors<'list, 'memory> {
    pub(crate) inputs: &'list [Option<HostSlice<'memory>>],
    pub(crate) outputs: &'list mut [Option<HostSliceMut<'memory>>],
}

impl HostTensors<'_, '_> {
    /// Returns the empty tensors of a device with DMA buffers.
    pub(crate) fn none() -> Self {
        Self { inputs: &[], outputs: &mut [] }
    }
}

/// Returns an empty list that reuses the allocation of another list, for views with another lifetime.
pub(crate) fn emptied<'a>(mut list: Vec<Option<HostSlice<'_>>>) -> Vec<Option<HostSlice<'a>>> {
    list.clear();
    list.into_iter().map(|_| None).collect()
}

/// Reuses the allocation of a list of mutable views, as [`emptied`] does.
pub(crate) fn emptied_mut<'a>(mut list: Vec<Option<HostSliceMut<'_>>>) -> Vec<Option<HostSliceMut<'a>>> {
    list.clear();
    list.into_iter().map(|_| None).collect()
}

/// Carries one inference at a time.
pub(crate) trait Exec: Debug + Send {
    /// Host view of a DMA buffer, initially zero. The contents are kept between inferences. A device that works in
    /// place has no DMA buffers.
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut<'_>, RuntimeError>;

    /// Returns true if the device works in place, on tensors in the host's memory. In that case,
    /// [`Exec::execute_in_place`] replaces [`Exec::submit`] and [`Exec::execute`].
    fn works_in_place(&self) -> bool {
        false
    }

    /// Runs one inference on tensors in the host's memory.
    ///
    /// Blocking: as [`Exec::execute`].
    fn execute_in_place(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        let _ = tensors;
        Err(RuntimeError::internal("an execution in place on a device with DMA buffers"))
    }

    /// Updates the retained state of an output after an in-place execution: writes the computed rows over the value
    /// of its input. Called for outputs of [`Activation::updates_state`] that had no memory.
    fn write_state(&mut self, output: usize, state: HostSliceMut<'_>) -> Result<(), RuntimeError> {
        let _ = state;
        Err(RuntimeError::internal(format!("output {output} is not written row by row")))
    }

    /// Selects the shapes of the following executions: an index of `allowed_shapes`, or 0 in a program without them.
    /// A new exec has the shapes of entry 0.
    fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        let _ = variant;
        Ok(())
    }

    /// Makes the device transfer DMA buffer `index` to or from `memory`, instead of the memory of
    /// [`Exec::dma_buffer`], starting with the next inference. `None` reverts this. The memory must have the size of
    /// the buffer. Repeating a call costs nothing.
    ///
    /// Blocking: as long as the device takes to map the memory. If the call fails, the buffer is unchanged.
    fn bind_dma_buf(&mut self, index: usize, memory: Option<&Arc<DmaBuf>>) -> Result<(), RuntimeError> {
        match memory {
            None => Ok(()),
            Some(_) => Err(DeviceError::Unsupported {
                what: format!(
                    "DMA buffer {index} is in the host memory of this device and cannot use a descriptor"
                ),
            }
            .into()),
        }
    }

    /// Sets the identity of the next measured execution, if the device records the identity itself. Called before
    /// [`Self::measure`].
    fn identify(&mut self, identity: Identity) {
        let _ = identity;
    }

    /// Requests a measurement of the next execution. The inputs are already staged, or in `tensors`. A device may
    /// first run the inference without measuring, to determine the cost of the measurement.
    ///
    /// Blocking: as [`Self::execute`].
    fn measure(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        let _ = tensors;
        Ok(())
    }

    /// Writes the measurements of the execution that has just succeeded, and returns the statistics buffer. Called
    /// after the outputs were delivered to the caller.
    ///
    /// Blocking: as long as writing the statistics takes. Fails if the buffer is not available.
    fn write_stats(&mut self, stages: &Stages, identity: Identity) -> Result<HostSlice<'_>, RuntimeError>;

    /// Waits until the device has released the DMA buffers. Called before the buffers are accessed after a failed
    /// `execute`.
    ///
    /// Blocking: as [`Self::execute_interruptibly`], which can end early for the same reasons; this call may then be
    /// repeated.
    fn reclaim(&mut self, check: CancellationCheck<'_>) -> Result<(), RuntimeError> {
        let _ = check;
        Ok(())
    }

    /// Sets the number of bytes in use of each DMA buffer, before each submission of a program with partial inputs.
    /// Buffers with packed partial inputs have a number; 0 means the whole buffer.
    fn set_transfer_bytes(&mut self, bytes: &[u32]) {
        let _ = bytes;
    }

    /// Submits the inference; [`Self::execute`] then waits for its end. All buffers are bound and staged, and
    /// measurements are requested. A device that computes on the calling thread does nothing here. If the device's
    /// queue is full, `execute` may submit the inference instead. After an error, the buffers belong to the host, and
    /// `execute` is not called.
    ///
    /// Does not wait for the inference. Blocking: at most a few seconds, if the device has not finished the work of
    /// the previous inference that follows its outputs.
    fn submit(&mut self) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Runs one inference, or waits for the submitted one.
    fn execute(&mut self) -> Result<(), RuntimeError>;

    /// Runs [`Self::execute`] for a caller that handles signals. A device that waits calls `check` a few times a
    /// second, and returns [`crate::ErrorDetail::Interrupted`] once `check` returns true. The inference continues, and
    /// the next `execute` waits for it. A device whose executions always end on their own need not call `check`.
    fn execute_interruptibly(&mut self, check: CancellationCheck<'_>) -> Result<(), RuntimeError> {
        let _ = check;
        self.execute()
    }

    /// Returns the handle that ends an execution early.
    fn canceller(&self) -> Arc<dyn Canceller>;
}
