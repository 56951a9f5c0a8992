//! Inputs and outputs by their names in Python.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use qaic_mem::Storage;
use qaic_runtime::binding::{ArgumentError, BindingSpec, BindingSpecs};
use qaic_runtime::request::{ArrayId, ArrayTensors};
use qaic_runtime::{Image, RuntimeError};

use crate::buffers::{Exports, array_over};
use crate::errors::from_runtime;

/// All tensors of a program, with their names as Python keys in binding order.
pub(super) struct Tensors {
    pub(super) arrays: ArrayTensors,
    pub(super) inputs: Vec<Py<PyString>>,
    pub(super) outputs: Vec<Py<PyString>>,
}

impl Tensors {
    /// Creates the tensors of a container; `unused` is the number of free buffers to keep per tensor.
    pub(super) fn new(py: Python<'_>, image: &Image, unused: usize) -> Result<Self, RuntimeError> {
        let arrays = ArrayTensors::new(image, unused)?;
        let keys = |specs: &[BindingSpec]| {
            specs.iter().map(|spec| PyString::intern(py, &spec.name).unbind()).collect()
        };
        let (inputs, outputs) = (keys(arrays.specs.inputs()), keys(arrays.specs.outputs()));
        Ok(Self { arrays, inputs, outputs })
    }

    pub(super) fn specs(&self) -> &BindingSpecs {
        &self.arrays.specs
    }

    /// The inputs with their keys.
    pub(super) fn inputs(&self) -> impl Iterator<Item = (&BindingSpec, &Py<PyString>)> {
        self.specs().inputs().iter().zip(&self.inputs)
    }

    /// The outputs with their keys.
    pub(super) fn outputs(&self) -> impl Iterator<Item = (&BindingSpec, &Py<PyString>)> {
        self.specs().outputs().iter().zip(&self.outputs)
    }

    /// Creates a numpy array on the memory of an output.
    pub(super) fn array<'py>(
        &self,
        py: Python<'py>,
        output: usize,
        variant: usize,
        storage: Storage,
    ) -> PyResult<Bound<'py, PyAny>> {
        let layout = self.arrays.output_layout(output, variant);
        let layout = layout.map_err(|error| from_runtime(py, error))?;
        array_over(py, storage, layout)
    }
}

/// Returns the buffer of an array for an output. The array has the shape of the output, or a larger permitted shape;
/// then the output is at its start.
pub(super) fn writable(
    py: Python<'_>,
    spec: &BindingSpec,
    variant: usize,
    array: &Bound<'_, PyAny>,
    exports: &mut Exports,
) -> PyResult<ArrayId> {
    let shape = spec.shape(variant);
    if let Some(exported) = exports.take(array, true)
        && spec.fits_into(variant, &exported.argument)
    {
        return Ok(exported.id);
    }
    let found = array
        .getattr("dtype")
        .and_then(|dtype| Ok(format!("{dtype} of shape {}", array.getattr("shape")?)))
        .unwrap_or_else(|_| array.get_type().to_string());
    let error = ArgumentError::OutputArray {
        name: spec.name.clone(),
        found,
        dtype: spec.element_type().1,
        shape: shape.dims.clone(),
    };
    Err(from_runtime(py, error))
}

/// Returns an error for a key that is not the name of a tensor.
pub(super) fn check_keys(
    py: Python<'_>,
    given: &Bound<'_, PyDict>,
    specs: &[BindingSpec],
    side: &'static str,
) -> PyResult<()> {
    for key in given.keys() {
        let text = key.cast::<PyString>().map(|text| text.to_string_lossy().into_owned());
        let visible = || specs.iter().filter(|spec| spec.is_visible);
        if text.as_ref().is_ok_and(|text| visible().any(|spec| spec.name == *text)) {
            continue;
        }
        let shown = key.repr()?.to_string();
        let error = ArgumentError::UnknownName {
            side,
            name: text.unwrap_or_else(|_| shown.clone()),
            shown,
            known: visible().map(|spec| spec.name.clone()).collect(),
        };
        return Err(from_runtime(py, error));
    }
    Ok(())
}
