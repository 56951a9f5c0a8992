//! Programs, activations and inferences of Cloud AI 100 containers.
//!
//! # One inference
//!
//! ```text
//!   caller's arrays
//!      |  binding::Bindings        memory of each tensor, in one permitted combination of shapes
//!      v
//!   request::ExecObj               begin: the state word goes from idle to running, this thread owns the task
//!      |                           prepare: detects errors early
//!      v
//!   qaic_sched::Scheduler          short, or for a device that works by itself: on this thread;
//!      |        |                  else: into the run queue of its activation, for a worker
//!      |        +--> run queue --> worker, or a caller that waits
//!      v
//!   request::Body                  binding::IoBinding converts the inputs into device buffers, in one pass,
//!      |                           device::Exec executes, IoBinding converts the outputs back
//!      v
//!   qaic_sched::Request::complete  the state word leaves running; waiters, the inference set's list of completed
//!      |                           requests, or a completion callback are notified
//!      v
//!   caller's arrays
//! ```
//!
//! The following eight files implement an inference on the host device, from `Session.run` to the engine:
//!
//! 1. `python/qaic/session.py`: `Session.run`
//! 2. `rust/qaic-python/src/session.rs`: arrays of the caller, the interpreter lock
//! 3. `rust/qaic-runtime/src/request/bound_arrays/mod.rs`: memory of each tensor, lent to an exec object
//! 4. `rust/qaic-runtime/src/request/exec_obj.rs`: begin, wait, cancel
//! 5. `rust/qaic-sched/src/scheduler.rs`: the thread that runs the inference
//! 6. `rust/qaic-runtime/src/request/body.rs`: the job of a request
//! 7. `rust/qaic-runtime/src/binding/io_binding.rs`: conversions to the device and back
//! 8. `rust/qaic-runtime/src/device/cpu/exec.rs`: the call of the engine
//!
//! A [`context::Context`] contains the devices. An [`image::Image`] is an opened container, and a
//! [`program::Program`] loads it on a device. An [`inference_set::InferenceSet`] shares many exec objects among
//! threads: acquire, bind, submit, collect, put back. [`qaic_sched::RequestState`] shows the states of a request.
//! [`device`] defines the contract of a device.
#![deny(unsafe_code)]

// Tests name the crate as its users do.
#[cfg(test)]
extern crate self as qaic_runtime;

pub mod binding;
mod context;
#[cfg(test)]
#[path = "tests/descriptor.rs"]
mod descriptor;
pub mod device;
#[cfg(test)]
#[path = "tests/echo.rs"]
mod echo;
mod error;
mod image;
pub mod inference_set;
#[cfg(test)]
#[allow(unsafe_code)] // the caller accesses arrays while they are bound
#[path = "../../qaic-mem/tests/oracle/mod.rs"]
mod oracle;
pub mod process;
pub mod profiling;
mod program;
mod queue;
pub mod request;
#[cfg(test)]
mod tests;

pub use context::Context;
pub use device::{DeviceId, Placement};
pub use error::{
    CardError, DeviceError, EngineError, ErrorDetail, InputError, QStatus, RuntimeError, StateError,
};
pub use image::Image;
pub use inference_set::{HandleId, InferenceSet};
pub use process::{CancellationToken, Deadline, Detached, ForkGuard, WaitScope};
pub use program::{Program, ProgramOptions, WaitLimits};
pub use queue::Queue;
pub use request::{BoundBuffers, BoundSet, ExecObj};

pub(crate) use qaic_sync::atomic as sync;
