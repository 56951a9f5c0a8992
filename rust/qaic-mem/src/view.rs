//! Views of memory that others may change at any time.
//!
//! Arrays of a caller and DMA buffers of a device are shared with the threads of an interpreter and with the device.
//! A `&[T]` of such memory would promise the compiler that no other writer exists, which is not certain. The bytes
//! are therefore accessed through raw views. A view checks bounds and copies contents by raw pointer. A concurrent
//! writer makes the copied *values* unspecified, and has no other effect.
//!
//! A view borrows from the owner of its memory. Safe code can create a view only of its own memory (a slice, a
//! [`crate::Storage`]), or of memory that unsafe code has declared valid (a [`crate::ForeignMemory`], a
//! [`crate::Mapping`]).

use std::marker::PhantomData;
use std::ptr;

use bytemuck::Pod;

/// A readable piece of memory.
///
/// Invariant: `ptr` is valid for reads of `len` bytes during `'a`.
#[derive(Clone, Copy, Debug)]
pub struct HostSlice<'a> {
    ptr: *const u8,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

/// A writable piece of memory.
///
/// The view is not `Copy`, so safe code cannot have two views of memory that it can write. Unsafe code that creates a
/// view of foreign memory must state which other views exist.
///
/// Invariant: `ptr` is valid for reads and writes of `len` bytes during `'a`.
#[derive(Debug)]
pub struct HostSliceMut<'a> {
    ptr: *mut u8,
    len: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: `new` requires that the memory may be read from any thread; a slice of bytes may be.
unsafe impl Send for HostSlice<'_> {}
// SAFETY: as for `Send`; sharing the view adds nothing to copying it.
unsafe impl Sync for HostSlice<'_> {}
// SAFETY: `new` requires that the memory may be read and written from any thread; a slice of bytes may be.
unsafe impl Send for HostSliceMut<'_> {}
// SAFETY: a shared reference of it only reads, which `new` allows from any thread.
unsafe impl Sync for HostSliceMut<'_> {}

impl<'a> HostSlice<'a> {
    /// Creates a view of the `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// During `'a`, `ptr` is valid for reads of `len` initialized bytes from any thread; with `len` 0, any `ptr` is
    /// valid, even null. `len` does not exceed `isize::MAX`. If the bytes may be written to, no Rust value that must
    /// not change contains them.
    pub const unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, memory: PhantomData }
    }

    /// Returns an empty view.
    pub const fn empty() -> Self {
        Self { ptr: ptr::null(), len: 0, memory: PhantomData }
    }

    /// Returns a view of the bytes of `values`.
    pub fn of<T: Pod>(values: &'a [T]) -> Self {
        Self { ptr: values.as_ptr().cast(), len: size_of_val(values), memory: PhantomData }
    }

    /// Number of bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub const fn as_ptr(self) -> *const u8 {
        self.ptr
    }

    /// Returns true if the two slices have a byte in common.
    pub fn overlaps(self, other: HostSlice<'_>) -> bool {
        let (start, other_start) = (self.ptr.addr(), other.ptr.addr());
        let is_before = |end: usize, start: usize| end <= start;
        !self.is_empty()
            && !other.is_empty()
            && !is_before(start.saturating_add(self.len), other_start)
            && !is_before(other_start.saturating_add(other.len), start)
    }

    /// Returns a view of the `len` bytes at `offset`; `None` if they are out of bounds.
    pub fn subslice(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { ptr: self.ptr.wrapping_add(offset), len, memory: PhantomData })
    }

    /// Copies the bytes at `offset` into `into`. Returns `None`, and copies nothing, if they are out of bounds.
    pub fn read_into<T: Pod>(self, offset: usize, into: &mut [T]) -> Option<()> {
        let from = self.subslice(offset, size_of_val(into))?;
        if from.len > 0 {
            // SAFETY: `from` is `size_of_val(into)` readable bytes; `into` is exclusively borrowed; `T: Pod`
            // takes any bytes.
            unsafe { ptr::copy(from.ptr, into.as_mut_ptr().cast::<u8>(), from.len) };
        }
        Some(())
    }

    /// Copies all bytes into a vector.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0_u8; self.len];
        let copied = self.read_into(0, &mut bytes);
        debug_assert!(copied.is_some(), "the vector has the length of the view");
        bytes
    }
}

