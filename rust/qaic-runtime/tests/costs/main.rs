//! What an inference costs: allocations, locks and atomic read-modify-writes.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

mod allocations;
mod counting;
mod counting_kernel;
#[path = "../echo/mod.rs"]
mod echo;
mod operations;
