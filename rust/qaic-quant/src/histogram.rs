//! The distribution of a tensor's values, computed in one pass, independent of the order and of the number of
//! threads.
//!
//! Values are counted in fine bins of equal width over `[-T, T]`, where `T` is the smallest power of two above all
//! magnitudes so far. When `T` doubles, neighboring bins are merged. Old and new edges are multiples of powers of
//! two, so the result equals that of one pass with the final `T`. Sums of integers do not depend on their order.
//! Histograms that several threads fill and merge are therefore also independent of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::QuantError;
use crate::mx::NotFinite;

/// Number of fine bins on each side of zero. The widest half of the bins of a profile (512) contains at least 16 of
/// them.
const SIDE: usize = 8192;
const SIDE_LOG2: i32 = 13;
/// Minimum exponent of `T`. Smaller values count as next to zero, because `SIDE / T` must be a float32.
const LEAST_LOG2: i32 = -100;
/// Maximum number of bins.
const MAX_BINS: usize = 65_536;
/// Number of values that are processed at a time, so that they stay in the first-level cache.
const PIECE: usize = 2048;

/// Extent of a set of finite values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extent {
    /// Smallest value; infinity if there are no values.
    pub minimum: f32,
    /// Largest value; minus infinity if there are no values.
    pub maximum: f32,
    /// Counts of values that are not finite, which the histogram excludes.
    pub not_finite: NotFinite,
    /// Number of values.
    pub count: usize,
}

impl Default for Extent {
    fn default() -> Self {
        Self {
            minimum: f32::INFINITY,
            maximum: f32::NEG_INFINITY,
            not_finite: NotFinite::default(),
            count: 0,
        }
    }
}

impl Extent {
    /// Widens the extent by these values.
    pub(crate) fn add(&mut self, values: &[f32]) {
        const LANES: usize = 16;
        let mut low = [self.minimum; LANES];
        let mut high = [self.maximum; LANES];
        // Without their signs, float32 numbers have the same order as their bits.
        let mut bits = [0_i32; LANES];
        let mut look = |row: &[f32]| {
            for (lane, &value) in row.iter().enumerate() {
                low[lane] = if value < low[lane] { value } else { low[lane] };
                high[lane] = if value > high[lane] { value } else { high[lane] };
                bits[lane] = bits[lane].max((value.to_bits() & 0x7fff_ffff) as i32);
            }
        };
        let (rows, rest) = values.as_chunks::<LANES>();
        for row in rows {
            look(row);
        }
        look(rest);
        self.minimum = low.into_iter().fold(f32::INFINITY, f32::min);
        self.maximum = high.into_iter().fold(f32::NEG_INFINITY, f32::max);
        self.count += values.len();
        if bits.into_iter().any(|bits| bits >= 0x7f80_0000) {
            self.not_finite.count(values);
        }
    }
}

/// Fails if the number of bins is out of range.
pub fn check_bins(bins: usize) -> Result<(), QuantError> {
    if (1..=MAX_BINS).contains(&bins) {
        return Ok(());
    }
    Err(QuantError::Parameters { what: format!("found {bins} bins, expected 1 to {MAX_BINS}") })
}

/// Counts of the values of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// `T = 2^log2`.
    log2: i32,
    /// Counts of magnitudes from `i * T / SIDE` up to the next edge: of values below zero, and of the others.
    below: Box<[u64]>,
    above: Box<[u64]>,
    minimum: f32,
    maximum: f32,
    count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            log2: LEAST_LOG2,
            below: vec![0; SIDE].into(),
            above: vec![0; SIDE].into(),
            minimum: f32::INFINITY,
            maximum: f32::NEG_INFINITY,
            count: 0,
        }
    }
}

impl Histogram {
    /// Counts these values. Fails, and counts nothing, if one of them is not finite.
    pub fn add(&mut self, values: &[f32]) -> Result<(), QuantError> {
        let mut extent = Extent::default();
        extent.add(values);
        self.prepare(&extent)?;
        self.count_prepared(values);
        Ok(())
    }

