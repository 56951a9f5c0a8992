//! An emulated driver with emulated cards: the driver's rules, the firmware's books and the data path of a card, without
//! hardware (device-kmd §7.2).

mod bo;
mod card;
pub(crate) mod channel;
mod control;
mod control_faults;
mod device_memory;
mod events;
pub mod faults;
mod file;
pub mod firmware;
mod kernel;
mod ledger;
mod manage;
mod options;
mod pages;
mod ring;
mod semaphores;
mod slices;
mod worker;
pub mod workload;

pub use control::Control;
pub use faults::{FaultPlan, FaultPlanError};
pub use kernel::EmuKmd;
pub use options::{EmuClock, EmuOptions, Pace, Profile};
