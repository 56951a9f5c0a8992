//! Resource accounting of all virtual cards, independent of how they execute.
//!
//! The firmware of a real card counts its resources. For a virtual card, a [`ResourceTracker`] does, and the device's
//! program is wrapped in a program whose activations hold cores. If cores are counted for all processes of a user,
//! the tracker also takes them from [`shared_cores`].

pub(crate) mod leased_program;
mod resource_tracker;
pub(crate) mod shared_cores;

pub(crate) use resource_tracker::{CORES, ResourceTracker};
pub use shared_cores::UserDirectory;
