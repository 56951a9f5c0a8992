//! Why there is no memory.

use std::path::PathBuf;
use std::sync::Arc;

/// What went wrong, with the figures needed to say so.
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
        /// What they were for.
        what: &'static str,
    },
}
