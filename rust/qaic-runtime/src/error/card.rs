//! Errors that only cards have.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A card or its driver refused, or a program says what no card can do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// A channel of a card went away, with all that was queued on it; the rest of the card goes on.
    #[error("channel {channel} of device {device} is lost: {reason}")]
    ChannelLost {
        /// Device.
        device: u32,
        /// Channel.
        channel: u32,
        /// The observation.
        reason: String,
    },

    /// The user may not open the device.
    #[error("device {id}: no permission to open {}; {fix}", path.display())]
    Permission {
        /// Device.
        id: u32,
        /// Its node.
        path: PathBuf,
        /// Users that may open it, and how to become one of them.
        fix: String,
    },

    /// The firmware of a card speaks another version.
    #[error("device {id}: its firmware has {what} version {found}, expected {expected}")]
    FirmwareVersion {
        /// Device.
        id: u32,
        /// The part with this version.
        what: &'static str,
        /// Version found.
        found: String,
        /// Version expected.
        expected: &'static str,
    },

    /// The firmware of a card refused.
    #[error("device {id}: the firmware refused to {what}: {name} ({status})")]
    Firmware {
        /// Device.
        id: u32,
        /// The purpose of the call.
        what: &'static str,
        /// Its status (docs/reference/card.md).
        status: i32,
        /// Meaning of the status.
        name: &'static str,
    },

    /// A card answered something else than its protocol says.
    #[error("device {id}: invalid reply to \"{what}\": {reason}")]
    FirmwareProtocol {
        /// Device.
        id: u32,
        /// The request.
        what: &'static str,
        /// The value found, and the expected one.
        reason: String,
    },

    /// A system call of a card's driver failed.
    #[error("device {id}: {call} failed: {}", meaning(call, source))]
    Driver {
        /// Device.
        id: u32,
        /// The call.
        call: &'static str,
        /// The system's error.
        source: Arc<io::Error>,
    },

    /// The ring of a channel had no room for an inference, again and again.
    #[error(
        "device {device}: the ring of channel {channel} had no room for an inference in {attempts} attempts; \
         {elements} elements are needed"
    )]
    RingFull {
        /// Device.
        device: u32,
        /// Channel.
        channel: u32,
        /// How often it was tried.
        attempts: u32,
        /// Elements that an inference of the program needs.
        elements: u32,
    },

    /// A program says something of its transfers that no card can do.
    #[error("the program cannot run on a card: {what}")]
    Transfers {
        /// The defect, the value found, and the possible ones.
        what: String,
    },
}

const WRONG_CHECKSUM: &str = "the checksum of the firmware's reply is wrong";
const SILENT: &str = "the firmware did not reply in time";
const NO_ROOM: &str = "the driver had no room to send it, after several attempts";

/// Returns the meaning of a system error for a call; errors that the driver uses in a sense of its own, in
/// that sense.
fn meaning(call: &str, source: &io::Error) -> String {
    let sense = match (call, source.kind()) {
        ("MANAGE", io::ErrorKind::BrokenPipe) => WRONG_CHECKSUM,
        ("MANAGE", io::ErrorKind::TimedOut) => SILENT,
        ("MANAGE", io::ErrorKind::WouldBlock) => NO_ROOM,
        _ => return source.to_string(),
    };
    format!("{sense} ({source})")
}

impl CardError {
    /// Stable slug of the variant.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::ChannelLost { .. } => "device.channel_lost",
            Self::Permission { .. } => "device.permission",
            Self::FirmwareVersion { .. } => "device.firmware_version",
            Self::Firmware { .. } => "device.firmware",
            Self::FirmwareProtocol { .. } => "device.firmware_protocol",
            Self::Driver { .. } => "device.driver",
            Self::RingFull { .. } => "device.ring_full",
            Self::Transfers { .. } => "program.transfers",
        }
    }
}