impl<'a> HostSliceMut<'a> {
    /// View of the `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// The conditions of [`HostSlice::new`], and during `'a` the bytes may be written from any thread: they belong to no
    /// value that Rust assumes unchanging or exclusively borrowed.
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, memory: PhantomData }
    }

    /// Returns an empty view.
    pub const fn empty() -> Self {
        Self { ptr: ptr::null_mut(), len: 0, memory: PhantomData }
    }

    /// Returns a view of the bytes of `values`.
    pub fn of<T: Pod>(values: &'a mut [T]) -> Self {
        Self { ptr: values.as_mut_ptr().cast(), len: size_of_val(values), memory: PhantomData }
    }

    /// Number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub const fn as_mut_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Returns a view of the same bytes with a shorter lifetime.
    pub fn reborrow(&mut self) -> HostSliceMut<'_> {
        HostSliceMut { ptr: self.ptr, len: self.len, memory: PhantomData }
    }

    /// Returns a readable view of the same bytes.
    pub fn as_const(&self) -> HostSlice<'_> {
        HostSlice { ptr: self.ptr, len: self.len, memory: PhantomData }
    }

    /// Converts the view to a readable one.
    pub fn into_const(self) -> HostSlice<'a> {
        HostSlice { ptr: self.ptr, len: self.len, memory: PhantomData }
    }

    /// Returns a view of the `len` bytes at `offset`; `None` if they are out of bounds.
    pub fn subslice(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { ptr: self.ptr.wrapping_add(offset), len, memory: PhantomData })
    }

    /// Returns a view of the first `len` bytes, or of all bytes if there are fewer.
    #[must_use]
    pub fn first(self, len: usize) -> Self {
        Self { len: len.min(self.len), ..self }
    }

    /// Copies as many bytes of `source` as fit, and returns their number. The two views may overlap, because views of
    /// foreign memory can.
    pub fn copy_from(&mut self, source: HostSlice<'_>) -> usize {
        let count = self.len.min(source.len);
        if count > 0 {
            // SAFETY: `count` is within both, valid by their invariants; `copy` allows overlap.
            unsafe { ptr::copy(source.ptr, self.ptr, count) };
        }
        count
    }

    /// Writes `values` at byte `offset`. Returns `None`, and writes nothing, if they are out of bounds.
    pub fn write_from<T: Pod>(&mut self, offset: usize, values: &[T]) -> Option<()> {
        let mut to = self.reborrow().subslice(offset, size_of_val(values))?;
        to.copy_from(HostSlice::of(values));
        Some(())
    }

    /// Sets every byte to `value`.
    pub fn fill(&mut self, value: u8) {
        if self.len > 0 {
            // SAFETY: `len` bytes at `ptr` are writable, by the invariant.
            unsafe { ptr::write_bytes(self.ptr, value, self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)] // results must be equal bit for bit

    use super::*;

    #[test]
    fn subslice_beyond_the_end_is_refused() {
        let bytes = [1_u8, 2, 3, 4];
        let all = HostSlice::of(&bytes);
        assert_eq!(all.subslice(1, 2).unwrap().to_vec(), [2, 3]);
        assert_eq!(all.subslice(4, 0).unwrap().len(), 0);
        assert!(all.subslice(3, 2).is_none());
        assert!(all.subslice(5, 0).is_none());
        assert!(all.subslice(1, usize::MAX).is_none());

        let mut bytes = bytes;
        let mut all = HostSliceMut::of(&mut bytes);
        assert!(all.reborrow().subslice(3, 2).is_none());
        assert!(all.reborrow().subslice(1, usize::MAX).is_none());
        assert_eq!(all.reborrow().first(9).len(), 4);
        assert_eq!(all.reborrow().first(2).as_const().to_vec(), [1, 2]);
        assert_eq!(all.subslice(2, 2).unwrap().into_const().to_vec(), [3, 4]);
    }

    #[test]
    fn empty_view_copies_nothing() {
        HostSliceMut::empty().fill(1);
        assert_eq!(HostSliceMut::empty().copy_from(HostSlice::empty()), 0);
        assert!(HostSlice::empty().is_empty() && HostSlice::empty().to_vec().is_empty());
        assert!(HostSliceMut::empty().is_empty());
    }

    #[test]
    fn copy_from_takes_what_fits() {
        let mut bytes = [0_u8; 3];
        assert_eq!(HostSliceMut::of(&mut bytes).copy_from(HostSlice::of(&[7_u8, 8, 9, 10])), 3);
        assert_eq!(bytes, [7, 8, 9]);
        assert_eq!(HostSliceMut::of(&mut bytes).copy_from(HostSlice::of(&[1_u8])), 1);
        assert_eq!(bytes, [1, 8, 9]);
    }

    #[test]
    fn copy_between_overlapping_views_moves() {
        let mut bytes = [1_u8, 2, 3, 4, 5];
        let ptr = bytes.as_mut_ptr();
        // SAFETY: the bytes outlive the views and are accessed only through them.
        let mut end = unsafe { HostSliceMut::new(ptr.wrapping_add(1), 4) };
        // SAFETY: as above.
        let all = unsafe { HostSlice::new(ptr, 5) };
        assert_eq!(end.copy_from(all), 4);
        assert_eq!(bytes, [1, 1, 2, 3, 4]);
    }

    #[test]
    fn overlaps_counts_shared_bytes_only() {
        let bytes = [0_u8; 10];
        let part = |at, len| HostSlice::of(&bytes).subslice(at, len).unwrap();
        assert!(part(0, 5).overlaps(part(4, 3)) && part(4, 3).overlaps(part(0, 5)));
        assert!(part(2, 1).overlaps(part(0, 10)) && part(0, 10).overlaps(part(2, 1)));
        assert!(!part(0, 5).overlaps(part(5, 5)) && !part(5, 5).overlaps(part(0, 5)));
        assert!(!part(3, 0).overlaps(part(0, 10)) && !part(0, 10).overlaps(part(3, 0)));
    }

    #[test]
    fn typed_access_checks_bounds_and_ignores_alignment() {
        let mut bytes = [0_u8; 9];
        let mut all = HostSliceMut::of(&mut bytes);
        assert_eq!(all.write_from(1, &[1.5_f32, -2.0]), Some(()));
        assert_eq!(all.write_from(2, &[1.0_f32, 1.0]), None);
        let mut back = [0.0_f32; 2];
        assert_eq!(all.as_const().read_into(1, &mut back), Some(()));
        assert_eq!(back, [1.5, -2.0]);
        assert_eq!(all.as_const().read_into(2, &mut back), None);
        all.fill(7);
        assert_eq!(bytes, [7; 9]);
    }
}
