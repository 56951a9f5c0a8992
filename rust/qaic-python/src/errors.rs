//! The exception classes and the only mapping from Rust errors to them.
//!
//! The classes have several bases each (an input error is also a `ValueError`), which the stable ABI can only make by
//! running Python source: `exceptions.py` beside this file, compiled into the module.

use std::ffi::CString;

use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use qaic_qpc::error::{ErrorKind, QpcError};
use qaic_runtime::binding::{ArgumentError, ShapeError};
use qaic_runtime::error::{
    CardError, DeviceError, EngineError, ErrorDetail, InputError, RuntimeError, StateError,
};
use qaic_stats::error::{ErrorKind as StatsKind, StatsError};

/// Names of all classes, base first.
pub(crate) const CLASSES: [&str; 27] = [
    "QaicError",
    "QpcError",
    "QpcFormatError",
    "QpcVersionError",
    "QpcLimitError",
    "OptionError",
    "UnknownOptionError",
    "OptionConflictError",
    "CompileError",
    "InputError",
    "MissingInputError",
    "InputShapeError",
    "InputTypeError",
    "StateError",
    "DeviceError",
    "DeviceNotFoundError",
    "DeviceBusyError",
    "DeviceLostError",
    "DeviceMemoryError",
    "DeviceTimeoutError",
    "InferenceError",
    "StatsError",
    "UnknownStatsLayoutError",
    "StatsFormatError",
    "StatsVersionError",
    "StatsMismatchError",
    "InternalError",
];

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

fn module(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    MODULE
        .get_or_try_init(py, || {
            let source = CString::new(include_str!("exceptions.py"))?;
            // The source runs in the compiled module, and names `qaic.errors` as the home of its classes.
            PyModule::from_code(py, &source, c"qaic/exceptions.py", c"qaic._core").map(Bound::unbind)
        })
        .map(|module| module.bind(py))
}

/// The class of this name.
pub(crate) fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    module(py)?.getattr(name)
}

/// Adds every class, and the function that unpickles them, to the compiled module.
pub(crate) fn register(target: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = target.py();
    // The source is compiled in this module's place, so it also replaces what the module says of itself.
    let (name, file) = (target.getattr("__name__")?, target.getattr("__file__")?);
    module(py)?;
    target.setattr("__name__", name)?;
    target.setattr("__file__", file)?;
    for name in CLASSES {
        target.add(name, class(py, name)?)?;
    }
    target.add("_rebuild", class(py, "_rebuild")?)
}

/// One exception of the tree, ready to raise.
pub(crate) struct Raise<'py> {
    py: Python<'py>,
    class: &'static str,
    code: &'static str,
    message: String,
    context: Bound<'py, PyDict>,
    hints: Vec<String>,
}

impl<'py> Raise<'py> {
    pub(crate) fn new(
        py: Python<'py>,
        class: &'static str,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { py, class, code, message: message.into(), context: PyDict::new(py), hints: Vec::new() }
    }

    /// Adds a figure to the context.
    pub(crate) fn with(self, key: &str, value: impl IntoPyObject<'py>) -> Self {
        // A value that cannot be converted is a missing detail, not a reason to hide the error itself.
        let _ = self.context.set_item(key, value);
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub(crate) fn build(self) -> PyErr {
        let make = || -> PyResult<PyErr> {
            let keywords = PyDict::new(self.py);
            keywords.set_item("code", self.code)?;
            keywords.set_item("context", &self.context)?;
            keywords.set_item("hints", PyTuple::new(self.py, &self.hints)?)?;
            let exception = class(self.py, self.class)?.call((&self.message,), Some(&keywords))?;
            Ok(PyErr::from_value(exception))
        };
        make().unwrap_or_else(|error| error)
    }
}

/// The exception for a container error.
pub(crate) fn from_qpc(py: Python<'_>, error: &QpcError) -> PyErr {
    Raise::new(py, qpc_class(error), error.code(), error.to_string()).build()
}

/// The exception for a container error in a file.
pub(crate) fn from_qpc_file(py: Python<'_>, error: &QpcError, path: &str) -> PyErr {
    Raise::new(py, qpc_class(error), error.code(), format!("{path}: {error}")).with("path", path).build()
}

fn qpc_class(error: &QpcError) -> &'static str {
    match error.kind() {
        ErrorKind::Version => "QpcVersionError",
        ErrorKind::Limit => "QpcLimitError",
        ErrorKind::Misuse => "QpcError",
        _ => "QpcFormatError",
    }
}

