//! Termination of an engine execution from another thread.

use std::ptr;

use ort_sys::OrtRunOptions;

use super::library::{Engine, check};
use crate::sync::{AtomicBool, Mutex, Ordering};

/// Ends an execution from another thread.
#[derive(Debug)]
pub(in crate::device) struct Terminator {
    engine: &'static Engine,
    pub(super) run_options: *mut OrtRunOptions,
    requested: AtomicBool,
    // True if no further execution may begin.
    is_final: AtomicBool,
    // Held during changes of the engine's flag and `requested`, so that both are cleared together.
    change: Mutex<()>,
}

// SAFETY: the terminate flag of run options is designed to be set by a thread other than the running one.
unsafe impl Send for Terminator {}
// SAFETY: as for `Send`.
unsafe impl Sync for Terminator {}

impl Terminator {
    pub(super) fn new(engine: &'static Engine) -> Result<Self, String> {
        let mut run_options = ptr::null_mut();
        // SAFETY: `run_options` is writable.
        let status = unsafe { (engine.api.CreateRunOptions)(&raw mut run_options) };
        check(engine.api, status)?;
        Ok(Self {
            engine,
            run_options,
            requested: AtomicBool::new(false),
            is_final: AtomicBool::new(false),
            change: Mutex::new(()),
        })
    }

    /// Requests the end of the running execution at its next node. Has no effect if none is running: an
    /// execution clears earlier requests when it begins. A caller that must be sure repeats the call until
    /// the execution has ended.
    pub(in crate::device::cpu) fn terminate(&self) {
        let _change = self.change.lock();
        // SAFETY: the options live as long as `self`.
        let status = unsafe { (self.engine.api.RunOptionsSetTerminate)(self.run_options) };
        // Setting a flag cannot fail; the check releases the status.
        let _ = check(self.engine.api, status);
        self.requested.store(true, Ordering::Release);
    }

    /// Ends the running execution as [`Self::terminate`] does, and all later ones.
    #[cfg(feature = "emu")]
    pub(in crate::device) fn terminate_for_good(&self) {
        self.is_final.store(true, Ordering::Release);
        self.terminate();
    }

    /// Clears earlier requests before an execution begins. Costs one load if there are none. A concurrent request
    /// applies to the new execution. Returns true if the execution must not begin.
    pub(in crate::device::cpu) fn clear(&self) -> bool {
        if self.requested.load(Ordering::Acquire) {
            self.take();
        }
        self.is_final.load(Ordering::Acquire)
    }

    /// Returns true if a stop was requested since the last clear. Clears the request unless it was final.
    pub(in crate::device::cpu) fn take(&self) -> bool {
        let _change = self.change.lock();
        if self.is_final.load(Ordering::Acquire) {
            return true;
        }
        if !self.requested.swap(false, Ordering::AcqRel) {
            return false;
        }
        // SAFETY: the options live as long as `self`; no run uses them now.
        let status = unsafe { (self.engine.api.RunOptionsUnsetTerminate)(self.run_options) };
        let _ = check(self.engine.api, status);
        true
    }
}

impl Drop for Terminator {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once.
        unsafe { (self.engine.api.ReleaseRunOptions)(self.run_options) };
    }
}
