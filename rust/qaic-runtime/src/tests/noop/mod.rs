//! The `noop` device: what its programs compute, its faults, and cores on several of its cards.

mod device;
mod faults;
mod placement;
mod queue;
