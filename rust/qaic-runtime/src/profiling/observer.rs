//! Observers of new programs, which profile them from their first inference on.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use super::SubscriptionRegistry;
use crate::process::fork::ForkLocal;

static OBSERVERS: ForkLocal<Vec<Weak<dyn ProgramObserver>>> = ForkLocal::new();

/// Receives each program that this process creates.
pub(crate) trait ProgramObserver: Debug + Send + Sync {
    /// Called for a new program on the thread that creates it, without holding a lock.
    fn created(&self, program: &Arc<SubscriptionRegistry>);
}

/// Registers an observer of later programs. The observer stays registered as long as it exists.
pub(crate) fn register(observer: Weak<dyn ProgramObserver>) {
    OBSERVERS.with(|observers| {
        observers.retain(|observer| observer.strong_count() > 0);
        observers.push(observer);
    });
}

/// Calls the observers for a new program.
pub(crate) fn notify_created(program: &Arc<SubscriptionRegistry>) {
    let observers: Vec<_> = OBSERVERS.with(|observers| observers.iter().filter_map(Weak::upgrade).collect());
    for observer in observers {
        observer.created(program);
    }
}