    /// Makes room for values of this extent. Fails if one of them is not finite.
    pub(crate) fn prepare(&mut self, extent: &Extent) -> Result<(), QuantError> {
        extent.not_finite.refuse(extent.count)?;
        if extent.count > 0 {
            self.minimum = self.minimum.min(extent.minimum);
            self.maximum = self.maximum.max(extent.maximum);
            self.widen(log2_above(self.minimum.abs().max(self.maximum.abs())));
        }
        Ok(())
    }

    /// Counts values that [`Histogram::prepare`] made room for.
    ///
    /// Other values can occur only if another thread writes the values at the same time; they are counted in the
    /// outermost bins.
    pub(crate) fn count_prepared(&mut self, values: &[f32]) {
        // Exact: a power of two, and its products above the smallest normal number.
        let scale = f32::from_bits(((SIDE_LOG2 - self.log2 + 127) as u32) << 23);
        let (Ok(below), Ok(above)) =
            (<&mut [u64; SIDE]>::try_from(&mut *self.below), <&mut [u64; SIDE]>::try_from(&mut *self.above))
        else {
            unreachable!("made with this length")
        };
        let mut bins = [0_u16; PIECE];
        for piece in values.chunks(PIECE) {
            for (value, bin) in piece.iter().zip(&mut bins) {
                // The index combines magnitude and side in 14 bits.
                let index = ((value.abs() * scale) as i32).min(SIDE as i32 - 1);
                *bin = index as u16 | (u16::from(*value < 0.0) << SIDE_LOG2);
            }
            for &bin in &bins[..piece.len()] {
                let index = usize::from(bin) & (SIDE - 1);
                if usize::from(bin) < SIDE {
                    above[index] += 1;
                } else {
                    below[index] += 1;
                }
            }
        }
        self.count += values.len() as u64;
    }

    /// Adds the counts of another histogram.
    pub(crate) fn merge(&mut self, mut other: Self) {
        let log2 = self.log2.max(other.log2);
        self.widen(log2);
        other.widen(log2);
        for (mine, theirs) in [(&mut self.below, &other.below), (&mut self.above, &other.above)] {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine += theirs;
            }
        }
        self.minimum = self.minimum.min(other.minimum);
        self.maximum = self.maximum.max(other.maximum);
        self.count += other.count;
    }

    /// Number of values.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Smallest and largest value; zeros if there are no values.
    pub fn range(&self) -> (f32, f32) {
        if self.count == 0 { (0.0, 0.0) } else { (self.minimum, self.maximum) }
    }

    /// Returns integer counts in `bins` equal bins over the range; their sum is the number of values.
    ///
    /// A fine bin that overlaps several bins is shared among them in proportion. An empty range has all values in its
    /// first bin.
    pub fn counts(&self, bins: usize) -> Vec<f32> {
        let mut counts = vec![0.0_f64; bins];
        let (minimum, maximum) = self.range();
        let (minimum, maximum) = (f64::from(minimum), f64::from(maximum));
        let width = (maximum - minimum) / bins as f64;
        if width == 0.0 {
            if let Some(first) = counts.first_mut() {
                *first = self.count as f64;
            }
            return whole(&counts);
        }
        let fine = 2.0_f64.powi(self.log2 - SIDE_LOG2);
        let below = self.below.iter().enumerate().rev().map(|(i, &count)| (-(i as f64) - 1.0, count));
        let above = self.above.iter().enumerate().map(|(i, &count)| (i as f64, count));
        for (index, count) in below.chain(above).filter(|&(_, count)| count > 0) {
            // Values are in the range, so only the part of the bin inside it can contain them.
            let low = (index * fine).clamp(minimum, maximum);
            let high = ((index + 1.0) * fine).clamp(minimum, maximum);
            share(&mut counts, (low - minimum) / width, (high - minimum) / width, count as f64);
        }
        whole(&counts)
    }

    /// Raises `T` to `2^log2`.
    fn widen(&mut self, log2: i32) {
        if log2 <= self.log2 {
            return;
        }
        let shift = u32::try_from(log2 - self.log2).unwrap_or(0).min(usize::BITS - 1);
        self.log2 = log2;
        if self.count == 0 {
            return;
        }
        for side in [&mut self.below, &mut self.above] {
            // Upwards, so that a bin is emptied before it is filled.
            for bin in 0..SIDE {
                let count = std::mem::take(&mut side[bin]);
                side[bin >> shift] += count;
            }
        }
    }
}

