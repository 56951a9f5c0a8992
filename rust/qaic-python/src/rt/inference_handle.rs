//! `qaicrt.InferenceHandle`: an exec object of an inference set that the caller has acquired.
//!
//! A handle does not keep its set alive. Calls return an error status after the set is gone.

use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use qaic_runtime::process::FailureSource;
use qaic_runtime::request::Part;
use qaic_runtime::{BoundBuffers, Context, HandleId, QStatus};

use super::argument::{buffers, list_of};
use super::call_failed;
use super::dims::entries;
use super::exec_obj::{PyExecObj, bound_to};
use super::inference_set::SetCore;
use super::status::{Answer, Refusal, member, refused, reply};
use crate::errors::from_runtime;
use crate::gil::Reaped;

/// An exec object of an inference set.
#[pyclass(frozen, name = "InferenceHandle", module = "qaicrt")]
pub(crate) struct PyInferenceHandle {
    set: Weak<SetCore>,
    context: Arc<Context>,
    number: HandleId,
}

impl PyInferenceHandle {
    pub(crate) fn new(set: &Weak<SetCore>, context: &Arc<Context>, number: HandleId) -> Self {
        Self { set: Weak::clone(set), context: Arc::clone(context), number }
    }

    /// Returns the set if it still exists.
    fn set(&self) -> Option<Reaped<SetCore>> {
        self.set.upgrade().map(Reaped::new)
    }

    /// Returns the number of the handle if it belongs to `set`.
    pub(crate) fn number_in(&self, set: &Arc<SetCore>) -> Option<HandleId> {
        (self.set.as_ptr() == Arc::as_ptr(set)).then_some(self.number)
    }
}

#[pymethods]
impl PyInferenceHandle {
    /// Sets a buffer for every binding, inputs then outputs.
    #[pyo3(name = "setBuffers")]
    fn set_buffers(&self, py: Python<'_>, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.change(py, buffers, Part::All)
    }

    /// Sets the buffers of the inputs; those of the outputs stay.
    #[pyo3(name = "setInputBuffers")]
    fn set_input_buffers(&self, py: Python<'_>, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.change(py, buffers, Part::Inputs)
    }

    /// Sets the buffers of the outputs; those of the inputs stay.
    #[pyo3(name = "setOutputBuffers")]
    fn set_output_buffers(&self, py: Python<'_>, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.change(py, buffers, Part::Outputs)
    }

    /// Sets element size and dims of every binding; a dim of 0 leaves the binding out. The dims are valid until they
    /// are set again or the handle is made available again. They may be set before the buffers.
    #[pyo3(name = "setBufferDimensions")]
    fn set_buffer_dimensions(&self, py: Python<'_>, dims: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let dims = entries(dims)?;
        self.with_bound(py, |bound| Ok(bound.announce(dims)?))
    }

    /// (status, buffers): one per binding; the buffer of an unset binding is empty.
    #[pyo3(name = "getBuffers")]
    fn buffers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let Some(set) = self.set() else {
            return (self.gone(py)?, py.None()).into_pyobject(py);
        };
        let bound = set.set.bound(self.number).map_err(|error| from_runtime(py, error))?;
        (member(py, QStatus::Success)?, bound_to(py, bound)?).into_pyobject(py)
    }

    /// The exec object of the handle; its ``getData`` returns the outputs.
    #[pyo3(name = "execObj")]
    fn exec_obj(&self, py: Python<'_>) -> PyResult<Py<PyExecObj>> {
        let set = self.set().ok_or_else(|| call_failed(py, "call.state", GONE))?;
        set.exec_obj(py, self.number)
    }

    /// Number of the handle in the set.
    #[pyo3(name = "getId")]
    fn id(&self) -> u32 {
        self.number.0
    }

    fn __repr__(&self) -> String {
        format!("InferenceHandle({})", self.number.0)
    }
}

const GONE: &str = "the inference set of this handle was deleted; keep the set while its handles are in use";

impl PyInferenceHandle {
    fn gone(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        reply(py, &self.context, FailureSource::InferenceSet, Err(refused(GONE).into()))
    }

    /// Runs `work` on the buffers of the handle and returns its status.
    fn with_bound(&self, py: Python<'_>, work: impl FnOnce(&BoundBuffers) -> Answer) -> PyResult<Py<PyAny>> {
        let Some(set) = self.set() else { return self.gone(py) };
        let outcome = set.set.bound(self.number).map_err(Refusal::from).and_then(|bound| work(bound));
        reply(py, &self.context, FailureSource::InferenceSet, outcome)
    }

    fn change(&self, py: Python<'_>, given: &Bound<'_, PyAny>, part: Part) -> PyResult<Py<PyAny>> {
        let list = list_of(given)?;
        self.with_bound(py, |bound| Ok(bound.replace_part(part, &buffers(&list)?)?))
    }
}
