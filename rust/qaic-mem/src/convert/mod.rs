//! Conversion kernels, and fused passes built from them.
//!
//! A program may require a tensor on the device in another type or dimension order than the caller's. Any sequence of
//! conversion steps is done in one pass from source to destination, with at most one block of scratch memory that
//! stays in the first-level cache.
//!
//! * [`qaic_quant::affine`] and `half` define the arithmetic. `portable` implements it for all machines, `x86` faster
//!   for x86-64, and `dispatch` selects the implementation.
//! * `transpose` changes the order of dimensions.
//! * [`Pipeline`] fuses element operations and a permutation into one pass.
//! * `pieces` iterates over arrays of the caller, and [`mx`] over arrays in rows of blocks.
//! * [`packing`] converts weights to the form in which a container stores them.

mod dispatch;
mod half;
pub mod mx;
pub mod packing;
mod pieces;
pub(crate) mod pipeline;
mod portable;
pub(crate) mod quantize;
mod transpose;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // intrinsics; the file states why each block is sound
mod x86;

pub use dispatch::Isa;
pub use pieces::{map_pieces, pieces};
pub use pipeline::{Pipeline, PipelineError, Step};
pub use qaic_quant::QuantParams;
pub use quantize::QuantType;

/// An operation on single elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ElementOp {
    /// Float32 to float16, to nearest even.
    F32ToF16,
    /// Float16 to float32, exact.
    F16ToF32,
    /// Float32 to an integer type.
    Quantize(QuantType, QuantParams),
    /// An integer type to float32.
    Dequantize(QuantType, QuantParams),
}

impl ElementOp {
    /// Bytes of one source element.
    pub const fn source_size(self) -> usize {
        match self {
            Self::F32ToF16 | Self::Quantize(..) => 4,
            Self::F16ToF32 => 2,
            Self::Dequantize(from, _) => from.size_bytes(),
        }
    }

    /// Bytes of one result element.
    pub const fn result_size(self) -> usize {
        match self {
            Self::F16ToF32 | Self::Dequantize(..) => 4,
            Self::F32ToF16 => 2,
            Self::Quantize(to, _) => to.size_bytes(),
        }
    }

    /// Returns the number of elements that fit into both a source and a destination of these byte lengths.
    fn elements(self, source_bytes: usize, result_bytes: usize) -> usize {
        (source_bytes / self.source_size()).min(result_bytes / self.result_size())
    }
}
