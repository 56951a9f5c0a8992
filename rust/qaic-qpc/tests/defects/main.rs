//! One test per defect that is refused: what the format asks a reader to check, and descriptors, ELF files and
//! metadata that would hurt a reader that trusts them.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod container;
mod hostile_files;
mod messages;
mod program;
mod sample;
mod sequences;
mod validation;

use qaic_qpc::QpcError;

fn code(error: &QpcError) -> &'static str {
    error.code()
}
