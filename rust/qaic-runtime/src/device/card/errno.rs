//! Interpretation of the driver's error codes. No other file of this device interprets an errno.

use std::io;
use std::sync::Arc;

use qaic_kmd::{AccelFile, Errno};

use crate::error::{CardError, DeviceError, RuntimeError};

/// Meaning of an error of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataPath {
    /// A signal interrupted the call, which had no effect.
    Interrupted,
    /// The ring has no room.
    RingFull,
    /// The time limit of the wait has passed.
    TimedOut,
    /// The card is gone or in reset.
    DeviceLost,
    /// The cores of the channel are restarting.
    ChannelLost,
    /// The channel no longer belongs to this user: the device or the channel is lost.
    Lost,
    /// The buffer object is queued.
    Busy,
    /// The kernel refuses the arguments. It also reports this for objects of a lost or busy channel.
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
    /// A signal interrupted the call.
    Interrupted,
    /// The firmware refused; its reply contains the reason.
    Refused,
    /// The driver had no room for the message.
    Busy,
    /// The channel does not belong to this user, or no longer does.
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
    /// The user lacks the permission.
    NoPermission,
    /// The node does not exist.
    NoNode,
    /// The card is offline.
    Offline,
    /// The node belongs to another driver.
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

/// Returns the error for a failed reset of a card.
pub(super) fn not_reset(device: u32, errno: Errno) -> RuntimeError {
    match errno {
        Errno::OPNOTSUPP => DeviceError::Unsupported {
            what: format!("a reset of device {device}: it is part of a card, or its driver offers none"),
        }
        .into(),
        Errno::ACCESS | Errno::PERM => failed(device, "a reset, which only root can request,", errno, 0),
        _ => failed(device, "a reset", errno, 0),
    }
}

/// Returns true if an error of the source of events means only that some events were lost.
pub(super) fn are_events_lost(errno: Errno) -> bool {
    errno == Errno::NOBUFS
}

/// Maximum number of repetitions of a call that signals interrupt.
pub(super) const MOST_SIGNALS: u32 = 1000;

/// Maximum number of repetitions of a control message for which the driver had no room. The driver itself also waits
/// for room.
pub(super) const MOST_BUSY: u32 = 5;

/// Repeats a call whenever a signal interrupts it.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..MOST_SIGNALS {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
    Err(Errno::INTR)
}

/// Returns the error of a call; `bytes` is the amount of memory that it requested.
pub(super) fn failed(device: u32, call: &'static str, errno: Errno, bytes: u64) -> RuntimeError {
    match errno {
        Errno::NOMEM => DeviceError::OutOfMemory { bytes, what: "a buffer object" }.into(),
        _ => CardError::Driver { id: device, call, source: Arc::new(io::Error::from(errno)) }.into(),
    }
}

/// Returns the error as [`failed`] does, or a more specific error for an open card.
pub(super) fn failed_on(
    file: &dyn AccelFile,
    device: u32,
    call: &'static str,
    errno: Errno,
    bytes: u64,
) -> RuntimeError {
    match file.explain(errno) {
        Some(reason) => {
            CardError::Driver { id: device, call, source: Arc::new(io::Error::other(reason)) }.into()
        }
        None => failed(device, call, errno, bytes),
    }
}
