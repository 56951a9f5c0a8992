//! What the host measured of inferences: samples, and the reports made of them (stats-profiling §6).

mod latency;
mod sample;
mod trace;

pub use latency::{ProgramFacts, write_latency_report};
pub use sample::HostSample;
pub use trace::{HOST_PROCESS, HostEvent, HostEvents, host_events, write_host_trace};
