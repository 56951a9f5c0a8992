//! Why there is no memory.

use std::path::PathBuf;
use std::sync::Arc;

/// A memory error, with the figures of its message.
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

    /// There is not that much.
    #[error("{bytes} bytes for {what} could not be allocated")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// Purpose of the bytes.
        what: &'static str,
    },
}
