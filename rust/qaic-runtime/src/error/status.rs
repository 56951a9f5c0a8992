//! Status codes that calls of the low-level interface return.

use super::{CardError, DeviceError, ErrorDetail, InputError, RuntimeError, StateError};

macro_rules! statuses {
    ($($status:ident $name:literal,)*) => {
        /// Status of a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // docs/reference/errors.md lists the status of each error
        pub enum QStatus {
            $($status,)*
        }

        impl QStatus {
            /// Names of the statuses, in the order of the variants.
            pub const NAMES: [&'static str; 15] = [$($name),*];
        }
    };
}

statuses! {
    Success "QS_SUCCESS",
    Perm "QS_PERM",
    Again "QS_AGAIN",
    NoMem "QS_NOMEM",
    Busy "QS_BUSY",
    NoDev "QS_NODEV",
    Inval "QS_INVAL",
    NoSpc "QS_NOSPC",
    BadFd "QS_BADFD",
    TimedOut "QS_TIMEDOUT",
    Protocol "QS_PROTOCOL",
    Unsupported "QS_UNSUPPORTED",
    DataCrcError "QS_DATA_CRC_ERROR",
    DevError "QS_DEV_ERROR",
    Error "QS_ERROR",
}

impl QStatus {
    /// Name of the status.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns the status of `error`.
    pub fn of(error: &RuntimeError) -> Self {
        match error.detail() {
            ErrorDetail::Input(InputError::UnsupportedTransform { .. })
            | ErrorDetail::Device(DeviceError::Unsupported { .. }) => Self::Unsupported,
            ErrorDetail::Input(InputError::IoCrc { .. }) | ErrorDetail::State(StateError::Forked) => {
                Self::Error
            }
            // Cores that restart become available again.
            ErrorDetail::State(StateError::QueueFull { .. })
            | ErrorDetail::Card(CardError::Firmware { status: -36, .. }) => Self::Again,
            ErrorDetail::Input(_) | ErrorDetail::State(_) => Self::Inval,
            ErrorDetail::Device(DeviceError::HostMemory { .. } | DeviceError::OutOfMemory { .. }) => {
                Self::NoMem
            }
            ErrorDetail::Device(DeviceError::NotFound { .. } | DeviceError::TooFew { .. }) => Self::NoDev,
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
            ErrorDetail::Timeout { .. } => Self::TimedOut,
            _ => Self::Error,
        }
    }

    /// Returns the status for an error of a driver's call.
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
            // Status of a control message; on the data path it means a lost channel, which is a separate error.
            32 => Self::DataCrcError,
            _ => Self::Error,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn each_status_has_the_name_of_its_place() {
        assert_eq!(QStatus::Success.name(), "QS_SUCCESS");
        assert_eq!(QStatus::Inval.name(), "QS_INVAL");
        assert_eq!(QStatus::DataCrcError.name(), "QS_DATA_CRC_ERROR");
        assert_eq!(QStatus::Error.name(), "QS_ERROR");
        assert_eq!(QStatus::Error as usize + 1, QStatus::NAMES.len());
    }

    #[test]
    fn status_of_a_driver_is_that_of_its_errno() {
        for (errno, status) in [
            (13, QStatus::Perm),
            (19, QStatus::NoDev),
            (22, QStatus::Inval),
            (32, QStatus::DataCrcError),
            (110, QStatus::TimedOut),
            (7, QStatus::Error),
        ] {
            let source = Arc::new(io::Error::from_raw_os_error(errno));
            assert_eq!(QStatus::of(&CardError::Driver { id: 0, call: "MANAGE", source }.into()), status);
        }
    }

    #[test]
    fn mistakes_of_the_caller_are_invalid_and_what_passes_is_worth_another_try() {
        let invalid = |error: RuntimeError| assert_eq!(QStatus::of(&error), QStatus::Inval, "{error}");
        invalid(InputError::Argument { what: "x".to_owned() }.into());
        invalid(StateError::NothingSubmitted.into());
        invalid(StateError::LiveExecObjs { count: 1 }.into());
        assert_eq!(QStatus::of(&StateError::QueueFull { capacity: 1 }.into()), QStatus::Again);
        assert_eq!(QStatus::of(&StateError::Forked.into()), QStatus::Error);
        for (status, expected) in [(-36, QStatus::Again), (-13, QStatus::DevError)] {
            let error = CardError::Firmware { id: 0, what: "load", status, name: "name" };
            assert_eq!(QStatus::of(&error.into()), expected);
        }
    }
}
