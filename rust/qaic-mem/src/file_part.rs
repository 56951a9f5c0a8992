//! A part of a file that threads read independently.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, fadvise};

/// A part of an open file. Reads never map the file, so a file that shrinks causes an error and not `SIGBUS`.
#[derive(Debug)]
pub struct FilePart {
    file: File,
    start: u64,
}

impl FilePart {
    /// Duplicates `descriptor`, so that the file stays open, and asks the system to read the part ahead.
    pub fn open(descriptor: i32, start: u64, len_bytes: u64) -> io::Result<Self> {
        if descriptor < 0 {
            return Err(rustix::io::Errno::BADF.into());
        }
        // SAFETY: the descriptor is only duplicated during this call, and the kernel refuses one that is not open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let file = File::from(borrowed.try_clone_to_owned()?);
        if let Some(len) = NonZeroU64::new(len_bytes) {
            // Advice: the parts of a matrix are read in another order than that of the file.
            let _ = fadvise(&file, start, Some(len), Advice::WillNeed);
        }
        Ok(Self { file, start })
    }

    /// Reads the bytes at `offset` of the part; fails with [`io::ErrorKind::UnexpectedEof`] if the file ends before.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, self.start.saturating_add(offset))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn part_stays_readable_after_its_descriptor_is_closed() {
        let path = std::env::temp_dir().join(format!("openqaic-file-part-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::open(&path).unwrap();
        let part = FilePart::open(file.as_raw_fd(), 2, 6).unwrap();
        drop(file);
        let mut bytes = [0; 3];
        part.read_at(1, &mut bytes).unwrap();
        assert_eq!(&bytes, b"345");
        let found = part.read_at(7, &mut bytes).unwrap_err();
        assert_eq!(found.kind(), io::ErrorKind::UnexpectedEof);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn descriptor_that_is_not_open_is_refused() {
        for descriptor in [-1, i32::MAX] {
            assert!(FilePart::open(descriptor, 0, 1).is_err(), "{descriptor}");
        }
    }
}
