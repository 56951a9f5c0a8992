//! Vector kernels for x86-64: half-float conversion, quantization and dequantization.
//!
//! Each kernel is one loop over whole vectors; the portable kernel processes the remaining elements. The results
//! equal those of the portable kernels bit for bit (property test in `tests/kernels.rs`).
//!
//! Safety relies on two patterns. A kernel takes a [`HostSlice`] and a [`HostSliceMut`], computes the number of whole
//! vectors from *their* lengths, and accesses no other memory. A value of [`Features`] proves that the machine has
//! the instructions, because it is created only after they were detected.
//!
//! The vector kernels for 8 and 16 bits support only moderate parameters (`is_moderate`). With these, no
//! quotient that can influence a result overflows or underflows, and values fit 32 bits before they are clipped.

// All loads and stores are unaligned, so casts need not keep the alignment.
#![allow(clippy::cast_ptr_alignment)]
// The names of the intrinsics show their family; a list of 40 imports adds no information.
#![allow(clippy::wildcard_imports)]

use std::arch::x86_64::*;

use qaic_quant::mx::{self, MxFormat, NotFinite};

use super::quantize::{QuantType, is_moderate};
use super::{ElementOp, Isa, QuantParams, portable};
use crate::{HostSlice, HostSliceMut};

/// Proof that the machine has AVX2, F16C and FMA.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    // Invariant: also AVX-512 F, BW and VL.
    is_wide: bool,
}

impl Features {
    /// Returns the part of `isa` that this machine supports; `None` if that is too little, as in interpreters of Rust
    /// code.
    pub(super) fn detect(isa: Isa) -> Option<Self> {
        if isa == Isa::Portable || cfg!(miri) {
            return None;
        }
        let has_all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma");
        let is_wide = isa == Isa::Avx512
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        has_all.then_some(Self { is_wide })
    }

    /// Returns true if there are 512-bit vectors with masks.
    pub(super) fn is_wide(self) -> bool {
        self.is_wide
    }
}

/// Applies `op` to as many elements as both sides contain.
pub(super) fn apply(features: Features, op: ElementOp, src: HostSlice<'_>, mut dst: HostSliceMut<'_>) {
    let count = op.elements(src.len(), dst.len());
    let done = apply_vectors(features, op, src, &dst, count);
    let left = count - done;
    if left == 0 {
        return;
    }
    let (size_in, size_out) = (op.source_size(), op.result_size());
    if let (Some(src), Some(dst)) = (
        src.subslice(done * size_in, left * size_in),
        dst.reborrow().subslice(done * size_out, left * size_out),
    ) {
        portable::apply(op, src, dst);
    }
}

/// Applies `op` to the whole vectors among the first `count` elements. Returns the number of processed elements, 0 if
/// `op` has no vector kernel.
fn apply_vectors(
    features: Features,
    op: ElementOp,
    src: HostSlice<'_>,
    dst: &HostSliceMut<'_>,
    count: usize,
) -> usize {
    match (op, features.is_wide) {
        (ElementOp::F32ToF16, true) => {
            // SAFETY: wide features have AVX-512 F.
            unsafe { narrow_512(src, dst, count) }
        }
        (ElementOp::F32ToF16, false) => {
            // SAFETY: all features have AVX and F16C.
            unsafe { narrow_256(src, dst, count) }
        }
        (ElementOp::F16ToF32, _) => {
            // SAFETY: all features have AVX and F16C.
            unsafe { widen_256(src, dst, count) }
        }
        (ElementOp::Quantize(QuantType::I32, p), _) => {
            // SAFETY: all features have AVX2.
            unsafe { quantize_i32_256(p, src, dst, count) }
        }
        (ElementOp::Quantize(to, p), _) if is_moderate(p) => {
            quantize(features, to, Divisor::new(p), src, dst, count)
        }
        (ElementOp::Dequantize(from, p), is_wide) if is_moderate(p) && from != QuantType::I32 => {
            match (from, is_wide) {
                (QuantType::I16, _) => {
                    // SAFETY: all features have AVX2.
                    unsafe { dequantize_i16_256(p, src, dst, count) }
                }
                (_, true) => {
                    // SAFETY: wide features have AVX-512 F and VL.
                    unsafe { dequantize_8_512(p, from == QuantType::U8, src, dst, count) }
                }
                (_, false) => {
                    // SAFETY: all features have AVX2.
                    unsafe { dequantize_8_256(p, from == QuantType::U8, src, dst, count) }
                }
            }
        }
        _ => 0,
    }
}

