//! `qaicrt.Program`: a container on a device.

use std::sync::{Arc, atomic::Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use qaic_runtime::binding::BindingSpecs;
use qaic_runtime::device::Placed;
use qaic_runtime::process::cancellation::WAIT_SLICE_MS;
use qaic_runtime::process::{FailureSource, reaper};
use qaic_runtime::{
    CancellationToken, Context, DeviceId, ErrorDetail, Image, Program, ProgramOptions, QStatus, RuntimeError,
    StateError,
};

use super::context::RtContext;
use super::numbers::{property, whole};
use super::qpc::RtQpc;
use super::slicing::PySlicingSpec;
use super::status::{Answer, Refusal, outcome, refused, reply, reply_with};
use super::{construction_reported, missing};
use crate::gil::{Detach, Reaped};

/// A container on one device, or on several devices that execute it together.
#[pyclass(frozen, name = "Program", module = "qaicrt", weakref)]
pub(crate) struct PyProgram {
    program: Reaped<Program>,
    pub(crate) specs: Arc<BindingSpecs>,
    token: CancellationToken,
    pub(crate) context: Py<RtContext>,
    qpc: Py<RtQpc>,
}

impl PyProgram {
    pub(crate) fn inner(&self) -> &Arc<Program> {
        &self.program
    }

    fn runtime(&self) -> &Arc<Context> {
        &self.program.context
    }

    /// Runs `work`, which may load the program, so that Ctrl-C can end it.
    pub(crate) fn loading<T: Send + pyo3::marker::Ungil>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut() -> Result<T, RuntimeError> + Send + pyo3::marker::Ungil,
    ) -> Answer<T> {
        self.token.renew();
        Ok(py.watched(&self.token, || Ok(reaper::when_free(&mut work)))??)
    }
}

#[pymethods]
impl PyProgram {
    /// Creates a program, which is not loaded yet. ``dev`` or the properties select the devices. By default, the
    /// program uses as many devices of the context as it was partitioned for, or one; devices with free cores come
    /// first.
    #[new]
    #[pyo3(signature = (context, dev = None, qpcObj = None, properties = None))]
    #[allow(non_snake_case)] // the vendor's names
    fn new(
        py: Python<'_>,
        context: Option<Bound<'_, RtContext>>,
        dev: Option<&Bound<'_, PyAny>>,
        qpcObj: Option<Bound<'_, RtQpc>>,
        properties: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let context = context.ok_or_else(|| missing(py, "Program", "the context"))?;
        let qpc = qpcObj.ok_or_else(|| missing(py, "Program", "the container (qpcObj)"))?;
        let runtime = &context.get().context;
        let failed = |refusal| construction_reported(py, runtime, FailureSource::Program, refusal);
        let image = &qpc.get().image;
        if !image.is_program() {
            let what = "this container contains one container per device and is not a program";
            return Err(failed(refused(what).into()));
        }
        let (mut options, mapping) = program_options(properties).map_err(failed)?;
        let placed = place_program(py, context.get(), dev, &mapping, image).map_err(failed)?;
        options.is_placed_freely = placed.is_chosen;
        let token = CancellationToken::default();
        options.load.token = token.clone();
        let make = |_| Program::new(runtime, image, &placed.placement, &options);
        let program = outcome(py, make).map_err(failed)?;
        let specs = BindingSpecs::of_buffers(&program).map_err(|error| failed(error.into()))?;
        Ok(Self {
            program: Reaped::new(program),
            specs: Arc::new(specs),
            token,
            context: context.unbind(),
            qpc: qpc.unbind(),
        })
    }

    /// Prepares the program on its device.
    ///
    /// Blocking, without the interpreter lock; Ctrl-C ends it.
    fn load(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let loaded = self.loading(py, || self.program.load());
        reply(py, self.runtime(), FailureSource::ProgramLoad, loaded)
    }

