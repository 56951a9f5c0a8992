//! Methods that select the part of a tensor's range to quantize.
//!
//! Every method takes a histogram of equal bins over the range of the tensor and returns a range, from which
//! [`crate::range::quant_params`] computes scale and offset. The methods apply to activations; constants, scalars and
//! biases keep their ranges.

mod divergence;
mod error_power;

use crate::error::QuantError;
use crate::histogram::share;
use crate::range::{Precision, Schema, schema_range};

/// Method that shrinks a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// The whole range.
    MinMax,
    /// The window with the smallest divergence of its quantized distribution; windows shrink from the whole range.
    KlMinimization,
    /// Like [`Self::KlMinimization`], over all windows symmetric around zero.
    KlMinimizationV2,
    /// The range of this many percent of the values.
    Percentile(f64),
    /// Smallest mean square error of rounding and clipping.
    Mse,
    /// Like `Mse`, but clipping errors count three times.
    Sqnr,
}

impl Method {
    /// Values of the option that selects a method.
    pub const NAMES: [&'static str; 6] =
        ["None", "KLMinimization", "KLMinimizationV2", "Percentile", "MSE", "SQNR"];

    /// Returns the method with this name; only `Percentile` uses `percentile`.
    pub fn from_name(name: &str, percentile: f64) -> Option<Self> {
        Some(match name {
            "None" => Self::MinMax,
            "KLMinimization" => Self::KlMinimization,
            "KLMinimizationV2" => Self::KlMinimizationV2,
            "Percentile" => Self::Percentile(percentile),
            "MSE" => Self::Mse,
            "SQNR" => Self::Sqnr,
            _ => return None,
        })
    }
}

/// A histogram of equal bins.
#[derive(Clone, Copy, Debug)]
struct Bins<'a> {
    counts: &'a [f64],
    minimum: f64,
    maximum: f64,
}

impl Bins<'_> {
    fn width(&self) -> f64 {
        (self.maximum - self.minimum) / self.counts.len() as f64
    }

    /// Returns the lower edge of bin `index`; the last edge is exact.
    fn edge(&self, index: usize) -> f64 {
        if index == self.counts.len() {
            return self.maximum;
        }
        self.minimum + index as f64 * self.width()
    }

    fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Redistributes the counts to `bins` equal bins over another range. Each count is shared among the bins that it
    /// covers, in proportion to the overlap; the results are rounded to integers with the same sum.
    fn over(&self, minimum: f64, maximum: f64, bins: usize) -> Vec<f64> {
        if (minimum, maximum, bins) == (self.minimum, self.maximum, self.counts.len()) {
            return self.counts.to_vec();
        }
        let mut counts = vec![0.0; bins];
        let width = (maximum - minimum) / bins as f64;
        for (index, &count) in self.counts.iter().enumerate().filter(|&(_, &count)| count > 0.0) {
            let place = |edge: f64| ((edge - minimum) / width).clamp(0.0, bins as f64);
            share(&mut counts, place(self.edge(index)), place(self.edge(index + 1)), count);
        }
        crate::histogram::whole(&counts).into_iter().map(f64::from).collect()
    }
}

/// Returns the range that the method selects for a tensor. `counts` contains the numbers of its values in equal bins
/// between `minimum` and `maximum`.
///
/// Fails if the range is invalid, a count is negative or not finite, or the percentile is not above 50 and at most
/// 100.
pub fn calibrate(
    counts: &[f32],
    minimum: f64,
    maximum: f64,
    method: Method,
    schema: Schema,
    precision: Precision,
) -> Result<(f64, f64), QuantError> {
    let whole = schema_range(minimum, maximum, schema, precision)?;
    if let Some(bad) = counts.iter().find(|count| !(count.is_finite() && **count >= 0.0)) {
        return Err(QuantError::Parameters {
            what: format!("a bin of the histogram holds {bad}; a count is expected"),
        });
    }
    if let Method::Percentile(percent) = method
        && !(percent > 50.0 && percent <= 100.0)
    {
        return Err(QuantError::Parameters {
            what: format!("the percentile is {percent}; a number above 50 and up to 100 is expected"),
        });
    }
    let counts: Vec<f64> = counts.iter().map(|&count| count.into()).collect();
    let bins = Bins { counts: &counts, minimum, maximum };
    if minimum == maximum || bins.total() == 0.0 {
        return Ok((minimum, maximum));
    }
    Ok(match method {
        Method::MinMax | Method::Percentile(100.0) => (minimum, maximum),
        Method::KlMinimization => divergence::shrinking(bins, whole, schema.is_symmetric_for(minimum)),
        Method::KlMinimizationV2 => divergence::symmetric(bins),
        Method::Percentile(percent) => percentile(bins, percent, schema.is_symmetric_for(minimum)),
        Method::Mse => error_power::least(bins, whole, schema, precision, 1.0),
        Method::Sqnr => error_power::least(bins, whole, schema, precision, 3.0),
    })
}

