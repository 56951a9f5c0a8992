//! Detection of forked processes.
//!
//! A forked child has a copy of its parent's memory, but only the thread that forked. Locks that other
//! threads of the parent held stay locked, and threads that would answer do not exist. Each object therefore
//! records the process that created it. In another process, the object refuses to work before it accesses a
//! lock.

// Model checkers cannot create statics.
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Announces, in the child, that the process was just forked. Must be called while the child has one thread.
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that created an object. The guard compares fork counts, because reading the process id costs a system
/// call.
///
/// ```standalone_crate
/// let guard = qaic_sched::ForkGuard::new();
/// assert!(guard.check().is_ok());
/// // Called in the child of a fork.
/// qaic_sched::forked();
/// assert_eq!(guard.check(), Err(qaic_sched::Error::Forked));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGuard(
    /// Number of forks between the first process and the process that created the object.
    pub u32,
);

impl Default for ForkGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl ForkGuard {
    /// Creates a guard for objects that this process creates.
    pub fn new() -> Self {
        // The only writer is the child's single thread, before it continues.
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns true if this process created the object itself, rather than inheriting it in a fork.
    pub fn is_current(self) -> bool {
        self == Self::new()
    }

    /// Fails if the object was created before a fork.
    pub fn check(self) -> Result<(), Error> {
        if self.is_current() { Ok(()) } else { Err(Error::Forked) }
    }
}
