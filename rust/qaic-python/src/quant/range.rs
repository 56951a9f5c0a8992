//! `quant_range` and `calibrate_range`.

use pyo3::prelude::*;
use qaic_quant::{Method, Precision, Schema, calibrate, quant_params};

use super::arrays::Lent;
use super::{named, refused};
use crate::gil::Detach;

pub(super) fn schema(py: Python<'_>, name: &str) -> PyResult<Schema> {
    named(py, "schema", name, &Schema::ALL.map(Schema::name), Schema::from_name)
}

pub(super) fn precision(py: Python<'_>, name: &str) -> PyResult<Precision> {
    named(py, "precision", name, &Precision::ALL.map(Precision::name), Precision::from_name)
}

/// Returns scale and offset for a tensor with values between `minimum` and `maximum`.
#[pyfunction(name = "quant_range")]
#[pyo3(signature = (minimum, maximum, schema, precision))]
pub(crate) fn quant_range(
    py: Python<'_>,
    minimum: f64,
    maximum: f64,
    schema: &str,
    precision: &str,
) -> PyResult<(f32, i32)> {
    let (schema, precision) = (self::schema(py, schema)?, self::precision(py, precision)?);
    let params = quant_params(minimum, maximum, schema, precision).map_err(|error| refused(py, &error))?;
    Ok((params.scale, params.offset))
}

/// Returns the range that a calibration computes for a tensor with this histogram.
#[pyfunction]
#[pyo3(signature = (histogram, minimum, maximum, method, schema, precision, percentile = 100.0))]
#[allow(clippy::too_many_arguments)] // one for each option
pub(crate) fn calibrate_range(
    py: Python<'_>,
    histogram: &Bound<'_, PyAny>,
    minimum: f64,
    maximum: f64,
    method: &str,
    schema: &str,
    precision: &str,
    percentile: f64,
) -> PyResult<(f64, f64)> {
    let (schema, precision) = (self::schema(py, schema)?, self::precision(py, precision)?);
    let method = named(py, "method", method, &Method::NAMES, |name| Method::from_name(name, percentile))?;
    let lent = Lent::floats(py, histogram)?;
    let mut counts = vec![0.0_f32; lent.len()];
    let _ = lent.memory().read_into(0, &mut counts);
    py.detached(|_| Ok(calibrate(&counts, minimum, maximum, method, schema, precision)))?
        .map_err(|error| refused(py, &error))
}
