//! Bytes of a container: a mapped file, or a copy in memory.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Mmap, UncheckedAdvice};

use crate::MemoryError;

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
    pub fn open(path: &Path, mmap: bool) -> Result<Self, MemoryError> {
        let failed = |source| MemoryError::Io { path: path.to_owned(), source: Arc::new(source) };
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
            .map_err(|_| MemoryError::OutOfMemory { bytes: metadata.len(), what: "the container" })?;
        file.read_to_end(&mut bytes).map_err(failed)?;
        Ok(Self::Owned(bytes.into_boxed_slice()))
    }
}

/// The smallest pages there are; of larger ones the system drops those that lie inside.
const PAGE_BYTES: usize = 4096;
/// Mappings below this size are not worth the calls.
const LET_GO_FROM_BYTES: usize = 64 << 20;

impl FileBytes {
    /// Whether [`FileBytes::let_go`] does anything: it is a large mapping.
    pub fn is_let_go(&self) -> bool {
        matches!(self, Self::Mapped(mapping) if mapping.len() >= LET_GO_FROM_BYTES)
    }

    /// Says that `part` of these bytes is not needed soon: of a large mapping, its pages stop counting as memory of the
    /// process. Reading them again reads them from the file again. Anything else than a part of these bytes is ignored.
    pub fn let_go(&self, part: &[u8]) {
        let Self::Mapped(mapping) = self else { return };
        if !self.is_let_go() {
            return;
        }
        let Some(start) = part.as_ptr().addr().checked_sub(mapping.as_ptr().addr()) else { return };
        let Some(end) = start.checked_add(part.len()).filter(|end| *end <= mapping.len()) else { return };
        let start = start.next_multiple_of(PAGE_BYTES);
        let end = end - end % PAGE_BYTES;
        if start < end {
            // SAFETY: the mapping is read-only and of a file, so its pages were not written to here and come back
            // from the file with the same content; references to them stay valid.
            let advised =
                unsafe { mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            // Advice: without it the memory is used a while longer.
            let _ = advised;
        }
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
