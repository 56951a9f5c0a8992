//! The arithmetic of quantization (qpc-format §3.6), as one definition that every kernel reproduces bit for bit.
//!
//! * quantize: `q = clip(round_half_even(x / scale + offset))`, division and addition each rounded to f32;
//! * dequantize: `x = scale * (q - offset)`, the difference exact, then rounded to f32, then the product.
//!
//! The offset of an unsigned 8-bit tensor refers to the stored value minus 128, so those kernels work on the signed
//! value and flip the top bit.
//!
//! NaN becomes the lowest value of the type. The formula does not say; this is what clipping with "greater than the
//! lower bound, else the lower bound" gives, it is the same on every machine, and it is what the conversion of a NaN
//! followed by a clip gives on the x86 hosts of the original stack.

use super::divide::Reciprocal;

/// Integer types a float can be quantized to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantType {
    /// Signed 8 bits.
    I8,
    /// Unsigned 8 bits; the offset refers to the value minus 128.
    U8,
    /// Signed 16 bits.
    I16,
    /// Signed 32 bits.
    I32,
}

impl QuantType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 => 2,
            Self::I32 => 4,
        }
    }
}

/// Scale and offset of a quantized tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantParams {
    scale: f32,
    offset: i32,
    /// Where a product can stand for the division.
    reciprocal: Option<Reciprocal>,
}

/// `1.5 * 2^23`. Adding it to a float of magnitude below `2^22` leaves the float rounded half to even in the low bits.
const ROUNDER: f32 = 12_582_912.0;
/// From this magnitude on every f32 is an integer.
const ALL_INTEGERS: f32 = 8_388_608.0;

impl QuantParams {
    /// Parameters with `scale` the difference of two neighbouring quantized values and `offset` the quantized value
    /// of zero.
    pub fn new(scale: f32, offset: i32) -> Self {
        let plain = Self { scale, offset, reciprocal: None };
        let reciprocal = if plain.moderate() { Reciprocal::proven(scale) } else { None };
        Self { reciprocal, ..plain }
    }

    /// Difference of two neighbouring quantized values.
    pub const fn scale(self) -> f32 {
        self.scale
    }

    /// Quantized value of zero.
    pub const fn offset(self) -> i32 {
        self.offset
    }

    /// Whether vector kernels multiply by the reciprocal of the scale instead of dividing, because that is exact.
    pub const fn multiplies(self) -> bool {
        self.reciprocal.is_some()
    }

    /// The reciprocal by which to multiply instead of dividing, where that is exact.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) const fn reciprocal(self) -> Option<Reciprocal> {
        self.reciprocal
    }

    /// `x / scale + offset`, not yet rounded to an integer.
    #[inline]
    #[allow(clippy::cast_precision_loss)] // the rounding of a large offset is part of the definition
    fn shifted(self, x: f32) -> f32 {
        x / self.scale + self.offset as f32
    }

    /// Quantizes to a type whose bounds are below `2^22`, so that one addition rounds.
    #[inline]
    fn narrow(self, x: f32, low: f32, high: f32) -> i32 {
        let shifted = self.shifted(x);
        let above = if shifted > low { shifted } else { low };
        let clipped = if above < high { above } else { high };
        (clipped + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed()
    }

    /// Quantized `x` as i8.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // clipped to the type's range
    pub fn quantize_i8(self, x: f32) -> i8 {
        self.narrow(x, -128.0, 127.0) as i8
    }

    /// Quantized `x` as u8.
    #[inline]
    pub fn quantize_u8(self, x: f32) -> u8 {
        self.quantize_i8(x).cast_unsigned() ^ 0x80
    }

    /// Quantized `x` as i16.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // clipped to the type's range
    pub fn quantize_i16(self, x: f32) -> i16 {
        self.narrow(x, -32768.0, 32767.0) as i16
    }

    /// Quantized `x` as i32.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // saturating is the clip wanted here
    pub fn quantize_i32(self, x: f32) -> i32 {
        let shifted = self.shifted(x);
        let magic = ALL_INTEGERS.copysign(shifted);
        let rounded = if shifted.abs() < ALL_INTEGERS { (shifted + magic) - magic } else { shifted };
        if rounded.is_nan() { i32::MIN } else { rounded as i32 }
    }

    /// The float a quantized value stands for.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the rounding to f32 is part of the definition
    pub fn dequantize(self, q: i32) -> f32 {
        // Both terms and their difference are exact in f64.
        self.scale * ((f64::from(q) - f64::from(self.offset)) as f32)
    }

    /// The float a stored u8 stands for.
    #[inline]
    pub fn dequantize_u8(self, q: u8) -> f32 {
        self.dequantize(i32::from((q ^ 0x80).cast_signed()))
    }

    /// Whether scale and offset are in the range where the vector kernels are proven exact: no intermediate value
    /// over- or underflows, and the shifted value fits 32 bits.
    pub(super) fn moderate(self) -> bool {
        let limit = 1.152_921_5e18_f32; // 2^60
        self.scale >= 1.0 / limit && self.scale <= limit && self.offset.unsigned_abs() <= 1 << 29
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)] // bit for bit is what is promised

    use super::*;

    #[test]
    fn published_examples_hold() {
        let p = QuantParams::new(0.05, -3);
        assert_eq!([1.0, 100.0, -100.0].map(|x| p.quantize_i8(x)), [17, 127, -128]);
        assert!((p.dequantize(17) - 1.0).abs() < 1e-6);
        let ties = QuantParams::new(2.0, 0);
        assert_eq!([1.0, 3.0, -1.0, -3.0, 5.0].map(|x| ties.quantize_i8(x)), [0, 2, 0, -2, 2]);
    }

    #[test]
    fn unsigned_offset_refers_to_the_signed_value() {
        let p = QuantParams::new(1.0 / 255.0, -128);
        assert_eq!((p.quantize_u8(0.0), p.quantize_u8(1.0)), (0, 255));
        assert_eq!((p.dequantize_u8(0), p.dequantize_u8(255)), (0.0, 1.0));
    }

    #[test]
    fn nan_and_infinities_clip() {
        let p = QuantParams::new(0.5, 9);
        let x = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY];
        assert_eq!(x.map(|x| p.quantize_i8(x)), [-128, -128, 127]);
        assert_eq!(x.map(|x| p.quantize_u8(x)), [0, 0, 255]);
        assert_eq!(x.map(|x| p.quantize_i16(x)), [i16::MIN, i16::MIN, i16::MAX]);
        assert_eq!(x.map(|x| p.quantize_i32(x)), [i32::MIN, i32::MIN, i32::MAX]);
    }

    #[test]
    fn i32_rounds_half_to_even_up_to_the_last_fraction() {
        let p = QuantParams::new(1.0, 0);
        for (x, q) in [(0.5, 0), (1.5, 2), (4_194_304.5, 4_194_304), (8_388_607.5, 8_388_608), (-2.5, -2)] {
            assert_eq!(p.quantize_i32(x), q, "{x}");
        }
    }
}
