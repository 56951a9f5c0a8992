//! `_core.InferenceSet`: dictionaries of arrays in, dictionaries of arrays out.

mod inference;
mod inputs;
mod state;
mod tensors;

use std::ops::Range;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use qaic_mem::{HostSlice, Lender, Loan, Storage};
use qaic_runtime::binding::{ArgumentError, Bindings, OutputBinding, first_overlap};
use qaic_runtime::device::{DeviceId, LoadOptions, Placement};
use qaic_runtime::inference_set::{BenchmarkProgress, InferenceSet, PendingInference};
use qaic_runtime::process::cancellation::WAIT_SLICE_MS;
use qaic_runtime::process::reaper::{self, Teardown};
use qaic_runtime::process::{Deadline, ForkGuard};
use qaic_runtime::program::{ProgramOptions, WaitLimits};
use qaic_sync::ObjectPool;

use crate::buffers::{ExportId, Exports};
use crate::context::{PyContext, cancellable_load};
use crate::errors::from_runtime;
use crate::gil::{Detach, PyTeardown, Reaped, deadline_after, signal_pending};
use crate::qpc::PyQpc;
use inputs::Inputs;
use tensors::{Tensor, Tensors, check_keys, writable};

pub(crate) use inference::{PyCompletions, PyInference};

/// Runs at a time whose vectors are kept; more make their own.
const MOST_SCRATCH: usize = 64;

/// Vectors that one run needs, kept for the next one so that a run allocates nothing.
struct Scratch {
    exports: Exports,
    inputs: Inputs,
    outputs: Vec<Target>,
    // By output; those that go to new arrays.
    storages: Vec<Option<Storage>>,
    // In the order of the outputs.
    deferred: Vec<Deferred>,
    lender: Lender,
    // Number of an output, and where the array lies that was given for it.
    given: Vec<(usize, Range<usize>)>,
}

/// Where the device writes an output.
#[derive(Clone, Copy, Debug)]
enum Target {
    Nowhere,
    /// The head of the caller's array.
    Export(ExportId, usize),
    /// A new array.
    Storage,
    /// Memory from which it is brought to the caller's array.
    Deferred,
}

/// An output whose array is also an input, or has another form than the device's.
struct Deferred {
    storage: Storage,
    array: ExportId,
    bytes: usize,
    output: usize,
}

