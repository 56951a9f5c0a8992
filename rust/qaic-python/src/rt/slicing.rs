//! Slices of device tensors: the specification and its use by exec objects.

use std::sync::Arc;

use pyo3::prelude::*;
use qaic_mem::ForeignMemoryMut;
use qaic_runtime::binding::{BindingSpecs, SlicingError, SlicingSpec, Window, WindowArray};

use super::argument::{held, in_c_order};
use super::status::{Answer, Refusal, refused};
use crate::buffers::BufferExport;

/// Slices of the bindings of a program; made by `Program.createSlicingSpecHandle`.
#[pyclass(frozen, name = "SlicingSpecHandle", module = "qaicrt")]
pub(crate) struct PySlicingSpec {
    pub(crate) slicing: SlicingSpec,
}

/// The slices that `ExecObj.setDataWithSlices` added to the next execution.
#[pyclass(frozen, name = "SlicingHandle", module = "qaicrt")]
pub(crate) struct PySlicing {
    windows: usize,
    parameters: Vec<(String, i64)>,
}

impl PySlicingSpec {
    /// Reads a specification in JSON.
    pub(crate) fn new(py: Python<'_>, specs: &Arc<BindingSpecs>, json: &str) -> Answer<Self> {
        let regular = py.import("re")?;
        let matcher = |pattern: &str| match regular.call_method1("compile", (pattern,)) {
            Ok(compiled) => {
                Ok(Ok(move |name: &str| Ok(!compiled.call_method1("fullmatch", (name,))?.is_none())))
            }
            Err(error) if error.is_instance(py, &regular.getattr("error")?) => {
                Ok(Err(format!("{pattern:?} is not a regular expression: {}", error.value(py))))
            }
            Err(error) => Err(error),
        };
        match SlicingSpec::new(specs, json, matcher) {
            Ok(slicing) => Ok(Self { slicing }),
            Err(SlicingError::Spec(what)) => Err(refused(format!("slicing specification: {what}")).into()),
            Err(SlicingError::Match(error)) => Err(Refusal::Raised(error)),
        }
    }

    /// Returns the slice of binding `index` for the array `value`.
    pub(crate) fn window(
        &self,
        index: usize,
        value: &Bound<'_, PyAny>,
        parameters: &[(String, i64)],
    ) -> Answer<Window> {
        let spec = self.slicing.spec(index)?;
        let array = held(spec, value)?;
        let origin = self.slicing.origin(index, &array.argument(), parameters)?;
        // An array with elements before the first one in memory must be copied.
        let array = if array.memory().is_some() { array } else { BufferExport::take(&in_c_order(value)?)? };
        let argument = array.argument();
        let extent = argument.shape.iter().map(|&dim| dim.unsigned_abs()).collect();
        let (item_bytes, strides) = (argument.item_bytes, argument.strides.to_vec());
        let memory = array.share();
        // Read-only memory for an output was already refused.
        let array = match ForeignMemoryMut::of_shared(&memory).filter(|_| !spec.is_input) {
            Some(memory) => WindowArray::Target(memory),
            None => WindowArray::Source((&memory).into()),
        };
        Ok(Window { binding: index, origin, extent, item_bytes, array, strides })
    }
}

#[pymethods]
impl PySlicingSpec {
    fn __repr__(&self) -> String {
        let names: Vec<_> = self.slicing.names().collect();
        format!("SlicingSpecHandle({names:?})")
    }
}

#[pymethods]
impl PySlicing {
    fn __repr__(&self) -> String {
        format!("SlicingHandle({} windows at {:?})", self.windows, self.parameters)
    }
}

impl PySlicing {
    pub(crate) fn new(windows: usize, parameters: Vec<(String, i64)>) -> Self {
        Self { windows, parameters }
    }
}
