//! Selection of the range with the smallest error power, from rounding inside the range and clipping outside it.

use super::Bins;
use crate::range::{Precision, Schema, quant_params};

/// Number of tested steps of a symmetric range; they are multiples of a hundredth of the step of the whole range.
const SYMMETRIC_STEPS: i32 = 101;
/// Number of tested steps of another range; they are multiples of a sixteenth of the step of the whole range.
const STEPS: i32 = 17;
/// Number of tested starts of such a range.
const PLACES: i32 = 21;

/// Returns the range with the smallest error, the first of equal ones. Clipping errors count `clipping` times.
pub(super) fn least(
    bins: Bins<'_>,
    whole: (f64, f64),
    schema: Schema,
    precision: Precision,
    clipping: f64,
) -> (f64, f64) {
    let power = Power::new(bins, precision, clipping);
    let (lowest, highest) = precision.levels();
    let (lowest, highest) = (f64::from(lowest), f64::from(highest));
    let widest = (whole.1 - whole.0) / (highest - lowest);
    let mut best = (f64::INFINITY, whole);
    let mut look = |range: (f64, f64)| {
        if let Some(error) = power.of(range)
            && error < best.0
        {
            best = (error, range);
        }
    };
    if schema.is_symmetric_for(bins.minimum) {
        for hundredths in 1..=SYMMETRIC_STEPS {
            let step = f64::from(hundredths) / 100.0 * widest;
            look((lowest * step, highest * step));
        }
    } else {
        for sixteenths in 1..=STEPS {
            let step = f64::from(sixteenths) / 16.0 * widest;
            for place in 0..PLACES {
                let low = -step * (highest - lowest) * (1.0 - f64::from(place) / f64::from(PLACES - 1));
                let high = low + step * (highest - lowest);
                look((low.max(whole.0), high.min(whole.1)));
            }
        }
        look(whole);
    }
    best.1
}

/// The error power of the values of a histogram, each at the center of its bin.
struct Power {
    centers: Vec<f64>,
    counts: Vec<f64>,
    precision: Precision,
    clipping: f64,
}

impl Power {
    fn new(bins: Bins<'_>, precision: Precision, clipping: f64) -> Self {
        let occupied = bins.counts.iter().enumerate().filter(|&(_, &count)| count > 0.0);
        let (centers, counts) = occupied
            .map(|(index, &count)| (bins.minimum + (index as f64 + 0.5) * bins.width(), count))
            .unzip();
        Self { centers, counts, precision, clipping }
    }

    /// Returns the error power of the scale and offset of this range; `None` if the range is empty.
    fn of(&self, (low, high): (f64, f64)) -> Option<f64> {
        // Adding `1.5 * 2^52` rounds half to even.
        const ROUNDER: f64 = 6_755_399_441_055_744.0;
        let params =
            quant_params(low, high, Schema::Asymmetric, self.precision).ok().filter(|_| low < high)?;
        let (lowest, highest) = self.precision.levels();
        let scale = f64::from(params.scale);
        let low = scale * f64::from(lowest - params.offset);
        let high = scale * f64::from(highest - params.offset);
        let mut error = 0.0;
        for (&center, count) in self.centers.iter().zip(&self.counts) {
            let inside = center.clamp(low, high);
            let clipped = center - inside;
            let rounded = inside - scale * ((inside / scale + ROUNDER) - ROUNDER);
            // One of the two terms is zero, except for rounding errors at the ends.
            let power = if clipped == 0.0 { rounded * rounded } else { self.clipping * clipped * clipped };
            error += count * power;
        }
        Some(error)
    }
}