/// The exception for an error of statistics; `path` is the file they are in.
pub(crate) fn from_stats(py: Python<'_>, error: &StatsError, path: Option<&str>) -> PyErr {
    let class = match (error, error.kind()) {
        (StatsError::Container(source), _) => qpc_class(source),
        (_, StatsKind::UnknownLayout) => "UnknownStatsLayoutError",
        (_, StatsKind::Version) => "StatsVersionError",
        (_, StatsKind::Mismatch) => "StatsMismatchError",
        (_, StatsKind::Misuse) => "StatsError",
        _ => "StatsFormatError",
    };
    let text = path.map_or_else(|| error.to_string(), |path| format!("{path}: {error}"));
    let raise = Raise::new(py, class, error.code(), text);
    let raise = match path {
        Some(path) => raise.with("path", path),
        None => raise,
    };
    match error {
        StatsError::UnknownLayout { bytes, level, cores, threads, ops } => raise
            .with("bytes", *bytes)
            .with("level", *level)
            .with("cores", *cores)
            .with("threads", *threads)
            .with("ops", ops.clone())
            .hint("qaic.stats.register_layout adds a layout of your own"),
        StatsError::OtherProgram { .. } => {
            raise.hint("give the container that was running, or force=True to read the buffer anyway")
        }
        StatsError::Version { .. } => raise.hint("a newer openqaic may read it"),
        _ => raise,
    }
    .build()
}

