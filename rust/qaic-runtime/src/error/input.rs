//! Errors about the caller's inputs.

use std::sync::Arc;

use crate::binding::ArgumentError;

/// The caller gave something that the program or the call cannot take.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The program cannot take the arguments.
    #[error(transparent)]
    Arguments(#[from] ArgumentError),

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

    /// The shapes of the buffers are no permitted combination.
    #[error("No matching dimension found: {what}")]
    NoMatchingShape {
        /// The passed value, and the permitted ones.
        what: Arc<str>,
    },

    /// An input was left out that the device does not retain.
    #[error("input `{binding}` is missing, and the device has no state for it")]
    StateRequired {
        /// Binding name.
        binding: String,
    },

    /// A buffer of a program compiled with `io_crc` was changed while an inference used it.
    #[error(
        "buffer `{binding}`, bytes {begin} to {} (section {section}): its CRC was {taken:#010x} when the inference was \
         {first} and is {found:#010x} when it is {second}; it was written in between",
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
        /// State of the inference when the first CRC was taken.
        first: &'static str,
        /// State of the inference when the CRC was compared.
        second: &'static str,
        /// The first CRC.
        taken: u32,
        /// The second.
        found: u32,
    },

    /// `QAIC_CPU_DEVICES` is no number.
    #[error("QAIC_CPU_DEVICES is {found:?}; a number of virtual cards is expected")]
    VirtualCards {
        /// Its value.
        found: String,
    },

    /// `QAIC_CPU_SHARED` says no place.
    #[error(
        "QAIC_CPU_SHARED is \"{found}\"; 1, 0 or the absolute path of a directory of this user is expected"
    )]
    SharedCores {
        /// Its value.
        found: String,
    },

    /// An argument is not valid.
    #[error("{what}")]
    Argument {
        /// Which argument, what was found, what was expected.
        what: String,
    },
}

impl InputError {
    /// Stable slug of the variant.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Arguments(source) => source.code(),
            Self::UnsupportedTransform { .. } => "program.unsupported_transform",
            Self::BufferSize { .. } => "input.size",
            Self::NoMatchingShape { .. } => "input.no_matching_shape",
            Self::StateRequired { .. } => "input.state_required",
            Self::IoCrc { .. } => "inference.io_crc",
            Self::VirtualCards { .. } => "option.cpu_devices",
            Self::SharedCores { .. } => "option.cpu_shared",
            Self::Argument { .. } => "call.argument",
        }
    }
}
