//! `qaicrt.InferenceSet`: many inferences in flight, collected by id or as they come.
//!
//! The states of the handles and the waiting are the runtime's. Here a handle gets its buffers, and an outcome becomes a
//! status with a line in the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyTuple};
use qaic_runtime::binding::BindingSpecs;
use qaic_runtime::context::Context;
use qaic_runtime::error::{ErrorDetail, InputError, RuntimeError};
use qaic_runtime::inference_set::{HandleId, InferenceSet};
use qaic_runtime::process::{CancellationToken, reaper};

use super::argument::{Refused, buffers};
use super::bound_buffers::BoundBuffers;
use super::context::RtContext;
use super::exec_obj::PyExecObj;
use super::inference_handle::{Announced, PyInferenceHandle};
use super::inference_vector::PyInferenceVector;
use super::numbers::whole;
use super::program::{place_program, program_options};
use super::qpc::RtQpc;
use super::queue;
use super::status::{Origin, QStatus, invalid, outcome, refusal, refusal_as, reply};
use super::{construction_reported, missing};
use crate::buffers::{Backing, ReleaseDropped, release_dropped};
use crate::gil::{Detach, Reaped, signal_pending};

const ORIGIN: Origin = Origin::InferenceSet;

/// An inference set and what its handles are bound to. Handles refer to it weakly.
pub(crate) struct SetCore {
    // Dropped before the set: they share its exec objects.
    places: Vec<Place>,
    set: Arc<InferenceSet>,
}

/// One handle's part of the set.
pub(crate) struct Place {
    bound: Arc<BoundBuffers>,
    announced: Mutex<Announced>,
    exec_obj: PyOnceLock<Py<PyExecObj>>,
    nothing: Arc<Backing>,
    // What an exec object keeps alive.
    parent: Py<RtContext>,
}

impl SetCore {
    pub(crate) fn set(&self) -> &Arc<InferenceSet> {
        &self.set
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    pub(crate) fn place(&self, handle: HandleId) -> Result<&Place, RuntimeError> {
        self.places.get(handle.0 as usize).ok_or_else(|| {
            RuntimeError::from(ErrorDetail::Internal { what: format!("handle {} has no place", handle.0) })
        })
    }

    fn submit(&self, handle: HandleId, id: u64) -> Result<(), RuntimeError> {
        let place = self.place(handle)?;
        place.announced().check()?;
        self.set.submit(handle, id)
    }
}

impl Place {
    pub(crate) fn bound(&self) -> &Arc<BoundBuffers> {
        &self.bound
    }

    /// Dims given apart from buffers. No Python code may run while it is locked.
    pub(crate) fn announced(&self) -> MutexGuard<'_, Announced> {
        // It is replaced as a whole, so a panic leaves nothing half done.
        self.announced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of no bytes.
    pub(crate) fn nothing(&self) -> &Arc<Backing> {
        &self.nothing
    }

    /// The exec object, the same one each time.
    pub(crate) fn exec_obj(&self, py: Python<'_>) -> PyResult<Py<PyExecObj>> {
        let make = || Py::new(py, PyExecObj::of(Arc::clone(&self.bound), self.parent.clone_ref(py)));
        self.exec_obj.get_or_try_init(py, make).map(|object| object.clone_ref(py))
    }
}

/// ``setSize * numActivations`` exec objects of a container, activated at once.
///
/// A handle goes from available to acquired (``getAvailable``), submitted (``submit``), completed (``getCompleted``,
/// ``getCompletedId``) and back to available (``putCompleted``).
#[pyclass(frozen, name = "InferenceSet", module = "qaicrt", weakref)]
pub(crate) struct PyQaicInferenceSet {
    core: Reaped<SetCore>,
    handles: Vec<Py<PyInferenceHandle>>,
    context: Arc<Context>,
    // Fields are dropped in order.
    _last: ReleaseDropped,
}

impl PyQaicInferenceSet {
    /// The runtime's set and what its handles are bound to.
    pub(crate) fn core(&self) -> &Arc<SetCore> {
        &self.core
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

#[pymethods]
impl PyQaicInferenceSet {
    /// Loads and activates `qpc` on device `dev`, or where `properties` say.
    ///
    /// Blocking, without the interpreter lock: reads and prepares the weights.
    #[new]
    #[pyo3(signature = (context, qpc, dev = None, setSize = 1, numActivations = 1, properties = None))]
    #[allow(non_snake_case)] // the names of the interface
    fn new(
        py: Python<'_>,
        context: Option<Bound<'_, RtContext>>,
        qpc: Option<Bound<'_, RtQpc>>,
        dev: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = whole)] setSize: i64,
        #[pyo3(from_py_with = whole)] numActivations: i64,
        properties: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        release_dropped(py);
        let object = ORIGIN.name();
        let context = context.ok_or_else(|| missing(py, object, "the context"))?;
        let qpc = qpc.ok_or_else(|| missing(py, object, "the container (qpc)"))?;
        let inner = Arc::clone(context.get().inner());
        let failed = |error| construction_reported(py, &inner, object, error);
        let image = qpc.get().image();
        let part = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
            let part = properties.map(|properties| properties.getattr(name)).transpose()?;
            Ok(part.filter(|part| !part.is_none()))
        };
        let (mut options, mapping) = program_options(part("programProperties")?.as_ref())?.map_err(failed)?;
        if let Some(queue) = part("queueProperties")? {
            options.threads_per_queue = queue::threads(&queue)?.map_err(failed)?;
        }
        let placed = place_program(py, context.get(), dev, &mapping, image)?.map_err(failed)?;
        let placement = placed.placement;
        // What is not a count is refused with the others that are too small.
        let count = |number: i64| u32::try_from(number).unwrap_or(if number < 0 { 0 } else { u32::MAX });
        let (size, activations) = (count(setSize), count(numActivations));
        let token = CancellationToken::new();
        options.load.token = token.clone();
        let make = || InferenceSet::new(&inner, image, &placement, size, activations, options.clone());
        let set = py.watched(&token, || Ok(reaper::when_free(make)))?.map_err(failed)?;
        let core = Arc::new(SetCore { places: places(&context, &set)?.map_err(failed)?, set });
        let weak = Arc::downgrade(&core);
        let numbers = 0..u32::try_from(core.places.len()).unwrap_or(u32::MAX);
        let handles = numbers
            .map(|number| Py::new(py, PyInferenceHandle::new(&weak, &inner, HandleId(number))))
            .collect::<PyResult<_>>()?;
        Ok(Self { core: Reaped::new(core), handles, context: inner, _last: ReleaseDropped })
    }

