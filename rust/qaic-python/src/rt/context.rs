//! `qaicrt.Context`: devices, log and error handler of a client.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyTuple};
use qaic_runtime::process::FailureSource;
use qaic_runtime::process::log::Level;
use qaic_runtime::{Context, DeviceId, QStatus};

use super::callback_channel::RtChannel;
use super::construction_failed_by;
use super::numbers::whole;
use super::qpc::RtQpc;
use super::status::{Answer, member, outcome, refuse, refused, reply};
use crate::context::open_context;

/// Device id for no device.
const NO_DEVICE: i32 = -1;

/// Devices that a client selected in this process.
#[pyclass(frozen, name = "Context", module = "qaicrt", weakref)]
pub(crate) struct RtContext {
    pub(crate) context: Arc<Context>,
    /// The selected devices, in the caller's order; never empty.
    pub(crate) devices: Vec<DeviceId>,
    // Runs callbacks; set by the first callback.
    dispatcher: PyOnceLock<(Py<RtChannel>, Py<PyAny>)>,
}

impl RtContext {
    fn channel(&self, py: Python<'_>) -> PyResult<&(Py<RtChannel>, Py<PyAny>)> {
        self.dispatcher.get_or_try_init(py, || {
            let channel = Py::new(py, RtChannel::new(&self.context))?;
            let class = py.import("qaic.rt.dispatch")?.getattr("Dispatcher")?;
            let dispatcher = class.call1((&channel,))?.unbind();
            Ok((channel, dispatcher))
        })
    }

    /// Sends log lines and failures to callbacks. A callback that refers to the context keeps it alive permanently:
    /// an object may log late, and its callback must still exist then.
    fn set_callbacks(
        &self,
        py: Python<'_>,
        log: Option<Py<PyAny>>,
        error: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        for (name, callback) in [("logCallback", &log), ("errorHandler", &error)] {
            if let Some(callback) = callback
                && !callback.bind(py).is_callable()
            {
                let found = callback.bind(py).get_type().name()?;
                return Err(PyTypeError::new_err(format!("{name} has type {found}; a callable is expected")));
            }
        }
        if log.is_some() || error.is_some() {
            let (channel, dispatcher) = self.channel(py)?;
            let sink = channel.get().sink(self.context.id, log, error);
            dispatcher.call_method0(py, "start")?;
            self.context.logger.set_sink(Some(Arc::new(sink)));
        }
        Ok(())
    }
}

#[pymethods]
impl RtContext {
    #[new]
    #[pyo3(signature = (devList = None, properties = None, logCallback = None, errorHandler = None))]
    #[allow(non_snake_case)] // the vendor's names
    fn new(
        py: Python<'_>,
        devList: Option<Bound<'_, PyAny>>,
        properties: Option<Bound<'_, PyAny>>,
        logCallback: Option<Py<PyAny>>,
        errorHandler: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        // C++ clients pass the properties, a bit mask, as the first argument.
        let (devices, properties) = match devList {
            Some(first) if first.is_instance_of::<PyInt>() => (properties, Some(first)),
            devices => (devices, properties),
        };
        let mask = properties.map_or(Ok(0), |properties| properties.extract::<u32>())?;
        let context = open_context(py).map_err(|error| construction_failed_by(py, "Context", error))?;
        let listed = devices.map(|list| list.try_iter()).transpose()?.into_iter().flatten();
        let chosen = context.select(listed.map(|id| device_id(&id?)));
        let devices = chosen.map_err(|refusal| refusal.of_construction(py, FailureSource::Context.name()))?;
        let this = Self { context, devices, dispatcher: PyOnceLock::new() };
        this.set_callbacks(py, logCallback, errorHandler)?;
        if mask != 0 {
            let logger = &this.context.logger;
            logger.error(|| format!("Context: the properties are {mask:#x}; 0 is expected"));
        }
        Ok(this)
    }

    /// Sets the lowest level that is logged.
    #[pyo3(name = "setLogLevel")]
    fn set_log_level(&self, py: Python<'_>, level: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let code = whole(level)?;
        let level = u8::try_from(code).ok().and_then(Level::from_code);
        let level = level.ok_or_else(|| refused(format!("log level {code} does not exist")).into());
        let set = level.map(|level| self.context.logger.set_level(level));
        reply(py, &self.context, FailureSource::Context, set)
    }

    /// (status, level).
    #[pyo3(name = "getLogLevel")]
    fn log_level<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let level = self.context.logger.level() as u8;
        let level = py.import("qaic.rt.enums")?.getattr("QLogLevel")?.call1((level,))?;
        (member(py, QStatus::Success)?, level).into_pyobject(py)
    }

    /// (status, id) of the first device of the context with enough free cores for one activation of the container's
    /// program; -1 if there is none.
    #[pyo3(name = "findDevice")]
    #[allow(non_snake_case)]
    fn find_device<'py>(&self, py: Python<'py>, qpcObj: &RtQpc) -> PyResult<Bound<'py, PyTuple>> {
        match outcome(py, |_| self.context.find_free(&self.devices, &qpcObj.image)) {
            Ok(id) => (member(py, QStatus::Success)?, id.0).into_pyobject(py),
            Err(refusal) => {
                (refuse(py, &self.context, FailureSource::Context, refusal)?, NO_DEVICE).into_pyobject(py)
            }
        }
    }

    /// Number of the context in this process.
    #[pyo3(name = "getId")]
    fn id(&self) -> u32 {
        self.context.id
    }

    /// Name of the object in log lines.
    #[pyo3(name = "objName")]
    #[allow(clippy::unused_self)] // a method in Python
    fn obj_name(&self) -> &'static str {
        FailureSource::Context.name()
    }

    /// Name of the object in log lines.
    #[pyo3(name = "objNameCstr")]
    fn obj_name_cstr(&self) -> &'static str {
        self.obj_name()
    }

    /// The `qaic.rt.dispatch.Dispatcher` that runs callbacks of this context.
    fn _dispatcher(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.channel(py)?.1.clone_ref(py))
    }
}

/// Reads a device id. A value that is not a number raises another error than an unknown number.
fn device_id(id: &Bound<'_, PyAny>) -> Answer<DeviceId> {
    Ok(DeviceId(u32::try_from(whole(id)?).unwrap_or(u32::MAX)))
}
