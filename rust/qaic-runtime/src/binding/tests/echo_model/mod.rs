//! Programs of tensors in many forms for devices that echo, and what arrives of them, computed as plainly as possible.
//!
//! A device that echoes writes the bytes that it reads to what it writes, over and over. With DMA buffers these are the
//! whole buffers, gaps included; in place, the tensors.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

pub(crate) mod model;
mod program;

pub(crate) use model::{Echo, Model, calls};
pub(crate) use program::programs;
