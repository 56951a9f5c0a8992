//! The scheduler of inferences: requests, the threads that run them, and the lists of completed ones.
//!
//! A [`Request`] carries one inference at a time. A [`Scheduler`] selects the thread that runs the [`Job`] of a
//! request, submits requests to asynchronous devices, and ends requests at their [`Deadline`]. [`RequestLists`]
//! contain the available and the completed requests of a set. A [`WaitScope`] ends the wait of a caller.
//!
//! This crate does no input or output, knows no device, and has no unsafe code. `make loom` builds the crate with
//! loom's synchronization and runs its models (`rust/qaic-sync/loom/scheduler.rs`).
#![forbid(unsafe_code)]

// Examples and models include the job of the tests.
#[cfg(test)]
extern crate self as qaic_sched;

pub mod clock;
mod durations;
mod error;
mod fork;
mod id_index;
mod job;
mod on_device;
mod request;
mod request_lists;
mod request_state;
mod requests;
mod run_queue;
mod scheduler;
mod state_access;
#[cfg(all(test, not(loom)))]
mod tests;
mod wait_scope;
mod watchdog;
mod worker;

pub use error::Error;
pub use fork::{ForkGuard, forked};
pub use job::{CancellationCheck, Canceller, Executor, Finished, Job, Task};
pub use request::{INFERENCE, Request};
pub use request_lists::RequestLists;
pub use request_state::{
    AskedToEnd, Generation, InFlight, Phase, PriorPhase, PutBackError, Reason, RequestState, Submitted,
};
pub use scheduler::{Scheduler, SchedulerOptions};
pub use wait_scope::{
    CANCEL_PERIOD, CHECK_PERIOD, Deadline, UNTIL_WOKEN, WaitScope, ignore_signals_on_this_thread,
};
