//! The error type of the runtime.
//!
//! Errors contain data, so that the Python layer can fill `context`, and callers can branch on
//! [`RuntimeError::code`]. The failed component determines the type of the source: a device, a card, the engine, the
//! caller's input, or the state of an object.

mod card;
mod device;
mod engine;
mod input;
mod report;
mod state;
mod status;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use qaic_mem::MemoryError;
use qaic_qpc::QpcError;
use qaic_qpc::plan::PlanError;

use crate::binding::ArgumentError;

pub use card::CardError;
pub use device::DeviceError;
pub use engine::EngineError;
pub use input::InputError;
pub use state::StateError;
pub use status::QStatus;

/// An error; [`RuntimeError::detail`] returns its data. An error is one pointer, because every step of an inference
/// returns it.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct RuntimeError(Box<ErrorDetail>);

qaic_qpc::errors! {
    /// An error with the data for its message.
    #[derive(Clone, Debug, thiserror::Error)]
    pub enum ErrorDetail: "InternalError" {
        /// A file could not be read or mapped.
        #[error("{}: {source}", path.display())]
        Io {
            path: PathBuf = "model/programqpc.bin".into(),
            source: Arc<io::Error> = Arc::new(io::Error::from_raw_os_error(13)),
        } => "file.io" "OSError",
        /// A wait ended without its event.
        #[error("timed out after {timeout_ms} ms waiting for {what}")]
        Timeout { what: &'static str = "an inference", timeout_ms: u64 = 5000 }
            => "device.timeout" "DeviceTimeoutError" [timeout_ms],
        /// The caller interrupted the call.
        #[error("interrupted")]
        Interrupted => "call.interrupted" "KeyboardInterrupt",
        /// The inference was cancelled.
        #[error("the inference was cancelled")]
        Cancelled => "inference.cancelled" "InferenceError",
        /// A bug of this library.
        #[error("internal error: {what}")]
        Internal { what: String = "...".into() } => "internal",
    }
    sources {
        /// The container is malformed or beyond the limits.
        #[error(transparent)]
        Qpc(QpcError),
        /// A device failed.
        #[error(transparent)]
        Device(DeviceError),
        /// A card failed.
        #[error(transparent)]
        Card(CardError),
        /// The engine failed.
        #[error(transparent)]
        Engine(EngineError),
        /// The caller's input is invalid.
        #[error(transparent)]
        Input(InputError),
        /// The state of an object does not permit the call.
        #[error(transparent)]
        State(StateError),
    }
}

impl<T> From<T> for RuntimeError
where
    ErrorDetail: From<T>,
{
    // Cold: only errors allocate on the path of an inference.
    #[cold]
    fn from(detail: T) -> Self {
        Self(Box::new(detail.into()))
    }
}

impl From<qaic_sched::Error> for ErrorDetail {
    fn from(error: qaic_sched::Error) -> Self {
        use qaic_sched::Error;
        match error {
            Error::Interrupted => Self::Interrupted,
            Error::Cancelled => Self::Cancelled,
            Error::Timeout { what, timeout_ms } => Self::Timeout { what, timeout_ms },
            Error::InFlight => StateError::InFlight.into(),
            Error::Forked => StateError::Forked.into(),
            Error::QueueFull { capacity } => StateError::QueueFull { capacity }.into(),
            Error::TooManyRequests { most } => InputError::Argument {
                what: format!("the program already has {most} exec objects, the maximum"),
            }
            .into(),
            Error::NoJob { .. } => Self::Internal { what: error.to_string() },
        }
    }
}

impl From<MemoryError> for ErrorDetail {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Io { path, source } => Self::Io { path, source },
            MemoryError::OutOfMemory { bytes, what } => DeviceError::OutOfMemory { bytes, what }.into(),
        }
    }
}

impl From<ArgumentError> for ErrorDetail {
    fn from(error: ArgumentError) -> Self {
        Self::Input(error.into())
    }
}

impl From<PlanError> for ErrorDetail {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Qpc(error) => Self::Qpc(error),
            error => EngineError::Graph { message: error.to_string() }.into(),
        }
    }
}

impl RuntimeError {
    /// The error of an argument that is not valid.
    pub fn argument(what: impl Into<String>) -> Self {
        InputError::Argument { what: what.into() }.into()
    }

    /// The error of a bug of this library.
    pub(crate) fn internal(what: impl Into<String>) -> Self {
        ErrorDetail::Internal { what: what.into() }.into()
    }

    /// The kind of the error, and its data.
    pub fn detail(&self) -> &ErrorDetail {
        &self.0
    }

    /// The kind of the error, and its data.
    pub(crate) fn into_detail(self) -> ErrorDetail {
        *self.0
    }

    /// Returns one example of each error of this crate.
    pub fn examples() -> impl Iterator<Item = Self> {
        ErrorDetail::examples()
            .into_iter()
            .chain(DeviceError::examples().into_iter().map(ErrorDetail::from))
            .chain(CardError::examples().into_iter().map(ErrorDetail::from))
            .chain(EngineError::examples().into_iter().map(ErrorDetail::from))
            .chain(InputError::examples().into_iter().map(ErrorDetail::from))
            .chain(ArgumentError::examples().into_iter().map(ErrorDetail::from))
            .chain(StateError::examples().into_iter().map(ErrorDetail::from))
            .map(Self::from)
    }

    /// Returns true if the time limit of the call passed.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self.detail(), ErrorDetail::Timeout { .. })
    }

    /// Returns true if the caller interrupted the call.
    pub fn is_interrupted(&self) -> bool {
        matches!(self.detail(), ErrorDetail::Interrupted)
    }

    /// Status with which a card's firmware refused.
    pub(crate) fn firmware_status(&self) -> Option<i32> {
        match self.detail() {
            ErrorDetail::Card(CardError::Firmware { status, .. }) => Some(*status),
            _ => None,
        }
    }

    /// Stable code of the error kind. Texts may change; codes do not.
    pub fn code(&self) -> &'static str {
        self.detail().code()
    }
}
