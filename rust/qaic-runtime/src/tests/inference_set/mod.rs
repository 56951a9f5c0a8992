//! Inference sets on `noop` devices and on emulated cards.

mod bound_arrays;
mod bound_buffers;
mod bound_set;
#[cfg(feature = "emu")]
mod in_flight;
mod life_cycle;
#[cfg(feature = "emu")]
mod pending;
mod regressions;
mod thousand_threads;
