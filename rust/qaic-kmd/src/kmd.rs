//! The system-call interface: [`Kmd`] is a kernel with cards, and [`AccelFile`] is an open card.
//!
//! Implementations are the running kernel, an emulated driver, and a recording. The code above makes the same calls
//! ([`Ioctl`]) to all of them. Errors are those of a kernel's system calls, [`Errno`].

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Errno;
use crate::abi::{
    AttachSliceEntry, CreateBo, DetachSlice, ExecuteEntry, GemClose, MmapBo, PartialExecuteEntry,
    PerfStatsEntry, Wait,
};
use crate::clock::Clock;
use crate::ioctl::{DriverInterface, Ioctl, VersionQuery};
use crate::manage::ManageBuffer;
use qaic_mem::Mapping;

/// Name of the driver of the cards.
const DRIVER: &[u8] = b"qaic";

/// A kernel and its cards.
pub trait Kmd: Debug + Send + Sync {
    /// Name of the kernel for messages: `sys`, `emu`.
    fn name(&self) -> &'static str;

    /// Returns cards and the devices derived from them, ordered by number.
    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno>;

    /// Opens a card. The driver treats each open file as a separate user: its activations are invisible to others,
    /// and closing the file frees all its resources on the card.
    fn open(&self, node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno>;

    /// Returns the source of all later events of cards.
    fn events(&self) -> Result<Box<dyn EventSource>, Errno>;

    /// Reads temperature and power of a card; unavailable values are `None`.
    fn telemetry(&self, _node: &NodeInfo) -> Telemetry {
        Telemetry::default()
    }

    /// Resets a card with everything that is on it. Fails with `EOPNOTSUPP` if the driver does not support resets.
    fn reset(&self, _node: &NodeInfo) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the clock of the kernel's waits and time limits.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Reads memory errors of a card, counted by the driver; unavailable values are `None`.
    fn memory_errors(&self, _node: &NodeInfo) -> MemoryErrors {
        MemoryErrors::default()
    }

    /// Explains why opening or resetting this card failed with `errno`, and how to fix that: sentences without a
    /// final full stop. Returns `None` if there is nothing to add to the error.
    fn explain(&self, _node: &NodeInfo, _errno: Errno) -> Option<String> {
        None
    }
}

/// An open card.
///
/// No method repeats a system call. Methods that may block have a "Blocking" paragraph. Every call can fail with
/// `EINTR` while it blocks, with `ENODEV` if the card is offline or missing, and with `ENOMEM`.
pub trait AccelFile: Debug + Send + Sync {
    /// Makes one system call. Each method below makes one of these calls.
    ///
    /// Blocking: depends on the call.
    fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno>;

    /// Maps a buffer object, shared, for reading and writing; [`Ioctl::MmapBo`] returns the `offset`. The mapping
    /// outlives the handle and the file.
    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno>;

    /// Explains why a call failed with `errno`. Returns `None` if there is nothing to add to the error.
    fn explain(&self, _errno: Errno) -> Option<String> {
        None
    }

    /// Sends a control message to the firmware and replaces it with the reply. If the device refuses an activation,
    /// deactivation or status query, the error is `ECANCELED` and the reply is still available. After other errors the
    /// message is unchanged. Fails with `EINVAL` for a message that is already a reply.
    ///
    /// Blocking: until the firmware replies, at most a minute.
    fn manage(&self, message: &mut ManageBuffer<'_>) -> Result<(), Errno> {
        if message.is_reply() {
            return Err(Errno::INVAL);
        }
        self.ioctl(&mut Ioctl::Manage(message))
    }

    /// Creates a zeroed buffer object of `size` bytes, rounded up to pages, and returns its handle. Fails with `EINVAL`
    /// for zero bytes.
    fn create_bo(&self, size: u64) -> Result<u32, Errno> {
        let mut arg = CreateBo { size, ..CreateBo::default() };
        self.ioctl(&mut Ioctl::CreateBo(&mut arg))?;
        Ok(arg.handle)
    }

