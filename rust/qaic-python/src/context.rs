//! `_core.Context` and the devices that the environment variables describe.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use qaic_runtime::device::cpu::{self, Engine, TrialInput, custom_ops, libraries_of_package};
use qaic_runtime::device::{DeviceKind, RegistryOptions, UserDirectory, named_engine};
use qaic_runtime::process::fork;
use qaic_runtime::{
    CancellationToken, Context, Deadline, DeviceId, EngineError, ErrorDetail, Image, RuntimeError,
};

use crate::emu_control;
use crate::errors::{Raise, from_runtime, record};
use crate::gil::Detach;

/// The devices of this process. The constructor reads `QAIC_DEVICE` and the other variables in
/// docs/reference/environment.md.
#[pyclass(frozen, name = "Context", module = "qaic._core")]
pub(crate) struct PyContext {
    pub(crate) context: Arc<Context>,
}

#[pymethods]
impl PyContext {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self { context: open_context(py)? })
    }

    /// Creates a context with its own `cpu` device, independent of the environment. The compiler uses it to run
    /// models without taking cores from other programs.
    #[staticmethod]
    fn own_cpu(py: Python<'_>) -> PyResult<Self> {
        let options = RegistryOptions {
            kind: Some("cpu".to_owned()),
            engine_candidates: engine_candidates(py)?,
            ..RegistryOptions::default()
        };
        let context = Context::isolated(&options).map_err(|error| from_runtime(py, error))?;
        Ok(Self { context })
    }

    /// Returns one dictionary per device: `id`, `kind`, `name`, `status` with a `reason` for errors, and its
    /// resources.
    ///
    /// Blocking, without the interpreter lock: queries each card for at most one minute, and the system for cores
    /// that processes share.
    fn devices<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.ids().into_iter().map(|id| self.resources(py, id)).collect()
    }

    /// Returns the ids of the devices, without querying the devices.
    fn ids(&self) -> Vec<u32> {
        self.context.device_ids().into_iter().map(|id| id.0).collect()
    }

    /// Returns the kind of a device, without querying it: `cpu`, `kmd` or `noop`.
    fn kind(&self, py: Python<'_>, dev_id: u32) -> PyResult<&'static str> {
        Ok(self.kind_of(py, dev_id)?.name())
    }

    /// Returns the facts that a card reports; `None` for a device that is not a card.
    ///
    /// Blocking, without the interpreter lock: queries the firmware for at most one minute.
    fn card<'py>(&self, py: Python<'py>, dev_id: u32) -> PyResult<Option<Bound<'py, PyAny>>> {
        let facts = py.asking(|| self.context.card_facts(DeviceId(dev_id)))?;
        facts.map(|facts| record(py, &facts)).transpose()
    }

    /// Resets a device and discards its programs, including those of other processes.
    ///
    /// Blocking, without the interpreter lock, until the reset has begun.
    fn reset(&self, py: Python<'_>, dev_id: u32) -> PyResult<()> {
        py.detached(|_| self.context.reset_device(DeviceId(dev_id)))
    }

    /// Returns the dictionary of one device.
    fn resources<'py>(&self, py: Python<'py>, dev_id: u32) -> PyResult<Bound<'py, PyAny>> {
        let ask = || self.context.describe_device(DeviceId(dev_id));
        // Only a query of a card can remain unanswered.
        let is_card = self.kind_of(py, dev_id)? == DeviceKind::Card;
        let found = if is_card { py.asking(ask)? } else { py.detached(|_| ask())? };
        record(py, &found)
    }
}

impl PyContext {
    fn kind_of(&self, py: Python<'_>, dev_id: u32) -> PyResult<DeviceKind> {
        self.context.device_kind(DeviceId(dev_id)).map_err(|error| from_runtime(py, error))
    }
}

/// Registers fork handlers, which also run for forks outside Python.
pub(crate) fn watch_forks(py: Python<'_>) -> PyResult<()> {
    static WATCHED: PyOnceLock<()> = PyOnceLock::new();
    WATCHED.get_or_try_init(py, || py.detached(|_| fork::watch())).copied()
}

/// Allows programs of this process to load a library with custom operators.
#[pyfunction]
pub(crate) fn allow_custom_op_library(path: PathBuf) {
    custom_ops::allow(path);
}

/// Opens a context for the devices that the environment describes.
pub(crate) fn open_context(py: Python<'_>) -> PyResult<Arc<Context>> {
    custom_ops::allow_listed();
    let options = RegistryOptions::from_environment(engine_candidates(py)?);
    let options = options.map_err(|error| from_runtime(py, error))?;
    if options.kernel.kernel.as_deref() == Some("emu") {
        emu_control::end_with_interpreter(py)?;
    }
    Context::new(&options).map_err(|error| from_runtime(py, error))
}

/// Creates the directory that processes of this user share, or checks that no other user has access to it.
#[pyfunction]
#[pyo3(signature = (path = None))]
pub(crate) fn open_user_directory(py: Python<'_>, path: Option<PathBuf>) -> PyResult<PathBuf> {
    py.detached(|_| UserDirectory::of_this_user(path).open().map(Path::to_owned))
}

