//! Models of the queues: small programs of two to four threads, of which loom runs every interleaving and every stale
//! read that the memory model allows, up to `LOOM_MAX_PREEMPTIONS`.
//!
//! `make loom` runs them. The files under test are those that ship; here they are built with loom's synchronization
//! (`sync.rs` chooses). A lost wake-up is a deadlock, which loom reports.
#![cfg(all(loom, test))]
#![allow(dead_code)] // the models use a part of each file

#[path = "../src/queue/mod.rs"]
mod queue;
#[path = "../src/sync.rs"]
mod sync;

/// The states of handles, whose table of ids is behind a lock.
#[path = "../src/inference_set"]
mod inference_set {
    mod handles;
    mod ids;
    #[path = "../../loom/handles.rs"]
    mod models;
}

#[path = "lanes.rs"]
mod lanes_models;
#[path = "ring.rs"]
mod ring_models;
#[path = "roster.rs"]
mod roster_models;
#[path = "stack.rs"]
mod stack_models;
#[path = "waiters.rs"]
mod waiters_models;

/// A limit that never ends a wait: under loom none does.
const FOREVER: std::time::Duration = std::time::Duration::MAX;

/// Checks a model whose threads have so much to do that `LOOM_MAX_PREEMPTIONS` of them would take minutes.
fn with_preemptions(count: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(count);
    builder.check(model);
}
