//! Metadata of `network.elf`: what the device has to set up for a program.
//!
//! Three encodings exist: a `FlatBuffer`, the same behind an 8-byte terminator, and a legacy struct. All become one
//! owned [`Metadata`]. No generated code: the schema is a table of forty fields, and hostile bytes need checked reads
//! with a budget, which a verifier alone does not give (tables may be shared and thus multiply).

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
