//! Complete emulated cards, tested through the driver's calls.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

mod clean_card;
mod driver;
mod life;
mod prelude;
mod rig;
mod transcripts;
