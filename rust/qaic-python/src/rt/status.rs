//! From outcomes of the runtime to `QStatus` objects, with a line in the log for each that is not success.

use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use qaic_runtime::context::Context;
use qaic_runtime::error::{CardError, DeviceError, ErrorDetail, InputError, RuntimeError, StateError};
use qaic_runtime::process::log::ErrorType;

use crate::gil::{self, Detach};

/// The statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QStatus {
    Success,
    Perm,
    Again,
    NoMem,
    Busy,
    NoDev,
    Inval,
    NoSpc,
    BadFd,
    TimedOut,
    Protocol,
    Unsupported,
    DataCrcError,
    DevError,
    Error,
}

const ALL: [(QStatus, &str); 15] = [
    (QStatus::Success, "QS_SUCCESS"),
    (QStatus::Perm, "QS_PERM"),
    (QStatus::Again, "QS_AGAIN"),
    (QStatus::NoMem, "QS_NOMEM"),
    (QStatus::Busy, "QS_BUSY"),
    (QStatus::NoDev, "QS_NODEV"),
    (QStatus::Inval, "QS_INVAL"),
    (QStatus::NoSpc, "QS_NOSPC"),
    (QStatus::BadFd, "QS_BADFD"),
    (QStatus::TimedOut, "QS_TIMEDOUT"),
    (QStatus::Protocol, "QS_PROTOCOL"),
    (QStatus::Unsupported, "QS_UNSUPPORTED"),
    (QStatus::DataCrcError, "QS_DATA_CRC_ERROR"),
    (QStatus::DevError, "QS_DEV_ERROR"),
    (QStatus::Error, "QS_ERROR"),
];

static MEMBERS: PyOnceLock<[Py<PyAny>; 15]> = PyOnceLock::new();

impl QStatus {
    /// The member of `qaicrt.QStatus`.
    pub(crate) fn member(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let members = MEMBERS.get_or_try_init(py, || -> PyResult<[Py<PyAny>; 15]> {
            let class = py.import("qaic.rt.enums")?.getattr("QStatus")?;
            let mut members = ALL.map(|_| py.None());
            for (slot, (_, name)) in members.iter_mut().zip(ALL) {
                *slot = class.getattr(name)?.unbind();
            }
            Ok(members)
        })?;
        // `ALL` is in the order of the variants.
        Ok(members.get(self as usize).unwrap_or(&members[0]).clone_ref(py))
    }

    /// Name of the member.
    pub(crate) fn name(self) -> &'static str {
        // `ALL` is in the order of the variants.
        ALL.get(self as usize).unwrap_or(&ALL[0]).1
    }

    /// The status of `error`.
    pub(crate) fn of(error: &RuntimeError) -> Self {
        match error.detail() {
            ErrorDetail::Input(
                InputError::Argument { .. }
                | InputError::Arguments(_)
                | InputError::BufferSize { .. }
                | InputError::NoMatchingShape { .. }
                | InputError::StateRequired { .. },
            )
            | ErrorDetail::State(
                StateError::Invalid { .. }
                | StateError::InFlight
                | StateError::LiveExecObjs { .. }
                | StateError::UnknownInference { .. }
                | StateError::NothingSubmitted,
            ) => Self::Inval,
            // Cores that restart come back.
            ErrorDetail::State(StateError::QueueFull { .. })
            | ErrorDetail::Card(CardError::Firmware { status: -36, .. }) => Self::Again,
            ErrorDetail::Device(DeviceError::OutOfMemory { .. }) => Self::NoMem,
            ErrorDetail::Device(
                DeviceError::Busy { .. } | DeviceError::Lost { .. } | DeviceError::Unavailable { .. },
            )
            | ErrorDetail::Card(
                CardError::ChannelLost { .. }
                | CardError::FirmwareVersion { .. }
                | CardError::Firmware { .. },
            ) => Self::DevError,
            ErrorDetail::Card(CardError::FirmwareProtocol { .. }) => Self::Protocol,
            ErrorDetail::Card(CardError::Permission { .. }) => Self::Perm,
            ErrorDetail::Card(CardError::RingFull { .. }) => Self::Busy,
            ErrorDetail::Card(CardError::Driver { source, .. }) => {
                source.raw_os_error().map_or(Self::Error, Self::of_driver)
            }
            ErrorDetail::Device(DeviceError::NotFound { .. } | DeviceError::TooFew { .. }) => Self::NoDev,
            ErrorDetail::Timeout { .. } => Self::TimedOut,
            ErrorDetail::Input(InputError::UnsupportedTransform { .. })
            | ErrorDetail::Device(DeviceError::Unsupported { .. }) => Self::Unsupported,
            _ => Self::Error,
        }
    }
}

