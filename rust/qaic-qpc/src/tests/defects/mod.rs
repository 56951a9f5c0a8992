//! One test for each refused defect: checks that the format requires of a reader, and descriptors, ELF files
//! and metadata that would harm a reader without checks.

mod container;
mod hostile_files;
mod messages;
mod program;
pub(super) mod sample;
mod sequences;
mod validation;

use qaic_qpc::QpcError;

fn code(error: &QpcError) -> &'static str {
    error.code()
}
