//! The `cpu` device: virtual cards whose cores are threads of the host and whose engine is ONNX Runtime.
//!
//! A loaded program has one session of the engine, regardless of the number of activations. ONNX Runtime runs a
//! session on many threads at once, so weights, their prepacked forms and the worker threads exist once
//! (docs/adr/0005). Emulated cards run the same `Executable`s on their cores.

mod activation;
mod blocks;
mod calibration;
mod device;
mod engine;
mod exec;
mod executable;
mod execution;
mod free_memory;
mod host_memory;
mod op_matching;
mod optimized_graph;
mod profile;
mod program;
mod state_rows;
mod stats;
mod turns;

pub use device::{check_program, save_optimized};

pub(crate) use device::CpuDevice;
pub(crate) use engine::MINIMUM_VERSION;
pub use engine::{Engine, Refusal, TrialInput, custom_ops, libraries_of_package, try_model};
#[cfg(feature = "emu")]
pub(in crate::device) use executable::{Constants, Executable, ExecutableOptions, Parts};
#[cfg(feature = "emu")]
pub(in crate::device) use execution::Execution;
pub(crate) use host_memory::MemoryLimit;
#[cfg(feature = "emu")]
pub(in crate::device) use stats::Description;
