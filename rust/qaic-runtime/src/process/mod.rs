//! Facilities of the whole process: forks, the clock, lines for people, callbacks, and cancellation of
//! blocking work.

pub mod callbacks;
pub mod cancellation;
pub mod clock;
pub mod failure;
pub mod fork;
pub mod log;
pub mod reaped;
pub mod reaper;

pub use cancellation::{CancellationCheck, CancellationToken, Deadline, WaitScope};
pub use fork::ForkGuard;