    /// Returns the offset at which to map a buffer object. Fails with `ENOENT` for an unknown handle.
    fn mmap_offset(&self, handle: u32) -> Result<u64, Errno> {
        let mut arg = MmapBo { handle, ..MmapBo::default() };
        self.ioctl(&mut Ioctl::MmapBo(&mut arg))?;
        Ok(arg.offset)
    }

    /// Sets the transfers of a buffer object of `size` bytes; can be called once. Fails with `ENOSPC` for more elements
    /// than a ring has, and with `EPIPE` if the channel is restarting.
    fn attach_slices(
        &self,
        dbc_id: u32,
        handle: u32,
        dir: u32,
        size: u64,
        entries: &[AttachSliceEntry],
    ) -> Result<(), Errno> {
        self.ioctl(&mut Ioctl::AttachSlices { dbc_id, handle, dir, size, entries })
    }

    /// Reverts [`Self::attach_slices`]. Fails with `EBUSY` if the buffer object is queued, and with `EINVAL` if nothing is
    /// attached.
    fn detach_slices(&self, handle: u32) -> Result<(), Errno> {
        self.ioctl(&mut Ioctl::DetachSlices(DetachSlice { handle, pad: 0 }))
    }

    /// Queues all buffer objects or none. Fails with `EAGAIN` if the ring is full, with `EPERM` if the channel does not
    /// belong to this file, and with `EPIPE` if the channel is restarting.
    fn execute(&self, dbc_id: u32, entries: &[ExecuteEntry]) -> Result<(), Errno> {
        self.ioctl(&mut Ioctl::Execute { dbc_id, entries })
    }

    /// Queues buffer objects as [`Self::execute`] does, but transfers only parts of them.
    fn partial_execute(&self, dbc_id: u32, entries: &[PartialExecuteEntry]) -> Result<(), Errno> {
        self.ioctl(&mut Ioctl::PartialExecute { dbc_id, entries })
    }

    /// Waits until a buffer object is idle; a buffer object that was never executed is idle. Fails with `ETIMEDOUT` after
    /// the timeout, with `EPERM` if a reset has ended the channel, and with `EPIPE` if a restart of its cores has.
    ///
    /// Blocking: up to `timeout_ms`; 0 is the kernel's default.
    fn wait(&self, dbc_id: u32, handle: u32, timeout_ms: u32) -> Result<(), Errno> {
        self.ioctl(&mut Ioctl::Wait(Wait { handle, timeout: timeout_ms, dbc_id, pad: 0 }))
    }

    /// Reads statistics of the last executions of the buffer objects in the entries.
    fn perf_stats(&self, dbc_id: u32, entries: &mut [PerfStatsEntry]) -> Result<(), Errno> {
        self.ioctl(&mut Ioctl::PerfStats { dbc_id, entries })
    }

    /// Closes a handle. Objects that the channel still references stay until it is released, so detach first.
    fn close_handle(&self, handle: u32) -> Result<(), Errno> {
        self.ioctl(&mut Ioctl::CloseHandle(GemClose { handle, pad: 0 }))
    }

    /// Creates a handle for a dma-buf, whose descriptor may be closed afterwards.
    fn import_dma_buf(&self, memory: BorrowedFd<'_>) -> Result<u32, Errno> {
        let mut handle = 0;
        self.ioctl(&mut Ioctl::ImportDmaBuf { file: memory, handle: &mut handle })?;
        Ok(handle)
    }

    /// Returns the driver of the file and its interface. A name is truncated to
    /// 64 bytes.
    fn driver_interface(&self) -> Result<DriverInterface, Errno> {
        let mut query = VersionQuery::default();
        self.ioctl(&mut Ioctl::Version(&mut query))?;
        Ok(match (query.name(), query.version.major, query.version.minor) {
            (DRIVER, 0, _) => DriverInterface::Mainline,
            (DRIVER, major, minor) => DriverInterface::Other { version: (major, minor) },
            (name, ..) => DriverInterface::OtherDriver(String::from_utf8_lossy(name).into_owned()),
        })
    }
}

/// A card as listed by the system, even if it cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Number of the card; at least 100 for devices derived from a card.
    pub qid: u32,
    /// Path `/dev/accel/accel<N>`; `None` while the card has no node.
    pub path: Option<PathBuf>,
    /// Bus address; zeros for a derived device.
    pub address: PciAddress,
    /// Ids, names and link; `None` for a derived device.
    pub pci: Option<PciInfo>,
}

