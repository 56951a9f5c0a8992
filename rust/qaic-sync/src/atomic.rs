//! Locks, condition variables and atomics in one module, so that a model checker or a counter can replace them.
//!
//! Under `--cfg loom` (`make loom`), all of them come from loom, which then explores the interleavings and the stale
//! reads that the memory model allows. Timed waits have no timeout under loom, so that a lost wakeup causes a
//! deadlock. With the feature `count`, each lock and each read-modify-write is counted.
//!
//! Poisoned locks remain usable: every critical section of this crate leaves its data consistent at each step.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(loom)]
use loom::sync as primitive;
#[cfg(not(loom))]
use std::sync as primitive;

pub use primitive::MutexGuard;
pub use primitive::atomic::{Ordering, fence};

#[cfg(not(feature = "count"))]
pub use primitive::atomic::{AtomicBool, AtomicU32, AtomicU64};

#[cfg(feature = "count")]
pub use crate::count::{AtomicBool, AtomicU32, AtomicU64, Operations};

#[cfg(loom)]
pub use loom::thread::yield_now;
#[cfg(not(loom))]
pub use std::thread::yield_now;

/// Mutual exclusion that ignores poisoning.
///
/// ```
/// let value = qaic_sync::atomic::Mutex::new(1);
/// *value.lock() += 1;
/// assert_eq!(*value.lock(), 2);
/// ```
#[derive(Debug, Default)]
pub struct Mutex<T>(primitive::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self(primitive::Mutex::new(value))
    }

    /// Creates an unlocked mutex.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self(primitive::Mutex::new(value))
    }

    /// Locks the value.
    ///
    /// Blocking: while another thread holds the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(feature = "count")]
        crate::count::lock();
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a change of the data that a [`Mutex`] guards.
///
/// ```
/// use std::time::Duration;
/// use qaic_sync::atomic::{Condvar, Mutex};
///
/// let (value, changed) = (Mutex::new(1), Condvar::default());
/// let value = changed.wait_at_most(value.lock(), Duration::ZERO);
/// assert_eq!(*value, 1);
/// ```
#[derive(Debug, Default)]
pub struct Condvar(primitive::Condvar);

impl Condvar {
    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification, at most `limit`.
    #[cfg(not(loom))]
    pub fn wait_at_most<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for a notification. Only a limit of zero expires.
    #[cfg(loom)]
    pub fn wait_at_most<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        if limit.is_zero() {
            return guard;
        }
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}
