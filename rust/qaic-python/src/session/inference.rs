//! `_core.Inference`: an inference that runs in the background.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qaic_runtime::inference_set::{CompletionQueue, PendingInference};

use super::tensors::Tensors;
use crate::errors::{Raise, from_runtime};
use crate::gil::{Detach, Reaped, answering_signals};

/// An inference with copies of its inputs. `InferenceSet.prepare` creates it.
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
    /// Makes `completions` report `token` when the inference ends. May be called once.
    fn report_to(&self, py: Python<'_>, completions: &PyCompletions, token: u64) -> PyResult<()> {
        self.check_process(py)?;
        self.inference.report_to(&completions.queue, token);
        Ok(())
    }

    /// Starts the inference; returns false if no exec object is free and `wait` is false. An inference that has
    /// already ended does not start. `completions` reports `token` when the inference ends, unless `ended_in_start`
    /// is true.
    ///
    /// Without the interpreter lock. With `wait`, blocking until an exec object is free.
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

    /// Returns true if the inference ended on the calling thread in `start`. `completions` does not report such an
    /// end.
    #[getter]
    fn ended_in_start(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        Ok(self.inference.has_ended_in_start())
    }

    /// Returns the outputs; may be called once.
    ///
    /// Blocking, without the interpreter lock, until the inference ends. At its time limit the inference is
    /// cancelled.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_process(py)?;
        match self.inference.outcome() {
            Some(Ok(())) if self.inference.set().is_none() => {}
            _ => py.waiting(None, |scope| self.inference.wait(scope))?,
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

    /// Returns true if the inference has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        Ok(self.inference.has_ended())
    }

    /// Returns true if the device has the inference.
    fn running(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        Ok(self.inference.is_running())
    }

    /// Cancels the inference if the device does not have it yet; returns false if it is too late.
    fn revoke(&self, py: Python<'_>) -> PyResult<bool> {
        // Without the interpreter lock: this may drop the last reference to the program.
        py.detached(|_| {
            self.inference.check_process()?;
            Ok(self.inference.revoke())
        })
    }

    /// Requests the end of the inference, even if it is running.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        // As in `revoke`.
        py.detached(|_| {
            self.inference.check_process()?;
            self.inference.cancel();
            Ok(())
        })
    }
}

/// Ended inferences that futures wait for. `Session` creates this object.
#[pyclass(frozen, name = "Completions", module = "qaic._core")]
pub(crate) struct PyCompletions {
    queue: Reaped<CompletionQueue>,
}

#[pymethods]
impl PyCompletions {
    #[new]
    fn new() -> Self {
        Self { queue: Reaped::new(Arc::default()) }
    }

    /// Returns the tokens of ended inferences, in order; an empty list after `seconds` or `wake`.
    ///
    /// Blocking, without the interpreter lock. Only one thread at a time may wait.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<Vec<u64>> {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        py.detached(|_| self.queue.wait(limit))
    }

    /// Number of inferences that the device still has.
    #[getter]
    fn awaited(&self) -> usize {
        self.queue.awaited()
    }

    /// Ends a `wait`.
    fn wake(&self) {
        self.queue.wake();
    }
}
