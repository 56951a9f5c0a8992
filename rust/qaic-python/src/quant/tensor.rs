//! `quantize_tensor`.

use std::ffi::CStr;

use pyo3::prelude::*;
use qaic_mem::Pod;
use qaic_mem::convert::map_pieces;
use qaic_quant::{Channels, Precision, Quantized, quantize};

use super::arrays::{Lent, array, numbers};
use super::{range, refused};
use crate::gil::Detach;

/// Reads the parameters: one scale and offset, or one of each per index along `axis`.
fn channels(
    py: Python<'_>,
    scale: &Bound<'_, PyAny>,
    offset: &Bound<'_, PyAny>,
    axis: Option<isize>,
    shape: &[usize],
) -> PyResult<Channels> {
    let scales: Vec<f32> = numbers(py, scale, "float32", b'f')?;
    let offsets: Vec<i32> = numbers(py, offset, "int32", b'i')?;
    Channels::of(&scales, &offsets, axis, shape).map_err(|error| refused(py, &error))
}

fn quantized<'py, T: Quantized + Pod>(
    py: Python<'py>,
    values: &Lent,
    channels: &Channels,
    format: &CStr,
) -> PyResult<Bound<'py, PyAny>> {
    let memory = values.memory();
    let map = |first, values: &[f32], into: &mut [T]| quantize(channels, first, values, into);
    let storage = py.detached(move |_| Ok(map_pieces(memory, map)?))?;
    array(py, storage, &values.shape, format, size_of::<T>())
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
