//! Lock-free structures that inference requests travel through.
//!
//! What travels are numbers, so nothing here owns foreign memory, needs unsafe code, or allocates after construction, but for
//! an [`MpscQueue`], which has no bound. A [`Ring`] is first in, first out; a [`FreeList`] gives back what was put last,
//! whose memory is still in the cache; a [`RunQueues`] serves one queue per activation. [`RequestState`] is the one state
//! word of a request, and [`PendingState`] that of an inference which its caller asks about later. A [`ReadyList`] lists the
//! requests in one state. An [`ObjectPool`] keeps what is used again, and an [`ExclusiveCell`] what one thread at a time works
//! on. [`OwnerCounts`] count what many owners do. An [`EventCount`] lets threads sleep until there is something for them.
//!
//! Each access to an atomic says what it publishes or what it relies on. `make loom` checks these files, as they are,
//! against the interleavings that the memory model allows (`rust/qaic-sync/loom`).
#![forbid(unsafe_code)]

pub mod atomic;
#[cfg(feature = "count")]
pub mod count;
mod event_count;
mod exclusive_cell;
mod free_list;
mod id_index;
mod mpsc_queue;
mod object_pool;
mod owner_count;
mod pending_state;
mod ready_list;
mod request_state;
mod ring;
mod run_queue;
mod slot;
mod thread;

pub use event_count::{Event, EventCount};
pub use exclusive_cell::ExclusiveCell;
pub use free_list::FreeList;
pub use id_index::IdIndex;
pub use mpsc_queue::MpscQueue;
pub use object_pool::ObjectPool;
pub use owner_count::{OwnerCount, OwnerCounts};
pub use pending_state::{End, Expired, PendingState, RequestKey, Settled, TakeBack};
pub use ready_list::{Numbers, ReadyList};
pub use request_state::{
    AskedToEnd, Collected, Generation, InFlight, Phase, PriorPhase, PutBackError, Reason, RequestState,
    Submitted, Withdrawn,
};
pub use ring::Ring;
pub use run_queue::{RunQueues, Taken, Turn};
pub use slot::Slot;
pub use thread::Thread;