/// Encodes rows as [`mx::encode`] does, whose code is compiled again for wider vectors.
pub(super) fn encode_mxfp6(
    features: Features,
    row_len: usize,
    values: &[f32],
    stored: &mut [u8],
) -> NotFinite {
    if features.is_wide {
        // SAFETY: wide features have AVX-512 F, BW and VL.
        unsafe { encode_mxfp6_512(row_len, values, stored) }
    } else {
        // SAFETY: all features have AVX2.
        unsafe { encode_mxfp6_256(row_len, values, stored) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn encode_mxfp6_512(row_len: usize, values: &[f32], stored: &mut [u8]) -> NotFinite {
    mx::encode(MxFormat::Fp6E2M3, row_len, values, stored)
}

#[target_feature(enable = "avx2")]
fn encode_mxfp6_256(row_len: usize, values: &[f32], stored: &mut [u8]) -> NotFinite {
    mx::encode(MxFormat::Fp6E2M3, row_len, values, stored)
}

/// Quantizes to 8 or 16 bits.
fn quantize(
    features: Features,
    to: QuantType,
    d: Divisor,
    src: HostSlice<'_>,
    dst: &HostSliceMut<'_>,
    count: usize,
) -> usize {
    match (to, features.is_wide) {
        (QuantType::I16, true) => {
            // SAFETY: wide features have AVX-512 F and BW.
            unsafe { quantize_i16_512(d, src, dst, count) }
        }
        (QuantType::I16, false) => {
            // SAFETY: all features have AVX2 and FMA.
            unsafe { quantize_i16_256(d, src, dst, count) }
        }
        (_, true) => {
            // SAFETY: wide features have AVX-512 F and BW.
            unsafe { quantize_8_512(d, to == QuantType::U8, src, dst, count) }
        }
        (_, false) => {
            // SAFETY: all features have AVX2 and FMA.
            unsafe { quantize_8_256(d, to == QuantType::U8, src, dst, count) }
        }
    }
}

/// Constants of a quantization, shared by all elements.
#[derive(Clone, Copy)]
struct Divisor {
    scale: f32,
    /// Limit beyond which inputs are always clipped.
    limit: f32,
    offset: f32,
}

impl Divisor {
    #[allow(clippy::cast_precision_loss)] // the rounding of a large offset is part of the definition
    fn new(p: QuantParams) -> Self {
        Self {
            scale: p.scale,
            limit: p.scale * 1_073_741_824.0, // 2^30: beyond every clip bound, offset included
            offset: p.offset as f32,
        }
    }
}

/// Computes eight lanes of `round(x / scale + offset)`, not yet clipped to the type.
///
/// Values above the 32-bit range are clamped first. Values below it, and NaN, are converted to the lowest 32-bit
/// value, which the clip then changes to the lowest value of the type. (`min` returns its second operand for a NaN.)
#[target_feature(enable = "avx2,fma")]
#[inline]
fn shifted_256(d: Divisor, x: __m256) -> __m256i {
    let x = _mm256_min_ps(_mm256_set1_ps(d.limit), x);
    let quotient = _mm256_div_ps(x, _mm256_set1_ps(d.scale));
    _mm256_cvtps_epi32(_mm256_add_ps(quotient, _mm256_set1_ps(d.offset)))
}

/// Computes sixteen lanes of the same expression.
#[target_feature(enable = "avx512f")]
#[inline]
fn shifted_512(d: Divisor, x: __m512) -> __m512i {
    let x = _mm512_min_ps(_mm512_set1_ps(d.limit), x);
    let quotient = _mm512_div_ps(x, _mm512_set1_ps(d.scale));
    _mm512_cvtps_epi32(_mm512_add_ps(quotient, _mm512_set1_ps(d.offset)))
}

#[target_feature(enable = "avx,f16c")]
fn narrow_256(src: HostSlice<'_>, dst: &HostSliceMut<'_>, count: usize) -> usize {
    let (from, to) = (src.as_ptr().cast::<f32>(), dst.as_mut_ptr().cast::<u16>());
    let whole = count - count % 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: elements i..i+8 are below `count`, which `src` holds.
        let x = unsafe { _mm256_loadu_ps(from.wrapping_add(i)) };
        let y = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
        // SAFETY: elements i..i+8 are below `count`, which `dst` holds.
        unsafe { _mm_storeu_si128(to.wrapping_add(i).cast(), y) };
    }
    whole
}

#[target_feature(enable = "avx512f")]
fn narrow_512(src: HostSlice<'_>, dst: &HostSliceMut<'_>, count: usize) -> usize {
    let (from, to) = (src.as_ptr().cast::<f32>(), dst.as_mut_ptr().cast::<u16>());
    let whole = count - count % 16;
    for i in (0..whole).step_by(16) {
        // SAFETY: elements i..i+16 are below `count`, which `src` holds.
        let x = unsafe { _mm512_loadu_ps(from.wrapping_add(i)) };
        let y = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
        // SAFETY: elements i..i+16 are below `count`, which `dst` holds.
        unsafe { _mm256_storeu_si256(to.wrapping_add(i).cast(), y) };
    }
    whole
}

#[target_feature(enable = "avx,f16c")]
fn widen_256(src: HostSlice<'_>, dst: &HostSliceMut<'_>, count: usize) -> usize {
    let (from, to) = (src.as_ptr().cast::<u16>(), dst.as_mut_ptr().cast::<f32>());
    let whole = count - count % 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: elements i..i+8 are below `count`, which `src` holds.
        let x = unsafe { _mm_loadu_si128(from.wrapping_add(i).cast()) };
        let y = _mm256_cvtph_ps(x);
        // SAFETY: elements i..i+8 are below `count`, which `dst` holds.
        unsafe { _mm256_storeu_ps(to.wrapping_add(i), y) };
    }
    whole
}

#[target_feature(enable = "avx2,fma")]
fn quantize_8_256(
    d: Divisor,
    unsigned: bool,
    src: HostSlice<'_>,
    dst: &HostSliceMut<'_>,
    count: usize,
) -> usize {
    let (from, to) = (src.as_ptr().cast::<f32>(), dst.as_mut_ptr());
    let flip = _mm256_set1_epi8(if unsigned { i8::MIN } else { 0 });
    // The packs work within 128-bit halves; this permutation restores the order of their 4-byte groups.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let whole = count - count % 32;
    for i in (0..whole).step_by(32) {
        let lanes = [0, 8, 16, 24].map(|k| {
            // SAFETY: elements i+k..i+k+8 are below `count`, which `src` holds.
            let x = unsafe { _mm256_loadu_ps(from.wrapping_add(i + k)) };
            shifted_256(d, x)
        });
        let low = _mm256_packs_epi32(lanes[0], lanes[1]);
        let high = _mm256_packs_epi32(lanes[2], lanes[3]);
        let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        let y = _mm256_xor_si256(bytes, flip);
        // SAFETY: elements i..i+32 are below `count`, which `dst` holds.
        unsafe { _mm256_storeu_si256(to.wrapping_add(i).cast(), y) };
    }
    whole
}

#[target_feature(enable = "avx512f,avx512bw")]
fn quantize_8_512(
    d: Divisor,
    unsigned: bool,
    src: HostSlice<'_>,
    dst: &HostSliceMut<'_>,
    count: usize,
) -> usize {
    let (from, to) = (src.as_ptr().cast::<f32>(), dst.as_mut_ptr());
    let flip = _mm512_set1_epi8(if unsigned { i8::MIN } else { 0 });
    // The packs work within 128-bit quarters; this permutation restores the order of their 4-byte groups.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let whole = count - count % 64;
    for i in (0..whole).step_by(64) {
        let lanes = [0, 16, 32, 48].map(|k| {
            // SAFETY: elements i+k..i+k+16 are below `count`, which `src` holds.
            let x = unsafe { _mm512_loadu_ps(from.wrapping_add(i + k)) };
            shifted_512(d, x)
        });
        let low = _mm512_packs_epi32(lanes[0], lanes[1]);
        let high = _mm512_packs_epi32(lanes[2], lanes[3]);
        let bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
        let y = _mm512_xor_si512(bytes, flip);
        // SAFETY: elements i..i+64 are below `count`, which `dst` holds.
        unsafe { _mm512_storeu_si512(to.wrapping_add(i).cast(), y) };
    }
    whole
}

#[target_feature(enable = "avx2,fma")]
fn quantize_i16_256(d: Divisor, src: HostSlice<'_>, dst: &HostSliceMut<'_>, count: usize) -> usize {
    let (from, to) = (src.as_ptr().cast::<f32>(), dst.as_mut_ptr().cast::<i16>());
    let whole = count - count % 16;
    for i in (0..whole).step_by(16) {
        let lanes = [0, 8].map(|k| {
            // SAFETY: elements i+k..i+k+8 are below `count`, which `src` holds.
            let x = unsafe { _mm256_loadu_ps(from.wrapping_add(i + k)) };
            shifted_256(d, x)
        });
        // The pack works within 128-bit halves; the permutation restores the order of their 8-byte groups.
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(lanes[0], lanes[1]));
        // SAFETY: elements i..i+16 are below `count`, which `dst` holds.
        unsafe { _mm256_storeu_si256(to.wrapping_add(i).cast(), words) };
    }
    whole
}

