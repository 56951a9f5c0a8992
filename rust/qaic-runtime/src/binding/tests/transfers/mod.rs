//! How tensors reach the buffers of a program and come back.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed assumption fails the test

#[cfg(feature = "cpu")]
mod cpu_plan;
mod dma;
mod random_programs;
mod recorded_runs;
mod shape_variants;
mod transfer_plan;
