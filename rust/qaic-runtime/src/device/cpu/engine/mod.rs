//! ONNX Runtime: the library, a graph that any number of activations share, and the bindings of one exec object.
//!
//! The module calls the C functions directly, so that an inference costs no more than the engine's own time: tensors
//! are bound once, and again only if their memory changes.

#[allow(unsafe_code)] // calls of the engine's C functions
mod bindings;
mod candidates;
pub mod custom_ops;
mod encoded;
mod external_data;
#[allow(unsafe_code)] // calls of the engine's C functions
mod graph;
#[allow(unsafe_code)] // loads a library and its function table
mod library;
#[allow(unsafe_code)] // callbacks of the engine, and calls of its C functions
mod own_operators;
pub(super) mod protobuf;
#[allow(unsafe_code)] // calls of the engine's C functions
mod terminator;
#[allow(unsafe_code)] // calls of the engine's C functions
mod trial;
#[allow(unsafe_code)] // calls of the engine's C functions
mod value;
#[allow(unsafe_code)] // tensors that refer to the constants of a program
mod weights;

pub(super) use bindings::Bindings;
pub use candidates::libraries_of_package;
pub(super) use graph::{Graph, GraphOptions, Purpose, SavePaths};
pub use library::Engine;
pub(crate) use library::MINIMUM_VERSION;
pub(in crate::device) use terminator::Terminator;
pub use trial::{Refusal, TrialInput, try_model};
