//! `_core.InferenceSet`: dictionaries of arrays in, dictionaries of arrays out.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};
use qaic_runtime::buffer::{HostSlice, HostSliceMut, Storage, StoragePool};
use qaic_runtime::device::{DeviceId, LoadOptions, Placement};
use qaic_runtime::error::RuntimeError;
use qaic_runtime::inference_set::{BenchmarkProgress, InferenceSet};
use qaic_runtime::program::ProgramOptions;
use qaic_runtime::tensors::{self, Tensor};
use qaic_runtime::wiring::{InputWire, Wiring};

use crate::buffers::{ArrayLayout, Exported, Exports, array_over};
use crate::context::{PyContext, cancellable_load};
use crate::errors::{Raise, from_runtime};
use crate::gil::{Deadline, Door, signal_pending};
use crate::qpc::PyQpc;

/// One input or output as numpy sees it.
struct Edge {
    key: Py<PyString>,
    name: String,
    dtype: &'static str,
    format: u8,
    item_bytes: usize,
    shape: Vec<isize>,
    size_bytes: usize,
    partial: bool,
    visible: bool,
    layout: Arc<ArrayLayout>,
    pool: Arc<StoragePool>,
}

/// Vectors that one run needs, kept for the next one so that a run allocates nothing.
struct Scratch {
    exports: Exports,
    inputs: Vec<HostSlice>,
    outputs: Vec<Option<HostSliceMut>>,
    storages: Vec<Option<Storage>>,
    // Outputs whose array is also an input: where they are computed, and the array.
    deferred: Vec<(Storage, HostSliceMut)>,
}

/// A loaded and activated container with its exec objects.
///
/// Made by `Session`; `coerce(name, value, dtype, shape, partial)` is called for an input that is not exactly an array of
/// the program's type and shape, and returns one or raises.
#[pyclass(frozen, name = "InferenceSet", module = "qaic._core")]
pub(crate) struct PyInferenceSet {
    set: Arc<InferenceSet>,
    inputs: Vec<Edge>,
    outputs: Vec<Edge>,
    coerce: Py<PyAny>,
    scratch: Mutex<Vec<Scratch>>,
}

#[pymethods]
impl PyInferenceSet {
    /// Loads and activates `qpc` on device `dev_id`.
    #[new]
    #[pyo3(signature = (context, qpc, dev_id, set_size, num_activations, coerce))]
    #[allow(clippy::too_many_arguments)] // the arguments of the Python constructor
    fn new(
        py: Python<'_>,
        context: &PyContext,
        qpc: &PyQpc,
        dev_id: u32,
        set_size: u32,
        num_activations: u32,
        coerce: Py<PyAny>,
    ) -> PyResult<Self> {
        let context = context.inner();
        let image = qpc.program(py)?;
        let set = cancellable_load(py, |token| {
            let load = LoadOptions { activations: num_activations, token, share_group: None };
            let options = ProgramOptions { load, ..ProgramOptions::default() };
            let place = Placement::one(DeviceId(dev_id));
            InferenceSet::new(context, image, &place, set_size, num_activations, options)
        })?;
        let tensors = tensors::user_tensors(image).map_err(|error| from_runtime(py, error))?;
        let unused = set.handle_count();
        let edge = |tensor: Tensor| Edge::new(py, tensor, unused);
        Ok(Self {
            inputs: tensors.inputs.into_iter().map(edge).collect::<PyResult<_>>()?,
            outputs: tensors.outputs.into_iter().map(edge).collect::<PyResult<_>>()?,
            set,
            coerce,
            scratch: Mutex::default(),
        })
    }

    /// Number of inferences that can be in flight.
    #[getter]
    fn handle_count(&self) -> usize {
        self.set.handle_count()
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
        let mut scratch = self.take_scratch();
        let result = self.run_with(py, inputs, out, output_names.as_deref(), timeout, &mut scratch);
        scratch.exports.clear(py);
        scratch.storages.clear();
        scratch.deferred.clear();
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        result
    }

