//! Checked plans of transform sequences: input and result of each step, and offsets of tensors in DMA buffers.
//!
//! A [`TransferPlan`] exists only if every step matches its neighbors and every tensor fits its DMA buffer. Code that
//! moves the bytes therefore only checks the sizes of its buffers. [`TransferPlan::pack`] packs partial inputs.

pub(crate) mod partial;
mod variants;

use std::sync::Arc;

use crate::bytes::to_u64;
use crate::dtype::ElementType;
use crate::error::{QpcError, StepDefect};
use crate::network_desc::{
    Direction, DmaBuffer, IoBinding, IoDescriptor, NetworkDesc, Transform, TransformKind,
};
use crate::shape;

pub use partial::{PartialLayout, Slice};

/// Layout code of row-major tensors.
const FLAT: i32 = 0;

/// A tensor between two steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type.
    pub dtype: ElementType,
    /// Dimensions in elements.
    pub dims: Vec<u64>,
    /// Number of bytes; 0 if any dim is 0.
    pub bytes: u64,
    /// Scale and offset of quantized elements.
    pub quantization: (f32, i32),
    layout: i32,
}

/// Operation of a step. Types that differ only in meaning, such as an index and a quantized integer of one size, are
/// equal.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Copy without conversion.
    Copy,
    /// Conversion between float types.
    Convert,
    /// Conversion from float to integer, with this scale and offset.
    Quantize {
        /// Scale, positive and finite.
        scale: f32,
        /// Offset.
        offset: i32,
    },
    /// Conversion from integer to float, with this scale and offset.
    Dequantize {
        /// Scale, positive and finite.
        scale: f32,
        /// Offset.
        offset: i32,
    },
    /// Permutation of the dims: result dim `k` is source dim `shuffle[k]`.
    Transpose {
        /// The permutation.
        shuffle: Vec<usize>,
    },
}

/// One step: the operation and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The operation.
    pub operation: Operation,
    /// The result.
    pub result: Tensor,
}

/// Location of a binding in its DMA buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of an existing DMA buffer.
    pub buffer: u32,
    /// Byte offset; for a partial input, the offset of the slice header.
    pub offset: u32,
    /// Bytes of the tensor on the device.
    pub bytes: u64,
}

/// One binding's checked sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct BindingPlan {
    /// Binding name.
    pub name: Arc<str>,
    /// First tensor of the sequence: the user's tensor for an input, the device's for an output.
    pub initial: Tensor,
    /// The steps in order, including the DMA copy; empty if the binding is optimized away.
    pub steps: Vec<Step>,
    /// Location of the device's tensor; `None` if the binding is optimized away.
    pub place: Option<Place>,
    /// Bytes of the user's tensor.
    pub user_bytes: u64,
    /// Alignment of the data of a partial input; `None` for other bindings.
    pub partial_align: Option<u32>,
    user_element_bytes: u64,
}

/// All bindings of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferPlan {
    /// Inputs in binding order.
    pub inputs: Vec<Arc<BindingPlan>>,
    /// Outputs in binding order.
    pub outputs: Vec<Arc<BindingPlan>>,
    /// Bytes of each DMA buffer.
    pub dma_sizes: Vec<u32>,
}

/// Returns true if the open reference runtime could execute the program: every sequence is empty or a single
/// DMA copy.
pub(crate) fn is_copy_only(network: &NetworkDesc) -> bool {
    network.inputs.iter().chain(&network.outputs).all(|binding| match binding.transformseq.as_slice() {
        [] => true,
        [only] => only.kind == TransformKind::CopyDmaBuffer,
        _ => false,
    })
}

impl TransferPlan {
    /// Checks all sequences. [`QpcError::UnsupportedTransform`] means that the descriptor may be valid, but that a
    /// host cannot execute it. Any other error means that the descriptor is invalid.
    pub fn new(network: &NetworkDesc) -> Result<Self, QpcError> {
        let build = |bindings: &[IoBinding], direction| {
            let planner =
                |binding| Planner { binding, direction, buffers: &network.dma_buffers }.build().map(Arc::new);
            bindings.iter().map(planner).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            inputs: build(&network.inputs, Direction::In)?,
            outputs: build(&network.outputs, Direction::Out)?,
            dma_sizes: network.dma_buffers.iter().map(|buffer| buffer.size).collect(),
        })
    }
}

struct Planner<'a> {
    binding: &'a IoBinding,
    direction: Direction,
    buffers: &'a [DmaBuffer],
}

