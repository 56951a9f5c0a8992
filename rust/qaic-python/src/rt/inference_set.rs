//! `qaicrt.InferenceSet`: many inferences in flight, collected by id or in order of completion.
//!
//! The runtime implements handle states and waits. This module binds buffers to handles, and converts outcomes to
//! statuses and log lines.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyList, PyTuple};
use qaic_qpc::counted;
use qaic_runtime::inference_set::{HandleId, InferenceSet};
use qaic_runtime::process::{CancellationToken, FailureSource, reaper};
use qaic_runtime::request::BoundSet;
use qaic_runtime::{Context, Deadline};

use super::argument::{self, buffers, list_of};
use super::context::RtContext;
use super::exec_obj::PyExecObj;
use super::inference_handle::PyInferenceHandle;
use super::inference_vector::PyInferenceVector;
use super::numbers::whole;
use super::program::{place_program, program_options};
use super::qpc::RtQpc;
use super::queue;
use super::status::{Answer, Refusal, outcome, refused, reply, reply_with, waited};
use super::{construction_reported, missing};
use crate::buffers::{ReleaseDropped, release_dropped};
use crate::errors::from_runtime;
use crate::gil::{Detach, Reaped};

const SOURCE: FailureSource = FailureSource::InferenceSet;

/// An inference set, the buffers of its handles, and their exec objects in Python. Handles refer to it weakly.
pub(crate) struct SetCore {
    // Indexed by handle. Dropped before the set that they belong to.
    exec_objs: Vec<PyOnceLock<Py<PyExecObj>>>,
    pub(crate) set: BoundSet,
    // Kept alive by each exec object.
    parent: Py<RtContext>,
}

impl SetCore {
    /// Creates a set whose handles are bound to `given`, one list of buffers per handle, or unbound.
    fn new(
        context: &Bound<'_, RtContext>,
        set: Arc<InferenceSet>,
        given: Option<&Bound<'_, PyAny>>,
    ) -> Answer<Self> {
        let set = BoundSet::new(set)?;
        if let Some(given) = given {
            bind_each(&set, &list_of(given)?)?;
        }
        let exec_objs = (0..set.set.handle_count()).map(|_| PyOnceLock::new()).collect();
        Ok(Self { exec_objs, set, parent: context.clone().unbind() })
    }

    pub(crate) fn set(&self) -> &Arc<InferenceSet> {
        &self.set.set
    }

    /// Returns the exec object of a handle, the same one at each call.
    pub(crate) fn exec_obj(&self, py: Python<'_>, handle: HandleId) -> PyResult<Py<PyExecObj>> {
        let bound = self.set.bound(handle).map_err(|error| from_runtime(py, error))?;
        let make = || Py::new(py, PyExecObj::of(Arc::clone(bound), self.parent.clone_ref(py)));
        // The vector has one entry per handle.
        let object = self.exec_objs[handle.0 as usize].get_or_try_init(py, make)?;
        Ok(object.clone_ref(py))
    }
}

/// ``setSize * numActivations`` exec objects of a container, which is activated at construction.
///
/// A handle goes from available to acquired (``getAvailable``), submitted (``submit``), completed (``getCompleted``,
/// ``getCompletedId``) and back to available (``putCompleted``).
#[pyclass(frozen, name = "InferenceSet", module = "qaicrt", weakref)]
pub(crate) struct PyQaicInferenceSet {
    core: Reaped<SetCore>,
    handles: Vec<Py<PyInferenceHandle>>,
    pub(crate) context: Arc<Context>,
    name: String,
    id: i64,
    // Fields are dropped in order.
    _last: ReleaseDropped,
}

impl PyQaicInferenceSet {
    pub(crate) fn core(&self) -> &Arc<SetCore> {
        &self.core
    }
}

