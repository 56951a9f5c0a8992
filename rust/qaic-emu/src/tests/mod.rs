//! Emulated cards as a whole, at the calls of the driver.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

mod driver;
mod life;
mod prelude;
mod rig;
mod transcripts;
