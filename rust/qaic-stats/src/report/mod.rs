//! Printed reports of measured inferences.

pub mod kpi;
mod latency;
pub mod summary;

pub use latency::{ProgramFacts, write_latency_report};
