//! Detection of forked processes.
//!
//! A child has a copy of its parent's memory and one thread, the one that forked. Locks that another thread of the parent held
//! stay locked, and threads that would answer do not exist. So an object remembers the process that made it, and in another
//! process it refuses to work before it touches a lock.

// A model checker has no use for statics, and cannot make them.
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Announces, in the child, that the process was just forked, while the child has one thread.
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that made an object. Forks are counted: to ask for the process id costs a system call.
///
/// ```standalone_crate
/// let guard = qaic_sched::ForkGuard::new();
/// assert!(guard.check().is_ok());
/// // Called in the child of a fork.
/// qaic_sched::forked();
/// assert_eq!(guard.check(), Err(qaic_sched::Error::Forked));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGuard(u32);

impl Default for ForkGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl ForkGuard {
    /// Guards what this process makes.
    pub fn new() -> Self {
        // The only writer is the child's only thread, before it goes on.
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Guards what the process that is `generation` forks from the first one makes.
    pub const fn of(generation: u32) -> Self {
        Self(generation)
    }

    /// Forks between the first process and the one that made the object.
    pub const fn generation(self) -> u32 {
        self.0
    }

    /// Returns whether this process made the object, and not one that it was forked from.
    pub fn is_current(self) -> bool {
        self == Self::new()
    }

    /// Refuses what was made before a fork.
    pub fn check(self) -> Result<(), Error> {
        if self.is_current() { Ok(()) } else { Err(Error::Forked) }
    }
}
