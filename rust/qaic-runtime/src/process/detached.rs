//! Proof that a thread holds no interpreter lock.

use std::marker::PhantomData;

/// Proof that the calling thread holds no interpreter lock. Calls that start an inference require the proof, because
/// they may compute and copy. It cannot move to another thread.
#[derive(Clone, Copy, Debug)]
pub struct Detached(PhantomData<*const ()>);

impl Detached {
    /// Asserts that the calling thread holds no such lock. A binding to an interpreter calls this only after it has
    /// released the lock.
    pub const fn assume() -> Self {
        Self(PhantomData)
    }
}
