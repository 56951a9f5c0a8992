//! Memory that a program and a device share.

use std::any::Any;
use std::fmt;
use std::ptr;

/// A mapped buffer object. Valid as long as this lives, whatever becomes of the handle, the channel or the card.
///
/// The device may write at any moment between an execute call and the return of the wait for it, so the memory is reached
/// by address and copied, never borrowed.
pub struct Mapping {
    address: *mut u8,
    len: usize,
    // Unmaps or frees when it is dropped.
    _keeper: Box<dyn Any + Send + Sync>,
}

// SAFETY: it is plain memory, reached by address only; who may touch it when is the device's protocol.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory at `address` that `keeper` owns.
    ///
    /// # Safety
    ///
    /// `len` bytes from `address` on are readable and writable as long as `keeper` is not dropped.
    pub unsafe fn new(address: *mut u8, len: usize, keeper: Box<dyn Any + Send + Sync>) -> Self {
        Self { address, len, _keeper: keeper }
    }

    /// Its first byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies from `offset` on; `None` when that reaches beyond the end.
    pub fn read_into(&self, offset: usize, into: &mut [u8]) -> Option<()> {
        let end = offset.checked_add(into.len())?;
        if end > self.len {
            return None;
        }
        // SAFETY: `offset + into.len()` lies within the mapping, valid by the contract of `new`; `into` is exclusively ours.
        unsafe { ptr::copy(self.address.wrapping_add(offset), into.as_mut_ptr(), into.len()) };
        Some(())
    }

    /// Copies to `offset`; `None` when that reaches beyond the end.
    pub fn write_from(&self, offset: usize, from: &[u8]) -> Option<()> {
        let end = offset.checked_add(from.len())?;
        if end > self.len {
            return None;
        }
        // SAFETY: `offset + from.len()` lies within the mapping, valid by the contract of `new`; `copy` allows overlap.
        unsafe { ptr::copy(from.as_ptr(), self.address.wrapping_add(offset), from.len()) };
        Some(())
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
    fn copies_stay_inside() {
        let mut memory = vec![0_u8; 16].into_boxed_slice();
        let address = memory.as_mut_ptr();
        // SAFETY: the box is the keeper, and moving it does not move its bytes.
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
