//! Metadata of `network.elf`: the device setup that a program requires.
//!
//! Three encodings exist: a `FlatBuffer`, the same after an 8-byte terminator, and a legacy struct. All of them are
//! decoded to one owned [`Metadata`]. The code is not generated: the schema is a table of forty fields. Hostile input
//! requires checked reads with a budget, which a verifier alone does not provide, because shared tables can multiply
//! the work.

mod flat_read;
mod flat_write;
mod legacy;
mod locate;
mod required;
mod schema;
mod table;
mod types;

pub use locate::{Encoding, LocatedMetadata};
pub(crate) use required::is_known_field;
pub use types::{
    ConstantMapping, DmaRequest, DoorbellOp, HostMulticastEntry, HostMulticastTable, Metadata,
    NetworkHeapBehavior, NonZeroRegion, NspMulticastEntry, NspMulticastTable, PortEntry, QnnConfig,
    SemaphoreOp, ThreadDescriptor,
};