impl Planner<'_> {
    fn build(&self) -> Result<BindingPlan, QpcError> {
        let binding = self.binding;
        let is_input = self.direction == Direction::In;
        let initial = self.tensor(&binding.io_initial)?;
        let target = self.tensor(&binding.io_transformed)?;
        let user = if is_input { &initial } else { &target };
        let mut plan = BindingPlan {
            name: Arc::from(binding.name.as_str()),
            user_bytes: user.bytes,
            user_element_bytes: shape::element_bytes(&binding.name, user.dtype)?,
            initial,
            steps: Vec::new(),
            place: None,
            partial_align: None,
        };
        let sequence = &binding.transformseq;
        if sequence.is_empty() {
            return Ok(plan);
        }
        let copy_at = if is_input { sequence.len().saturating_sub(1) } else { 0 };
        for (index, transform) in sequence.iter().enumerate() {
            if (index == copy_at) != (transform.kind == TransformKind::CopyDmaBuffer) {
                return Err(self.mismatch(index, StepDefect::CopyPlace));
            }
            let before = plan.steps.last().map_or(&plan.initial, |step| &step.result);
            let step = self.step(index, transform, before)?;
            if index == copy_at {
                plan.place = Some(self.place(index, transform, step.result.bytes)?);
            }
            plan.steps.push(step);
        }
        let last = sequence.len().saturating_sub(1);
        let result = plan.steps.last().map_or(&plan.initial, |step| &step.result);
        if !same_bits(result.dtype, target.dtype) {
            return Err(self.mismatch(last, StepDefect::Type));
        }
        if result.bytes != target.bytes {
            return Err(self.mismatch(last, StepDefect::Dims));
        }
        if is_input && binding.is_partial_allowed {
            self.check_partial(&plan)?;
            plan.partial_align = Some(binding.align.max(1));
        }
        Ok(plan)
    }

    fn step(&self, index: usize, transform: &Transform, before: &Tensor) -> Result<Step, QpcError> {
        let unsupported = || QpcError::UnsupportedTransform {
            binding: self.binding.name.clone(),
            step: to_u64(index),
            kind: transform.kind.into(),
        };
        // A copy moves bytes in any layout; all other steps read elements.
        let is_copy = transform.kind == TransformKind::CopyDmaBuffer;
        if !is_copy && (before.layout != FLAT || transform.layout != FLAT) {
            return Err(unsupported());
        }
        let mut result = self.tensor_of(transform.dtype, &transform.dims, transform.layout)?;
        let given = (transform.scale, transform.offset);
        result.quantization = before.quantization;
        let (from, to) = (before.dtype, transform.dtype);
        let operation = match transform.kind {
            TransformKind::CopyDmaBuffer => {
                self.same_type(index, from, to)?;
                // The scale of a copy is 1 in known files; the tensor's own scale has priority.
                if result.quantization.0.to_bits() == 0 {
                    result.quantization = given;
                }
                Operation::Copy
            }
            TransformKind::Convert if from == to => Operation::Copy,
            TransformKind::Convert if is_float(from) && is_float(to) => Operation::Convert,
            TransformKind::Quantize if is_float(from) && is_quantized(to) => {
                result.quantization = given;
                let (scale, offset) = self.quantization(index, given)?;
                Operation::Quantize { scale, offset }
            }
            TransformKind::Dequantize if is_quantized(from) && is_float(to) => {
                result.quantization = (0.0, 0);
                let (scale, offset) = self.quantization(index, before.quantization)?;
                Operation::Dequantize { scale, offset }
            }
            TransformKind::Transpose => {
                self.same_type(index, from, to)?;
                Operation::Transpose { shuffle: self.shuffle(index, transform, before, &result)? }
            }
            _ => return Err(unsupported()),
        };
        if elements(&result.dims) != elements(&before.dims) {
            return Err(self.mismatch(index, StepDefect::Dims));
        }
        Ok(Step { operation, result })
    }

    fn same_type(&self, index: usize, from: ElementType, to: ElementType) -> Result<(), QpcError> {
        if same_bits(from, to) { Ok(()) } else { Err(self.mismatch(index, StepDefect::Type)) }
    }

    fn quantization(&self, index: usize, (scale, offset): (f32, i32)) -> Result<(f32, i32), QpcError> {
        if scale.is_finite() && scale > 0.0 {
            Ok((scale, offset))
        } else {
            Err(self.mismatch(index, StepDefect::Quantization))
        }
    }

    fn shuffle(
        &self,
        index: usize,
        transform: &Transform,
        before: &Tensor,
        result: &Tensor,
    ) -> Result<Vec<usize>, QpcError> {
        let invalid = || self.mismatch(index, StepDefect::Shuffle);
        let shuffle: Vec<usize> = transform
            .shuffle
            .iter()
            .map(|&k| usize::try_from(k).map_err(|_| invalid()))
            .collect::<Result<_, _>>()?;
        if shuffle.len() != before.dims.len() {
            return Err(invalid());
        }
        let mut seen = vec![false; shuffle.len()];
        for &k in &shuffle {
            match seen.get_mut(k) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(invalid()),
            }
        }
        let expected: Vec<u64> = shuffle.iter().filter_map(|&k| before.dims.get(k).copied()).collect();
        if expected == result.dims { Ok(shuffle) } else { Err(self.mismatch(index, StepDefect::Dims)) }
    }

    fn place(&self, index: usize, transform: &Transform, bytes: u64) -> Result<Place, QpcError> {
        let Some(copy) = &transform.copy_dma_buffer else {
            return Err(self.mismatch(index, StepDefect::CopyParameters));
        };
        let (binding, buffer) = (self.binding.name.clone(), copy.buffer_num);
        let target = usize::try_from(buffer).ok().and_then(|buffer| self.buffers.get(buffer));
        let Some(target) = target else {
            return Err(QpcError::DmaBufferIndex { binding, buffer, count: to_u64(self.buffers.len()) });
        };
        if copy.dir != self.direction || target.dir != self.direction {
            return Err(QpcError::DmaDirection { binding, buffer });
        }
        let is_partial = self.direction == Direction::In && self.binding.is_partial_allowed;
        let len = if is_partial { partial::HEADER_BYTES } else { bytes };
        let (offset, size) = (u64::from(copy.offset), u64::from(target.size));
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(QpcError::DmaOutOfBounds { binding, buffer, offset, len, size });
        }
        Ok(Place { buffer, offset: copy.offset, bytes })
    }

    /// Checks a partial input: only its first dim may be partial, because other dims, or a conversion, would need the
    /// missing elements.
    fn check_partial(&self, plan: &BindingPlan) -> Result<(), QpcError> {
        let copies = plan.steps.iter().all(|step| step.operation == Operation::Copy);
        let others = plan.initial.dims.get(1..).unwrap_or_default();
        if !copies || plan.initial.dims.is_empty() || others.iter().any(|&dim| dim != 1) {
            return Err(QpcError::PartialInput { binding: self.binding.name.clone() });
        }
        Ok(())
    }

    fn tensor(&self, descriptor: &IoDescriptor) -> Result<Tensor, QpcError> {
        let mut tensor = self.tensor_of(descriptor.dtype, &descriptor.dims, descriptor.layout)?;
        tensor.quantization = (descriptor.qscale, descriptor.qoffset);
        Ok(tensor)
    }

    fn tensor_of(&self, dtype: ElementType, dims: &[i32], layout: i32) -> Result<Tensor, QpcError> {
        let bytes = shape::copy_bytes(&self.binding.name, dtype, dims)?;
        // The dims are not negative, because the size was computed.
        let dims = dims.iter().map(|&dim| u64::from(dim.unsigned_abs())).collect();
        Ok(Tensor { dtype, dims, bytes, quantization: (0.0, 0), layout })
    }

    fn mismatch(&self, step: usize, defect: StepDefect) -> QpcError {
        QpcError::TransformMismatch { binding: self.binding.name.clone(), step: to_u64(step), defect }
    }
}

/// Returns true if two types have the same representation: bytes do not determine the meaning of an integer.
fn same_bits(a: ElementType, b: ElementType) -> bool {
    let class = |dtype| match dtype {
        ElementType::Int8Q => ElementType::Int8,
        ElementType::Int32Q => ElementType::Int32Index,
        other => other,
    };
    class(a) == class(b)
}

const fn is_float(dtype: ElementType) -> bool {
    matches!(dtype, ElementType::Float32 | ElementType::Float16)
}

const fn is_quantized(dtype: ElementType) -> bool {
    matches!(dtype, ElementType::Int8Q | ElementType::UInt8Q | ElementType::Int16Q | ElementType::Int32Q)
}

/// Number of elements. An overflow was refused before with the tensor's size.
fn elements(dims: &[u64]) -> u64 {
    if dims.contains(&0) { 0 } else { dims.iter().fold(1, |product: u64, &dim| product.saturating_mul(dim)) }
}
