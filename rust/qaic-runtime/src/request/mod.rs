//! A request carries one inference at a time through an activated program: [`qaic_sched::Request`], whose job is a
//! `Body`.

mod body;
mod bound_arrays;
mod bound_buffers;
mod bound_set;
mod exec_obj;

pub(crate) use body::{Body, is_stats_bound};
pub use bound_arrays::{ArrayId, ArrayState, ArrayTensors, Arrays, BoundArrays, Destination};
pub use bound_buffers::{BoundBuffers, ListedBuffer, Part};
pub use bound_set::BoundSet;
pub use exec_obj::ExecObj;

pub(crate) use qaic_sched::INFERENCE;

/// Carries one inference at a time.
pub(crate) type Request = qaic_sched::Request<Body>;

/// Decides which thread runs an inference.
pub(crate) type Scheduler = qaic_sched::Scheduler<Body>;
