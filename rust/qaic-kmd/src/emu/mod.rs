//! An emulated driver with emulated cards: the driver's rules, the firmware's books and the data path of a card, without
//! hardware (device-kmd §7.2).
#![allow(dead_code)] // until the driver uses all of it

pub(crate) mod channel;
mod device_memory;
pub mod faults;
pub mod firmware;
pub(crate) mod ledger;
mod options;
mod pages;
mod semaphores;
pub mod workload;

pub use faults::{FaultPlan, FaultPlanError};
pub use options::{EmuClock, EmuOptions, Pace, Profile};