/// Returns the smallest exponent of a histogram whose power of two is above `magnitude`.
fn log2_above(magnitude: f32) -> i32 {
    ((magnitude.to_bits() >> 23) as i32 - 126).max(LEAST_LOG2)
}

/// Spreads `count` evenly over the bins between the positions `low` and `high`, in units of bins.
pub(crate) fn share(counts: &mut [f64], low: f64, high: f64, count: f64) {
    let last = counts.len() - 1;
    let (first, end) = ((low as usize).min(last), (high as usize).min(last));
    if first == end {
        counts[first] += count;
        return;
    }
    let density = count / (high - low);
    let mut left = count;
    for (bin, into) in counts.iter_mut().enumerate().take(end).skip(first) {
        let part = density * ((bin + 1) as f64 - low.max(bin as f64));
        *into += part;
        left -= part;
    }
    counts[end] += left.max(0.0);
}

/// Returns integers whose running sums are as close as possible to the running sums of `counts`.
pub(crate) fn whole(counts: &[f64]) -> Vec<f32> {
    let (mut sum, mut given) = (0.0, 0.0);
    let next = |&count: &f64| {
        sum += count;
        let up_to_here = sum.round_ties_even();
        let whole = up_to_here - given;
        given = up_to_here;
        whole as f32
    };
    counts.iter().map(next).collect()
}

/// A histogram that threads fill and merge.
#[derive(Debug, Default)]
pub struct SharedHistogram(Mutex<Histogram>);

impl SharedHistogram {
    /// Counts the values that `visit` passes, piece by piece. `visit` is called twice and must pass the same values.
    ///
    /// Blocking: while another thread fills the histogram.
    pub fn add(&self, visit: impl Fn(&mut dyn FnMut(&[f32]))) -> Result<(), QuantError> {
        let mut extent = Extent::default();
        visit(&mut |piece| extent.add(piece));
        let mut histogram = self.lock();
        histogram.prepare(&extent)?;
        visit(&mut |piece| histogram.count_prepared(piece));
        Ok(())
    }

    /// Adds the counts of another histogram.
    ///
    /// Blocking: while another thread fills one of the two.
    pub fn merge(&self, other: &Self) {
        // Copies first: two threads may merge two histograms into each other, or one into itself.
        let theirs = other.read(Histogram::clone);
        self.lock().merge(theirs);
    }

