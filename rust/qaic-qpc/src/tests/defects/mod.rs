//! One test per defect that is refused: what the format asks a reader to check, and descriptors, ELF files and
//! metadata that would hurt a reader that trusts them.

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
