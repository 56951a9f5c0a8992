//! `_core.InferenceSet`: dictionaries of arrays in, dictionaries of arrays out.

mod blocks;
mod completions;
mod flight;
mod inference;
mod inputs;
mod state;
mod tensors;

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qaic_runtime::buffer::{HostSlice, HostSliceMut, Storage};
use qaic_runtime::device::{DeviceId, LoadOptions, Placement};
use qaic_runtime::error::RuntimeError;
use qaic_runtime::fork::Origin;
use qaic_runtime::inference_set::{BenchmarkProgress, InferenceSet};
use qaic_runtime::interrupts::WAIT_SLICE_MS;
use qaic_runtime::program::{ProgramOptions, WaitLimits};
use qaic_runtime::wiring::{InputWire, OutputWire, Shapes, Wiring};

use crate::buffers::Exports;
use crate::context::{PyContext, cancellable_load};
use crate::errors::{Raise, from_runtime};
use crate::gil::{Deadline, Door, signal_pending};
use crate::qpc::PyQpc;
use inputs::Inputs;
use tensors::{Edge, Tensors, check_keys, names};

pub(crate) use completions::PyCompletions;
pub(crate) use inference::PyInference;

/// Vectors that one run needs, kept for the next one so that a run allocates nothing.
struct Scratch {
    exports: Exports,
    inputs: Inputs,
    outputs: Vec<Option<HostSliceMut>>,
    storages: Vec<Option<Storage>>,
    // Outputs whose array is also an input, or has another form than the device's: where they are computed, the array, and
    // the number of the output.
    deferred: Vec<(Storage, HostSliceMut, usize)>,
}

/// A loaded and activated container with its exec objects.
///
/// Made by `Session`; `coerce(name, value, dtype, shape, partial)` is called for an input that is not exactly an array of
/// the program's type and shape, and returns one or raises.
#[pyclass(frozen, name = "InferenceSet", module = "qaic._core")]
pub(crate) struct PyInferenceSet {
    set: Arc<InferenceSet>,
    tensors: Arc<Tensors>,
    coerce: Py<PyAny>,
    scratch: Mutex<Vec<Scratch>>,
    origin: Origin,
}

