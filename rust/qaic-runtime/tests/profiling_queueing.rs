//! Profilers once more, on a device that takes inferences before they are waited for.

#[path = "profiling.rs"]
mod profiling;
