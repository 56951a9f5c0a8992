//! Blocks of 32 small numbers with a common exponent: the formats of OCP Microscaling v1.0.
//!
//! # Stored form
//!
//! Blocks run along the rows of a tensor (its last axis); the last block of a row is padded with zeros. A
//! block is one byte, the exponent plus 127 (255 means that every element is NaN), followed by its elements:
//!
//! * MXINT8: 32 bytes, two's complement, in units of 1/64;
//! * MXFP6: 24 bytes. Element `i` is the six bits from bit `6 * i` on of the 192-bit little-endian number that these
//!   bytes are: sign in the highest of the six, then exponent, then fraction.

use std::ops::AddAssign;

use crate::error::QuantError;

/// Number of elements of a block.
pub const BLOCK: usize = 32;
/// The exponent byte of a block of NaN.
const NAN_EXPONENT: u8 = 255;
const BIAS: i32 = 127;
const FRACTION_BITS: i32 = 23;
/// Bits of positive infinity, the smallest f32 that is not finite.
const INFINITY: i32 = 0x7f80_0000;

crate::named! {
    /// Format of the elements.
    pub enum MxFormat [3] {
        /// Six bits: sign, two of exponent, three of fraction. Largest magnitude 7.5.
        Fp6E2M3 = "mxfp6_e2m3",
        /// Six bits: sign, three of exponent, two of fraction. Largest magnitude 28.
        Fp6E3M2 = "mxfp6_e3m2",
        /// Signed 8 bits in units of 1/64. Largest magnitude 127/64.
        Int8 = "mxint8",
    }
}

/// Number of values that a block cannot represent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotFinite {
    /// Number of NaN.
    pub nan: u64,
    /// Number of infinities.
    pub infinite: u64,
}

impl NotFinite {
    /// Fails if any of `count` values was not finite.
    pub const fn refuse(self, count: usize) -> Result<(), QuantError> {
        let Self { nan, infinite } = self;
        let count = count as u64;
        if nan == 0 && infinite == 0 { Ok(()) } else { Err(QuantError::NotFinite { nan, infinite, count }) }
    }

    pub(crate) fn count(&mut self, values: &[f32]) {
        self.nan += values.iter().filter(|value| value.is_nan()).count() as u64;
        self.infinite += values.iter().filter(|value| value.is_infinite()).count() as u64;
    }
}

impl AddAssign for NotFinite {
    fn add_assign(&mut self, more: Self) {
        self.nan += more.nan;
        self.infinite += more.infinite;
    }
}

/// Number of elements of an array, and of bytes of its stored form. Blocks are formed along the last axis; an array
/// without dimensions is one row of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredSize {
    /// Elements.
    pub count: usize,
    /// Elements of a row.
    pub row_len: usize,
    /// Bytes of the blocks.
    pub bytes: usize,
}

impl MxFormat {
    /// Bytes of a stored block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Fp6E2M3 | Self::Fp6E3M2 => 25,
            Self::Int8 => 33,
        }
    }

    /// Bytes of `rows` stored rows of `row_len` elements; `None` if that exceeds the address space.
    pub fn stored_bytes(self, rows: usize, row_len: usize) -> Option<usize> {
        row_len.div_ceil(BLOCK).checked_mul(self.block_bytes())?.checked_mul(rows)
    }

    /// Returns the sizes of an array of this shape; decoded elements are f32.
    pub fn size_of_shape(self, shape: &[usize]) -> Result<StoredSize, QuantError> {
        let row_len = shape.last().copied().unwrap_or(1);
        let size = || {
            let count = shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim))?;
            count.checked_mul(size_of::<f32>())?;
            let bytes = self.stored_bytes(count.checked_div(row_len).unwrap_or(0), row_len)?;
            Some(StoredSize { count, row_len, bytes })
        };
        size().ok_or_else(|| QuantError::Parameters {
            what: format!("elements of shape {shape:?} do not fit this host's memory"),
        })
    }

    /// Returns the sizes of an array of this shape. Fails if the array has another number of stored bytes.
    pub fn check_stored(self, shape: &[usize], bytes: usize) -> Result<StoredSize, QuantError> {
        let size = self.size_of_shape(shape)?;
        if size.bytes == bytes {
            return Ok(size);
        }
        let (name, expected) = (self.name(), size.bytes);
        Err(QuantError::Parameters {
            what: format!("{name} of shape {shape:?}: found {bytes} bytes, expected {expected}"),
        })
    }

    /// Largest exponent of an element.
    const fn largest_exponent(self) -> i32 {
        match self {
            Self::Fp6E2M3 => 2,
            Self::Fp6E3M2 => 4,
            Self::Int8 => 0,
        }
    }
}

