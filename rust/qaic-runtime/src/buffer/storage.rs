//! Aligned buffers, and pools that hand them out again only when nobody can see them any more.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::slice::HostSliceMut;
use crate::error::RuntimeError;
use crate::fork::Origin;

/// Alignment of every buffer in bytes: a cache line, and what the widest vector loads like.
const ALIGNMENT_BYTES: usize = 64;

/// One heap buffer. Zeroed when it is new.
#[derive(Debug)]
struct Block {
    address: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a block is plain memory with one owner; concurrent access goes through `HostSliceMut`, whose contract says who
// may touch it.
unsafe impl Send for Block {}
// SAFETY: as for `Send`.
unsafe impl Sync for Block {}

impl Block {
    fn layout(len_bytes: usize) -> Option<Layout> {
        // An empty tensor still gets an address of its own, because engines refuse null.
        Layout::from_size_align(len_bytes.max(1), ALIGNMENT_BYTES).ok()
    }

    fn new(len_bytes: usize) -> Result<Self, RuntimeError> {
        let exhausted = || RuntimeError::OutOfMemory { bytes: len_bytes as u64, what: "a tensor" };
        let layout = Self::layout(len_bytes).ok_or_else(exhausted)?;
        // SAFETY: the layout has a non-zero size.
        let address = unsafe { alloc_zeroed(layout) };
        Ok(Self { address: NonNull::new(address).ok_or_else(exhausted)?, len_bytes })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len_bytes) {
            // SAFETY: allocated by `new` with this very layout, freed once.
            unsafe { dealloc(self.address.as_ptr(), layout) };
        }
    }
}

/// A buffer that returns to its pool when it is dropped.
///
/// Whoever shows its memory to others (a numpy array, say) must keep the `Storage` alive as long as the view. That is
/// the whole rule of "retire, never reuse": memory that can be seen is never handed out again (architecture-anchors
/// §3.7).
#[derive(Debug)]
pub struct Storage {
    // Empty only while being dropped.
    block: Option<Block>,
    home: Option<Arc<StoragePool>>,
}

impl Storage {
    /// A zeroed buffer of its own, without a pool.
    pub fn new(len_bytes: usize) -> Result<Self, RuntimeError> {
        Ok(Self { block: Some(Block::new(len_bytes)?), home: None })
    }

    /// The memory.
    pub fn memory(&self) -> HostSliceMut {
        match &self.block {
            // SAFETY: the block owns this memory until it is dropped, and callers keep the storage as long as the view
            // (documented on the type).
            Some(block) => unsafe { HostSliceMut::new(block.address.as_ptr(), block.len_bytes) },
            None => HostSliceMut::empty(),
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let (Some(block), Some(home)) = (self.block.take(), self.home.take()) {
            home.give_back(block);
        }
    }
}

/// Buffers of one size. Keeps at most `capacity` unused ones.
#[derive(Debug)]
pub struct StoragePool {
    len_bytes: usize,
    capacity: usize,
    origin: Origin,
    unused: Mutex<Vec<Block>>,
}

impl StoragePool {
    /// An empty pool for buffers of `len_bytes`.
    pub fn new(len_bytes: usize, capacity: usize) -> Arc<Self> {
        let unused = Mutex::new(Vec::with_capacity(capacity));
        Arc::new(Self { len_bytes, capacity, origin: Origin::here(), unused })
    }

    /// An unused buffer, else a new one. The content of a used one is whatever its last use left.
    pub fn take(self: &Arc<Self>) -> Result<Storage, RuntimeError> {
        let block = match self.unused().and_then(|mut unused| unused.pop()) {
            Some(block) => block,
            None => Block::new(self.len_bytes)?,
        };
        Ok(Storage { block: Some(block), home: Some(Arc::clone(self)) })
    }

    fn give_back(&self, block: Block) {
        if let Some(mut unused) = self.unused()
            && unused.len() < self.capacity
        {
            unused.push(block);
        }
    }

    /// `None` in a forked process: a thread of the parent may have held the lock.
    fn unused(&self) -> Option<MutexGuard<'_, Vec<Block>>> {
        self.origin.is_here().then(|| self.unused.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_aligned_and_zeroed() {
        for len in [0, 1, 63, 64, 4097] {
            let storage = Storage::new(len).unwrap();
            assert_eq!(storage.memory().as_mut_ptr() as usize % ALIGNMENT_BYTES, 0);
            assert_eq!(storage.memory().len(), len);
            assert!(storage.memory().as_const().to_vec().iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn pool_never_hands_out_visible_memory() {
        let pool = StoragePool::new(128, 2);
        let first = pool.take().unwrap();
        let second = pool.take().unwrap();
        let first_address = first.memory().as_mut_ptr();
        assert_ne!(first_address, second.memory().as_mut_ptr());
        drop(first);
        assert_eq!(pool.take().unwrap().memory().as_mut_ptr(), first_address);
    }

    #[test]
    fn pool_keeps_no_more_than_its_capacity() {
        let pool = StoragePool::new(16, 2);
        let taken: Vec<_> = (0..5).map(|_| pool.take().unwrap()).collect();
        drop(taken);
        assert_eq!(pool.unused.lock().unwrap().len(), 2);
    }

    #[test]
    fn refuses_what_cannot_be_allocated() {
        assert_eq!(Storage::new(usize::MAX).unwrap_err().code(), "device.memory");
    }
}
