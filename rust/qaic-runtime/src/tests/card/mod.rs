//! Programs on emulated cards, in virtual time: the effect of each fault on the caller, and the card's
//! resources afterwards.

mod bad_input;
mod calls;
#[path = "../../../../qaic-emu/src/tests/clean_card.rs"]
mod clean_card;
mod dma_buf;
#[cfg(feature = "cpu")]
mod emulated_cores;
mod forked;
#[cfg(feature = "cpu")]
mod graph;
mod losses;
#[cfg(feature = "kmd")]
mod opening;
mod refusals;
pub(super) mod rig;
mod rollback;
mod silicon;
mod waits;
