//! Copy of a matrix with rows and columns exchanged, the only access to foreign memory that is not a run of bytes.
//!
//! Blocks with 8 bytes per side are transposed in registers: a row of a block is one load, a column one store.
//! Matrices with few rows, such as the channels of an image, are copied one column at a time. Remaining elements are
//! copied individually.

use bytemuck::Pod;

use crate::{HostSlice, HostSliceMut};

/// Element types that can be transposed.
pub(crate) trait Movable: Pod {
    /// Number of rows and columns of a block; 1 if blocks are not faster.
    const SIDE: usize;

    /// Transposes the block at `from`.
    ///
    /// # Safety
    ///
    /// `SIDE` rows of `SIDE` elements, `from_stride` elements apart, can be read at `from`, and as many columns written
    /// at `to`.
    unsafe fn exchange(from: *const Self, from_stride: usize, to: *mut Self, to_stride: usize);
}

/// Reads the rows of a block as numbers, element 0 in the lowest bits.
///
/// # Safety
///
/// `N` rows of 8 bytes, `stride` elements apart, can be read at `from`.
unsafe fn read_rows<T, const N: usize>(from: *const T, stride: usize) -> [u64; N] {
    std::array::from_fn(|r| {
        // SAFETY: row `r` can be read; the caller guarantees it.
        let row = unsafe { from.wrapping_add(r * stride).cast::<u64>().read_unaligned() };
        u64::from_le(row)
    })
}

/// Writes rows in the format of [`read_rows`].
///
/// # Safety
///
/// `N` rows of 8 bytes, `stride` elements apart, can be written at `to`.
unsafe fn write_rows<T, const N: usize>(to: *mut T, stride: usize, rows: [u64; N]) {
    for (r, row) in rows.into_iter().enumerate() {
        // SAFETY: row `r` can be written; the caller guarantees it.
        unsafe { to.wrapping_add(r * stride).cast::<u64>().write_unaligned(row.to_le()) };
    }
}

/// Exchanges the off-diagonal quarters of all blocks of `2 * distance` rows, whose elements are `bits` wide and
/// selected by `mask`.
#[inline]
fn exchange_quarters<const N: usize>(rows: &mut [u64; N], distance: usize, bits: u32, mask: u64) {
    for r in (0..N).filter(|r| r & distance == 0) {
        let swap = ((rows[r] >> bits) ^ rows[r + distance]) & mask;
        rows[r + distance] ^= swap;
        rows[r] ^= swap << bits;
    }
}

impl Movable for u8 {
    const SIDE: usize = 8;

    unsafe fn exchange(from: *const Self, from_stride: usize, to: *mut Self, to_stride: usize) {
        // SAFETY: 8 rows of 8 elements, as the caller guarantees.
        let mut rows: [u64; 8] = unsafe { read_rows(from, from_stride) };
        exchange_quarters(&mut rows, 4, 32, 0x0000_0000_ffff_ffff);
        exchange_quarters(&mut rows, 2, 16, 0x0000_ffff_0000_ffff);
        exchange_quarters(&mut rows, 1, 8, 0x00ff_00ff_00ff_00ff);
        // SAFETY: 8 columns of 8 elements, as the caller guarantees.
        unsafe { write_rows(to, to_stride, rows) };
    }
}

impl Movable for u16 {
    const SIDE: usize = 4;

    unsafe fn exchange(from: *const Self, from_stride: usize, to: *mut Self, to_stride: usize) {
        // SAFETY: 4 rows of 4 elements, as the caller guarantees.
        let mut rows: [u64; 4] = unsafe { read_rows(from, from_stride) };
        exchange_quarters(&mut rows, 2, 32, 0x0000_0000_ffff_ffff);
        exchange_quarters(&mut rows, 1, 16, 0x0000_ffff_0000_ffff);
        // SAFETY: 4 columns of 4 elements, as the caller guarantees.
        unsafe { write_rows(to, to_stride, rows) };
    }
}

impl Movable for u32 {
    const SIDE: usize = 4;

    unsafe fn exchange(from: *const Self, from_stride: usize, to: *mut Self, to_stride: usize) {
        let rows: [[u32; 4]; 4] = std::array::from_fn(|r| {
            // SAFETY: row `r` of 4 elements can be read, as the caller guarantees.
            unsafe { from.wrapping_add(r * from_stride).cast::<[u32; 4]>().read_unaligned() }
        });
        for c in 0..4 {
            let column = rows.map(|row| row[c]);
            // SAFETY: column `c` of 4 elements can be written, as the caller guarantees.
            unsafe { to.wrapping_add(c * to_stride).cast::<[u32; 4]>().write_unaligned(column) };
        }
    }
}

impl Movable for u64 {
    const SIDE: usize = 1;

    unsafe fn exchange(from: *const Self, _: usize, to: *mut Self, _: usize) {
        // SAFETY: one element can be read, as the caller guarantees.
        let value = unsafe { from.read_unaligned() };
        // SAFETY: one element can be written, as the caller guarantees.
        unsafe { to.write_unaligned(value) };
    }
}

