//! Checks of the arguments for the bindings of a program: arrays by name, buffers by index.
//!
//! [`BindingSpecs`] contain the program's requirements. An [`Argument`] describes a caller's array by type, shape,
//! strides and address. Arguments do not access the memory, so the same checks serve every interface.
//! [`BindingSpecs::variant_of`] finds the permitted combination of shapes, or fails with a [`ShapeError`].

mod array;
mod error;
mod layout;
mod overlap;
mod shape;
mod slicing;
mod spec;
mod state_part;
#[cfg(test)]
mod tests;

pub use array::Argument;
pub use error::ArgumentError;
pub use layout::{ArrayLayout, native_format};
pub(crate) use overlap::first_overlap;
pub use shape::{GivenShape, ShapeError};
pub use slicing::{SlicingError, SlicingSpec};
pub(crate) use spec::BufferFacts;
pub use spec::{BindingSpec, BindingSpecs, TensorShape};
pub(crate) use state_part::StatePart;
