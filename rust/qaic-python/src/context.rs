//! `_core.Context` and what a process's environment says about devices.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use qaic_runtime::context::Context;
use qaic_runtime::device::cpu::{self, Engine, custom_ops};
use qaic_runtime::device::{
    Device, DeviceId, DeviceKind, DeviceStatus, KernelOptions, RegistryOptions, UserDirectory,
};
use qaic_runtime::error::{EngineError, ErrorDetail, RuntimeError};
use qaic_runtime::image::Image;
use qaic_runtime::process::CancellationToken;
use qaic_runtime::process::fork;

use crate::card_facts;
use crate::emu_control;
use crate::errors::{Raise, from_runtime};
use crate::gil::Detach;

/// The devices of this process. Reads `QAIC_DEVICE` and the other variables that decide them when it is made
/// (docs/guide/running.md).
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
    fn devices<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.context.devices().iter().map(|device| describe(py, device)).collect()
    }

    /// Ids of the devices, without asking them anything.
    fn ids(&self) -> Vec<u32> {
        self.context.devices().iter().map(|device| device.id().0).collect()
    }

    /// Kind of a device, without asking it anything: `cpu`, `kmd` or `noop`.
    fn kind(&self, py: Python<'_>, dev_id: u32) -> PyResult<&'static str> {
        let device = self.context.device(DeviceId(dev_id)).map_err(|error| from_runtime(py, error))?;
        Ok(device.kind().name())
    }

    /// What a card says of itself; `None` for a device that is no card.
    ///
    /// Blocking, without the interpreter lock: its firmware is asked, a minute at most.
    fn card<'py>(&self, py: Python<'py>, dev_id: u32) -> PyResult<Option<Bound<'py, PyDict>>> {
        let device = self.context.device(DeviceId(dev_id)).map_err(|error| from_runtime(py, error))?;
        let facts = py.asking(|| Ok(device.facts()))?;
        facts.map(|facts| card_facts::card(py, &facts)).transpose()
    }

    /// Resets a device with everything that is on it, also of other processes.
    ///
    /// Blocking, without the interpreter lock: until the reset has begun.
    fn reset(&self, py: Python<'_>, dev_id: u32) -> PyResult<()> {
        let device = self.context.device(DeviceId(dev_id)).map_err(|error| from_runtime(py, error))?;
        py.detached(|| Ok(device.reset()))?.map_err(|error| from_runtime(py, error))
    }

    /// The dictionary of one device.
    fn resources<'py>(&self, py: Python<'py>, dev_id: u32) -> PyResult<Bound<'py, PyDict>> {
        let device = self.context.device(DeviceId(dev_id)).map_err(|error| from_runtime(py, error))?;
        describe(py, device)
    }
}

fn describe<'py>(py: Python<'py>, device: &Arc<dyn Device>) -> PyResult<Bound<'py, PyDict>> {
    let ask = || Ok((device.resources(), device.status()));
    // Only cards are asked over something that may not answer.
    let (resources, status) =
        if device.kind() == DeviceKind::Card { py.asking(ask)? } else { py.detached(ask)? };
    let entry = PyDict::new(py);
    entry.set_item("id", device.id().0)?;
    entry.set_item("kind", device.kind().name())?;
    entry.set_item("name", device.name())?;
    entry.set_item("family", device.family())?;
    let (status, reason) = match status {
        DeviceStatus::Ready => ("ready", None),
        DeviceStatus::Error { reason } => ("error", Some(reason)),
    };
    entry.set_item("status", status)?;
    entry.set_item("reason", reason)?;
    entry.set_item("dram_total_mb", resources.dram_total_mb)?;
    entry.set_item("dram_free_mb", resources.dram_free_mb)?;
    for (name, figure) in [
        ("nsp_total", resources.nsp_total),
        ("nsp_free", resources.nsp_free),
        ("vc_total", resources.vc_total),
        ("vc_free", resources.vc_free),
        ("mcid_total", resources.mcid_total),
        ("mcid_free", resources.mcid_free),
        ("semaphore_total", resources.semaphore_total),
        ("semaphore_free", resources.semaphore_free),
        ("programs_loaded", resources.programs_loaded),
        ("programs_active", resources.programs_active),
        ("constants_loaded", resources.constants_loaded),
        ("constants_in_use", resources.constants_in_use),
    ] {
        entry.set_item(name, figure)?;
    }
    Ok(entry)
}

/// Reports every fork made from Python, first of all hooks of this package.
pub(crate) fn watch_forks(py: Python<'_>) -> PyResult<()> {
    let keywords = PyDict::new(py);
    for (moment, hook) in [
        ("before", fork::will_fork as fn()),
        ("after_in_parent", fork::forked_parent),
        ("after_in_child", fork::forked),
    ] {
        keywords.set_item(moment, PyCFunction::new_closure(py, None, None, move |_, _| hook())?)?;
    }
    py.import("os")?.call_method("register_at_fork", (), Some(&keywords)).map(drop)
}

/// Lets programs of this process load a library with custom operators.
#[pyfunction]
pub(crate) fn allow_custom_op_library(path: PathBuf) {
    custom_ops::allow(path);
}

