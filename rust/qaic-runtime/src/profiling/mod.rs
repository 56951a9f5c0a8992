//! What is measured of inferences on the host while somebody wants to know (stats-profiling §6).
//!
//! Nobody wants to know as a rule. An inference then meets one branch on its way in and one on its way out. A
//! [`Profiler`] subscribes to the [`Hub`] of each program it is interested in; the hub asks its subscribers about each
//! inference that begins, and those who want it get a sample when it has ended well.

mod book;
mod hub;
pub mod newcomers;
mod profiler;
mod recorder;
mod stages;

pub use book::Choice;
pub use hub::Hub;
pub use profiler::Profiler;
pub use recorder::{Collected, DeviceStats, Limits, Sample};
pub use stages::{Identity, Stages, Watch};

pub(crate) use hub::{Arrival, Watched};
