//! Profilers on the `noop` device.
#![allow(clippy::duplicate_mod)] // the same on both kinds of devices

mod collector;
mod profiler;
/// Once more on a device that queues inferences before they are waited for.
#[path = "profiler.rs"]
mod profiler_queueing;
