//! Writing of containers in the file layout and the memory layout. `base` is 0, so that equal input results in equal
//! bytes.
//!
//! A [`Layout`] determines all positions before the payloads exist, so that constants of many gigabytes can be
//! streamed to their position. The `build_*` functions create small containers in memory.

use crate::bytes::{align_up, to_u64};
use crate::container::{Container, ENTRY_BYTES, HEADER_BYTES, MAGIC, SLOWPATH, names};
use crate::error::{NameDefect, QpcError};
use crate::limits::Limits;

const TOO_LARGE: QpcError = QpcError::TooLarge { what: "the container" };
/// Alignment of names and of the total size, in the memory layout.
const WORD: u64 = 8;

/// A segment without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSpec {
    /// Unique name.
    pub name: String,
    /// Bytes of the payload.
    pub size: u64,
    /// The entry's offset field: bytes of the static part for `constants.bin`, 0 for all others.
    pub offset: u64,
}

/// A segment with its payload.
#[derive(Clone, Copy, Debug)]
pub struct SegmentData<'a> {
    /// Unique name.
    pub name: &'a str,
    /// The entry's offset field, see [`SegmentSpec::offset`].
    pub offset: u64,
    /// The payload.
    pub payload: &'a [u8],
}

/// Positions of all parts of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Header, segment table and names: the first bytes of the container.
    pub head: Vec<u8>,
    /// Offset of each payload; bytes between payloads are zero.
    pub payload_starts: Vec<u64>,
    /// Bytes of the container.
    pub total_size: u64,
}

impl Layout {
    /// Creates the layout with aligned payloads (variant A). `alignment` is a power of two of at least 8.
    ///
    /// With alignment 8, the result equals the layout of the reference serializer.
    pub fn in_memory(segments: &[SegmentSpec], alignment: u64) -> Result<Self, QpcError> {
        if alignment < WORD || !alignment.is_power_of_two() {
            return Err(QpcError::InvalidAlignment { found: alignment });
        }
        Self::new(segments, WORD, alignment)
    }

    /// Creates the layout without gaps (variant B). Like the reference, this requires `network.elf`.
    pub(crate) fn file(segments: &[SegmentSpec]) -> Result<Self, QpcError> {
        if segments.is_empty() {
            return Err(QpcError::EmptyContainer);
        }
        if !segments.iter().any(|segment| segment.name == names::NETWORK_ELF) {
            return Err(QpcError::MissingSegment { name: names::NETWORK_ELF.to_owned() });
        }
        Self::new(segments, 1, 1)
    }

    fn new(segments: &[SegmentSpec], name_alignment: u64, alignment: u64) -> Result<Self, QpcError> {
        check_segments(segments)?;
        let mut position = to_u64(segments.len())
            .checked_mul(ENTRY_BYTES)
            .and_then(|table| table.checked_add(HEADER_BYTES))
            .ok_or(TOO_LARGE)?;
        let mut name_starts = Vec::with_capacity(segments.len());
        for segment in segments {
            let name_bytes = to_u64(segment.name.len()).saturating_add(1);
            name_starts.push(position);
            position = end_aligned(position, name_bytes, name_alignment)?;
        }
        let head_size = position;
        position = align_up(position, alignment).ok_or(TOO_LARGE)?;
        let mut payload_starts = Vec::with_capacity(segments.len());
        for (index, segment) in segments.iter().enumerate() {
            payload_starts.push(position);
            // The last payload is padded to a word, and not followed by a gap.
            let last = index.saturating_add(1) == segments.len();
            let alignment = if last { name_alignment } else { alignment };
            position = end_aligned(position, segment.size, alignment)?;
        }
        let total_size = if segments.is_empty() { head_size } else { position };
        let head = head(segments, &name_starts, &payload_starts, head_size, total_size)?;
        Ok(Self { head, payload_starts, total_size })
    }
}

fn end_aligned(start: u64, len: u64, alignment: u64) -> Result<u64, QpcError> {
    start.checked_add(len).and_then(|end| align_up(end, alignment)).ok_or(TOO_LARGE)
}

