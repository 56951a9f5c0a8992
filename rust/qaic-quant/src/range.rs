//! Scale and offset of a tensor from the range of its values.
//!
//! Arithmetic is f64 throughout; the scale is rounded to f32 once, at the end, because that is how it is stored.

use crate::error::QuantError;

crate::named! {
    /// Method that computes scale and offset from a range.
    pub enum Schema [4] {
        /// Uses the range unchanged.
        Asymmetric = "asymmetric",
        /// A range with offset 0; the step is the larger of the two one-sided steps.
        Symmetric = "symmetric",
        /// Symmetric, except that a range without negative values uses all levels (the offset is the lowest one).
        SymmetricWithUint8 = "symmetric_with_uint8",
        /// Symmetric with the scale raised to a power of two.
        SymmetricWithPower2Scale = "symmetric_with_power2_scale",
    }
}

impl Schema {
    /// Returns true if the range `minimum` to `maximum` (zero included) is made symmetric.
    pub(crate) fn is_symmetric_for(self, minimum: f64) -> bool {
        match self {
            Self::Asymmetric => false,
            Self::Symmetric | Self::SymmetricWithPower2Scale => true,
            Self::SymmetricWithUint8 => minimum < 0.0,
        }
    }
}

crate::named! {
    /// Integers that a tensor is quantized to.
    pub enum Precision [3] {
        /// Signed 8 bits.
        Int8 = "Int8",
        /// Signed 16 bits.
        Int16 = "Int16",
        /// Signed 32 bits, of which 30 are used, so that a difference of two values fits (bias).
        Int32 = "Int32",
    }
}

impl Precision {
    /// Lowest and highest quantized value.
    pub(crate) const fn levels(self) -> (i32, i32) {
        match self {
            Self::Int8 => (-128, 127),
            Self::Int16 => (-32768, 32767),
            Self::Int32 => (-(1 << 29), (1 << 29) - 1),
        }
    }
}

/// Scale and offset of a tensor: `real = scale * (q - offset)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantParams {
    /// Difference of two neighboring values; positive and finite.
    pub scale: f32,
    /// The quantized value of zero.
    pub offset: i32,
}

/// Scale of a range without extent.
const SCALE_OF_NOTHING: f64 = 0.1;

/// Returns the range that a schema represents: extended to zero, then made symmetric if the schema requires it.
pub(crate) fn schema_range(
    minimum: f64,
    maximum: f64,
    schema: Schema,
    precision: Precision,
) -> Result<(f64, f64), QuantError> {
    if !(minimum.is_finite() && maximum.is_finite() && minimum <= maximum) {
        return Err(QuantError::Range { minimum, maximum });
    }
    let (minimum, maximum) = (minimum.min(0.0), maximum.max(0.0));
    if !schema.is_symmetric_for(minimum) {
        return Ok((minimum, maximum));
    }
    let (lowest, highest) = levels(precision);
    let (step_below, step_above) = (minimum / lowest, maximum / highest);
    Ok(if step_below > step_above { (minimum, step_below * highest) } else { (step_above * lowest, maximum) })
}

/// Computes scale and offset of a tensor whose values are between `minimum` and `maximum`.
///
/// Fails if the two are not finite or out of order.
pub fn quant_params(
    minimum: f64,
    maximum: f64,
    schema: Schema,
    precision: Precision,
) -> Result<QuantParams, QuantError> {
    let (minimum, maximum) = schema_range(minimum, maximum, schema, precision)?;
    let (lowest, highest) = levels(precision);
    let mut scale = (maximum - minimum) / (highest - lowest);
    // A step that underflows in float32 is zero: every value of such a tensor is stored as zero.
    let nothing = scale as f32 == 0.0;
    if nothing {
        scale = SCALE_OF_NOTHING;
    }
    if schema == Schema::SymmetricWithPower2Scale {
        return Ok(QuantParams { scale: next_power_of_two(scale as f32), offset: 0 });
    }
    let offset = if nothing { 0 } else { offset(minimum, maximum, scale, lowest, highest) };
    Ok(QuantParams { scale: scale as f32, offset })
}

fn levels(precision: Precision) -> (f64, f64) {
    let (lowest, highest) = precision.levels();
    (lowest.into(), highest.into())
}

/// Returns the zero point for the end of the range that has the smaller error bound.
fn offset(minimum: f64, maximum: f64, scale: f64, lowest: f64, highest: f64) -> i32 {
    let (below, above) = (minimum / scale, maximum / scale);
    // A range that is symmetric but for rounding has offset 0; a tiny one may not be symmetric within one step.
    let candidate = if (maximum + minimum).abs() <= f64::from(f32::EPSILON).min(scale) {
        0.0
    } else if lowest.abs() + below.abs() < highest.abs() + above.abs() {
        lowest - below
    } else {
        highest - above
    };
    // `round` rounds halves away from zero. The value is clamped first, so the cast is exact.
    candidate.clamp(lowest, highest).round() as i32
}

