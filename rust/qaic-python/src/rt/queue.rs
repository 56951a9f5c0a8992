//! `qaicrt.Queue`: starts inferences.
//!
//! Threads belong to programs, so that their inferences keep their order whichever queue they come through. A queue checks
//! that the device is its own, and its properties say how many threads a program that goes through it has: with several
//! queues, the last one that was used.

use std::sync::Arc;

use pyo3::prelude::*;
use qaic_runtime::process::failure::Origin;
use qaic_runtime::{Context, DeviceId, RuntimeError};

use super::context::RtContext;
use super::exec_obj::PyExecObj;
use super::numbers::{property, whole};
use super::program::{place, write_defaults};
use super::status::{Answer, Refusal, outcome, refused, reply};
use super::{construction_reported, missing};

/// Starts inferences on a device.
#[pyclass(frozen, name = "Queue", module = "qaicrt", weakref)]
pub(crate) struct PyQueue {
    context: Arc<Context>,
    device: DeviceId,
    // As its properties say; else the threads are what the program was made with.
    threads: Option<u32>,
    _parent: Py<RtContext>,
}

const QUEUE_PROPERTIES: &[&str] = &["properties", "numThreadsPerQueue"];

#[pymethods]
impl PyQueue {
    /// A queue of device `dev`, which is the first one of the context when it is left out. A program whose devices were
    /// chosen goes through any queue; so a device that ``QAIC_VISIBLE_DEVICES`` hides may have one.
    #[new]
    #[pyo3(signature = (context, dev = None, properties = None))]
    fn new(
        py: Python<'_>,
        context: Option<Bound<'_, RtContext>>,
        dev: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let context = context.ok_or_else(|| missing(py, "Queue", "the context"))?;
        let runtime = context.get().inner();
        let failed = |refusal| construction_reported(py, runtime, Origin::Queue, refusal);
        let hidden = dev.and_then(|dev| dev.extract().ok().map(DeviceId)).filter(|id| runtime.hides(*id));
        let device = if let Some(hidden) = hidden {
            // Clients that name no device for a program make a queue of device 0 for it, wherever the program goes.
            hidden
        } else {
            let placement = place(context.get(), dev, "").map_err(failed)?;
            placement.devices.first().copied().unwrap_or(DeviceId(0))
        };
        let threads = properties.map(threads).transpose().map_err(failed)?;
        Ok(Self { context: Arc::clone(runtime), device, threads, _parent: context.unbind() })
    }

    /// Starts the inference of `execObj` and returns. `QS_BUSY` while an earlier one is under way.
    ///
    /// Without the interpreter lock.
    #[pyo3(signature = (execObj))]
    #[allow(non_snake_case)] // the names of the interface
    fn enqueue(&self, py: Python<'_>, execObj: Option<&Bound<'_, PyExecObj>>) -> PyResult<Py<PyAny>> {
        let started = match execObj.map(Bound::get) {
            Some(object) => outcome(py, || self.start(object)).map_err(Refusal::busy_in_flight),
            None => Err(refused("the exec object is None").into()),
        };
        reply(py, &self.context, Origin::Queue, started)
    }

    /// Writes the default values into ``props``.
    #[staticmethod]
    #[pyo3(name = "initProperties", signature = (props = None))]
    fn init_properties(py: Python<'_>, props: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        write_defaults(py, props, "QAicQueueProperties", QUEUE_PROPERTIES)
    }

    fn __repr__(&self) -> String {
        format!("Queue(device {})", self.device.0)
    }
}

impl PyQueue {
    fn start(&self, object: &PyExecObj) -> Result<(), RuntimeError> {
        let exec = object.exec();
        let placement = exec.program().placement();
        if !object.is_placed_freely() && !placement.devices.contains(&self.device) {
            return Err(refused(format!(
                "the exec object's program is on device {placement}, this queue is of device {}",
                self.device.0
            )));
        }
        if let Some(threads) = self.threads {
            exec.program().allow_threads(threads);
        }
        exec.enqueue()
    }
}

/// Threads that `QAicQueueProperties` ask for.
pub(crate) fn threads(properties: &Bound<'_, PyAny>) -> Answer<u32> {
    let threads = property(properties, "numThreadsPerQueue", 1..=u32::MAX)?;
    let mode = properties.getattr("properties")?;
    match whole(&mode)? {
        0 => Ok(1),
        1 => Ok(threads),
        _ => {
            Err(refused(format!("properties are {mode}; 0 (one thread) and 1 (several) have a meaning"))
                .into())
        }
    }
}