/// Copies a matrix so that its rows become columns: `dst[c][r] = src[r][c]`.
///
/// Strides are in elements. Returns `None`, and copies nothing, if a matrix exceeds its memory.
pub(crate) fn copy_transposed<T: Movable>(
    src: HostSlice<'_>,
    src_stride: usize,
    dst: &mut HostSliceMut<'_>,
    dst_stride: usize,
    rows: usize,
    cols: usize,
) -> Option<()> {
    if rows == 0 || cols == 0 {
        return Some(());
    }
    let extent = |stride: usize, outer: usize, inner: usize| {
        (outer - 1).checked_mul(stride)?.checked_add(inner)?.checked_mul(size_of::<T>())
    };
    if extent(src_stride, rows, cols)? > src.len() || extent(dst_stride, cols, rows)? > dst.len() {
        return None;
    }
    let (from, to) = (src.as_ptr().cast::<T>(), dst.as_mut_ptr().cast::<T>());
    let matrix = Matrix { from, src_stride, to, dst_stride, cols };
    match rows {
        // SAFETY: `rows` by `cols` elements are in both memories, as checked above.
        2 => unsafe { matrix.columns::<2>() },
        // SAFETY: as above.
        3 => unsafe { matrix.columns::<3>() },
        // SAFETY: as above.
        4 => unsafe { matrix.columns::<4>() },
        // SAFETY: as above.
        _ => unsafe { matrix.blocks(rows) },
    }
    Some(())
}

struct Matrix<T> {
    from: *const T,
    src_stride: usize,
    to: *mut T,
    dst_stride: usize,
    cols: usize,
}

impl<T: Movable> Matrix<T> {
    /// Transposes `R` rows.
    ///
    /// # Safety
    ///
    /// `R` rows are in the source and as many columns in the destination.
    unsafe fn columns<const R: usize>(&self) {
        for c in 0..self.cols {
            let column: [T; R] = std::array::from_fn(|r| {
                // SAFETY: element (r, c) is in the source, as the caller guarantees.
                unsafe { self.from.wrapping_add(r * self.src_stride + c).read_unaligned() }
            });
            // SAFETY: elements (c, 0) to (c, R) are in the destination, as the caller guarantees.
            unsafe { self.to.wrapping_add(c * self.dst_stride).cast::<[T; R]>().write_unaligned(column) };
        }
    }

    /// Transposes `rows` rows.
    ///
    /// # Safety
    ///
    /// `rows` rows are in the source and as many columns in the destination.
    unsafe fn blocks(&self, rows: usize) {
        let (whole_rows, whole_cols) = (rows - rows % T::SIDE, self.cols - self.cols % T::SIDE);
        for r in (0..whole_rows).step_by(T::SIDE) {
            for c in (0..whole_cols).step_by(T::SIDE) {
                let from = self.from.wrapping_add(r * self.src_stride + c);
                let to = self.to.wrapping_add(c * self.dst_stride + r);
                // SAFETY: the block is below `whole_rows` and `whole_cols`, so in both memories.
                unsafe { T::exchange(from, self.src_stride, to, self.dst_stride) };
            }
        }
        for c in 0..self.cols {
            let first = if c < whole_cols { whole_rows } else { 0 };
            for r in first..rows {
                // SAFETY: element (r, c) is in the source, as the caller guarantees.
                let value = unsafe { self.from.wrapping_add(r * self.src_stride + c).read_unaligned() };
                // SAFETY: element (c, r) is in the destination, as the caller guarantees.
                unsafe { self.to.wrapping_add(c * self.dst_stride + r).write_unaligned(value) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_beyond_the_view_is_refused() {
        let (src, mut dst) = ([0_u8; 6], [0_u8; 6]);
        let fits = |rows, cols, dst: &mut [u8]| {
            copy_transposed::<u8>(HostSlice::of(&src), cols, &mut HostSliceMut::of(dst), rows, rows, cols)
        };
        assert!(fits(2, 3, &mut dst).is_some());
        assert!(fits(2, 4, &mut dst).is_none());
        assert!(fits(usize::MAX, 2, &mut dst).is_none());
    }

    fn every_shape<T: Movable + PartialEq + std::fmt::Debug>(number: impl Fn(usize) -> T) {
        for rows in 1..20 {
            for cols in 1..20 {
                let (src_stride, dst_stride) = (cols + 3, rows + 2);
                let src: Vec<T> = (0..rows * src_stride).map(&number).collect();
                let mut dst = vec![T::zeroed(); cols * dst_stride];
                let (from, mut to) = (HostSlice::of(&src), HostSliceMut::of(&mut dst));
                copy_transposed::<T>(from, src_stride, &mut to, dst_stride, rows, cols).unwrap();
                for (k, value) in dst.iter().enumerate() {
                    let (c, r) = (k / dst_stride, k % dst_stride);
                    let expected = if r < rows { src[r * src_stride + c] } else { T::zeroed() };
                    assert_eq!(*value, expected, "{rows} x {cols}: ({r}, {c})");
                }
            }
        }
    }

    #[test]
    #[allow(clippy::cast_possible_truncation)] // distinct enough
    fn matrix_of_every_shape_is_transposed() {
        every_shape(|k| (k % 251) as u8);
        every_shape(|k| k as u16);
        every_shape(|k| k as u32);
        every_shape(|k| k as u64);
    }
}
