//! Profilers on `noop` devices and on emulated cards.

mod collector;
mod profiler;
