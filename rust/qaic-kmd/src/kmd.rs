//! The seam at the system-call boundary: [`Kmd`] is a kernel with cards, [`AccelFile`] an open card.
//!
//! Behind it are the running kernel, an emulated driver, or a recording. The code above makes the
//! same calls ([`Ioctl`]). Errors are what the calls of a kernel answer, [`Errno`].

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Errno;
use crate::clock::Clock;
use crate::ioctl::Ioctl;
use qaic_mem::Mapping;

/// A kernel and the cards it has.
pub trait Kmd: Debug + Send + Sync {
    /// Its name, for messages: `sys`, `emu`.
    fn name(&self) -> &'static str;

    /// Cards and the devices derived from them, in the order of their numbers.
    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno>;

    /// Opens a card. Each open file is a user of its own to the driver: what one activated is invisible to others, and
    /// closing it frees everything it had on the card.
    fn open(&self, node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno>;

    /// Returns the source of the events of cards from now on.
    fn events(&self) -> Result<Box<dyn EventSource>, Errno>;

    /// Temperature and power of a card; what cannot be read is `None`.
    fn telemetry(&self, node: &NodeInfo) -> Telemetry;

    /// Resets a card with everything that is on it.
    fn reset(&self, node: &NodeInfo) -> Result<(), Errno>;

    /// The time that its waits and time limits go by.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Memory errors of a card, counted by the driver; what cannot be read is `None`.
    fn memory_errors(&self, _node: &NodeInfo) -> MemoryErrors {
        MemoryErrors::default()
    }

    /// For messages: why opening or resetting this card answered `errno`, and what to do: sentences without a full stop at
    /// the end. `None`: nothing to add to the error itself.
    fn explain(&self, _node: &NodeInfo, _errno: Errno) -> Option<String> {
        None
    }
}

/// An open card.
pub trait AccelFile: Debug + Send + Sync {
    /// One system call. Does not try again, whatever it answers.
    ///
    /// Blocking: where the call does ([`crate::calls`] says which).
    fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno>;

    /// Maps a buffer object, shared, for reading and writing; `offset` is what [`Ioctl::MmapBo`] answered.
    /// The mapping outlives the handle and the file.
    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno>;

    /// For messages: why a call answered `errno`. `None`: nothing to add to the error itself.
    fn explain(&self, _errno: Errno) -> Option<String> {
        None
    }
}

/// A card as the system lists it, whether or not it can be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number; 100 and more for devices derived from a card.
    pub qid: u32,
    /// `/dev/accel/accel<N>`; `None` while the card has none.
    pub path: Option<PathBuf>,
    /// Place on the bus; zeros for a derived device.
    pub address: PciAddress,
    /// Ids, names and link; `None` for a derived device.
    pub pci: Option<PciInfo>,
}

/// Place on the PCI bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PciAddress {
    /// Domain.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl std::fmt::Display for PciAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Facts of the PCI bus about a card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciInfo {
    /// Vendor id.
    pub vendor_id: u16,
    /// Device id.
    pub device_id: u16,
    /// Name of the class.
    pub class_name: String,
    /// Name of the vendor.
    pub vendor_name: String,
    /// Name of the device.
    pub device_name: String,
    /// Code of the highest link speed: 1 to 6 are 2.5, 5, 8, 16, 32, 64 GT/s; 0 unknown.
    pub max_link_speed: u32,
    /// Lanes at most.
    pub max_link_width: u32,
    /// Code of the present link speed.
    pub current_link_speed: u32,
    /// Lanes in use.
    pub current_link_width: u32,
    /// Address of BAR 2.
    pub bar2_address: u64,
    /// Address of BAR 4.
    pub bar4_address: u64,
}

/// Temperature and power; only the vendor's driver has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telemetry {
    /// Temperature of the chip, in thousandths of a degree Celsius.
    pub soc_temperature_millicelsius: Option<i64>,
    /// Power of the board.
    pub board_power_microwatts: Option<u64>,
    /// Power that it is allowed.
    pub tdp_cap_microwatts: Option<u64>,
}

/// Memory errors that a card has reported since the driver took it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryErrors {
    /// Corrected.
    pub correctable: Option<u64>,
    /// Not corrected; the kernel resets the card at each.
    pub uncorrectable: Option<u64>,
    /// Not corrected, and without harm.
    pub uncorrectable_nonfatal: Option<u64>,
}

/// States of a DMA-bridge channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum DbcState {
    /// Free.
    Idle = 0,
    /// An activation owns it.
    Assigned = 1,
    /// Its cores failed; what was queued is lost.
    BeforeShutdown = 2,
    /// Its cores are in reset.
    AfterShutdown = 3,
    /// They are about to start again.
    BeforePowerUp = 4,
    /// They have started.
    AfterPowerUp = 5,
}

impl DbcState {
    /// The state that the kernel writes as `number`.
    pub const fn from_number(number: u32) -> Option<Self> {
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
    /// It can be used.
    Online,
    /// It is being reset.
    Offline,
    /// It appeared; on old kernels that means online.
    Added,
    /// It went away; on old kernels that means offline.
    Removed,
    /// A channel has another state.
    Channel {
        /// Which.
        dbc_id: u32,
        /// The state.
        state: DbcState,
    },
}

/// An event and the card that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Node name, as `accel0`.
    pub node: String,
    /// The event.
    pub kind: EventKind,
}

/// Events in the order in which they happened.
pub trait EventSource: Debug + Send {
    /// The next event; `None` when none came in time. `ENOBUFS`: some were lost because they were not fetched soon enough;
    /// what the cards are like must be asked again.
    ///
    /// Blocking: up to `limit`.
    fn next(&mut self, limit: Duration) -> Result<Option<Event>, Errno>;

    /// Returns a handle that waits for events without fetching them, also from other threads.
    fn readiness(&self) -> Arc<dyn Readiness>;
}

/// Becomes ready when there may be an event, and leaves the event to be fetched.
pub trait Readiness: Debug + Send + Sync {
    /// Waits until there may be an event. It may return early.
    ///
    /// Blocking: up to `limit`; without one, until there may be an event or [`Self::wake`] is called.
    fn wait(&self, limit: Option<Duration>);

    /// Ends one wait: that of now, or the next one.
    fn wake(&self);
}
