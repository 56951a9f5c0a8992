//! Printed reports of measured inferences.

pub(crate) mod kpi;
mod latency;
mod summary;

pub use kpi::DeviceKpi;
pub use latency::{ProgramFacts, write_latency_report};
pub use summary::{SummaryOptions, write_summary};
