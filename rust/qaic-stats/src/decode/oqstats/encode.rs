//! Encoding of the open layout into memory of a fixed size, as a device does after each measured inference.

use std::borrow::Cow;

use crate::decode::descriptor::Fingerprint;
use crate::decode::oqstats::directory::{ALIGNMENT, DirectoryEntry};
use crate::decode::oqstats::header::{ENTRY_BYTES, HEADER_BYTES, Header, MAGIC, length};
use crate::decode::record::{Kind, OpPmu, Record, Thread};
use crate::error::StatsError;
use crate::model::{RunFlags, StatsModel};

/// Size of a buffer with room for the given number of records of each kind; `None` if it exceeds any memory.
pub fn capacity_bytes(counts: &[(Kind, usize)]) -> Option<u64> {
    let sections = u64::try_from(counts.len()).ok()?;
    let directory = sections.checked_mul(u64::try_from(ENTRY_BYTES).ok()?)?;
    let mut total = round_up(directory.checked_add(u64::try_from(HEADER_BYTES).ok()?)?)?;
    for (kind, count) in counts {
        let bytes = u64::try_from(kind.record_bytes()).ok()?.checked_mul(u64::try_from(*count).ok()?)?;
        total = total.checked_add(round_up(bytes)?)?;
    }
    Some(total)
}

/// Encodes the model in a buffer of exactly the needed size.
pub fn encode_to_vec(model: &StatsModel<'_>, fingerprint: Fingerprint) -> Result<Vec<u8>, StatsError> {
    let sections = present(model);
    let bytes = room(&sections).and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| too_many(&sections))?;
    let mut buffer = vec![0; bytes];
    encode(model, fingerprint, &mut buffer)?;
    Ok(buffer)
}

/// Writes a model to the start of `buffer` and returns the number of used bytes.
///
/// Records have the size of version 1, and a section has room for exactly its records. If operations do not fit, the
/// last ones are omitted, and their threads' ranges are shortened. In that case [`RunFlags::OPS_TRUNCATED`] is set,
/// and [`RunFlags::COMPLETE`] is cleared. Data of an earlier inference after the used bytes is cleared.
///
/// # Errors
///
/// [`StatsError::BufferTooSmall`] if the records other than operations do not fit, and
/// [`StatsError::TooManyRecords`].
pub fn encode(
    model: &StatsModel<'_>,
    fingerprint: Fingerprint,
    buffer: &mut [u8],
) -> Result<u64, StatsError> {
    let sections = present(model);
    let mut run = model.run;
    let cut = match room(&sections) {
        Some(needed) if needed <= length(buffer) => None,
        _ => Some(cut(&sections, length(buffer))?),
    };
    let sections = match cut {
        None => sections,
        Some(kept) => {
            run.flags.remove(RunFlags::COMPLETE);
            run.flags.insert(RunFlags::OPS_TRUNCATED);
            truncated(model, sections, kept)
        }
    };
    let earlier = left_behind(buffer);
    // The buffer has no valid header until the new one is written: an early reader never sees a partial inference.
    clear(buffer, 0..HEADER_BYTES);
    let count = u32::try_from(sections.len()).unwrap_or(u32::MAX);
    let directory_end = HEADER_BYTES.saturating_add(sections.len().saturating_mul(ENTRY_BYTES));
    let mut directory = Vec::with_capacity(sections.len().saturating_mul(ENTRY_BYTES));
    let mut used = directory_end;
    for section in &sections {
        let start = used.next_multiple_of(64);
        clear(buffer, used..start);
        let records = u32::try_from(section.count);
        let records = records
            .map_err(|_| StatsError::TooManyRecords { section: section.kind.code(), count: section.count })?;
        used = start.saturating_add(section.bytes.len());
        let place = buffer.get_mut(start..used).ok_or_else(|| too_many(&sections))?;
        place.copy_from_slice(&section.bytes);
        let entry = DirectoryEntry {
            kind: section.kind.code(),
            flags: 0,
            offset: u64::try_from(start).unwrap_or(u64::MAX),
            record_bytes: u32::try_from(section.kind.record_bytes()).unwrap_or(u32::MAX),
            capacity: records,
            count: records,
            crc: crc32fast::hash(&section.bytes),
        };
        directory.extend_from_slice(&entry.write());
    }
    clear(buffer, used..earlier);
    let used = u64::try_from(used).unwrap_or(u64::MAX);
    let header = Header::new(run, fingerprint, count, used, length(buffer)).write();
    put(buffer, HEADER_BYTES, &directory);
    put(buffer, 0, &header);
    Ok(used)
}

/// Records to write, without gaps.
struct Packed<'a> {
    kind: Kind,
    count: usize,
    bytes: Cow<'a, [u8]>,
}

/// Returns the sections of a model in the order of their numbers.
fn present<'a>(model: &'a StatsModel<'_>) -> Vec<Packed<'a>> {
    let pack = |kind: Kind| {
        let (bytes, stride) = model.section(kind)?;
        let size = kind.record_bytes();
        if stride == size {
            let count = bytes.len().checked_div(size).unwrap_or(0);
            let whole = bytes.get(..count.saturating_mul(size)).unwrap_or_default();
            return Some(Packed { kind, count, bytes: Cow::Borrowed(whole) });
        }
        // Records of a newer version: unknown fields are omitted.
        let records = bytes.chunks_exact(stride.max(1)).filter_map(|record| record.get(..size));
        let bytes: Vec<u8> = records.flatten().copied().collect();
        Some(Packed { kind, count: bytes.len().checked_div(size).unwrap_or(0), bytes: Cow::Owned(bytes) })
    };
    Kind::ALL.into_iter().filter_map(pack).collect()
}

