//! Profilers on the `noop` device.
#![allow(clippy::duplicate_mod)] // the same on both kinds of devices

mod collector;
mod profiler;
/// Runs the tests also on a device that queues inferences before a thread waits for them.
#[path = "profiler.rs"]
mod profiler_queueing;