/// Returns paths where the ONNX Runtime library may be, in order of preference.
///
/// If `QAIC_ONNXRUNTIME_LIB` is set, this is its path only. Otherwise these are paths in the installed package, which
/// is located without an import: the import takes 200 ms and loads a second copy.
fn engine_candidates(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    if let Some(path) = named_engine() {
        return Ok(vec![path]);
    }
    let spec = py.import("importlib.util")?.call_method1("find_spec", ("onnxruntime",))?;
    let locations = spec.getattr_opt("submodule_search_locations")?.filter(|found| !found.is_none());
    let Some(locations) = locations else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for folder in locations.try_iter()? {
        found.extend(libraries_of_package(&folder?.extract::<PathBuf>()?));
    }
    Ok(found)
}

/// Runs a load that Ctrl-C can end; `load` receives the cancellation token.
pub(crate) fn cancellable_load<T: Ungil + Send>(
    py: Python<'_>,
    load: impl FnOnce(CancellationToken) -> Result<T, RuntimeError> + Ungil + Send,
) -> PyResult<T> {
    load_until(py, None, load)
}

/// [`cancellable_load`] with a `deadline`.
pub(crate) fn load_until<T: Ungil + Send>(
    py: Python<'_>,
    deadline: Option<Deadline>,
    load: impl FnOnce(CancellationToken) -> Result<T, RuntimeError> + Ungil + Send,
) -> PyResult<T> {
    let token = CancellationToken::default();
    py.watched_until(deadline, "the load of a program", &token, || load(token.clone()))
}

/// Returns path and version of the engine of the `cpu` device, and loads it if necessary.
///
/// Blocking: the first call maps the library.
#[pyfunction]
pub(crate) fn engine_info(py: Python<'_>) -> PyResult<(PathBuf, String)> {
    let candidates = engine_candidates(py)?;
    py.detached(move |_| Engine::get(&candidates).map(|engine| (engine.path.clone(), engine.version.clone())))
}

/// Checks that the engine of the `cpu` device can run every node of the program in a container file.
///
/// Blocking, without the interpreter lock; Ctrl-C ends it.
#[pyfunction]
pub(crate) fn check_program(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    let candidates = engine_candidates(py)?;
    cancellable_load(py, move |token| {
        let image = Image::open(&path, true)?;
        match cpu::check_program(&image, &candidates, &token) {
            Ok(()) => Ok(None),
            Err(error) => match error.detail() {
                ErrorDetail::Engine(EngineError::Graph { message }) => Ok(Some(message.clone())),
                _ => Err(error),
            },
        }
    })
    .and_then(|refusal| match refusal {
        None => Ok(()),
        Some(message) => Err(Raise::new(
            py,
            "CompileError",
            "compile.engine_refused",
            format!("the engine of the CPU device cannot run this model: {message}"),
        )
        .hint("export the model with another operator set, or replace the named operator")
        .build()),
    })
}

/// An input of a trial: name, dtype, dims, and the bytes of the element that fills it.
type TrialArguments = (String, String, Vec<i64>, Vec<u8>);

/// Loads a small model in the engine of the `cpu` device, and runs it once if `inputs` is given. Returns the engine's code and message if it refuses the model.
///
/// Blocking, without the interpreter lock; Ctrl-C ends it.
#[pyfunction]
pub(crate) fn try_model(
    py: Python<'_>,
    model: PyBackedBytes,
    inputs: Option<Vec<TrialArguments>>,
    outputs: Vec<String>,
) -> PyResult<Option<(i32, String)>> {
    let input = |(name, dtype, dims, element): TrialArguments| {
        let dtype = serde_json::from_value(dtype.into());
        dtype.map(|dtype| TrialInput { name, dtype, dims, element })
    };
    let inputs: Option<Vec<_>> = inputs
        .map(|inputs| inputs.into_iter().map(input).collect())
        .transpose()
        .map_err(|error: serde_json::Error| PyValueError::new_err(error.to_string()))?;
    let candidates = engine_candidates(py)?;
    cancellable_load(py, move |token| {
        cpu::try_model(&candidates, &model, inputs.as_deref(), &outputs, &token)
    })
    .map(|refusal| refusal.map(|refusal| (refusal.code, refusal.message)))
}

/// Writes the graph that the engine of the `cpu` device optimized for a program into an empty folder, and returns its
/// path. The graph is an ONNX file without the values of large initializers.
///
/// Blocking, without the interpreter lock; Ctrl-C ends it.
#[pyfunction]
pub(crate) fn save_optimized_graph(py: Python<'_>, path: PathBuf, folder: PathBuf) -> PyResult<PathBuf> {
    let candidates = engine_candidates(py)?;
    cancellable_load(py, move |token| {
        let image = Image::open(&path, true)?;
        cpu::save_optimized(&image, &folder, &candidates, &token)
    })
}
