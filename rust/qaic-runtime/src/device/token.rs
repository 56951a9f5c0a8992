//! Cancelling a load from another thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Canceller;
use crate::error::RuntimeError;
use crate::sync::Mutex;

type Action = Box<dyn Fn() + Send>;

/// Ends a load that is under way: the loader registers how, whoever waits asks for it.
#[derive(Default)]
pub struct LoadToken {
    requested: AtomicBool,
    action: Mutex<Option<Action>>,
}

impl LoadToken {
    /// A token for one load.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes the token of a load that was cancelled good for the next one.
    pub fn renew(&self) {
        self.requested.store(false, Ordering::Release);
    }

    /// Registers how to end the step that begins now. Fails when the load was already cancelled.
    ///
    /// `action` is called with an internal lock held, so that it never runs after the returned guard is gone; it must
    /// not block.
    pub(crate) fn during(&self, action: Action) -> Result<DuringLoad<'_>, RuntimeError> {
        *self.action.lock() = Some(action);
        let guard = DuringLoad { token: self };
        if self.was_cancelled() { Err(RuntimeError::Interrupted) } else { Ok(guard) }
    }

    /// Whether the load was cancelled.
    pub(crate) fn was_cancelled(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }
}

impl Canceller for LoadToken {
    fn cancel(&self) {
        self.requested.store(true, Ordering::Release);
        if let Some(action) = &*self.action.lock() {
            action();
        }
    }
}

impl fmt::Debug for LoadToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LoadToken").field("requested", &self.was_cancelled()).finish_non_exhaustive()
    }
}

/// While this lives, cancelling the token runs the registered action.
#[derive(Debug)]
pub(crate) struct DuringLoad<'a> {
    token: &'a LoadToken,
}

impl Drop for DuringLoad<'_> {
    fn drop(&mut self) {
        *self.token.action.lock() = None;
    }
}
