//! `qaicrt.ExecObj`: runs one inference at a time.

use std::sync::{Arc, atomic::Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};
use qaic_runtime::process::FailureSource;
use qaic_runtime::request::{BoundBuffers, ExecObj};
use qaic_runtime::{Context, QStatus};

use super::argument::{self, BufferArgument};
use super::context::RtContext;
use super::dims::{self, PyDims};
use super::program::PyProgram;
use super::slicing::{PySlicing, PySlicingSpec};
use super::status::{Answer, Refusal, member, refused, reply, reply_with, waited};
use super::{construction_reported, missing};
use crate::buffers::{PyQBuffer, ReleaseDropped, release_dropped, zeroed};
use crate::errors::from_runtime;
use crate::gil::Reaped;

/// The property that loads and activates the program.
const AUTO_LOAD_ACTIVATE: u32 = 4;

/// Runs one inference of a program at a time.
#[pyclass(frozen, name = "ExecObj", module = "qaicrt", weakref)]
pub(crate) struct PyExecObj {
    bound: Reaped<BoundBuffers>,
    context: Arc<Context>,
    // Keeps the context's Python callbacks while this object can report to them.
    _parent: Py<RtContext>,
    // Fields are dropped in order.
    _last: ReleaseDropped,
}

impl PyExecObj {
    /// Returns the object for an exec object of an inference set.
    pub(crate) fn of(bound: Arc<BoundBuffers>, parent: Py<RtContext>) -> Self {
        let context = Arc::clone(&bound.exec.program.context);
        let bound = Reaped::new(bound);
        Self { bound, context, _parent: parent, _last: ReleaseDropped }
    }

    pub(crate) fn exec(&self) -> &Arc<ExecObj> {
        &self.bound.exec
    }

    fn reply(&self, py: Python<'_>, answer: Answer) -> PyResult<Py<PyAny>> {
        reply(py, &self.context, FailureSource::ExecObj, answer)
    }

    fn bind_data(&self, data: &Bound<'_, PyAny>, dims: Option<&Bound<'_, PyAny>>) -> Answer {
        let bound = &self.bound;
        match (argument::read(data)?, dims) {
            (BufferArgument::All(buffers), None) => bound.replace_all(&buffers, None)?,
            // Borrows the dims if possible, because each step of a decoder takes this path.
            (BufferArgument::All(buffers), Some(given)) => match given.cast::<PyDims>() {
                Ok(dims) => {
                    bound.replace_all(&buffers, Some(dims.try_borrow().map_err(PyErr::from)?.shapes()))?
                }
                Err(_) => bound.replace_all(&buffers, Some(&dims::entries(given)?))?,
            },
            (BufferArgument::Some(_), Some(_)) => {
                return Err(refused("dims apply only to a list of buffers; arrays have their own").into());
            }
            (BufferArgument::Some(pairs), None) => {
                let mut listed = Vec::with_capacity(pairs.len());
                for (index, value) in pairs {
                    let index = bound.specs.position(index)?;
                    listed.push(argument::listed(&bound.specs, index, value.bind(data.py()))?);
                }
                bound.replace_some(&listed, Vec::new())?;
            }
        }
        Ok(())
    }

    fn bind_windows(
        &self,
        data: &Bound<'_, PyAny>,
        spec: &Bound<'_, PyAny>,
        parameters: Vec<(String, i64)>,
    ) -> Answer<PySlicing> {
        if spec.is_none() {
            let what = "the slicing specification is None; the result of createSlicingSpecHandle is expected";
            return Err(refused(what).into());
        }
        let spec = spec.cast::<PySlicingSpec>().map_err(PyErr::from)?.get();
        let bound = &self.bound;
        spec.slicing.check_program(&bound.specs)?;
        let (mut listed, mut windows) = (Vec::new(), Vec::new());
        for (index, value) in argument::pairs(&argument::list_of(data)?)? {
            let value = value.bind(data.py());
            let index = bound.specs.position(index)?;
            if spec.slicing.cuts(index) {
                windows.push(spec.window(index, value, &parameters)?);
            } else {
                listed.push(argument::listed(&bound.specs, index, value)?);
            }
        }
        let count = windows.len();
        bound.replace_some(&listed, windows)?;
        Ok(PySlicing::new(count, parameters))
    }
}

