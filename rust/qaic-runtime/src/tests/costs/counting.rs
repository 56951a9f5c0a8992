//! Counts the allocations of the current thread, so that concurrent tests do not affect the count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // The counter has no destructor, so that a thread can use it while it ends.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    // Bytes allocated and not freed; wraps if the thread frees memory of others.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

fn grow(bytes: usize) {
    BYTES.set(BYTES.get().wrapping_add(bytes));
}

fn shrink(bytes: usize) {
    BYTES.set(BYTES.get().wrapping_sub(bytes));
}

struct Counting;

// SAFETY: everything is passed on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        grow(layout.size());
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        grow(new_size);
        shrink(layout.size());
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        shrink(layout.size());
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread during `work`.
pub(crate) fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

/// Additional bytes of this thread after `work`, while its result exists.
pub(crate) fn bytes_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = BYTES.get();
    let made = work();
    (made, BYTES.get().wrapping_sub(before))
}

/// Runs work whose allocations do not count.
pub(crate) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let before = (COUNT.get(), BYTES.get());
    let result = work();
    COUNT.set(before.0);
    BYTES.set(before.1);
    result
}
