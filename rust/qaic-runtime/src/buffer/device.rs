//! Memory that a card shares with the host.

use qaic_kmd::mapping::Mapping;

use super::slice::HostSliceMut;

/// A mapped buffer object of a card. Whoever shows its memory to others keeps it as long as the view.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    mapping: Mapping,
}

impl DeviceMemory {
    pub(crate) fn new(mapping: Mapping) -> Self {
        Self { mapping }
    }

    /// Its first `len` bytes, or all where there are fewer.
    pub(crate) fn memory(&self, len: usize) -> HostSliceMut {
        let len = len.min(self.mapping.len());
        // SAFETY: the mapping is readable and writable as long as it lives, and callers keep it as long as the view
        // (documented on the type). No Rust value lies in it.
        unsafe { HostSliceMut::new(self.mapping.as_mut_ptr(), len) }
    }
}
