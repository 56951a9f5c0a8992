//! From a dictionary of values to the memory of every input, and to the combination of shapes they have.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple};
use qaic_mem::{HostSlice, Loan, Storage};
use qaic_runtime::binding::{ArgumentError, BindingSpec, Bindings, GivenShape, InputBinding, Shapes};

use super::tensors::{Tensors, check_keys, numpy_type};
use crate::buffers::{ExportId, Exports};
use crate::errors::{Raise, from_runtime};

static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Where the inputs of one inference are.
#[derive(Default)]
pub(super) struct Inputs {
    /// One per input, in order; `None` where the device is to use the value it keeps.
    pub(super) sources: Vec<Option<Source>>,
    /// Which of the permitted combinations of shapes they have.
    pub(super) variant: usize,
    /// Memory of inputs that the device wants in another form than the caller.
    converted: Vec<Storage>,
}

/// Where one input is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// In the caller's array.
    Export(ExportId),
    /// In the memory of a converted one.
    Converted(usize),
}

impl Inputs {
    /// Room for this many.
    pub(super) fn with_capacity(inputs: usize) -> Self {
        Self { sources: Vec::with_capacity(inputs), ..Self::default() }
    }

    /// Whether the device is to use the value it keeps.
    pub(super) fn is_left_out(&self, input: usize) -> bool {
        matches!(self.sources.get(input), Some(None))
    }

    /// The memory of each.
    pub(super) fn memory<'a>(
        &'a self,
        exports: &'a Exports,
    ) -> impl Iterator<Item = Option<HostSlice<'a>>> + Clone {
        let memory = |source| match source {
            Source::Export(id) => exports.memory(id),
            Source::Converted(at) => self.converted.get(at).map_or(HostSlice::empty(), Storage::memory),
        };
        self.sources.iter().map(move |source| source.map(memory))
    }

    /// Lends them to an inference.
    pub(super) fn bind<'a>(&'a self, exports: &'a Exports, loan: &mut Loan<'_, 'a>, bindings: &mut Bindings) {
        bindings.shapes = Shapes::Variant(self.variant);
        for (binding, memory) in bindings.inputs.iter_mut().zip(self.memory(exports)) {
            *binding = match memory {
                Some(memory) => InputBinding::Memory(loan.lend(memory)),
                None => InputBinding::Retained,
            };
        }
    }

    /// Lets the memory of what was converted go.
    pub(super) fn clear(&mut self) {
        self.sources.clear();
        self.converted.clear();
    }

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
        self.clear();
        self.variant = 0;
        let specs = tensors.specs.inputs();
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
        if tensors.specs.variants() > 1 {
            // Shapes decide before types, so every value becomes an array first; the caller's dictionary stays.
            copied = given.copy()?;
            given = &copied;
            self.variant = choose_variant(py, tensors, given)?;
        }
        for (spec, tensor) in tensors.inputs() {
            let source = match given.get_item(&tensor.key)? {
                Some(value) => {
                    let id = readable(py, spec, &tensor.key, self.variant, coerce, &value, exports)?;
                    Some(match tensor.for_device(py, self.variant, exports.memory(id))? {
                        None => Source::Export(id),
                        Some(converted) => {
                            self.converted.push(converted);
                            Source::Converted(self.converted.len() - 1)
                        }
                    })
                }
                None if spec.retained.is_some() => None,
                None => {
                    check_keys(py, given, specs, "input")?;
                    let is_given = |index: usize| {
                        let tensor = tensors.inputs.get(index);
                        tensor.is_some_and(|tensor| given.contains(&tensor.key).unwrap_or(false))
                    };
                    return Err(from_runtime(py, tensors.specs.missing_inputs(is_given)));
                }
            };
            self.sources.push(source);
        }
        Ok(())
    }
}

/// The permitted combination of shapes that all given arrays have.
fn choose_variant(py: Python<'_>, tensors: &Tensors, given: &Bound<'_, PyDict>) -> PyResult<usize> {
    let mut shapes = Vec::with_capacity(tensors.inputs.len());
    for (spec, tensor) in tensors.inputs() {
        let dims = match given.get_item(&tensor.key)? {
            None => None,
            Some(value) => {
                if let Some(dims) = dims_of(&value) {
                    Some(dims)
                } else {
                    let asarray = ASARRAY
                        .get_or_try_init(py, || py.import("numpy")?.getattr("asarray").map(Bound::unbind))?;
                    let array = asarray.bind(py).call1((value,))?;
                    given.set_item(&tensor.key, &array)?;
                    dims_of(&array)
                }
            }
        };
        // Types are converted; only dims decide.
        let item_bytes = spec.largest.item_bytes as u64;
        shapes.push(dims.map(|dims| GivenShape { item_bytes, dims }));
    }
    let found = tensors.specs.variant_of(&shapes);
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
) -> PyResult<ExportId> {
    if let Some(exported) = exports.take(value, false)
        && spec.takes(variant, &exported.argument)
    {
        return Ok(exported.id);
    }
    let (_, dtype) = numpy_type(spec);
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
    let text =
        format!("inputs are a {found}; a dict of name to numpy array is expected, with the names {names:?}");
    Raise::new(py, "InputTypeError", "input.not_a_dict", text).build()
}
