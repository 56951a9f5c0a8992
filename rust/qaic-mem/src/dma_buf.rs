//! Memory behind a descriptor of the kernel, which a card can access directly.

use std::os::fd::OwnedFd;

/// A part of a DMA buffer of the kernel, which devices share. The host cannot access its contents. The
/// existence of the bytes is checked when a device maps them.
#[derive(Debug)]
pub struct DmaBuf {
    /// The descriptor, which stays open as long as this object exists.
    pub descriptor: OwnedFd,
    /// Offset of the part, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}
