//! The container: header, segment table, names and the ranges of the payloads.
//!
//! Pointers in the file are addresses relative to a `base` that has no meaning for readers. This module converts them
//! once to ranges of the given bytes, and does every check of the format; no other module uses the pointers. Payloads
//! are never read, so the cost does not depend on their size.

use std::fmt;
use std::ops::Range;

use crate::bytes::{range_within, to_u64, u8_at, u16_at, u32_at, u64_at};
use crate::constants::{self, ConstantsSplit};
use crate::error::{NameDefect, QpcError};
use crate::limits::Limits;

/// First four bytes of a container, as a little-endian number.
pub const MAGIC: u32 = 0x00A1_CD7C;
/// The only supported compression type: no compression, and all data are inside the container.
pub(crate) const SLOWPATH: u16 = 1;
pub(crate) const HEADER_BYTES: u64 = 40;
/// Bytes of a segment table entry.
pub(crate) const ENTRY_BYTES: u64 = 32;

/// Segment names with a defined meaning.
pub mod names {
    /// Device program with the metadata sections.
    pub const NETWORK_ELF: &str = "network.elf";
    /// Network descriptor.
    pub const NETWORK_DESC: &str = "networkdesc.bin";
    /// Constants descriptor.
    pub const CONSTANTS_DESC: &str = "constantsdesc.bin";
    /// Constants; the only segment whose entry uses the offset field.
    pub const CONSTANTS: &str = "constants.bin";
    /// CRC-32 of all other segments, in the order of the table. Only in containers of this project, on request.
    pub(crate) const CHECKSUMS: &str = "openqaic.crc";
    /// Marker of a container with several inner containers, one per device.
    pub(crate) const MULTI_DEVICE: &str = "mdp_meta_info";
    /// Segments that a program needs to be opened.
    pub(crate) const REQUIRED: [&str; 3] = [CONSTANTS_DESC, NETWORK_DESC, NETWORK_ELF];
}

/// Fields of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Major version, 0 in all known files.
    pub major_version: u8,
    /// Minor version, 1 in all known files.
    pub minor_version: u8,
    /// Always 1.
    pub compression_type: u16,
    /// Bytes of the container.
    pub size: u64,
    /// Base address of the stored pointers.
    pub base: u64,
    /// Number of segments.
    pub num_images: u64,
    /// Position of the segment table.
    pub table_offset: u64,
}

/// One named payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Name, unique in its container.
    pub name: String,
    /// Stored offset field of the entry, which divides `constants.bin`: see [`Container::constants`].
    pub offset: u64,
    /// Position of the name.
    pub name_offset: u64,
    /// Range of the payload in the container's bytes.
    pub range: Range<usize>,
}

impl Segment {
    /// Number of bytes of the payload.
    pub fn size(&self) -> u64 {
        to_u64(self.range.len())
    }

    /// Returns the payload. `bytes` must be the bytes that the container was parsed from; otherwise the result is
    /// empty or contains other bytes.
    pub fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.range.clone()).unwrap_or_default()
    }
}

/// A property that is valid, but that no known writer produces.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The major version is not 0.
    Version {
        /// The major version.
        major: u8,
    },
    /// The segment table is not 8-byte aligned.
    TableAlignment {
        /// Position of the table.
        offset: u64,
    },
    /// An offset field without meaning is set; it is ignored.
    UnusedOffset {
        /// Segment name.
        segment: String,
        /// Value of the offset field.
        offset: u64,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { major } => write!(formatter, "version {major} is unknown; 0 is expected"),
            Self::TableAlignment { offset } => {
                write!(formatter, "the segment table at {offset} is not aligned to 8 bytes")
            }
            Self::UnusedOffset { segment, offset } => {
                write!(formatter, "segment {segment} has the offset {offset}; 0 is expected")
            }
        }
    }
}

/// A parsed container. Contains ranges, not bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The header.
    pub header: Header,
    /// Segments in table order.
    pub segments: Vec<Segment>,
    /// Unusual properties of the container.
    pub warnings: Vec<Warning>,
}

