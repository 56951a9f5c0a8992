//! The state that the device keeps, as arrays: what a program compiled with `split_retained_state_io` lets callers read
//! and write between inferences (compile-options row 17).

use std::sync::Arc;

use pyo3::prelude::*;
use qaic_mem::Storage;
use qaic_runtime::binding::{ArgumentError, BindingSpec, StatePart};
use qaic_runtime::error::RuntimeError;
use qaic_runtime::program::Program;

use super::PyInferenceSet;
use super::tensors::{decode_array, encode_array, layout, numpy_type};
use crate::buffers::{Exports, array_over};
use crate::errors::from_runtime;
use crate::gil::{Detach, signal_pending};

impl PyInferenceSet {
    /// Finds a state; with `sequence`, the part at this index of its first dimension.
    fn part(
        &self,
        name: &str,
        sequence: Option<usize>,
    ) -> Result<(&BindingSpec, StatePart, &Arc<Program>), RuntimeError> {
        self.fork_guard.check()?;
        // One activation: with state there is no more.
        let program = self.set.programs().first().filter(|program| program.io_options().split_state);
        let program = program.ok_or(ArgumentError::StateNotSplit)?;
        let part = self.tensors.specs.state_part(name, sequence)?;
        Ok((self.tensors.specs.get(part.input)?, part, program))
    }

    /// The present value of a state.
    pub(super) fn state_array<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        sequence: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (spec, part, program) = self.part(name, sequence).map_err(|error| from_runtime(py, error))?;
        let failed = |error| from_runtime(py, error);
        let mut held = Storage::new(part.device_bytes).map_err(failed)?;
        let read = |held: &mut Storage| {
            program.read_state(part.input, part.device_offset, held.memory_mut(), None, signal_pending)
        };
        let layout = layout(spec, &part.dims);
        let Some(columns) = spec.block_columns else {
            py.detached(|| read(&mut held))?;
            return array_over(py, held, &layout);
        };
        let mut array = Storage::new(part.array_bytes).map_err(failed)?;
        py.detached(|| {
            read(&mut held)?;
            decode_array(columns, held.memory(), array.memory_mut());
            Ok(())
        })?;
        array_over(py, array, &layout)
    }

    /// Replaces the present value of a state.
    pub(super) fn set_state(
        &self,
        py: Python<'_>,
        name: &str,
        value: &Bound<'_, PyAny>,
        sequence: Option<usize>,
    ) -> PyResult<()> {
        let (spec, part, program) = self.part(name, sequence).map_err(|error| from_runtime(py, error))?;
        let (_, dtype) = numpy_type(spec);
        let array = self.coerce.bind(py).call1((name, value, dtype, part.dims.clone(), false))?;
        let mut exports = Exports::with_capacity(1);
        let given = exports.take(&array, false).map(|exported| exported.id);
        let given = given.map(|id| exports.memory(id));
        let Some(given) = given.filter(|given| given.len() == part.array_bytes) else {
            let what = format!("state {name:?}");
            let error = ArgumentError::NotConverted { what, dtype, shape: part.dims };
            return Err(from_runtime(py, error));
        };
        let outcome = match spec.block_columns {
            None => py.detached(|| {
                program.write_state(part.input, part.device_offset, given, None, signal_pending)
            }),
            Some(columns) => {
                let mut blocks = Storage::new(part.device_bytes).map_err(|error| from_runtime(py, error))?;
                py.detached(|| {
                    encode_array(columns, given, blocks.memory_mut());
                    let from = blocks.memory();
                    program.write_state(part.input, part.device_offset, from, None, signal_pending)
                })
            }
        };
        exports.clear(py);
        outcome
    }
}