    /// Returns the result of `read` on the current counts.
    ///
    /// Blocking: while another thread fills the histogram.
    pub fn read<T>(&self, read: impl FnOnce(&Histogram) -> T) -> T {
        read(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Histogram> {
        // A panic cannot occur during a count, so the histogram is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn histogram(values: &[f32]) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.add(values).unwrap();
        histogram
    }

    #[test]
    fn whole_numbers_fall_into_their_bins() {
        let values: Vec<f32> = (0..=8).map(|i| i as f32).chain([0.0, 3.5]).collect();
        assert_eq!(histogram(&values).counts(4), [3.0, 3.0, 2.0, 3.0]);
        assert_eq!(histogram(&[-1.0, -0.75, 1.0]).counts(2), [2.0, 1.0]);
    }

    #[test]
    fn a_number_of_bins_is_at_least_one_and_has_a_limit() {
        for bins in [1, 512, MAX_BINS] {
            check_bins(bins).unwrap();
        }
        assert!(check_bins(0).unwrap_err().to_string().contains("found 0 bins, expected 1 to 65536"));
        assert!(check_bins(MAX_BINS + 1).is_err());
    }

    #[test]
    fn histogram_of_one_value_has_one_bin_in_use() {
        assert_eq!(histogram(&[2.5, 2.5]).counts(3), [2.0, 0.0, 0.0]);
        assert_eq!(histogram(&[0.0; 4]).counts(2), [4.0, 0.0]);
        let empty = Histogram::default();
        assert_eq!((empty.range(), empty.count(), empty.counts(2)), ((0.0, 0.0), 0, vec![0.0, 0.0]));
    }

    #[test]
    fn histogram_at_the_ends_of_f32_has_room() {
        let values = [f32::MIN, f32::MAX, 0.0, f32::from_bits(1), -f32::from_bits(1)];
        let counts = histogram(&values).counts(16);
        assert_eq!((counts.iter().sum::<f32>(), counts[0], counts[15]), (5.0, 1.0, 1.0));
        assert_eq!(histogram(&[1e-44, 3e-45, -1e-45]).counts(8).iter().sum::<f32>(), 3.0);
    }

    #[test]
    fn histogram_with_a_value_that_is_not_finite_is_unchanged() {
        let mut counts = histogram(&[1.0, 2.0]);
        let before = counts.clone();
        let refused = counts.add(&[f32::NAN, 1e30, f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!(refused, Err(QuantError::NotFinite { nan: 1, infinite: 2, count: 4 }));
        assert_eq!(counts, before);
    }

    /// Hands values over in pieces of three.
    #[allow(clippy::type_complexity)] // the arguments of a histogram
    fn in_pieces(values: &[f32]) -> impl Fn(&mut dyn FnMut(&[f32])) {
        move |count| values.chunks(3).for_each(&mut *count)
    }

    #[test]
    fn shared_histogram_filled_and_merged_by_threads_is_that_of_all_values() {
        let shared = [SharedHistogram::default(), SharedHistogram::default()];
        let values: Vec<f32> = (0..64).map(|i| i as f32 - 20.0).collect();
        std::thread::scope(|scope| {
            for (at, half) in values.chunks(16).enumerate() {
                let into = &shared[at % 2];
                scope.spawn(move || into.add(in_pieces(half)).unwrap());
            }
        });
        let [left, right] = &shared;
        assert!(left.add(in_pieces(&[f32::NAN])).is_err());
        left.merge(right);
        assert_eq!(left.read(Histogram::clone), histogram(&values));
        // Merges the histogram into itself.
        left.merge(left);
        assert_eq!(left.read(Histogram::count), 128);
    }

    #[test]
    fn shared_histograms_merged_into_each_other_by_threads_do_not_wait_for_ever() {
        let (left, right) = (SharedHistogram::default(), SharedHistogram::default());
        std::thread::scope(|scope| {
            scope.spawn(|| (0..200).for_each(|_| left.merge(&right)));
            scope.spawn(|| (0..200).for_each(|_| right.merge(&left)));
        });
        assert_eq!((left.read(Histogram::count), right.read(Histogram::count)), (0, 0));
    }

    fn values() -> impl Strategy<Value = Vec<f32>> {
        let finite = any::<f32>().prop_filter("finite", |value| value.is_finite());
        prop::collection::vec(prop_oneof![-2.0_f32..2.0, -1e-3_f32..1e-3, Just(0.0), finite], 0..200)
    }

    proptest! {
        #[test]
        fn histogram_in_any_order_and_pieces_is_the_same(mut values in values(), cut in 0_usize..200, turn in 0_usize..200) {
            let expected = histogram(&values);
            let cut = cut.min(values.len());
            let (left, right) = values.split_at(cut);
            let mut merged = histogram(right);
            merged.merge(histogram(left));
            prop_assert_eq!(&merged, &expected);
            values.rotate_left(turn.min(cut));
            values.reverse();
            let mut one_by_one = Histogram::default();
            for value in &values {
                one_by_one.add(std::slice::from_ref(value)).unwrap();
            }
            prop_assert_eq!(one_by_one, expected);
        }

        #[test]
        fn every_value_is_counted_once(values in values(), bins in 1_usize..600) {
            let counts = histogram(&values).counts(bins);
            prop_assert!(counts.iter().all(|&count| count >= 0.0 && count.fract() == 0.0));
            prop_assert_eq!(counts.iter().sum::<f32>(), values.len() as f32);
        }
    }
}
