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

/// Converts a float64 number, rounded once.
pub(super) fn narrow_f64(value: f64) -> f16 {
    #[allow(clippy::cast_possible_truncation)] // the lost digits are recorded below
    let near = value as f32;
    #[allow(clippy::float_cmp)] // exact if no digits were lost
    let is_exact = f64::from(near) == value;
    if is_exact || !value.is_finite() {
        return f16::from_f32(near);
    }
    // Rounding to an odd float32 number records the lost digits in the lowest bit, so the second rounding is exact.
    let toward_zero = if f64::from(near).abs() > value.abs() { near.to_bits() - 1 } else { near.to_bits() };
    f16::from_f32(f32::from_bits(toward_zero | 1))
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
    fn float64_is_rounded_once() {
        let tie = 1.0 + 1.0 / 2048.0;
        let cases = [
            (tie, 0x3c00),
            // Rounding to float32 first would return the tie.
            (tie + 1e-12, 0x3c01),
            (-tie - 1e-12, 0xbc01),
            (tie - 1e-12, 0x3c00),
            (65_519.999_999_999, 0x7bff),
            (65520.0, 0x7c00),
            (1e300, 0x7c00),
            (-1e300, 0xfc00),
            (1e-300, 0),
            (2.0_f64.powi(-25) * (1.0 + 1e-12), 1),
            (f64::NEG_INFINITY, 0xfc00),
        ];
        for (x, bits) in cases {
            assert_eq!(narrow_f64(x).to_bits(), bits, "{x:e}");
        }
        assert!(narrow_f64(f64::NAN).is_nan());
    }

    #[test]
    fn narrow_of_nan_is_nan() {
        let mut out = [f16::ZERO; 2];
        narrow(&[f32::NAN, f32::from_bits(0xff80_0001)], &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
    }
}
