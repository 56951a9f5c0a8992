//! Program container (QPC) of Cloud AI 100: container, network descriptor, metadata and `IoDesc`.
//!
//! All functions work on byte slices; this crate opens no files except to write containers. Parsed results own small
//! data and contain ranges of the parsed bytes, so payloads are never copied or read.
//!
//! Hostile input is the normal case: every offset is checked, every allocation is charged to [`limits::Limits`], and
//! lints forbid plain indexing, casts and arithmetic.
//!
//! ```
//! use qaic_qpc::{Container, Limits, NetworkDesc, writer};
//!
//! let network = NetworkDesc { network_name: "tiny".into(), ..NetworkDesc::default() };
//! let descriptor = network.encode();
//! let segments = [writer::SegmentData { name: "networkdesc.bin", offset: 0, payload: &descriptor }];
//! let bytes = writer::build_in_memory(&segments, 64)?;
//!
//! let limits = Limits::default();
//! let container = Container::parse(&bytes, &limits)?;
//! let payload = container.required("networkdesc.bin")?.payload(&bytes);
//! assert_eq!(NetworkDesc::decode(payload, &limits)?.network_name, "tiny");
//! # Ok::<(), qaic_qpc::QpcError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::cast_possible_truncation
    )
)]

// The tests use the crate by its name.
#[cfg(test)]
extern crate self as qaic_qpc;

mod bytes;
mod chunked_file;
mod constants;
mod container;
mod crc;
mod dtype;
pub mod elf;
mod error;
mod file_writer;
pub mod hardware;
mod io_desc;
mod limits;
mod mappings;
pub mod metadata;
mod network_desc;
pub mod plan;
mod program_info;
mod shape;
#[cfg(test)]
mod tests;
pub mod transform;
mod validate;
pub mod wire;
pub mod writer;

pub use constants::{ConstantsDesc, DESCRIPTOR_BYTES};
pub use container::{Container, Header, MAGIC, Segment, Warning, names};
pub use crc::{Crc32, CrcSegment, crc32, verify_checksums};
pub use dtype::ElementType;
pub use error::{ErrorReport, Figure, NameDefect, QpcError, StepDefect, WireDefect, counted};
pub use file_writer::{FileWriter, FileWriterError};
pub use io_desc::IoDesc;
pub use limits::Limits;
pub use mappings::{dma_mappings, user_mappings};
pub use network_desc::*;
pub use program_info::{ProgramInfo, QpcInfo};
pub use validate::{Finding, Severity, validate};
