//! `_core.RtBenchmark`: keeps all handles of an inference set busy, for `qaicrt.InferenceBenchmarkSet`.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyList;
use qaic_mem::SharedMemory;
use qaic_runtime::inference_set::BenchmarkProgress;
use qaic_runtime::process::FailureSource;
use qaic_runtime::{Context, HandleId, QStatus};

use super::argument::buffers;
use super::context::RtContext;
use super::exec_obj::PyExecObj;
use super::inference_set::{PyQaicInferenceSet, SetCore};
use super::status::{Refusal, member, refuse, waited};
use crate::buffers::release_dropped;
use crate::errors::from_runtime;
use crate::gil::Reaped;

/// An inference set and the buffers that all its inferences use.
#[pyclass(frozen, name = "Benchmark", module = "qaic._core")]
pub(crate) struct PyBenchmark {
    core: Reaped<SetCore>,
    context: Arc<Context>,
    buffers: Vec<Arc<SharedMemory>>,
    // Progress of the running or the last run.
    progress: BenchmarkProgress,
}

#[pymethods]
impl PyBenchmark {
    /// `buffers` contains a `QBuffer` for every binding.
    #[new]
    fn new(handles: &PyQaicInferenceSet, buffers: &Bound<'_, PyList>) -> PyResult<Self> {
        let core = Reaped::new(Arc::clone(handles.core()));
        let progress = BenchmarkProgress::new(core.set());
        let context = Arc::clone(&handles.context);
        let refused = |refusal: Refusal| refusal.of_construction(buffers.py(), "InferenceBenchmarkSet");
        let buffers = self::buffers(buffers).map_err(refused)?;
        Ok(Self { core, context, buffers, progress })
    }

    /// Runs `count` inferences, or as many as begin within `seconds` and at least one. Returns (status, inferences,
    /// nanoseconds) and logs errors. Calls `ended(handle)` after each inference.
    ///
    /// Blocking, without the interpreter lock, until all have ended; Ctrl-C ends those in flight.
    #[pyo3(signature = (count, seconds, ended = None))]
    fn run(
        &self,
        py: Python<'_>,
        count: Option<u64>,
        seconds: Option<f64>,
        ended: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Py<PyAny>, u64, u64)> {
        release_dropped(py);
        // The clock cannot represent the duration, so the run is unlimited.
        let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let ended = ended.map(|ended| ended.clone().unbind());
        let set = self.core.set();
        if let Err(error) = self.core.set.bind_all(&self.buffers) {
            let refusal = Refusal::from(error).busy_in_flight();
            return Ok((refuse(py, &self.context, FailureSource::InferenceSet, refusal)?, 0, 0));
        }
        // Exception that `ended` raised; no inference begins after it.
        let mut raised = None;
        let count_one = |HandleId(handle)| {
            if let Some(ended) = &ended {
                raised = Python::attach(|py| ended.call1(py, (handle,)).err());
            }
            raised.is_none()
        };
        let progress = &self.progress;
        let measured =
            waited(py, None, |scope| set.benchmark(count, limit, progress, |_, _| {}, count_one, scope));
        if let Some(error) = raised {
            return Err(error);
        }
        match measured {
            Ok(measured) => {
                let elapsed_ns = u64::try_from(measured.elapsed.as_nanos()).unwrap_or(u64::MAX);
                Ok((member(py, QStatus::Success)?, measured.completed, elapsed_ns))
            }
            Err(refusal) => {
                let status = refuse(py, &self.context, FailureSource::InferenceSet, refusal)?;
                Ok((status, progress.completed().sum(), 0))
            }
        }
    }

    /// Number of inferences of the running or the last run, by activation.
    fn completed(&self) -> Vec<u64> {
        self.progress.completed().collect()
    }

    /// Returns the exec object of a handle.
    fn exec_obj(&self, py: Python<'_>, handle: u32) -> PyResult<Py<PyExecObj>> {
        self.core.exec_obj(py, HandleId(handle))
    }

    /// Returns the unique id of the program of a handle.
    fn program_id(&self, py: Python<'_>, handle: u32) -> PyResult<u32> {
        let bound = self.core.set.bound(HandleId(handle)).map_err(|error| from_runtime(py, error))?;
        Ok(bound.exec.program.unique_id)
    }
}

/// Logs an error in a context, for the Python parts of the interface.
#[pyfunction]
pub(crate) fn rt_log_error(context: &RtContext, text: &str) {
    context.context.logger.error(|| text.to_owned());
}