#[pymethods]
impl PyQaicInferenceSet {
    /// Loads and activates `qpc` on device `devId`, or on the devices in `properties`.
    ///
    /// `numActivations` is followed by `properties` and `enableProfiling`, or by `infDataVectorDmaBuf`, `properties`
    /// and `enableProfiling`. `infDataVectorDmaBuf` contains a list of buffers, one per binding, for each of the
    /// `setSize * numActivations` handles, which are bound to them. Every set can be profiled, so `enableProfiling`
    /// has no effect.
    ///
    /// Blocking, without the interpreter lock: reads and prepares the weights.
    #[new]
    #[pyo3(
        signature = (
            context, qpc, devId = None, setSize = 1, numActivations = 1, *arguments,
            infDataVectorDmaBuf = None, properties = None, enableProfiling = None
        ),
        text_signature = "(context, qpc, devId=None, setSize=1, numActivations=1, *arguments, infDataVectorDmaBuf=None, \
                          properties=None, enableProfiling=None)"
    )]
    #[allow(non_snake_case)] // the vendor's names
    #[allow(clippy::too_many_arguments)] // the vendor's arguments
    fn new(
        py: Python<'_>,
        context: Option<Bound<'_, RtContext>>,
        qpc: Option<Bound<'_, RtQpc>>,
        devId: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = whole)] setSize: i64,
        #[pyo3(from_py_with = whole)] numActivations: i64,
        arguments: &Bound<'_, PyTuple>,
        infDataVectorDmaBuf: Option<Bound<'_, PyAny>>,
        properties: Option<Bound<'_, PyAny>>,
        enableProfiling: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        release_dropped(py);
        let further = Further { buffers: infDataVectorDmaBuf, properties, profiling: enableProfiling };
        let Further { buffers, properties, .. } = further.with_positional(arguments)?;
        let properties = properties.as_ref();
        let object = SOURCE.name();
        let context = context.ok_or_else(|| missing(py, object, "the context"))?;
        let qpc = qpc.ok_or_else(|| missing(py, object, "the container (qpc)"))?;
        let inner = Arc::clone(&context.get().context);
        let failed = |refusal| construction_reported(py, &inner, SOURCE, refusal);
        let image = &qpc.get().image;
        let part = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
            let part = properties.map(|properties| properties.getattr_opt(name)).transpose()?;
            Ok(part.flatten().filter(|part| !part.is_none()))
        };
        let (mut options, mapping) = program_options(part("programProperties")?.as_ref()).map_err(failed)?;
        if let Some(queue) = part("queueProperties")? {
            options.threads_per_queue = queue::threads(&queue).map_err(failed)?;
        }
        let placed = place_program(py, context.get(), devId, &mapping, image).map_err(failed)?;
        let placement = placed.placement;
        // A negative count becomes 0, which is refused as too small.
        let count = |number: i64| u32::try_from(number).unwrap_or(if number < 0 { 0 } else { u32::MAX });
        let (size, activations) = (count(setSize), count(numActivations));
        let token = CancellationToken::default();
        options.load.token = token.clone();
        let make = || InferenceSet::new(&inner, image, &placement, size, activations, options.clone());
        let set =
            py.watched(&token, || Ok(reaper::when_free(make)))?.map_err(|error| failed(error.into()))?;
        let core = Arc::new(SetCore::new(&context, set, buffers.as_ref()).map_err(failed)?);
        let weak = Arc::downgrade(&core);
        let numbers = 0..u32::try_from(core.exec_objs.len()).unwrap_or(u32::MAX);
        let handles = numbers
            .map(|number| Py::new(py, PyInferenceHandle::new(&weak, &inner, HandleId(number))))
            .collect::<PyResult<_>>()?;
        let name = part("name")?.map_or_else(|| Ok(String::new()), |name| name.extract())?;
        let id = part("id")?.map_or(Ok(0), |id| whole(&id))?;
        Ok(Self { core: Reaped::new(core), handles, context: inner, name, id, _last: ReleaseDropped })
    }

    /// (status, handle) of a free handle; ``QS_TIMEDOUT`` if none becomes free within `timeoutUs` microseconds. 0
    /// means no limit.
    ///
    /// Blocking, without the interpreter lock, until a handle is free.
    #[pyo3(name = "getAvailable", signature = (timeoutUs = 0))]
    fn available<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = whole)]
        #[allow(non_snake_case)]
        timeoutUs: i64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let limit = match u64::try_from(timeoutUs) {
            Ok(0) => Ok(None),
            Ok(limit) => Ok(Deadline::after(Duration::from_micros(limit))),
            Err(_) => Err(refused(format!(
                "timeoutUs is {timeoutUs}; a number of microseconds is expected, 0 for no limit"
            ))),
        };
        let handle =
            limit.map_err(Refusal::from).and_then(|limit| self.acquire(py, limit)).and_then(|handle| {
                self.core.set.renew(handle)?;
                Ok(handle)
            });
        self.answer(py, handle)
    }

    /// Starts an inference on the buffers of a handle, or of a vector, for which a free handle is acquired.
    ///
    /// Without the interpreter lock. With a vector, blocking until a handle is free.
    #[pyo3(signature = (what, infId = Ok(0)), text_signature = "($self, what, infId=0)")]
    fn submit(
        &self,
        py: Python<'_>,
        what: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = given_id)]
        #[allow(non_snake_case)]
        infId: Result<u64, String>,
    ) -> PyResult<Py<PyAny>> {
        release_dropped(py);
        let id = match infId {
            Ok(id) => id,
            Err(given) => {
                let why = format!("inference id {given} is not a number from 0 to 2^64 - 1");
                return self.reply(py, Err(refused(why).into()));
            }
        };
        if let Ok(vector) = what.cast::<PyInferenceVector>() {
            return self.reply(py, self.submit_vector(py, vector.get(), id));
        }
        if let Ok(handle) = what.cast::<PyInferenceHandle>() {
            let submit = |number| outcome(py, |detached| self.core.set.submit(number, id, detached));
            return self.reply(py, self.number_of(handle.get()).and_then(submit));
        }
        let found = what.get_type();
        Err(PyTypeError::new_err(format!(
            "submit takes an InferenceHandle or an InferenceVector, not {}",
            found.name()?
        )))
    }

    /// (status, handle) of the next completed inference, with the status of the inference.
    ///
    /// Blocking, without the interpreter lock, until an inference is completed.
    #[pyo3(name = "getCompleted")]
    fn completed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let set = self.core.set();
        let ended = || waited(py, None, |scope| set.get_completed(scope));
        self.collected(py, set.try_get_completed().map_or_else(ended, Ok))
    }

    /// (status, handle) of the inference with this id, with the status of the inference.
    ///
    /// Blocking, without the interpreter lock, until the inference is completed.
    #[pyo3(name = "getCompletedId")]
    fn completed_id<'py>(
        &self,
        py: Python<'py>,
        #[allow(non_snake_case)] infId: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let set = self.core.set();
        let found = match inference_id(infId)? {
            // A check costs less than the release of the interpreter lock.
            Some(id) => {
                let ended = || waited(py, None, |scope| set.get_completed_id(id, scope));
                set.try_get_completed_id(id).map_or_else(ended, Ok)
            }
            None => Err(refused(format!("no inference has the id {infId}")).into()),
        };
        self.collected(py, found)
    }

    /// Makes a handle available again.
    #[pyo3(name = "putCompleted")]
    fn put_completed(&self, py: Python<'_>, handle: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let Ok(handle) = handle.cast::<PyInferenceHandle>() else {
            if handle.is_none() {
                return self.reply(py, Err(refused("putCompleted was given no handle").into()));
            }
            let found = handle.get_type();
            return Err(PyTypeError::new_err(format!(
                "putCompleted takes an InferenceHandle, not {}",
                found.name()?
            )));
        };
        let put_back = |number| Ok(self.core.set().put_completed(number)?);
        self.reply(py, self.number_of(handle.get()).and_then(put_back))
    }

    /// Waits until every submitted inference has ended. If an inference that was not collected failed, returns its
    /// status.
    ///
    /// Blocking, without the interpreter lock.
    #[pyo3(name = "waitForCompletion")]
    fn wait_for_completion(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let ended = waited(py, None, |scope| {
            self.core.set().wait_for_completion(scope)?;
            self.core.set().check_completed()
        });
        self.reply(py, ended)
    }

    /// Name from the properties.
    #[pyo3(name = "getName")]
    fn name(&self) -> &str {
        &self.name
    }

    /// Id from the properties.
    #[pyo3(name = "getId")]
    fn id(&self) -> i64 {
        self.id
    }

    /// The context of the constructor.
    fn _context(&self, py: Python<'_>) -> Py<RtContext> {
        self.core.parent.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        format!("InferenceSet({} handles)", self.handles.len())
    }
}

