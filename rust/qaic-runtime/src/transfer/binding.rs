//! One binding: its transform sequence checked, fused and placed in a DMA buffer.

use qaic_qpc::dtype::ElementType;
use qaic_qpc::network_desc::{Direction, DmaBuffer, IoBinding, IoDescriptor, Transform, TransformKind};

use super::partial::HEADER_BYTES;
use crate::convert::quantize::{QuantParams, QuantType};
use crate::convert::{ElementOp, MAX_RANK, Pipeline, PipelineError, Step};
use crate::error::RuntimeError;

/// Layout code of plain row-major tensors.
const FLAT: i32 = 0;

/// How a binding travels.
#[derive(Clone, Debug)]
pub enum Route {
    /// Optimized away by the compiler: nothing moves, the caller's buffer is ignored.
    Skip,
    /// The device takes the caller's bytes as they are; a device on host memory may use them in place.
    Direct,
    /// The bytes are converted on the way.
    Convert(Pipeline),
}

/// Where the device's tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// DMA buffer number.
    pub buffer: usize,
    /// Byte offset in the buffer; of the slice header for a partial input.
    pub offset: usize,
    /// Bytes of the tensor.
    pub bytes: usize,
}

/// A checked binding.
#[derive(Clone, Debug)]
pub struct BindingTransfer {
    name: String,
    route: Route,
    place: Option<Place>,
    user_bytes: usize,
    user_element_bytes: usize,
    partial: bool,
}

/// The tensor between two steps.
struct State {
    dtype: ElementType,
    dims: Vec<usize>,
    elements: usize,
    quantization: (f32, i32),
    layout: i32,
}

impl BindingTransfer {
    /// Checks `binding`, which goes in `direction`, against the DMA buffers of its program.
    pub(super) fn new(
        binding: &IoBinding,
        direction: Direction,
        buffers: &[DmaBuffer],
    ) -> Result<Self, RuntimeError> {
        Builder { binding, direction, buffers }.build()
    }

    /// Binding name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it travels.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Where the device's tensor lies; `None` when it is optimized away.
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// Bytes of the caller's tensor.
    pub fn user_bytes(&self) -> usize {
        self.user_bytes
    }

    /// Whether the caller may give fewer elements.
    pub fn is_partial(&self) -> bool {
        self.partial
    }

    pub(super) fn user_element_bytes(&self) -> usize {
        self.user_element_bytes
    }

    pub(super) fn wrong_size(&self, found: usize) -> RuntimeError {
        RuntimeError::BufferSize {
            buffer: self.name.clone(),
            expected: self.user_bytes as u64,
            found: found as u64,
        }
    }
}

impl Place {
    pub(super) fn too_short(&self, found: usize) -> RuntimeError {
        RuntimeError::BufferSize {
            buffer: format!("DMA buffer {}", self.buffer),
            expected: self.offset as u64 + self.bytes as u64,
            found: found as u64,
        }
    }
}

struct Builder<'a> {
    binding: &'a IoBinding,
    direction: Direction,
    buffers: &'a [DmaBuffer],
}