#[target_feature(enable = "avx512f,avx512bw")]
fn quantize_i16_512(d: Divisor, src: HostSlice<'_>, dst: &HostSliceMut<'_>, count: usize) -> usize {
    let (from, to) = (src.as_ptr().cast::<f32>(), dst.as_mut_ptr().cast::<i16>());
    let whole = count - count % 16;
    for i in (0..whole).step_by(16) {
        // SAFETY: elements i..i+16 are below `count`, which `src` holds.
        let x = unsafe { _mm512_loadu_ps(from.wrapping_add(i)) };
        let words = _mm512_cvtsepi32_epi16(shifted_512(d, x));
        // SAFETY: elements i..i+16 are below `count`, which `dst` holds.
        unsafe { _mm256_storeu_si256(to.wrapping_add(i).cast(), words) };
    }
    whole
}

#[target_feature(enable = "avx2")]
fn quantize_i32_256(p: QuantParams, src: HostSlice<'_>, dst: &HostSliceMut<'_>, count: usize) -> usize {
    let (from, to) = (src.as_ptr().cast::<f32>(), dst.as_mut_ptr().cast::<i32>());
    #[allow(clippy::cast_precision_loss)] // the rounding of a large offset is part of the definition
    let (scale, offset) = (_mm256_set1_ps(p.scale), _mm256_set1_ps(p.offset as f32));
    let whole = count - count % 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: elements i..i+8 are below `count`, which `src` holds.
        let x = unsafe { _mm256_loadu_ps(from.wrapping_add(i)) };
        let shifted = _mm256_add_ps(_mm256_div_ps(x, scale), offset);
        // The conversion returns the lowest value for numbers that it cannot represent; the result is flipped for too
        // high numbers.
        let high = _mm256_cmp_ps::<_CMP_GE_OQ>(shifted, _mm256_set1_ps(2_147_483_648.0));
        let y = _mm256_xor_si256(_mm256_cvtps_epi32(shifted), _mm256_castps_si256(high));
        // SAFETY: elements i..i+8 are below `count`, which `dst` holds.
        unsafe { _mm256_storeu_si256(to.wrapping_add(i).cast(), y) };
    }
    whole
}

