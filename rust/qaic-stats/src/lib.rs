//! Measurements of a device: the stats buffer of one inference, as columns.
//!
//! A buffer is bytes in some layout, and the layout of real cards is not public. So everything here that reads, prints or
//! draws works on a [`model::StatsModel`], and a layout turns its bytes into that model. The layout of the `cpu` device has the
//! records of the model itself: reading it copies nothing.
//!
//! Names of operations, their kinds and their dependencies are the same for every inference. They lie in the container,
//! as a [`decode::descriptor::OpsDescriptor`].
//!
//! Hostile bytes are the normal case, as in `qaic-qpc`: nothing is indexed before it was checked, and nothing allocates
//! more than the given buffer accounts for.
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

pub mod buffer;
pub mod decode;
pub mod error;
pub mod model;
mod number;
pub mod report;
pub mod sample;
pub mod trace;
mod walk;
mod whole_file;

pub use walk::ProgressObserver;
pub use whole_file::write_whole;
