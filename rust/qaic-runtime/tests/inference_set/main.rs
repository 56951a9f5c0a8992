//! Inference sets on the `noop` device.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed assumption fails the test
#![allow(clippy::duplicate_mod)] // the life cycle, on both kinds of devices

mod bound_arrays;
mod bound_buffers;
mod bound_set;
#[path = "../echo/mod.rs"]
mod echo;
mod in_flight;
mod life_cycle;
/// Once more on a device that queues inferences before they are waited for.
#[path = "life_cycle.rs"]
mod life_cycle_queueing;
#[path = "../../../qaic-mem/tests/oracle/mod.rs"]
mod oracle;
mod pending;
mod regressions;
mod thousand_threads;
