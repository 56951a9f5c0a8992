//! Values that may be dropped on threads that must not release them.
//!
//! The last user of an exported interpreter buffer may run on any thread, including one that holds a lock, and
//! releasing the buffer runs code of the interpreter. A dropped [`Deferred`] is therefore only added to its
//! [`DropList`]. A thread that may release the values empties the list. The list takes no lock, so a forked child
//! finds it in a consistent state.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is added to a list on drop. The value does not move before it is released.
pub struct Deferred<T: Send + 'static> {
    // Invariant: leaked by `new`; only this value refers to the node until the node is on the list.
    node: NonNull<Node<T>>,
    list: &'static DropList<T>,
}

/// Values that were dropped but not released, newest first.
pub struct DropList<T: Send + 'static> {
    // Invariant: a chain of nodes that `Deferred::new` leaked and that only this list owns.
    head: AtomicPtr<Node<T>>,
}

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

// SAFETY: it owns the value, which may be sent.
unsafe impl<T: Send> Send for Deferred<T> {}
// SAFETY: a shared reference gives shared references to the value only.
unsafe impl<T: Send + Sync> Sync for Deferred<T> {}

impl<T: Send> Deferred<T> {
    /// Creates a value that is added to `list` on drop.
    pub fn new(list: &'static DropList<T>, value: T) -> Self {
        let node = Box::new(Node { value, next: ptr::null_mut() });
        Self { node: NonNull::from(Box::leak(node)), list }
    }
}

impl<T: Send> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the invariant; the reference borrows from this value.
        unsafe { &self.node.as_ref().value }
    }
}

impl<T: Send> DerefMut for Deferred<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the invariant; this value is borrowed for as long as the reference lives.
        unsafe { &mut self.node.as_mut().value }
    }
}

impl<T: Send> Drop for Deferred<T> {
    fn drop(&mut self) {
        let node = self.node.as_ptr();
        let mut head = self.list.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: only this value owns the node until it is on the list.
            unsafe { (*node).next = head };
            // Release: the thread that takes the list sees the final content of the node.
            match self.list.head.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }
}

impl<T: Send> DropList<T> {
    /// Creates an empty list.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Creates an empty list.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Removes all values from the list and calls `release` for each, without moving it. No lock is held during the
    /// calls; values that are dropped meanwhile wait for the next call.
    pub fn release(&self, mut release: impl FnMut(&mut T)) {
        if self.head.load(Ordering::Relaxed).is_null() {
            return;
        }
        // Acquire: pairs with the release in `drop`.
        let mut next = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        while let Some(node) = NonNull::new(next) {
            // SAFETY: `Deferred::new` leaked the node; after its removal from the list, only this call owns
            // it.
            let mut node = unsafe { Box::from_raw(node.as_ptr()) };
            next = node.next;
            release(&mut node.value);
        }
    }
}

impl<T: Send> Default for DropList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send + fmt::Debug> fmt::Debug for Deferred<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Deferred").field(&**self).finish()
    }
}

impl<T: Send> fmt::Debug for DropList<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DropList").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn released<T: Copy + Send>(list: &DropList<T>) -> Vec<T> {
        let mut values = Vec::new();
        list.release(|value| values.push(*value));
        values
    }

    #[test]
    fn value_that_is_dropped_is_released_once() {
        static LIST: DropList<u32> = DropList::new();
        let (one, mut two) = (Deferred::new(&LIST, 1), Deferred::new(&LIST, 2));
        assert!(released(&LIST).is_empty());
        *two += 1;
        drop(one);
        assert_eq!(*two, 3);
        drop(two);
        assert_eq!(released(&LIST), [3, 1]);
        assert!(released(&LIST).is_empty());
    }

    #[test]
    fn value_is_released_where_it_was_filled() {
        static LIST: DropList<usize> = DropList::new();
        let mut value = Deferred::new(&LIST, 0);
        *value = (&raw const *value).addr();
        drop(value);
        LIST.release(|value| assert_eq!(*value, (&raw const *value).addr()));
    }

    #[test]
    fn value_dropped_during_a_release_waits_for_the_next() {
        static LIST: DropList<u32> = DropList::new();
        drop(Deferred::new(&LIST, 1));
        LIST.release(|_| drop(Deferred::new(&LIST, 2)));
        assert_eq!(released(&LIST), [2]);
    }

    #[test]
    fn values_dropped_by_many_threads_are_all_released() {
        static LIST: DropList<u32> = DropList::new();
        let mut found = std::thread::scope(|threads| {
            let droppers: Vec<_> = (0..4)
                .map(|thread| {
                    threads.spawn(move || {
                        (0..1000).for_each(|at| drop(Deferred::new(&LIST, thread * 1000 + at)))
                    })
                })
                .collect();
            let mut found = Vec::new();
            while !droppers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                LIST.release(|value| found.push(*value));
            }
            found
        });
        LIST.release(|value| found.push(*value));
        found.sort_unstable();
        assert!(found.iter().copied().eq(0..4000));
    }
}
