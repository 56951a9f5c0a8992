//! `_core.NoopControl`: causes rare device events in tests, and reports the calls inside the device.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qaic_runtime::device::noop::{CALLS, Control};
use qaic_runtime::{Deadline, DeviceId, RuntimeError};

use crate::context::open_context;
use crate::errors::from_runtime;
use crate::gil::Detach;

/// Controls the `noop` device with this id.
#[pyclass(frozen, name = "NoopControl", module = "qaic._core")]
pub(crate) struct PyNoopControl {
    control: Arc<Control>,
}

#[pymethods]
impl PyNoopControl {
    #[new]
    #[pyo3(signature = (device = 0))]
    fn new(py: Python<'_>, device: u32) -> PyResult<Self> {
        let context = open_context(py)?;
        let control = context.noop_control(DeviceId(device)).map_err(|error| from_runtime(py, error))?;
        Ok(Self { control: Arc::clone(control) })
    }

    /// Replaces the faults and resets the call counts.
    fn plan(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        done(py, self.control.plan(text))
    }

    /// Number of calls of each kind since the last plan.
    fn calls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        for (call, count) in CALLS.iter().zip(self.control.calls()) {
            counts.set_item(call, count)?;
        }
        Ok(counts)
    }

    /// Holds executions that start from now on inside the device.
    fn hold(&self, py: Python<'_>) -> PyResult<()> {
        done(py, self.control.hold())
    }

    /// Releases held executions.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        done(py, self.control.release())
    }

    /// Number of executions inside the device: held, slow or stuck.
    fn executing(&self, py: Python<'_>) -> PyResult<u32> {
        done(py, self.control.executing())
    }

    /// Waits until at least `count` executions are inside the device; returns false if `timeout` seconds pass first.
    ///
    /// Blocking, without the interpreter lock; Ctrl-C ends it.
    #[pyo3(signature = (count = 1, timeout = 10.0))]
    fn wait_executing(&self, py: Python<'_>, count: u32, timeout: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::ZERO);
        py.waiting(Deadline::after(limit), |scope| self.control.wait_executing(count, scope))
    }

    /// Loses the device: running executions end, loaded programs are lost, and loads fail until `recover`.
    fn lose(&self, py: Python<'_>) -> PyResult<()> {
        done(py, self.control.lose())
    }

    /// Makes the device available again, without its programs.
    fn recover(&self, py: Python<'_>) -> PyResult<()> {
        done(py, self.control.recover())
    }
}

fn done<T>(py: Python<'_>, result: Result<T, RuntimeError>) -> PyResult<T> {
    result.map_err(|error| from_runtime(py, error))
}