#[pymethods]
impl PyExecObj {
    /// Creates an exec object of `program`, which is first loaded and activated if necessary.
    ///
    /// Blocking, without the interpreter lock; Ctrl-C ends a load.
    #[new]
    #[pyo3(signature = (context, program, properties = None))]
    fn new(
        py: Python<'_>,
        context: Option<Bound<'_, RtContext>>,
        program: Option<Bound<'_, PyProgram>>,
        properties: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        release_dropped(py);
        let context = context.ok_or_else(|| missing(py, "ExecObj", "the context"))?;
        let program = program.ok_or_else(|| missing(py, "ExecObj", "the program"))?;
        let this = program.get();
        let runtime = Arc::clone(&this.inner().context);
        let failed = |refusal| construction_reported(py, &runtime, FailureSource::ExecObj, refusal);
        let automatic = match properties.filter(|given| given.is_instance_of::<PyInt>()) {
            None => true,
            Some(mask) => match mask.extract::<u32>() {
                Ok(0) => false,
                Ok(AUTO_LOAD_ACTIVATE) => true,
                _ => {
                    let what = format!(
                        "properties are {mask}; 0 or {AUTO_LOAD_ACTIVATE} (load and activate) is expected"
                    );
                    return Err(failed(refused(what).into()));
                }
            },
        };
        this.inner().check_context(&context.get().context).map_err(|error| failed(error.into()))?;
        let exec = this.loading(py, || ExecObj::new(this.inner(), automatic)).map_err(failed)?;
        let bound = Arc::new(BoundBuffers::new(exec, Arc::clone(&this.specs)));
        Ok(Self {
            bound: Reaped::new(bound),
            context: runtime,
            _parent: this.context.clone_ref(py),
            _last: ReleaseDropped,
        })
    }

    /// Sets the memory of inputs and outputs.
    ///
    /// A list of ``QBuffer``, or an ``InferenceVector``, sets all bindings; ``bufDims`` contains element size and
    /// dims of each. A list of (binding index, array) changes only the listed bindings; their arrays are used in
    /// place.
    #[pyo3(name = "setData", signature = (data, bufDims = None))]
    #[allow(non_snake_case)] // the vendor's names
    fn set_data(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        bufDims: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let bound = self.bind_data(data, bufDims);
        // Releases replaced arrays and those that were not bound.
        release_dropped(py);
        self.reply(py, bound.map_err(Refusal::busy_in_flight))
    }

    /// Sets bindings as ``setData`` does with a list of (binding index, array), for the next inference only. Arrays
    /// of bindings in `spec` are slices of the tensor. Returns (status, handle).
    #[pyo3(name = "setDataWithSlices")]
    fn set_data_with_slices<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        spec: &Bound<'py, PyAny>,
        params: Vec<(String, i64)>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let bound = self.bind_windows(data, spec, params);
        release_dropped(py);
        reply_with(py, &self.context, FailureSource::ExecObj, bound.map_err(Refusal::busy_in_flight))
    }

    /// Runs one inference and waits for it. If `qbuffers` is given, sets them first, as ``setData`` does.
    ///
    /// Blocking, without the interpreter lock; Ctrl-C cancels the inference.
    #[pyo3(signature = (qbuffers = None))]
    fn run(&self, py: Python<'_>, qbuffers: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        if let Some(data) = qbuffers {
            let bound = self.bind_data(data, None);
            release_dropped(py);
            if let Err(refusal) = bound {
                return self.reply(py, Err(refusal.busy_in_flight()));
            }
        }
        self.reply(py, waited(py, None, |scope| self.exec().run(scope)))
    }

    /// Waits for the inference that was enqueued last; returns immediately with success if there is none.
    ///
    /// Blocking, without the interpreter lock; the inference continues after Ctrl-C.
    #[pyo3(name = "waitForCompletion")]
    fn wait_for_completion(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.reply(py, waited(py, None, |scope| self.exec().wait(scope)))
    }

    /// (status, list of ``QBuffer`` by binding index). The buffer of an unset binding is empty.
    #[pyo3(name = "getData")]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (member(py, QStatus::Success)?, bound_to(py, &self.bound)?).into_pyobject(py)
    }

    /// Sets a number of the caller's choice.
    #[pyo3(name = "setId", signature = (number, /))]
    fn set_id(&self, number: u32) {
        self.exec().id.store(number, Ordering::Relaxed);
    }

    /// Number that the caller set; 0 by default.
    #[pyo3(name = "getId")]
    fn id(&self) -> u32 {
        self.exec().id.load(Ordering::Relaxed)
    }
}

/// Returns the buffer of each binding; an unset binding has an empty buffer.
pub(crate) fn bound_to(py: Python<'_>, bound: &BoundBuffers) -> PyResult<Vec<PyQBuffer>> {
    let buffers = bound.buffers().map_err(|error| from_runtime(py, error))?;
    buffers.into_iter().map(|memory| Ok(PyQBuffer::new(memory.map_or_else(|| zeroed(py, 0), Ok)?))).collect()
}

/// CRCs by binding and section.
type Sums = Vec<Vec<u32>>;

/// Returns the CRC-32 of every buffer (or of each section of it) in the last inference of an exec object: (inputs,
/// outputs) by binding. Returns None for programs without `io_crc`, and while an inference is in flight.
#[pyfunction]
pub(crate) fn io_crcs(exec_obj: &PyExecObj) -> Option<(Sums, Sums)> {
    let crcs = exec_obj.exec().io_crcs()?;
    Some((crcs.inputs, crcs.outputs))
}
