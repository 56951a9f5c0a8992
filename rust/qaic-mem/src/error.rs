//! Errors about memory.

use std::path::PathBuf;
use std::sync::Arc;

/// A memory error, with the numbers of its message.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MemoryError {
    /// A file could not be read or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: Arc<std::io::Error>,
    },

    /// The memory could not be allocated.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// Number of requested bytes.
        bytes: u64,
        /// Purpose of the bytes.
        what: &'static str,
    },
}
