//! Retained state as arrays.

use pyo3::prelude::*;
use qaic_mem::HostSlice;
use qaic_runtime::RuntimeError;
use qaic_runtime::request::{ArrayState, Arrays};

use super::PyInferenceSet;
use crate::buffers::{Exports, array_over};
use crate::errors::from_runtime;
use crate::gil::Detach;

impl PyInferenceSet {
    /// Finds a state, or with `sequence` its part at this index of the first dimension.
    fn state(&self, py: Python<'_>, name: &str, sequence: Option<usize>) -> PyResult<ArrayState<'_>> {
        let checked = self.fork_guard.check().map_err(RuntimeError::from);
        let found = checked.and_then(|()| self.tensors.arrays.state(&self.set, name, sequence));
        found.map_err(|error| from_runtime(py, error))
    }

    /// Returns the present value of a state.
    pub(super) fn state_array<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        sequence: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let state = self.state(py, name, sequence)?;
        let array = py.waiting(None, |scope| state.read(scope))?;
        array_over(py, array, &state.layout())
    }

    /// Replaces the present value of a state.
    pub(super) fn set_state(
        &self,
        py: Python<'_>,
        name: &str,
        value: &Bound<'_, PyAny>,
        sequence: Option<usize>,
    ) -> PyResult<()> {
        let state = self.state(py, name, sequence)?;
        let wanted = (name, value, state.element_type(), state.dims().to_vec(), false);
        let array = self.coerce.bind(py).call1(wanted)?;
        let mut exports = Exports::with_capacity(1);
        let given = exports.take(&array, false).map(|exported| exported.id);
        // A value without a buffer is empty, so its size differs from that of the state.
        let given = given.map_or(HostSlice::empty(), |id| exports.memory(id));
        let outcome = py.waiting(None, |scope| state.write(given, scope));
        exports.clear(py);
        outcome
    }
}