    /// Releases the resources of ``load``. Returns `QS_ERROR` while exec objects exist.
    ///
    /// Blocking, without the interpreter lock, for at most one minute; the teardown continues after Ctrl-C.
    fn unload(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let program = Arc::clone(&self.program);
        let is_in_use = |detail: &_| matches!(detail, ErrorDetail::State(StateError::LiveExecObjs { .. }));
        let unloaded = py.torn_down(move || program.unload())?.map_err(Refusal::from);
        let unloaded = unloaded.map_err(|refusal| refusal.with_status(QStatus::Error, is_in_use));
        reply(py, self.runtime(), FailureSource::Program, unloaded)
    }

    /// Reserves cores until ``deactivate``, and loads the program first if needed.
    ///
    /// Blocking, without the interpreter lock; Ctrl-C ends a load.
    fn activate(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let activated = self.loading(py, || self.program.activate());
        reply(py, self.runtime(), FailureSource::ProgramActivation, activated)
    }

    /// Releases the cores: immediately, or when the last exec object is gone.
    ///
    /// Blocking, as for ``unload``.
    fn deactivate(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let program = Arc::clone(&self.program);
        let deactivated = py.torn_down(move || program.deactivate())?;
        reply(py, self.runtime(), FailureSource::ProgramActivation, deactivated.map_err(Refusal::from))
    }

    /// Returns true if the program is loaded or activated.
    #[pyo3(name = "isLoaded")]
    fn is_loaded(&self, py: Python<'_>) -> bool {
        py.detach(|| self.program.is_loaded())
    }

    /// Returns true if the program holds cores.
    #[pyo3(name = "isActivated")]
    fn is_activated(&self, py: Python<'_>) -> bool {
        py.detach(|| self.program.is_activated())
    }

    /// Writes the default values into ``props``.
    #[staticmethod]
    #[pyo3(name = "initProperties", signature = (props = None))]
    fn init_properties(py: Python<'_>, props: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        write_defaults(py, props, "QAicProgramProperties", PROGRAM_PROPERTIES)
    }

    /// (status, serialized ``IoDesc``).
    #[pyo3(name = "getIoDescriptor")]
    fn io_descriptor<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.qpc.bind(py).call_method0("getIoDescriptor")
    }

    /// One ``BufferMapping`` per binding, inputs then outputs.
    #[pyo3(name = "getBufferMappings")]
    fn buffer_mappings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.qpc.bind(py).call_method0("getBufferMappings")
    }

    /// Facts about the program.
    #[pyo3(name = "getProgramInfo")]
    fn program_info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let program = self.qpc.bind(py).call_method0("getInfo")?.getattr("program")?.get_item(0)?;
        let facts = PyDict::new(py);
        facts.set_item("uniqueProgramID", self.program.unique_id)?;
        facts.set_item("userDefinedProgramID", self.program.user_id.load(Ordering::Relaxed))?;
        facts.set_item("numNsp", program.getattr("numCores")?)?;
        facts.set_item("numMcid", program.getattr("numMcId")?)?;
        facts.set_item("batchSize", program.getattr("batchSize")?)?;
        facts.set_item("isAicStatsAvailable", self.program.image.network.stats.is_some())?;
        py.import("qaic.rt.programs")?.getattr("ProgramInfo")?.call((), Some(&facts))
    }

    /// Number of successful inferences.
    #[pyo3(name = "getInferenceCompleteCount")]
    fn inference_complete_count(&self) -> u64 {
        self.program.completed.total()
    }

    /// Sets a number of the caller's choice.
    #[pyo3(name = "setId", signature = (number, /))]
    fn set_id(&self, number: u32) {
        self.program.user_id.store(number, Ordering::Relaxed);
    }

    /// Number that the caller set; 0 by default.
    #[pyo3(name = "getId")]
    fn id(&self) -> u32 {
        self.program.user_id.load(Ordering::Relaxed)
    }

    /// (status, handle) for ``ExecObj.setDataWithSlices``.
    #[pyo3(name = "createSlicingSpecHandle")]
    fn create_slicing_spec<'py>(&self, py: Python<'py>, json: &str) -> PyResult<Bound<'py, PyTuple>> {
        reply_with(py, self.runtime(), FailureSource::Program, PySlicingSpec::new(py, &self.specs, json))
    }

    /// The context of the constructor.
    fn _context(&self, py: Python<'_>) -> Py<RtContext> {
        self.context.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        let name = &self.program.image.network.network_name;
        format!("Program('{name}' on device {})", self.program.placement)
    }
}

