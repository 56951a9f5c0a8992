//! Location of the metadata in `network.elf`: the section, and which of the three encodings it has.

use super::legacy;
use super::types::Metadata;
use serde::Serialize;

use crate::bytes::{to_u64, u16_at};
use crate::elf;
use crate::error::QpcError;
use crate::limits::Limits;

/// Bytes a writer may put before the `FlatBuffer`: version 1.0 and four zeros.
const TERMINATOR_BYTES: usize = 8;

/// Encoding of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub enum Encoding {
    /// A `FlatBuffer`.
    #[serde(rename = "flatbuffer")]
    FlatBuffer,
    /// A `FlatBuffer` after the terminator.
    #[serde(rename = "terminated flatbuffer")]
    TerminatedFlatBuffer,
    /// The struct of early tools, which the open runtime itself cannot load.
    #[serde(rename = "legacy struct")]
    Legacy,
}

/// Metadata, its location and its encoding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocatedMetadata {
    /// ELF section.
    pub section: &'static str,
    /// Bytes of the section.
    pub section_size: u64,
    /// Encoding of the section.
    pub encoding: Encoding,
    /// The contents.
    #[serde(rename = "fields")]
    pub metadata: Metadata,
}

impl LocatedMetadata {
    /// Finds and decodes the metadata of `network.elf`: in section `metadata_fb` if it exists, otherwise in
    /// `metadata`.
    pub fn from_elf(file: &[u8], limits: &Limits) -> Result<Self, QpcError> {
        for section in [elf::METADATA_FB_SECTION, elf::METADATA_SECTION] {
            if let Some(range) = elf::section(file, section)? {
                let bytes = file.get(range).unwrap_or_default();
                let (encoding, metadata) = decode_section(bytes, limits)?;
                return Ok(Self { section, section_size: to_u64(bytes.len()), encoding, metadata });
            }
        }
        Err(QpcError::MetadataMissing)
    }
}

impl Metadata {
    /// Decodes the contents of a metadata section in any of the encodings.
    pub fn decode_section(bytes: &[u8], limits: &Limits) -> Result<Self, QpcError> {
        decode_section(bytes, limits).map(|(_, metadata)| metadata)
    }
}

/// Tries the encodings in the order of the reference. Only bytes that are not a `FlatBuffer` are tried as the next
/// encoding; a `FlatBuffer` of another version or beyond the limits is an error.
fn decode_section(bytes: &[u8], limits: &Limits) -> Result<(Encoding, Metadata), QpcError> {
    let first = match Metadata::decode_flatbuffer(bytes, limits) {
        Ok(metadata) => return Ok((Encoding::FlatBuffer, metadata)),
        Err(error @ QpcError::FlatBuffer { .. }) => error,
        Err(error) => return Err(error),
    };
    if bytes.len() <= TERMINATOR_BYTES || u16_at(bytes, 0) != Some(1) || u16_at(bytes, 2) != Some(0) {
        return Err(first);
    }
    match Metadata::decode_flatbuffer(bytes.get(TERMINATOR_BYTES..).unwrap_or_default(), limits) {
        Ok(metadata) => return Ok((Encoding::TerminatedFlatBuffer, metadata)),
        Err(QpcError::FlatBuffer { .. }) => {}
        Err(error) => return Err(error),
    }
    legacy::decode(bytes, limits).map(|metadata| (Encoding::Legacy, metadata))
}
