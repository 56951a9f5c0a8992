//! The layout as a whole: its rules, round trips, and damaged bytes.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod defects;
mod oqstats;
mod properties;
