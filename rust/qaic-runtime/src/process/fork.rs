//! Detection of forked processes.
//!
//! A forked child has a copy of its parent's memory, but only the thread that forked. Locks that other
//! threads of the parent held stay locked, threads that would answer do not exist, and cores are counted for
//! the parent. Each object therefore records the process that created it ([`ForkGuard`]). In another process,
//! the object refuses to work before it accesses a lock. Data of the whole process exists once per process
//! (`ForkLocal`).
//!
//! Forks are counted, because reading the process id costs a system call.

use std::io;
use std::mem;
// Model checkers cannot create statics.
use std::sync::{Mutex, PoisonError};

use qaic_sched::ForkGuard;

use crate::device::virtual_card::shared_cores;
use crate::error::RuntimeError;

/// Announces, in the child, that the process was just forked. Must be called while the child has one thread.
pub(crate) fn forked() {
    qaic_sched::forked();
    shared_cores::abandon();
}

/// Registers handlers for every fork of this process, regardless of the library that forks.
///
/// Handlers stay registered until the process ends, so a library that calls this must not be unloaded.
#[allow(unsafe_code)] // a system call that registers functions
pub fn watch() -> Result<(), RuntimeError> {
    extern "C" fn before() {
        shared_cores::freeze();
    }
    // Runs in the parent even if the fork failed.
    extern "C" fn after_in_parent() {
        shared_cores::thaw();
    }
    extern "C" fn after_in_child() {
        forked();
    }
    // SAFETY: the functions have no parameters and live as long as the library.
    let status = unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    match status {
        0 => Ok(()),
        errno => Err(RuntimeError::internal(format!(
            "cannot register the fork handler: {}",
            io::Error::from_raw_os_error(errno)
        ))),
    }
}

/// Maximum number of forks in a chain for which each process has its own locks. Beyond it, a child reuses a lock of
/// an ancestor, and waits forever if that lock was held during the fork.
const GENERATIONS: usize = 32;

/// A value that exists separately in every process of a chain of forks, protected by a lock that no ancestor holds.
#[derive(Debug)]
pub(crate) struct ForkLocal<T> {
    slots: [Mutex<Option<(ForkGuard, T)>>; GENERATIONS],
}

impl<T: Default> ForkLocal<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: [const { Mutex::new(None) }; GENERATIONS] }
    }

    /// Calls `work` with this process's value, and holds its lock meanwhile.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.with_in(ForkGuard::new(), work)
    }

    fn with_in<R>(&self, here: ForkGuard, work: impl FnOnce(&mut T) -> R) -> R {
        let mut slot =
            self.slots[here.0 as usize % GENERATIONS].lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some((origin, value)) if *origin == here => work(value),
            other => {
                // The value of an ancestor is not dropped, because its content belongs to that process.
                mem::forget(other.take());
                work(&mut other.insert((here, T::default())).1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_local_in_each_process_is_another_value() {
        let values: ForkLocal<Vec<u32>> = ForkLocal::new();
        for fork in 0..3 * u32::try_from(GENERATIONS).unwrap() {
            assert!(values.with_in(ForkGuard(fork), |value| mem::replace(value, vec![fork])).is_empty());
            assert_eq!(values.with_in(ForkGuard(fork), |value| value.clone()), [fork]);
        }
    }

    #[test]
    fn fork_local_locked_by_the_parent_is_free_in_the_child() {
        let values: ForkLocal<u32> = ForkLocal::new();
        // The closure of the parent represents the thread that holds the lock while the child works.
        let found = values.with_in(ForkGuard(4), |parent| {
            *parent = 1;
            values.with_in(ForkGuard(5), |child| *child)
        });
        assert_eq!(found, 0);
    }
}
