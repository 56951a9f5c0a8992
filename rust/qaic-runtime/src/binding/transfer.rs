//! Transfer of one binding: a checked transform sequence, fused into one pass.

use std::sync::Arc;

use qaic_mem::convert::{ElementOp, Isa, Pipeline, PipelineError, QuantParams, QuantType, Step};
use qaic_mem::{HostSlice, HostSliceMut};
use qaic_qpc::transform::{BindingPlan, Operation};
use qaic_qpc::{Direction, ElementType, TransformKind};

use crate::error::{InputError, RuntimeError};

/// Transfer method of a binding.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// The compiler optimized the tensor away: nothing is moved, and the caller's buffer is ignored.
    Skip,
    /// The device takes the caller's bytes unchanged. A device on host memory may use them in place.
    Direct,
    /// The bytes are converted during the transfer.
    Convert(Pipeline),
}

/// Location of the device's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of the DMA buffer.
    pub(crate) buffer: usize,
    /// Byte offset in the buffer; for a partial input, the offset of the slice header.
    pub(crate) offset: usize,
    /// Bytes of the tensor.
    pub(crate) bytes: usize,
}

/// The transfer of a binding, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct BindingTransfer {
    /// Binding name.
    pub(crate) name: Arc<str>,
    /// Transfer method of the binding.
    pub(crate) route: Route,
    /// Location of the device's tensor; `None` if the tensor is optimized away.
    pub(crate) place: Option<Place>,
    /// Bytes of the caller's tensor.
    pub(crate) user_bytes: usize,
    /// Dims of the caller's tensor.
    pub(crate) dims: Vec<usize>,
    /// True if the caller may pass fewer elements.
    pub(crate) is_partial: bool,
}

impl BindingTransfer {
    /// Fuses a checked sequence.
    pub(super) fn new(plan: &BindingPlan, direction: Direction) -> Result<Self, RuntimeError> {
        let place = match plan.place {
            None => None,
            Some(place) => Some(Place {
                buffer: place.buffer as usize,
                offset: place.offset as usize,
                bytes: in_memory(plan, place.bytes)?,
            }),
        };
        let route = if place.is_some() { fuse(plan)? } else { Route::Skip };
        let user_bytes = in_memory(plan, plan.user_bytes)?;
        let last = plan.steps.last().map_or(&plan.initial, |step| &step.result);
        let user = if direction == Direction::In { &plan.initial } else { last };
        let dims = user.dims.iter().map(|&dim| in_memory(plan, dim)).collect::<Result<_, _>>()?;
        Ok(Self {
            name: Arc::clone(&plan.name),
            route,
            place,
            user_bytes,
            dims,
            is_partial: plan.partial_align.is_some(),
        })
    }

    /// Moves an input to the device's tensor. Does nothing for an input that is optimized away.
    pub(super) fn stage(&self, src: HostSlice<'_>, mut dst: HostSliceMut<'_>) -> Result<(), RuntimeError> {
        let src = src.subslice(0, self.user_bytes).ok_or_else(|| self.wrong_size(src.len()))?;
        match &self.route {
            Route::Skip => {}
            Route::Direct => {
                dst.copy_from(src);
            }
            Route::Convert(pipeline) => pipeline.run(Isa::best(), src, dst).map_err(|error| sizes(&error))?,
        }
        Ok(())
    }

    /// Moves an output from the device's tensor to the caller, up to the size of the destination.
    pub(super) fn fetch(&self, src: HostSlice<'_>, mut dst: HostSliceMut<'_>) -> Result<(), RuntimeError> {
        match &self.route {
            Route::Skip => {}
            Route::Direct => {
                dst.copy_from(src);
            }
            Route::Convert(pipeline) => pipeline.run_prefix(src, dst).map_err(|error| sizes(&error))?,
        }
        Ok(())
    }

    pub(super) fn wrong_size(&self, found: usize) -> RuntimeError {
        InputError::BufferSize {
            buffer: self.name.to_string(),
            expected: self.user_bytes as u64,
            found: found as u64,
        }
        .into()
    }
}

