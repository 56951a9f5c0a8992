//! `qaicrt.Queue`: starts inferences.

use std::sync::Arc;

use pyo3::prelude::*;
use qaic_runtime::process::FailureSource;
use qaic_runtime::{Context, Queue};

use super::context::RtContext;
use super::exec_obj::PyExecObj;
use super::numbers::{property, whole};
use super::program::{device, write_defaults};
use super::status::{Answer, Refusal, outcome, refused, reply};
use super::{construction_reported, missing};

/// Starts inferences on a device.
#[pyclass(frozen, name = "Queue", module = "qaicrt", weakref)]
pub(crate) struct PyQueue {
    context: Arc<Context>,
    queue: Queue,
    _parent: Py<RtContext>,
}

const QUEUE_PROPERTIES: &[&str] = &["properties", "numThreadsPerQueue"];

#[pymethods]
impl PyQueue {
    /// Creates a queue of device `dev`; by default, of the first device of the context. A program whose devices were
    /// selected accepts any queue, so a device that ``QAIC_VISIBLE_DEVICES`` hides can have a queue too.
    #[new]
    #[pyo3(signature = (context, dev = None, properties = None))]
    fn new(
        py: Python<'_>,
        context: Option<Bound<'_, RtContext>>,
        dev: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let context = context.ok_or_else(|| missing(py, "Queue", "the context"))?;
        let runtime = &context.get().context;
        let failed = |refusal| construction_reported(py, runtime, FailureSource::Queue, refusal);
        let candidates = &context.get().devices;
        let make = || -> Answer<Queue> {
            let device = dev.map(|dev| device(candidates, dev)).transpose()?;
            let mut queue = Queue::new(runtime, candidates, device)?;
            queue.threads = properties.map(threads).transpose()?;
            Ok(queue)
        };
        let queue = make().map_err(failed)?;
        Ok(Self { context: Arc::clone(runtime), queue, _parent: context.unbind() })
    }

    /// Starts the inference of `execObj` and returns. Returns `QS_BUSY` while an earlier inference is in flight.
    ///
    /// Without the interpreter lock.
    #[pyo3(signature = (execObj))]
    #[allow(non_snake_case)] // the vendor's names
    fn enqueue(&self, py: Python<'_>, execObj: Option<&Bound<'_, PyExecObj>>) -> PyResult<Py<PyAny>> {
        let started = match execObj.map(Bound::get) {
            Some(object) => outcome(py, |detached| self.queue.enqueue(object.exec(), detached))
                .map_err(Refusal::busy_in_flight),
            None => Err(refused("the exec object is None").into()),
        };
        reply(py, &self.context, FailureSource::Queue, started)
    }

    /// Writes the default values into ``props``.
    #[staticmethod]
    #[pyo3(name = "initProperties", signature = (props = None))]
    fn init_properties(py: Python<'_>, props: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        write_defaults(py, props, "QAicQueueProperties", QUEUE_PROPERTIES)
    }

    fn __repr__(&self) -> String {
        format!("Queue(device {})", self.queue.device.0)
    }
}

/// Reads the number of threads from `QAicQueueProperties`.
pub(crate) fn threads(properties: &Bound<'_, PyAny>) -> Answer<u32> {
    let threads = property(properties, "numThreadsPerQueue", 1..=u32::MAX)?;
    let mode = properties.getattr("properties")?;
    match whole(&mode)? {
        0 => Ok(1),
        1 => Ok(threads),
        _ => {
            Err(refused(format!("properties are {mode}; 0 (one thread) or 1 (several threads) is expected"))
                .into())
        }
    }
}