/// A loaded and activated container with its exec objects.
///
/// Made by `Session`; `coerce(name, value, dtype, shape, partial)` is called for an input that is not exactly an array of
/// the program's type and shape, and returns one or raises.
#[pyclass(frozen, name = "InferenceSet", module = "qaic._core")]
pub(crate) struct PyInferenceSet {
    set: Reaped<InferenceSet>,
    teardown: Arc<Teardown>,
    tensors: Arc<Tensors>,
    coerce: Py<PyAny>,
    scratch: ObjectPool<Scratch>,
    fork_guard: ForkGuard,
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
        let tensors = Tensors::new(py, image, unused).map_err(|error| from_runtime(py, error))?;
        if num_activations > 1 && tensors.specs.has_state() {
            let error = ArgumentError::StatePerActivation { activations: num_activations };
            return Err(from_runtime(py, error));
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
            reaper::when_free(|| {
                InferenceSet::new(context, image, &placement, set_size, num_activations, options.clone())
            })
        })?;
        let teardown = Teardown::new();
        Ok(Self {
            set: Reaped::watched(set, &teardown),
            teardown,
            tensors: Arc::new(tensors),
            coerce,
            scratch: ObjectPool::new(unused.clamp(1, MOST_SCRATCH)),
            fork_guard: ForkGuard::new(),
        })
    }

    /// Number of inferences that can be in flight.
    #[getter]
    fn handle_count(&self) -> usize {
        self.set.handle_count()
    }

    /// Its teardown, which begins after its last use.
    fn teardown(&self) -> PyTeardown {
        PyTeardown::new(&self.teardown)
    }

    /// Shapes of the inputs in every permitted combination, in order of the inputs.
    fn input_shapes(&self) -> Vec<Vec<Vec<usize>>> {
        let specs = &self.tensors.specs;
        (0..specs.variants())
            .map(|variant| specs.inputs().iter().map(|spec| spec.shape(variant).dims.clone()).collect())
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
            let limit = deadline_after(py, seconds)?.map(Deadline::limit);
            let progress = BenchmarkProgress::new(&self.set);
            let Scratch { exports, inputs, lender, .. } = &mut *scratch;
            let (exports, inputs) = (&*exports, &*inputs);
            py.detached(|| {
                lender.scope(|loan| {
                    let bind = |_, bindings: &mut Bindings| inputs.bind(exports, loan, bindings);
                    self.set.benchmark(count, limit, &progress, bind, |_| true, signal_pending)
                })
            })
        })();
        self.give_back(py, scratch);
        let outcome = result?;
        Ok((outcome.completed, u64::try_from(outcome.elapsed.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Scratch {
    /// Where an output is computed so that the array of `id` has it in the end.
    ///
    /// A program may write an output before it has read all inputs, so an array that is both gets a copy.
    fn deliver(
        &mut self,
        py: Python<'_>,
        tensor: &Tensor,
        output: usize,
        (array, bytes): (ExportId, usize),
    ) -> PyResult<Target> {
        let memory = head(&self.exports, array, bytes);
        let start = memory.as_ptr().addr();
        self.given.push((output, start..start.saturating_add(memory.len())));
        let mut inputs = self.inputs.memory(&self.exports).flatten();
        if !tensor.has_blocks() && !inputs.any(|input| input.overlaps(memory)) {
            return Ok(Target::Export(array, bytes));
        }
        let pool = tensor.form(self.inputs.variant).device_pool();
        let storage = pool.take().map_err(|error| from_runtime(py, error))?;
        self.deferred.push(Deferred { storage, array, bytes, output });
        Ok(Target::Deferred)
    }
}

/// The first bytes of an array.
fn head(exports: &Exports, id: ExportId, bytes: usize) -> HostSlice<'_> {
    let memory = exports.memory(id);
    memory.subslice(0, bytes).unwrap_or(memory)
}

/// Lends an inference the memory of its outputs.
fn bind_outputs<'a>(
    outputs: &[Target],
    exports: &'a Exports,
    storages: &'a mut [Option<Storage>],
    deferred: &'a mut [Deferred],
    loan: &mut Loan<'_, 'a>,
    bindings: &mut Bindings,
) {
    let mut deferred = deferred.iter_mut();
    for ((binding, target), storage) in bindings.outputs.iter_mut().zip(outputs).zip(storages) {
        let memory = match *target {
            Target::Nowhere => None,
            Target::Export(id, bytes) => Some(exports.memory_mut(id).first(bytes)),
            Target::Storage => storage.as_mut().map(Storage::memory_mut),
            Target::Deferred => deferred.next().map(|deferred| deferred.storage.memory_mut()),
        };
        *binding = match memory {
            Some(memory) => OutputBinding::Memory(loan.lend_mut(memory)),
            None => OutputBinding::Dropped,
        };
    }
}

impl PyInferenceSet {
    /// The runtime's set.
    pub(crate) fn inner(&self) -> &Arc<InferenceSet> {
        &self.set
    }

    fn take_scratch(&self, py: Python<'_>) -> PyResult<Box<Scratch>> {
        self.fork_guard.check().map_err(|error| from_runtime(py, error))?;
        let (inputs, outputs) = (self.tensors.inputs.len(), self.tensors.outputs.len());
        Ok(self.scratch.take().unwrap_or_else(|| {
            Box::new(Scratch {
                // One more per input: a value that does not fit is released only with the others.
                exports: Exports::with_capacity(2 * inputs + outputs),
                inputs: Inputs::with_capacity(inputs),
                outputs: Vec::with_capacity(outputs),
                storages: Vec::with_capacity(outputs),
                deferred: Vec::new(),
                lender: Lender::with_capacity(inputs + outputs),
                given: Vec::new(),
            })
        }))
    }

    fn give_back(&self, py: Python<'_>, mut scratch: Box<Scratch>) {
        scratch.exports.clear(py);
        scratch.storages.clear();
        scratch.deferred.clear();
        scratch.inputs.clear();
        scratch.outputs.clear();
        scratch.given.clear();
        self.scratch.give_back(scratch);
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
        let deadline = deadline_after(py, timeout)?;
        scratch.inputs.collect(py, &self.tensors, &self.coerce, inputs, &mut scratch.exports)?;
        if let Some(names) = output_names {
            let checked = names.iter().try_for_each(|name| self.tensors.specs.check_output_name(name));
            checked.map_err(|error| from_runtime(py, error))?;
        }
        if let Some(out) = out {
            check_keys(py, out, self.tensors.specs.outputs(), "output")?;
        }
        let variant = scratch.inputs.variant;
        for (number, (spec, tensor)) in self.tensors.outputs().enumerate() {
            let given = match out {
                Some(out) => out.get_item(&tensor.key)?,
                None => None,
            };
            let (target, storage) = if let Some(array) = given {
                let array = writable(py, spec, variant, &array, &mut scratch.exports)?;
                (scratch.deliver(py, tensor, number, (array, spec.shape(variant).bytes))?, None)
            } else if spec.is_delivered(output_names, |input| scratch.inputs.is_left_out(input)) {
                let storage =
                    tensor.form(variant).device_pool().take().map_err(|error| from_runtime(py, error))?;
                (Target::Storage, Some(storage))
            } else {
                (Target::Nowhere, None)
            };
            scratch.outputs.push(target);
            scratch.storages.push(storage);
        }
        if let Some((_, second)) = first_overlap(&mut scratch.given) {
            let name = self.tensors.specs.outputs().get(second).map(|spec| spec.name.clone());
            return Err(from_runtime(py, ArgumentError::OutputOverlap { name: name.unwrap_or_default() }));
        }

        let Scratch { exports, inputs, outputs, storages, deferred, lender, .. } = scratch;
        let (exports, inputs) = (&*exports, &*inputs);
        let (storing, deferring) = (&mut storages[..], &mut deferred[..]);
        py.detached(|| {
            let until = deadline.map(Deadline::at);
            let ran = lender.scope(|loan| {
                let lease = self.set.lease(until, signal_pending)?;
                lease.bind(|bindings| {
                    inputs.bind(exports, loan, bindings);
                    bind_outputs(outputs, exports, storing, deferring, loan, bindings);
                })?;
                // On this thread where that is as good as on another.
                lease.run_until(until, signal_pending)
            });
            ran.map_err(|error| Deadline::restate(deadline, error))
        })?;
        for Deferred { storage, array, bytes, output } in deferred.drain(..) {
            if let Some(tensor) = self.tensors.outputs.get(output) {
                tensor.bring(&storage, exports.memory_mut(array).first(bytes));
            }
        }

        let result = PyDict::new(py);
        for ((spec, tensor), storage) in self.tensors.outputs().zip(&mut scratch.storages) {
            if let Some(storage) = storage.take() {
                result.set_item(&tensor.key, tensor.array(py, variant, storage)?)?;
            } else if output_names.is_none_or(|names| names.contains(&spec.name))
                && let Some(array) = out.map(|out| out.get_item(&tensor.key)).transpose()?.flatten()
            {
                result.set_item(&tensor.key, array)?;
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
        let deadline = deadline_after(py, timeout)?;
        scratch.inputs.collect(py, &self.tensors, &self.coerce, inputs, &mut scratch.exports)?;
        let variant = scratch.inputs.variant;
        let inputs = inference::copies(py, &self.tensors, &scratch.inputs, &scratch.exports)?;
        let outputs = self
            .tensors
            .outputs()
            .map(|(spec, tensor)| {
                let wanted = spec.is_delivered(None, |input| scratch.inputs.is_left_out(input));
                wanted.then(|| tensor.form(variant).device_pool().take()).transpose()
            })
            .collect::<Result<_, _>>()
            .map_err(|error| from_runtime(py, error))?;
        let inference = PendingInference::new(&self.set, variant, inputs, outputs, deadline);
        Ok(PyInference::new(inference, &self.tensors, variant))
    }
}