impl PyQaicInferenceSet {
    fn acquire(&self, py: Python<'_>, limit: Option<Deadline>) -> Answer<HandleId> {
        let set = self.core.set();
        set.try_acquire().map_or_else(|| waited(py, limit, |scope| set.acquire(scope)), Ok)
    }

    fn submit_vector(&self, py: Python<'_>, vector: &PyInferenceVector, id: u64) -> Answer {
        let (core, list) = (self.core(), vector.buffers(py));
        let (handle, given) = if let Some(handle) = core.set().try_acquire() {
            (handle, None)
        } else {
            // Invalid buffers are refused before the wait, and other threads may change the list during the wait.
            let given = buffers(list)?;
            (self.acquire(py, None)?, Some(given))
        };
        let is_same = |index, bound: &_| argument::is_buffer(list, index, bound);
        let buffers = || given.map_or_else(|| buffers(list), Ok);
        core.set.bind_acquired(handle, list.len(), is_same, buffers)?;
        outcome(py, |detached| core.set.submit_acquired(handle, id, detached))
    }

    fn number_of(&self, handle: &PyInferenceHandle) -> Answer<HandleId> {
        let why = "the handle belongs to another inference set; use it with that set";
        Ok(handle.number_in(&self.core).ok_or_else(|| refused(why))?)
    }