    /// (status, handle) of a free handle.
    ///
    /// Blocking, without the interpreter lock, while there is none.
    #[pyo3(name = "getAvailable")]
    fn available<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let core = self.core();
        let handle = match core.set.try_acquire() {
            Some(handle) => Ok(handle),
            None => outcome(py, || core.set.acquire(None, signal_pending))?,
        };
        match handle {
            Ok(handle) => {
                core.place(handle).map(|place| place.announced().clear()).ok();
                self.answer(py, handle, Ok(()))
            }
            Err(error) => self.refuse(py, &error),
        }
    }

    /// Starts an inference on the buffers of a handle, or of a vector, which takes a free handle by itself.
    ///
    /// Blocking, without the interpreter lock, while no handle is free for a vector.
    fn submit(
        &self,
        py: Python<'_>,
        what: &Bound<'_, PyAny>,
        #[allow(non_snake_case)] infId: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        release_dropped(py);
        let Some(id) = inference_id(infId)? else {
            let why = format!("inference id {infId} is not a number from 0 to 2^64 - 1");
            return invalid(py, &self.context, ORIGIN, &why);
        };
        if let Ok(vector) = what.cast::<PyInferenceVector>() {
            return self.submit_vector(py, vector.get(), id);
        }
        if let Ok(handle) = what.cast::<PyInferenceHandle>() {
            let core = self.core();
            let Some(number) = handle.get().number_in(core) else {
                return self.foreign(py);
            };
            return match core.submit(number, id) {
                Ok(()) => QStatus::Success.member(py),
                Err(error) => self.refuse_submission(py, error.into()),
            };
        }
        let found = what.get_type();
        Err(PyTypeError::new_err(format!(
            "submit takes an InferenceHandle or an InferenceVector, not {}",
            found.name()?
        )))
    }

    /// (status, handle) of the next completed inference; the status is how it ended.
    ///
    /// Blocking, without the interpreter lock, until one is complete.
    #[pyo3(name = "getCompleted")]
    fn completed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let core = self.core();
        match outcome(py, || core.set.get_completed(None, signal_pending))? {
            Ok(handle) => self.answer(py, handle, core.set.outcome(handle)),
            Err(error) => self.refuse(py, &error),
        }
    }

    /// (status, handle) of the inference with this id; the status is how it ended.
    ///
    /// Blocking, without the interpreter lock, until it is complete.
    #[pyo3(name = "getCompletedId")]
    fn completed_id<'py>(
        &self,
        py: Python<'py>,
        #[allow(non_snake_case)] infId: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let core = self.core();
        let found = match inference_id(infId)? {
            Some(id) => outcome(py, || core.set.get_completed_id(id, None, signal_pending))?,
            None => Err(RuntimeError::from(ErrorDetail::Input(InputError::Argument {
                what: format!("no inference has the id {infId}"),
            }))),
        };
        match found {
            Ok(handle) => self.answer(py, handle, core.set.outcome(handle)),
            Err(error) => self.refuse(py, &error),
        }
    }

    /// Makes a handle available again.
    #[pyo3(name = "putCompleted")]
    fn put_completed(&self, py: Python<'_>, handle: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let Ok(handle) = handle.cast::<PyInferenceHandle>() else {
            if handle.is_none() {
                return invalid(py, &self.context, ORIGIN, "putCompleted was given no handle");
            }
            let found = handle.get_type();
            return Err(PyTypeError::new_err(format!(
                "putCompleted takes an InferenceHandle, not {}",
                found.name()?
            )));
        };
        let core = self.core();
        let Some(number) = handle.get().number_in(core) else { return self.foreign(py) };
        match core.set.put_completed(number) {
            Ok(()) => QStatus::Success.member(py),
            Err(error) => self.refuse_submission(py, error.into()),
        }
    }

    /// Waits until every submitted inference has ended. The status is how they did: that of a failed one if there is one
    /// among those not collected.
    ///
    /// Blocking, without the interpreter lock.
    #[pyo3(name = "waitForCompletion")]
    fn wait_for_completion(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let core = self.core();
        let waited = outcome(py, || {
            core.set.wait_for_completion(signal_pending)?;
            core.set.check_completed()
        })?;
        reply(py, &self.context, ORIGIN, waited)
    }

    /// The context it was made with.
    fn _context(&self, py: Python<'_>) -> Option<Py<RtContext>> {
        self.core().places().first().map(|place| place.parent.clone_ref(py))
    }

    fn __repr__(&self) -> String {
        format!("InferenceSet({} handles)", self.handles.len())
    }
}

