//! The section directory of the open layout, with the positions of all records.

use std::ops::Range;

use crate::decode::oqstats::header::{ENTRY_BYTES, Header};
use crate::decode::record::{Field, Kind};
use crate::error::StatsError;

/// Alignment of sections.
pub(super) const ALIGNMENT: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectoryEntry {
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) record_bytes: u32,
    pub(super) capacity: u32,
    pub(super) count: u32,
    /// CRC of the records; 0 if it was not computed.
    pub(super) crc: u32,
}

impl DirectoryEntry {
    pub(super) fn read(bytes: &[u8]) -> Self {
        Self {
            kind: u32::get(bytes, 0),
            flags: u32::get(bytes, 4),
            offset: u64::get(bytes, 8),
            record_bytes: u32::get(bytes, 16),
            capacity: u32::get(bytes, 20),
            count: u32::get(bytes, 24),
            crc: u32::get(bytes, 28),
        }
    }

    pub(super) fn write(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        self.kind.put(&mut bytes, 0);
        self.flags.put(&mut bytes, 4);
        self.offset.put(&mut bytes, 8);
        self.record_bytes.put(&mut bytes, 16);
        self.capacity.put(&mut bytes, 20);
        self.count.put(&mut bytes, 24);
        self.crc.put(&mut bytes, 28);
        bytes
    }

    /// Number of bytes of `records` records. Both factors have 32 bits, so the product does not overflow.
    fn bytes_of(&self, records: u32) -> u64 {
        u64::from(self.record_bytes).saturating_mul(u64::from(records))
    }

    /// Returns the range of the section's records. The end saturates, which is beyond any buffer.
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.bytes_of(self.count))
    }

    /// Maximum range of the section.
    fn room(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.bytes_of(self.capacity))
    }

    /// Returns the section's records; empty if they are not within `bytes`.
    pub(super) fn records<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let range = self.range();
        let place = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        place.and_then(|(start, end)| bytes.get(start..end)).unwrap_or_default()
    }

    /// Checks the rules about a single section.
    fn check(&self) -> Result<(), StatsError> {
        let section = self.kind;
        if !self.offset.is_multiple_of(ALIGNMENT) {
            return Err(StatsError::SectionOffset { section, offset: self.offset });
        }
        if let Some(kind) = Kind::from_code(section) {
            let expected = kind.record_bytes();
            // Text has no records whose size could grow.
            let fits = usize::try_from(self.record_bytes)
                .is_ok_and(|found| if kind == Kind::Meta { found == expected } else { found >= expected });
            if !fits {
                return Err(StatsError::RecordSize { section, found: self.record_bytes, expected });
            }
        }
        if self.count > self.capacity {
            return Err(StatsError::SectionCount { section, count: self.count, capacity: self.capacity });
        }
        Ok(())
    }
}

/// Returns the entries of a checked directory: every section is within the used bytes, and no two overlap.
pub(super) fn read(bytes: &[u8], header: &Header) -> Result<Vec<DirectoryEntry>, StatsError> {
    let start = usize::try_from(header.directory).unwrap_or(usize::MAX);
    let end = header.directory_end().and_then(|end| usize::try_from(end).ok()).unwrap_or(0);
    let stride = usize::try_from(header.entry_bytes).unwrap_or(usize::MAX);
    let directory = bytes.get(start..end).unwrap_or_default();
    let entries: Vec<DirectoryEntry> = directory.chunks_exact(stride).map(DirectoryEntry::read).collect();
    let mut known = [false; Kind::ALL.len()];
    for entry in &entries {
        entry.check()?;
        let slot = usize::try_from(entry.kind).ok().and_then(|kind| known.get_mut(kind.checked_sub(1)?));
        if slot.is_some_and(|slot| std::mem::replace(slot, true)) {
            return Err(StatsError::DuplicateSection { section: entry.kind });
        }
    }
    overlaps(&entries, header)?;
    let behind = entries.iter().find(|entry| entry.range().end > header.used_bytes);
    if let Some(entry) = behind {
        let (section, end) = (entry.kind, entry.range().end);
        return Err(StatsError::SectionEnd { section, end, used: header.used_bytes });
    }
    Ok(entries)
}

fn overlaps(entries: &[DirectoryEntry], header: &Header) -> Result<(), StatsError> {
    // Empty sections cannot overlap others.
    let mut rooms: Vec<(Range<u64>, Option<u32>)> = entries
        .iter()
        .map(|entry| (entry.room(), Some(entry.kind)))
        .chain([
            (0..u64::from(header.header_bytes), None),
            (header.directory..header.directory_end().unwrap_or(u64::MAX), None),
        ])
        .filter(|(room, _)| !room.is_empty())
        .collect();
    rooms.sort_by_key(|(room, kind)| (room.start, *kind));
    for (before, after) in rooms.iter().zip(rooms.iter().skip(1)) {
        if after.0.start < before.0.end {
            let (section, other) = match (after.1, before.1) {
                (Some(section), other) => (section, other),
                (None, Some(section)) => (section, None),
                // Header and directory have already been compared.
                (None, None) => continue,
            };
            let at = if after.1.is_some() { after.0.start } else { before.0.start };
            return Err(StatsError::SectionOverlap { section, at, other });
        }
    }
    Ok(())
}
