//! From a dictionary of values to the memory of every input, and to the combination of shapes they have.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMapping, PyTuple};
use qaic_runtime::buffer::{HostSlice, Storage};

use super::tensors::{Edge, Form, Tensors, check_keys, names};
use crate::buffers::Exports;
use crate::errors::Raise;

static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Where the inputs of one inference are.
#[derive(Default)]
pub(super) struct Inputs {
    /// One per input, in order; `None` where the device is to use the value it keeps.
    pub(super) memory: Vec<Option<HostSlice>>,
    /// Which of the permitted combinations of shapes they have.
    pub(super) variant: usize,
    /// Memory of inputs that the device wants in another form than the caller.
    pub(super) converted: Vec<Storage>,
}

impl Inputs {
    /// Takes the buffers of `given` into `exports`, converting with `coerce` what is not an array of the right type and
    /// shape.
    pub(super) fn collect(
        &mut self,
        py: Python<'_>,
        tensors: &Tensors,
        coerce: &Py<PyAny>,
        given: &Bound<'_, PyAny>,
        exports: &mut Exports,
    ) -> PyResult<()> {
        self.memory.clear();
        self.converted.clear();
        self.variant = 0;
        let mut copied;
        let mut given = if let Ok(given) = given.cast::<PyDict>() {
            given
        } else if given.cast::<PyMapping>().is_ok() {
            copied = py.get_type::<PyDict>().call1((given,))?.cast_into::<PyDict>()?;
            &copied
        } else {
            return Err(not_a_mapping(py, tensors, given));
        };
        if given.len() != tensors.inputs.len() {
            check_keys(py, given, &tensors.inputs, "input")?;
        }
        if tensors.variants > 1 {
            // Shapes decide before types, so every value becomes an array first; the caller's dictionary stays.
            copied = given.copy()?;
            given = &copied;
            self.variant = choose_variant(py, tensors, given)?;
        }
        for edge in &tensors.inputs {
            let memory = match given.get_item(&edge.key)? {
                Some(value) => {
                    let form = edge.form(self.variant);
                    let array = readable(py, edge, form, coerce, &value, exports)?;
                    Some(edge.for_device(py, form, array, &mut self.converted)?)
                }
                None if edge.state.is_some() => None,
                None => {
                    check_keys(py, given, &tensors.inputs, "input")?;
                    return Err(missing_inputs(py, tensors, given));
                }
            };
            self.memory.push(memory);
        }
        Ok(())
    }
}

/// The first permitted combination of shapes that all given arrays have. What the device keeps has the same shape in all.
fn choose_variant(py: Python<'_>, tensors: &Tensors, given: &Bound<'_, PyDict>) -> PyResult<usize> {
    let mut shapes: Vec<Option<Vec<isize>>> = Vec::with_capacity(tensors.inputs.len());
    for edge in &tensors.inputs {
        let shape = match given.get_item(&edge.key)? {
            None => None,
            Some(value) => {
                if let Some(shape) = shape_of(&value) {
                    Some(shape)
                } else {
                    let asarray = ASARRAY
                        .get_or_try_init(py, || py.import("numpy")?.getattr("asarray").map(Bound::unbind))?;
                    let array = asarray.bind(py).call1((value,))?;
                    given.set_item(&edge.key, &array)?;
                    shape_of(&array)
                }
            }
        };
        shapes.push(shape);
    }
    let matches = |variant: &usize| {
        tensors.inputs.iter().zip(&shapes).all(|(edge, shape)| {
            edge.partial || shape.as_ref().is_none_or(|shape| *shape == edge.form(*variant).shape)
        })
    };
    (0..tensors.variants).find(matches).ok_or_else(|| no_variant(py, tensors, &shapes))
}

fn shape_of(value: &Bound<'_, PyAny>) -> Option<Vec<isize>> {
    value.getattr("shape").ok()?.cast_into::<PyTuple>().ok()?.extract().ok()
}

fn readable(
    py: Python<'_>,
    edge: &Edge,
    form: &Form,
    coerce: &Py<PyAny>,
    value: &Bound<'_, PyAny>,
    exports: &mut Exports,
) -> PyResult<HostSlice> {
    if let Some(exported) = exports.take(value, false)
        && edge.fits(form, &exported)
    {
        return Ok(exported.memory.as_const());
    }
    let converted =
        coerce.bind(py).call1((&edge.key, value, edge.dtype, form.shape.clone(), edge.partial))?;
    match exports.take(&converted, false) {
        Some(exported) if edge.fits(form, &exported) => Ok(exported.memory.as_const()),
        _ => Err(Raise::new(
            py,
            "InternalError",
            "internal.coerce",
            format!("input `{}` was not converted to {} {:?}", edge.name, edge.dtype, form.shape),
        )
        .build()),
    }
}

fn not_a_mapping(py: Python<'_>, tensors: &Tensors, given: &Bound<'_, PyAny>) -> PyErr {
    let found = given.get_type().name().map_or_else(|_| "value".to_owned(), |name| name.to_string());
    Raise::new(
        py,
        "InputTypeError",
        "input.not_a_dict",
        format!(
            "inputs are a {found}; a dict of name to numpy array is expected, with the names {:?}",
            names(&tensors.inputs)
        ),
    )
    .build()
}

fn missing_inputs(py: Python<'_>, tensors: &Tensors, given: &Bound<'_, PyDict>) -> PyErr {
    let missing: Vec<&str> = tensors
        .inputs
        .iter()
        .filter(|edge| edge.state.is_none() && !given.contains(&edge.key).unwrap_or(false))
        .map(|edge| edge.name.as_str())
        .collect();
    Raise::new(
        py,
        "MissingInputError",
        "input.missing",
        format!("missing inputs: {}; the program needs {:?}", missing.join(", "), names(&tensors.inputs)),
    )
    .with("missing", missing)
    .build()
}

fn no_variant(py: Python<'_>, tensors: &Tensors, shapes: &[Option<Vec<isize>>]) -> PyErr {
    let given: Vec<_> = tensors
        .inputs
        .iter()
        .zip(shapes)
        .filter_map(|(edge, shape)| Some((edge.name.as_str(), shape.clone()?)))
        .collect();
    let allowed: Vec<Vec<_>> = (0..tensors.variants)
        .map(|variant| {
            tensors
                .inputs
                .iter()
                .filter(|edge| given.iter().any(|(name, _)| *name == edge.name))
                .map(|edge| (edge.name.as_str(), edge.form(variant).shape.clone()))
                .collect()
        })
        .collect();
    let listed = |set: &[(&str, Vec<isize>)]| {
        set.iter().map(|(name, shape)| format!("{name} {shape:?}")).collect::<Vec<_>>().join(", ")
    };
    let text = format!(
        "No matching dimension found: {} given; one of these is expected: {}",
        listed(&given),
        allowed.iter().map(|set| listed(set)).collect::<Vec<_>>().join(" | ")
    );
    Raise::new(py, "InputShapeError", "input.shapes", text)
        .with("passed", given)
        .with("allowed", allowed)
        .hint("pass arrays of exactly one of these combinations")
        .build()
}
