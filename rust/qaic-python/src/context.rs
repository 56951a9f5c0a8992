//! `_core.Context` and what a process's environment says about devices.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use qaic_runtime::device::cpu::{self, Engine, custom_ops, libraries_of_package};
use qaic_runtime::device::{
    Device, DeviceDescription, DeviceKind, RegistryOptions, UserDirectory, named_engine,
};
use qaic_runtime::process::fork;
use qaic_runtime::{
    CancellationToken, Context, Deadline, DeviceId, EngineError, ErrorDetail, Image, RuntimeError,
};

use crate::emu_control;
use crate::errors::{Raise, from_runtime, record};
use crate::gil::Detach;

/// The devices of this process. Reads `QAIC_DEVICE` and the other variables that decide them when it is made
/// (docs/reference/environment.md).
#[pyclass(frozen, name = "Context", module = "qaic._core")]
pub(crate) struct PyContext {
    context: Arc<Context>,
}

impl PyContext {
    pub(crate) fn inner(&self) -> &Arc<Context> {
        &self.context
    }
}

#[pymethods]
impl PyContext {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self { context: open_context(py)? })
    }

    /// A context with one `cpu` device of its own, whatever the environment says: the compiler runs models there without
    /// taking cores from other programs.
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

    /// One dictionary per device: `id`, `kind`, `name`, `status` with a `reason` for errors, and the figures of its
    /// resources.
    ///
    /// Blocking, without the interpreter lock: cards are asked, each a minute at most, and cores that are counted across
    /// processes are counted by the system.
    fn devices<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.context.devices.iter().map(|device| describe(py, device)).collect()
    }

    /// Ids of the devices, without asking them anything.
    fn ids(&self) -> Vec<u32> {
        self.context.devices.iter().map(|device| device.id().0).collect()
    }

    /// Kind of a device, without asking it anything: `cpu`, `kmd` or `noop`.
    fn kind(&self, py: Python<'_>, dev_id: u32) -> PyResult<&'static str> {
        let device = self.context.device(DeviceId(dev_id)).map_err(|error| from_runtime(py, error))?;
        Ok(device.kind().name())
    }

    /// Returns the facts that a card reports; `None` for a device that is no card.
    ///
    /// Blocking, without the interpreter lock: its firmware is asked, a minute at most.
    fn card<'py>(&self, py: Python<'py>, dev_id: u32) -> PyResult<Option<Bound<'py, PyAny>>> {
        let device = self.context.device(DeviceId(dev_id)).map_err(|error| from_runtime(py, error))?;
        let facts = py.asking(|| Ok(device.facts()))?;
        facts.map(|facts| record(py, &facts.record())).transpose()
    }

    /// Resets a device with everything that is on it, also of other processes.
    ///
    /// Blocking, without the interpreter lock: until the reset has begun.
    fn reset(&self, py: Python<'_>, dev_id: u32) -> PyResult<()> {
        let device = self.context.device(DeviceId(dev_id)).map_err(|error| from_runtime(py, error))?;
        py.detached(|_| Ok(device.reset()))?.map_err(|error| from_runtime(py, error))
    }

    /// The dictionary of one device.
    fn resources<'py>(&self, py: Python<'py>, dev_id: u32) -> PyResult<Bound<'py, PyAny>> {
        let device = self.context.device(DeviceId(dev_id)).map_err(|error| from_runtime(py, error))?;
        describe(py, device)
    }
}

fn describe<'py>(py: Python<'py>, device: &Arc<dyn Device>) -> PyResult<Bound<'py, PyAny>> {
    let ask = || Ok(DeviceDescription::of(&**device));
    // Only cards are asked over something that may not answer.
    let found = if device.kind() == DeviceKind::Card { py.asking(ask)? } else { py.detached(|_| ask())? };
    record(py, &found)
}

/// Watches the forks of this process, also those that do not go through Python.
pub(crate) fn watch_forks(py: Python<'_>) -> PyResult<()> {
    static WATCHED: PyOnceLock<()> = PyOnceLock::new();
    WATCHED.get_or_try_init(py, || py.detached(|_| fork::watch())).copied()
}

/// Lets programs of this process load a library with custom operators.
#[pyfunction]
pub(crate) fn allow_custom_op_library(path: PathBuf) {
    custom_ops::allow(path);
}

/// A context over the devices the environment describes.
pub(crate) fn open_context(py: Python<'_>) -> PyResult<Arc<Context>> {
    custom_ops::allow_listed();
    let options = RegistryOptions::from_environment(engine_candidates(py)?);
    let options = options.map_err(|error| from_runtime(py, error))?;
    if options.kernel.kernel.as_deref() == Some("emu") {
        emu_control::end_with_interpreter(py)?;
    }
    Context::new(&options).map_err(|error| from_runtime(py, error))
}

/// Makes the directory in which processes of this user meet, or checks that no other user can use it.
#[pyfunction]
#[pyo3(signature = (path = None))]
pub(crate) fn open_user_directory(py: Python<'_>, path: Option<PathBuf>) -> PyResult<PathBuf> {
    py.detached(|_| UserDirectory::of_this_user(path).open().map(Path::to_owned))
}

/// Places where the library of ONNX Runtime may be, best first.
///
/// `QAIC_ONNXRUNTIME_LIB` alone when it is set; else those of the installed package, found without importing it (that
/// would cost 200 ms and load a second copy).
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

/// Runs a load so that Ctrl-C ends it; `load` is given the token to pass on.
pub(crate) fn cancellable_load<T: Ungil + Send>(
    py: Python<'_>,
    load: impl FnOnce(CancellationToken) -> Result<T, RuntimeError> + Ungil + Send,
) -> PyResult<T> {
    load_until(py, None, load)
}

/// [`cancellable_load`] that has to end by `deadline`.
pub(crate) fn load_until<T: Ungil + Send>(
    py: Python<'_>,
    deadline: Option<Deadline>,
    load: impl FnOnce(CancellationToken) -> Result<T, RuntimeError> + Ungil + Send,
) -> PyResult<T> {
    let token = CancellationToken::new();
    py.watched_until(deadline, "the load of a program", &token, || load(token.clone()))
}

/// Path and version of the engine of the `cpu` device, loading it if necessary.
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
            Err(error) => match error.into_detail() {
                ErrorDetail::Engine(EngineError::Graph { message }) => Ok(Some(message)),
                other => Err(other.into()),
            },
        }
    })
    .and_then(|refusal| match refusal {
        None => Ok(()),
        Some(message) => Err(Raise::new(
            py,
            "CompileError",
            "compile.engine_refused",
            format!("the engine of the cpu device cannot run this model: {message}"),
        )
        .hint("export the model with another opset, or replace the operator that is named")
        .build()),
    })
}

/// Writes the graph that the engine of the `cpu` device makes of a program into an empty folder, and gives its path. It is
/// an ONNX file without the values of its larger initializers.
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