impl Container {
    /// Parses header and segment table, and checks everything that determines the position of data.
    ///
    /// Does not check which segments exist: see [`Container::require_program`].
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self, QpcError> {
        let header = parse_header(bytes)?;
        let mut warnings = Vec::new();
        if header.major_version != 0 {
            warnings.push(Warning::Version { major: header.major_version });
        }
        if header.table_offset % 8 != 0 {
            warnings.push(Warning::TableAlignment { offset: header.table_offset });
        }
        if header.num_images > limits.max_segments {
            return Err(QpcError::LimitExceeded { what: "segments", max: limits.max_segments });
        }
        let table = bytes.get(table_range(bytes, &header)?).unwrap_or_default();
        let entry_bytes = usize::try_from(ENTRY_BYTES).unwrap_or(usize::MAX);
        let mut segments = Vec::with_capacity(table.len() / 32);
        for (index, entry) in (0..).zip(table.chunks_exact(entry_bytes)) {
            segments.push(parse_segment(bytes, entry, index, &header, limits, &mut warnings)?);
        }
        check_unique(&segments)?;
        check_overlaps(&header, &segments)?;
        Ok(Self { header, segments, warnings })
    }

    /// Returns the segment with exactly this name.
    pub fn segment(&self, name: &str) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.name == name)
    }

    /// Returns the segment with exactly this name, or an error that contains the name.
    pub fn required(&self, name: &str) -> Result<&Segment, QpcError> {
        self.segment(name).ok_or_else(|| QpcError::MissingSegment { name: name.to_owned() })
    }

    /// Checks that all segments exist that a program requires.
    pub fn require_program(&self) -> Result<(), QpcError> {
        names::REQUIRED.iter().try_for_each(|name| self.required(name).map(drop))
    }

    /// Returns true if the container holds one inner container per device instead of a program.
    pub fn is_multi_device(&self) -> bool {
        self.segment(names::MULTI_DEVICE).is_some()
    }

    /// Static and dynamic part of `constants.bin` as ranges of the container's bytes; `None` if there is no such
    /// segment.
    pub fn constants(&self) -> Option<ConstantsRanges> {
        let segment = self.segment(names::CONSTANTS)?;
        // The parser has checked that the offset is within the payload.
        let ConstantsSplit { static_size, .. } = constants::split(segment.size(), segment.offset).ok()?;
        let start = segment.range.start;
        let middle = start.checked_add(usize::try_from(static_size).ok()?)?;
        Some(ConstantsRanges { static_part: start..middle, dynamic_part: middle..segment.range.end })
    }
}

/// Ranges of the two parts of the constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstantsRanges {
    /// Part that all activations share and that is never written.
    pub static_part: Range<usize>,
    /// Part that is loaded separately for every activation.
    pub dynamic_part: Range<usize>,
}

fn parse_header(bytes: &[u8]) -> Result<Header, QpcError> {
    let actual = to_u64(bytes.len());
    let short = || QpcError::TooShort { needed: HEADER_BYTES, found: actual };
    let magic = u32_at(bytes, 0).ok_or_else(short)?;
    if magic != MAGIC {
        return Err(QpcError::BadMagic { found: magic });
    }
    if actual < HEADER_BYTES {
        return Err(short());
    }
    let declared = u64_at(bytes, 8).ok_or_else(short)?;
    if declared != actual {
        return Err(QpcError::SizeMismatch { declared, actual });
    }
    let compression_type = u16_at(bytes, 6).ok_or_else(short)?;
    if compression_type != SLOWPATH {
        return Err(QpcError::CompressionType { found: compression_type });
    }
    let base = u64_at(bytes, 16).ok_or_else(short)?;
    let num_images = u64_at(bytes, 24).ok_or_else(short)?;
    let pointer = u64_at(bytes, 32).ok_or_else(short)?;
    let table_offset = pointer
        .checked_sub(base)
        .filter(|&rel| rel >= HEADER_BYTES && rel <= actual)
        .ok_or(QpcError::TableOutOfBounds { pointer, base, count: num_images, size: actual })?;
    Ok(Header {
        major_version: u8_at(bytes, 4).ok_or_else(short)?,
        minor_version: u8_at(bytes, 5).ok_or_else(short)?,
        compression_type,
        size: declared,
        base,
        num_images,
        table_offset,
    })
}

fn table_range(bytes: &[u8], header: &Header) -> Result<Range<usize>, QpcError> {
    header
        .num_images
        .checked_mul(ENTRY_BYTES)
        .and_then(|len| range_within(bytes.len(), header.table_offset, len))
        .ok_or(QpcError::TableOutOfBounds {
            pointer: header.base.wrapping_add(header.table_offset),
            base: header.base,
            count: header.num_images,
            size: header.size,
        })
}

