//! The open layout OQSTATS: self-describing, with fixed capacity. Its records are those of the model.

mod directory;
mod encode;
mod header;

use crate::decode::descriptor::Fingerprint;
use crate::decode::layout::{DecodeOptions, ProgramOperations};
use crate::decode::record::Kind;
use crate::error::StatsError;
use crate::model::StatsModel;

pub use encode::{capacity_bytes, encode, encode_to_vec};
pub use header::{Header, MAGIC};

/// Name of the layout.
pub(crate) const NAME: &str = "oqstats";

/// Decodes a buffer in the open layout, and does the checks of the layout. Never reads outside of `bytes`.
///
/// # Errors
///
/// The first defect.
pub fn decode<'a>(
    bytes: &'a [u8],
    program: Option<&ProgramOperations>,
    options: DecodeOptions,
) -> Result<StatsModel<'a>, StatsError> {
    let header = Header::read(bytes)?;
    let entries = directory::read(bytes, &header)?;
    let mut model = StatsModel::new(header.run);
    if header::length(bytes) > header.buffer_bytes {
        model.warnings.push(format!(
            "the file has {} bytes, but the buffer in it has {}: the rest is not read",
            bytes.len(),
            header.buffer_bytes
        ));
    }
    for entry in &entries {
        let records = entry.records(bytes);
        if options.records && entry.crc != 0 {
            let computed = crc32fast::hash(records);
            if computed != entry.crc {
                return Err(StatsError::SectionCrc { section: entry.kind, stored: entry.crc, computed });
            }
        }
        if let Some(kind) = Kind::from_code(entry.kind) {
            model.set(kind, records, usize::try_from(entry.record_bytes).unwrap_or(usize::MAX));
        }
    }
    if options.records {
        reserved_entries(&entries, &mut model.warnings);
    }
    if let Some(program) = program
        && !options.any_program
        && program.fingerprint != header.fingerprint
    {
        return Err(StatsError::OtherProgram { found: header.fingerprint, expected: program.fingerprint });
    }
    Ok(model)
}

/// Returns the fingerprint of the descriptor that a buffer was written for.
///
/// # Errors
///
/// The header is invalid.
pub fn fingerprint_of(bytes: &[u8]) -> Result<Fingerprint, StatsError> {
    Header::read(bytes).map(|header| header.fingerprint)
}

fn reserved_entries(entries: &[directory::DirectoryEntry], warnings: &mut Vec<String>) {
    let odd = entries.iter().filter(|entry| entry.flags != 0).count();
    if odd != 0 {
        warnings.push(format!("{odd} entries of the section directory have unknown flags"));
    }
}
