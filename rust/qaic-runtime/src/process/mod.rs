//! Facilities of the whole process: forks, the clock, lines for people, callbacks, and cancellation of
//! blocking work.

mod callbacks;
pub mod cancellation;
pub mod clock;
mod detached;
mod failure;
pub mod fork;
pub mod log;
#[allow(unsafe_code)] // two system calls that use no memory
pub(crate) mod priority;
mod reaped;
pub mod reaper;

pub use callbacks::{CallbackReceiver, CallbackSender, CallbackSink, Message};
pub use cancellation::CancellationToken;
pub use detached::Detached;
pub use failure::FailureSource;
pub use qaic_sched::{CancellationCheck, Deadline, ForkGuard, WaitScope, ignore_signals_on_this_thread};
pub use reaped::{DropWait, Reaped};
