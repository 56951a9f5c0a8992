//! `_core.InferenceSet`: runs inferences on dictionaries of arrays.

mod inference;
mod inputs;
mod state;
mod tensors;

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use qaic_runtime::device::{DeviceId, LoadOptions, Placement};
use qaic_runtime::inference_set::InferenceSet;
use qaic_runtime::process::cancellation::WAIT_SLICE_MS;
use qaic_runtime::process::{ForkGuard, reaper};
use qaic_runtime::request::{BoundArrays, Destination};
use qaic_runtime::{ProgramOptions, WaitLimits};

use crate::buffers::Exports;
use crate::context::{PyContext, load_until};
use crate::errors::from_runtime;
use crate::gil::{Detach, PyTeardown, Reaped, deadline_after};
use crate::qpc::PyQpc;
use inputs::bind_inputs;
use tensors::{Tensors, check_keys, writable};

pub(crate) use inference::{PyCompletions, PyInference};

/// Maximum number of runs whose vectors are kept for reuse.
const MOST_SCRATCH: usize = 64;

/// Copies of at least this size release the interpreter lock.
const COPY_DETACHED_BYTES: usize = 64 * 1024;

/// Vectors of one run, kept for the next one so that runs do not allocate.
struct Scratch {
    exports: Exports,
    bound: BoundArrays,
}

/// A loaded and activated container with its exec objects.
///
/// `Session` creates it. `coerce(name, value, dtype, shape, partial)` converts an input that does not have the
/// program's type and shape: it returns an array or raises.
#[pyclass(frozen, name = "InferenceSet", module = "qaic._core")]
pub(crate) struct PyInferenceSet {
    set: Reaped<InferenceSet>,
    tensors: Arc<Tensors>,
    coerce: Py<PyAny>,
    // Boxed, because the interpreter does not align its objects to the cache lines of the queue.
    scratch: Box<ArrayQueue<Box<Scratch>>>,
    fork_guard: ForkGuard,
}

