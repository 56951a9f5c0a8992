//! Emulated cards behind the same system calls as those of silicon: the driver's rules, the firmware's resource tables and
//! the data path of a card, without hardware.
//!
//! `EmuKmd` is a kernel with such cards ([`qaic_kmd::kmd::Kmd`]). It borrows the memory of each call ([`Ioctl`]) and owns
//! all other memory itself, so it needs no unsafe code. A `workload::Workload`, which a crate with an engine plugs in, does the
//! work of the cores. `firmware::Firmware` and `data_path` are a card without a driver: `tests/kernel/pci_card` puts them on
//! a PCI bus.
//!
//! [`fault`] is the language of what goes wrong, for these cards and for other test devices; without the feature `cards`
//! there is nothing else here.
//!
//! [`Ioctl`]: qaic_kmd::ioctl::Ioctl
#![forbid(unsafe_code)]

#[cfg(feature = "cards")]
mod card;
#[cfg(feature = "cards")]
mod control;
#[cfg(feature = "cards")]
pub mod data_path;
#[cfg(feature = "cards")]
mod events;
pub mod fault;
#[cfg(feature = "cards")]
mod file;
#[cfg(feature = "cards")]
pub mod firmware;
#[cfg(feature = "cards")]
mod kernel;
#[cfg(feature = "cards")]
mod manage;
#[cfg(feature = "cards")]
mod options;
#[cfg(feature = "cards")]
mod resources;
#[cfg(feature = "cards")]
pub mod workload;

#[cfg(feature = "cards")]
pub use control::Control;
pub use fault::{FaultPlan, FaultPlanError};
#[cfg(feature = "cards")]
pub use kernel::EmuKmd;
#[cfg(feature = "cards")]
pub use options::{EmuClock, EmuOptions, ExecutionMode, Profile};
