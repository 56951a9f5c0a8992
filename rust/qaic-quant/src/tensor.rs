//! Quantization of whole tensors to integers, with the arithmetic of [`affine`](crate::affine).
//!
//! Loops process runs of one channel, so that scale and offset are constants in a loop that the compiler vectorizes.

use crate::affine;
use crate::error::QuantError;
use crate::range::{Precision, QuantParams};

/// Integers of a quantized tensor.
pub trait Quantized: Copy + Default + Send + Sync + 'static {
    /// Name of the integers.
    const PRECISION: Precision;
    /// `sum` is the quotient plus the offset, in f32.
    fn from_sum(sum: f32) -> Self;
}

impl Quantized for i8 {
    const PRECISION: Precision = Precision::Int8;

    #[inline]
    fn from_sum(sum: f32) -> Self {
        affine::to_i8(sum)
    }
}

impl Quantized for i16 {
    const PRECISION: Precision = Precision::Int16;

    #[inline]
    fn from_sum(sum: f32) -> Self {
        affine::to_i16(sum)
    }
}

impl Quantized for i32 {
    const PRECISION: Precision = Precision::Int32;

    #[inline]
    fn from_sum(sum: f32) -> Self {
        // Float32 cannot represent the highest level, so integers are clipped.
        let (lowest, highest) = Precision::Int32.levels();
        affine::to_i32(sum).clamp(lowest, highest)
    }
}

/// Parameters of every element of a tensor.
///
/// Element `i`, in C order, belongs to channel `i / inner % channels`.
#[derive(Clone, Debug, PartialEq)]
pub struct Channels {
    params: Vec<QuantParams>,
    inner: usize,
}

impl Channels {
    /// Scales with their offsets, one offset for all of them or one for each; without `axis` there is one scale. A
    /// negative axis counts from the last one.
    pub fn of(
        scales: &[f32],
        offsets: &[i32],
        axis: Option<isize>,
        shape: &[usize],
    ) -> Result<Self, QuantError> {
        let pair = |(&scale, &offset): (&f32, &i32)| QuantParams { scale, offset };
        let params: Vec<_> = match offsets {
            _ if offsets.len() == scales.len() => scales.iter().zip(offsets).map(pair).collect(),
            [only] => scales.iter().map(|scale| pair((scale, only))).collect(),
            _ => {
                let (offsets, scales) = (offsets.len(), scales.len());
                let what = format!("found {offsets} offsets for {scales} scales, expected as many, or one");
                return Err(QuantError::Parameters { what });
            }
        };
        match (axis, &params[..]) {
            (None, [only]) => Self::whole(*only),
            (None, _) => {
                let what = format!("{} scales without an axis; one is expected", params.len());
                Err(QuantError::Parameters { what })
            }
            (Some(axis), _) => {
                let index = if axis < 0 { axis.wrapping_add_unsigned(shape.len()) } else { axis };
                // An axis below the first one stays out of range as an unsigned number.
                Self::along(index.cast_unsigned(), shape, params)
            }
        }
    }

    /// One scale and offset for all elements.
    pub fn whole(params: QuantParams) -> Result<Self, QuantError> {
        Self::new(vec![params], 1)
    }

    /// One scale and offset for each index along `axis` of a tensor of this shape.
    pub fn along(axis: usize, shape: &[usize], params: Vec<QuantParams>) -> Result<Self, QuantError> {
        let Some(&channels) = shape.get(axis) else {
            let rank = shape.len();
            return Err(QuantError::Parameters {
                what: format!("axis {axis} of a tensor with {rank} dimensions"),
            });
        };
        if channels != params.len() {
            let what =
                format!("axis {axis} of shape {shape:?}: found {} scales, expected {channels}", params.len());
            return Err(QuantError::Parameters { what });
        }
        let inner = shape.iter().skip(axis + 1).product::<usize>().max(1);
        Self::new(params, inner)
    }

    fn new(params: Vec<QuantParams>, inner: usize) -> Result<Self, QuantError> {
        if let Some(bad) = params.iter().find(|params| !(params.scale.is_finite() && params.scale > 0.0)) {
            let what = format!("scale {}; a finite number above zero is expected", bad.scale);
            return Err(QuantError::Parameters { what });
        }
        Ok(Self { params, inner })
    }

    /// Runs of elements with equal parameters: calls `run(params, start, end)` for the `len` elements from `first` on,
    /// with positions counted from `first`.
    fn runs(&self, first: usize, len: usize, mut run: impl FnMut(QuantParams, usize, usize)) {
        if let [only] = self.params[..] {
            return run(only, 0, len);
        }
        let mut start = 0;
        while start < len {
            let place = first + start;
            let channel = place / self.inner % self.params.len();
            let end = len.min(start + self.inner - place % self.inner);
            run(self.params[channel], start, end);
            start = end;
        }
    }

    /// Returns the parameters of consecutive elements from `first` if the axis is the last one, so that each has its own.
    fn last_axis(&self, first: usize) -> Option<(&[QuantParams], usize)> {
        (self.inner == 1 && self.params.len() > 1).then(|| (&self.params[..], first % self.params.len()))
    }
}

/// Calls `row` for aligned pieces of parameters and elements, the elements cycling through `params` from `start` on.
fn cycle(
    params: &[QuantParams],
    start: usize,
    len: usize,
    mut row: impl FnMut(&[QuantParams], usize, usize),
) {
    let (mut channel, mut done) = (start, 0);
    while done < len {
        let piece = (params.len() - channel).min(len - done);
        row(&params[channel..channel + piece], done, done + piece);
        done += piece;
        channel = 0;
    }
}

