//! Models of the structures, and of what threads do with requests in them: small programs of two to four threads, of which
//! loom runs every interleaving and every stale read that the memory model allows, up to `LOOM_MAX_PREEMPTIONS`.
//!
//! `make loom` runs them. The files under test are those that ship; here they are built with loom's synchronization
//! (`atomic.rs` chooses). A lost notification is a deadlock, which loom reports.
#![cfg(all(loom, test))]
#![allow(dead_code, unused_imports)] // the models use a part of each file

#[path = "../src/atomic.rs"]
mod atomic;
#[path = "../../qaic-mem/src/drop_list.rs"]
mod drop_list;
#[path = "../src/event_count.rs"]
mod event_count;
#[path = "../src/exclusive_cell.rs"]
mod exclusive_cell;
#[path = "../src/free_list.rs"]
mod free_list;
#[path = "../src/id_index.rs"]
mod id_index;
#[path = "../src/mpsc_queue.rs"]
mod mpsc_queue;
#[path = "../src/object_pool.rs"]
mod object_pool;
#[path = "../src/pending_state.rs"]
mod pending_state;
#[path = "../src/ready_list.rs"]
mod ready_list;
#[path = "../src/request_state.rs"]
mod request_state;
#[path = "../src/ring.rs"]
mod ring;
#[path = "../src/run_queue.rs"]
mod run_queue;
#[path = "../src/slot.rs"]
mod slot;

use drop_list::{Deferred, DropList};
use event_count::{Event, EventCount};
use exclusive_cell::ExclusiveCell;
use free_list::FreeList;
use id_index::IdIndex;
use mpsc_queue::MpscQueue;
use object_pool::ObjectPool;
use pending_state::{End, Expired, PendingState, RequestKey, Settled, TakeBack};
use ready_list::{Numbers, ReadyList};
use request_state::{AskedToEnd, Generation, InFlight, Phase, PriorPhase, Reason, RequestState, Submitted};
use ring::Ring;
use run_queue::{RunQueues, Taken, Turn};
use slot::Slot;

#[path = "composition.rs"]
mod composition_models;
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
#[path = "object_pool.rs"]
mod object_pool_models;
#[path = "pending.rs"]
mod pending_models;
#[path = "ready_list.rs"]
mod ready_list_models;
#[path = "ring.rs"]
mod ring_models;
#[path = "run_queue.rs"]
mod run_queue_models;

/// A limit that never ends a wait: under loom none does.
const FOREVER: std::time::Duration = std::time::Duration::MAX;

/// Checks a model whose threads have so much to do that `LOOM_MAX_PREEMPTIONS` of them would take minutes.
fn with_preemptions(count: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(count);
    builder.check(model);
}
