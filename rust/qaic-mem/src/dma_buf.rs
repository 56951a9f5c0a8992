//! Memory behind a descriptor of the kernel, which a card can access directly.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A part of a DMA buffer of the kernel, which devices share. The host does not see its contents.
#[derive(Debug)]
pub struct DmaBuf {
    descriptor: OwnedFd,
    offset: u64,
    len: u64,
}

impl DmaBuf {
    /// Creates a reference to `len` bytes at `offset`. Their existence is checked when a device maps them.
    pub fn new(descriptor: OwnedFd, offset: u64, len: u64) -> Self {
        Self { descriptor, offset, len }
    }

    /// The descriptor, which stays open as long as this object exists.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Offset of the part, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
