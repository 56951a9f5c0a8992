//! What is measured of inferences on the host while somebody wants to know (stats-profiling §6).
//!
//! Nobody wants to know as a rule. An inference then meets one branch on its way in and one on its way out.

mod stages;

pub use stages::{Identity, Stages, Watch};
