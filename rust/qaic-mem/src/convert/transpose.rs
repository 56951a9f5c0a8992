//! Permutation of dimensions, in pieces that fit the first-level cache.
//!
//! A permutation is first reduced: dimensions of one element are removed, and dimensions that stay adjacent are
//! merged. The remaining permutation moves whole rows, or transposes a batch of matrices. Matrices are transposed in
//! square tiles, so that both sides use every cache line that they access. [`Permutation::run`] can pass each tile to
//! a consumer, which fuses a conversion with the permutation.

use crate::{HostSlice, HostSliceMut, copy_transposed};

/// Maximum number of dimensions of a tensor.
pub(crate) const MAX_RANK: usize = 8;

/// Minimum size of a tile side, in bytes and in elements.
const TILE_LINE: usize = 64;
const TILE_SIDE: usize = 16;

/// One dimension of the reduced tensor; strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    len: usize,
    src_stride: usize,
    dst_stride: usize,
}

/// A permutation of the elements of a tensor, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Permutation {
    element_size: usize,
    /// Axes of the outer loops, the slowest first.
    outer: Vec<Axis>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Runs of this many elements, which stay together.
    Rows(usize),
    /// A matrix transposition: `turned` is contiguous in the destination, `kept` in the source.
    Matrix { turned: Axis, kept: Axis },
}

impl Permutation {
    /// Returns the permutation that maps source dimension `order[k]` to dimension `k` of the result.
    ///
    /// Returns `None` if the order in memory does not change. The caller must have checked that `order` is a
    /// permutation of `0..dims.len()` and that the element count fits `usize`.
    pub(super) fn new(dims: &[usize], order: &[usize], element_size: usize) -> Option<Self> {
        let mut strides = vec![1_usize; dims.len()];
        for k in (1..dims.len()).rev() {
            strides[k - 1] = strides[k].saturating_mul(dims[k]);
        }
        let mut axes: Vec<Axis> = Vec::with_capacity(dims.len());
        for &from in order.iter().filter(|&&from| dims[from] != 1) {
            let (len, src_stride) = (dims[from], strides[from]);
            match axes.last_mut() {
                Some(last) if last.src_stride == src_stride.saturating_mul(len) => {
                    *last = Axis { len: last.len.saturating_mul(len), src_stride, dst_stride: 1 };
                }
                _ => axes.push(Axis { len, src_stride, dst_stride: 1 }),
            }
        }
        for k in (1..axes.len()).rev() {
            axes[k - 1].dst_stride = axes[k].dst_stride.saturating_mul(axes[k].len);
        }
        if axes.len() < 2 || axes.iter().any(|axis| axis.len == 0) {
            return None;
        }
        let last = axes.pop()?;
        let kind = if last.src_stride == 1 {
            Kind::Rows(last.len)
        } else {
            let contiguous = axes.iter().position(|axis| axis.src_stride == 1)?;
            Kind::Matrix { turned: last, kept: axes.remove(contiguous) }
        };
        Some(Self { element_size, outer: axes, kind })
    }

    /// Permutes all elements of `src` into `dst`. Returns `None` if one of them is too short.
    pub(super) fn copy(&self, src: HostSlice<'_>, dst: &mut HostSliceMut<'_>) -> Option<()> {
        let size = self.element_size;
        self.for_each_outer(|from, to| match self.kind {
            Kind::Rows(len) => {
                dst.reborrow()
                    .subslice(to * size, len * size)?
                    .copy_from(src.subslice(from * size, len * size)?);
                Some(())
            }
            Kind::Matrix { turned, kept } => {
                let tile = (TILE_LINE / size).max(TILE_SIDE);
                // A few rows fill their cache lines over many columns.
                let wide = if turned.len < tile { usize::MAX } else { tile };
                for r in (0..turned.len).step_by(tile) {
                    for c in (0..kept.len).step_by(wide) {
                        let (rows, cols) = (tile.min(turned.len - r), wide.min(kept.len - c));
                        let from = from + r * turned.src_stride + c;
                        let to = to + r + c * kept.dst_stride;
                        let (src, mut dst) = (tail(src, from * size)?, sink_tail(dst, to * size)?);
                        turn(size, src, turned.src_stride, &mut dst, kept.dst_stride, rows, cols)?;
                    }
                }
                Some(())
            }
        })
    }

