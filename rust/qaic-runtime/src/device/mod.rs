//! The device seam: what the runtime asks of anything that can run a program.
//!
//! # Contract
//!
//! **Nouns.** A [`Device`] has cores. [`Device::load`] turns a container into a [`LoadedProgram`], which holds what all
//! its activations share (weights, a prepared graph). [`LoadedProgram::activate`] takes cores and gives an
//! [`Activation`]; dropping the activation gives the cores back. An activation makes [`Exec`]s; each carries one
//! inference at a time.
//!
//! **Resources.** A card's firmware counts its cores; the [`ResourceTracker`] counts those of a virtual card.
//! [`crate::context::Context::load`] wraps a program of a virtual card: it takes the cores on every card of the
//! [`Placement`] before it activates.
//!
//! **Validation.** The layer above validates. It has parsed the container, checked every transform sequence and every buffer
//! size, and converts between the caller's tensors and the device's. A device may assume that the memory it is given
//! has the size the network descriptor says. It must not assume anything about the *content* of that memory, which the
//! caller may change at any time, nor about the container beyond what `qaic-qpc` checked.
//!
//! **Two ways in.** A device either has DMA buffers ([`Exec::dma_buffer`]), which hold the tensors of the inference that is
//! submitted next; or it says [`Exec::works_in_place`] and is handed all tensors where they lie in the host's memory, for
//! the length of [`Exec::execute_in_place`]. No exec keeps memory that it does not own.
//!
//! **Statistics.** A program whose descriptor has statistics names the DMA buffer that they go to. Only the inference that
//! was announced by [`Exec::measure`] fills it, so that all others cost nothing; and whatever goes wrong with measuring
//! is recorded in the statistics and fails no inference. The output binding of that buffer, where there is one, is no tensor of
//! [`HostTensors`].
//!
//! **What blocks.** `load`, `activate`, [`Exec::execute`] and [`Exec::reclaim`] may take long, and what says so at its own
//! place: a card is asked what it has. Nothing else may. `execute` works on the calling thread where the device is
//! synchronous. It ends early, with [`ErrorDetail::Interrupted`], after [`Canceller::cancel`].
//!
//! **Two phases.** A device that works through inferences by itself says [`Executor::queues_on_device`]. Then an execution
//! begins with [`Exec::submit`], which hands it over, and ends with `execute`, which waits for it; in between the host
//! prepares others, and the two may be called by different threads. Where nothing was submitted, `execute` does both. From
//! `submit` until `execute` has returned the DMA buffers belong to the device. They still do after an execution that was
//! interrupted or timed out, as no call stops a card: `reclaim` waits for that before the exec is used again.
//!
//! **Which errors.** What a caller cannot foresee: the device is busy, lost, out of memory, timed out, or the inference
//! failed. After `DeviceLost` every later call on the program fails the same way; it can be dropped and loaded again.
//!
//! **Threads.** Devices, loaded programs and activations may be used from any number of threads. An `Exec` moves between
//! threads and is used by one at a time.
//!
//! **Drop order.** Exec before activation before loaded program before device; the handles keep each other alive in
//! this order, so owners need not care.
//!
//! The traits are object-safe and used as trait objects: one indirect call per inference costs about a nanosecond
//! (docs/adr/0004).

pub mod card;
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

use crate::error::{DeviceError, ErrorDetail, RuntimeError};
use crate::image::Image;
use crate::process::{CancellationCheck, CancellationToken};
use crate::profiling::{Identity, Stages};
use crate::program::WaitLimits;

pub use qaic_sched::{Canceller, Executor};

pub use description::DeviceDescription;
pub use environment::named_engine;
pub use kernel::KernelOptions;
pub use placement::{Placed, Placement};
pub(crate) use placement::{find, visible};
pub use registry::{Registry, RegistryOptions};
pub use virtual_card::{CORES, ResourceTracker, UserDirectory};

/// Number of a device; the field calls it QID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// Kinds of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Virtual cards on the host.
    Cpu,
    /// Cards behind the kernel's driver, or an emulated one.
    Card,
    /// Test device with real memory and no computation; only by explicit name.
    Noop,
}

impl DeviceKind {
    /// Name as in `QAIC_DEVICE`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Card => "kmd",
            Self::Noop => "noop",
        }
    }
}

/// Total and free resources of a device. The figures of a virtual card are those of a real one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Resources {
    /// Device memory in MB.
    pub dram_total_mb: u64,
    /// Free device memory in MB.
    pub dram_free_mb: u64,
    /// Cores.
    pub nsp_total: u32,
    /// Free cores.
    pub nsp_free: u32,
    /// Virtual channels.
    pub vc_total: u32,
    /// Free virtual channels.
    pub vc_free: u32,
    /// Multicast ids.
    pub mcid_total: u32,
    /// Free multicast ids.
    pub mcid_free: u32,
    /// Semaphores.
    pub semaphore_total: u32,
    /// Free semaphores.
    pub semaphore_free: u32,
    /// Loaded programs.
    pub programs_loaded: u32,
    /// Activations of them.
    pub programs_active: u32,
    /// Loaded programs that have constants.
    pub constants_loaded: u32,
    /// Those of them with an activation.
    pub constants_in_use: u32,
}