/// Returns the smallest power of two that is not below `scale`, which is positive and far below the largest f32.
///
/// Uses the scale as float32, so that a last bit of float64 noise does not double the step.
fn next_power_of_two(scale: f32) -> f32 {
    const FRACTION: u32 = 0x007f_ffff;
    let bits = scale.to_bits();
    if scale < f32::MIN_POSITIVE {
        return f32::from_bits(bits.next_power_of_two());
    }
    f32::from_bits(if bits & FRACTION == 0 { bits } else { (bits & !FRACTION) + FRACTION + 1 })
}

#[cfg(test)]
// The digits of the table are copied unchanged.
#[allow(clippy::excessive_precision)]
mod tests {
    use super::*;

    fn params(minimum: f64, maximum: f64, schema: Schema) -> (f32, i32) {
        let params = quant_params(minimum, maximum, schema, Precision::Int8).unwrap();
        (params.scale, params.offset)
    }

    #[test]
    fn range_of_each_schema_has_the_specified_parameters() {
        type Row = (f64, f64, [(f32, i32); 4]);
        const TINY: f32 = 2.328_306_4e-10; // 2^-32
        let rows: [Row; 7] = [
            (-1.0, 3.0, [(0.015_686_275_4, -64), (0.023_622_047_2, 0), (0.023_622_047_2, 0), (0.03125, 0)]),
            (0.0, 6.0, [(0.023_529_412_2, -128), (0.047_244_094_3, 0), (0.023_529_412_2, -128), (0.0625, 0)]),
            (-2.0, 2.0, [(0.015_686_275_4, 0), (0.015_748_031_4, 0), (0.015_748_031_4, 0), (0.03125, 0)]),
            (0.5, 4.0, [(0.015_686_275_4, -128), (0.031_496_062_9, 0), (0.015_686_275_4, -128), (0.0625, 0)]),
            (-3.0, -1.0, [(0.011_764_706_1, 127), (0.023_437_5, 0), (0.023_437_5, 0), (0.03125, 0)]),
            (0.0, 0.0, [(0.1, 0), (0.1, 0), (0.1, 0), (0.125, 0)]),
            (0.0, 2e-8, [(7.843_137e-11, -128), (1.574_803_2e-10, 0), (7.843_137e-11, -128), (TINY, 0)]),
        ];
        for (minimum, maximum, expected) in rows {
            for (schema, expected) in Schema::ALL.into_iter().zip(expected) {
                assert_eq!(params(minimum, maximum, schema), expected, "{minimum}..{maximum} {schema:?}");
            }
        }
    }

    #[test]
    fn powers_of_two_are_exact() {
        for (scale, expected) in [
            (1.0, 1.0),
            (1.000_000_1, 2.0),
            (0.1, 0.125),
            (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
            (f32::from_bits(1), f32::from_bits(1)),
            (f32::from_bits(5), f32::from_bits(8)),
            (f32::from_bits(0x007f_ffff), f32::MIN_POSITIVE),
        ] {
            assert_eq!(next_power_of_two(scale).to_bits(), f32::to_bits(expected), "{scale:e}");
        }
        assert_eq!(params(-2.0, 1.0, Schema::SymmetricWithPower2Scale), (0.015_625, 0));
    }

    #[test]
    fn bad_range_is_refused() {
        for (minimum, maximum) in
            [(1.0, 0.0), (f64::NAN, 1.0), (0.0, f64::NAN), (f64::NEG_INFINITY, 0.0), (0.0, f64::INFINITY)]
        {
            let refused = quant_params(minimum, maximum, Schema::Asymmetric, Precision::Int8);
            assert!(matches!(refused, Err(QuantError::Range { .. })), "{minimum}..{maximum}");
        }
    }

    #[test]
    fn ranges_at_the_ends_of_f32_have_usable_scales() {
        let largest = f64::from(f32::MAX);
        for schema in Schema::ALL {
            for precision in Precision::ALL {
                for (minimum, maximum) in [(-largest, largest), (0.0, largest), (-1e-45, 0.0), (0.0, 1e-40)] {
                    let params = quant_params(minimum, maximum, schema, precision).unwrap();
                    assert!(params.scale > 0.0 && params.scale.is_finite());
                }
            }
        }
        assert_eq!(params(-1e-45, 0.0, Schema::Asymmetric), (0.1, 0));
    }

    #[test]
    fn schema_and_precision_names_round_trip() {
        assert!(Schema::ALL.into_iter().all(|schema| Schema::from_name(schema.name()) == Some(schema)));
        assert!(Precision::ALL.into_iter().all(|kind| Precision::from_name(kind.name()) == Some(kind)));
        assert_eq!((Schema::from_name("affine"), Precision::from_name("int8")), (None, None));
    }
}
