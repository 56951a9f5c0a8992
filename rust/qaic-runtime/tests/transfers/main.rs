//! How tensors reach the buffers of a program and come back.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed assumption fails the test

#[cfg(feature = "cpu")]
mod cpu_plan;
mod dma;
#[cfg(feature = "cpu")]
#[path = "../echo/mod.rs"]
mod echo;
#[path = "../echo_model/mod.rs"]
mod echo_model;
#[path = "../../../qaic-mem/tests/oracle/mod.rs"]
mod oracle;
mod random_programs;
mod recorded_runs;
mod shape_variants;
mod transfer_plan;
