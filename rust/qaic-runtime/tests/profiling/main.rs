//! Profilers on the `noop` device.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed assumption fails the test
#![allow(clippy::duplicate_mod)] // the same on both kinds of devices

mod collector;
#[path = "../../../qaic-mem/tests/oracle/mod.rs"]
mod oracle;
mod profiler;
/// Once more on a device that queues inferences before they are waited for.
#[path = "profiler.rs"]
mod profiler_queueing;
