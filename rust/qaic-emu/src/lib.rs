//! Emulated cards with the same system calls as real ones: the driver's rules, the firmware's resource tables and the
//! data path of a card, without hardware.
//!
//! `EmuKmd` is a kernel with emulated cards ([`qaic_kmd::Kmd`]). It borrows the memory of each call ([`Ioctl`])
//! and owns all other memory, so it needs no unsafe code. A crate with an engine provides a `Workload`, which does
//! the work of the cores. `Firmware` and `Channel` form a card without a driver: `tests/kernel/pci_card` adds them to
//! a PCI bus.
//!
//! [`fault`] defines the language of faults, for these cards and for other test devices. Without the feature `cards`,
//! the crate contains only this module.
//!
//! [`Ioctl`]: qaic_kmd::Ioctl
#![forbid(unsafe_code)]

// Unit tests and integration tests refer to the crate by the same name.
#[cfg(test)]
extern crate self as qaic_emu;

#[cfg(feature = "cards")]
mod card;
#[cfg(feature = "cards")]
mod control;
#[cfg(feature = "cards")]
mod data_path;
#[cfg(feature = "cards")]
mod events;
pub mod fault;
#[cfg(feature = "cards")]
mod file;
#[cfg(feature = "cards")]
mod firmware;
#[cfg(feature = "cards")]
mod kernel;
#[cfg(feature = "cards")]
mod manage;
#[cfg(feature = "cards")]
mod options;
#[cfg(feature = "cards")]
mod resources;
#[cfg(all(test, feature = "cards"))]
mod tests;
#[cfg(feature = "cards")]
mod workload;

pub use fault::{FaultPlan, FaultPlanError};
#[cfg(feature = "cards")]
pub use {
    control::Control,
    data_path::{Channel, Element, Pages, Step},
    firmware::{
        Firmware, FirmwareConfig, Performance, ResourceUsage, Totals, Transaction, TransactionReply,
        data_wanted,
    },
    kernel::EmuKmd,
    options::{EmuClock, EmuOptions, ExecutionMode, Profile},
    workload::{
        CoreView, DeviceMemory, Doorbell, Images, Loopback, MemoryFull, Progress, Requirements, Running,
        Semaphores, Workload,
    },
};
