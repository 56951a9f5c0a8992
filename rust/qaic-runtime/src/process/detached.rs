//! Proof that a thread holds no interpreter lock.

use std::marker::PhantomData;

/// Proof that the calling thread holds no lock of an interpreter. Calls that start an inference take it: they may compute and copy.
/// It stays on its thread.
#[derive(Clone, Copy, Debug)]
pub struct Detached(PhantomData<*const ()>);

impl Detached {
    /// Claims that the calling thread holds no such lock. A binding to an interpreter calls this where it has released the lock, and
    /// nowhere else.
    pub const fn assume() -> Self {
        Self(PhantomData)
    }
}
