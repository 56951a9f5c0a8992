//! `quant_range`.

use pyo3::prelude::*;
use qaic_quant::range::{Precision, Schema, quant_params};

use super::{named, refused};

/// The schema of this name.
pub(super) fn schema(py: Python<'_>, name: &str) -> PyResult<Schema> {
    named(py, "schema", name, &Schema::ALL.map(Schema::name), Schema::from_name)
}

/// The precision of this name.
pub(super) fn precision(py: Python<'_>, name: &str) -> PyResult<Precision> {
    named(py, "precision", name, &Precision::ALL.map(Precision::name), Precision::from_name)
}

/// Scale and offset of a tensor whose values lie between `minimum` and `maximum`.
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