/// Quantizes `values`, which are the elements from number `first` on of the tensor that `channels` describes.
///
/// # Panics
///
/// If the two slices differ in length.
pub fn quantize<T: Quantized>(channels: &Channels, first: usize, values: &[f32], into: &mut [T]) {
    let each = |value: f32, params: QuantParams| T::from_sum(affine::sum(value, params.scale, params.offset));
    assert_eq!(values.len(), into.len());
    if let Some((params, start)) = channels.last_axis(first) {
        return cycle(params, start, values.len(), |params, start, end| {
            for ((params, value), out) in params.iter().zip(&values[start..end]).zip(&mut into[start..end]) {
                *out = each(*value, *params);
            }
        });
    }
    channels.runs(first, values.len(), |params, start, end| {
        for (value, out) in values[start..end].iter().zip(&mut into[start..end]) {
            *out = each(*value, params);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one<T: Quantized>(value: f32, scale: f32, offset: i32) -> T {
        let mut out = [T::default()];
        let channels = Channels::whole(QuantParams { scale, offset }).unwrap();
        quantize(&channels, 0, &[value], &mut out);
        out[0]
    }

    #[test]
    fn one_offset_serves_all_scales() {
        let along = Channels::of(&[1.0, 2.0], &[3], Some(-1), &[5, 2]).unwrap();
        assert_eq!(along, Channels::of(&[1.0, 2.0], &[3, 3], Some(1), &[5, 2]).unwrap());
        let whole = Channels::of(&[0.5], &[1], None, &[5, 2]).unwrap();
        assert_eq!(whole, Channels::whole(QuantParams { scale: 0.5, offset: 1 }).unwrap());
    }

    #[test]
    fn parameters_that_fit_no_tensor_are_named() {
        let refused = |scales: &[f32], offsets: &[i32], axis| {
            Channels::of(scales, offsets, axis, &[2, 3]).unwrap_err().to_string()
        };
        assert_eq!(
            refused(&[1.0; 3], &[0; 2], Some(1)),
            "found 2 offsets for 3 scales, expected as many, or one"
        );
        assert_eq!(refused(&[1.0; 2], &[0], None), "2 scales without an axis; one is expected");
        assert_eq!(refused(&[1.0; 3], &[0], Some(0)), "axis 0 of shape [2, 3]: found 3 scales, expected 2");
        assert!(refused(&[1.0], &[0], Some(-3)).contains("of a tensor with 2 dimensions"));
    }

    #[test]
    fn quantize_of_halves_rounds_to_even() {
        // 1.5 + 1 = 2.5 is rounded to 2; rounding the quotient first would result in 3.
        assert_eq!(one::<i8>(1.5, 1.0, 1), 2);
        assert_eq!(one::<i8>(2.5, 1.0, 0), 2);
        assert_eq!(one::<i16>(-2.5, 1.0, 0), -2);
        assert_eq!(one::<i32>(3.5, 1.0, 0), 4);
    }

    #[test]
    fn quantize_beyond_the_range_is_clipped() {
        for (value, expected) in
            [(f32::INFINITY, 127), (f32::NEG_INFINITY, -128), (f32::NAN, -128), (1e30, 127), (127.5, 127)]
        {
            assert_eq!(one::<i8>(value, 1.0, 0), expected, "{value}");
        }
        assert_eq!(one::<i32>(f32::INFINITY, 1.0, 0), (1 << 29) - 1);
        assert_eq!(one::<i32>(f32::NAN, 1.0, 0), -(1 << 29));
        assert_eq!(one::<i16>(f32::from_bits(1), f32::from_bits(1), 3), 4);
    }

    #[test]
    fn quantize_with_parameters_of_another_size_is_refused() {
        let params = |scale| QuantParams { scale, offset: 0 };
        assert!(Channels::whole(params(0.0)).is_err());
        assert!(Channels::whole(params(f32::NAN)).is_err());
        assert!(Channels::along(2, &[2, 3], vec![params(1.0)]).is_err());
        assert!(Channels::along(1, &[2, 3], vec![params(1.0); 2]).is_err());
        assert!(Channels::along(1, &[2, 3], vec![params(1.0); 3]).is_ok());
    }

    proptest! {
        /// Any partition of the work has the same result as one loop over indices, for every axis.
        #[test]
        fn quantize_along_any_axis_uses_the_parameters_of_its_channel(
            shape in prop::collection::vec(1_usize..5, 1..4),
            axis in 0_usize..4,
            cut in 0_usize..64,
            seed in any::<u32>(),
        ) {
            let axis = axis % shape.len();
            let len: usize = shape.iter().product();
            let params: Vec<QuantParams> = (0..shape[axis])
                .map(|i| QuantParams { scale: 0.5 + i as f32, offset: i as i32 - 1 })
                .collect();
            let values: Vec<f32> =
                (0..len).map(|i| (seed.wrapping_mul(i as u32 + 7) >> 20) as f32 / 16.0 - 128.0).collect();
            let channels = Channels::along(axis, &shape, params.clone()).unwrap();
            let cut = cut.min(len);
            let mut out = vec![0_i8; len];
            quantize(&channels, 0, &values[..cut], &mut out[..cut]);
            quantize(&channels, cut, &values[cut..], &mut out[cut..]);
            let inner: usize = shape[axis + 1..].iter().product();
            for i in 0..len {
                let QuantParams { scale, offset } = params[i / inner % shape[axis]];
                let level = (values[i] / scale + offset as f32).round_ties_even().clamp(-128.0, 127.0);
                prop_assert_eq!(f32::from(out[i]), level);
            }
        }
    }
}
