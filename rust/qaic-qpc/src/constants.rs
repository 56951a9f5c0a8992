//! Constants: their descriptor, and the two parts of `constants.bin`.

use serde::{Deserialize, Serialize};

use crate::bytes::{to_u64, u8_at, u64_at};
use crate::container::names;
use crate::error::QpcError;

/// Bytes of the descriptor.
pub const DESCRIPTOR_BYTES: u64 = 24;

/// Contents of `constantsdesc.bin`: the sizes of the device memory for the constants.
///
/// The sizes may exceed those of the payload, because a compiler rounds them up, but are never smaller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ConstantsDesc {
    /// Bytes reserved for the static part.
    pub static_constants_size: u64,
    /// Bytes reserved for the dynamic part.
    pub dynamic_constants_size: u64,
    /// 1 if the static part's memory is error-corrected (0 or 1 in known files).
    #[serde(rename = "staticConstantsECCEnabled")]
    pub static_ecc: u8,
    /// 1 if the dynamic part's memory is error-corrected (0 or 1 in known files).
    #[serde(rename = "dynamicConstantsECCEnabled")]
    pub dynamic_ecc: u8,
}

impl ConstantsDesc {
    /// Decodes the segment; bytes after the descriptor are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, QpcError> {
        if to_u64(bytes.len()) < DESCRIPTOR_BYTES {
            return Err(QpcError::SegmentTooShort {
                segment: names::CONSTANTS_DESC.to_owned(),
                needed: DESCRIPTOR_BYTES,
                found: to_u64(bytes.len()),
            });
        }
        Ok(Self {
            static_constants_size: u64_at(bytes, 0).unwrap_or_default(),
            dynamic_constants_size: u64_at(bytes, 8).unwrap_or_default(),
            static_ecc: u8_at(bytes, 16).unwrap_or_default(),
            dynamic_ecc: u8_at(bytes, 17).unwrap_or_default(),
        })
    }

    /// Encodes the segment.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        out.extend(self.static_constants_size.to_le_bytes());
        out.extend(self.dynamic_constants_size.to_le_bytes());
        out.extend([self.static_ecc, self.dynamic_ecc]);
        out.resize(24, 0);
        out
    }
}

/// Sizes of the two parts of `constants.bin`; the static part is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConstantsSplit {
    /// Bytes of the static part.
    pub static_size: u64,
    /// Bytes of the dynamic part.
    pub dynamic_size: u64,
}

/// Computes the two parts from the payload size and the entry's `offset` field. The dynamic part begins at `offset`:
/// 0 makes all constants dynamic, and `size` makes all static.
pub(crate) const fn split(size: u64, offset: u64) -> Result<ConstantsSplit, QpcError> {
    match size.checked_sub(offset) {
        Some(dynamic_size) => Ok(ConstantsSplit { static_size: offset, dynamic_size }),
        None => Err(QpcError::ConstantsOffset { offset, size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_follows_the_table() {
        for (size, offset, expected) in [
            (256, 96, Ok((96, 160))),
            (256, 256, Ok((256, 0))),
            (256, 0, Ok((0, 256))),
            (0, 0, Ok((0, 0))),
            (5, 6, Err(QpcError::ConstantsOffset { offset: 6, size: 5 })),
        ] {
            let found = split(size, offset).map(|parts| (parts.static_size, parts.dynamic_size));
            assert_eq!(found, expected);
        }
    }
}
