//! Inference sets on the `noop` device.
#![allow(clippy::duplicate_mod)] // the life cycle, on both kinds of devices

mod bound_arrays;
mod bound_buffers;
mod bound_set;
mod in_flight;
mod life_cycle;
/// Runs the tests also on a device that queues inferences before a thread waits for them.
#[path = "life_cycle.rs"]
mod life_cycle_queueing;
mod pending;
mod regressions;
mod thousand_threads;
