//! Memory that a descriptor of the kernel stands for, which a card can reach by itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A part of a DMA buffer of the kernel: memory that devices share. The host sees none of it here.
#[derive(Debug)]
pub struct DmaBuf {
    descriptor: OwnedFd,
    offset: u64,
    len: u64,
}

impl DmaBuf {
    /// `len` bytes from `offset` on. Whether they exist is found when a device takes them.
    pub fn new(descriptor: OwnedFd, offset: u64, len: u64) -> Self {
        Self { descriptor, offset, len }
    }

    /// The descriptor; open as long as this lives.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Offset of the part, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
