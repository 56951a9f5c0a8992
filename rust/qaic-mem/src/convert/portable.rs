//! Kernels for any architecture.
//!
//! Foreign memory is never borrowed as a slice (see `view`). A kernel copies a block into scratch memory that stays
//! in the first-level cache, computes there with ordinary slices, and copies the results out. The loops are written
//! so that the compiler vectorizes them for the target's baseline.

use half::f16;
use qaic_quant::affine;

use super::quantize::QuantType;
use super::{ElementOp, half as half_kernel};
use crate::{HostSlice, HostSliceMut, Pod};

/// Number of elements of a block. Source and result together stay below 16 KiB.
const BLOCK: usize = 1024;

/// Number of elements of a block for the remainder of a vector kernel, because clearing a larger block would cost
/// more than the work.
const TAIL: usize = 64;

/// Applies `op` to as many elements as both sides contain.
pub(super) fn apply(op: ElementOp, src: HostSlice<'_>, dst: HostSliceMut<'_>) {
    if op.elements(src.len(), dst.len()) <= TAIL {
        sized::<TAIL>(op, src, dst);
    } else {
        sized::<BLOCK>(op, src, dst);
    }
}

fn sized<const N: usize>(op: ElementOp, src: HostSlice<'_>, dst: HostSliceMut<'_>) {
    match op {
        ElementOp::F32ToF16 => {
            blocks::<N, _, _>(src, dst, |x: &[f32], y: &mut [f16]| half_kernel::narrow(x, y));
        }
        ElementOp::F16ToF32 => {
            blocks::<N, _, _>(src, dst, |x: &[f16], y: &mut [f32]| half_kernel::widen(x, y));
        }
        ElementOp::Quantize(to, p) => {
            let sum = |x| affine::sum(x, p.scale, p.offset);
            match to {
                QuantType::I8 => each::<N, _, _>(src, dst, |x: f32| affine::to_i8(sum(x))),
                QuantType::U8 => each::<N, _, _>(src, dst, |x: f32| unsigned(affine::to_i8(sum(x)))),
                QuantType::I16 => each::<N, _, _>(src, dst, |x: f32| affine::to_i16(sum(x))),
                QuantType::I32 => each::<N, _, _>(src, dst, |x: f32| affine::to_i32(sum(x))),
            }
        }
        ElementOp::Dequantize(from, p) => {
            let value = |q| p.scale * affine::difference(q, p.offset);
            match from {
                QuantType::I8 => each::<N, _, _>(src, dst, |q: i8| value(q.into())),
                QuantType::U8 => each::<N, _, _>(src, dst, |q: u8| value(signed(q).into())),
                QuantType::I16 => each::<N, _, _>(src, dst, |q: i16| value(q.into())),
                QuantType::I32 => each::<N, _, _>(src, dst, value),
            }
        }
    }
}

/// Returns the stored form of an unsigned 8-bit value.
#[inline]
fn unsigned(signed: i8) -> u8 {
    signed.cast_unsigned() ^ 0x80
}

/// Returns the signed value that the arithmetic uses for a stored unsigned 8-bit value.
#[inline]
fn signed(unsigned: u8) -> i8 {
    (unsigned ^ 0x80).cast_signed()
}

#[inline]
fn each<const N: usize, A: Pod, B: Pod>(src: HostSlice<'_>, dst: HostSliceMut<'_>, f: impl Fn(A) -> B) {
    blocks::<N, _, _>(src, dst, |x: &[A], y: &mut [B]| {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = f(x);
        }
    });
}

#[inline]
fn blocks<const N: usize, A: Pod, B: Pod>(
    src: HostSlice<'_>,
    mut dst: HostSliceMut<'_>,
    kernel: impl Fn(&[A], &mut [B]),
) {
    let total = (src.len() / size_of::<A>()).min(dst.len() / size_of::<B>());
    let (mut x, mut y) = ([A::zeroed(); N], [B::zeroed(); N]);
    let mut done = 0;
    while done < total {
        let count = N.min(total - done);
        let read = src.read_into(done * size_of::<A>(), &mut x[..count]);
        kernel(&x[..count], &mut y[..count]);
        let written = dst.write_from(done * size_of::<B>(), &y[..count]);
        debug_assert!(read.is_some() && written.is_some(), "`total` is what both sides hold");
        done += count;
    }
}
