//! Selection of the histogram window whose distribution quantization changes least (Kullback-Leibler divergence).

use super::Bins;

/// Number of groups that a window of [`shrinking`] is merged into.
const GROUPS: usize = 255;
/// Number of groups that a window of [`symmetric`] is merged into.
const GROUPS_V2: usize = 128;
/// Probability of a bin without values, so that the logarithm exists.
const LITTLE: f64 = 1e-4;

/// Selects the range for `KLMinimization`: each window of the histogram over `whole` has two bins fewer than the last.
pub(super) fn shrinking(bins: Bins<'_>, whole: (f64, f64), is_symmetric: bool) -> (f64, f64) {
    let counts = bins.over(whole.0, whole.1, bins.counts.len());
    let rescaled = Bins { counts: &counts, minimum: whole.0, maximum: whole.1 };
    let mut measure = Measure::new(&counts, GROUPS);
    let (mut start, mut end) = (0, counts.len());
    // The divergence of a window without values is NaN, which is never less.
    let mut best = (f64::INFINITY, None);
    while end - start >= GROUPS {
        let divergence = measure.divergence(start, end);
        if divergence < best.0 {
            best = (divergence, Some((start, end)));
        }
        let (left, right) = (counts[start] + counts[start + 1], counts[end - 1] + counts[end - 2]);
        let both = counts[start] + counts[end - 1];
        (start, end) = if is_symmetric || (both <= left && both <= right) {
            (start + 1, end - 1)
        } else if left <= right {
            (start + 2, end)
        } else {
            (start, end - 2)
        };
    }
    let Some((start, end)) = best.1 else {
        return (bins.minimum, bins.maximum);
    };
    let (low, high) = (rescaled.edge(start), rescaled.edge(end));
    if !is_symmetric {
        return (low, high);
    }
    // The sides of a symmetric range differ by one level, so with equal numbers of bins one side is tighter than the
    // other.
    let ratio = whole.0 / whole.1;
    if low > ratio * high { (ratio * high, high) } else { (low, low / ratio) }
}

/// Selects the range for `KLMinimizationV2`: every window around zero of a histogram that is symmetric around zero.
pub(super) fn symmetric(bins: Bins<'_>) -> (f64, f64) {
    let extent = bins.minimum.abs().max(bins.maximum.abs());
    let half = bins.counts.len().div_ceil(2);
    let counts = bins.over(-extent, extent, 2 * half);
    let mut measure = Measure::new(&counts, GROUPS_V2);
    let mut best = (f64::INFINITY, None);
    for side in GROUPS_V2 / 2..=half {
        let divergence = measure.divergence(half - side, half + side);
        if divergence < best.0 {
            best = (divergence, Some(side));
        }
    }
    let Some(side) = best.1 else {
        return (bins.minimum, bins.maximum);
    };
    let threshold = side as f64 / half as f64 * extent;
    (bins.minimum.max(-threshold), bins.maximum.min(threshold))
}

/// The divergence of windows of one histogram.
struct Measure<'a> {
    counts: &'a [f64],
    groups: usize,
    /// Sums of the counts before each bin.
    before: Vec<f64>,
    /// The distribution in the window, with the outer counts added to its ends, and its quantized form.
    reference: Vec<f64>,
    quantized: Vec<f64>,
}

impl<'a> Measure<'a> {
    fn new(counts: &'a [f64], groups: usize) -> Self {
        let mut before = vec![0.0; counts.len() + 1];
        for (index, count) in counts.iter().enumerate() {
            before[index + 1] = before[index] + count;
        }
        Self { counts, groups, before, reference: Vec::new(), quantized: Vec::new() }
    }

    /// Returns the divergence of the window from bin `start` up to bin `end`, which has at least as many bins
    /// as there are groups.
    fn divergence(&mut self, start: usize, end: usize) -> f64 {
        let len = end - start;
        self.reference.clear();
        self.reference.extend_from_slice(&self.counts[start..end]);
        self.reference[0] = self.before[start + 1];
        self.reference[len - 1] = self.before[self.counts.len()] - self.before[end - 1];
        self.quantized.clear();
        self.quantized.resize(len, 0.0);
        let merged = len / self.groups;
        for group in 0..self.groups {
            let first = group * merged;
            let last = if group + 1 == self.groups { len } else { first + merged };
            let occupied = self.reference[first..last].iter().filter(|&&count| count != 0.0).count();
            let share = (self.before[start + last] - self.before[start + first]) / occupied as f64;
            for (quantized, &reference) in
                self.quantized[first..last].iter_mut().zip(&self.reference[first..last])
            {
                // Without occupied bins, there is no value to distribute.
                *quantized = if reference == 0.0 { 0.0 } else { share };
            }
        }
        condition(&mut self.reference);
        condition(&mut self.quantized);
        let (sum, quantized_sum) = (self.reference.iter().sum::<f64>(), self.quantized.iter().sum::<f64>());
        let mut divergence = 0.0;
        for (&reference, &quantized) in self.reference.iter().zip(&self.quantized) {
            if reference > 0.0 {
                divergence += reference * ((reference / quantized) * (quantized_sum / sum)).ln();
            }
        }
        divergence / sum
    }
}

/// Moves a small amount from the other bins to the empty bins, equally. Changes nothing if a bin would lose a value or
/// more.
fn condition(counts: &mut [f64]) {
    let empty = counts.iter().filter(|&&count| count == 0.0).count();
    let take = LITTLE * empty as f64 / (counts.len() - empty) as f64;
    if empty == 0 || take >= 1.0 {
        return;
    }
    for count in counts {
        // Fractions of values, which an imported histogram may contain, keep a small amount too.
        *count = if *count == 0.0 { LITTLE } else { (*count - take).max(LITTLE) };
    }
}
