//! Access to arrays that other threads may write concurrently. Such arrays are never Rust slices: they are processed
//! in pieces that fit the first-level cache.

use crate::error::MemoryError;
use crate::{HostSlice, Pod, Storage};

/// Number of elements of a piece, which fits the first-level cache together with its result.
pub(crate) const PIECE: usize = 2048;

/// Reads `memory` as elements of `T`, piece by piece. `piece` receives the index of the first element and the
/// elements.
pub fn pieces<T: Pod + Default>(memory: HostSlice<'_>, mut piece: impl FnMut(usize, &[T])) {
    let mut buffer = [T::default(); PIECE];
    let len = memory.len() / size_of::<T>();
    let mut start = 0;
    while start < len {
        let count = PIECE.min(len - start);
        // The range is within `memory` by construction.
        let _ = memory.read_into(start * size_of::<T>(), &mut buffer[..count]);
        piece(start, &buffer[..count]);
        start += count;
    }
}

/// Converts the elements of `memory` to as many elements of `U`, piece by piece.
pub fn map_pieces<T: Pod + Default, U: Pod + Default>(
    memory: HostSlice<'_>,
    mut map: impl FnMut(usize, &[T], &mut [U]),
) -> Result<Storage, MemoryError> {
    let mut storage = Storage::new(memory.len() / size_of::<T>() * size_of::<U>())?;
    let mut target = storage.memory_mut();
    let mut buffer = [U::default(); PIECE];
    pieces(memory, |start, values: &[T]| {
        let out = &mut buffer[..values.len()];
        map(start, values, out);
        let _ = target.write_from(start * size_of::<U>(), out);
    });
    Ok(storage)
}

/// Visits `count` elements in whole rows, or in pieces of one row. `visit` receives the first element, the number of
/// elements, and the row length of the piece.
pub(super) fn in_rows(count: usize, row_len: usize, mut visit: impl FnMut(usize, usize, usize)) {
    let (mut start, mut left) = (0, row_len);
    while start < count {
        let len = if left < row_len || row_len > PIECE {
            left.min(PIECE)
        } else {
            (PIECE / row_len * row_len).min(count - start)
        };
        visit(start, len, row_len.min(len));
        start += len;
        left = if row_len > PIECE && left > len { left - len } else { row_len };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_element_is_seen_once_and_in_order(len in 0..3 * PIECE) {
            let values: Vec<i32> = (0..).take(len).collect();
            let mut seen = Vec::new();
            pieces(HostSlice::of(&values), |start, piece: &[i32]| {
                assert_eq!(start, seen.len());
                seen.extend_from_slice(piece);
            });
            prop_assert_eq!(&seen, &values);
            let map = |_, values: &[i32], into: &mut [i64]| {
                into.iter_mut().zip(values).for_each(|(into, value)| *into = i64::from(*value) * 3);
            };
            let mapped = map_pieces(HostSlice::of(&values), map).unwrap();
            let expected: Vec<u8> = values.iter().flat_map(|value| (i64::from(*value) * 3).to_ne_bytes()).collect();
            prop_assert_eq!(mapped.memory().to_vec(), expected);
        }

        #[test]
        fn pieces_of_rows_follow_each_other_and_cross_no_row(rows in 0..9_usize, row_len in 1..5000_usize) {
            let mut next = 0;
            in_rows(rows * row_len, row_len, |start, len, piece_row_len| {
                assert_eq!(start, next);
                assert!((1..=PIECE).contains(&len) && len.is_multiple_of(piece_row_len));
                // Whole rows, or a piece within one row.
                assert!(piece_row_len == row_len || start % row_len + len <= row_len);
                next += len;
            });
            prop_assert_eq!(next, rows * row_len);
        }
    }
}