/// Encodes whole rows of `row_len` elements. A block with a value that is not finite becomes a block of NaN.
///
/// # Panics
///
/// If `values` is not a whole number of rows, or the length of `stored` is not [`MxFormat::stored_bytes`].
// Inlined, so that callers compile the code for the vectors of their machine.
#[inline(always)]
#[allow(clippy::inline_always)]
pub fn encode(format: MxFormat, row_len: usize, values: &[f32], stored: &mut [u8]) -> NotFinite {
    let mut not_finite = NotFinite::default();
    let mut blocks = stored.chunks_exact_mut(format.block_bytes());
    for_blocks(row_len, values, |block, len| {
        let Some(into) = blocks.next() else { unreachable!("as many blocks are stored as there are") };
        let Some((exponent, elements)) = into.split_first_mut() else { return };
        let Some(shared) = shared_exponent(format, block) else {
            not_finite.count(&block[..len]);
            *exponent = NAN_EXPONENT;
            elements.fill(0);
            return;
        };
        *exponent = (shared + BIAS) as u8;
        let scale = power(-shared);
        match format {
            MxFormat::Fp6E2M3 => pack(&codes::<3, 0>(block, scale), elements),
            MxFormat::Fp6E3M2 => pack(&codes::<2, -2>(block, scale), elements),
            MxFormat::Int8 => {
                for (value, into) in block.iter().zip(elements) {
                    let sixty_fourths = (value * scale * 64.0).clamp(-127.0, 127.0);
                    *into = (sixty_fourths + ROUNDER).to_bits() as u8;
                }
            }
        }
    });
    assert!(blocks.next().is_none() && blocks.into_remainder().is_empty(), "stored bytes are left over");
    not_finite
}

/// Decodes whole rows of `row_len` elements. Every sequence of bytes is a valid stored form.
///
/// # Panics
///
/// If `values` is not a whole number of rows, or the length of `stored` is not [`MxFormat::stored_bytes`].
pub fn decode(format: MxFormat, row_len: usize, stored: &[u8], values: &mut [f32]) {
    if values.is_empty() {
        assert!(stored.is_empty(), "stored bytes are left over");
        return;
    }
    assert_eq!(values.len() % row_len, 0, "rows of {row_len}");
    let mut blocks = stored.chunks_exact(format.block_bytes());
    for row in values.chunks_exact_mut(row_len) {
        for into in row.chunks_mut(BLOCK) {
            let Some((&exponent, elements)) = blocks.next().and_then(<[u8]>::split_first) else {
                panic!("stored bytes are missing")
            };
            if exponent == NAN_EXPONENT {
                into.fill(f32::NAN);
                continue;
            }
            let scale = power(i32::from(exponent) - BIAS);
            let decoded = match format {
                MxFormat::Fp6E2M3 => numbers::<3, 0>(elements, scale),
                MxFormat::Fp6E3M2 => numbers::<2, -2>(elements, scale),
                MxFormat::Int8 => {
                    let mut numbers = [0.0; BLOCK];
                    for (number, &element) in numbers.iter_mut().zip(elements) {
                        *number = f32::from(element.cast_signed()) * (1.0 / 64.0) * scale;
                    }
                    numbers
                }
            };
            into.copy_from_slice(&decoded[..into.len()]);
        }
    }
    assert!(blocks.next().is_none() && blocks.remainder().is_empty(), "stored bytes are left over");
}

/// Calls `each(block, elements of it that exist)` for every block of every row, padded with zeros.
#[inline(always)]
#[allow(clippy::inline_always)]
fn for_blocks(row_len: usize, values: &[f32], mut each: impl FnMut(&[f32; BLOCK], usize)) {
    if values.is_empty() {
        return;
    }
    assert_eq!(values.len() % row_len, 0, "rows of {row_len}");
    for row in values.chunks_exact(row_len) {
        let (blocks, rest) = row.as_chunks::<BLOCK>();
        for block in blocks {
            each(block, BLOCK);
        }
        if !rest.is_empty() {
            let mut padded = [0.0; BLOCK];
            padded[..rest.len()].copy_from_slice(rest);
            each(&padded, rest.len());
        }
    }
}

