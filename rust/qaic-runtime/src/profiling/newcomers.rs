//! Who is told of programs when they are made, to profile them from their first inference on.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use super::Hub;
use crate::process::fork::ForkLocal;

static LISTENERS: ForkLocal<Vec<Weak<dyn Newcomers>>> = ForkLocal::new();

/// Told of each program of this process.
pub trait Newcomers: Debug + Send + Sync {
    /// A program was made. Called on the thread that makes it, without a lock held.
    fn created(&self, program: &Arc<Hub>);
}

/// Has a listener told of the programs that are made from now on, for as long as it exists.
pub fn listen(listener: Weak<dyn Newcomers>) {
    LISTENERS.with(|listeners| {
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    });
}

/// Tells of a program.
pub(crate) fn announce(program: &Arc<Hub>) {
    let listeners: Vec<_> = LISTENERS.with(|listeners| listeners.iter().filter_map(Weak::upgrade).collect());
    for listener in listeners {
        listener.created(program);
    }
}
