//! The CRC segments: their list, the data that each covers, and the check.

use crate::bytes::{to_u64, u32_at};
use crate::container::{Container, names};
use crate::elf;
use crate::error::QpcError;

/// A running CRC-32 (the one of zlib).
#[derive(Clone, Debug, Default)]
pub struct Crc32(crc32fast::Hasher);

impl Crc32 {
    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Appends the bytes of another CRC.
    pub(crate) fn append(&mut self, other: &Self) {
        self.0.combine(&other.0);
    }

    /// Appends `count` zero bytes in time logarithmic in `count`, because `count` may come from a hostile file.
    pub(crate) fn update_zeros(&mut self, count: u64) {
        let mut block = Self::default();
        block.update(&[0]);
        let mut left = count;
        while left != 0 {
            if left & 1 == 1 {
                self.append(&block);
            }
            left >>= 1;
            let twin = block.clone();
            block.append(&twin);
        }
    }

    /// The CRC of all bytes appended so far.
    pub fn value(&self) -> u32 {
        self.0.clone().finalize()
    }
}

/// CRC-32 of `bytes`.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// A segment that contains the CRC of other data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrcSegment {
    /// Segment `constants.bin.crc`: the payload of `constants.bin`.
    Constants,
    /// Segment `metadata.crc`: ELF section `metadata`.
    Metadata,
    /// Segment `metadata_fb.crc`: ELF section `metadata_fb`.
    MetadataFb,
    /// Segment `network.elf.crc`: the loadable segments of `network.elf` as they are in memory.
    NetworkElf,
}

impl CrcSegment {
    /// All CRC segments.
    pub const ALL: [Self; 4] = [Self::Constants, Self::Metadata, Self::MetadataFb, Self::NetworkElf];

    /// The segment's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Constants => "constants.bin.crc",
            Self::Metadata => "metadata.crc",
            Self::MetadataFb => "metadata_fb.crc",
            Self::NetworkElf => "network.elf.crc",
        }
    }

    /// Computes the CRC of the data that this segment covers; `None` if the container does not have the data.
    pub fn compute(self, container: &Container, bytes: &[u8]) -> Result<Option<u32>, QpcError> {
        let payload = |name| container.segment(name).map(|segment| segment.payload(bytes));
        let section = |name| -> Result<Option<u32>, QpcError> {
            let Some(file) = payload(names::NETWORK_ELF) else { return Ok(None) };
            Ok(elf::section(file, name)?.and_then(|range| file.get(range)).map(crc32))
        };
        match self {
            Self::Constants => Ok(payload(names::CONSTANTS).map(crc32)),
            Self::Metadata => section(elf::METADATA_SECTION),
            Self::MetadataFb => section(elf::METADATA_FB_SECTION),
            Self::NetworkElf => payload(names::NETWORK_ELF).map(elf::load_image_crc).transpose(),
        }
    }

    /// The CRC stored in a container; `None` if the segment does not exist.
    pub fn stored(self, container: &Container, bytes: &[u8]) -> Result<Option<u32>, QpcError> {
        let Some(segment) = container.segment(self.name()) else { return Ok(None) };
        let stored = u32_at(segment.payload(bytes), 0).ok_or_else(|| QpcError::SegmentTooShort {
            segment: segment.name.clone(),
            needed: 4,
            found: segment.size(),
        })?;
        Ok(Some(stored))
    }
}

/// Compares the payload of every segment with its CRC in segment `openqaic.crc`. Does nothing for a container without
/// that segment. `name` is the name of the container in errors.
///
/// Blocking: reads every byte.
pub fn verify_checksums(container: &Container, bytes: &[u8], name: &str) -> Result<(), QpcError> {
    let Some(sums) = container.segment(names::CHECKSUMS) else { return Ok(()) };
    let stored = sums.payload(bytes).as_chunks::<4>();
    let others = container.segments.iter().filter(|segment| segment.name != names::CHECKSUMS);
    let count = others.clone().count();
    if stored.0.len() != count || !stored.1.is_empty() {
        return Err(QpcError::SegmentTooShort {
            segment: names::CHECKSUMS.to_owned(),
            needed: to_u64(count).saturating_mul(4),
            found: sums.size(),
        });
    }
    for (segment, stored) in others.zip(stored.0) {
        let (stored, computed) = (u32::from_le_bytes(*stored), crc32(segment.payload(bytes)));
        if stored != computed {
            let (segment, container) = (segment.name.clone(), name.to_owned());
            return Err(QpcError::CrcMismatch { segment, container, stored, computed });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_count_as_bytes() {
        for count in [0_usize, 1, 2, 3, 7, 64, 1000, 65_537] {
            let mut fast = Crc32::default();
            fast.update(b"head");
            fast.update_zeros(count.try_into().unwrap());
            fast.update(b"tail");
            let mut plain = b"head".to_vec();
            plain.resize(4 + count, 0);
            plain.extend(b"tail");
            assert_eq!(fast.value(), crc32(&plain), "{count}");
        }
    }

    #[test]
    fn crc_is_the_common_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