fn parse_segment(
    bytes: &[u8],
    entry: &[u8],
    index: u64,
    header: &Header,
    limits: &Limits,
    warnings: &mut Vec<Warning>,
) -> Result<Segment, QpcError> {
    let field = |offset| u64_at(entry, offset).unwrap_or_default();
    let (len, offset, name_pointer, start_pointer) = (field(0), field(8), field(16), field(24));
    let name_error = |defect| QpcError::SegmentName { index, defect };
    let name_offset = name_pointer.checked_sub(header.base).ok_or(name_error(NameDefect::OutOfBounds))?;
    let name = parse_name(bytes, name_offset, limits).map_err(name_error)?;

    let payload = start_pointer
        .checked_sub(header.base)
        .and_then(|start| range_within(bytes.len(), start, len))
        .ok_or_else(|| QpcError::PayloadOutOfBounds {
            segment: name.to_owned(),
            pointer: start_pointer,
            base: header.base,
            len,
            size: header.size,
        })?;
    if name == names::CONSTANTS {
        constants::split(len, offset)?;
    } else if offset != 0 {
        warnings.push(Warning::UnusedOffset { segment: name.to_owned(), offset });
    }
    Ok(Segment { name: name.to_owned(), offset, name_offset, range: payload })
}

fn parse_name<'a>(bytes: &'a [u8], offset: u64, limits: &Limits) -> Result<&'a str, NameDefect> {
    let start = usize::try_from(offset).map_err(|_| NameDefect::OutOfBounds)?;
    let tail = bytes.get(start..).filter(|tail| !tail.is_empty()).ok_or(NameDefect::OutOfBounds)?;
    // One byte longer than the longest name, for its NUL, so that the search never scans a payload.
    let window = tail.get(..limits.max_name_bytes.saturating_add(1)).unwrap_or(tail);
    let Some(len) = window.iter().position(|&byte| byte == 0) else {
        return Err(if window.len() < tail.len() { NameDefect::TooLong } else { NameDefect::Unterminated });
    };
    let name = window.get(..len).unwrap_or_default();
    if name.is_empty() {
        return Err(NameDefect::Empty);
    }
    std::str::from_utf8(name).map_err(|_| NameDefect::NotUtf8)
}

fn check_unique(segments: &[Segment]) -> Result<(), QpcError> {
    let mut sorted: Vec<&str> = segments.iter().map(|segment| segment.name.as_str()).collect();
    sorted.sort_unstable();
    for (first, second) in sorted.iter().zip(sorted.iter().skip(1)) {
        if first == second {
            return Err(QpcError::DuplicateSegment { name: (*first).to_owned() });
        }
    }
    Ok(())
}

/// A part of the container, and its user.
struct Region<'a> {
    start: u64,
    end: u64,
    what: &'a str,
    is_name: bool,
}

/// Checks that no region ends after the next begins, in order of their starts. Names may overlap each other, because
/// a writer may store a common suffix once, but must not overlap other regions.
fn check_overlaps(header: &Header, segments: &[Segment]) -> Result<(), QpcError> {
    let region = |start: u64, len: u64, what, is_name| {
        let end = start.saturating_add(len);
        Region { start, end, what, is_name }
    };
    let table_bytes = header.num_images.saturating_mul(ENTRY_BYTES);
    let mut regions = Vec::with_capacity(segments.len().saturating_mul(2).saturating_add(2));
    regions.push(region(0, HEADER_BYTES, "header", false));
    regions.push(region(header.table_offset, table_bytes, "segment table", false));
    for segment in segments {
        regions.push(region(to_u64(segment.range.start), segment.size(), &segment.name, false));
        let name_bytes = to_u64(segment.name.len()).saturating_add(1);
        regions.push(region(segment.name_offset, name_bytes, "segment names", true));
    }
    regions.retain(|region| region.start != region.end);
    regions.sort_by_key(|region| region.start);
    // The regions with the highest end so far, among the names and among the others.
    let (mut furthest_name, mut furthest_other): (Option<&Region<'_>>, Option<&Region<'_>>) = (None, None);
    for region in &regions {
        let hit = furthest_other.filter(|other| other.end > region.start);
        let name_hit = furthest_name.filter(|name| !region.is_name && name.end > region.start);
        if let Some(other) = hit.or(name_hit) {
            let (first, second) = (other.what.to_owned(), region.what.to_owned());
            return Err(QpcError::SegmentOverlap { first, second, at: region.start });
        }
        let furthest = if region.is_name { &mut furthest_name } else { &mut furthest_other };
        if furthest.is_none_or(|other| other.end < region.end) {
            *furthest = Some(region);
        }
    }
    Ok(())
}
