//! Views of memory that somebody else owns and may change at any moment.
//!
//! Arrays of the caller and DMA buffers of a device are shared with Python threads and with the device. A `&[T]` of
//! them would promise the compiler that nobody writes meanwhile, which nobody can promise. So the runtime moves their
//! bytes through raw views: bounds are checked here, contents are copied with raw pointer copies, and a concurrent
//! writer makes the copied *values* unspecified, never the program (architecture rule "treat the memory as volatile").
//!
//! [`HostSlice`] and [`HostSliceMut`] carry no lifetime: whoever constructs one vouches for the memory
//! ([`HostSlice::new`]). [`Source`] and [`Sink`] are what kernels take: the same, or a borrowed block of scratch.

use std::marker::PhantomData;
use std::ptr;

use half::f16;

/// Types that are plain bytes: no padding, and every bit pattern is a value.
///
/// # Safety
///
/// Implement only for types that have both properties.
pub unsafe trait Plain: Copy + Default + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty),*) => {$(
        // SAFETY: a primitive number, or a transparent wrapper of one, has no padding and no invalid bit pattern.
        unsafe impl Plain for $type {}
    )*};
}

plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, f16);

/// A readable piece of foreign memory.
#[derive(Clone, Copy, Debug)]
pub struct HostSlice {
    ptr: *const u8,
    len: usize,
}

/// A writable piece of foreign memory.
#[derive(Clone, Copy, Debug)]
pub struct HostSliceMut {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: `new` requires that the memory may be read from any thread; the view itself is two words.
unsafe impl Send for HostSlice {}
// SAFETY: as for `Send`; sharing the view adds nothing to copying it.
unsafe impl Sync for HostSlice {}
// SAFETY: `new` requires that the memory may be read and written from any thread; the view itself is two words.
unsafe impl Send for HostSliceMut {}
// SAFETY: as for `Send`; sharing the view adds nothing to copying it.
unsafe impl Sync for HostSliceMut {}

impl HostSlice {
    /// View of the `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// Until the last use of this value and of everything copied or cut from it:
    /// * `ptr` is valid for reads of `len` bytes from any thread (for `len` 0 it may be anything, null included);
    /// * `len` does not exceed `isize::MAX`;
    /// * the bytes are initialized and belong to no value that Rust assumes unchanging (no live `&T` without
    ///   interior mutability may overlap them while somebody writes).
    ///
    /// Others may write the bytes at any time; readers then see unspecified values.
    pub const unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// The view of nothing.
    pub const fn empty() -> Self {
        Self { ptr: ptr::null(), len: 0 }
    }

    /// Number of bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub const fn as_ptr(self) -> *const u8 {
        self.ptr
    }

    /// Whether the two have a byte in common.
    pub fn overlaps(self, other: Self) -> bool {
        let (start, other_start) = (self.ptr.addr(), other.ptr.addr());
        let is_before = |end: usize, start: usize| end <= start;
        !self.is_empty()
            && !other.is_empty()
            && !is_before(start.saturating_add(self.len), other_start)
            && !is_before(other_start.saturating_add(other.len), start)
    }

    /// The `len` bytes from `offset` on, `None` when they do not lie inside.
    pub fn subslice(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { ptr: self.ptr.wrapping_add(offset), len })
    }

    /// Copies the bytes from `offset` on into `into`; `None`, and nothing copied, when they do not lie inside.
    pub fn read_into<T: Plain>(self, offset: usize, into: &mut [T]) -> Option<()> {
        self.source().read_into(offset, into)
    }

    /// All bytes as an owned vector.
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0_u8; self.len];
        self.source().read_into(0, &mut bytes);
        bytes
    }

    /// What kernels take.
    pub(crate) fn source(self) -> Source<'static> {
        Source { ptr: self.ptr, len: self.len, memory: PhantomData }
    }
}

impl HostSliceMut {
    /// View of the `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// The conditions of [`HostSlice::new`], and until the last use the bytes may be written from any thread: they
    /// belong to no value that Rust assumes unchanging or exclusively borrowed.
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// The view of nothing.
    pub const fn empty() -> Self {
        Self { ptr: ptr::null_mut(), len: 0 }
    }

    /// Number of bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub const fn as_mut_ptr(self) -> *mut u8 {
        self.ptr
    }

    /// The same bytes for reading.
    pub const fn as_const(self) -> HostSlice {
        HostSlice { ptr: self.ptr, len: self.len }
    }

    /// The `len` bytes from `offset` on, `None` when they do not lie inside.
    pub fn subslice(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { ptr: self.ptr.wrapping_add(offset), len })
    }

    /// Copies the bytes of `source`, as many as fit, and returns their number. The two may overlap.
    pub fn copy_from(self, source: HostSlice) -> usize {
        let count = self.len.min(source.len);
        if count > 0 {
            // SAFETY: `count` lies within both views, whose constructors vouch for the memory; `copy` allows overlap.
            unsafe { ptr::copy(source.ptr, self.ptr, count) };
        }
        count
    }

    /// Writes `values` from byte `offset` on; `None`, and nothing written, when they do not lie inside.
    pub fn write_from<T: Plain>(self, offset: usize, values: &[T]) -> Option<()> {
        self.sink().write_from(offset, values)
    }

    /// Sets every byte to `value`.
    pub fn fill(self, value: u8) {
        if self.len > 0 {
            // SAFETY: the constructor vouches for writes of `len` bytes at `ptr`.
            unsafe { ptr::write_bytes(self.ptr, value, self.len) };
        }
    }

    /// What kernels take.
    pub(crate) fn sink(self) -> Sink<'static> {
        Sink { ptr: self.ptr, len: self.len, memory: PhantomData }
    }
}

