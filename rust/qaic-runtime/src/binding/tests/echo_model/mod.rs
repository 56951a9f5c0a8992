//! Programs with tensors in many forms for devices that echo, and a simple computation of the expected data.
//!
//! A device that echoes copies the bytes that it reads to the bytes that it writes, repeatedly. With DMA buffers
//! these are whole buffers including gaps; in place, they are the tensors.

pub(crate) mod model;
mod program;

pub(crate) use model::{Echo, Model, calls};
pub(crate) use program::programs;
