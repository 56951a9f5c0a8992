//! What can be wrong with a stats buffer or its descriptor, as data: callers match on variants and codes, never on text.

use qaic_qpc::error::QpcError;
use thiserror::Error;

/// Why statistics cannot be read or written.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum StatsError {
    /// No layout knows these bytes.
    #[error(
        "a stats buffer of {bytes} bytes has no known layout (the program: level {level}, {cores} cores, {threads} threads \
         a core, {ops} operations); the layout of real cards is not public, and a layout of your own can be registered"
    )]
    UnknownLayout {
        /// Bytes of the buffer.
        bytes: u64,
        /// Stats level of the program.
        level: u32,
        /// Its cores.
        cores: u64,
        /// Threads of a core.
        threads: u64,
        /// Operations of all cores.
        ops: u64,
    },
    /// The descriptor of the operations is not one.
    #[error("{what}")]
    Descriptor {
        /// What is wrong.
        what: String,
    },
    /// The container cannot be read.
    #[error(transparent)]
    Container(#[from] QpcError),
}

impl StatsError {
    /// A stable name of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownLayout { .. } => "stats.unknown_layout",
            Self::Descriptor { .. } => "stats.descriptor",
            Self::Container(error) => error.code(),
        }
    }
}
