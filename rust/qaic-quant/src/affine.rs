//! The arithmetic of affine quantization, as one definition that every kernel reproduces bit for bit.
//!
//! * quantize: `q = clip(round_half_even(x / scale + offset))`, division and addition each rounded to f32;
//! * dequantize: `x = scale * (q - offset)`, the difference exact, then rounded to f32, then the product.
//!
//! NaN becomes the lowest value of the type. The formula does not define this result. It follows from clipping with
//! "greater than the lower bound, else the lower bound", is the same on every machine, and equals the conversion of
//! NaN followed by a clip on the x86 hosts of the original stack.

/// `1.5 * 2^23`. Adding it to a float32 number of magnitude below `2^22` leaves the number rounded half to
/// even in the low bits.
const ROUNDER: f32 = 12_582_912.0;
/// Magnitude from which every float32 value is an integer.
const ALL_INTEGERS: f32 = 8_388_608.0;

/// `x / scale + offset`, not yet rounded to an integer.
#[inline]
pub fn sum(x: f32, scale: f32, offset: i32) -> f32 {
    x / scale + offset as f32
}

/// A sum as an integer of 8 bits.
#[inline]
pub fn to_i8(sum: f32) -> i8 {
    narrow(sum, -128.0, 127.0) as i8
}

/// A sum as an integer of 16 bits.
#[inline]
pub fn to_i16(sum: f32) -> i16 {
    narrow(sum, -32768.0, 32767.0) as i16
}

/// A sum as an integer of 32 bits.
#[inline]
pub fn to_i32(sum: f32) -> i32 {
    let magic = ALL_INTEGERS.copysign(sum);
    let rounded = if sum.abs() < ALL_INTEGERS { (sum + magic) - magic } else { sum };
    // The cast saturates, which clips the value.
    if rounded.is_nan() { i32::MIN } else { rounded as i32 }
}

/// `q - offset`, exact, then rounded to f32.
#[inline]
pub fn difference(q: i32, offset: i32) -> f32 {
    // Both terms and their difference are exact in float64, which vector units convert faster than int64.
    (f64::from(q) - f64::from(offset)) as f32
}

/// Bounds are below `2^22`, so that one addition rounds. Clips to integers first, which rounding cannot leave again.
#[inline]
fn narrow(sum: f32, lowest: f32, highest: f32) -> i32 {
    let above = if sum > lowest { sum } else { lowest };
    let clipped = if above < highest { above } else { highest };
    (clipped + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()) as i32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sums_that_do_not_fit_are_clipped_and_nan_is_the_lowest() {
        for (sum, expected) in
            [(f32::INFINITY, 127), (f32::NEG_INFINITY, -128), (f32::NAN, -128), (127.5, 127)]
        {
            assert_eq!(to_i8(sum), expected, "{sum}");
        }
        assert_eq!([f32::NAN, f32::NEG_INFINITY, 4e9].map(to_i16), [i16::MIN, i16::MIN, i16::MAX]);
        assert_eq!([f32::NAN, f32::NEG_INFINITY, 4e9].map(to_i32), [i32::MIN, i32::MIN, i32::MAX]);
    }

    proptest! {
        /// Oracle: the rounding of the standard library, and the saturating cast.
        #[test]
        fn sum_becomes_the_nearest_integer_half_to_even(bits: u32, halves in -70_000_i32..70_000) {
            for sum in [f32::from_bits(bits), halves as f32 / 2.0] {
                let nearest = f64::from(sum).round_ties_even();
                if !nearest.is_nan() {
                    prop_assert_eq!(f64::from(to_i8(sum)), nearest.clamp(-128.0, 127.0));
                    prop_assert_eq!(f64::from(to_i16(sum)), nearest.clamp(-32768.0, 32767.0));
                    prop_assert_eq!(f64::from(to_i32(sum)), nearest.clamp(f64::from(i32::MIN), f64::from(i32::MAX)));
                }
            }
        }

        #[test]
        fn difference_is_rounded_once(q: i32, offset: i32) {
            prop_assert_eq!(difference(q, offset), (i64::from(q) - i64::from(offset)) as f32);
        }
    }
}
