//! Cost of an inference: allocations, locks and atomic read-modify-writes.

mod allocations;
#[cfg(feature = "cpu")]
#[path = "../../../../../benches/src/containers.rs"]
#[allow(dead_code, unreachable_pub)] // the benchmarks use the rest, from another crate
mod containers;
mod counting;
mod counting_kernel;
#[cfg(feature = "cpu")]
mod decoder;
mod operations;
