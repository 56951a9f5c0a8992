//! Conversion between float32 and float16 in blocks of scratch memory.
//!
//! Rounding is to nearest, ties to even. Overflow results in infinity. A NaN stays a NaN (quiet, with its upper
//! payload bits), and subnormals are exact. The `half` crate has these semantics on every architecture and uses the
//! machine's conversion instructions if available. It is therefore both the definition and the portable kernel.

use half::{f16, slice::HalfFloatSliceExt};

/// Converts as many elements as both slices contain.
pub(super) fn narrow(src: &[f32], dst: &mut [f16]) {
    let count = src.len().min(dst.len());
    dst[..count].convert_from_f32_slice(&src[..count]);
}

/// Converts as many elements as both slices contain; exact.
pub(super) fn widen(src: &[f16], dst: &mut [f32]) {
    let count = src.len().min(dst.len());
    src[..count].convert_to_f32_slice(&mut dst[..count]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_at_the_ends_of_the_range_rounds_to_even() {
        let cases: [(f32, u16); 14] = [
            (65504.0, 0x7bff),
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (-65520.0, 0xfc00),
            (f32::INFINITY, 0x7c00),
            (f32::MAX, 0x7c00),
            (0.0, 0),
            (-0.0, 0x8000),
            (5.960_464_5e-8, 1),          // smallest subnormal
            (2.980_232_2e-8, 0),          // half of it: tie to even
            (2.980_232_6e-8, 1),          // just above the tie
            (6.097_555e-5, 0x03ff),       // largest subnormal
            (1.0 + 1.0 / 2048.0, 0x3c00), // tie, even below
            (1.0 + 3.0 / 2048.0, 0x3c02), // tie, even above
        ];
        for (x, bits) in cases {
            let mut out = [f16::ZERO];
            narrow(&[x], &mut out);
            assert_eq!(out[0].to_bits(), bits, "{x:e}");
        }
    }

    #[test]
    fn narrow_of_nan_is_nan() {
        let mut out = [f16::ZERO; 2];
        narrow(&[f32::NAN, f32::from_bits(0xff80_0001)], &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
    }
}