/// State of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceStatus {
    /// It can.
    Ready,
    /// It was lost and has not come back.
    Error {
        /// The observation.
        reason: String,
    },
}

/// How a program is to be loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Activations the caller is going to ask for; a host device divides its threads among them.
    pub activations: u32,
    /// Ends the load early, with [`ErrorDetail::Interrupted`].
    pub token: CancellationToken,
    /// Programs of the same name on the same device share cores: the largest of them decides how many are held, and
    /// they take turns.
    pub share_group: Option<String>,
    /// True if the device accepts a program of another hardware family.
    pub any_hardware: bool,
    /// How long a device with time limits of its own waits for an inference.
    pub wait: WaitLimits,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            activations: 1,
            token: CancellationToken::new(),
            share_group: None,
            any_hardware: false,
            wait: WaitLimits::default(),
        }
    }
}

/// One device.
pub trait Device: Executor {
    /// Its number.
    fn id(&self) -> DeviceId;

    /// Its kind.
    fn kind(&self) -> DeviceKind;

    /// A name for people.
    fn name(&self) -> String;

    /// Total and free resources; all zeros for a card that does not answer.
    ///
    /// Blocking: asks a card, a minute at most.
    fn resources(&self) -> Resources;

    /// State of the device.
    ///
    /// Blocking: opens a card and asks it, unless that was done and nothing has happened since.
    fn status(&self) -> DeviceStatus {
        DeviceStatus::Ready
    }

    /// Facts that a card reports; `None` for devices that are no cards.
    ///
    /// Blocking: asks the card, a minute at most.
    fn facts(&self) -> Option<card::CardFacts> {
        None
    }

    /// Resets it with everything that is on it, for all processes. What was loaded is lost then.
    ///
    /// Blocking: until the reset has begun.
    fn reset(&self) -> Result<(), RuntimeError> {
        Err(ErrorDetail::Device(DeviceError::Unsupported {
            what: format!(
                "a reset of device {}, of kind `{}`, which keeps nothing beyond the processes that use it",
                self.id().0,
                self.kind().name()
            ),
        })
        .into())
    }

    /// Hardware family that it stands for, where it is no card that says so itself.
    fn family(&self) -> &'static str {
        qaic_qpc::hardware::FAMILIES[0].name
    }

    /// The tracker of a virtual card's resources; `None` for a device that counts its own.
    fn resource_tracker(&self) -> Option<&Arc<ResourceTracker>>;

    /// Number of devices that a program was partitioned for, which is the number it needs; `None` when any will do.
    fn partitions(&self, image: &Image) -> Result<Option<u32>, RuntimeError>;

    /// Prepares a program. Takes no cores.
    fn load(&self, image: &Arc<Image>, options: &LoadOptions)
    -> Result<Arc<dyn LoadedProgram>, RuntimeError>;
}

/// A program on a device.
pub trait LoadedProgram: Debug + Send + Sync {
    /// Takes the program's cores, where the device counts for itself.
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError>;
}

/// A program that holds cores.
pub trait Activation: Debug + Send + Sync {
    /// An exec for one inference at a time.
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError>;

    /// Returns whether an output is the value of an input with only some rows changed, which
    /// [`Exec::write_state`] writes over it: the two need one buffer only. The method has no default: an
    /// activation that wraps another and forgot it would copy each state whole, with the same results.
    fn updates_state(&self, output: usize) -> bool;
}

/// The tensors of an execution on host memory, by binding; `None` for those that the graph has not: optimized away, or
/// statistics.
#[derive(Debug)]
pub struct HostTensors<'list, 'memory> {
    /// Inputs in host memory.
    pub inputs: &'list [Option<HostSlice<'memory>>],
    /// Outputs in host memory.
    pub outputs: &'list mut [Option<HostSliceMut<'memory>>],
}

impl HostTensors<'_, '_> {
    /// Those of a device with DMA buffers.
    pub fn none() -> Self {
        Self { inputs: &[], outputs: &mut [] }
    }
}

/// An empty list in the allocation of another, for views that live otherwise.
pub(crate) fn emptied<'a>(mut list: Vec<Option<HostSlice<'_>>>) -> Vec<Option<HostSlice<'a>>> {
    list.clear();
    list.into_iter().map(|_| None).collect()
}

/// As [`emptied`].
pub(crate) fn emptied_mut<'a>(mut list: Vec<Option<HostSliceMut<'_>>>) -> Vec<Option<HostSliceMut<'a>>> {
    list.clear();
    list.into_iter().map(|_| None).collect()
}

