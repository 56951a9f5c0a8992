//! `_core.Inference`: one inference that runs while its caller does other things.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qaic_runtime::inference_set::{CompletionQueue, PendingInference};

use super::tensors::Tensors;
use crate::errors::{Raise, from_runtime};
use crate::gil::{Detach, Reaped, answering_signals};

/// An inference with copies of its inputs. Made by `InferenceSet.prepare`.
#[pyclass(frozen, name = "Inference", module = "qaic._core")]
pub(crate) struct PyInference {
    inference: Reaped<PendingInference>,
    tensors: Arc<Tensors>,
    variant: usize,
}

impl PyInference {
    pub(super) fn new(inference: Arc<PendingInference>, tensors: &Arc<Tensors>, variant: usize) -> Self {
        Self { inference: Reaped::new(inference), tensors: Arc::clone(tensors), variant }
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.inference.check_process().map_err(|error| from_runtime(py, error))
    }
}

#[pymethods]
impl PyInference {
    /// Lets `completions` report `token` when the inference ends. Once.
    fn report_to(&self, py: Python<'_>, completions: &PyCompletions, token: u64) -> PyResult<()> {
        self.check_process(py)?;
        self.inference.report_to(&completions.queue, token);
        Ok(())
    }

    /// Starts the inference; false when no exec object is free and `wait` is false. One that ended before is not started. Then
    /// `completions` reports `token` when it ends, unless it has `ended_in_start`.
    ///
    /// Without the interpreter lock. Blocking with `wait` until an exec object is free.
    #[pyo3(signature = (wait = true, completions = None, token = 0))]
    fn start(
        &self,
        py: Python<'_>,
        wait: bool,
        completions: Option<&PyCompletions>,
        token: u64,
    ) -> PyResult<bool> {
        self.check_process(py)?;
        let Some(set) = self.inference.set().map(Reaped::new) else { return Ok(true) };
        let report = completions.map(|completions| (&*completions.queue, token));
        py.detached(|detached| {
            let started = self.inference.try_start(&set, report, detached)?;
            if !started && wait {
                answering_signals(detached, None, |scope| self.inference.start(&set, report, scope))?;
            }
            Ok(started || wait)
        })
    }

    /// Returns whether the inference ended in the call that started it, on the same thread. Such an end is
    /// not reported.
    #[getter]
    fn ended_in_start(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        Ok(self.inference.has_ended_in_start())
    }

    /// The outputs, once.
    ///
    /// Blocking, without the interpreter lock: until the inference ends; when its time is up it is cancelled.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_process(py)?;
        match self.inference.outcome() {
            Some(Ok(())) if self.inference.set().is_none() => {}
            _ => {
                py.detached(|detached| answering_signals(detached, None, |scope| self.inference.wait(scope)))?
            }
        }
        let storages = self.inference.take_outputs();
        if storages.len() != self.tensors.outputs.len() {
            let text = "the result of this inference was already fetched";
            return Err(Raise::new(py, "StateError", "inference.fetched", text).build());
        }
        let result = PyDict::new(py);
        for (output, (key, storage)) in self.tensors.outputs.iter().zip(storages).enumerate() {
            if let Some(storage) = storage {
                let array = self.tensors.arrays.output_array(output, self.variant, storage);
                let array = array.map_err(|error| from_runtime(py, error))?;
                result.set_item(key, self.tensors.array(py, output, self.variant, array)?)?;
            }
        }
        Ok(result)
    }

    /// Returns whether the inference has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        Ok(self.inference.has_ended())
    }

    /// Returns whether the device has the inference.
    fn running(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        Ok(self.inference.is_running())
    }

    /// Takes the inference back if the device does not have it yet; false when it is too late.
    fn revoke(&self, py: Python<'_>) -> PyResult<bool> {
        // Without the interpreter lock, because this may drop the last reference to the program.
        py.detached(|_| {
            self.inference.check_process()?;
            Ok(self.inference.revoke())
        })
    }

    /// Asks the inference to end, also while it runs.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        // As in `revoke`.
        py.detached(|_| {
            self.inference.check_process()?;
            self.inference.cancel();
            Ok(())
        })
    }
}

/// Ends of inferences that futures wait for. Made by `Session`.
#[pyclass(frozen, name = "Completions", module = "qaic._core")]
pub(crate) struct PyCompletions {
    queue: Reaped<CompletionQueue>,
}

#[pymethods]
impl PyCompletions {
    #[new]
    fn new() -> Self {
        Self { queue: Reaped::new(CompletionQueue::new()) }
    }

    /// Tokens of inferences that ended, in order; none after `seconds` or a `wake`.
    ///
    /// Blocking, without the interpreter lock. One thread at a time.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<Vec<u64>> {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        py.detached(|_| self.queue.wait(limit))
    }

    /// Inferences that the device has not let go of.
    #[getter]
    fn awaited(&self) -> usize {
        self.queue.awaited()
    }

    /// Ends a `wait`.
    fn wake(&self) {
        self.queue.wake();
    }
}
