//! Memory that a program and a device share.

use std::any::Any;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::{ptr, slice};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::HostSliceMut;

/// A mapped buffer object. The mapping is valid as long as this object exists, even if the handle, the channel or the
/// card is lost.
///
/// The device may write at any time between an execute call and the end of its wait. The memory is therefore copied
/// by address and never borrowed. Threads may access the same bytes concurrently; each byte then has a value that one
/// of the threads wrote.
pub struct Mapping {
    address: *mut u8,
    len: usize,
    // Unmaps or frees the memory on drop.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: it is plain memory that belongs to no thread, and any thread may drop the owner.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference accesses the memory only as atomic bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a mapping of the memory at `address`, which `owner` owns.
    ///
    /// # Safety
    ///
    /// `len` bytes from `address` on are readable and writable as long as `owner` is not dropped.
    pub(crate) unsafe fn new(address: *mut u8, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { address, len, _owner: owner }
    }

    /// Allocates zeroed memory; pages are allocated at their first access. Fails with `EINVAL` for zero bytes.
    pub fn anonymous(len: usize) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses an unused address.
        let address =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let owner = Box::new(MappedPages { address: address.expose_provenance(), len });
        // SAFETY: `len` bytes are mapped there for reading and writing until the owner is dropped.
        Ok(unsafe { Self::new(address.cast(), len, owner) })
    }

    /// Maps `len` bytes of a file at `offset`, shared with other processes. Fails with `EINVAL` for zero bytes, or
    /// for an offset that is not page-aligned. The file must not shrink while it is mapped, because accesses beyond
    /// its end are fatal.
    pub fn of_file(file: impl AsFd, offset: u64, len: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address.
        let address = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset) }?;
        let owner = Box::new(MappedPages { address: address.expose_provenance(), len });
        // SAFETY: as in `anonymous`; the doc comment states the condition for the length of the file.
        Ok(unsafe { Self::new(address.cast(), len, owner) })
    }

    /// Returns a part of the mapping, which keeps the whole mapping alive; `None` if the part is out of bounds.
    pub fn part(self: &Arc<Self>, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let address = self.address.wrapping_add(offset);
        // SAFETY: the part is inside the mapping, which its owner keeps.
        Some(unsafe { Self::new(address, len, Box::new(Arc::clone(self))) })
    }

    /// Address of the first byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.address
    }

    /// Returns the host's view of the memory, which a device may also write.
    pub fn memory_mut(&mut self) -> HostSliceMut<'_> {
        // SAFETY: valid by the contract of `new` as long as this value lives, which the view borrows; the
        // memory contains no Rust value.
        unsafe { HostSliceMut::new(self.address, self.len) }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the mapping has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes from `offset` into `into`; `None` if they are out of bounds.
    pub fn read_into(&self, offset: usize, into: &mut [u8]) -> Option<()> {
        let shared = self.bytes(offset, into.len())?;
        for (byte, shared) in into.iter_mut().zip(shared) {
            *byte = shared.load(Ordering::Relaxed);
        }
        Some(())
    }

    /// Copies `from` to `offset`; `None` if the bytes are out of bounds.
    pub fn write_from(&self, offset: usize, from: &[u8]) -> Option<()> {
        let shared = self.bytes(offset, from.len())?;
        for (byte, shared) in from.iter().zip(shared) {
            shared.store(*byte, Ordering::Relaxed);
        }
        Some(())
    }

    /// Returns the `len` bytes at `offset` as atomics, because other threads access them concurrently.
    fn bytes(&self, offset: usize, len: usize) -> Option<&[AtomicU8]> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        if len == 0 {
            return Some(&[]);
        }
        let first = self.address.wrapping_add(offset).cast::<AtomicU8>();
        // SAFETY: the bytes are in the mapping, valid by the contract of `new`, and have the layout of atomic ones; a
        // view made by `memory_mut` has exclusively borrowed the mapping.
        Some(unsafe { slice::from_raw_parts(first, len) })
    }
}

/// Pages that are unmapped on drop.
struct MappedPages {
    address: usize,
    len: usize,
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        let address = ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: these pages belong to the only mapping that this value kept.
        let result = unsafe { munmap(address, self.len) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("address", &self.address)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_a_mapping_keeps_it_and_stays_inside() {
        assert_eq!(Mapping::anonymous(0).map(|_| ()), Err(Errno::INVAL));
        let Ok(whole) = Mapping::anonymous(8192).map(Arc::new) else { panic!("no memory") };
        let mut bytes = [1_u8; 8192];
        assert_eq!(whole.read_into(0, &mut bytes), Some(()));
        assert_eq!(bytes, [0; 8192]);
        assert!(whole.part(4096, 4097).is_none());
        assert!(whole.part(4096, 4096).is_some());
        assert_eq!((whole.len(), whole.is_empty(), whole.as_mut_ptr().is_null()), (8192, false, false));
        assert_eq!(whole.part(8192, 0).map(|part| (part.len(), part.is_empty())), Some((0, true)));
        assert!(whole.part(usize::MAX, 2).is_none());
        let Some(part) = whole.part(4000, 100) else { panic!("lies inside") };
        assert_eq!(whole.write_from(4099, &[7]), Some(()));
        drop(whole);
        let mut last = [0];
        assert_eq!(part.read_into(99, &mut last), Some(()));
        assert_eq!(last, [7]);
        assert_eq!(part.read_into(100, &mut last), None);
    }

    /// Miri finds the race where bytes are not atomic.
    #[test]
    fn threads_write_the_same_bytes_at_a_time() {
        let mut memory = vec![0_u8; 16].into_boxed_slice();
        let address = memory.as_mut_ptr();
        // SAFETY: the box is the owner, and moving it does not move its bytes.
        let mapping = unsafe { Mapping::new(address, 16, Box::new(memory)) };
        std::thread::scope(|scope| {
            for value in [1, 2] {
                let mapping = &mapping;
                scope.spawn(move || mapping.write_from(0, &[value; 16]));
            }
        });
        let mut back = [0; 16];
        assert_eq!(mapping.read_into(0, &mut back), Some(()));
        assert!(back.iter().all(|byte| [1, 2].contains(byte)));
    }

    #[test]
    fn copy_beyond_the_end_is_refused() {
        let mut memory = vec![0_u8; 16].into_boxed_slice();
        let address = memory.as_mut_ptr();
        // SAFETY: the box is the owner, and moving it does not move its bytes.
        let mapping = unsafe { Mapping::new(address, 16, Box::new(memory)) };
        assert_eq!(mapping.write_from(14, &[1, 2]), Some(()));
        assert_eq!(mapping.write_from(15, &[1, 2]), None);
        assert_eq!(mapping.write_from(usize::MAX, &[1]), None);
        let mut back = [0; 3];
        assert_eq!(mapping.read_into(13, &mut back), Some(()));
        assert_eq!(back, [0, 1, 2]);
        assert_eq!(mapping.read_into(14, &mut back), None);
    }
}