/// A context over the devices the environment describes.
pub(crate) fn open_context(py: Python<'_>) -> PyResult<Arc<Context>> {
    let libraries = env::var_os("QAIC_CUSTOM_OP_LIBRARIES").unwrap_or_default();
    env::split_paths(&libraries).filter(|path| !path.as_os_str().is_empty()).for_each(custom_ops::allow);
    let virtual_cards = match variable("QAIC_CPU_DEVICES") {
        Some(text) if !text.is_empty() => Some(text.parse().map_err(|_| {
            Raise::new(
                py,
                "OptionError",
                "option.cpu_devices",
                format!("QAIC_CPU_DEVICES is {text:?}; a number of virtual cards is expected"),
            )
            .build()
        })?),
        _ => None,
    };
    let options = RegistryOptions {
        kind: variable("QAIC_DEVICE"),
        virtual_cards,
        family: variable("QAIC_CPU_FAMILY").map(|family| family.to_lowercase()),
        engine_candidates: engine_candidates(py)?,
        noop_faults: variable("QAIC_NOOP_FAULTS"),
        shared_cores: shared_cores(py)?,
        visible_devices: variable("QAIC_VISIBLE_DEVICES"),
        kernel: kernel(),
    };
    if options.kernel.kernel.as_deref() == Some("emu") {
        emu_control::end_with_interpreter(py)?;
    }
    Context::new(&options).map_err(|error| from_runtime(py, error))
}

/// Value of a variable. What is no text is kept as far as it is, so that it is refused and not passed over.
fn variable(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().trim().to_owned())
}

/// Where cards come from.
fn kernel() -> KernelOptions {
    let given = |name| variable(name).filter(|value| !value.is_empty());
    // The usual one by name is the usual one, with the same devices.
    let kernel = given("QAIC_KMD").filter(|kernel| kernel != "sys");
    let is_emulated = kernel.as_deref() == Some("emu");
    // What does not count makes no difference, so that the devices stay the same.
    let emulated = |name| if is_emulated { given(name) } else { None };
    KernelOptions {
        transcript: env::var_os("QAIC_KMD_TRANSCRIPT").filter(|path| !path.is_empty()).map(PathBuf::from),
        emulated_profile: emulated("QAIC_EMU_PROFILE"),
        emulated_faults: emulated("QAIC_EMU_FAULTS"),
        emulated_workload: emulated("QAIC_EMU_WORKLOAD"),
        emulated_time: emulated("QAIC_EMU_TIME"),
        kernel,
    }
}

/// Makes the directory in which processes of this user meet, or checks that no other user can use it.
#[pyfunction]
#[pyo3(signature = (path = None))]
pub(crate) fn open_user_directory(py: Python<'_>, path: Option<PathBuf>) -> PyResult<PathBuf> {
    let directory = user_directory(py, path)?;
    py.detached(|| directory.open().map(Path::to_owned))
}

/// The directory of this user in memory, or among the temporary files; or another one.
fn user_directory(py: Python<'_>, path: Option<PathBuf>) -> PyResult<UserDirectory> {
    let user = py.import("os")?.call_method0("getuid")?.extract()?;
    let path = path.unwrap_or_else(|| {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
        base.join(format!("openqaic-{user}"))
    });
    Ok(UserDirectory { path, user })
}

/// Where the cores of this user are counted, if `QAIC_CPU_SHARED` asks for it: `1` for the usual place, or an absolute
/// path.
fn shared_cores(py: Python<'_>) -> PyResult<Option<UserDirectory>> {
    let Some(value) = env::var_os("QAIC_CPU_SHARED").filter(|value| !value.is_empty() && value != "0") else {
        return Ok(None);
    };
    let directory = user_directory(py, (value != "1").then(|| PathBuf::from(&value)))?;
    if directory.path.is_absolute() {
        return Ok(Some(directory));
    }
    Err(Raise::new(
        py,
        "OptionError",
        "option.cpu_shared",
        format!(
            "QAIC_CPU_SHARED is \"{}\"; 1, 0 or the absolute path of a directory of this user is expected",
            value.display()
        ),
    )
    .build())
}

/// Places where the library of ONNX Runtime may be, best first.
///
/// `QAIC_ONNXRUNTIME_LIB` alone when it is set; else the `capi` folder of the installed package, found without importing
/// it (that would cost 200 ms and load a second copy).
fn engine_candidates(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    if let Some(path) = env::var_os("QAIC_ONNXRUNTIME_LIB").filter(|path| !path.is_empty()) {
        return Ok(vec![PathBuf::from(path)]);
    }
    let spec = py.import("importlib.util")?.call_method1("find_spec", ("onnxruntime",))?;
    if spec.is_none() {
        return Ok(Vec::new());
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    let locations = spec.getattr("submodule_search_locations")?;
    if !locations.is_none() {
        for location in locations.try_iter()? {
            folders.push(location?.extract::<OsString>()?.into());
        }
    }
    Ok(folders.iter().flat_map(|folder| libraries_in(&folder.join("capi"))).collect())
}

/// Files named `libonnxruntime.so*`, the one with the longest version first.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name == "libonnxruntime.so" || name.starts_with("libonnxruntime.so."))
        })
        .collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.as_os_str().len()));
    found
}

/// Runs a load so that Ctrl-C ends it; `load` is given the token to pass on.
pub(crate) fn cancellable_load<T: Ungil + Send>(
    py: Python<'_>,
    load: impl FnOnce(CancellationToken) -> Result<T, RuntimeError> + Ungil + Send,
) -> PyResult<T> {
    let token = CancellationToken::new();
    py.watched(&token, || load(token.clone()))
}

/// Path and version of the engine of the `cpu` device, loading it if necessary.
///
/// Blocking: the first call maps the library.
#[pyfunction]
pub(crate) fn engine_info(py: Python<'_>) -> PyResult<(PathBuf, String)> {
    let candidates = engine_candidates(py)?;
    py.detached(move || {
        Engine::get(&candidates).map(|engine| (engine.path().to_owned(), engine.version().to_owned()))
    })
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
