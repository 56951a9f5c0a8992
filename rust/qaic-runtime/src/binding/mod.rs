//! Transfer of the caller's tensors to a device and back.
//!
//! * [`tensor_specs`] describes the arrays that a program takes, and [`BindingSpecs`] check the caller's arrays and
//!   buffers.
//! * [`Bindings`] list the memory that one inference reads and writes.
//! * A [`TransferPlan`] contains, per permitted combination of shapes, the offset of each tensor in the DMA buffers
//!   and its conversion. An `IoBinding` combines both and moves the bytes.
//! * `Retained` contains the tensors that stay on the device between inferences. A [`Window`] copies a box of such a
//!   tensor to or from the host.
//! * Tensors behind descriptors are not visible to the host.

mod argument;
mod bindings;
mod client_buffer;
mod dma_buf;
mod in_place;
mod input_source;
mod io_binding;
mod io_crc;
pub(crate) mod mxint8;
mod retained;
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
pub use tensor_spec::{ArrayType, ShapeVariant, TensorSpec, tensor_specs};
pub(crate) use tensor_spec::{IoOptions, RetainedPair, io_options, retained_pairs};
pub(crate) use transfer::{BindingTransfer, Place, Route};
pub(crate) use transfer_plan::DmaBuffers;
pub use transfer_plan::TransferPlan;