    /// Runs `count` inferences, or as many as fit in `seconds`, on `threads` threads without any Python work between
    /// them. Returns the number of inferences and the nanoseconds they took.
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
        let mut scratch = self.take_scratch();
        self.collect_inputs(py, inputs, &mut scratch)?;
        let limit = Deadline::after(py, seconds)?.map(|deadline| deadline.limit);
        let slices = scratch.inputs.clone();
        let progress = BenchmarkProgress::new(&self.set);
        let wire = |_, wiring: &mut Wiring| {
            for (wire, &memory) in wiring.inputs.iter_mut().zip(&slices) {
                *wire = InputWire::Memory { memory, owner: None };
            }
        };
        let result =
            py.detached(|| self.set.benchmark(count, limit, &progress, wire, |_| {}, signal_pending));
        scratch.exports.clear(py);
        let outcome = result?;
        Ok((outcome.completed, u64::try_from(outcome.elapsed.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Edge {
    fn new(py: Python<'_>, tensor: Tensor, unused: usize) -> PyResult<Self> {
        let (format, dtype, item_bytes): (&'static CStr, &'static str, usize) = tensor.dtype.numpy();
        let shape: Vec<isize> =
            tensor.dims.iter().map(|&dim| isize::try_from(dim).unwrap_or(isize::MAX)).collect();
        let size_bytes = usize::try_from(tensor.size_bytes).map_err(|_| {
            Raise::new(
                py,
                "QpcLimitError",
                "qpc.tensor_too_large",
                format!("tensor `{}` has {} bytes", tensor.name, tensor.size_bytes),
            )
            .build()
        })?;
        Ok(Self {
            key: PyString::intern(py, &tensor.name).unbind(),
            layout: ArrayLayout::new(&shape, format, item_bytes),
            pool: StoragePool::new(size_bytes, unused),
            format: format.to_bytes().first().copied().unwrap_or(b'B'),
            dtype,
            item_bytes,
            shape,
            size_bytes,
            partial: tensor.partial,
            visible: tensor.visible,
            name: tensor.name,
        })
    }

    /// Whether an exported buffer is exactly this tensor.
    fn fits(&self, exported: &Exported<'_>) -> bool {
        let same_type = exported.item_bytes == self.item_bytes
            && (exported.format == [self.format] || is_same_integer(exported.format, self.format));
        let same_shape = exported.shape == self.shape
            || (self.partial && exported.shape.len() == 1 && exported.memory.len() <= self.size_bytes);
        // An array may start in the middle of an element; kernels want whole ones.
        let aligned = exported.memory.as_mut_ptr().addr().is_multiple_of(self.item_bytes);
        same_type && same_shape && aligned
    }
}

/// C has several names for an integer of the same size; the caller has compared the sizes.
fn is_same_integer(format: &[u8], wanted: u8) -> bool {
    matches!((format, wanted), ([b'l' | b'q' | b'i' | b'n'], b'q' | b'i') | ([b'c'], b'b'))
}

impl Scratch {
    /// Where output `edge` is computed so that `array` has it in the end.
    ///
    /// A program may write an output before it has read all inputs, so an array that is both gets a copy.
    fn deliver(&mut self, py: Python<'_>, edge: &Edge, array: HostSliceMut) -> PyResult<HostSliceMut> {
        let deferred = self.deferred.iter().map(|&(_, other)| other);
        if self.outputs.iter().flatten().copied().chain(deferred).any(|other| overlap(other, array)) {
            let message = format!("out[{:?}] shares memory with the array of another output", edge.name);
            return Err(Raise::new(py, "InputError", "output.overlap", message)
                .with("name", &edge.name)
                .hint("give every output memory of its own")
                .build());
        }
        if !self.inputs.iter().any(|input| input.overlaps(array.as_const())) {
            return Ok(array);
        }
        let storage = edge.pool.take().map_err(|error| from_runtime(py, error))?;
        let memory = storage.memory();
        self.deferred.push((storage, array));
        Ok(memory)
    }
}

/// A time-out in the caller's terms, whatever waits it was divided into.
fn named_limit(error: RuntimeError, deadline: Option<Deadline>) -> RuntimeError {
    match (error, deadline) {
        (RuntimeError::Timeout { what, .. }, Some(deadline)) => {
            let timeout_ms = u64::try_from(deadline.limit.as_millis()).unwrap_or(u64::MAX);
            RuntimeError::Timeout { what, timeout_ms }
        }
        (error, _) => error,
    }
}

fn overlap(one: HostSliceMut, other: HostSliceMut) -> bool {
    one.as_const().overlaps(other.as_const())
}

impl PyInferenceSet {
    fn take_scratch(&self) -> Scratch {
        let reused = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = reused.unwrap_or_else(|| Scratch {
            // One more per input: a value that does not fit is released only with the others.
            exports: Exports::with_capacity(2 * self.inputs.len() + self.outputs.len()),
            inputs: Vec::with_capacity(self.inputs.len()),
            outputs: Vec::with_capacity(self.outputs.len()),
            storages: Vec::with_capacity(self.outputs.len()),
            deferred: Vec::new(),
        });
        scratch.inputs.clear();
        scratch.outputs.clear();
        scratch
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
        self.collect_inputs(py, inputs, scratch)?;
        if let Some(names) = output_names {
            self.check_output_names(py, names)?;
        }
        if let Some(out) = out {
            check_keys(py, out, &self.outputs, "output")?;
        }
        for edge in &self.outputs {
            let given = match out {
                Some(out) => out.get_item(&edge.key)?,
                None => None,
            };
            let (memory, storage) = if let Some(array) = given {
                let array = edge.writable(py, &array, &mut scratch.exports)?;
                (Some(scratch.deliver(py, edge, array)?), None)
            } else if edge.visible && is_selected(output_names, edge) {
                let storage = edge.pool.take().map_err(|error| from_runtime(py, error))?;
                (Some(storage.memory()), Some(storage))
            } else {
                (None, None)
            };
            scratch.outputs.push(memory);
            scratch.storages.push(storage);
        }

        let until = deadline.map(|deadline| deadline.at);
        let (inputs, outputs) = (&scratch.inputs, &scratch.outputs);
        py.detached(|| {
            let ran = self
                .set
                .lease(until, signal_pending)
                .and_then(|lease| lease.run(inputs, outputs, until, signal_pending));
            ran.map_err(|error| named_limit(error, deadline))
        })?;
        for (storage, array) in scratch.deferred.drain(..) {
            array.copy_from(storage.memory().as_const());
        }

        let result = PyDict::new(py);
        for (edge, storage) in self.outputs.iter().zip(&mut scratch.storages) {
            if let Some(storage) = storage.take() {
                result.set_item(&edge.key, array_over(py, storage, &edge.layout)?)?;
            } else if is_selected(output_names, edge)
                && let Some(array) = out.map(|out| out.get_item(&edge.key)).transpose()?.flatten()
            {
                result.set_item(&edge.key, array)?;
            }
        }
        Ok(result)
    }

    fn collect_inputs(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyAny>,
        scratch: &mut Scratch,
    ) -> PyResult<()> {
        let copied;
        let inputs = if let Ok(inputs) = inputs.cast::<PyDict>() {
            inputs
        } else if inputs.cast::<PyMapping>().is_ok() {
            copied = py.get_type::<PyDict>().call1((inputs,))?.cast_into::<PyDict>()?;
            &copied
        } else {
            return Err(Raise::new(
                py,
                "InputTypeError",
                "input.not_a_dict",
                format!(
                    "inputs are a {}; a dict of name to numpy array is expected, with the names {:?}",
                    inputs.get_type().name()?,
                    names(&self.inputs)
                ),
            )
            .build());
        };
        if inputs.len() != self.inputs.len() {
            check_keys(py, inputs, &self.inputs, "input")?;
        }
        for edge in &self.inputs {
            let Some(value) = inputs.get_item(&edge.key)? else {
                check_keys(py, inputs, &self.inputs, "input")?;
                return Err(self.missing_inputs(py, inputs));
            };
            scratch.inputs.push(self.readable(py, edge, &value, &mut scratch.exports)?);
        }
        Ok(())
    }

    fn readable(
        &self,
        py: Python<'_>,
        edge: &Edge,
        value: &Bound<'_, PyAny>,
        exports: &mut Exports,
    ) -> PyResult<HostSlice> {
        if let Some(exported) = exports.take(value, false)
            && edge.fits(&exported)
        {
            return Ok(exported.memory.as_const());
        }
        let converted =
            self.coerce.bind(py).call1((&edge.key, value, edge.dtype, edge.shape.clone(), edge.partial))?;
        match exports.take(&converted, false) {
            Some(exported) if edge.fits(&exported) => Ok(exported.memory.as_const()),
            _ => Err(Raise::new(
                py,
                "InternalError",
                "internal.coerce",
                format!("input `{}` was not converted to {} {:?}", edge.name, edge.dtype, edge.shape),
            )
            .build()),
        }
    }

    fn missing_inputs(&self, py: Python<'_>, inputs: &Bound<'_, PyDict>) -> PyErr {
        let missing: Vec<&str> = self
            .inputs
            .iter()
            .filter(|edge| !inputs.contains(&edge.key).unwrap_or(false))
            .map(|edge| edge.name.as_str())
            .collect();
        Raise::new(
            py,
            "MissingInputError",
            "input.missing",
            format!("missing inputs: {}; the program needs {:?}", missing.join(", "), names(&self.inputs)),
        )
        .with("missing", missing)
        .build()
    }

    fn check_output_names(&self, py: Python<'_>, wanted: &[String]) -> PyResult<()> {
        match wanted.iter().find(|name| !self.outputs.iter().any(|edge| edge.visible && edge.name == **name))
        {
            None => Ok(()),
            Some(name) => Err(Raise::new(
                py,
                "InputError",
                "output.unknown_name",
                format!("output `{name}` does not exist; the program has {:?}", names(&self.outputs)),
            )
            .with("name", name)
            .with("known", names(&self.outputs))
            .build()),
        }
    }
}

impl Edge {
    /// The memory of an array that is exactly this output.
    fn writable(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        exports: &mut Exports,
    ) -> PyResult<HostSliceMut> {
        if let Some(exported) = exports.take(array, true)
            && self.fits(&exported)
            && exported.shape == self.shape
        {
            return Ok(exported.memory);
        }
        let found = array
            .getattr("dtype")
            .and_then(|dtype| Ok(format!("{dtype} of shape {}", array.getattr("shape")?)))
            .unwrap_or_else(|_| array.get_type().to_string());
        Err(Raise::new(
            py,
            "InputError",
            "output.array",
            format!(
                "out[{:?}] is {found}; a writable, aligned, C-contiguous {} array of shape {:?} is expected",
                self.name, self.dtype, self.shape
            ),
        )
        .with("name", &self.name)
        .build())
    }
}

fn is_selected(output_names: Option<&[String]>, edge: &Edge) -> bool {
    output_names.is_none_or(|names| names.contains(&edge.name))
}

fn names(edges: &[Edge]) -> Vec<&str> {
    edges.iter().filter(|edge| edge.visible).map(|edge| edge.name.as_str()).collect()
}

/// Refuses a key that names no visible tensor.
fn check_keys(py: Python<'_>, given: &Bound<'_, PyDict>, edges: &[Edge], what: &str) -> PyResult<()> {
    for key in given.keys() {
        let known = match key.cast::<PyString>() {
            Ok(text) => {
                let text = text.to_string_lossy();
                edges.iter().any(|edge| edge.visible && edge.name == text)
            }
            Err(_) => false,
        };
        if !known {
            return Err(Raise::new(
                py,
                "InputError",
                "input.unknown_name",
                format!("{what} {} does not exist; the program has {:?}", key.repr()?, names(edges)),
            )
            .with("name", key)
            .with("known", names(edges))
            .build());
        }
    }
    Ok(())
}
