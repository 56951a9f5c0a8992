//! Cards behind the kernel's driver, or behind anything that answers the same system calls.

mod facts;
#[cfg(all(feature = "cpu", feature = "emu"))]
pub mod workload;

pub use facts::{CardFacts, FirmwareFacts, PerformanceFacts, ResourceFacts};
