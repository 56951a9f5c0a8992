//! An inference set whose handles are bound to memory that callers share with it.

use std::sync::Arc;

use qaic_mem::SharedMemory;

use super::BoundBuffers;
use crate::error::RuntimeError;
use crate::inference_set::{HandleId, InferenceSet};
use crate::process::Detached;

/// An inference set and the bound buffers of its handles.
#[derive(Debug)]
pub struct BoundSet {
    // Dropped before the set, whose exec objects they share.
    handles: Box<[Arc<BoundBuffers>]>,
    /// The set.
    pub set: Arc<InferenceSet>,
}

impl BoundSet {
    /// Creates a set whose handles have no bound buffers.
    pub fn new(set: Arc<InferenceSet>) -> Result<Self, RuntimeError> {
        let handles = BoundBuffers::of_set(&set)?.into_iter().map(Arc::new).collect();
        Ok(Self { handles, set })
    }

    /// Returns the bindings of a handle.
    pub fn bound(&self, handle: HandleId) -> Result<&Arc<BoundBuffers>, RuntimeError> {
        self.handles
            .get(handle.0 as usize)
            .ok_or_else(|| RuntimeError::internal(format!("handle {} has no place", handle.0)))
    }

    /// Prepares a newly acquired handle for its next user: dims that were announced for the last inference are
    /// forgotten.
    pub fn renew(&self, handle: HandleId) -> Result<(), RuntimeError> {
        self.bound(handle)?.forget_announced()
    }

    /// Starts an inference on the bound buffers of an acquired handle. Refused while announced dims wait for their
    /// buffers.
    pub fn submit(&self, handle: HandleId, id: u64, detached: Detached) -> Result<(), RuntimeError> {
        self.bound(handle)?.check_announced()?;
        self.set.submit(handle, id, detached)
    }

    /// Binds a handle that was acquired for one inference. On failure the handle is available again.
    ///
    /// Repeated submissions of the same buffers bind nothing: `is_same` returns true if the binding at an index, among
    /// `count`, has the same buffer. `buffers` is called only otherwise.
    pub fn bind_acquired<E: From<RuntimeError>>(
        &self,
        handle: HandleId,
        count: usize,
        is_same: impl FnMut(usize, &Arc<SharedMemory>) -> bool,
        buffers: impl FnOnce() -> Result<Vec<Arc<SharedMemory>>, E>,
    ) -> Result<(), E> {
        let bound = self.bound(handle).map_err(E::from);
        let bound = bound.and_then(|bound| bound.bind_for_new_inference(count, is_same, buffers));
        bound.inspect_err(|_| self.give_back(handle))
    }

    /// Starts an inference as [`Self::submit`] does, on a handle that was acquired for one inference. On failure the
    /// handle is available again.
    pub fn submit_acquired(&self, handle: HandleId, id: u64, detached: Detached) -> Result<(), RuntimeError> {
        self.submit(handle, id, detached).inspect_err(|_| self.give_back(handle))
    }

    fn give_back(&self, handle: HandleId) {
        // The handle is acquired, so it can be put back.
        let _ = self.set.put_completed(handle);
    }

    /// Binds all handles to the same buffers, including handles that a benchmark leases in the meantime.
    pub fn bind_all(&self, buffers: &[Arc<SharedMemory>]) -> Result<(), RuntimeError> {
        self.handles.iter().try_for_each(|bound| {
            bound.bind_again()?;
            bound.replace_all(buffers, None)
        })
    }
}