/// Bytes a kernel reads: foreign memory or a borrowed block of scratch.
///
/// Invariant: `ptr` is valid for reads of `len` bytes while the value can be used.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    ptr: *const u8,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

/// Bytes a kernel writes: foreign memory or a borrowed block of scratch.
///
/// Invariant: `ptr` is valid for writes of `len` bytes while the value can be used.
pub(crate) struct Sink<'a> {
    ptr: *mut u8,
    len: usize,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Source<'a> {
    /// A block of scratch.
    pub(crate) fn block<T: Plain>(values: &'a [T]) -> Self {
        Self { ptr: values.as_ptr().cast(), len: size_of_val(values), memory: PhantomData }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(self) -> *const u8 {
        self.ptr
    }

    /// The `len` bytes from `offset` on, `None` when they do not lie inside.
    pub(crate) fn sub(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { ptr: self.ptr.wrapping_add(offset), len, memory: PhantomData })
    }

    /// See [`HostSlice::read_into`].
    pub(crate) fn read_into<T: Plain>(self, offset: usize, into: &mut [T]) -> Option<()> {
        let from = self.sub(offset, size_of_val(into))?;
        if from.len > 0 {
            // SAFETY: `from` is `size_of_val(into)` readable bytes; `into` is exclusively ours, so the two are apart;
            // `T: Plain` takes any bytes.
            unsafe { ptr::copy(from.ptr, into.as_mut_ptr().cast::<u8>(), from.len) };
        }
        Some(())
    }
}

impl<'a> Sink<'a> {
    /// A block of scratch.
    pub(crate) fn block<T: Plain>(values: &'a mut [T]) -> Self {
        Self { ptr: values.as_mut_ptr().cast(), len: size_of_val(values), memory: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The `len` bytes from `offset` on, `None` when they do not lie inside.
    pub(crate) fn sub(&mut self, offset: usize, len: usize) -> Option<Sink<'_>> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Sink { ptr: self.ptr.wrapping_add(offset), len, memory: PhantomData })
    }

    /// Copies as many bytes of `source` as fit.
    pub(crate) fn copy_from(&mut self, source: Source<'_>) {
        let count = self.len.min(source.len);
        if count > 0 {
            // SAFETY: `count` lies within both, valid by their invariants; `copy` allows overlap.
            unsafe { ptr::copy(source.ptr, self.ptr, count) };
        }
    }

    /// See [`HostSliceMut::write_from`].
    pub(crate) fn write_from<T: Plain>(&mut self, offset: usize, values: &[T]) -> Option<()> {
        self.sub(offset, size_of_val(values))?.copy_from(Source::block(values));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)] // bit for bit is what is promised

    use super::*;

    fn view(bytes: &[u8]) -> HostSlice {
        // SAFETY: the tests keep `bytes` alive and unchanged while the view is used.
        unsafe { HostSlice::new(bytes.as_ptr(), bytes.len()) }
    }

    fn view_mut(bytes: &mut [u8]) -> HostSliceMut {
        // SAFETY: the tests touch `bytes` only through the view while it is used.
        unsafe { HostSliceMut::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn subslice_keeps_inside() {
        let bytes = [1_u8, 2, 3, 4];
        let all = view(&bytes);
        assert_eq!(all.subslice(1, 2).unwrap().to_vec(), [2, 3]);
        assert_eq!(all.subslice(4, 0).unwrap().len(), 0);
        assert!(all.subslice(3, 2).is_none());
        assert!(all.subslice(5, 0).is_none());
        assert!(all.subslice(1, usize::MAX).is_none());
    }

    #[test]
    fn empty_views_are_inert() {
        HostSliceMut::empty().fill(1);
        assert_eq!(HostSliceMut::empty().copy_from(HostSlice::empty()), 0);
        assert!(HostSlice::empty().is_empty() && HostSlice::empty().to_vec().is_empty());
    }

    #[test]
    fn copy_from_takes_what_fits() {
        let mut bytes = [0_u8; 3];
        assert_eq!(view_mut(&mut bytes).copy_from(view(&[7, 8, 9, 10])), 3);
        assert_eq!(bytes, [7, 8, 9]);
    }

    #[test]
    fn overlapping_copy_moves() {
        let mut bytes = [1_u8, 2, 3, 4, 5];
        let all = view_mut(&mut bytes);
        all.subslice(1, 4).unwrap().copy_from(all.as_const());
        assert_eq!(bytes, [1, 1, 2, 3, 4]);
    }

    #[test]
    fn typed_access_checks_bounds_and_ignores_alignment() {
        let mut bytes = [0_u8; 9];
        let all = view_mut(&mut bytes);
        assert_eq!(all.write_from(1, &[1.5_f32, -2.0]), Some(()));
        assert_eq!(all.write_from(2, &[1.0_f32, 1.0]), None);
        let mut back = [0.0_f32; 2];
        assert_eq!(all.as_const().read_into(1, &mut back), Some(()));
        assert_eq!(back, [1.5, -2.0]);
        assert_eq!(all.as_const().read_into(2, &mut back), None);
    }
}
