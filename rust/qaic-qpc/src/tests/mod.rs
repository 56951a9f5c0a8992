//! Containers and descriptors as a whole: recorded ones, generated ones and damaged ones.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod defects;
mod derivations;
mod fixture;
mod fixtures;
mod flatbuffer_oracle;
mod generate;
mod oracle;
mod plan;
mod properties;
