//! One example of every error, for the reference page that lists codes, statuses and exceptions.

use std::io;
use std::sync::Arc;

use super::RuntimeError;

impl RuntimeError {
    /// One example of each variant of this crate, in the order of the variants. Errors of containers have a list of
    /// their own, `QpcError::examples`.
    pub fn examples() -> Vec<Self> {
        let text = str::to_owned;
        vec![
            Self::Io {
                path: "model/programqpc.bin".into(),
                source: Arc::new(io::Error::from_raw_os_error(13)),
            },
            Self::UnsupportedTransform { binding: text("image"), step: 1, kind: text("Shuffle") },
            Self::BufferSize { buffer: text("image"), expected: 64, found: 60 },
            Self::WrongTarget {
                built_for: text("a card"),
                device: 0,
                kind: "cpu",
                reason: text("it has no CPU program"),
            },
            Self::HardwareFamily { built_for: text("ai200"), device: 0, family: "ai100" },
            Self::DeviceNotFound { id: 7, existing: vec![0, 1] },
            Self::TooFewDevices { needed: 4, kind: "cpu", existing: vec![0], hidden: 0 },
            Self::DeviceKind { kind: text("gpu"), known: "cpu, kmd, noop" },
            Self::DeviceBusy { id: 0, needed: 4, free: 2, total: 16 },
            Self::DeviceLost { id: 0, reason: text("it was reset") },
            Self::ChannelLost { device: 0, channel: 3, reason: text("its cores were restarted") },
            Self::DeviceUnavailable {
                id: 0,
                reason: text("it has no node yet; its firmware may still be booting"),
            },
            Self::DevicePermission {
                id: 0,
                path: "/dev/accel/accel0".into(),
                fix: text("it belongs to the group render"),
            },
            Self::FirmwareVersion { id: 0, what: "command protocol", found: text("18.0"), expected: "17" },
            Self::Firmware { id: 0, what: "activate the program", status: -13, name: "NSP alloc" },
            Self::FirmwareProtocol {
                id: 0,
                what: "activate the program",
                reason: text("channel 16, below 16 expected"),
            },
            Self::Driver { id: 0, call: "CREATE_BO", source: Arc::new(io::Error::from_raw_os_error(22)) },
            Self::RingFull { device: 0, channel: 3, attempts: 50, elements: 12 },
            Self::Transfers { what: text("DMA request 3 ends at byte 80 of DMA buffer 1, which has 64") },
            Self::Unsupported { what: text("a dma-buf on a device of kind `cpu`") },
            Self::OutOfMemory { bytes: 1 << 40, what: "an output" },
            Self::Timeout { what: "an inference", timeout_ms: 5000 },
            Self::Interrupted,
            Self::EngineMissing { looked_at: Vec::new() },
            Self::EngineUnusable {
                path: "libonnxruntime.so.1.20".into(),
                found: text("1.20.0"),
                reason: text("version 1.20.0 is too old"),
            },
            Self::EngineGraph { message: text("a node has an input of the wrong type") },
            Self::Inference { status: "FAIL", message: text("an index is out of range") },
            Self::IoCrc {
                binding: text("image"),
                section: 2,
                begin: 512,
                end: 768,
                first: "submitted",
                second: "begun",
                taken: 0x1a2b_3c4d,
                found: 0x5e6f_7a8b,
            },
            Self::Forked,
            Self::InFlight,
            Self::QueueFull { capacity: 512 },
            Self::LiveExecObjs { count: 2 },
            Self::NoMatchingShape { what: "passed [[1, 5]], permitted [[1, 8]], [[1, 1]]".into() },
            Self::StateRequired { binding: text("image") },
            Self::UnknownInference { id: 7 },
            Self::NothingSubmitted,
            Self::Cancelled,
            Self::State { what: text("the program is not activated") },
            Self::Argument { what: text("set_size must be 1 or more, 0 given") },
            Self::Internal { what: text("...") },
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_has_an_example() {
        let text = include_str!("../error.rs");
        let in_text: BTreeSet<&str> =
            text.split("=> \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let examples: BTreeSet<&str> = RuntimeError::examples().iter().map(RuntimeError::code).collect();
        assert_eq!(examples, in_text);
    }
}