fn check_segments(segments: &[SegmentSpec]) -> Result<(), QpcError> {
    let limits = Limits::default();
    let mut sorted: Vec<&str> = Vec::with_capacity(segments.len());
    for SegmentSpec { name, size, offset } in segments {
        let defect = if name.is_empty() {
            Some(NameDefect::Empty)
        } else if name.len() > limits.max_name_bytes {
            Some(NameDefect::TooLong)
        } else if name.contains('\0') {
            Some(NameDefect::EmbeddedNul)
        } else {
            None
        };
        if let Some(defect) = defect {
            return Err(QpcError::InvalidName { name: name.clone(), defect });
        }
        if name == names::CONSTANTS && offset > size {
            return Err(QpcError::ConstantsOffset { offset: *offset, size: *size });
        }
        sorted.push(name);
    }
    if to_u64(segments.len()) > limits.max_segments {
        return Err(QpcError::LimitExceeded { what: "segments", max: limits.max_segments });
    }
    sorted.sort_unstable();
    match sorted.iter().zip(sorted.iter().skip(1)).find(|(first, second)| first == second) {
        Some((name, _)) => Err(QpcError::DuplicateSegment { name: (*name).to_owned() }),
        None => Ok(()),
    }
}

fn head(
    segments: &[SegmentSpec],
    name_starts: &[u64],
    payload_starts: &[u64],
    head_size: u64,
    total_size: u64,
) -> Result<Vec<u8>, QpcError> {
    let head_size = usize::try_from(head_size).map_err(|_| TOO_LARGE)?;
    let mut head = Vec::with_capacity(head_size);
    head.extend(MAGIC.to_le_bytes());
    // Version 0.1.
    head.extend([0, 1]);
    head.extend(SLOWPATH.to_le_bytes());
    let count = to_u64(segments.len());
    // size, base, number of segments, position of their table
    for value in [total_size, 0, count, HEADER_BYTES] {
        head.extend(value.to_le_bytes());
    }
    for (segment, (name, start)) in segments.iter().zip(name_starts.iter().zip(payload_starts)) {
        for value in [segment.size, segment.offset, *name, *start] {
            head.extend(value.to_le_bytes());
        }
    }
    for (segment, start) in segments.iter().zip(name_starts) {
        head.resize(usize::try_from(*start).map_err(|_| TOO_LARGE)?, 0);
        head.extend_from_slice(segment.name.as_bytes());
        head.push(0);
    }
    head.resize(head_size, 0);
    Ok(head)
}

/// Builds a container in the aligned layout, see [`Layout::in_memory`].
pub fn build_in_memory(segments: &[SegmentData<'_>], alignment: u64) -> Result<Vec<u8>, QpcError> {
    assemble(&Layout::in_memory(&specs(segments), alignment)?, segments)
}

/// Builds a container in the layout without gaps.
pub fn build_file(segments: &[SegmentData<'_>]) -> Result<Vec<u8>, QpcError> {
    assemble(&Layout::file(&specs(segments))?, segments)
}

fn specs(segments: &[SegmentData<'_>]) -> Vec<SegmentSpec> {
    let spec = |segment: &SegmentData<'_>| SegmentSpec {
        name: segment.name.to_owned(),
        size: to_u64(segment.payload.len()),
        offset: segment.offset,
    };
    segments.iter().map(spec).collect()
}

fn assemble(layout: &Layout, segments: &[SegmentData<'_>]) -> Result<Vec<u8>, QpcError> {
    let mut bytes = Vec::with_capacity(usize::try_from(layout.total_size).map_err(|_| TOO_LARGE)?);
    bytes.extend_from_slice(&layout.head);
    for (segment, start) in segments.iter().zip(&layout.payload_starts) {
        bytes.resize(usize::try_from(*start).map_err(|_| TOO_LARGE)?, 0);
        bytes.extend_from_slice(segment.payload);
    }
    bytes.resize(usize::try_from(layout.total_size).map_err(|_| TOO_LARGE)?, 0);
    Ok(bytes)
}

/// Rewrites a container for another `base`, as the reference does when it copies a container. Segments and payloads
/// keep their positions.
pub fn rebase(bytes: &mut [u8], base: u64) -> Result<(), QpcError> {
    let container = Container::parse(bytes, &Limits::default())?;
    let header = &container.header;
    base.checked_add(header.size).ok_or(TOO_LARGE)?;
    put(bytes, 16, base);
    put(bytes, 32, base.wrapping_add(header.table_offset));
    for (segment, entry) in container.segments.iter().zip((header.table_offset..).step_by(32)) {
        put(bytes, entry.saturating_add(16), base.wrapping_add(segment.name_offset));
        put(bytes, entry.saturating_add(24), base.wrapping_add(to_u64(segment.range.start)));
    }
    Ok(())
}

fn put(bytes: &mut [u8], offset: u64, value: u64) {
    let range = crate::bytes::range_within(bytes.len(), offset, 8);
    if let Some(slot) = range.and_then(|range| bytes.get_mut(range)) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}
