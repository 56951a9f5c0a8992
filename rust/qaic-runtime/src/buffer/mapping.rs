//! Bytes of a container: a mapped file, or a copy in memory.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::RuntimeError;

/// Files below this size are read: mapping one costs more than copying it, and a read file cannot shrink.
const READ_BELOW_BYTES: u64 = 1 << 20;

/// Opening a pipe without a writer must not wait for one; Linux on x86-64 and AArch64.
const O_NONBLOCK: i32 = 0o4000;
const EINVAL: i32 = 22;

/// Read-only bytes with a stable address.
#[derive(Debug)]
pub enum FileBytes {
    /// A private read-only mapping. Truncating the file while it is mapped raises `SIGBUS` on access, as for any
    /// mapping; `mmap = false` avoids that.
    Mapped(Mmap),
    /// A copy.
    Owned(Box<[u8]>),
}

impl FileBytes {
    /// Opens a file: mapped when `mmap` and it is large, read otherwise.
    pub fn open(path: &Path, mmap: bool) -> Result<Self, RuntimeError> {
        let failed = |source| RuntimeError::Io { path: path.to_owned(), source: Arc::new(source) };
        let mut file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        if !metadata.is_file() {
            // What the system says of operations that a kind of file has not.
            return Err(failed(io::Error::from_raw_os_error(EINVAL)));
        }
        if mmap && metadata.len() >= READ_BELOW_BYTES {
            // SAFETY: the mapping is private and read-only; a file changed underneath shows other bytes, which every
            // parser treats as untrusted, and a shrunk one is the documented hazard of this mode.
            let mapping = unsafe { Mmap::map(&file) }.map_err(failed)?;
            return Ok(Self::Mapped(mapping));
        }
        let mut bytes = Vec::new();
        let len_bytes = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        bytes
            .try_reserve_exact(len_bytes)
            .map_err(|_| RuntimeError::OutOfMemory { bytes: metadata.len(), what: "the container" })?;
        file.read_to_end(&mut bytes).map_err(failed)?;
        Ok(Self::Owned(bytes.into_boxed_slice()))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(mapping) => mapping,
            Self::Owned(bytes) => bytes,
        }
    }
}
