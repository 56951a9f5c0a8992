//! Meaning of the errors of the driver's calls. No other file of this device looks at an errno.

use std::io;
use std::sync::Arc;

use qaic_kmd::Errno;
use qaic_kmd::kmd::AccelFile;

use crate::error::{CardError, DeviceError, ErrorDetail, RuntimeError};

/// Meaning of an error of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataPath {
    /// A signal came; nothing has happened.
    Interrupted,
    /// The ring has no room.
    RingFull,
    /// The wait was too short.
    TimedOut,
    /// The card is gone or in reset.
    DeviceLost,
    /// The cores of the channel are restarted.
    ChannelLost,
    /// The channel is not ours any more, for either reason.
    Lost,
    /// The buffer object is queued.
    Busy,
    /// The kernel takes the arguments for wrong: also said of what a channel had that was lost, or is busy.
    Invalid,
    /// Anything else.
    Other,
}

impl DataPath {
    pub(super) const fn of(errno: Errno) -> Self {
        match errno {
            Errno::INTR => Self::Interrupted,
            Errno::AGAIN => Self::RingFull,
            Errno::TIMEDOUT => Self::TimedOut,
            Errno::NODEV | Errno::NXIO | Errno::IO => Self::DeviceLost,
            Errno::PIPE => Self::ChannelLost,
            Errno::PERM => Self::Lost,
            Errno::BUSY => Self::Busy,
            Errno::INVAL => Self::Invalid,
            _ => Self::Other,
        }
    }
}

/// Meaning of an error of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// A signal came.
    Interrupted,
    /// The firmware refused; its reply says why.
    Refused,
    /// The driver had no room to send it.
    Busy,
    /// The channel is not ours, or not any more.
    NotOurs,
    /// The card is gone or in reset.
    DeviceLost,
    /// Anything else.
    Other,
}

impl Control {
    pub(super) const fn of(errno: Errno) -> Self {
        match errno {
            Errno::INTR => Self::Interrupted,
            Errno::CANCELED => Self::Refused,
            Errno::AGAIN => Self::Busy,
            Errno::PERM => Self::NotOurs,
            Errno::NODEV | Errno::NXIO | Errno::IO => Self::DeviceLost,
            _ => Self::Other,
        }
    }
}

/// Meaning of an error of opening a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// The user may not.
    NoPermission,
    /// There is no node.
    NoNode,
    /// The card is offline.
    Offline,
    /// It is a node of another driver.
    OtherDriver,
    /// Anything else.
    Other,
}

impl Opening {
    pub(super) const fn of(errno: Errno) -> Self {
        match errno {
            Errno::ACCESS | Errno::PERM => Self::NoPermission,
            Errno::NOENT => Self::NoNode,
            Errno::NODEV | Errno::NXIO => Self::Offline,
            Errno::NOTTY => Self::OtherDriver,
            _ => Self::Other,
        }
    }
}

/// Why a card was not reset.
pub(super) fn not_reset(device: u32, errno: Errno) -> RuntimeError {
    match errno {
        Errno::OPNOTSUPP => ErrorDetail::Device(DeviceError::Unsupported {
            what: format!("a reset of device {device}: it is part of a card, or its driver offers none"),
        })
        .into(),
        Errno::ACCESS | Errno::PERM => failed(device, "a reset, which is for root alone,", errno, 0),
        _ => failed(device, "a reset", errno, 0),
    }
}

/// Returns whether an error of the source of events means only that some events were lost.
pub(super) fn are_events_lost(errno: Errno) -> bool {
    errno == Errno::NOBUFS
}

/// A call that signals interrupt is made again this often.
pub(super) const MOST_SIGNALS: u32 = 1000;

/// A control message that the driver had no room for is sent again this often. The driver waits for room itself.
pub(super) const MOST_BUSY: u32 = 5;

/// Makes a call again whenever a signal has interrupted it.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..MOST_SIGNALS {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
    Err(Errno::INTR)
}

/// The error of a call; `bytes` are those that it was to get.
pub(super) fn failed(device: u32, call: &'static str, errno: Errno, bytes: u64) -> RuntimeError {
    match errno {
        Errno::NOMEM => {
            ErrorDetail::Device(DeviceError::OutOfMemory { bytes, what: "a buffer object" }).into()
        }
        _ => ErrorDetail::Card(CardError::Driver {
            id: device,
            call,
            source: Arc::new(io::Error::from(errno)),
        })
        .into(),
    }
}

/// [`failed`], in the words of the open card where it has any.
pub(super) fn failed_on(
    file: &dyn AccelFile,
    device: u32,
    call: &'static str,
    errno: Errno,
    bytes: u64,
) -> RuntimeError {
    match file.explain(errno) {
        Some(reason) => ErrorDetail::Card(CardError::Driver {
            id: device,
            call,
            source: Arc::new(io::Error::other(reason)),
        })
        .into(),
        None => failed(device, call, errno, bytes),
    }
}