/// Carries one inference at a time.
pub trait Exec: Debug + Send {
    /// Host view of a DMA buffer. Zeroed when it is new; it keeps its content between inferences. A device that works in
    /// place has none.
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut<'_>, RuntimeError>;

    /// Returns whether the device works on tensors in place, in the host's memory. Then
    /// [`Exec::execute_in_place`] replaces [`Exec::submit`] and [`Exec::execute`].
    fn works_in_place(&self) -> bool {
        false
    }

    /// Runs one inference from and to the host's memory.
    ///
    /// Blocking: as [`Exec::execute`].
    fn execute_in_place(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        let _ = tensors;
        Err(ErrorDetail::Internal { what: "an execution in place on a device with DMA buffers".to_owned() }
            .into())
    }

    /// Writes what the last execution in place computed of an output that [`Activation::updates_state`] names, and that was
    /// given no memory, over the value that its input had.
    fn write_state(&mut self, output: usize, state: HostSliceMut<'_>) -> Result<(), RuntimeError> {
        let _ = state;
        Err(ErrorDetail::Internal { what: format!("output {output} is not written row by row") }.into())
    }

    /// Picks the shapes of the executions that follow: an entry of `allowed_shapes`, 0 in a program without. A new exec
    /// has the shapes of entry 0.
    fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        let _ = variant;
        Ok(())
    }

    /// Has the device move DMA buffer `index` to or from `memory` from the next inference on, in place of what
    /// [`Exec::dma_buffer`] shows; `None` undoes that. The memory has the size of the buffer. Saying the same again costs
    /// nothing.
    ///
    /// Blocking: as long as the device takes to map the memory. A refusal leaves the buffer as it was.
    fn bind_dma_buf(&mut self, index: usize, memory: Option<&Arc<DmaBuf>>) -> Result<(), RuntimeError> {
        match memory {
            None => Ok(()),
            Some(_) => Err(ErrorDetail::Device(DeviceError::Unsupported {
                what: format!(
                    "DMA buffer {index} lies in memory of this device's host; it takes no descriptor"
                ),
            })
            .into()),
        }
    }

    /// Sets the identity of the next measured execution, where the device records it itself. Called before
    /// [`Self::measure`].
    fn identify(&mut self, identity: Identity) {
        let _ = identity;
    }

    /// Announces that the next execution is to be measured. Everything is staged, or in `tensors`; a device may run the
    /// inference without measuring it first, to know what measuring costs.
    ///
    /// Blocking: as [`Self::execute`].
    fn measure(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        let _ = tensors;
        Ok(())
    }

    /// Writes down what was measured of the execution that has just ended well, and shows the buffer of the statistics.
    /// Called when the outputs are where the caller wants them.
    ///
    /// Blocking: as long as the statistics take to write. Fails where the buffer could not be had.
    fn write_stats(&mut self, stages: &Stages, identity: Identity) -> Result<HostSlice<'_>, RuntimeError>;

    /// Waits until the device has let go of the DMA buffers. Called before they are touched again after an `execute` that
    /// failed.
    ///
    /// Blocking: as [`Self::execute_interruptibly`], and ended early in the same ways; it may then be called again.
    fn reclaim(&mut self, check: CancellationCheck<'_>) -> Result<(), RuntimeError> {
        let _ = check;
        Ok(())
    }

    /// Sets, before each submission of a program with partial inputs, how many bytes of each DMA buffer are in use: those
    /// that partial inputs were packed into; 0 means all.
    fn set_transfer_bytes(&mut self, bytes: &[u32]) {
        let _ = bytes;
    }

    /// Hands the inference over; [`Self::execute`] then waits for its end. Everything is bound, staged and announced. A
    /// device that computes on the calling thread does nothing here. Where the device's queue is full, it may be left to
    /// `execute` to hand it over. After an error the buffers are the host's, and `execute` is not called.
    ///
    /// Does not wait for the inference. Blocking: where the device is not done with what the inference before left behind
    /// its outputs, a few seconds at most.
    fn submit(&mut self) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Runs one inference, or waits for the one that was submitted.
    fn execute(&mut self) -> Result<(), RuntimeError>;

    /// [`Self::execute`] for a caller that has to answer signals: a device that waits asks `check` a few times a
    /// second, and ends with [`ErrorDetail::Interrupted`] once that says so. The inference then goes on, and the next
    /// `execute` waits for it. A device whose executions end by themselves need not ask.
    fn execute_interruptibly(&mut self, check: CancellationCheck<'_>) -> Result<(), RuntimeError> {
        let _ = check;
        self.execute()
    }

    /// The handle that ends an execution early.
    fn canceller(&self) -> Arc<dyn Canceller>;
}
