//! Emulated cards with the same system calls as real ones: the driver's rules, the firmware's resource tables and the
//! data path of a card, without hardware.
//!
//! `EmuKmd` is a kernel with emulated cards ([`qaic_kmd::Kmd`]). It borrows the memory of each call ([`Ioctl`])
//! and owns all other memory, so it needs no unsafe code. A crate with an engine provides a `Workload`, which does
//! the work of the cores. `Firmware` and `Channel` form a card without a driver: `tests/kernel/pci_card` adds them to
//! a PCI bus.
//!
//! [`fault`] defines the language of faults, for these cards and for other test devices.
//!
//! [`Ioctl`]: qaic_kmd::Ioctl
#![forbid(unsafe_code)]

// Unit tests and integration tests refer to the crate by the same name.
#[cfg(test)]
extern crate self as qaic_emu;

mod card;
mod control;
mod data_path;
mod events;
pub mod fault;
mod file;
mod firmware;
mod kernel;
mod manage;
mod options;
mod resources;
#[cfg(test)]
mod tests;
mod workload;

pub use fault::{FaultPlan, FaultPlanError};
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
