//! Errors about the caller's inputs.

use std::sync::Arc;

use crate::binding::ArgumentError;
use crate::device::MAX_VIRTUAL_CARDS;

qaic_qpc::errors! {
    /// The arguments of a call are invalid, or unsuitable for the program.
    #[derive(Clone, Debug, thiserror::Error)]
    pub enum InputError: "OptionError" {
        /// A sequence of transform steps has no host implementation.
        #[error("binding `{binding}`: transform step {step} ({kind}) cannot run on the host")]
        UnsupportedTransform {
            binding: String = "image".into(), step: usize = 1, kind: String = "Shuffle".into(),
        } => "program.unsupported_transform" "DeviceError" [binding, step, kind],
        /// A buffer has the wrong number of bytes.
        #[error("buffer `{buffer}`: {found} bytes given, {expected} expected")]
        BufferSize { buffer: String = "image".into(), expected: u64 = 64, found: u64 = 60 }
            => "input.size" "InputShapeError" [buffer, expected, found],
        /// The shapes of the buffers are not a permitted combination.
        #[error("No matching dimension found: {what}")]
        NoMatchingShape {
            what: Arc<str> = "passed [[1, 5]], permitted [[1, 8]], [[1, 1]]".into(),
        } => "input.no_matching_shape" "InputShapeError",
        /// An omitted input has no retained value on the device.
        #[error("input `{binding}` is missing, and the device has no state for it")]
        StateRequired { binding: String = "image".into() }
            => "input.state_required" "MissingInputError" [binding],
        /// A buffer of a program compiled with `io_crc` was changed while an inference used it.
        #[error(
            "buffer `{binding}` changed between {first} and {second} of the inference: bytes {begin} to {} (section \
             {section}) have CRC {found:#010x}, expected {taken:#010x}",
            end.saturating_sub(1)
        )]
        IoCrc {
            binding: String = "image".into(), section: u64 = 2, begin: u64 = 512, end: u64 = 768,
            first: &'static str = "submission", second: &'static str = "start", taken: u32 = 0x1a2b_3c4d,
            found: u32 = 0x5e6f_7a8b,
        } => "inference.io_crc" "InferenceError" [binding, section, taken, found]
            hint "do not write to the arrays of an inference before its results are collected",
        /// The value of `QAIC_CPU_DEVICES` is not a number of virtual cards.
        #[error("QAIC_CPU_DEVICES is {found:?}; a number from 1 to {MAX_VIRTUAL_CARDS} is expected")]
        VirtualCards { found: String = "many".into() } => "option.cpu_devices",
        /// The value of `QAIC_CPU_SHARED` is not a valid location.
        #[error(
            "QAIC_CPU_SHARED is \"{found}\"; 1, 0 or the absolute path of a directory of this user is expected"
        )]
        SharedCores { found: String = "cores".into() } => "option.cpu_shared",
        /// An argument is not valid.
        #[error("{what}")]
        Argument { what: String = "set_size is 0; at least 1 is expected".into() } => "call.argument",
    }
    sources {
        /// The program cannot take the arguments.
        #[error(transparent)]
        Arguments(ArgumentError),
    }
}
