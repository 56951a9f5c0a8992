//! Lock-free structures for the numbers of inference requests.
//!
//! The structures contain only numbers. They own no foreign memory, need no unsafe code, and allocate nothing after
//! construction, except an [`MpscQueue`], which is unbounded.
//!
//! * [`Ring`]: first in, first out.
//! * [`FreeList`]: last in, first out, so that the returned item is still in the cache.
//! * [`ReadyList`]: the requests in one state.
//! * [`ExclusiveCell`]: a value that one thread at a time uses.
//! * [`OwnerCounts`]: counters with many owners.
//! * [`EventCount`]: sleep until an item is available.
//!
//! A comment at each access to an atomic states which data the access publishes or relies on. `make loom` checks
//! these files unchanged against the interleavings that the memory model allows (`rust/qaic-sync/loom`).
#![forbid(unsafe_code)]

pub mod atomic;
#[cfg(feature = "count")]
mod count;
mod debug_fields;
mod event_count;
mod exclusive_cell;
mod free_list;
mod mpsc_queue;
mod owner_count;
mod ready_list;
mod ring;
mod slot;
mod thread;

pub use event_count::{Event, EventCount};
pub use exclusive_cell::ExclusiveCell;
pub use free_list::FreeList;
pub use mpsc_queue::MpscQueue;
pub use owner_count::{OwnerCount, OwnerCounts};
pub use ready_list::{Numbers, ReadyList};
pub use ring::Ring;
pub use slot::Slot;
pub use thread::Thread;
