//! Facilities of the whole process: forks, the clock, lines for people, callbacks, and cancellation of
//! blocking work.

pub mod callbacks;
pub mod cancellation;
pub mod clock;
mod detached;
pub mod failure;
pub mod fork;
pub mod log;
#[allow(unsafe_code)] // two system calls without memory of their own
pub(crate) mod priority;
pub mod reaped;
pub mod reaper;

pub use cancellation::CancellationToken;
pub use detached::Detached;
pub use qaic_sched::{CancellationCheck, Deadline, ForkGuard, WaitScope, ignore_signals_on_this_thread};
