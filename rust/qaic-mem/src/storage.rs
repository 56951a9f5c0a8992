//! Aligned buffers of this library.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytemuck::Pod;

use crate::{HostSlice, HostSliceMut, MemoryError, StoragePool};

/// Alignment of every buffer in bytes: a cache line, and the preferred alignment of the widest vector loads.
const ALIGNMENT_BYTES: usize = 64;

/// One heap buffer, initially zero.
#[derive(Debug)]
pub(crate) struct Block {
    address: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for Block {}
// SAFETY: as for `Send`.
unsafe impl Sync for Block {}

impl Block {
    fn layout(len_bytes: usize) -> Option<Layout> {
        // An empty tensor needs an address too, because engines refuse null.
        Layout::from_size_align(len_bytes.max(1), ALIGNMENT_BYTES).ok()
    }

    pub(crate) fn new(len_bytes: usize) -> Result<Self, MemoryError> {
        let exhausted = || MemoryError::OutOfMemory { bytes: len_bytes as u64, what: "a tensor" };
        let layout = Self::layout(len_bytes).ok_or_else(exhausted)?;
        // SAFETY: the layout has a non-zero size.
        let address = unsafe { alloc_zeroed(layout) };
        Ok(Self { address: NonNull::new(address).ok_or_else(exhausted)?, len_bytes })
    }

    /// Converts the block to its address, which [`Self::from_raw`] accepts.
    pub(crate) fn into_raw(self) -> NonNull<u8> {
        let address = self.address;
        mem::forget(self);
        address
    }

    /// Returns the block at `address`.
    ///
    /// # Safety
    ///
    /// `address` came from [`Self::into_raw`] of a block of `len_bytes`, and no other block was created from
    /// it since then.
    pub(crate) unsafe fn from_raw(address: NonNull<u8>, len_bytes: usize) -> Self {
        Self { address, len_bytes }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len_bytes) {
            // SAFETY: allocated by `new` with this layout, freed once.
            unsafe { dealloc(self.address.as_ptr(), layout) };
        }
    }
}

/// A buffer that returns to its pool on drop.
///
/// Views borrow from the buffer. Objects that expose its memory by address, such as a numpy array, own it. Visible
/// memory is therefore never reused.
#[derive(Debug)]
pub struct Storage {
    // Empty only during the drop.
    block: Option<Block>,
    home: Option<Arc<StoragePool>>,
}

impl Storage {
    /// Creates a zeroed buffer without a pool.
    pub fn new(len_bytes: usize) -> Result<Self, MemoryError> {
        Ok(Self { block: Some(Block::new(len_bytes)?), home: None })
    }

    /// Creates a buffer that returns to `home`.
    pub(crate) fn of_pool(block: Block, home: Arc<StoragePool>) -> Self {
        Self { block: Some(block), home: Some(home) }
    }

    /// Creates a buffer without a pool that contains these values.
    pub fn of<T: Pod>(values: &[T]) -> Result<Self, MemoryError> {
        let mut storage = Self::new(size_of_val(values))?;
        storage.memory_mut().copy_from(HostSlice::of(values));
        Ok(storage)
    }

    /// The memory, for reading.
    pub fn memory(&self) -> HostSlice<'_> {
        match &self.block {
            // SAFETY: the block owns these bytes, which were initialized at its creation; nothing writes them
            // while the storage is borrowed.
            Some(block) => unsafe { HostSlice::new(block.address.as_ptr(), block.len_bytes) },
            None => HostSlice::empty(),
        }
    }

    /// The memory.
    pub fn memory_mut(&mut self) -> HostSliceMut<'_> {
        match &self.block {
            // SAFETY: the block owns these bytes, and the storage is borrowed exclusively.
            Some(block) => unsafe { HostSliceMut::new(block.address.as_ptr(), block.len_bytes) },
            None => HostSliceMut::empty(),
        }
    }

    /// Address of the first byte, which does not change until the storage is dropped.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.block.as_ref().map_or(ptr::null_mut(), |block| block.address.as_ptr())
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let (Some(block), Some(home)) = (self.block.take(), self.home.take()) {
            home.give_back(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_storage_is_aligned_and_zeroed() {
        for len in [0, 1, 63, 64, 4097] {
            let storage = Storage::new(len).unwrap();
            assert!(storage.as_mut_ptr().addr().is_multiple_of(ALIGNMENT_BYTES));
            assert_eq!(storage.memory().as_ptr(), storage.as_mut_ptr().cast_const());
            assert_eq!(storage.memory().len(), len);
            assert!(storage.memory().to_vec().iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn storage_of_values_has_their_bytes() {
        let storage = Storage::of(&[1_u16, 0x203]).unwrap();
        assert_eq!(storage.memory().to_vec(), [1, 0, 3, 2]);
    }

    #[test]
    fn storage_beyond_the_address_space_is_refused() {
        let error = Storage::new(usize::MAX).unwrap_err();
        assert!(matches!(error, MemoryError::OutOfMemory { bytes: u64::MAX, .. }), "{error}");
    }
}
