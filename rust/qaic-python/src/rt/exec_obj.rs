//! `qaicrt.ExecObj`: carries one inference at a time.

use std::sync::Arc;

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
use super::status::{Answer, Refusal, member, outcome, refused, reply, reply_with};
use super::{construction_reported, missing};
use crate::buffers::{PyQBuffer, ReleaseDropped, release_dropped, zeroed};
use crate::errors::from_runtime;
use crate::gil::{Reaped, answering_signals};

/// The property that loads and activates the program.
const AUTO_LOAD_ACTIVATE: u32 = 4;

/// Carries one inference at a time through a program.
#[pyclass(frozen, name = "ExecObj", module = "qaicrt", weakref)]
pub(crate) struct PyExecObj {
    bound: Reaped<BoundBuffers>,
    context: Arc<Context>,
    // Keeps the Python callbacks of the context as long as there is something to report.
    _parent: Py<RtContext>,
    // Fields are dropped in order.
    _last: ReleaseDropped,
}

impl PyExecObj {
    /// One that an inference set made.
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
            // Borrowed where it can be: this is the path of every step of a decoder.
            (BufferArgument::All(buffers), Some(given)) => match given.cast::<PyDims>() {
                Ok(dims) => {
                    bound.replace_all(&buffers, Some(dims.try_borrow().map_err(PyErr::from)?.shapes()))?
                }
                Err(_) => bound.replace_all(&buffers, Some(&dims::entries(given)?))?,
            },
            (BufferArgument::Some(_), Some(_)) => {
                return Err(refused("dims are only for a list of buffers; arrays have their own").into());
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
        spec.slicing().check_program(&bound.specs)?;
        let (mut listed, mut windows) = (Vec::new(), Vec::new());
        for (index, value) in argument::pairs(&argument::list_of(data)?)? {
            let value = value.bind(data.py());
            let index = bound.specs.position(index)?;
            if spec.slicing().cuts(index) {
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
    /// An exec object of `program`, which is loaded and activated first where necessary.
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
                        "properties are {mask}; 0 and {AUTO_LOAD_ACTIVATE} (load and activate) have a meaning"
                    );
                    return Err(failed(refused(what).into()));
                }
            },
        };
        this.inner().check_context(context.get().inner()).map_err(|error| failed(error.into()))?;
        let exec = this.loading(py, || ExecObj::new(this.inner(), automatic)).map_err(failed)?;
        let bound = Arc::new(BoundBuffers::new(exec, Arc::clone(this.specs())));
        Ok(Self {
            bound: Reaped::new(bound),
            context: runtime,
            _parent: this.context().clone_ref(py),
            _last: ReleaseDropped,
        })
    }

    /// Sets the memory that inputs are read from and outputs are written to.
    ///
    /// A list of ``QBuffer``, or an ``InferenceVector``, replaces everything; ``bufDims`` has element size and dims of
    /// each. A list of (binding index, array) changes the listed bindings only, whose arrays are used in place.
    #[pyo3(name = "setData", signature = (data, bufDims = None))]
    #[allow(non_snake_case)] // the names of the interface
    fn set_data(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        bufDims: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let bound = self.bind_data(data, bufDims);
        // What was replaced, or was not bound in the end.
        release_dropped(py);
        self.reply(py, bound.map_err(Refusal::busy_in_flight))
    }

    /// As ``setData`` with a list of (binding index, array), where the arrays of bindings that `spec` names are windows
    /// of the tensor, for the next inference only. Returns (status, handle).
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

    /// Runs one inference and waits for it. `qbuffers` are set first, as by ``setData``.
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
        self.reply(
            py,
            outcome(py, |detached| answering_signals(detached, None, |scope| self.exec().run(scope))),
        )
    }

    /// Waits for the inference that was enqueued last; success at once when there is none.
    ///
    /// Blocking, without the interpreter lock; after Ctrl-C the inference goes on.
    #[pyo3(name = "waitForCompletion")]
    fn wait_for_completion(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.reply(
            py,
            outcome(py, |detached| answering_signals(detached, None, |scope| self.exec().wait(scope))),
        )
    }

    /// (status, list of ``QBuffer`` by binding index); what was never set has no bytes.
    #[pyo3(name = "getData")]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (member(py, QStatus::Success)?, bound_to(py, &self.bound)?).into_pyobject(py)
    }

    /// Gives it a number of the caller's choice.
    #[pyo3(name = "setId", signature = (number, /))]
    fn set_id(&self, number: u32) {
        self.exec().set_id(number);
    }

    /// The number the caller gave it; 0 at first.
    #[pyo3(name = "getId")]
    fn id(&self) -> u32 {
        self.exec().id()
    }
}

/// Returns the buffer of each binding; a buffer without bytes if nothing was bound.
pub(crate) fn bound_to(py: Python<'_>, bound: &BoundBuffers) -> PyResult<Vec<PyQBuffer>> {
    let buffers = bound.buffers().map_err(|error| from_runtime(py, error))?;
    buffers.into_iter().map(|memory| Ok(PyQBuffer::new(memory.map_or_else(|| zeroed(py, 0), Ok)?))).collect()
}

/// CRCs by binding and section.
type Sums = Vec<Vec<u32>>;

/// The CRC-32 of every buffer, or of every section of it, of the last inference of an exec object: (inputs, outputs) by
/// binding. None for programs without `io_crc`, and while an inference is under way.
#[pyfunction]
pub(crate) fn io_crcs(exec_obj: &PyExecObj) -> Option<(Sums, Sums)> {
    let crcs = exec_obj.exec().io_crcs()?;
    Some((crcs.inputs, crcs.outputs))
}
