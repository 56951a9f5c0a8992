//! `_core.EmuControl`: controls an emulated card in tests, and reports its calls and resources.

use std::collections::BTreeMap;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use qaic_emu::fault::Target;
use qaic_emu::{Control, FaultPlan};
use qaic_runtime::{Context, DeviceId, ErrorDetail};

use crate::context::open_context;
use crate::errors::{from_runtime, record};
use crate::gil::{Detach, signal_pending};
use crate::rt::status::refused;

/// Ends the emulated cards at interpreter exit; registers the exit handler once. An endless inference would otherwise
/// compute while the engine's library is unloaded.
pub(crate) fn end_with_interpreter(py: Python<'_>) -> PyResult<()> {
    static REGISTERED: PyOnceLock<()> = PyOnceLock::new();
    let register = || {
        let end = wrap_pyfunction!(end_all, py)?;
        py.import("atexit")?.call_method1("register", (end,)).map(drop)
    };
    REGISTERED.get_or_try_init(py, register).map(drop)
}

/// Ends all work on the emulated cards of this process.
#[pyfunction]
fn end_all(py: Python<'_>) -> PyResult<()> {
    py.detached(|_| {
        for control in Context::emulated_cards() {
            control.reset();
        }
        Ok(())
    })
}

/// Controls the emulated card with this id.
#[pyclass(frozen, name = "EmuControl", module = "qaic._core")]
pub(crate) struct PyEmuControl {
    control: Control,
}

#[pymethods]
impl PyEmuControl {
    #[new]
    #[pyo3(signature = (device = 0))]
    fn new(py: Python<'_>, device: u32) -> PyResult<Self> {
        let context = open_context(py)?;
        let control = context.emu_control(DeviceId(device)).map_err(|error| from_runtime(py, error))?;
        Ok(Self { control })
    }

    /// Returns controls of all emulated cards that this process has had, regardless of the present environment.
    #[staticmethod]
    fn every() -> Vec<Self> {
        Context::emulated_cards().into_iter().map(|control| Self { control }).collect()
    }

    /// Resets the card and discards its programs. The card is online again some time later, or after `hurry`.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        py.detached(|_| {
            self.control.reset();
            Ok(())
        })
    }

    /// Runs all delayed events immediately.
    fn hurry(&self, py: Python<'_>) -> PyResult<()> {
        py.detached(|_| {
            self.control.hurry();
            Ok(())
        })
    }

    /// Replaces the fault plan and restarts its counters and times.
    fn set_faults(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        let plan = FaultPlan::parse(text, Target::Card);
        let plan = plan.map_err(|error| from_runtime(py, refused(error.to_string())))?;
        py.detached(|_| {
            self.control.set_faults(plan);
            Ok(())
        })
    }

    /// Number of system calls that are blocked.
    fn waiters(&self, py: Python<'_>) -> PyResult<usize> {
        py.detached(|_| Ok(self.control.waiters()))
    }

    /// Waits until at least `count` system calls are blocked; returns false if `timeout` seconds pass first.
    ///
    /// Blocking, without the interpreter lock; Ctrl-C ends it.
    #[pyo3(signature = (count = 1, timeout = 10.0))]
    fn wait_waiters(&self, py: Python<'_>, count: usize, timeout: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::ZERO);
        py.detached(|_| {
            let reached = self.control.await_waiters_unless(count, limit, signal_pending);
            reached.ok_or_else(|| ErrorDetail::Interrupted.into())
        })
    }

    /// Number of system calls so far: a dictionary by name, or the number of the calls with this `name`.
    #[pyo3(signature = (name = None))]
    fn calls<'py>(&self, py: Python<'py>, name: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        let calls: Vec<_> = self.control.calls_by_name().collect();
        let Some(name) = name else { return BTreeMap::from_iter(calls).into_bound_py_any(py) };
        if let Some((_, count)) = calls.iter().find(|(call, _)| *call == name) {
            return count.into_bound_py_any(py);
        }
        let names: Vec<_> = calls.iter().map(|(call, _)| *call).collect();
        let what = format!("unknown system call {name:?}; expected one of {}", names.join(", "));
        Err(from_runtime(py, refused(what)))
    }

    /// Number of transfers that ended with a status other than 0. The driver does not report them to callers.
    fn dma_errors(&self, py: Python<'_>) -> PyResult<u64> {
        py.detached(|_| Ok(self.control.dma_errors()))
    }

    /// Returns the resources that the firmware has given out: `total` and `free` amounts, and the loaded
    /// programs.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        record(py, &py.detached(|_| Ok(self.control.resource_usage()))?)
    }

    /// Returns the differences from an unused card, one per line; empty if there are none.
    fn invariants(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        py.detached(|_| Ok(self.control.invariants()))
    }
}
