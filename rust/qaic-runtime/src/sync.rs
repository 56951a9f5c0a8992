//! Locks and condition variables of the runtime, in one place so that a model checker can take their place.
//!
//! A poisoned lock is taken over: every critical section here leaves its data consistent at each step.

use std::sync::PoisonError;
use std::time::Duration;

pub(crate) use std::sync::MutexGuard;

/// Mutual exclusion that ignores poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a change of what a [`Mutex`] guards.
#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Waits for a notification, at most `limit`.
    pub(crate) fn wait_at_most<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
    }
}
