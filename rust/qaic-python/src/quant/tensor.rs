//! `quantize_tensor` and `dequantize_tensor`.

use std::ffi::CStr;

use pyo3::prelude::*;
use qaic_mem::Pod;
use qaic_quant::error::QuantError;
use qaic_quant::range::{Precision, QuantParams};
use qaic_quant::tensor::{Channels, Quantized, dequantize, quantize};

use super::arrays::{Lent, array, map_pieces, numbers};
use super::{range, refused};
use crate::gil::Detach;

/// Parameters given as one scale and offset, or as one of each per index along `axis`.
fn channels(
    py: Python<'_>,
    scale: &Bound<'_, PyAny>,
    offset: &Bound<'_, PyAny>,
    axis: Option<isize>,
    shape: &[usize],
) -> PyResult<Channels> {
    let scales: Vec<f32> = numbers(py, scale, "float32", b'f')?;
    let offsets: Vec<i32> = numbers(py, offset, "int32", b'i')?;
    let fail = |error: QuantError| refused(py, &error);
    let params = paired(&scales, &offsets).map_err(fail)?;
    let Some(axis) = axis else {
        return match params[..] {
            [only] => Channels::whole(only),
            _ => Err(QuantError::Parameters {
                what: format!("{} scales without an axis; one is expected", params.len()),
            }),
        }
        .map_err(fail);
    };
    let rank = shape.len().cast_signed();
    let index = if axis < 0 { axis + rank } else { axis };
    // An axis below the first one stays wrong as an unsigned number.
    Channels::along(index.cast_unsigned(), shape, params).map_err(fail)
}

/// Scales with their offsets; one offset serves all scales.
fn paired(scales: &[f32], offsets: &[i32]) -> Result<Vec<QuantParams>, QuantError> {
    let pair = |(&scale, &offset): (&f32, &i32)| QuantParams { scale, offset };
    if offsets.len() == scales.len() {
        return Ok(scales.iter().zip(offsets).map(pair).collect());
    }
    if let [only] = offsets {
        return Ok(scales.iter().map(|scale| pair((scale, only))).collect());
    }
    Err(QuantError::Parameters {
        what: format!("{} offsets for {} scales; as many, or one, are expected", offsets.len(), scales.len()),
    })
}

fn quantized<'py, T: Quantized + Pod>(
    py: Python<'py>,
    values: &Lent,
    channels: &Channels,
    format: &CStr,
) -> PyResult<Bound<'py, PyAny>> {
    let memory = values.memory();
    let storage = py.detached(move || {
        map_pieces(memory, |first, values: &[f32], into: &mut [T]| quantize(channels, first, values, into))
    })?;
    array(py, storage, &values.shape, format, size_of::<T>())
}

fn dequantized<'py, T: Quantized + Pod>(
    py: Python<'py>,
    values: &Lent,
    channels: &Channels,
) -> PyResult<Bound<'py, PyAny>> {
    let memory = values.memory();
    let storage = py.detached(move || {
        map_pieces(memory, |first, values: &[T], into: &mut [f32]| dequantize(channels, first, values, into))
    })?;
    array(py, storage, &values.shape, c"f", size_of::<f32>())
}

/// Quantizes a float32 array: `clip(round_half_even(x / scale + offset))`.
#[pyfunction]
#[pyo3(signature = (array, scale, offset, precision, axis = None))]
pub(crate) fn quantize_tensor<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    scale: &Bound<'py, PyAny>,
    offset: &Bound<'py, PyAny>,
    precision: &str,
    axis: Option<isize>,
) -> PyResult<Bound<'py, PyAny>> {
    let values = Lent::floats(py, array)?;
    let precision = range::precision(py, precision)?;
    let channels = channels(py, scale, offset, axis, &values.shape)?;
    match precision {
        Precision::Int8 => quantized::<i8>(py, &values, &channels, c"b"),
        Precision::Int16 => quantized::<i16>(py, &values, &channels, c"h"),
        Precision::Int32 => quantized::<i32>(py, &values, &channels, c"i"),
    }
}

/// Gives an array of int8, int16 or int32 back as float32: `scale * (q - offset)`.
#[pyfunction]
#[pyo3(signature = (array, scale, offset, axis = None))]
pub(crate) fn dequantize_tensor<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    scale: &Bound<'py, PyAny>,
    offset: &Bound<'py, PyAny>,
    axis: Option<isize>,
) -> PyResult<Bound<'py, PyAny>> {
    let item_bytes = array.getattr("itemsize").and_then(|size| size.extract()).unwrap_or(1);
    let format = match item_bytes {
        2 => b'h',
        4 => b'i',
        _ => b'b',
    };
    let values = Lent::take(py, array, format, "int8, int16 or int32")?;
    let channels = channels(py, scale, offset, axis, &values.shape)?;
    match format {
        b'h' => dequantized::<i16>(py, &values, &channels),
        b'i' => dequantized::<i32>(py, &values, &channels),
        _ => dequantized::<i8>(py, &values, &channels),
    }
}