/// Address on the PCI bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)] // names of the PCI bus
pub struct PciAddress {
    pub domain: u16,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

impl std::fmt::Display for PciAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Facts of the PCI bus about a card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // of fields whose names say what they are
pub struct PciInfo {
    pub vendor_id: u16,
    pub device_id: u16,
    pub class_name: String,
    pub vendor_name: String,
    pub device_name: String,
    /// Code of the highest link speed: 1 to 6 are 2.5, 5, 8, 16, 32, 64 GT/s; 0 unknown.
    pub max_link_speed: u32,
    /// Maximum number of lanes.
    pub max_link_width: u32,
    /// Code of the current link speed.
    pub current_link_speed: u32,
    /// Number of lanes in use.
    pub current_link_width: u32,
    pub bar2_address: u64,
    pub bar4_address: u64,
}

/// Temperature and power, which only the vendor's driver provides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telemetry {
    /// Temperature of the chip, in thousandths of a degree Celsius.
    pub soc_temperature_millicelsius: Option<i64>,
    /// Power of the board.
    pub board_power_microwatts: Option<u64>,
    /// Permitted power.
    pub tdp_cap_microwatts: Option<u64>,
}

/// Memory errors that a card has reported since the driver was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryErrors {
    /// Corrected errors.
    pub correctable: Option<u64>,
    /// Uncorrected errors; the kernel resets the card at each.
    pub uncorrectable: Option<u64>,
    /// Uncorrected errors without consequences.
    pub uncorrectable_nonfatal: Option<u64>,
}

/// States of a DMA-bridge channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum DbcState {
    /// The channel is free.
    Idle = 0,
    /// An activation owns the channel.
    Assigned = 1,
    /// The cores of the channel failed; queued inferences are lost.
    BeforeShutdown = 2,
    /// The cores are in reset.
    AfterShutdown = 3,
    /// The cores are about to restart.
    BeforePowerUp = 4,
    /// The cores have restarted.
    AfterPowerUp = 5,
}

impl DbcState {
    /// Returns the state for a number of the kernel.
    pub(crate) const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Idle,
            1 => Self::Assigned,
            2 => Self::BeforeShutdown,
            3 => Self::AfterShutdown,
            4 => Self::BeforePowerUp,
            5 => Self::AfterPowerUp,
            _ => return None,
        })
    }
}

/// An event of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// The card can be used.
    Online,
    /// The card is being reset.
    Offline,
    /// The card has appeared; with old kernels, this means online.
    Added,
    /// The card has disappeared; with old kernels, this means offline.
    Removed,
    /// A channel has changed its state.
    Channel {
        /// Number of the channel.
        dbc_id: u32,
        /// The state.
        state: DbcState,
    },
}

/// An event and its card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Name of the node, such as `accel0`.
    pub node: String,
    /// The event.
    pub kind: EventKind,
}

/// Events in the order in which they happened.
pub trait EventSource: Debug + Send {
    /// Returns the next event; `None` if none arrived in time. Fails with `ENOBUFS` if events were lost because they
    /// were not fetched soon enough; the state of the cards must then be queried again.
    ///
    /// Blocking: up to `limit`.
    fn next(&mut self, limit: Duration) -> Result<Option<Event>, Errno>;

    /// Returns a handle that waits for events without fetching them, also from other threads.
    fn readiness(&self) -> Arc<dyn Readiness>;
}

/// Handle that becomes ready when there may be an event, without fetching it.
pub trait Readiness: Debug + Send + Sync {
    /// Waits until there may be an event. The wait may end early.
    ///
    /// Blocking: up to `limit`; without one, until there may be an event or [`Self::wake`] is called.
    fn wait(&self, limit: Option<Duration>);

    /// Ends the current wait, or the next one.
    fn wake(&self);
}
