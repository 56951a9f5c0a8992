//! Conversion of a dictionary of values to arrays of all inputs, and selection of their permitted combination of
//! shapes.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple};
use qaic_runtime::binding::{ArgumentError, BindingSpec, GivenShape};
use qaic_runtime::request::{ArrayId, BoundArrays};

use super::tensors::{Tensors, check_keys};
use crate::buffers::{Exports, as_array};
use crate::errors::{Raise, from_runtime};

/// Binds the inputs to the buffers of `given`, which `exports` keeps. `coerce` converts values that are not arrays of
/// the right type and shape. Returns the index of their combination of shapes.
pub(super) fn bind_inputs(
    py: Python<'_>,
    tensors: &Tensors,
    coerce: &Py<PyAny>,
    given: &Bound<'_, PyAny>,
    exports: &mut Exports,
    bound: &mut BoundArrays,
) -> PyResult<usize> {
    let specs = tensors.specs().inputs();
    let mut copied;
    let mut given = if let Ok(given) = given.cast::<PyDict>() {
        given
    } else if given.cast::<PyMapping>().is_ok() {
        copied = py.get_type::<PyDict>().call1((given,))?.cast_into::<PyDict>()?;
        &copied
    } else {
        return Err(not_a_mapping(py, specs, given));
    };
    if given.len() != specs.len() {
        check_keys(py, given, specs, "input")?;
    }
    let mut variant = 0;
    if tensors.specs().variants > 1 {
        // The shapes select the combination before types are converted, so every value must be an array. The caller's
        // dictionary stays unchanged.
        copied = given.copy()?;
        given = &copied;
        variant = choose_variant(py, tensors, given)?;
    }
    bound.begin(variant);
    for (spec, key) in tensors.inputs() {
        let array = match given.get_item(key)? {
            Some(value) => Some(readable(py, spec, key, variant, coerce, &value, exports)?),
            None if spec.retained.is_some() => None,
            None => {
                check_keys(py, given, specs, "input")?;
                let is_given = |index: usize| {
                    let key = tensors.inputs.get(index);
                    key.is_some_and(|key| given.contains(key).unwrap_or(false))
                };
                return Err(from_runtime(py, tensors.specs().missing_inputs(is_given)));
            }
        };
        let pushed = bound.push_input(&tensors.arrays, exports, array);
        pushed.map_err(|error| from_runtime(py, error))?;
    }
    Ok(variant)
}

/// Returns the permitted combination of shapes that matches all given arrays.
fn choose_variant(py: Python<'_>, tensors: &Tensors, given: &Bound<'_, PyDict>) -> PyResult<usize> {
    let mut shapes = Vec::with_capacity(tensors.inputs.len());
    for (spec, key) in tensors.inputs() {
        let dims = match given.get_item(key)? {
            None => None,
            Some(value) => {
                if let Some(dims) = dims_of(&value) {
                    Some(dims)
                } else {
                    let array = as_array(&value)?;
                    given.set_item(key, &array)?;
                    dims_of(&array)
                }
            }
        };
        // Types are converted later, so only dims select the combination.
        let item_bytes = spec.largest.item_bytes as u64;
        shapes.push(dims.map(|dims| GivenShape { item_bytes, dims }));
    }
    let found = tensors.specs().variant_of(&shapes);
    found.map_err(|error| from_runtime(py, ArgumentError::from(error)))
}

fn dims_of(value: &Bound<'_, PyAny>) -> Option<Vec<u64>> {
    value.getattr("shape").ok()?.cast_into::<PyTuple>().ok()?.extract().ok()
}

fn readable(
    py: Python<'_>,
    spec: &BindingSpec,
    key: &Py<PyString>,
    variant: usize,
    coerce: &Py<PyAny>,
    value: &Bound<'_, PyAny>,
    exports: &mut Exports,
) -> PyResult<ArrayId> {
    if let Some(exported) = exports.take(value, false)
        && spec.takes(variant, &exported.argument)
    {
        return Ok(exported.id);
    }
    let (_, dtype) = spec.element_type();
    let shape = &spec.shape(variant).dims;
    let converted = coerce.bind(py).call1((key, value, dtype, shape.clone(), spec.is_partial))?;
    match exports.take(&converted, false) {
        Some(exported) if spec.takes(variant, &exported.argument) => Ok(exported.id),
        _ => {
            let what = format!("input `{}`", spec.name);
            Err(from_runtime(py, ArgumentError::NotConverted { what, dtype, shape: shape.clone() }))
        }
    }
}

fn not_a_mapping(py: Python<'_>, specs: &[BindingSpec], given: &Bound<'_, PyAny>) -> PyErr {
    let found = given.get_type().name().map_or_else(|_| "value".to_owned(), |name| name.to_string());
    let names: Vec<_> = specs.iter().filter(|spec| spec.is_visible).map(|spec| &spec.name).collect();
    let text = format!(
        "inputs have type {found}; a dict of name to numpy array is expected, with the names {names:?}"
    );
    Raise::new(py, "InputTypeError", "input.not_a_dict", text).build()
}
