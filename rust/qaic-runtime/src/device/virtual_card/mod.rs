//! Resource accounting that all virtual cards share, with any execution.
//!
//! The firmware of a real card counts these. For a virtual one a [`ResourceTracker`] does, and what the device loads is
//! wrapped in a program whose activations hold cores. Where cores are counted for all processes of a user, the tracker takes
//! them from [`shared_cores`] as well.

pub(crate) mod leased_program;
mod resource_tracker;
pub(crate) mod shared_cores;

pub use resource_tracker::{CORES, ResourceTracker};
pub use shared_cores::UserDirectory;
