//! Buffers of one size for repeated use.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::storage::Block;
use crate::{MemoryError, Storage};

/// Buffers of one size. The pool keeps at most `capacity` unused buffers.
///
/// Each unused buffer has its own slot, which one atomic exchange empties or fills. No thread ever waits for another,
/// and a forked process can use the pool regardless of the state of its parent's threads.
#[derive(Debug)]
pub struct StoragePool {
    len_bytes: usize,
    // Null for an empty slot. Any other value came from `Block::into_raw` of a block of `len_bytes`, and the slot
    // owns it: the thread that takes the value stores null.
    unused: Box<[AtomicPtr<u8>]>,
}

impl StoragePool {
    /// Creates an empty pool of buffers of `len_bytes`.
    pub fn new(len_bytes: usize, capacity: usize) -> Arc<Self> {
        let unused = (0..capacity).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Arc::new(Self { len_bytes, unused })
    }

    /// Returns an unused buffer, or a new one. A reused buffer keeps the contents of its last use.
    pub fn take(self: &Arc<Self>) -> Result<Storage, MemoryError> {
        let block = match self.unused.iter().find_map(|slot| self.empty(slot)) {
            Some(block) => block,
            None => Block::new(self.len_bytes)?,
        };
        Ok(Storage::of_pool(block, Arc::clone(self)))
    }

    /// Takes the buffer out of a slot.
    fn empty(&self, slot: &AtomicPtr<u8>) -> Option<Block> {
        // A load costs less than an exchange.
        NonNull::new(slot.load(Ordering::Relaxed))?;
        // Acquire: sees the writes to the buffer before its return.
        let address = NonNull::new(slot.swap(ptr::null_mut(), Ordering::Acquire))?;
        // SAFETY: the slot owned a block of `len_bytes`, and no longer owns it.
        Some(unsafe { Block::from_raw(address, self.len_bytes) })
    }

    /// Keeps a block of this pool's size if there is room, otherwise frees the block.
    pub(crate) fn give_back(&self, block: Block) {
        let address = block.into_raw();
        for slot in &self.unused {
            let is_empty = slot.load(Ordering::Relaxed).is_null();
            // Release: see `empty`.
            let put = |slot: &AtomicPtr<u8>| {
                slot.compare_exchange(ptr::null_mut(), address.as_ptr(), Ordering::Release, Ordering::Relaxed)
            };
            if is_empty && put(slot).is_ok() {
                return;
            }
        }
        // SAFETY: the address is the block's, and no slot has taken it.
        drop(unsafe { Block::from_raw(address, self.len_bytes) });
    }
}

impl Drop for StoragePool {
    fn drop(&mut self) {
        for slot in &self.unused {
            drop(self.empty(slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn count(pool: &StoragePool) -> usize {
        pool.unused.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null()).count()
    }

    #[test]
    fn pool_with_buffers_in_use_hands_out_others() {
        let pool = StoragePool::new(128, 2);
        let first = pool.take().unwrap();
        let second = pool.take().unwrap();
        let first_address = first.as_mut_ptr();
        assert_ne!(first_address, second.as_mut_ptr());
        drop(first);
        assert_eq!(pool.take().unwrap().as_mut_ptr(), first_address);
    }

    #[test]
    fn pool_given_more_than_its_capacity_frees_the_rest() {
        let pool = StoragePool::new(16, 2);
        let taken: Vec<_> = (0..5).map(|_| pool.take().unwrap()).collect();
        drop(taken);
        assert_eq!(count(&pool), 2);
    }

    #[test]
    fn pool_shared_by_threads_hands_no_buffer_to_two() {
        let pool = StoragePool::new(8, 3);
        thread::scope(|scope| {
            for number in 0..4_u64 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..if cfg!(miri) { 20 } else { 5_000 } {
                        let mut storage = pool.take().unwrap();
                        let mark = number << 32 | round;
                        storage.memory_mut().write_from(0, &[mark]).unwrap();
                        let mut found = [0_u64];
                        storage.memory().read_into(0, &mut found).unwrap();
                        assert_eq!(found, [mark]);
                    }
                });
            }
        });
        assert!(count(&pool) <= 3);
    }
}
