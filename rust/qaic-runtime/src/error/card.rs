//! Errors that only cards report.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use qaic_qpc::counted;

qaic_qpc::errors! {
    /// A card or its driver refused, or a program requires a feature that no card has.
    #[derive(Clone, Debug, thiserror::Error)]
    pub enum CardError: "DeviceError" {
        /// A channel of a card is lost, with all its queued inferences; the rest of the card still works.
        #[error("channel {channel} of device {device} is lost: {reason}")]
        ChannelLost {
            device: u32 = 0, channel: u32 = 3, reason: String = "its cores were restarted".into(),
        } => "device.channel_lost" "DeviceLostError" [device, channel]
            hint "reset() the session, or deactivate and activate the program",
        /// The user lacks the permission to open the device.
        #[error("device {id}: no permission to open {}; {fix}", path.display())]
        Permission {
            id: u32 = 0, path: PathBuf = "/dev/accel/accel0".into(),
            fix: String = "it belongs to the group render".into(),
        } => "device.permission" [id as "device", path],
        /// The firmware of a card has an incompatible version.
        #[error("device {id}: its firmware has {what} version {found}, expected {expected}")]
        FirmwareVersion {
            id: u32 = 0, what: &'static str = "command protocol", found: String = "18.0".into(),
            expected: &'static str = "17",
        } => "device.firmware_version" [id as "device", what, found, expected]
            hint "install the firmware for this version of the runtime, or use another card",
        /// The firmware of a card refused.
        #[error("device {id}: the firmware refused to {what}: {name} ({status})")]
        Firmware {
            id: u32 = 0, what: &'static str = "activate the program", status: i32 = -13,
            name: &'static str = "NSP alloc",
        } => "device.firmware" [id as "device", what, status, name],
        /// A reply of a card violates the protocol.
        #[error("device {id}: invalid reply to \"{what}\": {reason}")]
        FirmwareProtocol {
            id: u32 = 0, what: &'static str = "activate the program",
            reason: String = "channel 16, expected a number below 16".into(),
        } => "device.firmware_protocol" [id as "device", what],
        /// A system call of a card's driver failed.
        #[error("device {id}: {call} failed: {}", meaning(call, source))]
        Driver {
            id: u32 = 0, call: &'static str = "CREATE_BO",
            source: Arc<io::Error> = Arc::new(io::Error::from_raw_os_error(22)),
        } => "device.driver" [id as "device", call],
        /// The ring of a channel had no room for an inference, even after many attempts.
        #[error(
            "device {device}: the ring of channel {channel} had no room in {} for an inference of {}",
            counted(attempts, "attempt"),
            counted(elements, "element")
        )]
        RingFull {
            device: u32 = 0, channel: u32 = 3, attempts: u32 = 50, elements: u32 = 12,
        } => "device.ring_full" "DeviceBusyError" [device, channel, attempts, elements]
            hint "submit fewer inferences at a time: lower set_size",
        /// The transfers of a program are impossible on a card.
        #[error("the program cannot run on a card: {what}")]
        Transfers {
            what: String = "DMA request 3 ends at byte 80 of DMA buffer 1, which has 64".into(),
        } => "program.transfers",
    }
}

const WRONG_CHECKSUM: &str = "the checksum of the firmware's reply is wrong";
const SILENT: &str = "the firmware did not reply in time";
const NO_ROOM: &str = "the driver had no room to send the message after several attempts";

/// Returns the meaning of a system error for a call, including errors that the driver uses with a special meaning.
fn meaning(call: &str, source: &io::Error) -> String {
    let sense = match (call, source.kind()) {
        ("MANAGE", io::ErrorKind::BrokenPipe) => WRONG_CHECKSUM,
        ("MANAGE", io::ErrorKind::TimedOut) => SILENT,
        ("MANAGE", io::ErrorKind::WouldBlock) => NO_ROOM,
        _ => return source.to_string(),
    };
    format!("{sense} ({source})")
}