#[pymethods]
impl PyInferenceSet {
    /// Loads and activates `qpc` on the devices `dev_ids`, which execute it together; without them, on as many as it needs.
    #[new]
    #[pyo3(signature = (
        context, qpc, dev_ids, set_size, num_activations, coerce,
        *, submit_timeout = 0, submit_num_retries = 5, threads_per_queue = 4, share_group = None,
        allow_hw_mismatch = false
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
    ) -> PyResult<Self> {
        let context = context.inner();
        let image = qpc.program(py)?;
        let unused = set_size.saturating_mul(num_activations).min(1 << 16) as usize;
        let tensors = Tensors::new(py, image, unused)?;
        if num_activations > 1 && tensors.has_state() {
            return Err(Raise::new(
                py,
                "OptionError",
                "option.state_per_activation",
                format!(
                    "num_activations is {num_activations}; the program keeps state between inferences, and each \
                     activation its own"
                ),
            )
            .hint("use num_activations=1, or choose the activation of every inference with qaicrt")
            .build());
        }
        let placement = if let Some(ids) = dev_ids {
            Placement { devices: ids.into_iter().map(DeviceId).collect() }
        } else {
            let all: Vec<_> = context.devices().iter().map(|device| device.id()).collect();
            let chosen = py.asking(|| context.choose(&all, image))?;
            // The option has the default 0, so a program of one device does not move to another.
            if chosen.devices.len() > 1 { chosen } else { Placement::one(all[0]) }
        };
        let set = cancellable_load(py, |token| {
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
            InferenceSet::new(context, image, &placement, set_size, num_activations, options)
        })?;
        Ok(Self {
            set,
            tensors: Arc::new(tensors),
            coerce,
            scratch: Mutex::default(),
            origin: Origin::here(),
        })
    }

    /// Number of inferences that can be in flight.
    #[getter]
    fn handle_count(&self) -> usize {
        self.set.handle_count()
    }

    /// Shapes of the inputs in every permitted combination, in order of the inputs.
    fn input_shapes(&self) -> Vec<Vec<Vec<isize>>> {
        (0..self.tensors.variants)
            .map(|variant| self.tensors.inputs.iter().map(|edge| edge.form(variant).shape.clone()).collect())
            .collect()
    }

    /// Runs one inference.
    ///
    /// Blocking, without the interpreter lock: waits for a free exec object, then for the device.
    #[pyo3(signature = (inputs, out = None, output_names = None, timeout = None))]
    #[allow(clippy::needless_pass_by_value)] // what the binding extracts
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyDict>>,
        output_names: Option<Vec<String>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut scratch = self.take_scratch(py)?;
        let result = self.run_with(py, inputs, out, output_names.as_deref(), timeout, &mut scratch);
        self.give_back(py, scratch);
        result
    }

    /// Copies the inputs of an inference that is started later, and has to end within `timeout` seconds from now.
    #[pyo3(signature = (inputs, timeout = None))]
    fn prepare(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<PyInference> {
        let mut scratch = self.take_scratch(py)?;
        let result = self.prepare_with(py, inputs, timeout, &mut scratch);
        self.give_back(py, scratch);
        result
    }

    /// The present value of the state `name`, or of the part of it that belongs to `sequence`, as a new array.
    ///
    /// Blocking, without the interpreter lock: until the inference that runs has ended.
    #[pyo3(signature = (name, sequence = None))]
    fn read_state<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        sequence: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.state_array(py, name, sequence)
    }

    /// Replaces it; `value` is converted as an input is.
    ///
    /// Blocking, without the interpreter lock: until the inference that runs has ended.
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

    /// Runs `count` inferences, or as many as fit in `seconds`, all exec objects at a time, without any Python work
    /// between them. Returns the number of inferences and the nanoseconds they took.
    ///
    /// Blocking, without the interpreter lock, until all have ended; Ctrl-C ends those under way.
    #[pyo3(signature = (inputs, count, seconds))]
    fn run_benchmark(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        count: Option<u64>,
        seconds: Option<f64>,
    ) -> PyResult<(u64, u64)> {
        let mut scratch = self.take_scratch(py)?;
        let result = (|| {
            scratch.inputs.collect(py, &self.tensors, &self.coerce, inputs, &mut scratch.exports)?;
            let limit = Deadline::after(py, seconds)?.map(|deadline| deadline.limit);
            let progress = BenchmarkProgress::new(&self.set);
            let inputs = &scratch.inputs;
            let wire = |_, wiring: &mut Wiring| inputs.wire(wiring);
            py.detached(|| self.set.benchmark(count, limit, &progress, wire, |_| (), signal_pending))
        })();
        self.give_back(py, scratch);
        let outcome = result?;
        Ok((outcome.completed, u64::try_from(outcome.elapsed.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Scratch {
    /// Where output `edge` is computed so that `array` has it in the end.
    ///
    /// A program may write an output before it has read all inputs, so an array that is both gets a copy.
    fn deliver(
        &mut self,
        py: Python<'_>,
        edge: &Edge,
        number: usize,
        array: HostSliceMut,
    ) -> PyResult<HostSliceMut> {
        let deferred = self.deferred.iter().map(|&(_, other, _)| other);
        if self.outputs.iter().flatten().copied().chain(deferred).any(|other| overlap(other, array)) {
            let message = format!("out[{:?}] shares memory with the array of another output", edge.name);
            return Err(Raise::new(py, "InputError", "output.overlap", message)
                .with("name", &edge.name)
                .hint("give every output memory of its own")
                .build());
        }
        let overlaps = |input: &HostSlice| input.overlaps(array.as_const());
        if edge.blocks.is_none() && !self.inputs.memory.iter().flatten().any(overlaps) {
            return Ok(array);
        }
        let pool = edge.form(self.inputs.variant).device_pool();
        let storage = pool.take().map_err(|error| from_runtime(py, error))?;
        let memory = storage.memory();
        self.deferred.push((storage, array, number));
        Ok(memory)
    }
}

impl Inputs {
    fn wire(&self, wiring: &mut Wiring) {
        wiring.shapes = Shapes::Variant(self.variant);
        for (wire, memory) in wiring.inputs.iter_mut().zip(&self.memory) {
            *wire = match *memory {
                Some(memory) => InputWire::Memory { memory, owner: None },
                None => InputWire::Held,
            };
        }
    }
}

fn wire_outputs(outputs: &[Option<HostSliceMut>], wiring: &mut Wiring) {
    for (wire, memory) in wiring.outputs.iter_mut().zip(outputs) {
        *wire = match *memory {
            Some(memory) => OutputWire::Memory { memory, owner: None },
            None => OutputWire::Dropped,
        };
    }
}

fn overlap(one: HostSliceMut, other: HostSliceMut) -> bool {
    one.as_const().overlaps(other.as_const())
}

impl PyInferenceSet {
    /// The runtime's set.
    pub(crate) fn inner(&self) -> &Arc<InferenceSet> {
        &self.set
    }

    fn take_scratch(&self, py: Python<'_>) -> PyResult<Scratch> {
        // The lock below may be held by a thread that exists in the parent only.
        self.origin.check().map_err(|error| from_runtime(py, error))?;
        let reused = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (inputs, outputs) = (self.tensors.inputs.len(), self.tensors.outputs.len());
        let mut scratch = reused.unwrap_or_else(|| Scratch {
            // One more per input: a value that does not fit is released only with the others.
            exports: Exports::with_capacity(2 * inputs + outputs),
            inputs: Inputs { memory: Vec::with_capacity(inputs), ..Inputs::default() },
            outputs: Vec::with_capacity(outputs),
            storages: Vec::with_capacity(outputs),
            deferred: Vec::new(),
        });
        scratch.outputs.clear();
        Ok(scratch)
    }

    fn give_back(&self, py: Python<'_>, mut scratch: Scratch) {
        scratch.exports.clear(py);
        scratch.storages.clear();
        scratch.deferred.clear();
        scratch.inputs.converted.clear();
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }

    fn run_with<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyDict>>,
        output_names: Option<&[String]>,
        timeout: Option<f64>,
        scratch: &mut Scratch,
    ) -> PyResult<Bound<'py, PyDict>> {
        let deadline = Deadline::after(py, timeout)?;
        scratch.inputs.collect(py, &self.tensors, &self.coerce, inputs, &mut scratch.exports)?;
        if let Some(names) = output_names {
            self.check_output_names(py, names)?;
        }
        if let Some(out) = out {
            check_keys(py, out, &self.tensors.outputs, "output")?;
        }
        for (number, edge) in self.tensors.outputs.iter().enumerate() {
            let given = match out {
                Some(out) => out.get_item(&edge.key)?,
                None => None,
            };
            let form = edge.form(scratch.inputs.variant);
            let (memory, storage) = if let Some(array) = given {
                let array = edge.writable(py, form, &array, &mut scratch.exports)?;
                (Some(scratch.deliver(py, edge, number, array)?), None)
            } else if is_wanted(edge, output_names, &scratch.inputs) {
                let storage = form.device_pool().take().map_err(|error| from_runtime(py, error))?;
                (Some(storage.memory()), Some(storage))
            } else {
                (None, None)
            };
            scratch.outputs.push(memory);
            scratch.storages.push(storage);
        }

        let (inputs, outputs) = (&scratch.inputs, &scratch.outputs);
        py.detached(|| {
            let until = deadline.map(|deadline| deadline.at);
            let ran = self.set.lease(until, signal_pending).and_then(|lease| {
                lease.wire(|wiring| {
                    inputs.wire(wiring);
                    wire_outputs(outputs, wiring);
                })?;
                // On this thread where that is as good as on another.
                lease.run_until(until, signal_pending)
            });
            ran.map_err(|error| limited(error, deadline))
        })?;
        for (storage, array, number) in scratch.deferred.drain(..) {
            if let Some(edge) = self.tensors.outputs.get(number) {
                edge.bring(&storage, array);
            }
        }

        let result = PyDict::new(py);
        for (edge, storage) in self.tensors.outputs.iter().zip(&mut scratch.storages) {
            if let Some(storage) = storage.take() {
                let form = edge.form(scratch.inputs.variant);
                result.set_item(&edge.key, edge.array(py, form, storage)?)?;
            } else if output_names.is_none_or(|names| names.contains(&edge.name))
                && let Some(array) = out.map(|out| out.get_item(&edge.key)).transpose()?.flatten()
            {
                result.set_item(&edge.key, array)?;
            }
        }
        Ok(result)
    }

    fn prepare_with(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        scratch: &mut Scratch,
    ) -> PyResult<PyInference> {
        let deadline = Deadline::after(py, timeout)?;
        scratch.inputs.collect(py, &self.tensors, &self.coerce, inputs, &mut scratch.exports)?;
        let variant = scratch.inputs.variant;
        let inputs = inference::copies(py, &self.tensors, &scratch.inputs)?;
        let outputs = self
            .tensors
            .outputs
            .iter()
            .map(|edge| {
                let wanted = is_wanted(edge, None, &scratch.inputs);
                wanted.then(|| edge.form(variant).device_pool().take()).transpose()
            })
            .collect::<Result<_, _>>()
            .map_err(|error| from_runtime(py, error))?;
        Ok(PyInference::new(&self.set, &self.tensors, variant, inputs, outputs, deadline))
    }

    fn check_output_names(&self, py: Python<'_>, wanted: &[String]) -> PyResult<()> {
        let outputs = &self.tensors.outputs;
        match wanted.iter().find(|name| !outputs.iter().any(|edge| edge.visible && edge.name == **name)) {
            None => Ok(()),
            Some(name) => Err(Raise::new(
                py,
                "InputError",
                "output.unknown_name",
                format!("output `{name}` does not exist; the program has {:?}", names(outputs)),
            )
            .with("name", name)
            .with("known", names(outputs))
            .build()),
        }
    }
}

/// Names the limit that the caller gave, not the time that passed.
fn limited(error: RuntimeError, deadline: Option<Deadline>) -> RuntimeError {
    match (error, deadline) {
        (RuntimeError::Timeout { what, .. }, Some(deadline)) if deadline.has_passed() => deadline.error(what),
        (error, _) => error,
    }
}

/// Whether an output goes to the host when nobody gave an array for it. The next value of an input that the device
/// provided stays there unless it is asked for by name: a cache is not copied at every step.
fn is_wanted(edge: &Edge, output_names: Option<&[String]>, inputs: &Inputs) -> bool {
    let stays = || edge.state.is_some_and(|input| matches!(inputs.memory.get(input), Some(None)));
    edge.visible && output_names.map_or_else(|| !stays(), |names| names.contains(&edge.name))
}
