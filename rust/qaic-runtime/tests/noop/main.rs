//! The `noop` device: what its programs compute, its faults, and cores on several of its cards.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed assumption fails the test

mod device;
#[path = "../echo/mod.rs"]
mod echo;
mod faults;
#[path = "../../../qaic-mem/tests/oracle/mod.rs"]
mod oracle;
mod placement;
mod queue;
