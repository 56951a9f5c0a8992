//! The kernel interface of Cloud AI 100 cards.
//!
//! Higher layers use two traits at the system-call boundary, [`Kmd`] and [`AccelFile`]. The same code
//! therefore drives a card, an emulated card, and a recording of either. [`Ioctl`] defines the calls as values, and
//! [`abi`] defines their bytes. If the open runtime and the upstream kernel disagree, this crate follows the kernel.
#![deny(unsafe_code)]

pub mod abi;
mod clock;
#[cfg(feature = "sys")]
#[allow(unsafe_code)] // the system calls themselves
mod driver;
mod ioctl;
mod kmd;
mod manage;
pub mod protocol;
mod transcript;
mod uevent;
pub mod wire;

pub use clock::{Clock, EventCounter, Listener, SystemClock, VirtualClock};
#[cfg(feature = "sys")]
pub use driver::SysKmd;
pub use ioctl::{DriverInterface, Ioctl, VersionQuery};
pub use kmd::{
    AccelFile, DbcState, Event, EventKind, EventSource, Kmd, MemoryErrors, NodeInfo, PciAddress, PciInfo,
    Readiness, Telemetry,
};
pub use manage::ManageBuffer;
pub use rustix::io::Errno;
pub use transcript::Recording;
