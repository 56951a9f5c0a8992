//! One example of every error, for the reference page that lists codes, statuses and exceptions.

use std::io;
use std::sync::Arc;

use super::{CardError, DeviceError, EngineError, ErrorDetail, InputError, StateError};

impl ErrorDetail {
    /// One example of each variant of this crate, in the order of the variants. Errors of containers have a list of
    /// their own, `QpcError::examples`.
    #[allow(clippy::too_many_lines)] // a table
    pub fn examples() -> Vec<Self> {
        let text = str::to_owned;
        vec![
            Self::Io {
                path: "model/programqpc.bin".into(),
                source: Arc::new(io::Error::from_raw_os_error(13)),
            },
            Self::Input(InputError::UnsupportedTransform {
                binding: text("image"),
                step: 1,
                kind: text("Shuffle"),
            }),
            Self::Input(InputError::BufferSize { buffer: text("image"), expected: 64, found: 60 }),
            Self::Device(DeviceError::WrongTarget {
                built_for: text("a card"),
                device: 0,
                kind: "cpu",
                reason: text("it has no CPU program"),
            }),
            Self::Device(DeviceError::HardwareFamily {
                built_for: text("ai200"),
                device: 0,
                family: "ai100",
            }),
            Self::Device(DeviceError::NotFound { id: 7, existing: vec![0, 1] }),
            Self::Device(DeviceError::TooFew { needed: 4, kind: "cpu", existing: vec![0], hidden: 0 }),
            Self::Device(DeviceError::Kind { kind: text("gpu"), known: "cpu, kmd, noop" }),
            Self::Device(DeviceError::Busy { id: 0, needed: 4, free: 2, total: 16 }),
            Self::Device(DeviceError::Lost { id: 0, reason: text("it was reset") }),
            Self::Card(CardError::ChannelLost {
                device: 0,
                channel: 3,
                reason: text("its cores were restarted"),
            }),
            Self::Device(DeviceError::Unavailable {
                id: 0,
                reason: text("it has no node yet; its firmware may still be booting"),
            }),
            Self::Card(CardError::Permission {
                id: 0,
                path: "/dev/accel/accel0".into(),
                fix: text("it belongs to the group render"),
            }),
            Self::Card(CardError::FirmwareVersion {
                id: 0,
                what: "command protocol",
                found: text("18.0"),
                expected: "17",
            }),
            Self::Card(CardError::Firmware {
                id: 0,
                what: "activate the program",
                status: -13,
                name: "NSP alloc",
            }),
            Self::Card(CardError::FirmwareProtocol {
                id: 0,
                what: "activate the program",
                reason: text("channel 16, below 16 expected"),
            }),
            Self::Card(CardError::Driver {
                id: 0,
                call: "CREATE_BO",
                source: Arc::new(io::Error::from_raw_os_error(22)),
            }),
            Self::Card(CardError::RingFull { device: 0, channel: 3, attempts: 50, elements: 12 }),
            Self::Card(CardError::Transfers {
                what: text("DMA request 3 ends at byte 80 of DMA buffer 1, which has 64"),
            }),
            Self::Device(DeviceError::Unsupported { what: text("a dma-buf on a device of kind `cpu`") }),
            Self::Device(DeviceError::OutOfMemory { bytes: 1 << 40, what: "an output" }),
            Self::Timeout { what: "an inference", timeout_ms: 5000 },
            Self::Interrupted,
            Self::Engine(EngineError::Missing { looked_at: Vec::new() }),
            Self::Engine(EngineError::Unusable {
                path: "libonnxruntime.so.1.20".into(),
                found: text("1.20.0"),
                reason: text("version 1.20.0 is too old"),
            }),
            Self::Engine(EngineError::Graph { message: text("a node has an input of the wrong type") }),
            Self::Engine(EngineError::Inference {
                status: "FAIL",
                message: text("an index is out of range"),
            }),
            Self::Input(InputError::IoCrc {
                binding: text("image"),
                section: 2,
                begin: 512,
                end: 768,
                first: "submitted",
                second: "begun",
                taken: 0x1a2b_3c4d,
                found: 0x5e6f_7a8b,
            }),
            Self::State(StateError::Forked),
            Self::State(StateError::InFlight),
            Self::State(StateError::QueueFull { capacity: 512 }),
            Self::State(StateError::LiveExecObjs { count: 2 }),
            Self::Input(InputError::NoMatchingShape {
                what: "passed [[1, 5]], permitted [[1, 8]], [[1, 1]]".into(),
            }),
            Self::Input(InputError::StateRequired { binding: text("image") }),
            Self::State(StateError::UnknownInference { id: 7 }),
            Self::State(StateError::NothingSubmitted),
            Self::Cancelled,
            Self::State(StateError::Invalid { what: text("the program is not activated") }),
            Self::Input(InputError::VirtualCards { found: text("many") }),
            Self::Input(InputError::SharedCores { found: text("cores") }),
            Self::Input(InputError::Argument { what: text("set_size must be 1 or more, 0 given") }),
            Self::Internal { what: text("...") },
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn error_of_each_code_has_an_example() {
        let texts = [
            include_str!("mod.rs"),
            include_str!("device.rs"),
            include_str!("card.rs"),
            include_str!("engine.rs"),
            include_str!("input.rs"),
            include_str!("state.rs"),
        ];
        let in_text: BTreeSet<&str> = texts
            .iter()
            .flat_map(|text| text.split("=> \"").skip(1))
            .filter_map(|rest| rest.split('"').next())
            .collect();
        let examples: BTreeSet<&str> = ErrorDetail::examples().iter().map(ErrorDetail::code).collect();
        assert_eq!(examples, in_text);
    }
}
