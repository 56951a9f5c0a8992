//! Exact division by a constant with a multiplication and a fused multiply-add.
//!
//! `x / s` costs five times as much as a product, and quantization divides every element by the same scale. With the
//! reciprocal in two parts, `1 / s = high + low`, the value `fma(x, high, x * low)` is within `2^-23` units in the
//! last place of the true quotient. It is therefore the correctly rounded quotient unless the true one lies closer
//! than that to the middle between two floats. (The idea of proving such a product right for one constant is that of
//! Brisebarre and Muller, "Correctly rounded multiplication by arbitrary precision constants", 2008.)
//!
//! With `X` and `S` the 24-bit integer significands of `x` and `s`, the distance of the quotient to the middle
//! `2M + 1` half units is `|X * 2^k - S * (2M + 1)| / 2S` units, `k` being 24 where `X >= S` and 25 elsewhere. Since
//! `S < 2^24`, only numerators of magnitude up to 4 can do harm. They determine `X` modulo `S` up to a factor of two,
//! so the few dangerous `x` of a scale are found by solving a congruence, and each is simply tried. Powers of two
//! change nothing as long as no value over- or underflows, so one try per significand is a proof.

/// Largest numerator looked at; twice what the error bound asks for.
const LARGEST_NUMERATOR: i64 = 8;
const LOWEST: u64 = 1 << 23;
const BEYOND: u64 = 1 << 24;

/// The reciprocal of a scale in two parts, for scales where it divides exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reciprocal {
    /// The reciprocal rounded to nearest.
    pub(super) high: f32,
    /// What that rounding lost.
    pub(super) low: f32,
}

impl Reciprocal {
    /// The reciprocal of `scale`, `None` when some quotient would be rounded wrongly.
    ///
    /// `scale` is positive and far from the ends of the range (`QuantParams::moderate`).
    pub(super) fn proven(scale: f32) -> Option<Self> {
        let significand = significand(scale);
        let unit = Self::of(to_float(significand));
        dangerous(significand)
            .all(|x| unit.quotient(to_float(x)).to_bits() == (to_float(x) / to_float(significand)).to_bits())
            .then(|| Self::of(scale))
    }

    #[allow(clippy::cast_possible_truncation)] // the roundings are the point
    fn of(scale: f32) -> Self {
        let exact = 1.0 / f64::from(scale);
        let high = exact as f32;
        Self { high, low: (exact - f64::from(high)) as f32 }
    }

    fn quotient(self, x: f32) -> f32 {
        x.mul_add(self.high, x * self.low)
    }
}

/// The 24-bit integer significand of a normal float.
fn significand(x: f32) -> u64 {
    u64::from(x.to_bits() & 0x7f_ffff) | LOWEST
}

#[allow(clippy::cast_precision_loss)] // below 2^24
fn to_float(significand: u64) -> f32 {
    significand as f32
}

/// Every significand whose quotient by `divisor` lies dangerously close to a middle.
fn dangerous(divisor: u64) -> impl Iterator<Item = u64> {
    let twos = divisor.trailing_zeros();
    let odd = divisor >> twos;
    // The numerator has exactly the factors of two of the divisor: `X * 2^k` has more, `2M + 1` has none.
    let numerators =
        (1..=LARGEST_NUMERATOR).step_by(2).filter(move |j| *j << twos.min(8) <= LARGEST_NUMERATOR);
    numerators.flat_map(|j| [j, -j]).flat_map(move |j| {
        [24, 25].into_iter().flat_map(move |k| {
            let x = divide_by_two(j.rem_euclid(odd.cast_signed()).cast_unsigned(), k - twos, odd);
            let first = x + (LOWEST.saturating_sub(x)).div_ceil(odd) * odd;
            (first..BEYOND).step_by(usize::try_from(odd).unwrap_or(usize::MAX))
        })
    })
}

/// `value / 2^times` modulo the odd number `modulus`.
fn divide_by_two(value: u64, times: u32, modulus: u64) -> u64 {
    (0..times).fold(value, |v, _| if v % 2 == 0 { v / 2 } else { u64::midpoint(v, modulus) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)] // bit for bit is what is promised

    use super::*;

    /// Scales with a proof and scales without, each checked against every significand.
    #[test]
    fn verdict_agrees_with_trying_every_significand() {
        let mut verdicts = [0; 2];
        for scale in [0.05_f32, 1.0 / 255.0, 1.0, 0.007_874_016, 1.999_999_9, 1.000_000_1, 3.0, 0.1, 0.3, 0.7]
        {
            let divisor = to_float(significand(scale));
            let unit = Reciprocal::of(divisor);
            let exact = (LOWEST..BEYOND).map(to_float).all(|x| unit.quotient(x) == x / divisor);
            assert_eq!(Reciprocal::proven(scale).is_some(), exact, "{scale}");
            verdicts[usize::from(exact)] += 1;
        }
        assert!(verdicts[1] > 5, "{verdicts:?}");
    }

    #[test]
    fn dangerous_significands_satisfy_the_congruence() {
        for divisor in [LOWEST + 1, LOWEST + 6, 13_421_773, BEYOND - 1, BEYOND - 8] {
            let mut count = 0;
            for x in dangerous(divisor) {
                assert!((LOWEST..BEYOND).contains(&x));
                let near = [24, 25].into_iter().any(|k| {
                    let (value, twice) = (u128::from(x) << k, 2 * u128::from(divisor));
                    let off = value % twice; // distance to the nearest odd multiple of the divisor
                    off.abs_diff(u128::from(divisor)) <= 8
                });
                assert!(near, "{x} by {divisor}");
                count += 1;
            }
            assert!(count > 0 && count < 200, "{count}");
        }
    }
}
