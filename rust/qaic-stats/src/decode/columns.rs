//! Conversion of records to columns: one array per field, for sums and histograms that read few fields of many
//! records.
//!
//! A strided view of a field would read every cache line of the records again for each field. This conversion reads
//! each block of records once, while the block is in the first-level cache.

use std::ops::Range;

use crate::decode::record::{FieldType, Kind};

/// Number of records of a block: 24 KiB of operations.
const BLOCK: usize = 512;

/// Bytes of one element of a field, and of all its elements.
fn width(field: &FieldType) -> usize {
    let element = match field.code {
        "u1" => 1,
        "<u2" => 2,
        "<u4" => 4,
        _ => 8_usize,
    };
    element.saturating_mul(field.count)
}

/// A column that is being filled.
struct Column {
    offset: usize,
    width: usize,
    bytes: Vec<u8>,
}

/// Returns the bytes of the columns `names` of the records `range`, little-endian, in the order of `names`.
///
/// The distance of `records` is `stride` bytes, and they belong to section `kind`. A range beyond their end is
/// truncated. Returns `None` if a name is not a field.
pub fn columns(
    kind: Kind,
    records: &[u8],
    stride: usize,
    names: &[&str],
    range: Range<usize>,
) -> Option<Vec<Vec<u8>>> {
    let stride = stride.max(kind.record_bytes()).max(1);
    let count = records.len().checked_div(stride)?;
    let end = range.end.min(count);
    let start = range.start.min(end);
    let records = records.get(start.checked_mul(stride)?..end.checked_mul(stride)?)?;
    let count = end.saturating_sub(start);
    let mut columns: Vec<Column> = Vec::with_capacity(names.len());
    for name in names {
        let (offset, width) = place(kind, name)?;
        columns.push(Column { offset, width, bytes: vec![0; count.checked_mul(width)?] });
    }
    for (block, first) in records.chunks(BLOCK.saturating_mul(stride)).zip((0_usize..).step_by(BLOCK)) {
        for column in &mut columns {
            let start = first.saturating_mul(column.width);
            let bytes = column.bytes.get_mut(start..).unwrap_or_default();
            match (stride, column.width) {
                // Constant sizes for operations, the only section that becomes large.
                (48, 1) => fixed::<48, 1>(block, column.offset, bytes),
                (48, 2) => fixed::<48, 2>(block, column.offset, bytes),
                (48, 4) => fixed::<48, 4>(block, column.offset, bytes),
                (48, 8) => fixed::<48, 8>(block, column.offset, bytes),
                _ => any(block, stride, column.offset, column.width, bytes),
            }
        }
    }
    Some(columns.into_iter().map(|column| column.bytes).collect())
}

/// Returns the offset of a field in its record, and its bytes.
fn place(kind: Kind, name: &str) -> Option<(usize, usize)> {
    let mut offset = 0_usize;
    for field in kind.fields() {
        let width = width(field);
        if field.name == name {
            return Some((offset, width));
        }
        offset = offset.saturating_add(width);
    }
    None
}

#[inline]
fn fixed<const STRIDE: usize, const WIDTH: usize>(block: &[u8], offset: usize, out: &mut [u8]) {
    let (records, _) = block.as_chunks::<STRIDE>();
    let (places, _) = out.as_chunks_mut::<WIDTH>();
    // One bounds check for all fields, because fields are inside records.
    if offset > STRIDE.saturating_sub(WIDTH) {
        return;
    }
    for (place, record) in places.iter_mut().zip(records) {
        if let Some(field) = record.get(offset..).and_then(|rest| rest.first_chunk()) {
            *place = *field;
        }
    }
}

fn any(block: &[u8], stride: usize, offset: usize, width: usize, out: &mut [u8]) {
    let end = offset.saturating_add(width);
    for (place, record) in out.chunks_exact_mut(width.max(1)).zip(block.chunks_exact(stride)) {
        if let Some(field) = record.get(offset..end) {
            place.copy_from_slice(field);
        }
    }
}
