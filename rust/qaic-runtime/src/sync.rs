//! Locks, condition variables and atomics of the runtime, in one place so that a model checker can take their place.
//!
//! Under `--cfg loom` (`make loom`) everything here comes from loom, which then tries the interleavings and the stale
//! reads that the memory model allows. A wait that would end by itself after a time does not end there, so that a lost
//! wake-up shows as a deadlock.
//!
//! A poisoned lock is taken over: every critical section here leaves its data consistent at each step.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

#[cfg(loom)]
use loom::sync as primitive;
#[cfg(not(loom))]
use std::sync as primitive;

pub(crate) use primitive::MutexGuard;
pub(crate) use primitive::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

/// Mutual exclusion that ignores poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(primitive::Mutex<T>);

impl<T> Mutex<T> {
    #[cfg(not(loom))]
    pub(crate) const fn new(value: T) -> Self {
        Self(primitive::Mutex::new(value))
    }

    #[cfg(loom)]
    pub(crate) fn new(value: T) -> Self {
        Self(primitive::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, unless somebody holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Waits for a change of what a [`Mutex`] guards.
#[derive(Debug, Default)]
pub(crate) struct Condvar(primitive::Condvar);

impl Condvar {
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits for a notification, at most `limit`.
    #[cfg(not(loom))]
    pub(crate) fn wait_at_most<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    #[cfg(loom)]
    pub(crate) fn wait_at_most<'a, T>(&self, guard: MutexGuard<'a, T>, _: Duration) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
}
