//! How the caller's tensors reach a device and come back.
//!
//! [`tensor_specs`] says which arrays a program takes, [`BindingSpecs`] check what callers pass for them. [`Bindings`] name
//! what one inference reads and writes. A [`TransferPlan`] knows, per permitted combination of shapes, where each tensor lies in the DMA buffers and how it is
//! converted on its way; an `IoBinding` has both ends and moves the bytes. Tensors that stay on the device between
//! inferences are `Retained`, boxes of them reach the host through a [`Window`], tensors behind descriptors do not pass
//! the host at all.

mod argument;
mod bindings;
mod client_buffer;
mod dma_buf;
mod in_place;
mod input_source;
mod io_binding;
mod io_crc;
pub mod mxint8;
mod retained;
mod shape_list;
mod sources;
mod staged;
mod tensor_spec;
#[cfg(test)]
mod tests;
mod transfer;
mod transfer_plan;
mod window;

pub use argument::{
    Argument, ArgumentError, ArrayLayout, BindingSpec, BindingSpecs, GivenShape, ShapeError, SlicingError,
    SlicingSpec, TensorShape, native_format,
};

pub(crate) use argument::{StatePart, first_overlap};
pub use bindings::{Bindings, InputBinding, OutputBinding, Shapes, Window, WindowArray};
pub use client_buffer::ClientBuffer;
pub use input_source::{BufferSlot, BufferSlots, InputSource, RandomBytes};
pub(crate) use io_binding::{CancellationCheck, IoBinding, StatsPlace};
pub(crate) use io_crc::{IoCheck, IoCrcs};
pub(crate) use retained::Retained;
pub use shape_list::ShapeList;
pub use tensor_spec::{ArrayType, RetainedPair, ShapeVariant, TensorSpec, retained_pairs, tensor_specs};
pub(crate) use tensor_spec::{IoOptions, io_options};
pub use transfer::{BindingTransfer, Place, Route};
pub use transfer_plan::{DmaBuffers, TransferPlan};