/// Returns the common exponent of a block; `None` if a value is not finite.
#[inline(always)]
#[allow(clippy::inline_always)]
fn shared_exponent(format: MxFormat, block: &[f32; BLOCK]) -> Option<i32> {
    // Without their signs, float32 numbers have the same order as their bits.
    let largest = block.iter().map(|value| (value.to_bits() & 0x7fff_ffff) as i32).fold(0, i32::max);
    if largest >= INFINITY {
        return None;
    }
    // Zero and numbers below 2^-126 have the exponent field 0; the result is clamped in any case.
    let exponent = (largest >> FRACTION_BITS) - BIAS;
    Some((exponent - format.largest_exponent()).max(-BIAS))
}

/// `2^exponent` for exponents from -127 to 127; the first is subnormal.
fn power(exponent: i32) -> f32 {
    if exponent == -BIAS {
        return f32::MIN_POSITIVE / 2.0;
    }
    f32::from_bits(((exponent + BIAS) << FRACTION_BITS) as u32)
}

/// `1.5 * 2^23`: added to a float32 number of magnitude below `2^22`, it leaves that number rounded half to
/// even in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// The exponent that the element nearest to `x >= 0` has before a carry, and the power of two that, added to `x`, leaves
/// it rounded half to even at the step of this exponent.
#[inline(always)]
#[allow(clippy::inline_always)]
fn steps<const FRACTION: i32, const LEAST: i32>(x: f32) -> (i32, f32) {
    let exponent = ((x.to_bits() >> FRACTION_BITS) as i32 - BIAS).max(LEAST);
    let magic = (exponent - FRACTION + FRACTION_BITS + BIAS) << FRACTION_BITS;
    (exponent, f32::from_bits(magic as u32))
}

/// The six bits of each element of a block.
#[inline(always)]
#[allow(clippy::inline_always)]
fn codes<const FRACTION: i32, const LEAST: i32>(block: &[f32; BLOCK], scale: f32) -> [u32; BLOCK] {
    let mut codes = [0; BLOCK];
    for (value, code) in block.iter().zip(&mut codes) {
        let x = (value * scale).abs();
        let (exponent, magic) = steps::<FRACTION, LEAST>(x);
        // The fraction field is the number of steps. Carries propagate into the exponent, and a step has the same
        // size at exponent field 0 as at 1, without the leading one.
        let steps = (x + magic).to_bits() & 0x007f_ffff;
        let magnitude = (((exponent - LEAST) << FRACTION) as u32 + steps).min(31);
        *code = magnitude | (value.to_bits() >> 31) << 5;
    }
    codes
}

#[inline(always)]
#[allow(clippy::inline_always)]
fn pack(codes: &[u32; BLOCK], into: &mut [u8]) {
    for (four, three) in codes.as_chunks::<4>().0.iter().zip(into.as_chunks_mut::<3>().0) {
        let bits = four[0] | four[1] << 6 | four[2] << 12 | four[3] << 18;
        let [first, second, third, _] = bits.to_le_bytes();
        *three = [first, second, third];
    }
}

/// The elements of a stored block, times `scale`.
#[inline]
fn numbers<const FRACTION: i32, const LEAST: i32>(stored: &[u8], scale: f32) -> [f32; BLOCK] {
    let mut codes = [0_u32; BLOCK];
    for (three, four) in stored.as_chunks::<3>().0.iter().zip(codes.as_chunks_mut::<4>().0) {
        let bits = u32::from_le_bytes([three[0], three[1], three[2], 0]);
        *four = [bits & 63, bits >> 6 & 63, bits >> 12 & 63, bits >> 18];
    }
    let table = const { &elements::<FRACTION, LEAST>() };
    codes.map(|code| table[code as usize & 63] * scale)
}

