//! Memory with its owner, as a value that can be stored and moved to other threads.
//!
//! [`ForeignMemory`] contains its backing: a reference-counted owner, a [`Storage`], or a [`crate::Loan`]. A view
//! borrows from the value, so it never outlives the memory.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::loan::LoanGuard;
use crate::{HostSlice, HostSliceMut, SharedMemory, Storage};

/// Keeps memory alive. The thread that drops the last memory also drops the owner.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// The owner of the memory.
enum Backing {
    Owner(#[allow(dead_code)] Owner),              // kept, never read
    Shared(#[allow(dead_code)] Arc<SharedMemory>), // kept, never read
    Storage(Storage),
    Loan(#[allow(dead_code)] LoanGuard), // its drop reports the return of the memory
}

impl Backing {
    fn into_storage(self) -> Option<Storage> {
        match self {
            Self::Storage(storage) => Some(storage),
            Self::Owner(_) | Self::Shared(_) | Self::Loan(_) => None,
        }
    }
}

/// Readable memory, with its backing.
pub struct ForeignMemory {
    // Invariant: valid for reads of `len` bytes as long as the backing lives.
    ptr: *const u8,
    len: usize,
    backing: Backing,
}

/// Writable memory, with its backing.
pub struct ForeignMemoryMut {
    // Invariant: valid for reads and writes of `len` bytes as long as the backing lives.
    ptr: *mut u8,
    len: usize,
    backing: Backing,
}

// SAFETY: `new` requires that the memory may be read from any thread, which also holds for storages and
// views; backings may be sent.
unsafe impl Send for ForeignMemory {}
// SAFETY: as for `Send`; a shared reference only reads.
unsafe impl Sync for ForeignMemory {}
// SAFETY: `new` requires that the memory may be read and written from any thread, which also holds for
// storages and views; backings may be sent.
unsafe impl Send for ForeignMemoryMut {}
// SAFETY: as for `Send`; a shared reference only reads.
unsafe impl Sync for ForeignMemoryMut {}

impl ForeignMemory {
    /// Creates a value for the `len` bytes at `ptr`, which `owner` keeps alive.
    ///
    /// # Safety
    ///
    /// As long as `owner` lives, the conditions of [`HostSlice::new`] hold.
    pub unsafe fn new(ptr: *const u8, len: usize, owner: Owner) -> Self {
        Self { ptr, len, backing: Backing::Owner(owner) }
    }

    /// Creates memory from a view that is lent until the guard is dropped.
    pub(crate) fn lent(view: HostSlice<'_>, guard: LoanGuard) -> Self {
        Self { ptr: view.as_ptr(), len: view.len(), backing: Backing::Loan(guard) }
    }

    /// Returns a view of the bytes.
    pub fn as_slice(&self) -> HostSlice<'_> {
        // SAFETY: the invariant; the view borrows from the value, which has the backing.
        unsafe { HostSlice::new(self.ptr, self.len) }
    }

    /// Limits the memory to its first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the storage that backs the memory, if it is one.
    pub fn into_storage(self) -> Option<Storage> {
        self.backing.into_storage()
    }
}

impl ForeignMemoryMut {
    /// Creates a value for the `len` bytes at `ptr`, which `owner` keeps alive.
    ///
    /// # Safety
    ///
    /// As long as `owner` lives, the conditions of [`HostSliceMut::new`] hold.
    pub unsafe fn new(ptr: *mut u8, len: usize, owner: Owner) -> Self {
        Self { ptr, len, backing: Backing::Owner(owner) }
    }

    /// Returns memory that others share; `None` if the memory must not be written. The creator of the shared memory
    /// guarantees that no two threads write it concurrently.
    pub fn of_shared(memory: &Arc<SharedMemory>) -> Option<Self> {
        let (ptr, len) = (memory.address(), memory.memory().len());
        let backing = || Backing::Shared(Arc::clone(memory));
        (!memory.is_readonly()).then(|| Self { ptr, len, backing: backing() })
    }

    /// Creates memory from a view that is lent until the guard is dropped.
    pub(crate) fn lent(view: &HostSliceMut<'_>, guard: LoanGuard) -> Self {
        Self { ptr: view.as_mut_ptr(), len: view.len(), backing: Backing::Loan(guard) }
    }

    /// Returns a readable view of the bytes.
    pub fn as_slice(&self) -> HostSlice<'_> {
        // SAFETY: the invariant; the view borrows from the value, which has the backing.
        unsafe { HostSlice::new(self.ptr, self.len) }
    }

    /// Returns a writable view of the bytes.
    pub fn as_mut(&mut self) -> HostSliceMut<'_> {
        // SAFETY: the invariant; the view borrows from the value, which has the backing.
        unsafe { HostSliceMut::new(self.ptr, self.len) }
    }

    /// Returns the storage that backs the memory, if it is one.
    pub fn into_storage(self) -> Option<Storage> {
        self.backing.into_storage()
    }
}

impl From<&Arc<SharedMemory>> for ForeignMemory {
    fn from(memory: &Arc<SharedMemory>) -> Self {
        let (ptr, len) = (memory.address(), memory.memory().len());
        Self { ptr, len, backing: Backing::Shared(Arc::clone(memory)) }
    }
}

impl From<Storage> for ForeignMemory {
    fn from(storage: Storage) -> Self {
        let view = storage.memory();
        Self { ptr: view.as_ptr(), len: view.len(), backing: Backing::Storage(storage) }
    }
}

impl From<Storage> for ForeignMemoryMut {
    fn from(mut storage: Storage) -> Self {
        let view = storage.memory_mut();
        let (ptr, len) = (view.as_mut_ptr(), view.len());
        Self { ptr, len, backing: Backing::Storage(storage) }
    }
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ForeignMemory({} bytes at {:p})", self.len, self.ptr)
    }
}

impl fmt::Debug for ForeignMemoryMut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ForeignMemoryMut({} bytes at {:p})", self.len, self.ptr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_with_an_owner_keeps_it() {
        let owner: Arc<[u8; 4]> = Arc::new([1, 2, 3, 4]);
        let ptr = owner.as_ptr();
        let kept: Owner = Arc::clone(&owner) as Owner;
        // SAFETY: the bytes are in the owner, and nothing writes them.
        let mut memory = unsafe { ForeignMemory::new(ptr, 4, kept) };
        assert_eq!(Arc::strong_count(&owner), 2);
        assert_eq!(memory.as_slice().to_vec(), [1, 2, 3, 4]);
        memory.truncate(9);
        assert_eq!(memory.as_slice().len(), 4);
        memory.truncate(3);
        assert_eq!(memory.as_slice().to_vec(), [1, 2, 3]);
        drop(memory);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn storage_comes_back_as_it_was_left() {
        let mut memory = ForeignMemoryMut::from(Storage::new(6).unwrap());
        memory.as_mut().fill(7);
        assert_eq!(memory.into_storage().unwrap().memory().to_vec(), [7; 6]);
        let input = ForeignMemory::from(Storage::of(&[3_u8; 2]).unwrap());
        assert_eq!(input.into_storage().map(|storage| storage.memory().to_vec()), Some(vec![3; 2]));
    }

    #[test]
    fn memory_goes_to_another_thread_with_its_backing() {
        let mut memory = ForeignMemoryMut::from(Storage::new(3).unwrap());
        let written = std::thread::spawn(move || {
            memory.as_mut().fill(5);
            memory
        });
        assert_eq!(written.join().unwrap().as_slice().to_vec(), [5; 3]);
    }
}