    fn reply(&self, py: Python<'_>, answer: Answer) -> PyResult<Py<PyAny>> {
        reply(py, &self.context, SOURCE, answer)
    }

    /// (status, handle), or (status, `None`).
    fn answer<'py>(&self, py: Python<'py>, handle: Answer<HandleId>) -> PyResult<Bound<'py, PyTuple>> {
        reply_with(py, &self.context, SOURCE, handle.map(|handle| self.handles.get(handle.0 as usize)))
    }

    /// (status of the inference, handle) of a collected handle.
    fn collected<'py>(&self, py: Python<'py>, handle: Answer<HandleId>) -> PyResult<Bound<'py, PyTuple>> {
        match handle {
            Ok(handle) => {
                let ended = self.core.set().exec_obj(handle).and_then(|exec| exec.outcome());
                let status = reply(py, &self.context, SOURCE, ended.map_err(Refusal::from))?;
                (status, self.handles.get(handle.0 as usize)).into_pyobject(py)
            }
            refused => self.answer(py, refused),
        }
    }
}

/// Constructor arguments after the counts.
struct Further<'py> {
    buffers: Option<Bound<'py, PyAny>>,
    properties: Option<Bound<'py, PyAny>>,
    profiling: Option<Bound<'py, PyAny>>,
}

impl<'py> Further<'py> {
    /// Adds positional arguments. In one of the two documented forms, the first one is the list of buffers.
    fn with_positional(mut self, arguments: &Bound<'py, PyTuple>) -> PyResult<Self> {
        let has_buffers = arguments.get_item(0).is_ok_and(|first| first.is_instance_of::<PyList>());
        for (place, argument) in (usize::from(!has_buffers)..).zip(arguments) {
            let (name, place) = match place {
                0 => ("infDataVectorDmaBuf", &mut self.buffers),
                1 => ("properties", &mut self.properties),
                2 => ("enableProfiling", &mut self.profiling),
                _ => {
                    let (most, given) = (7 + usize::from(has_buffers), 5 + arguments.len());
                    return Err(PyTypeError::new_err(format!(
                        "InferenceSet takes at most {most} positional arguments, found {given}"
                    )));
                }
            };
            if place.replace(argument).is_some() {
                return Err(PyTypeError::new_err(format!("InferenceSet was given {name} twice")));
            }
        }
        if let Some(profiling) = &self.profiling {
            profiling.extract::<bool>().map_err(|_| {
                let found = argument::type_name(profiling);
                PyTypeError::new_err(format!("enableProfiling has type {found}; True or False is expected"))
            })?;
        }
        for part in [&mut self.buffers, &mut self.properties] {
            part.take_if(|part| part.is_none());
        }
        Ok(self)
    }
}

/// Binds each handle to its list of buffers.
fn bind_each(set: &BoundSet, lists: &Bound<'_, PyList>) -> Answer {
    let (given, count) = (lists.len(), set.set.handle_count());
    if given != count {
        let why = format!(
            "infDataVectorDmaBuf has {} of buffers, expected {count}, one for each of the setSize * numActivations \
             inferences",
            counted(given, "list")
        );
        return Err(refused(why).into());
    }
    for (number, list) in (0..).zip(lists) {
        set.bound(HandleId(number))?.replace_all(&buffers(&list_of(&list)?)?, None)?;
    }
    Ok(())
}

/// Reads a caller's id; the text of the number if it is out of range.
fn given_id(value: &Bound<'_, PyAny>) -> PyResult<Result<u64, String>> {
    Ok(inference_id(value)?.ok_or_else(|| value.to_string()))
}

/// Reads a caller's id; `None` if it is out of range.
fn inference_id(value: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    match value.extract::<u64>() {
        Ok(id) => Ok(Some(id)),
        Err(_) if value.is_instance_of::<PyInt>() => Ok(None),
        // A numpy integer raises another message.
        Err(error) => match value.call_method0("__index__") {
            Ok(number) => inference_id(&number),
            Err(_) => Err(error),
        },
    }
}
