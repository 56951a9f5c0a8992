//! What the host measured of inferences: samples, and the reports made of them (stats-profiling §6).

mod sample;

pub use sample::HostSample;