impl Place {
    pub(super) fn too_short(&self, found: usize) -> RuntimeError {
        InputError::BufferSize {
            buffer: format!("DMA buffer {}", self.buffer),
            expected: self.offset as u64 + self.bytes as u64,
            found: found as u64,
        }
        .into()
    }
}

/// Fuses the sequence into one pass.
fn fuse(plan: &BindingPlan) -> Result<Route, RuntimeError> {
    let mut before = &plan.initial;
    let mut steps = Vec::new();
    for (index, step) in plan.steps.iter().enumerate() {
        let unsupported = |kind| unsupported(plan, index, kind);
        let result = &step.result;
        match &step.operation {
            Operation::Copy => {}
            Operation::Convert => match (before.dtype, result.dtype) {
                (ElementType::Float32, ElementType::Float16) => {
                    steps.push(Step::Element(ElementOp::F32ToF16));
                }
                (ElementType::Float16, ElementType::Float32) => {
                    steps.push(Step::Element(ElementOp::F16ToF32));
                }
                _ => return Err(unsupported(TransformKind::Convert)),
            },
            &Operation::Quantize { scale, offset } => {
                match before.dtype {
                    ElementType::Float32 => {}
                    ElementType::Float16 => steps.push(Step::Element(ElementOp::F16ToF32)),
                    _ => return Err(unsupported(TransformKind::Quantize)),
                }
                let to = quant_type(result.dtype).ok_or_else(|| unsupported(TransformKind::Quantize))?;
                steps.push(Step::Element(ElementOp::Quantize(to, QuantParams { scale, offset })));
            }
            &Operation::Dequantize { scale, offset } => {
                let from = quant_type(before.dtype).ok_or_else(|| unsupported(TransformKind::Dequantize))?;
                steps.push(Step::Element(ElementOp::Dequantize(from, QuantParams { scale, offset })));
                match result.dtype {
                    ElementType::Float32 => {}
                    ElementType::Float16 => steps.push(Step::Element(ElementOp::F32ToF16)),
                    _ => return Err(unsupported(TransformKind::Dequantize)),
                }
            }
            Operation::Transpose { shuffle } => {
                let dims = before.dims.iter().map(|&dim| in_memory(plan, dim)).collect::<Result<_, _>>()?;
                steps.push(Step::Transpose { dims, shuffle: shuffle.clone() });
            }
        }
        before = result;
    }
    // The check of the descriptor refuses types without a size.
    let element = in_memory(plan, plan.initial.dtype.size_bytes().unwrap_or(1))?;
    let elements = in_memory(plan, plan.initial.bytes)? / element;
    // The pipeline refuses too many dimensions for one pass, and transposes with a reshape between them.
    let pipeline = Pipeline::new(elements, element, &steps)
        .map_err(|_| unsupported(plan, plan.steps.len() - 1, TransformKind::Transpose))?;
    Ok(if pipeline.is_copy() { Route::Direct } else { Route::Convert(pipeline) })
}

/// Returns the internal error for a size mismatch. Both sides get their sizes from the same plan, so a mismatch is a bug.
fn sizes(error: &PipelineError) -> RuntimeError {
    RuntimeError::internal(format!("transfer: {error}"))
}

fn unsupported(plan: &BindingPlan, step: usize, kind: TransformKind) -> RuntimeError {
    InputError::UnsupportedTransform { binding: plan.name.to_string(), step, kind: format!("{kind:?}") }
        .into()
}

/// Converts a size of the descriptor to a size in this process. Fails only if addresses are shorter than the
/// descriptor's sizes.
fn in_memory(plan: &BindingPlan, size: u64) -> Result<usize, RuntimeError> {
    usize::try_from(size).map_err(|_| {
        RuntimeError::from(InputError::BufferSize {
            buffer: plan.name.to_string(),
            expected: size,
            found: usize::MAX as u64,
        })
    })
}

fn quant_type(dtype: ElementType) -> Option<QuantType> {
    match dtype {
        ElementType::Int8Q => Some(QuantType::I8),
        ElementType::UInt8Q => Some(QuantType::U8),
        ElementType::Int16Q => Some(QuantType::I16),
        ElementType::Int32Q => Some(QuantType::I32),
        _ => None,
    }
}
