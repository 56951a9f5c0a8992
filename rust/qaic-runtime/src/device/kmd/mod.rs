//! Cards behind the kernel's driver, or behind anything that answers the same system calls.

mod facts;

pub use facts::{CardFacts, FirmwareFacts, PerformanceFacts, ResourceFacts};
