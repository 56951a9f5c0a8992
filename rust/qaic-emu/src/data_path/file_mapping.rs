//! Mapped memory of a file that others may truncate.
//!
//! A direct access beyond the end of a file is fatal. The system calls that copy between processes check every
//! address and return an error instead. This module uses them within its own process.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use qaic_kmd::Errno;
use qaic_mem::Mapping;

/// A mapped file, shared by its references.
#[derive(Debug)]
pub(crate) struct FileMapping {
    memory: Mapping,
}

impl FileMapping {
    /// Maps the first `len` bytes of a file. Fails with `EINVAL` for zero bytes.
    pub(crate) fn new(file: impl AsFd, len: usize) -> Result<Self, Errno> {
        Ok(Self { memory: Mapping::of_file(file, 0, len)? })
    }

    /// Number of mapped bytes, even if the file is shorter now.
    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Copies bytes at `offset` into `into`. Returns `None` if they exceed the mapping or the file; the contents of
    /// `into` are then unspecified.
    pub(crate) fn read_into(&self, offset: usize, into: &mut [u8]) -> Option<()> {
        let base = self.address(offset, into.len())?;
        transfer(base, into.len(), |remote, done| {
            process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut into[done..])], &[remote])
        })
    }

    /// Copies `from` to `offset`. Returns `None` if the bytes exceed the mapping or the file; the bytes before the
    /// end may then have been written.
    pub(crate) fn write_from(&self, offset: usize, from: &[u8]) -> Option<()> {
        let base = self.address(offset, from.len())?;
        transfer(base, from.len(), |remote, done| {
            process_vm_writev(Pid::this(), &[IoSlice::new(&from[done..])], &[remote])
        })
    }

    fn address(&self, offset: usize, len: usize) -> Option<usize> {
        let end = offset.checked_add(len)?;
        (end <= self.memory.len()).then(|| self.memory.as_mut_ptr().expose_provenance() + offset)
    }
}

/// Moves `len` bytes with `copy`, in as many calls as the system needs.
fn transfer(
    base: usize,
    len: usize,
    mut copy: impl FnMut(RemoteIoVec, usize) -> nix::Result<usize>,
) -> Option<()> {
    let mut done = 0;
    while done < len {
        match copy(RemoteIoVec { base: base + done, len: len - done }, done) {
            Ok(0) => return None,
            Ok(moved) => done += moved,
            Err(nix::Error::EINTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn copies_inside_the_file_are_exact_and_shared() {
        let file = memfd_create("file", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 100_000).unwrap();
        let mapping = FileMapping::new(&file, 100_000).unwrap();
        let from: Vec<u8> = (0..=255).cycle().take(99_000).collect();
        assert_eq!(mapping.write_from(1000, &from), Some(()));
        let mut back = vec![0; from.len()];
        assert_eq!(rustix::io::pread(&file, &mut back, 1000), Ok(from.len()));
        assert_eq!(back, from);
        back.fill(0);
        assert_eq!(mapping.read_into(1000, &mut back), Some(()));
        assert_eq!(back, from);
    }

    #[test]
    fn copies_beyond_the_mapping_or_a_shortened_file_are_refused() {
        let file = memfd_create("file", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        let mapping = FileMapping::new(&file, 8192).unwrap();
        for (offset, len) in [(8192, 1), (8191, 2), (usize::MAX, 1), (0, 8193)] {
            assert_eq!(mapping.read_into(offset, &mut vec![0; len]), None, "{offset} {len}");
            assert_eq!(mapping.write_from(offset, &vec![0; len]), None, "{offset} {len}");
        }
        assert_eq!(mapping.read_into(8192, &mut []), Some(()));
        ftruncate(&file, 0).unwrap();
        assert_eq!(mapping.len(), 8192);
        assert_eq!(mapping.read_into(0, &mut [0]), None);
        assert_eq!(mapping.write_from(8191, &[0]), None);
        assert!(FileMapping::new(&file, 0).is_err_and(|error| error == Errno::INVAL));
    }
}