/// The exception for a runtime error.
pub(crate) fn from_runtime(py: Python<'_>, error: impl Into<RuntimeError>) -> PyErr {
    let error = error.into();
    let code = error.code();
    let text = error.to_string();
    let raise = |class| Raise::new(py, class, code, text.clone());
    match error.into_detail() {
        ErrorDetail::Qpc(source) => from_qpc(py, &source),
        ErrorDetail::Input(InputError::Arguments(source)) => from_arguments(py, source),
        ErrorDetail::Io { path, source } => os_error(py, &path.display().to_string(), &source),
        ErrorDetail::Interrupted => PyKeyboardInterrupt::new_err(()),
        ErrorDetail::Input(InputError::UnsupportedTransform { binding, step, kind }) => {
            raise("DeviceError").with("binding", binding).with("step", step).with("kind", kind).build()
        }
        ErrorDetail::Input(InputError::BufferSize { buffer, expected, found }) => raise("InputShapeError")
            .with("buffer", buffer)
            .with("expected", expected)
            .with("found", found)
            .build(),
        ErrorDetail::Device(DeviceError::WrongTarget { built_for, device, .. }) => raise("DeviceError")
            .with("built_for", built_for)
            .with("device", device)
            .hint("compile the ONNX model for this device, or inspect the container with qaic.Qpc")
            .build(),
        ErrorDetail::Device(DeviceError::HardwareFamily { built_for, device, family }) => raise("DeviceError")
            .with("built_for", built_for)
            .with("device", device)
            .with("family", family)
            .hint("compile with aic_hw_version for the device, or load with allow_hw_mismatch=True")
            .build(),
        ErrorDetail::Device(DeviceError::NotFound { id, existing }) => raise("DeviceNotFoundError")
            .with("device", id)
            .with("existing", existing)
            .hint("QAIC_DEVICE chooses the kinds of device, QAIC_CPU_DEVICES the number of virtual and emulated cards, \
                 QAIC_VISIBLE_DEVICES which of them are shown")
            .build(),
        ErrorDetail::Device(DeviceError::TooFew { needed, kind, existing, hidden }) => raise("DeviceNotFoundError")
            .with("needed", needed)
            .with("kind", kind)
            .with("existing", existing)
            .with("hidden", hidden)
            .build(),
        ErrorDetail::Device(DeviceError::Kind { kind, .. }) => {
            raise("DeviceNotFoundError").with("kind", kind).hint("set QAIC_DEVICE to one of them").build()
        }
        ErrorDetail::Device(DeviceError::Busy { id, needed, free, total }) => raise("DeviceBusyError")
            .with("device", id)
            .with("needed", needed)
            .with("free", free)
            .with("total", total)
            .hint("lower num_activations or aic_num_cores, or reset a session that holds cores")
            .build(),
        ErrorDetail::Device(DeviceError::Lost { id, .. }) => raise("DeviceLostError")
            .with("device", id)
            .hint("once the device is back, unload and load the program, or reset the session")
            .build(),
        ErrorDetail::Device(DeviceError::OutOfMemory { bytes, .. }) => raise("DeviceMemoryError").with("bytes", bytes).build(),
        ErrorDetail::Timeout { timeout_ms, .. } => {
            raise("DeviceTimeoutError").with("timeout_ms", timeout_ms).build()
        }
        ErrorDetail::Engine(EngineError::Missing { looked_at }) => raise("DeviceError")
            .with("looked_at", looked_at)
            .hint("install onnxruntime (pip install onnxruntime), or set QAIC_ONNXRUNTIME_LIB to its library")
            .build(),
        ErrorDetail::Engine(EngineError::Unusable { path, found, .. }) => raise("DeviceError")
            .with("path", path)
            .with("found", found)
            .with("needed", qaic_runtime::device::cpu::MINIMUM_VERSION)
            .hint("pip install --upgrade onnxruntime, or set QAIC_ONNXRUNTIME_LIB to a newer library")
            .build(),
        ErrorDetail::Engine(EngineError::Graph { .. })
        | ErrorDetail::Card(CardError::Transfers { .. })
        | ErrorDetail::Device(DeviceError::Unsupported { .. }) => raise("DeviceError").build(),
        ErrorDetail::Engine(EngineError::Inference { status, .. }) => raise("InferenceError").with("status", status).build(),
        ErrorDetail::Input(InputError::IoCrc { binding, section, taken, found, .. }) => raise("InferenceError")
            .with("binding", binding)
            .with("section", section)
            .with("taken", taken)
            .with("found", found)
            .hint("let nobody write to the arrays of an inference before it was waited for")
            .build(),
        ErrorDetail::State(StateError::Forked) => raise("StateError")
            .hint("make sessions and programs after the fork, or use the start method spawn or forkserver")
            .build(),
        ErrorDetail::State(StateError::Invalid { .. } | StateError::InFlight |
StateError::QueueFull { .. } | StateError::LiveExecObjs { .. } |
StateError::UnknownInference { .. } | StateError::NothingSubmitted) => raise("StateError").build(),
        ErrorDetail::Input(InputError::NoMatchingShape { .. }) => raise("InputShapeError").build(),
        ErrorDetail::Input(InputError::StateRequired { binding }) => {
            raise("MissingInputError").with("binding", binding).build()
        }
        ErrorDetail::Cancelled => raise("InferenceError").build(),
        ErrorDetail::Input(InputError::Argument { .. }) => raise("OptionError").build(),
        error => from_card(py, error.into()),
    }
}

/// The exception for arguments that a program cannot take.
fn from_arguments(py: Python<'_>, error: ArgumentError) -> PyErr {
    let (code, text) = (error.code(), error.to_string());
    let raise = |class| Raise::new(py, class, code, text);
    match error {
        ArgumentError::UnknownName { name, known, .. } | ArgumentError::UnknownOutput { name, known } => {
            raise("InputError").with("name", name).with("known", known)
        }
        ArgumentError::Missing { missing, .. } => raise("MissingInputError").with("missing", missing),
        ArgumentError::Shapes(ShapeError { passed, allowed, .. }) => {
            let passed: Vec<_> = passed.into_iter().map(|(name, _, dims)| (name, dims)).collect();
            raise("InputShapeError")
                .with("passed", passed)
                .with("allowed", allowed)
                .hint("pass arrays of exactly one of these combinations")
        }
        ArgumentError::OutputArray { name, .. } => raise("InputError").with("name", name),
        ArgumentError::OutputOverlap { name } => {
            raise("InputError").with("name", name).hint("give every output memory of its own")
        }
        ArgumentError::StateNotSplit => {
            raise("StateError").hint("compile it with retained_state=True and split_retained_state_io=True")
        }
        ArgumentError::UnknownState { known, .. } => raise("InputError").with("known", known),
        ArgumentError::StateSequence { name, shape, .. } => raise("InputError")
            .with("name", name)
            .with("shape", shape)
            .hint("sequences are counted from 0 along the first dimension"),
        ArgumentError::StatePerActivation { .. } => raise("OptionError")
            .hint("use num_activations=1, or choose the activation of every inference with qaicrt"),
        ArgumentError::TensorTooLarge { .. } => raise("QpcLimitError"),
        _ => raise("InternalError"),
    }
    .build()
}