fn percentile(bins: Bins<'_>, percent: f64, is_symmetric: bool) -> (f64, f64) {
    if is_symmetric {
        let extent = bins.minimum.abs().max(bins.maximum.abs());
        let needed = bins.total() * percent / 100.0;
        let count = bins.counts.len();
        let mut magnitudes = vec![0.0; count];
        let width = extent / count as f64;
        for (index, &values) in bins.counts.iter().enumerate().filter(|&(_, &values)| values > 0.0) {
            let (low, high) = (bins.edge(index), bins.edge(index + 1));
            let mut part = |low: f64, high: f64, values: f64| {
                share(&mut magnitudes, low / width, high / width, values);
            };
            if low >= 0.0 {
                part(low, high, values);
            } else if high <= 0.0 {
                part(-high, -low, values);
            } else {
                let above = values * high / (high - low);
                part(0.0, high, above);
                part(0.0, -low, values - above);
            }
        }
        let end = first_above(magnitudes.iter(), |sum| sum >= needed).map_or(count, |bin| bin + 1);
        let threshold = end as f64 * width;
        return (bins.minimum.max(-threshold), bins.maximum.min(threshold));
    }
    let tail = bins.total() * (100.0 - percent) / 200.0;
    let lower = first_above(bins.counts.iter(), |sum| sum > tail).unwrap_or(0);
    let upper = first_above(bins.counts.iter().rev(), |sum| sum > tail).unwrap_or(0);
    (bins.edge(lower), bins.edge(bins.counts.len() - upper))
}

/// Returns the index of the first count whose running sum is `enough`.
fn first_above<'a>(counts: impl Iterator<Item = &'a f64>, enough: impl Fn(f64) -> bool) -> Option<usize> {
    let mut sum = 0.0;
    for (bin, count) in counts.enumerate() {
        sum += count;
        if enough(sum) {
            return Some(bin);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const METHODS: [Method; 6] = [
        Method::MinMax,
        Method::KlMinimization,
        Method::KlMinimizationV2,
        Method::Percentile(99.9),
        Method::Mse,
        Method::Sqnr,
    ];

    /// A bell of 512 bins over -1 to 1 with one value in its outermost bins.
    fn bell() -> Vec<f32> {
        let mut counts: Vec<f32> =
            (0..512).map(|i| (1e5 * (-((i as f32 - 255.5) / 24.0).powi(2)).exp()).round()).collect();
        (counts[0], counts[511]) = (1.0, 1.0);
        counts
    }

    #[test]
    fn rare_outliers_are_cut_by_every_method_but_min_max() {
        for schema in Schema::ALL {
            for method in METHODS {
                let (low, high) = calibrate(&bell(), -1.0, 1.0, method, schema, Precision::Int8).unwrap();
                // Windows that shrink as in Glow may keep an outlier on one side.
                let expected = if method == Method::MinMax { 2.0..2.01 } else { 0.4..1.6 };
                assert!(expected.contains(&(high - low)), "{schema:?} {method:?} {low} {high}");
            }
        }
    }

    #[test]
    fn calibration_without_values_keeps_the_range() {
        for method in METHODS {
            let range = |counts: &[f32], low, high| {
                calibrate(counts, low, high, method, Schema::Symmetric, Precision::Int8).unwrap()
            };
            assert_eq!(range(&[], -1.0, 2.0), (-1.0, 2.0));
            assert_eq!(range(&[0.0; 512], -1.0, 2.0), (-1.0, 2.0));
            assert_eq!(range(&[5.0, 0.0], 2.0, 2.0), (2.0, 2.0));
        }
    }

    #[test]
    fn calibration_of_a_bad_histogram_is_refused() {
        let refused = |counts: &[f32], method| {
            calibrate(counts, -1.0, 1.0, method, Schema::Asymmetric, Precision::Int8).is_err()
        };
        assert!(refused(&[1.0, -1.0], Method::MinMax) && refused(&[f32::NAN], Method::Mse));
        assert!(refused(&[1.0], Method::Percentile(50.0)) && refused(&[1.0], Method::Percentile(100.1)));
        assert!(!refused(&[1.0], Method::Percentile(99.0)));
    }

    #[test]
    fn method_of_each_name_is_found() {
        assert!(Method::NAMES.iter().all(|name| Method::from_name(name, 99.0).is_some()));
        assert_eq!(Method::from_name("Percentile", 99.0), Some(Method::Percentile(99.0)));
        assert_eq!(Method::from_name("kl", 99.0), None);
    }

    proptest! {
        #[test]
        fn any_histogram_gives_a_range_in_order(
            counts in prop::collection::vec(
                prop_oneof![Just(0.0_f32), 0.0_f32..3.0, (0_u16..9999).prop_map(f32::from)], 1..700),
            low in -10.0_f64..10.0,
            extent in prop_oneof![Just(0.0), 1e-30_f64..1e-3, 0.0_f64..20.0],
            method in prop::sample::select(&METHODS[..]),
            schema in prop::sample::select(&Schema::ALL[..]),
        ) {
            let whole = schema_range(low, low + extent, schema, Precision::Int8).unwrap();
            let (minimum, maximum) = calibrate(&counts, low, low + extent, method, schema, Precision::Int8).unwrap();
            prop_assert!(minimum.is_finite() && maximum.is_finite() && minimum <= maximum);
            let slack = 1.02;
            prop_assert!(minimum >= whole.0 * slack && maximum <= whole.1 * slack, "{minimum} {maximum} {whole:?}");
        }
    }
}