const PROGRAM_PROPERTIES: &[&str] =
    &["selectMask", "SubmitNumRetries", "SubmitRetryTimeoutMs", "devMapping", "dataPathTimeoutMs"];

/// Copies the named attributes of a new object of class `class` into `props`. Attributes that `props` does not accept
/// are skipped: clients pass objects of other classes, and the call must not fail.
pub(crate) fn write_defaults(
    py: Python<'_>,
    props: Option<&Bound<'_, PyAny>>,
    class: &str,
    names: &[&str],
) -> PyResult<()> {
    let Some(props) = props else { return Ok(()) };
    let defaults = py.import("qaic.rt.properties")?.getattr(class)?.call0()?;
    for name in names {
        // An object without the attribute, or with a read-only one, stays unchanged.
        let _ = props.setattr(*name, defaults.getattr(*name)?);
    }
    Ok(())
}

/// Reads options and device mapping from `QAicProgramProperties`.
pub(crate) fn program_options(properties: Option<&Bound<'_, PyAny>>) -> Answer<(ProgramOptions, String)> {
    let mut options = ProgramOptions::default();
    options.wait.slice_ms = Some(WAIT_SLICE_MS);
    let Some(properties) = properties else { return Ok((options, String::new())) };
    let number = |name: &str| property(properties, name, 0..=u32::MAX);
    let (data_path_ms, submit_ms) = (number("dataPathTimeoutMs")?, number("SubmitRetryTimeoutMs")?);
    options.wait.try_ms = if data_path_ms == 0 { submit_ms } else { data_path_ms };
    options.wait.retries = number("SubmitNumRetries")?;
    Ok((options, properties.getattr("devMapping")?.extract()?))
}

/// Selects the devices of a program: `dev`, else those of the mapping, else as many of the context's devices as the
/// program needs.
///
/// Blocking in the last case, without the interpreter lock: queries devices for free cores.
pub(crate) fn place_program(
    py: Python<'_>,
    context: &RtContext,
    dev: Option<&Bound<'_, PyAny>>,
    mapping: &str,
    image: &Image,
) -> Answer<Placed> {
    let candidates = &context.devices;
    let device = dev.map(|dev| device(candidates, dev)).transpose()?;
    outcome(py, |_| context.context.place(candidates, device, mapping, image))
}

/// Returns the ids of the devices on which a program would be placed by default: one, or as many as it was
/// partitioned for.
///
/// Blocking, without the interpreter lock: queries devices for free cores.
#[pyfunction]
pub(crate) fn choose_devices(py: Python<'_>, context: &RtContext, qpc: &RtQpc) -> PyResult<Vec<u32>> {
    let placement = py.asking(|| context.context.choose(&context.devices, &qpc.image))?;
    Ok(placement.devices.iter().map(|id| id.0).collect())
}

/// Reads the id of a device, which must be in `existing`.
pub(crate) fn device(existing: &[DeviceId], dev: &Bound<'_, PyAny>) -> Answer<DeviceId> {
    // A number that no device can have is reported as an unknown device.
    Ok(u32::try_from(whole(dev)?).map(DeviceId).map_err(|_| {
        let existing: Vec<_> = existing.iter().map(|id| id.0).collect();
        refused(format!("device {dev} does not exist; existing ids: {existing:?}"))
    })?)
}