/// The exception for an error that only cards have; others are bugs of ours.
fn from_card(py: Python<'_>, error: RuntimeError) -> PyErr {
    let code = error.code();
    let text = error.to_string();
    let raise = |class| Raise::new(py, class, code, text.clone());
    match error.into_detail() {
        ErrorDetail::Card(CardError::ChannelLost { device, channel, .. }) => raise("DeviceLostError")
            .with("device", device)
            .with("channel", channel)
            .hint("reset() the session, or deactivate and activate the program")
            .build(),
        ErrorDetail::Device(DeviceError::Unavailable { id, .. }) => {
            raise("DeviceError").with("device", id).build()
        }
        ErrorDetail::Card(CardError::Permission { id, path, .. }) => {
            raise("DeviceError").with("device", id).with("path", path).build()
        }
        ErrorDetail::Card(CardError::FirmwareVersion { id, what, found, expected }) => raise("DeviceError")
            .with("device", id)
            .with("what", what)
            .with("found", found)
            .with("expected", expected)
            .hint("install the firmware that belongs to this version of the runtime, or use another card")
            .build(),
        ErrorDetail::Card(CardError::Firmware { id, what, status, name }) => raise(firmware_class(status))
            .with("device", id)
            .with("what", what)
            .with("status", status)
            .with("name", name)
            .build(),
        ErrorDetail::Card(CardError::FirmwareProtocol { id, what, .. }) => {
            raise("DeviceError").with("device", id).with("what", what).build()
        }
        ErrorDetail::Card(CardError::Driver { id, call, source }) => {
            let raised = raise("DeviceError")
                .with("device", id)
                .with("call", call)
                .with("errno", source.raw_os_error());
            // The kernel takes no buffer that is queued, as one of an inference is of which a part never ended.
            let is_kept = call == "EXECUTE_BO" && source.kind() == std::io::ErrorKind::InvalidInput;
            let hint = "the card may still have buffers of the inference before: reset() the session, or deactivate \
                        and activate the program";
            if is_kept { raised.hint(hint).build() } else { raised.build() }
        }
        ErrorDetail::Card(CardError::RingFull { device, channel, attempts, elements }) => {
            raise("DeviceBusyError")
                .with("device", device)
                .with("channel", channel)
                .with("attempts", attempts)
                .with("elements", elements)
                .hint("submit fewer inferences at a time: lower set_size")
                .build()
        }
        _ => raise("InternalError").build(),
    }
}

/// What a refusal of a card's firmware is: something is used up, the memory is, or another failure.
const fn firmware_class(status: i32) -> &'static str {
    match status {
        -15..=-12 => "DeviceBusyError",
        -4 => "DeviceMemoryError",
        _ => "DeviceError",
    }
}

/// The built-in `OSError` subclass of an I/O error, with errno and file name.
pub(crate) fn os_error(py: Python<'_>, path: &str, source: &std::io::Error) -> PyErr {
    let errno = source.raw_os_error().unwrap_or(match source.kind() {
        std::io::ErrorKind::IsADirectory => 21,
        _ => 5,
    });
    let text = py
        .import("os")
        .and_then(|os| os.call_method1("strerror", (errno,)))
        .and_then(|text| text.extract::<String>())
        .unwrap_or_else(|_| source.to_string());
    PyOSError::new_err((errno, text, path.to_owned()))
}

/// Raised when Rust code of ours panicked.
pub(crate) fn panicked(py: Python<'_>, payload: &(dyn std::any::Any + Send)) -> PyErr {
    let text = payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    Raise::new(py, "InternalError", "internal.panic", format!("a bug of openqaic showed: {text}"))
        .hint("please report it with this message")
        .build()
}
