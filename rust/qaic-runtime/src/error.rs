//! The one error type of the runtime.
//!
//! Variants carry data, not sentences, so that the Python layer can fill `context` and callers can branch on
//! [`RuntimeError::code`]. They follow four meanings: the environment failed (device, engine, file), the input was
//! malformed, the caller asked for something impossible, or a bug of ours showed.

mod catalogue;

use std::path::PathBuf;
use std::sync::Arc;

use qaic_qpc::error::QpcError;

/// How to get more devices of a kind.
fn more_devices(needed: u32, kind: &str, hidden: usize) -> String {
    match (hidden, kind) {
        (0, "cpu") => format!("; set QAIC_CPU_DEVICES={needed} to have {needed} virtual cards"),
        (0, _) => String::new(),
        (hidden, _) => format!("; {hidden} more can be named in QAIC_VISIBLE_DEVICES"),
    }
}

/// What went wrong, with the figures needed to say so.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The container is malformed or beyond the limits.
    #[error(transparent)]
    Qpc(#[from] QpcError),

    /// A file could not be read or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: Arc<std::io::Error>,
    },

    /// A sequence of transform steps has no host implementation.
    #[error("binding `{binding}`: transform step {step} ({kind}) cannot run on the host")]
    UnsupportedTransform {
        /// Binding name.
        binding: String,
        /// Position in the sequence.
        step: usize,
        /// Kind of the step as the descriptor names it.
        kind: String,
    },

    /// A buffer has the wrong number of bytes.
    #[error("buffer `{buffer}`: {found} bytes given, {expected} expected")]
    BufferSize {
        /// Binding or DMA buffer.
        buffer: String,
        /// Bytes the program needs.
        expected: u64,
        /// Bytes given.
        found: u64,
    },

    /// The container was built for something this device cannot run.
    #[error("the container was built for {built_for}; device {device} ({kind}) cannot run it: {reason}")]
    WrongTarget {
        /// Target the container names.
        built_for: String,
        /// Device asked.
        device: u32,
        /// Kind of that device.
        kind: &'static str,
        /// What is missing.
        reason: String,
    },

    /// The program was compiled for another hardware family.
    #[error("the program was compiled for {built_for}; device {device} is of the hardware family {family}")]
    HardwareFamily {
        /// Family the container names.
        built_for: String,
        /// Device asked.
        device: u32,
        /// Its family.
        family: &'static str,
    },

    /// No device with this id.
    #[error("device {id} does not exist; existing ids: {existing:?}")]
    DeviceNotFound {
        /// Id asked for.
        id: u32,
        /// Ids that exist.
        existing: Vec<u32>,
    },

    /// A program needs more devices than can be chosen from.
    #[error(
        "the program is partitioned for {needed} devices; of kind `{kind}` there {} {}, with the ids {existing:?}{}",
        if existing.len() == 1 { "is" } else { "are" },
        existing.len(),
        more_devices(*needed, kind, *hidden)
    )]
    TooFewDevices {
        /// Devices it needs.
        needed: u32,
        /// Kind of the devices it runs on.
        kind: &'static str,
        /// Ids of those of them that could be chosen.
        existing: Vec<u32>,
        /// Number of those that `QAIC_VISIBLE_DEVICES` hides.
        hidden: usize,
    },

    /// `QAIC_DEVICE` or an argument names a kind of device that does not exist.
    #[error("device kind `{kind}` does not exist; known kinds: {known}")]
    DeviceKind {
        /// Kind asked for.
        kind: String,
        /// Kinds that exist.
        known: &'static str,
    },

    /// Not enough free cores.
    #[error("device {id} has {free} free cores of {total}; {needed} are needed")]
    DeviceBusy {
        /// Device.
        id: u32,
        /// Cores needed.
        needed: u32,
        /// Cores free.
        free: u32,
        /// Cores of the device.
        total: u32,
    },

    /// The device went away.
    #[error("device {id} is lost: {reason}")]
    DeviceLost {
        /// Device.
        id: u32,
        /// What was seen.
        reason: String,
    },

    /// A channel of a card went away, with all that was queued on it; the rest of the card goes on.
    #[error("channel {channel} of device {device} is lost: {reason}")]
    ChannelLost {
        /// Device.
        device: u32,
        /// Channel.
        channel: u32,
        /// What was seen.
        reason: String,
    },

    /// The device is there and cannot be used.
    #[error("device {id} cannot be used: {reason}")]
    DeviceUnavailable {
        /// Device.
        id: u32,
        /// Why not, and what helps.
        reason: String,
    },

    /// The user may not open the device.
    #[error("device {id}: no permission to open {}; {fix}", path.display())]
    DevicePermission {
        /// Device.
        id: u32,
        /// Its node.
        path: PathBuf,
        /// Who may, and how to become one of them.
        fix: String,
    },

    /// The firmware of a card speaks another version.
    #[error("device {id}: its firmware has {what} version {found}, and {expected} is needed")]
    FirmwareVersion {
        /// Device.
        id: u32,
        /// Of what.
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
        /// What it was to do.
        what: &'static str,
        /// Its status (device-kmd §2.7).
        status: i32,
        /// Meaning of the status.
        name: &'static str,
    },

    /// A card answered something else than its protocol says.
    #[error("device {id}: its answer to \"{what}\" is wrong: {reason}")]
    FirmwareProtocol {
        /// Device.
        id: u32,
        /// What it was asked for.
        what: &'static str,
        /// What was found, and what was expected.
        reason: String,
    },

    /// A system call of a card's driver failed.
    #[error("device {id}: {call} failed: {source}")]
    Driver {
        /// Device.
        id: u32,
        /// The call.
        call: &'static str,
        /// What the system said.
        source: Arc<std::io::Error>,
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
        /// What is wrong, what was found, and what is possible.
        what: String,
    },

    /// The device does not do this.
    #[error("not supported: {what}")]
    Unsupported {
        /// What is missing, and where it is.
        what: String,
    },

    /// Memory for a buffer could not be had.
    #[error("{bytes} bytes for {what} could not be allocated")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What they were for.
        what: &'static str,
    },

    /// A wait ended without its event.
    #[error("timed out after {timeout_ms} ms waiting for {what}")]
    Timeout {
        /// What was awaited.
        what: &'static str,
        /// The limit.
        timeout_ms: u64,
    },

    /// The caller interrupted the call.
    #[error("interrupted")]
    Interrupted,

    /// The engine of the host device is missing.
    #[error("{}", engine_missing(looked_at))]
    EngineMissing {
        /// Places looked at.
        looked_at: Vec<String>,
    },

    /// The engine of the host device cannot be used.
    #[error("{}: {reason}", path.display())]
    EngineUnusable {
        /// Library file.
        path: PathBuf,
        /// Version it reports, if it got that far.
        found: String,
        /// Why not.
        reason: String,
    },

    /// The engine refused the graph of a program.
    #[error("the engine refused the graph: {message}")]
    EngineGraph {
        /// The engine's words.
        message: String,
    },

    /// The engine failed during an inference.
    #[error("inference failed: {message}")]
    Inference {
        /// Status name.
        status: &'static str,
        /// The engine's words.
        message: String,
    },

    /// A buffer of a program compiled with `io_crc` was changed while an inference used it.
    #[error(
        "buffer `{binding}`, bytes {begin} to {} (section {section}): its CRC was {taken:#010x} when the inference was \
         {first} and is {found:#010x} when it is {second}; somebody wrote to it in between",
        end.saturating_sub(1)
    )]
    IoCrc {
        /// Binding name.
        binding: String,
        /// Section of the buffer.
        section: u64,
        /// First byte of the section.
        begin: u64,
        /// Byte after the section.
        end: u64,
        /// What was done with the inference when the first CRC was taken.
        first: &'static str,
        /// What was done with it when it was compared.
        second: &'static str,
        /// The first CRC.
        taken: u32,
        /// The second.
        found: u32,
    },

    /// The object belongs to the process that this one was forked from.
    #[error(
        "this object was made before the process was forked; its threads and cores are the parent's. Make it anew \
         in the child"
    )]
    Forked,

    /// The exec object or handle carries an inference that has not ended.
    #[error("its inference is under way; wait until it has ended")]
    InFlight,

    /// More inferences were submitted than there is room for.
    #[error("{capacity} inferences are submitted, and there is room for no more; wait for one")]
    QueueFull {
        /// Room.
        capacity: u32,
    },

    /// The program holds its cores for exec objects.
    #[error("exec objects of the program still exist, {count} in number; drop them first")]
    LiveExecObjs {
        /// How many.
        count: u32,
    },

    /// The shapes of the buffers are no permitted combination.
    #[error("No matching dimension found: {what}")]
    NoMatchingShape {
        /// What was passed and what is permitted.
        what: Arc<str>,
    },

    /// An input was left out that the device does not retain.
    #[error("input `{binding}` was left out, and the device keeps no value of it")]
    StateRequired {
        /// Binding name.
        binding: String,
    },

    /// No inference with this id is under way or waits to be collected.
    #[error("no inference with id {id} is under way or waits to be collected")]
    UnknownInference {
        /// Id asked for.
        id: u64,
    },

    /// There is no inference to wait for.
    #[error("no inference is under way or waits to be collected")]
    NothingSubmitted,

    /// The inference was cancelled.
    #[error("the inference was cancelled")]
    Cancelled,

    /// The call is not valid in the object's present state.
    #[error("{what}")]
    State {
        /// What is not valid.
        what: String,
    },

    /// An argument is not valid.
    #[error("{what}")]
    Argument {
        /// Which argument, what was found, what was expected.
        what: String,
    },

    /// A bug of ours.
    #[error("internal error: {what}")]
    Internal {
        /// What was seen.
        what: String,
    },
}