/// The number of each code of six bits.
const fn elements<const FRACTION: i32, const LEAST: i32>() -> [f32; 64] {
    let mut table = [0.0; 64];
    let mut code = 0;
    while code < 64 {
        let (field, fraction) = ((code & 31) >> FRACTION, code & ((1 << FRACTION) - 1));
        let implied = if field == 0 { 0 } else { 1 << FRACTION };
        // Subnormals have the exponent of field 1.
        let exponent = if field == 0 { LEAST } else { LEAST + field - 1 } - FRACTION;
        let step = f32::from_bits(((exponent + BIAS) << FRACTION_BITS) as u32);
        let magnitude = (implied + fraction) as f32 * step;
        table[code as usize] = if code & 32 == 0 { magnitude } else { -magnitude };
        code += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use proptest::prelude::*;

    fn stored(format: MxFormat, row_len: usize, values: &[f32]) -> (Vec<u8>, NotFinite) {
        let mut bytes = vec![0xaa; format.stored_bytes(values.len() / row_len, row_len).unwrap()];
        let not_finite = encode(format, row_len, values, &mut bytes);
        (bytes, not_finite)
    }

    fn decoded(format: MxFormat, row_len: usize, values: &[f32]) -> Vec<f32> {
        let mut back = vec![9.0; values.len()];
        decode(format, row_len, &stored(format, row_len, values).0, &mut back);
        back
    }

    #[test]
    fn block_of_the_specification_has_its_bytes() {
        let values = [1.0, -0.3, 0.07, 3.9, -2.2, 0.001, 0.5, -3.3];
        let expected = [
            [1.0, -0.3125, 0.0625, 3.75, -2.25, 0.0, 0.5, -3.25],
            [1.0, -0.3125, 0.0625, 3.5, -2.0, 0.0, 0.5, -3.5],
            [1.0, -0.3125, 0.0625, 3.90625, -2.1875, 0.0, 0.5, -3.3125],
        ];
        for (format, expected) in MxFormat::ALL.into_iter().zip(expected) {
            assert_eq!(decoded(format, 8, &values), expected, "{format:?}");
            let mut padded = [0.0; BLOCK];
            padded[..8].copy_from_slice(&values);
            assert_eq!(decoded(format, BLOCK, &padded)[..8], expected, "{format:?}");
        }
    }

    #[test]
    fn stored_block_has_the_documented_bytes() {
        // 1.0 is exponent field 1 without fraction: 0b01000; -7.5 is the largest magnitude: 0b111111.
        let (bytes, _) = stored(MxFormat::Fp6E2M3, 3, &[1.0, -7.5, 0.125]);
        assert_eq!(bytes.len(), 25);
        let bits = 0b00_1000 | 0b11_1111 << 6 | 0b00_0001 << 12;
        assert_eq!(bytes[..4], [127, bits as u8, (bits >> 8) as u8, (bits >> 16) as u8]);
        assert!(bytes[4..].iter().all(|&byte| byte == 0));
        let (bytes, _) = stored(MxFormat::Int8, 2, &[1.0, -0.5]);
        assert_eq!(bytes[..4], [127, 64, (-32_i8).cast_unsigned(), 0]);
    }

    #[test]
    fn blocks_at_the_ends_of_f32() {
        for format in MxFormat::ALL {
            assert_eq!(decoded(format, 2, &[0.0, 0.0]), [0.0, 0.0]);
            assert_eq!(stored(format, 2, &[0.0, 0.0]).0[0], 0);
            let power = 2.0_f32.powi(127);
            assert_eq!(decoded(format, 2, &[power, -power]), [power, -power]);
            assert!(decoded(format, 1, &[f32::MAX])[0].is_finite());
            assert_eq!(decoded(format, 1, &[f32::MIN_POSITIVE]), [f32::MIN_POSITIVE]);
            assert_eq!(decoded(format, 1, &[f32::from_bits(1)]), [0.0]);
        }
        // The worst saturation: a largest value just below a power of two.
        assert_eq!(decoded(MxFormat::Fp6E2M3, 1, &[7.9]), [7.5]);
        // -2 is a valid bit pattern, but the encoder never writes it.
        let mut back = [0.0];
        decode(MxFormat::Int8, 1, &[&[127, 0x80][..], &[0; 31]].concat(), &mut back);
        assert_eq!(back, [-2.0]);
    }

    #[test]
    fn sizes_of_a_shape_are_those_of_its_rows() {
        let size = |shape: &[usize]| MxFormat::Int8.size_of_shape(shape);
        assert_eq!(size(&[]), Ok(StoredSize { count: 1, row_len: 1, bytes: 33 }));
        assert_eq!(size(&[3, 33]), Ok(StoredSize { count: 99, row_len: 33, bytes: 198 }));
        for empty in [&[0][..], &[0, 5], &[5, 0]] {
            assert_eq!(size(empty).map(|size| (size.count, size.bytes)), Ok((0, 0)));
        }
        for vast in [&[usize::MAX, 2][..], &[usize::MAX / 2], &[usize::MAX / 4, 1]] {
            assert!(size(vast).is_err_and(|error| error.to_string().contains("do not fit")), "{vast:?}");
        }
    }

    #[test]
    fn stored_bytes_of_another_number_are_refused() {
        let format = MxFormat::Fp6E2M3;
        assert_eq!(format.check_stored(&[2, 32], 50).map(|size| size.count), Ok(64));
        let refusal = format.check_stored(&[2, 32], 49).map_err(|error| error.to_string());
        let expected = "mxfp6_e2m3 of shape [2, 32]: found 49 bytes, expected 50";
        assert_eq!(refusal, Err(expected.to_owned()));
    }

    #[test]
    fn values_without_a_place_are_refused_with_their_number() {
        assert_eq!(NotFinite::default().refuse(5), Ok(()));
        let mut found = NotFinite { nan: 1, infinite: 0 };
        found += NotFinite { nan: 1, infinite: 3 };
        assert_eq!(found.refuse(9), Err(QuantError::NotFinite { nan: 2, infinite: 3, count: 9 }));
    }

    #[test]
    fn block_with_a_value_that_is_not_finite_is_counted() {
        let mut values = vec![1.0; 70];
        values[3] = f32::NAN;
        values[33] = f32::INFINITY;
        values[34] = f32::NEG_INFINITY;
        for format in MxFormat::ALL {
            let back = decoded(format, 70, &values);
            assert!(back[..64].iter().all(|value| value.is_nan()));
            assert_eq!(back[64..], [1.0; 6]);
            assert_eq!(stored(format, 70, &values).1, NotFinite { nan: 1, infinite: 2 });
        }
    }

    fn any_values() -> impl Strategy<Value = (usize, Vec<f32>)> {
        let value = prop_oneof![any::<f32>(), -8.0_f32..8.0, Just(0.0), Just(-0.0), -1e-38_f32..1e-38];
        (1_usize..70, 0_usize..4).prop_flat_map(move |(row_len, rows)| {
            (Just(row_len), prop::collection::vec(value.clone(), row_len * rows))
        })
    }

    /// Values of one block, many of them halfway between two elements.
    fn any_block() -> impl Strategy<Value = [f32; BLOCK]> {
        let halfway = (-1024_i16..1024).prop_map(|steps| f32::from(steps) / 128.0);
        let value = prop_oneof![prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL, halfway, -8.0_f32..8.0];
        prop::array::uniform32(value)
    }

    proptest! {
        /// Oracle: a search among all elements.
        #[test]
        fn stored_element_is_the_nearest_one(values in any_block()) {
            for format in MxFormat::ALL {
                let table = match format {
                    MxFormat::Fp6E2M3 => elements::<3, 0>().to_vec(),
                    MxFormat::Fp6E3M2 => elements::<2, -2>().to_vec(),
                    // Even integers have even indices, as even codes have; -128 is never written.
                    MxFormat::Int8 => iter::once(0).chain(-127..=127).map(|i| f32::from(i as i8) / 64.0).collect(),
                };
                let scale = f64::from(power(i32::from(stored(format, BLOCK, &values).0[0]) - BIAS));
                for (&value, found) in values.iter().zip(decoded(format, BLOCK, &values)) {
                    let element = |code: usize| f64::from(table[code]) * scale;
                    let error = |code: usize| (element(code) - f64::from(value)).abs();
                    let code = (0..table.len()).find(|&code| element(code) == f64::from(found)).unwrap();
                    for other in (0..table.len()).filter(|&other| element(other) != element(code)) {
                        prop_assert!(error(code) < error(other) || error(code) == error(other) && code % 2 == 0);
                    }
                }
            }
        }

        #[test]
        fn decoded_values_encode_to_the_same_bytes((row_len, values) in any_values()) {
            for format in [MxFormat::Fp6E2M3, MxFormat::Int8] {
                let once = decoded(format, row_len, &values);
                let twice = decoded(format, row_len, &once);
                prop_assert!(once.iter().zip(&twice).all(|(a, b)| a == b || (a.is_nan() && b.is_nan())));
            }
        }

        #[test]
        fn block_of_any_bytes_is_decoded(bytes in prop::collection::vec(any::<u8>(), 33 * 25)) {
            for format in MxFormat::ALL {
                let blocks = bytes.len() / format.block_bytes();
                let mut back = vec![0.0; blocks * BLOCK];
                decode(format, BLOCK, &bytes[..blocks * format.block_bytes()], &mut back);
            }
        }
    }
}
