//! Detection of forked processes.
//!
//! A child has a copy of its parent's memory and one thread, the one that forked. Locks that another thread of the
//! parent held stay locked, threads that would answer do not exist, and cores were counted for the parent. So every
//! object remembers the process it was made in ([`ForkGuard`]), and in another one it refuses to work before it touches a
//! lock; what belongs to the process as a whole exists once per process (`ForkLocal`).
//!
//! The number of forks is counted instead of asking for the process id, which costs a system call.

use std::io;
use std::mem;
// A model checker has no use for statics, and cannot make them.
use std::sync::{Mutex, PoisonError};

use qaic_sched::ForkGuard;

use crate::device::virtual_card::shared_cores;
use crate::error::{ErrorDetail, RuntimeError};

/// Announces, in the child, that the process was just forked, while the child has one thread.
pub fn forked() {
    qaic_sched::forked();
    shared_cores::abandon();
}

/// Has the system report every fork of this process, whichever library makes it.
///
/// Handlers stay registered until the process ends, so a library that calls this must not be unloaded.
#[allow(unsafe_code)] // a call of the system that registers functions
pub fn watch() -> Result<(), RuntimeError> {
    extern "C" fn before() {
        shared_cores::freeze();
    }
    // In the parent, whether or not there is a child.
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
        errno => Err(ErrorDetail::Internal {
            what: format!("forks cannot be watched: {}", io::Error::from_raw_os_error(errno)),
        }
        .into()),
    }
}

/// Processes in a chain of forks that have locks of their own. Beyond, a child could meet a lock of an ancestor this many
/// forks ago, and would wait for ever if that one was held at the moment of the fork.
const GENERATIONS: usize = 32;

/// A value that every process of a chain of forks has for itself, behind a lock that none of its ancestors holds.
#[derive(Debug)]
pub(crate) struct ForkLocal<T> {
    slots: [Mutex<Option<(ForkGuard, T)>>; GENERATIONS],
}

impl<T: Default> ForkLocal<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: [const { Mutex::new(None) }; GENERATIONS] }
    }

    /// Works on this process's value, with its lock held.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.with_in(ForkGuard::new(), work)
    }

    fn with_in<R>(&self, here: ForkGuard, work: impl FnOnce(&mut T) -> R) -> R {
        let mut slot = self.slots[here.generation() as usize % GENERATIONS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some((origin, value)) if *origin == here => work(value),
            other => {
                // An ancestor's value is not dropped: what it holds belongs to that process.
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
            assert!(values.with_in(ForkGuard::of(fork), |value| mem::replace(value, vec![fork])).is_empty());
            assert_eq!(values.with_in(ForkGuard::of(fork), |value| value.clone()), [fork]);
        }
    }

    #[test]
    fn fork_local_locked_by_the_parent_is_free_in_the_child() {
        let values: ForkLocal<u32> = ForkLocal::new();
        // The closure of the parent is the thread that holds the lock while the child works.
        let found = values.with_in(ForkGuard::of(4), |parent| {
            *parent = 1;
            values.with_in(ForkGuard::of(5), |child| *child)
        });
        assert_eq!(found, 0);
    }
}
