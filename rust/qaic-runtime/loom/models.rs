//! Models of the queues, and of what threads do with inferences in them: small programs of two to four threads, of which
//! loom runs every interleaving and every stale read that the memory model allows, up to `LOOM_MAX_PREEMPTIONS`.
//!
//! `make loom` runs them. The files under test are those that ship; here they are built with loom's synchronization
//! (`sync.rs` chooses). A lost wake-up is a deadlock, which loom reports.
#![cfg(all(loom, test))]
#![allow(dead_code)] // the models use a part of each file

#[path = "../src/flights.rs"]
mod flights;
#[path = "../src/progress.rs"]
mod progress;
#[path = "../src/queue/mod.rs"]
mod queue;
#[path = "../src/sync.rs"]
mod sync;

/// What those files name of the rest of the runtime, as far as threads meet in it.
mod device {
    pub(crate) trait Canceller: std::fmt::Debug + Send + Sync {
        fn cancel(&self);
    }
}
mod error {
    #[derive(Clone, Debug)]
    pub(crate) enum RuntimeError {
        Cancelled,
        InFlight,
        Interrupted,
        Timeout { what: &'static str, timeout_ms: u64 },
    }
}
mod fork {
    #[derive(Clone, Copy)]
    pub(crate) struct Origin;

    impl Origin {
        pub(crate) fn here() -> Self {
            Self
        }
    }
}
mod inference {
    pub(crate) struct Inference;
}
mod profiling {
    #[derive(Clone, Copy, Default)]
    pub(crate) struct Arrival {
        pub(crate) is_begin: bool,
        pub(crate) enqueued_ns: u64,
        pub(crate) queue_depth: u32,
    }
}

/// The states of handles, whose table of ids is behind a lock.
#[path = "../src/inference_set"]
mod inference_set {
    mod handles;
    mod ids;
    #[path = "../../loom/handles.rs"]
    mod models;
}

#[path = "flights.rs"]
mod flights_models;
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
