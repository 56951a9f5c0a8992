//! Programs, activations and inferences of Cloud AI 100 containers.
//!
//! ```text
//! caller's arrays -> (convert, one pass) -> device -> (convert back) -> caller's arrays
//! ```
//!
//! A [`context::Context`] holds devices. An [`image::Image`] is an opened container. A [`program::Program`] puts one on
//! a device, an [`exec_obj::ExecObj`] carries an inference of what its [`wiring`] names, an
//! [`inference_set::InferenceSet`] shares many of them among threads. What a device must do is written at the top of [`device`].
#![deny(unsafe_code)]

#[allow(unsafe_code)] // foreign memory, allocation and mapping; every block says why it is sound
pub mod buffer;
mod carrier;
pub mod clock;
pub mod context;
pub mod convert;
mod described;
pub mod device;
pub mod error;
pub mod exec_obj;
mod executor;
mod flights;
pub mod fork;
pub mod image;
mod inference;
pub mod inference_set;
pub mod interrupts;
pub mod io_crc;
pub mod log;
pub mod profiling;
pub mod program;
mod progress;
pub mod queue;
mod retained;
#[allow(unsafe_code)] // two system calls without memory of their own
mod scheduling;
mod sync;
pub mod tensors;
pub mod transfer;
pub mod wiring;