#[pymethods]
impl PyInferenceSet {
    /// Loads and activates `qpc` on the devices `dev_ids`, which execute it together; by default, on as many devices
    /// as it needs.
    ///
    /// Blocking, without the interpreter lock, for at most `timeout` seconds; Ctrl-C ends it.
    #[new]
    #[pyo3(signature = (
        context, qpc, dev_ids, set_size, num_activations, coerce,
        *, submit_timeout = 0, submit_num_retries = 5, threads_per_queue = 4, share_group = None,
        allow_hw_mismatch = false, timeout = None
    ))]
    #[allow(clippy::too_many_arguments)] // the arguments of the Python constructor
    fn new(
        py: Python<'_>,
        context: &PyContext,
        qpc: &PyQpc,
        dev_ids: Option<Vec<u32>>,
        set_size: u32,
        num_activations: u32,
        coerce: Py<PyAny>,
        submit_timeout: u32,
        submit_num_retries: u32,
        threads_per_queue: u32,
        share_group: Option<String>,
        allow_hw_mismatch: bool,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let deadline = deadline_after(py, timeout)?;
        let context = &context.context;
        let image = qpc.program(py)?;
        let unused = set_size.saturating_mul(num_activations).min(1 << 16) as usize;
        let tensors = Tensors::new(py, image, unused).map_err(|error| from_runtime(py, error))?;
        let checked = tensors.specs().check_activations(num_activations);
        checked.map_err(|error| from_runtime(py, error))?;
        let placement = match dev_ids {
            Some(ids) => Placement { devices: ids.into_iter().map(DeviceId).collect() },
            None => py.asking(|| context.choose_in_order(image))?,
        };
        let set = load_until(py, deadline, |token| {
            let options = ProgramOptions {
                load: LoadOptions {
                    activations: num_activations,
                    token,
                    share_group,
                    any_hardware: allow_hw_mismatch,
                    ..LoadOptions::default()
                },
                wait: WaitLimits {
                    try_ms: submit_timeout.saturating_mul(1000),
                    retries: submit_num_retries,
                    slice_ms: Some(WAIT_SLICE_MS),
                },
                threads_per_queue,
                ..ProgramOptions::default()
            };
            reaper::when_free(|| {
                InferenceSet::new(context, image, &placement, set_size, num_activations, options.clone())
            })
        })?;
        Ok(Self {
            set: Reaped::watched(Arc::clone(&set), set.teardown()),
            tensors: Arc::new(tensors),
            coerce,
            scratch: Box::new(ArrayQueue::new(unused.clamp(1, MOST_SCRATCH))),
            fork_guard: ForkGuard::new(),
        })
    }

    /// Returns the handle to wait for the teardown, which begins after the last use of this object.
    fn teardown(&self) -> PyTeardown {
        PyTeardown::new(self.set.teardown())
    }

    /// Runs one inference.
    ///
    /// Blocking, without the interpreter lock: waits for a free exec object, then for the device.
    #[pyo3(signature = (inputs, out = None, output_names = None, timeout = None))]
    #[allow(clippy::needless_pass_by_value)] // the binding extracts owned values
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyDict>>,
        output_names: Option<Vec<String>>,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut scratch = self.take_scratch(py)?;
        let result = self.run_with(py, inputs, out, output_names.as_deref(), timeout, &mut scratch);
        self.give_back(py, scratch);
        result
    }

    /// Copies the inputs of an inference that starts later and must end within `timeout` seconds from now.
    #[pyo3(signature = (inputs, timeout = None))]
    fn prepare(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<PyInference> {
        let mut scratch = self.take_scratch(py)?;
        let result = self.prepare_with(py, inputs, timeout, &mut scratch);
        self.give_back(py, scratch);
        result
    }

    /// Returns the present value of the state `name`, or its part for `sequence`, as a new array.
    ///
    /// Blocking, without the interpreter lock, until the running inference has ended.
    #[pyo3(signature = (name, sequence = None))]
    fn read_state<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        sequence: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.state_array(py, name, sequence)
    }

    /// Replaces the state `name`, or its part for `sequence`; `value` is converted in the same way as an input.
    ///
    /// Blocking, without the interpreter lock, until the running inference has ended.
    #[pyo3(signature = (name, value, sequence = None))]
    fn write_state(
        &self,
        py: Python<'_>,
        name: &str,
        value: &Bound<'_, PyAny>,
        sequence: Option<usize>,
    ) -> PyResult<()> {
        self.set_state(py, name, value, sequence)
    }

    /// Runs `count` inferences, or as many as begin within `seconds` and at least one, on all exec objects concurrently
    /// and without Python code between them. Returns the number of inferences and their total time in nanoseconds.
    ///
    /// Blocking, without the interpreter lock, until all have ended; Ctrl-C ends those in flight.
    #[pyo3(signature = (inputs, count, seconds))]
    fn run_benchmark(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        count: Option<u64>,
        seconds: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(u64, u64)> {
        let mut scratch = self.take_scratch(py)?;
        let result = (|| {
            let Scratch { exports, bound } = &mut *scratch;
            bind_inputs(py, &self.tensors, &self.coerce, inputs, exports, bound)?;
            let limit = deadline_after(py, seconds)?.map(|deadline| deadline.limit);
            py.waiting(None, |scope| bound.benchmark(&self.set, exports, count, limit, scope))
        })();
        self.give_back(py, scratch);
        let outcome = result?;
        Ok((outcome.completed, u64::try_from(outcome.elapsed.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl PyInferenceSet {
    pub(crate) fn inner(&self) -> &Arc<InferenceSet> {
        &self.set
    }

    fn take_scratch(&self, py: Python<'_>) -> PyResult<Box<Scratch>> {
        self.fork_guard.check().map_err(|error| from_runtime(py, error))?;
        let (inputs, outputs) = (self.tensors.inputs.len(), self.tensors.outputs.len());
        Ok(self.scratch.pop().unwrap_or_else(|| {
            Box::new(Scratch {
                // Two per input: a value that does not fit is released together with the others.
                exports: Exports::with_capacity(2 * inputs + outputs),
                bound: BoundArrays::for_tensors(&self.tensors.arrays),
            })
        }))
    }

    fn give_back(&self, py: Python<'_>, mut scratch: Box<Scratch>) {
        scratch.bound.begin(0);
        scratch.exports.clear(py);
        // A full queue has enough vectors.
        let _ = self.scratch.push(scratch);
    }

    fn run_with<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyDict>>,
        output_names: Option<&[String]>,
        timeout: Option<Bound<'_, PyAny>>,
        Scratch { exports, bound }: &mut Scratch,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (tensors, specs) = (&self.tensors.arrays, self.tensors.specs());
        let deadline = deadline_after(py, timeout)?;
        let variant = bind_inputs(py, &self.tensors, &self.coerce, inputs, exports, bound)?;
        if let Some(names) = output_names {
            let checked = names.iter().try_for_each(|name| specs.check_output_name(name));
            checked.map_err(|error| from_runtime(py, error))?;
        }
        if let Some(out) = out {
            check_keys(py, out, specs.outputs(), "output")?;
        }
        for (spec, key) in self.tensors.outputs() {
            let given = match out {
                Some(out) => out.get_item(key)?,
                None => None,
            };
            let destination = match given {
                Some(array) => Destination::Array(writable(py, spec, variant, &array, exports)?),
                None if spec.is_delivered(output_names, |input| bound.is_left_out(input)) => Destination::New,
                None => Destination::Dropped,
            };
            let pushed = bound.push_output(tensors, exports, destination);
            pushed.map_err(|error| from_runtime(py, error))?;
        }
        py.waiting(deadline, |scope| {
            bound.check_apart(tensors)?;
            bound.run(&self.set, tensors, exports, scope)
        })?;
        let result = PyDict::new(py);
        for (output, (spec, key)) in self.tensors.outputs().enumerate() {
            if let Some(storage) = bound.take_output(output) {
                result.set_item(key, self.tensors.array(py, output, variant, storage)?)?;
            } else if output_names.is_none_or(|names| names.contains(&spec.name))
                && let Some(array) = out.map(|out| out.get_item(key)).transpose()?.flatten()
            {
                result.set_item(key, array)?;
            }
        }
        Ok(result)
    }

    fn prepare_with(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        timeout: Option<Bound<'_, PyAny>>,
        Scratch { exports, bound }: &mut Scratch,
    ) -> PyResult<PyInference> {
        let deadline = deadline_after(py, timeout)?;
        let variant = bind_inputs(py, &self.tensors, &self.coerce, inputs, exports, bound)?;
        let is_long = bound.input_bytes(exports) >= COPY_DETACHED_BYTES;
        let mut prepare = || bound.prepare(&self.set, &self.tensors.arrays, exports, deadline);
        let inference = if is_long {
            py.detached(|_| prepare())?
        } else {
            prepare().map_err(|error| from_runtime(py, error))?
        };
        Ok(PyInference::new(inference, &self.tensors, variant))
    }
}