#[target_feature(enable = "avx2")]
fn dequantize_8_256(
    p: QuantParams,
    unsigned: bool,
    src: HostSlice<'_>,
    dst: &HostSliceMut<'_>,
    count: usize,
) -> usize {
    let (from, to) = (src.as_ptr(), dst.as_mut_ptr().cast::<f32>());
    let flip = _mm_set1_epi8(if unsigned { i8::MIN } else { 0 });
    let (scale, offset) = (_mm256_set1_ps(p.scale), _mm256_set1_epi32(p.offset));
    let whole = count - count % 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: elements i..i+8 are below `count`, which `src` holds; `loadl` reads eight bytes.
        let q = unsafe { _mm_loadl_epi64(from.wrapping_add(i).cast()) };
        let q = _mm256_cvtepi8_epi32(_mm_xor_si128(q, flip));
        let x = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_sub_epi32(q, offset)));
        // SAFETY: elements i..i+8 are below `count`, which `dst` holds.
        unsafe { _mm256_storeu_ps(to.wrapping_add(i), x) };
    }
    whole
}

#[target_feature(enable = "avx512f,avx512vl")]
fn dequantize_8_512(
    p: QuantParams,
    unsigned: bool,
    src: HostSlice<'_>,
    dst: &HostSliceMut<'_>,
    count: usize,
) -> usize {
    let (from, to) = (src.as_ptr(), dst.as_mut_ptr().cast::<f32>());
    let flip = _mm_set1_epi8(if unsigned { i8::MIN } else { 0 });
    let (scale, offset) = (_mm512_set1_ps(p.scale), _mm512_set1_epi32(p.offset));
    let whole = count - count % 16;
    for i in (0..whole).step_by(16) {
        // SAFETY: elements i..i+16 are below `count`, which `src` holds.
        let q = unsafe { _mm_loadu_si128(from.wrapping_add(i).cast()) };
        let q = _mm512_cvtepi8_epi32(_mm_xor_si128(q, flip));
        let x = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_sub_epi32(q, offset)));
        // SAFETY: elements i..i+16 are below `count`, which `dst` holds.
        unsafe { _mm512_storeu_ps(to.wrapping_add(i), x) };
    }
    whole
}

