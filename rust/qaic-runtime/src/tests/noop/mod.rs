//! The `noop` device: results of programs, faults, and cores of several cards.

mod device;
mod faults;
mod placement;
mod queue;
