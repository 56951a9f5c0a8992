//! Reduced precision for the compiler: `qaic_quant` on numpy arrays.

mod arrays;
mod histogram;
mod mx;
mod range;
mod tensor;

use pyo3::prelude::*;
use qaic_quant::QuantError;

use crate::errors::Raise;

pub(crate) use histogram::PyTensorHistogram;
pub(crate) use mx::{mx_decode, mx_encode};
pub(crate) use range::{calibrate_range, quant_range};
pub(crate) use tensor::quantize_tensor;

/// Converts an error of `qaic_quant`.
fn refused(py: Python<'_>, error: &QuantError) -> PyErr {
    let message = error.to_string();
    match *error {
        QuantError::NotFinite { nan, infinite, count } => {
            Raise::new(py, "InputError", "quant.not_finite", message)
                .with("nan", nan)
                .with("infinite", infinite)
                .with("count", count)
                .build()
        }
        QuantError::Range { .. } => Raise::new(py, "InputError", "quant.range", message).build(),
        _ => Raise::new(py, "InputError", "quant.parameters", message).build(),
    }
}

/// Returns the value that `find` returns for a name; the error lists the valid names.
fn named<T>(
    py: Python<'_>,
    what: &str,
    name: &str,
    names: &[&str],
    find: impl FnOnce(&str) -> Option<T>,
) -> PyResult<T> {
    find(name).ok_or_else(|| {
        let text = format!("{what} is {name:?}; one of {} is expected", names.join(", "));
        Raise::new(py, "OptionError", "quant.name", text).with("name", name).build()
    })
}
