//! What belongs to the process as a whole: forks, the clock, lines for people, callbacks, and how work that blocks is ended.

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
