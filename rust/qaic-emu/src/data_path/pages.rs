//! Memory of a buffer object: whole pages, shared by all its mappings.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{SeekFrom, fstat, seek};

use super::file_mapping::FileMapping;
use qaic_kmd::Errno;
use qaic_mem::Mapping;

pub(crate) const PAGE_BYTES: u64 = 4096;

/// Pages of a buffer object, which exist as long as a part of them is mapped.
#[derive(Debug)]
pub struct Pages(Memory);

#[derive(Debug)]
enum Memory {
    /// Memory of the driver.
    Own(Arc<Mapping>),
    /// Memory of a file, with the file's identity.
    Imported { mapping: FileMapping, identity: (u64, u64) },
}

impl Pages {
    /// Allocates at least `len` bytes in whole pages, zeroed.
    pub fn new(len: u64) -> Result<Arc<Self>, Errno> {
        let rounded = len.checked_next_multiple_of(PAGE_BYTES).filter(|len| *len > 0).ok_or(Errno::INVAL)?;
        let rounded = usize::try_from(rounded).map_err(|_| Errno::NOMEM)?;
        Ok(Arc::new(Self(Memory::Own(Arc::new(Mapping::anonymous(rounded)?)))))
    }

    /// Maps all whole pages of the memory behind a descriptor. Fails with `EINVAL` if it cannot be mapped or has no
    /// page.
    pub fn import(file: BorrowedFd<'_>) -> Result<Arc<Self>, Errno> {
        let status = fstat(file)?;
        // A dma-buf reports its size only through a seek to its end.
        let len = match u64::try_from(status.st_size) {
            Ok(0) | Err(_) => seek(file, SeekFrom::End(0)).map_err(|_| Errno::INVAL)?,
            Ok(len) => len,
        };
        let len = usize::try_from(len - len % PAGE_BYTES).map_err(|_| Errno::NOMEM)?;
        let mapping = FileMapping::new(file, len).map_err(|error| match error {
            Errno::NOMEM => Errno::NOMEM,
            _ => Errno::INVAL,
        })?;
        let identity = (status.st_dev, status.st_ino);
        Ok(Arc::new(Self(Memory::Imported { mapping, identity })))
    }

    /// Returns the identity of a file, which is equal for two descriptors of the same memory.
    pub(crate) fn identity_of(file: impl AsFd) -> Result<(u64, u64), Errno> {
        let status = fstat(file)?;
        Ok((status.st_dev, status.st_ino))
    }

    /// Identity of the file that the pages were imported from, see [`Self::identity_of`]; `None` for memory of the
    /// driver.
    pub(crate) fn imported(&self) -> Option<(u64, u64)> {
        match &self.0 {
            Memory::Own(_) => None,
            Memory::Imported { identity, .. } => Some(*identity),
        }
    }

    /// Number of bytes, a multiple of 4096.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Memory::Own(mapping) => mapping.len() as u64,
            Memory::Imported { mapping, .. } => mapping.len() as u64,
        }
    }

    /// Copies bytes from `offset` into `into`; `None` if they are out of bounds.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        let offset = usize::try_from(offset).ok()?;
        match &self.0 {
            Memory::Own(mapping) => mapping.read_into(offset, into),
            Memory::Imported { mapping, .. } => mapping.read_into(offset, into),
        }
    }

    /// Copies `from` to `offset`; `None` if the bytes are out of bounds.
    pub fn write(&self, offset: u64, from: &[u8]) -> Option<()> {
        let offset = usize::try_from(offset).ok()?;
        match &self.0 {
            Memory::Own(mapping) => mapping.write_from(offset, from),
            Memory::Imported { mapping, .. } => mapping.write_from(offset, from),
        }
    }

    /// Sets `len` bytes at `offset` to `byte`; bytes beyond the end are ignored.
    pub(crate) fn fill(&self, offset: u64, len: u64, byte: u8) {
        let block = [byte; 4096];
        let end = offset.saturating_add(len).min(self.bytes());
        let mut at = offset;
        while at < end {
            let part = &block[..usize::try_from(end - at).map_or(block.len(), |left| left.min(block.len()))];
            if self.write(at, part).is_none() {
                return;
            }
            at += part.len() as u64;
        }
    }

    /// Maps a part of the pages; `None` if it is out of bounds, and for imported pages, which their owner maps.
    pub(crate) fn mapping(&self, offset: u64, len: usize) -> Option<Mapping> {
        match &self.0 {
            Memory::Own(mapping) => mapping.part(usize::try_from(offset).ok()?, len),
            Memory::Imported { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn new_pages_are_rounded_zeroed_and_shared() {
        assert!(Pages::new(0).is_err_and(|error| error == Errno::INVAL));
        assert!(Pages::new(u64::MAX).is_err_and(|error| error == Errno::INVAL));
        assert!(Pages::new(u64::MAX - 8192).is_err());
        let Ok(pages) = Pages::new(4097) else { panic!("no memory") };
        assert_eq!(pages.bytes(), 8192);
        let Some(mapping) = pages.mapping(0, 8192) else { panic!("lies inside") };
        pages.fill(4000, 10_000, 3);
        drop(pages);
        let mut bytes = vec![9; 8192];
        assert_eq!(mapping.read_into(0, &mut bytes), Some(()));
        assert!(bytes[..4000].iter().all(|byte| *byte == 0));
        assert!(bytes[4000..].iter().all(|byte| *byte == 3));
    }

    #[test]
    fn imported_pages_of_a_shortened_file_stay_readable() {
        let Ok(file) = memfd_create("imported", MemfdFlags::CLOEXEC) else { panic!("no memory file") };
        assert_eq!(ftruncate(&file, 8200), Ok(()));
        let Ok(pages) = Pages::import(file.as_fd()) else { panic!("it can be mapped") };
        assert_eq!((pages.bytes(), pages.imported()), (8192, Pages::identity_of(&file).ok()));
        assert_eq!(pages.write(4090, &[1, 2, 3]), Some(()));
        let mut back = [0; 4];
        assert_eq!(rustix::io::pread(&file, &mut back, 4089), Ok(4));
        assert_eq!(back, [0, 1, 2, 3]);
        assert_eq!(ftruncate(&file, 0), Ok(()));
        assert_eq!(pages.read(4090, &mut back), None);
        assert_eq!(pages.write(4090, &back), None);
        pages.fill(0, 8192, 1);
        assert_eq!(pages.write(8190, &[1, 2, 3]), None);
    }

    #[test]
    fn import_of_an_empty_file_or_a_pipe_is_refused() {
        let Ok(file) = memfd_create("empty", MemfdFlags::CLOEXEC) else { panic!("no memory file") };
        assert!(Pages::import(file.as_fd()).is_err_and(|error| error == Errno::INVAL));
        let Ok((pipe, _)) = std::io::pipe() else { panic!("no pipe") };
        assert!(Pages::import(pipe.as_fd()).is_err_and(|error| error == Errno::INVAL));
    }
}