impl Builder<'_> {
    fn build(&self) -> Result<BindingTransfer, RuntimeError> {
        let binding = self.binding;
        let is_input = self.direction == Direction::In;
        let user = if is_input { &binding.io_initial } else { &binding.io_transformed };
        let user = self.state(user)?;
        let user_element_bytes = self.element_bytes(0, user.dtype)?;
        let user_bytes = self.bytes(0, &user)?;
        let sequence = &binding.transformseq;
        let mut transfer = BindingTransfer {
            name: binding.name.clone(),
            route: Route::Skip,
            place: None,
            user_bytes,
            user_element_bytes,
            partial: false,
        };
        if sequence.is_empty() {
            return Ok(transfer);
        }
        let copy_at = if is_input { sequence.len() - 1 } else { 0 };
        let mut state = self.state(&binding.io_initial)?;
        let first = self.element_bytes(0, state.dtype)?;
        let elements = state.elements;
        let mut steps = Vec::new();
        for (step, transform) in sequence.iter().enumerate() {
            if (step == copy_at) != (transform.kind == TransformKind::CopyDmaBuffer) {
                return Err(match transform.kind {
                    TransformKind::CopyDmaBuffer => {
                        self.invalid(step, "the DMA copy is not at the device's end")
                    }
                    kind if step == copy_at && sequence.len() == 1 => self.unsupported(step, kind),
                    _ => self.invalid(copy_at, "there is no DMA copy at the device's end"),
                });
            }
            self.step(step, transform, &mut state, &mut steps)?;
            if step == copy_at {
                transfer.place = Some(self.place(step, transform, self.bytes(step, &state)?)?);
            }
        }
        let last = sequence.len() - 1;
        let target = self.state(&binding.io_transformed)?;
        if state.elements != target.elements || !same_bits(state.dtype, target.dtype) {
            return Err(self.invalid(last, "the sequence does not end in the binding's transformed tensor"));
        }
        let pipeline = Pipeline::new(elements, first, &steps).map_err(|error| match error {
            // The only shuffle that is still refused: transposes with a reshape between them.
            PipelineError::Shuffle { .. } => self.unsupported(last, TransformKind::Transpose),
            _ => self.invalid(last, &error.to_string()),
        })?;
        if is_input && binding.is_partial_allowed {
            transfer.partial = true;
            self.check_partial(copy_at, &pipeline, &transfer)?;
        }
        transfer.route = if pipeline.is_copy() { Route::Direct } else { Route::Convert(pipeline) };
        Ok(transfer)
    }

    /// Checks one step and turns it into what the pipeline does for it.
    fn step(
        &self,
        step: usize,
        transform: &Transform,
        state: &mut State,
        steps: &mut Vec<Step>,
    ) -> Result<(), RuntimeError> {
        let unsupported = || self.unsupported(step, transform.kind);
        // A copy moves bytes in whatever layout they are; everything else looks at elements.
        let copies = transform.kind == TransformKind::CopyDmaBuffer;
        if !copies && (state.layout != FLAT || transform.layout != FLAT) {
            return Err(unsupported());
        }
        let dims = self.dims(step, &transform.dims)?;
        let (from, to) = (state.dtype, transform.dtype);
        let given = (transform.scale, transform.offset);
        let mut quantization = state.quantization;
        match transform.kind {
            TransformKind::CopyDmaBuffer => {
                if !same_bits(from, to) {
                    return Err(self.invalid(step, "the DMA copy changes the element type"));
                }
                // Compilers leave scale and offset of a copy at 1 and 0; the tensor's own win where it has some.
                if quantization.0 == 0.0 {
                    quantization = given;
                }
            }
            TransformKind::Convert => match (from, to) {
                (ElementType::Float32, ElementType::Float16) => {
                    steps.push(Step::Element(ElementOp::F32ToF16));
                }
                (ElementType::Float16, ElementType::Float32) => {
                    steps.push(Step::Element(ElementOp::F16ToF32));
                }
                _ if from == to => {}
                _ => return Err(unsupported()),
            },
            TransformKind::Quantize => {
                match from {
                    ElementType::Float32 => {}
                    ElementType::Float16 => steps.push(Step::Element(ElementOp::F16ToF32)),
                    _ => return Err(unsupported()),
                }
                let to = quant_type(to).ok_or_else(unsupported)?;
                steps.push(Step::Element(ElementOp::Quantize(to, self.params(step, given)?)));
                quantization = given;
            }
            TransformKind::Dequantize => {
                let from = quant_type(from).ok_or_else(unsupported)?;
                steps.push(Step::Element(ElementOp::Dequantize(from, self.params(step, quantization)?)));
                match to {
                    ElementType::Float32 => {}
                    ElementType::Float16 => steps.push(Step::Element(ElementOp::F32ToF16)),
                    _ => return Err(unsupported()),
                }
                quantization = (0.0, 0);
            }
            TransformKind::Transpose => {
                if !same_bits(from, to) {
                    return Err(self.invalid(step, "the transpose changes the element type"));
                }
                let shuffle = self.shuffle(step, transform, state, &dims)?;
                steps.push(Step::Transpose { dims: state.dims.clone(), shuffle });
            }
            TransformKind::ConvertToD32 | TransformKind::ConvertFromD32 | TransformKind::Unknown(_) => {
                return Err(unsupported());
            }
        }
        if self.count(step, &dims)? != state.elements {
            return Err(self.invalid(step, "the step changes the number of elements"));
        }
        *state = State { dtype: to, dims, quantization, layout: transform.layout, elements: state.elements };
        Ok(())
    }

    fn shuffle(
        &self,
        step: usize,
        transform: &Transform,
        state: &State,
        dims: &[usize],
    ) -> Result<Vec<usize>, RuntimeError> {
        let shuffle: Option<Vec<usize>> =
            transform.shuffle.iter().map(|&k| usize::try_from(k).ok()).collect();
        if dims.len() > MAX_RANK {
            return Err(self.unsupported(step, transform.kind));
        }
        let fits = |shuffle: &Vec<usize>| {
            let rank = state.dims.len();
            shuffle.len() == rank
                && dims.len() == rank
                && (0..rank).all(|k| shuffle.contains(&k))
                && shuffle.iter().zip(dims).all(|(&k, dim)| state.dims[k] == *dim)
        };
        shuffle.filter(fits).ok_or_else(|| {
            self.invalid(step, "the dimensions are not those of the source in the order of `shuffle`")
        })
    }

    fn place(&self, step: usize, transform: &Transform, bytes: usize) -> Result<Place, RuntimeError> {
        let copy = transform
            .copy_dma_buffer
            .as_ref()
            .ok_or_else(|| self.invalid(step, "the DMA copy names no buffer"))?;
        let buffer = copy.buffer_num as usize;
        let target = self
            .buffers
            .get(buffer)
            .ok_or_else(|| self.invalid(step, &format!("DMA buffer {buffer} does not exist")))?;
        if copy.dir != self.direction || target.dir != self.direction {
            return Err(self.invalid(step, "the directions of binding, DMA copy and DMA buffer differ"));
        }
        let place = Place { buffer, offset: copy.offset as usize, bytes };
        let partial = self.direction == Direction::In && self.binding.is_partial_allowed;
        let needed = if partial { HEADER_BYTES } else { bytes };
        let end = place.offset.checked_add(needed);
        if end.is_none_or(|end| end > target.size as usize) {
            let reason = format!(
                "{needed} bytes at offset {} do not lie in DMA buffer {buffer} of {} bytes",
                place.offset, target.size
            );
            return Err(self.invalid(step, &reason));
        }
        Ok(place)
    }

    fn check_partial(
        &self,
        step: usize,
        pipeline: &Pipeline,
        transfer: &BindingTransfer,
    ) -> Result<(), RuntimeError> {
        if !pipeline.is_copy() {
            return Err(self.invalid(step, "a partial input cannot be converted"));
        }
        // The first dimension is what shrinks; with others the bytes given would not be those of the elements.
        let others = self.binding.io_initial.dims.get(1..).unwrap_or_default();
        if others.iter().any(|&dim| dim != 1) || transfer.user_bytes == 0 {
            return Err(self.invalid(step, "a partial input has one dimension and some elements"));
        }
        Ok(())
    }

    fn state(&self, descriptor: &IoDescriptor) -> Result<State, RuntimeError> {
        let dims = self.dims(0, &descriptor.dims)?;
        let quantization = (descriptor.qscale, descriptor.qoffset);
        let elements = self.count(0, &dims)?;
        Ok(State { dtype: descriptor.dtype, dims, elements, quantization, layout: descriptor.layout })
    }

    fn count(&self, step: usize, dims: &[usize]) -> Result<usize, RuntimeError> {
        let elements = if dims.contains(&0) {
            Some(0)
        } else {
            dims.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim))
        };
        elements.ok_or_else(|| self.invalid(step, "the tensor is too large"))
    }

    fn dims(&self, step: usize, dims: &[i32]) -> Result<Vec<usize>, RuntimeError> {
        dims.iter()
            .map(|&dim| usize::try_from(dim).map_err(|_| self.invalid(step, "a dimension is negative")))
            .collect()
    }

    fn element_bytes(&self, step: usize, dtype: ElementType) -> Result<usize, RuntimeError> {
        let size = dtype.size_bytes().and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| self.invalid(step, &format!("element type {} is not known", dtype.code())))
    }

    fn bytes(&self, step: usize, state: &State) -> Result<usize, RuntimeError> {
        let bytes = state.elements.checked_mul(self.element_bytes(step, state.dtype)?);
        bytes
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| self.invalid(step, "the tensor is too large"))
    }

    fn params(&self, step: usize, (scale, offset): (f32, i32)) -> Result<QuantParams, RuntimeError> {
        if scale.is_finite() && scale > 0.0 {
            Ok(QuantParams::new(scale, offset))
        } else {
            Err(self.invalid(step, &format!("the scale {scale} is not a positive number")))
        }
    }

    fn unsupported(&self, step: usize, kind: TransformKind) -> RuntimeError {
        RuntimeError::UnsupportedTransform {
            binding: self.binding.name.clone(),
            step,
            kind: format!("{kind:?}"),
        }
    }

    fn invalid(&self, step: usize, reason: &str) -> RuntimeError {
        RuntimeError::InvalidTransform { binding: self.binding.name.clone(), step, reason: reason.to_owned() }
    }
}

/// Whether bytes of one type can stand for the other: quantization and meaning of an integer are not in its bytes.
fn same_bits(a: ElementType, b: ElementType) -> bool {
    let class = |dtype| match dtype {
        ElementType::Int8Q | ElementType::Int8 => ElementType::Int8,
        ElementType::Int32Q | ElementType::Int32Index => ElementType::Int32Index,
        other => other,
    };
    class(a) == class(b)
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