fn engine_missing(looked_at: &[String]) -> String {
    if looked_at.is_empty() {
        "the package onnxruntime, which holds the engine of the cpu device, is not installed".to_owned()
    } else {
        format!("the library of onnxruntime was not found; looked at: {}", looked_at.join(", "))
    }
}

impl RuntimeError {
    /// Stable slug of the variant; texts may change, slugs do not.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Qpc(source) => source.code(),
            Self::Io { .. } => "file.io",
            Self::UnsupportedTransform { .. } => "program.unsupported_transform",
            Self::BufferSize { .. } => "input.size",
            Self::WrongTarget { .. } => "device.wrong_target",
            Self::HardwareFamily { .. } => "device.hardware_family",
            Self::DeviceNotFound { .. } => "device.not_found",
            Self::TooFewDevices { .. } => "device.too_few",
            Self::DeviceKind { .. } => "device.kind",
            Self::DeviceBusy { .. } => "device.busy",
            Self::DeviceLost { .. } => "device.lost",
            Self::ChannelLost { .. } => "device.channel_lost",
            Self::DeviceUnavailable { .. } => "device.unavailable",
            Self::DevicePermission { .. } => "device.permission",
            Self::FirmwareVersion { .. } => "device.firmware_version",
            Self::Firmware { .. } => "device.firmware",
            Self::FirmwareProtocol { .. } => "device.firmware_protocol",
            Self::Driver { .. } => "device.driver",
            Self::RingFull { .. } => "device.ring_full",
            Self::Transfers { .. } => "program.transfers",
            Self::Unsupported { .. } => "device.unsupported",
            Self::OutOfMemory { .. } => "device.memory",
            Self::Timeout { .. } => "device.timeout",
            Self::Interrupted => "call.interrupted",
            Self::EngineMissing { .. } => "engine.missing",
            Self::EngineUnusable { .. } => "engine.unusable",
            Self::EngineGraph { .. } => "engine.graph",
            Self::Inference { .. } => "inference.failed",
            Self::IoCrc { .. } => "inference.io_crc",
            Self::Forked => "call.forked",
            Self::InFlight => "inference.in_flight",
            Self::QueueFull { .. } => "queue.full",
            Self::LiveExecObjs { .. } => "program.live_exec_objs",
            Self::NoMatchingShape { .. } => "input.no_matching_shape",
            Self::StateRequired { .. } => "input.state_required",
            Self::UnknownInference { .. } => "inference.unknown",
            Self::NothingSubmitted => "inference.none",
            Self::Cancelled => "inference.cancelled",
            Self::State { .. } => "call.state",
            Self::Argument { .. } => "call.argument",
            Self::Internal { .. } => "internal",
        }
    }
}