impl PyQaicInferenceSet {
    fn submit_vector(&self, py: Python<'_>, vector: &PyInferenceVector, id: u64) -> PyResult<Py<PyAny>> {
        let core = self.core();
        // Before a handle is taken, so that nothing has to be given back.
        let backings = match buffers(vector.buffers(py))? {
            Ok(backings) => backings,
            Err(refused) => return self.refuse_submission(py, refused),
        };
        let handle = match core.set.try_acquire() {
            Some(handle) => Ok(handle),
            None => outcome(py, || core.set.acquire(None, signal_pending))?,
        };
        let started = handle.and_then(|handle| {
            let place = core.place(handle)?;
            place.announced().clear();
            let outcome = place.bound.replace_all(&backings, None);
            outcome.and_then(|()| core.submit(handle, id)).inspect_err(|_| {
                // It was acquired here, so it can be put back.
                let _ = core.set.put_completed(handle);
            })
        });
        match started {
            Ok(()) => QStatus::Success.member(py),
            Err(error) => self.refuse_submission(py, error.into()),
        }
    }

    /// (status, handle).
    fn answer<'py>(
        &self,
        py: Python<'py>,
        handle: HandleId,
        ended: Result<(), RuntimeError>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let status = reply(py, &self.context, ORIGIN, ended)?;
        let handle = self.handles.get(handle.0 as usize).map(|handle| handle.clone_ref(py));
        (status, handle).into_pyobject(py)
    }

    /// (status, `None`).
    fn refuse<'py>(&self, py: Python<'py>, error: &RuntimeError) -> PyResult<Bound<'py, PyTuple>> {
        (refusal(py, &self.context, ORIGIN, error)?, py.None()).into_pyobject(py)
    }

    /// The status of a handle that cannot be used so: its inference under way is the caller's mistake here.
    fn refuse_submission(&self, py: Python<'_>, refused: Refused) -> PyResult<Py<PyAny>> {
        let Refused { status, error } = refused;
        let status = if status == QStatus::Busy { QStatus::Inval } else { status };
        refusal_as(py, &self.context, ORIGIN, status, &error)
    }

    fn foreign(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let why = "the handle belongs to another inference set; use it with its own";
        invalid(py, &self.context, ORIGIN, why)
    }
}

/// Places of all handles, bound to nothing.
fn places(
    context: &Bound<'_, RtContext>,
    set: &Arc<InferenceSet>,
) -> PyResult<Result<Vec<Place>, RuntimeError>> {
    let nothing = Backing::zeroed(context.py(), 0)?;
    let specs = set.programs().iter().map(|program| BindingSpecs::of_buffers(program).map(Arc::new));
    let specs = match specs.collect::<Result<Vec<_>, _>>() {
        Ok(specs) => specs,
        Err(error) => return Ok(Err(error)),
    };
    let place = |number| {
        let number = HandleId(number);
        let exec = Arc::clone(set.exec_obj(number)?);
        exec.set_id(number.0);
        let specs = specs.get(set.activation_of(number) as usize).ok_or_else(|| ErrorDetail::Internal {
            what: format!("handle {} has no activation", number.0),
        })?;
        Ok(Place {
            bound: Arc::new(BoundBuffers::new(exec, Arc::clone(specs))),
            announced: Mutex::default(),
            exec_obj: PyOnceLock::new(),
            nothing: Arc::clone(&nothing),
            parent: context.clone().unbind(),
        })
    };
    Ok((0..u32::try_from(set.handle_count()).unwrap_or(u32::MAX)).map(place).collect())
}

/// A caller's id; `None` when it is a number beyond those that can be distinguished.
fn inference_id(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    match value.extract::<u64>() {
        Ok(id) => Ok(Some(id)),
        Err(_) if value.is_instance_of::<PyInt>() => Ok(None),
        // A numpy integer says what it is by itself.
        Err(error) => match value.call_method0("__index__") {
            Ok(number) => inference_id(&number),
            Err(_) => Err(error),
        },
    }
}
