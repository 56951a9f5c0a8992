//! Measurements of a device: the stats buffer of one inference, as columns.
//!
//! A buffer contains bytes in some layout, and the layout of real cards is not public. Reports and traces therefore
//! use a [`model::StatsModel`], and each layout converts its bytes to that model. The layout of the `cpu` device has
//! the records of the model itself, so decoding copies nothing.
//!
//! Names of operations, their kinds and their dependencies are the same for every inference. A
//! [`decode::descriptor::OpsDescriptor`] in the container describes them.
//!
//! Hostile bytes are the normal case, as in `qaic-qpc`: indices are checked before use, and allocations are limited
//! by the size of the given buffer.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::cast_possible_truncation
    )
)]

// The tests use the crate by its name.
#[cfg(test)]
extern crate self as qaic_stats;

mod buffer;
pub mod decode;
mod error;
mod model;
mod number;
pub mod report;
mod sample;
#[cfg(test)]
mod tests;
mod trace;
mod walk;

pub use buffer::{FrozenBytes, Place, StatsBuffer};
pub use error::StatsError;
pub use model::{DeviceKind, Run, RunFlags, StatsModel};
pub use sample::HostSample;
pub use trace::{
    HostSide, HostTrace, Part, TraceFormat, TraceOptions, push_trace, write_host_trace, write_trace,
};
pub use walk::ProgressObserver;
