//! Models of the structures and of the scheduler: small programs of two to four threads, of which
//! loom runs every interleaving and every stale read that the memory model allows, up to `LOOM_MAX_PREEMPTIONS`.
//! One model of the ring has no limit.
//!
//! `make loom` runs the models. They test the released sources, which are built with loom's synchronization
//! (see `qaic_sync::atomic`). Files that only their crate uses are included. A lost notification is a
//! deadlock, which loom reports.
#![cfg(all(loom, test))]
#![allow(dead_code, unused_imports)] // the models use a part of each file

#[path = "../../qaic-sched/src/tests/counted.rs"]
mod counted;
#[path = "../../qaic-mem/src/drop_list.rs"]
mod drop_list;
#[path = "../../qaic-sched/src/id_index.rs"]
mod id_index;
#[path = "../../qaic-runtime/src/inference_set/pending_state.rs"]
mod pending_state;
#[path = "../../qaic-sched/src/request_lists.rs"]
mod request_lists;
#[path = "../../qaic-sched/src/request_state.rs"]
mod request_state;
#[path = "../../qaic-sched/src/run_queue.rs"]
mod run_queue;

use drop_list::{Deferred, DropList};
use id_index::IdIndex;
use pending_state::{Expired, PendingState, RequestKey, Settled, TakeBack};
use qaic_sync::{
    Event, EventCount, ExclusiveCell, FreeList, MpscQueue, Numbers, ReadyList, Ring, Slot, atomic,
};
use request_lists::RequestLists;
use request_state::{AskedToEnd, Generation, Phase, PriorPhase, Reason, RequestState};
use run_queue::RunQueues;

#[path = "drop_list.rs"]
mod drop_list_models;
#[path = "event_count.rs"]
mod event_count_models;
#[path = "exclusive_cell.rs"]
mod exclusive_cell_models;
#[path = "free_list.rs"]
mod free_list_models;
#[path = "id_index.rs"]
mod id_index_models;
#[path = "mpsc_queue.rs"]
mod mpsc_queue_models;
#[path = "pending.rs"]
mod pending_models;
#[path = "ready_list.rs"]
mod ready_list_models;
#[path = "request_state.rs"]
mod request_state_models;
#[path = "ring.rs"]
mod ring_models;
#[path = "run_queue.rs"]
mod run_queue_models;
#[path = "scheduler.rs"]
mod scheduler_models;

/// A limit that never ends a wait; under loom, no limit does.
const FOREVER: std::time::Duration = std::time::Duration::MAX;

/// Checks a model with at most `count` preemptions, or `LOOM_MAX_PREEMPTIONS` if that is lower. Models with
/// many steps would take minutes with more preemptions.
fn with_preemptions(count: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.map_or(count, |limit| limit.min(count)));
    builder.check(model);
}
