//! `qaicrt.Context`: the devices a client works with, and what is said about them.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};
use qaic_runtime::context::Context;
use qaic_runtime::device::DeviceId;
use qaic_runtime::log::Level;

use super::status::{Origin, QStatus, invalid};
use super::{construction_failed, construction_failed_by};
use crate::context::open_context;

/// Chosen devices of this process.
#[pyclass(frozen, name = "Context", module = "qaicrt", weakref)]
pub(crate) struct RtContext {
    context: Arc<Context>,
    devices: Vec<DeviceId>,
}

impl RtContext {
    /// The runtime's context.
    pub(crate) fn inner(&self) -> &Arc<Context> {
        &self.context
    }

    /// The devices it was made for, in the caller's order; never empty.
    pub(crate) fn devices(&self) -> &[DeviceId] {
        &self.devices
    }
}

#[pymethods]
impl RtContext {
    #[new]
    #[pyo3(signature = (devList = None, properties = None))]
    #[allow(non_snake_case)] // the names of the interface
    fn new(
        py: Python<'_>,
        devList: Option<Bound<'_, PyAny>>,
        properties: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        // C++ clients give the properties, a bit mask, first.
        let (devices, properties) = match devList {
            Some(first) if first.is_instance_of::<PyInt>() => (properties, Some(first)),
            devices => (devices, properties),
        };
        let context = open_context(py).map_err(|error| construction_failed_by(py, "Context", error))?;
        let devices = match devices {
            Some(list) => chosen(py, &context, &list)?,
            None => Vec::new(),
        };
        let devices = if devices.is_empty() {
            context.devices().iter().map(|device| device.id()).collect()
        } else {
            devices
        };
        let this = Self { context, devices };
        if let Some(properties) = properties
            && properties.extract::<u32>()? != 0
        {
            let logger = this.context.logger();
            logger
                .error(|| format!("Context: properties are {properties}; only 0 has a meaning, it is used"));
        }
        Ok(this)
    }

    /// Sets the lowest level that is logged.
    #[pyo3(name = "setLogLevel")]
    fn set_log_level(&self, py: Python<'_>, level: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let code = level.extract::<i64>()?;
        let Some(level) = u8::try_from(code).ok().and_then(Level::from_code) else {
            return invalid(py, &self.context, Origin::Context, &format!("log level {code} does not exist"));
        };
        self.context.logger().set_level(level);
        QStatus::Success.member(py)
    }

    /// (status, level).
    #[pyo3(name = "getLogLevel")]
    fn log_level<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let level = self.context.logger().level() as u8;
        let level = py.import("qaicrt.enums")?.getattr("QLogLevel")?.call1((level,))?;
        (QStatus::Success.member(py)?, level).into_pyobject(py)
    }

    /// Its number in this process.
    #[pyo3(name = "getId")]
    fn id(&self) -> u32 {
        self.context.id()
    }

    /// Its name for people.
    #[pyo3(name = "objName")]
    #[allow(clippy::unused_self)] // a method in Python
    fn obj_name(&self) -> &'static str {
        Origin::Context.name()
    }

    /// Its name for people.
    #[pyo3(name = "objNameCstr")]
    fn obj_name_cstr(&self) -> &'static str {
        self.obj_name()
    }
}

/// The ids in `list`, each once.
fn chosen(py: Python<'_>, context: &Context, list: &Bound<'_, PyAny>) -> PyResult<Vec<DeviceId>> {
    let mut chosen = Vec::new();
    for id in list.try_iter()? {
        let id = id?;
        // What is no number at all is a mistake of another kind than a number without a device.
        let number = id.extract::<i128>()?;
        let id = DeviceId(u32::try_from(number).unwrap_or(u32::MAX));
        context.device(id).map_err(|error| construction_failed(py, Origin::Context.name(), error))?;
        if !chosen.contains(&id) {
            chosen.push(id);
        }
    }
    Ok(chosen)
}
