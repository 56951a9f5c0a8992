//! Samples of inferences, measured on the host for profilers.
//!
//! A [`Profiler`] subscribes to the [`SubscriptionRegistry`] of each of its programs. An inference that begins reserves a
//! sample slot with each subscription whose [`SamplingRule`] samples it, and fills the slots when it has succeeded.
//! Without a subscription an inference takes one branch at its submission and one at its completion.

pub mod observer;
mod profiler;
mod quota;
mod recorder;
mod registry;
mod stages;

pub use profiler::Profiler;
pub use quota::SamplingRule;
pub use recorder::{Collected, DeviceStats, Limits, Sample};
pub use registry::SubscriptionRegistry;
pub use stages::{Identity, Stages, Watch};

pub(crate) use registry::{ActiveSample, Arrival};
