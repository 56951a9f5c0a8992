//! Checked little-endian reads at positions from the input. All arithmetic on offsets is in this module.
//!
//! Positions and lengths of the format are `u64`. They are converted to `usize` after the check against the slice.

use std::ops::Range;

/// Converts `usize` to `u64`, which is lossless on all targets of Rust.
pub(crate) fn to_u64(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// Returns the range of `len` bytes at `start`, if it is within `total` bytes.
pub(crate) fn range_within(total: usize, start: u64, len: u64) -> Option<Range<usize>> {
    let end = usize::try_from(start.checked_add(len)?).ok()?;
    let start = usize::try_from(start).ok()?;
    (end <= total).then_some(start..end)
}

/// Rounds `value` up to a multiple of `alignment` (0 counts as 1); `None` on overflow.
pub(crate) fn align_up(value: u64, alignment: u64) -> Option<u64> {
    value.checked_next_multiple_of(alignment.max(1))
}

fn array_at<const N: usize>(bytes: &[u8], offset: u64) -> Option<[u8; N]> {
    let range = range_within(bytes.len(), offset, to_u64(N))?;
    bytes.get(range)?.try_into().ok()
}

pub(crate) fn u8_at(bytes: &[u8], offset: u64) -> Option<u8> {
    array_at(bytes, offset).map(u8::from_le_bytes)
}

pub(crate) fn u16_at(bytes: &[u8], offset: u64) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], offset: u64) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], offset: u64) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stop_at_the_end() {
        let bytes = [1, 2, 3, 4];
        assert_eq!(u16_at(&bytes, 2), Some(0x0403));
        assert_eq!(u16_at(&bytes, 3), None);
        assert_eq!(u32_at(&bytes, u64::MAX), None);
        assert_eq!(u64_at(&bytes, 0), None);
    }

    #[test]
    fn ranges_and_alignment_do_not_wrap() {
        assert_eq!(range_within(8, 4, 4), Some(4..8));
        assert_eq!(range_within(8, 8, 0), Some(8..8));
        assert_eq!(range_within(8, 9, 0), None);
        assert_eq!(range_within(8, 1, u64::MAX), None);
        assert_eq!(align_up(9, 8), Some(16));
        assert_eq!(align_up(9, 0), Some(9));
        assert_eq!(align_up(u64::MAX, 8), None);
    }
}