fn room(sections: &[Packed<'_>]) -> Option<u64> {
    capacity_bytes(&sections.iter().map(|section| (section.kind, section.count)).collect::<Vec<_>>())
}

/// Returns the number of operations that fit into `bytes`.
fn cut(sections: &[Packed<'_>], bytes: u64) -> Result<usize, StatsError> {
    let ops = sections.iter().find(|section| section.kind == Kind::Op).map_or(0, |section| section.count);
    let needed = |kept: usize| {
        let counts = sections.iter().map(|section| match section.kind {
            Kind::Op => (Kind::Op, kept.min(section.count)),
            Kind::OpPmu => (Kind::OpPmu, values_of(section, kept).count()),
            kind => (kind, section.count),
        });
        capacity_bytes(&counts.collect::<Vec<_>>()).unwrap_or(u64::MAX)
    };
    if needed(0) > bytes {
        return Err(StatsError::BufferTooSmall { needed: needed(0), bytes });
    }
    // The maximum number that fits: `fits` always fits, `not` never does.
    let (mut fits, mut not) = (0_usize, ops.saturating_add(1));
    while not.saturating_sub(fits) > 1 {
        let middle = fits.midpoint(not);
        if needed(middle) <= bytes { fits = middle } else { not = middle }
    }
    Ok(fits)
}

/// Returns the PMU values of the first `kept` operations.
fn values_of<'a>(section: &'a Packed<'_>, kept: usize) -> impl Iterator<Item = &'a [u8]> {
    let kept = u64::try_from(kept).unwrap_or(u64::MAX);
    section.bytes.chunks_exact(OpPmu::SIZE).filter(move |bytes| u64::from(OpPmu::read(bytes).op) < kept)
}

/// Returns the sections with only the first `kept` operations.
fn truncated<'a>(model: &StatsModel<'_>, sections: Vec<Packed<'a>>, kept: usize) -> Vec<Packed<'a>> {
    let limit = u32::try_from(kept).unwrap_or(u32::MAX);
    let cut_thread = |mut thread: Thread| {
        let end = thread.first_op.saturating_add(thread.op_count).min(limit);
        thread.first_op = thread.first_op.min(limit);
        thread.op_count = end.saturating_sub(thread.first_op);
        thread
    };
    let cut = |section: Packed<'a>| match section.kind {
        Kind::Op => {
            let bytes = kept.saturating_mul(Kind::Op.record_bytes()).min(section.bytes.len());
            let bytes = match section.bytes {
                Cow::Borrowed(all) => Cow::Borrowed(all.get(..bytes).unwrap_or_default()),
                Cow::Owned(mut all) => {
                    all.truncate(bytes);
                    Cow::Owned(all)
                }
            };
            Packed { count: kept.min(section.count), bytes, ..section }
        }
        Kind::OpPmu => {
            let bytes: Vec<u8> = values_of(&section, kept).flatten().copied().collect();
            let count = bytes.len().checked_div(OpPmu::SIZE).unwrap_or(0);
            Packed { kind: section.kind, count, bytes: Cow::Owned(bytes) }
        }
        Kind::Thread => {
            let mut bytes = vec![0; section.bytes.len()];
            let threads = model.records::<Thread>();
            for (place, thread) in bytes.chunks_exact_mut(Thread::SIZE).zip(threads.iter()) {
                cut_thread(thread).write(place);
            }
            Packed { bytes: Cow::Owned(bytes), ..section }
        }
        _ => section,
    };
    sections.into_iter().map(cut).collect()
}

/// Returns the end of the non-zero bytes that an earlier inference wrote.
fn left_behind(buffer: &[u8]) -> usize {
    if !buffer.starts_with(&MAGIC) && buffer.first_chunk() != Some(&[0_u8; 8]) {
        return buffer.len();
    }
    let used = Header::read(buffer).map(|header| usize::try_from(header.used_bytes).unwrap_or(usize::MAX));
    match used {
        Ok(used) => used.min(buffer.len()),
        // No buffer begins here: devices allocate zeroed memory.
        Err(StatsError::BadMagic { .. }) => 0,
        Err(_) => buffer.len(),
    }
}

fn clear(buffer: &mut [u8], range: std::ops::Range<usize>) {
    if let Some(place) = buffer.get_mut(range) {
        place.fill(0);
    }
}

fn put(buffer: &mut [u8], offset: usize, bytes: &[u8]) {
    let place = buffer.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes.len()));
    if let Some(place) = place {
        place.copy_from_slice(bytes);
    }
}

fn round_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

/// Returns the error for the section with the most records.
fn too_many(sections: &[Packed<'_>]) -> StatsError {
    let largest = sections.iter().max_by_key(|section| section.count);
    StatsError::TooManyRecords {
        section: largest.map_or(0, |section| section.kind.code()),
        count: largest.map_or(0, |section| section.count),
    }
}