impl QStatus {
    /// The status of an error of a driver's call.
    const fn of_driver(errno: i32) -> Self {
        match errno {
            1 | 13 => Self::Perm,
            11 => Self::Again,
            12 => Self::NoMem,
            16 => Self::Busy,
            6 | 19 => Self::NoDev,
            5 => Self::DevError,
            2 | 14 | 22 => Self::Inval,
            28 => Self::NoSpc,
            9 => Self::BadFd,
            110 => Self::TimedOut,
            25 => Self::Unsupported,
            // Of a control message; on the data path it is a lost channel, which is an error of its own.
            32 => Self::DataCrcError,
            _ => Self::Error,
        }
    }
}

/// What the caller was doing; names the object in log lines and decides what an error handler hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Context,
    Program,
    ProgramLoad,
    ProgramActivation,
    Queue,
    ExecObj,
    InferenceSet,
}

impl Origin {
    /// The object's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Context => "Context",
            Self::Program | Self::ProgramLoad | Self::ProgramActivation => "Program",
            Self::Queue => "Queue",
            Self::ExecObj => "ExecObj",
            Self::InferenceSet => "InferenceSet",
        }
    }

    const fn failure(self) -> ErrorType {
        ErrorType(match self {
            Self::Context => 0x101,
            Self::Program | Self::ProgramLoad => 0x201,
            Self::ProgramActivation => 0x202,
            Self::Queue => 0x401,
            Self::ExecObj | Self::InferenceSet => 0x501,
        })
    }
}

/// Why a call has no result: what Python raised, or a failure that becomes a status.
pub(crate) enum Refusal {
    Raised(PyErr),
    Failed(QStatus, RuntimeError),
}

/// What a call gives, or why there is none.
pub(crate) type Answer<T = ()> = Result<T, Refusal>;

impl From<PyErr> for Refusal {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl From<RuntimeError> for Refusal {
    fn from(error: RuntimeError) -> Self {
        Self::Failed(QStatus::of(&error), error)
    }
}

impl Refusal {
    /// The same with `status`, if the error is one of those.
    pub(crate) fn with_status(self, status: QStatus, is_one: impl FnOnce(&ErrorDetail) -> bool) -> Self {
        match self {
            Self::Failed(_, error) if is_one(error.detail()) => Self::Failed(status, error),
            other => other,
        }
    }

    /// [`QStatus::Busy`] while an inference is under way: what it uses cannot be touched now; later it can.
    pub(crate) fn busy_in_flight(self) -> Self {
        self.with_status(QStatus::Busy, |detail| matches!(detail, ErrorDetail::State(StateError::InFlight)))
    }
}

/// The caller's mistake.
pub(crate) fn refused(what: impl Into<String>) -> RuntimeError {
    InputError::Argument { what: what.into() }.into()
}

/// Runs `work` without the interpreter lock. An exception only for what no status can say: a signal, a panic.
pub(crate) fn outcome<T: Ungil + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, RuntimeError> + Ungil + Send,
) -> Answer<T> {
    let outcome = py.detached(|| Ok(work()))?;
    if matches!(&outcome, Err(error) if error.is_interrupted())
        && let Some(signal) = gil::take_signal()
    {
        return Err(signal.into());
    }
    Ok(outcome?)
}

/// The status of a call that gives nothing else.
pub(crate) fn reply(
    py: Python<'_>,
    context: &Context,
    origin: Origin,
    answer: Answer,
) -> PyResult<Py<PyAny>> {
    match answer {
        Ok(()) => QStatus::Success.member(py),
        Err(refusal) => refuse(py, context, origin, refusal),
    }
}

/// (status, value) of a call, or (status, `None`).
pub(crate) fn reply_with<'py, T: IntoPyObject<'py>>(
    py: Python<'py>,
    context: &Context,
    origin: Origin,
    answer: Answer<T>,
) -> PyResult<Bound<'py, PyTuple>> {
    match answer {
        Ok(value) => (QStatus::Success.member(py)?, value).into_pyobject(py),
        Err(refusal) => (refuse(py, context, origin, refusal)?, py.None()).into_pyobject(py),
    }
}

/// The status of a call that failed, after saying why in the log. What the caller did wrong is only said there; what failed
/// is reported to the error handler too.
pub(crate) fn refuse(
    py: Python<'_>,
    context: &Context,
    origin: Origin,
    refusal: Refusal,
) -> PyResult<Py<PyAny>> {
    let (status, error) = match refusal {
        Refusal::Raised(error) => return Err(error),
        Refusal::Failed(status, error) => (status, error),
    };
    match status {
        QStatus::Inval | QStatus::Busy | QStatus::Unsupported => {
            context.logger().error(|| format!("{}: {error}", origin.name()));
        }
        _ => context.logger().failure(origin.failure(), &format!("{}: {error}", origin.name())),
    }
    status.member(py)
}