#[target_feature(enable = "avx2")]
fn dequantize_i16_256(p: QuantParams, src: HostSlice<'_>, dst: &HostSliceMut<'_>, count: usize) -> usize {
    let (from, to) = (src.as_ptr().cast::<i16>(), dst.as_mut_ptr().cast::<f32>());
    let (scale, offset) = (_mm256_set1_ps(p.scale), _mm256_set1_epi32(p.offset));
    let whole = count - count % 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: elements i..i+8 are below `count`, which `src` holds.
        let q = unsafe { _mm_loadu_si128(from.wrapping_add(i).cast()) };
        let x = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_cvtepi16_epi32(q), offset));
        let y = _mm256_mul_ps(scale, x);
        // SAFETY: elements i..i+8 are below `count`, which `dst` holds.
        unsafe { _mm256_storeu_ps(to.wrapping_add(i), y) };
    }
    whole
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Elements of the widest vector: those of one byte.
    const MOST_LANES: usize = 64;

    #[test]
    fn machine_is_not_asked_for_more_than_the_family_has() {
        assert!(Features::detect(Isa::Portable).is_none());
        assert!(Features::detect(Isa::Avx2).is_none_or(|features| !features.is_wide()));
    }

    proptest! {
        #[test]
        fn vector_kernels_leave_less_than_a_vector(count in 0..300_usize) {
            let p = QuantParams { scale: 0.5, offset: -3 };
            let ops = [
                ElementOp::F32ToF16,
                ElementOp::F16ToF32,
                ElementOp::Quantize(QuantType::I8, p),
                ElementOp::Quantize(QuantType::U8, p),
                ElementOp::Quantize(QuantType::I16, p),
                ElementOp::Quantize(QuantType::I32, p),
                ElementOp::Dequantize(QuantType::I8, p),
                ElementOp::Dequantize(QuantType::U8, p),
                ElementOp::Dequantize(QuantType::I16, p),
            ];
            for features in [Isa::Avx2, Isa::Avx512].into_iter().filter_map(Features::detect) {
                for op in ops {
                    let (src, mut dst) = (vec![0_u8; count * op.source_size()], vec![0_u8; count * op.result_size()]);
                    let dst = HostSliceMut::of(&mut dst);
                    let done = apply_vectors(features, op, HostSlice::of(&src), &dst, count);
                    prop_assert!((0..MOST_LANES).contains(&(count - done)), "{features:?} {op:?}: {done} of {count}");
                }
            }
        }
    }
}
