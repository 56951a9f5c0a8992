//! Cost of an inference: allocations, locks and atomic read-modify-writes.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

mod allocations;
#[cfg(feature = "cpu")]
#[path = "../../../../benches/src/containers.rs"]
#[allow(dead_code, unreachable_pub)] // the benchmarks use the rest, from another crate
mod containers;
mod counting;
mod counting_kernel;
#[cfg(feature = "cpu")]
mod decoder;
#[path = "../echo/mod.rs"]
mod echo;
mod operations;
