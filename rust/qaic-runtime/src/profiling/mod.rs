//! Samples of inferences, measured on the host for profilers.
//!
//! A [`Profiler`] subscribes to the [`SubscriptionRegistry`] of each of its programs. An inference that begins
//! reserves a sample with each subscription whose [`SamplingRule`] selects it, and fills the samples when it has
//! succeeded. A [`Collector`] combines a profiler with the facts about its programs for reports; [`ProgramSamples`]
//! do the same for samples. Without a subscription, an inference takes one branch at its submission and one at its
//! completion.

mod collector;
pub(crate) mod observer;
mod profiler;
mod quota;
mod recorder;
mod registry;
mod samples;
mod stages;
mod stats_output;

pub use collector::{Collector, NameFilter, ProfiledProgram};
pub use profiler::Profiler;
pub use quota::SamplingRule;
pub use recorder::{Collected, DeviceStats, Limits, Sample};
pub use registry::SubscriptionRegistry;
pub use samples::ProgramSamples;
pub(crate) use stages::{Identity, Stages, Watch};
pub use stats_output::{DevicePart, stats_summary, stats_trace};

pub(crate) use registry::{ActiveSample, Arrival};
