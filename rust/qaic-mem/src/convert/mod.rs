//! Conversion kernels and the fused passes built of them.
//!
//! A program may ask that a tensor reaches the device in another type or order than the caller has it.
//! Everything here serves one goal: whatever the sequence of steps, the bytes travel once from source to destination,
//! with at most a block of scratch that stays in the first-level cache.
//!
//! * [`qaic_quant::affine`] and `half` define the arithmetic; `portable` applies it anywhere, `x86` faster, `dispatch` chooses;
//! * `transpose` moves elements into another order of dimensions;
//! * [`pipeline`] fuses element operations and a permutation into one pass;
//! * [`pieces`] walks arrays of the caller, [`mx`] those in rows of blocks.

mod dispatch;
mod half;
pub mod mx;
pub mod pieces;
pub(crate) mod pipeline;
mod portable;
pub mod quantize;
mod transpose;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // intrinsics; the file says what keeps each block sound
mod x86;

pub use dispatch::Isa;
pub use pipeline::{Pipeline, PipelineError, Step};

use quantize::{QuantParams, QuantType};

/// An operation on single elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ElementOp {
    /// f32 to f16, to nearest even.
    F32ToF16,
    /// f16 to f32, exact.
    F16ToF32,
    /// f32 to an integer type.
    Quantize(QuantType, QuantParams),
    /// An integer type to f32.
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

    /// How many elements both a source and a destination of these byte lengths hold.
    fn elements(self, source_bytes: usize, result_bytes: usize) -> usize {
        (source_bytes / self.source_size()).min(result_bytes / self.result_size())
    }
}
