//! The queues that handles travel through, and how threads wait for them.
//!
//! What travels are numbers of handles, so nothing here owns memory of others, allocates after construction or needs
//! unsafe code. A [`Ring`] is first in, first out; an [`IndexStack`] gives back what was put last, whose memory is still
//! in the cache; a [`Roster`] lists the handles in one state and may be told of a change of state too late. [`Waiters`]
//! lets threads sleep until one of them has something.
//!
//! Each access to an atomic says what it publishes or what it relies on. `make loom` checks these files, as they are,
//! against the interleavings that the memory model allows (`rust/qaic-runtime/loom`).

mod lanes;
mod ring;
mod roster;
mod stack;
mod waiters;

pub use lanes::Lanes;
pub use ring::Ring;
pub use roster::{Numbers, Roster};
pub use stack::IndexStack;
pub use waiters::Waiters;

/// Keeps what different threads write out of each other's cache lines; processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<T>(T);