    /// Gathers the elements block by block into `scratch`, and passes every contiguous run of the result to
    /// `consume(elements so far in destination order, run)`. Returns `None` if `src` is too short or `consume` does.
    ///
    /// `scratch` must have room for several tiles, at least for one row of a tile.
    pub(super) fn run(
        &self,
        src: HostSlice<'_>,
        scratch: &mut [u64],
        mut consume: impl FnMut(usize, HostSlice<'_>) -> Option<()>,
    ) -> Option<()> {
        let size = self.element_size;
        let room = size_of_val(scratch) / size;
        match self.kind {
            Kind::Rows(len) => self.gather_rows(len, room, src, scratch, consume),
            Kind::Matrix { turned, kept } => {
                let mut tile_rows = turned.len.min((TILE_LINE / size).max(TILE_SIDE));
                let tile_cols = kept.len.min(room / tile_rows);
                tile_rows = turned.len.min(room / tile_cols);
                self.for_each_outer(|from, to| {
                    for r in (0..turned.len).step_by(tile_rows) {
                        for c in (0..kept.len).step_by(tile_cols) {
                            let (rows, cols) = (tile_rows.min(turned.len - r), tile_cols.min(kept.len - c));
                            let from = tail(src, (from + r * turned.src_stride + c) * size)?;
                            let to = to + r + c * kept.dst_stride;
                            turn(
                                size,
                                from,
                                turned.src_stride,
                                &mut HostSliceMut::of(scratch),
                                rows,
                                rows,
                                cols,
                            )?;
                            let tile = HostSlice::of(scratch);
                            if kept.dst_stride == rows {
                                consume(to, tile.subslice(0, rows * cols * size)?)?;
                                continue;
                            }
                            for k in 0..cols {
                                consume(
                                    to + k * kept.dst_stride,
                                    tile.subslice(k * rows * size, rows * size)?,
                                )?;
                            }
                        }
                    }
                    Some(())
                })
            }
        }
    }

    /// Gathers whole rows. The rows are contiguous in the result, so short ones are collected in `scratch`.
    fn gather_rows(
        &self,
        len: usize,
        room: usize,
        src: HostSlice<'_>,
        scratch: &mut [u64],
        mut consume: impl FnMut(usize, HostSlice<'_>) -> Option<()>,
    ) -> Option<()> {
        let size = self.element_size;
        let (mut start, mut held) = (0, 0);
        self.for_each_outer(|from, to| {
            let row = src.subslice(from * size, len * size)?;
            if held > 0 && held + len > room {
                consume(start, HostSlice::of(scratch).subslice(0, held * size)?)?;
                held = 0;
            }
            if len > room {
                return consume(to, row);
            }
            if held == 0 {
                start = to;
            }
            HostSliceMut::of(scratch).subslice(held * size, len * size)?.copy_from(row);
            held += len;
            Some(())
        })?;
        if held > 0 { consume(start, HostSlice::of(scratch).subslice(0, held * size)?) } else { Some(()) }
    }

    /// Calls `body(source offset, destination offset)`, in elements, for every position of the outer axes in the
    /// destination's order.
    fn for_each_outer(&self, mut body: impl FnMut(usize, usize) -> Option<()>) -> Option<()> {
        let mut position = [0_usize; MAX_RANK];
        let (mut from, mut to) = (0, 0);
        loop {
            body(from, to)?;
            let mut k = self.outer.len();
            loop {
                if k == 0 {
                    return Some(());
                }
                k -= 1;
                let axis = self.outer[k];
                position[k] += 1;
                from += axis.src_stride;
                to += axis.dst_stride;
                if position[k] < axis.len {
                    break;
                }
                position[k] = 0;
                from -= axis.len * axis.src_stride;
                to -= axis.len * axis.dst_stride;
            }
        }
    }
}

fn tail(src: HostSlice<'_>, offset: usize) -> Option<HostSlice<'_>> {
    src.subslice(offset, src.len().checked_sub(offset)?)
}

fn sink_tail<'a>(dst: &'a mut HostSliceMut<'_>, offset: usize) -> Option<HostSliceMut<'a>> {
    let len = dst.len().checked_sub(offset)?;
    dst.reborrow().subslice(offset, len)
}

/// Copies a matrix with rows and columns exchanged; strides in elements of `size` bytes. Returns `None` if a matrix
/// exceeds its memory.
pub(super) fn turn(
    size: usize,
    src: HostSlice<'_>,
    src_stride: usize,
    dst: &mut HostSliceMut<'_>,
    dst_stride: usize,
    rows: usize,
    cols: usize,
) -> Option<()> {
    match size {
        1 => copy_transposed::<u8>(src, src_stride, dst, dst_stride, rows, cols),
        2 => copy_transposed::<u16>(src, src_stride, dst, dst_stride, rows, cols),
        4 => copy_transposed::<u32>(src, src_stride, dst, dst_stride, rows, cols),
        8 => copy_transposed::<u64>(src, src_stride, dst, dst_stride, rows, cols),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_with_neighbors_and_single_elements_is_reduced() {
        // NCHW -> NHWC is one matrix per image.
        let p = Permutation::new(&[2, 3, 4, 5], &[0, 2, 3, 1], 4).unwrap();
        assert_eq!(p.outer.len(), 1);
        assert!(matches!(p.kind, Kind::Matrix { turned, kept } if turned.len == 3 && kept.len == 20));
        assert!(Permutation::new(&[1, 7, 1], &[2, 1, 0], 4).is_none());
        assert!(Permutation::new(&[3, 0, 2], &[2, 1, 0], 4).is_none());
        assert!(Permutation::new(&[3, 4], &[0, 1], 4).is_none());
    }

    #[test]
    fn permutation_with_whole_rows_copies_rows() {
        let p = Permutation::new(&[2, 3, 4], &[1, 0, 2], 1).unwrap();
        assert!(matches!(p.kind, Kind::Rows(4)));
    }
}
