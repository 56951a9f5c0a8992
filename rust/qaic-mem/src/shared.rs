//! Reference-counted memory, shared by a caller's objects and the inferences that use it.

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use crate::{DmaBuf, HostSlice, Storage};

/// Memory of a caller. Each [`ForeignMemory`](crate::ForeignMemory) of this memory holds one reference.
///
/// `K` is the type that keeps the memory alive. [`SharedMemory`] erases this type; both are in one allocation.
pub struct Kept<K: ?Sized> {
    // Invariant: the keeper keeps `len` bytes at `address` valid for reads, and for writes unless `is_readonly`.
    address: *mut u8,
    len: usize,
    is_readonly: bool,
    // Memory outside the host: the address is not valid.
    dma_buf: Option<Arc<DmaBuf>>,
    #[allow(dead_code)] // kept, never read
    keeper: K,
}

/// Memory of a caller, with any type of keeper.
pub type SharedMemory = Kept<dyn Any + Send + Sync>;

// SAFETY: the keepers may be sent, and their memory may be accessed from any thread.
unsafe impl<K: ?Sized + Send> Send for Kept<K> {}
// SAFETY: as for `Send`; a shared reference accesses only memory that other threads may also write.
unsafe impl<K: ?Sized + Sync> Sync for Kept<K> {}

impl SharedMemory {
    /// Creates shared memory from the `len` bytes at `address`, which `keeper` keeps alive.
    ///
    /// # Safety
    ///
    /// * As long as `keeper` lives, the conditions of [`HostSlice::new`] hold, and unless `is_readonly` those of
    ///   [`HostSliceMut::new`](crate::HostSliceMut::new).
    /// * While one thread writes bytes of the memory, through any reference, no other thread reads or writes them.
    pub unsafe fn foreign<K: Send + Sync + 'static>(
        address: *mut u8,
        len: usize,
        is_readonly: bool,
        keeper: K,
    ) -> Arc<Self> {
        Arc::new(Kept { address, len, is_readonly, dma_buf: None, keeper })
    }

    /// Creates shared memory from memory that this library has allocated.
    ///
    /// # Safety
    ///
    /// The conditions of [`Self::foreign`] about threads hold.
    pub unsafe fn of_storage(storage: Storage) -> Arc<Self> {
        let (address, len) = (storage.as_mut_ptr(), storage.memory().len());
        // SAFETY: the storage keeps its memory, which is accessed only through this value; the caller
        // guarantees the rest.
        unsafe { Self::foreign(address, len, false, storage) }
    }

    /// Returns memory without bytes.
    pub fn empty() -> Arc<Self> {
        Arc::new(Kept { address: ptr::null_mut(), len: 0, is_readonly: false, dma_buf: None, keeper: () })
    }

    /// Creates memory that devices share and that the host does not access.
    pub fn behind(dma_buf: DmaBuf) -> Arc<Self> {
        let dma_buf = Some(Arc::new(dma_buf));
        Arc::new(Kept { address: ptr::null_mut(), len: 0, is_readonly: false, dma_buf, keeper: () })
    }

    /// Returns a view of the bytes; empty for memory behind a descriptor.
    pub fn memory(&self) -> HostSlice<'_> {
        // SAFETY: the invariant; the view borrows from the value.
        unsafe { HostSlice::new(self.address, self.len) }
    }

    /// Address of the first byte; null for memory behind a descriptor.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Returns the DMA buffer, for memory behind a descriptor.
    pub fn dma_buf(&self) -> Option<&Arc<DmaBuf>> {
        self.dma_buf.as_ref()
    }

    /// Number of bytes, including memory behind a descriptor.
    pub fn len(&self) -> usize {
        let described = self.dma_buf().map(|memory| usize::try_from(memory.len).unwrap_or(usize::MAX));
        described.unwrap_or(self.len)
    }

    /// Returns true if the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the memory must not be written.
    pub fn is_readonly(&self) -> bool {
        self.is_readonly
    }
}

impl<K: ?Sized> fmt::Debug for Kept<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.dma_buf {
            Some(dma_buf) => write!(formatter, "SharedMemory({dma_buf:?})"),
            None => write!(formatter, "SharedMemory({} bytes at {:p})", self.len, self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::{ForeignMemory, ForeignMemoryMut};

    #[test]
    fn memory_is_kept_by_every_reference() {
        let keeper = Arc::new([1_u8, 2, 3]);
        let address = keeper.as_ptr().cast_mut();
        // SAFETY: the bytes are in the keeper, and nothing writes them.
        let shared = unsafe { SharedMemory::foreign(address, 3, true, Arc::clone(&keeper)) };
        assert!(shared.is_readonly() && ForeignMemoryMut::of_shared(&shared).is_none());
        let input = ForeignMemory::from(&shared);
        drop(shared);
        assert_eq!((input.as_slice().to_vec(), Arc::strong_count(&keeper)), (vec![1, 2, 3], 2));
        drop(input);
        assert_eq!(Arc::strong_count(&keeper), 1);
    }

    #[test]
    fn storage_that_is_shared_is_written_through_any_reference() {
        // SAFETY: no other thread has the memory.
        let shared = unsafe { SharedMemory::of_storage(Storage::new(4).unwrap()) };
        let mut output = ForeignMemoryMut::of_shared(&shared).unwrap();
        output.as_mut().fill(6);
        assert_eq!((shared.memory().to_vec(), shared.len()), (vec![6; 4], 4));
        assert_eq!(shared.address().addr(), shared.memory().as_ptr().addr());
        assert!(output.into_storage().is_none(), "others have it too");
    }

    #[test]
    fn memory_behind_a_descriptor_has_a_size_and_no_bytes() {
        let descriptor: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let shared = SharedMemory::behind(DmaBuf { descriptor, offset: 8, len: 24 });
        assert_eq!((shared.len(), shared.memory().len(), shared.address().is_null()), (24, 0, true));
        let is_empty = shared.dma_buf().map(|memory| memory.len == 0);
        assert_eq!((shared.is_empty(), is_empty), (false, Some(false)));
        let descriptor: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let nothing = SharedMemory::behind(DmaBuf { descriptor, offset: 0, len: 0 });
        assert!(nothing.is_empty() && nothing.dma_buf().is_some_and(|memory| memory.len == 0));
        assert_eq!(shared.dma_buf().map(|memory| memory.offset), Some(8));
    }
}
