//! `IoDesc`: the bindings at every stage of their transform sequences, for users of a program.
//!
//! The encoding has exactly protobuf's field order and defaults, because users receive the message as bytes.

use serde::{Deserialize, Serialize};

use crate::dtype::ElementType;
use crate::error::QpcError;
use crate::limits::Limits;
use crate::network_desc::{
    Direction, IoBinding as NetworkBinding, IoDescriptor, IoShapes, NetworkDesc, Transform, TransformKind,
};
use crate::shape;
use crate::wire::{self, field::messages};

messages! {
    /// Root message.
    IoDesc "IoDesc" {
        /// The set `default`, followed by one set per existing kind of stage.
        1 => io_sets: Vec<IoSet>,
        /// Set that describes the user's buffers.
        2 => selected_set: Option<IoSet>,
        /// Never filled by known runtimes.
        3 => program_name: String,
        4 => dma_buf: Vec<DmaBuf>,
        /// Never filled by known runtimes.
        5 => runtime_constants: Vec<RuntimeConstants>,
        /// Stage of each binding up to which the user has processed an input.
        6 => pre_process_skip_stages: Vec<IoSet>,
        /// Stage of each binding from which the user processes an output.
        7 => post_process_skip_stages: Vec<IoSet>,
        /// Every permitted combination of shapes.
        8 => allowed_shapes: Vec<IoShapes>,
    }

    /// The bindings at one stage.
    IoSet "IoSet" {
        1 => name: String,
        /// Inputs, then outputs.
        2 => bindings: Vec<IoBinding>,
    }

    /// One binding at one stage.
    IoBinding "IoBinding" {
        1 => name: String,
        /// Index among inputs, then outputs.
        2 => index: u32,
        /// Element type; the codes are those of the network descriptor, 255 means invalid.
        #[serde(rename = "type")]
        3 => dtype: ElementType,
        /// Direction, seen from the device.
        4 => dir: Direction,
        5 => quant_scale: f32,
        6 => quant_offset: i32,
        /// Dimensions in elements.
        7 => dims: Vec<i32>,
        /// Number of bytes; zero dims are ignored.
        8 => size: u32,
        /// Locations of the tensor in its DMA buffer, at the stage with a DMA copy.
        9 => dma_buf_info: Vec<DmaBufInfo>,
        /// True if fewer bytes may be passed.
        10 => is_partial_buf_allowed: bool,
        /// True if the binding has this stage; otherwise this is the default binding.
        20 => is_valid: bool,
    }

    /// Location of a tensor in a DMA buffer.
    DmaBufInfo "DmaBufInfo" {
        1 => dma_buf_index: u32,
        2 => dma_size: u32,
        /// Byte offset in the tensor.
        3 => io_binding_offset: u32,
        /// Byte offset in the DMA buffer.
        4 => dma_offset: u32,
    }

    /// A DMA buffer.
    DmaBuf "DmaBuf" {
        1 => index: u32,
        2 => size: u32,
        /// Direction, seen from the device.
        3 => dir: Direction,
    }

    /// Constants that can be replaced at run time.
    RuntimeConstants "RuntimeConstants" {
        1 => name: String,
        2 => size: u32,
        3 => offset: u32,
    }
}

/// A set other than `default`: its name, and its kind of step in inputs and in outputs.
struct Stage {
    name: &'static str,
    input: TransformKind,
    output: TransformKind,
}

/// Stages in the order of their sets.
const STAGES: [Stage; 5] = [
    Stage { name: "quantize", input: TransformKind::Quantize, output: TransformKind::Dequantize },
    Stage { name: "transpose", input: TransformKind::Transpose, output: TransformKind::Transpose },
    Stage { name: "d32convert", input: TransformKind::ConvertToD32, output: TransformKind::ConvertFromD32 },
    Stage { name: "convert", input: TransformKind::Convert, output: TransformKind::Convert },
    Stage { name: "dma", input: TransformKind::CopyDmaBuffer, output: TransformKind::CopyDmaBuffer },
];

impl IoDesc {
    /// Decodes the message.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Self, QpcError> {
        wire::decode(bytes, limits)
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

    /// Creates the message from the network descriptor.
    pub fn from_network(network: &NetworkDesc) -> Result<Self, QpcError> {
        let directed_bindings = directed_bindings(network);
        let default = IoSet {
            name: "default".to_owned(),
            bindings: directed_bindings
                .iter()
                .map(DirectedBinding::default_binding)
                .collect::<Result<_, _>>()?,
        };
        let mut io_sets = vec![default.clone()];
        for stage in &STAGES {
            let has_stage = |binding: &DirectedBinding<'_>| binding.position(stage).is_some();
            if directed_bindings.iter().any(has_stage) {
                let bindings = directed_bindings
                    .iter()
                    .map(|binding| binding.stage_binding(stage))
                    .collect::<Result<_, _>>()?;
                io_sets.push(IoSet { name: stage.name.to_owned(), bindings });
            }
        }
        let dma_buf = (0..).zip(&network.dma_buffers);
        Ok(Self {
            io_sets,
            selected_set: Some(default),
            dma_buf: dma_buf
                .map(|(index, buffer)| DmaBuf { index, size: buffer.size, dir: buffer.dir })
                .collect(),
            allowed_shapes: network.allowed_shapes.clone(),
            ..Self::default()
        })
    }
}

/// A binding of the network descriptor, with its index among all bindings.
struct DirectedBinding<'a> {
    index: u32,
    dir: Direction,
    binding: &'a NetworkBinding,
}

fn directed_bindings(network: &NetworkDesc) -> Vec<DirectedBinding<'_>> {
    let inputs = network.inputs.iter().map(|binding| (Direction::In, binding));
    let outputs = network.outputs.iter().map(|binding| (Direction::Out, binding));
    (0..)
        .zip(inputs.chain(outputs))
        .map(|(index, (dir, binding))| DirectedBinding { index, dir, binding })
        .collect()
}

impl DirectedBinding<'_> {
    fn position(&self, stage: &Stage) -> Option<usize> {
        let kind = if self.dir == Direction::In { stage.input } else { stage.output };
        self.binding.transformseq.iter().position(|step| step.kind == kind)
    }

    fn default_binding(&self) -> Result<IoBinding, QpcError> {
        let user =
            if self.dir == Direction::In { &self.binding.io_initial } else { &self.binding.io_transformed };
        let IoDescriptor { dtype, qscale, qoffset, dims, layout: _ } = user;
        self.binding_of(*dtype, *qscale, *qoffset, dims)
    }

    /// Returns the tensor on the device's side of the stage: after it for inputs, before it for outputs.
    fn stage_binding(&self, stage: &Stage) -> Result<IoBinding, QpcError> {
        let Some(position) = self.position(stage) else {
            return Ok(IoBinding { is_valid: false, ..self.default_binding()? });
        };
        let at_device = self.dir == Direction::In || stage.output == TransformKind::CopyDmaBuffer;
        let position = if at_device { Some(position) } else { position.checked_sub(1) };
        match position.and_then(|position| self.binding.transformseq.get(position)) {
            Some(step) => self.step_binding(step),
            None => Err(QpcError::StageWithoutPredecessor {
                binding: self.binding.name.clone(),
                kind: stage.output.into(),
            }),
        }
    }

    fn step_binding(&self, step: &Transform) -> Result<IoBinding, QpcError> {
        let mut binding = self.binding_of(step.dtype, step.scale, step.offset, &step.dims)?;
        if step.kind == TransformKind::CopyDmaBuffer {
            let copy = step.copy_dma_buffer.clone().unwrap_or_default();
            binding.dma_buf_info.push(DmaBufInfo {
                dma_buf_index: copy.buffer_num,
                dma_size: binding.size,
                io_binding_offset: 0,
                dma_offset: copy.offset,
            });
        }
        Ok(binding)
    }

    fn binding_of(
        &self,
        dtype: ElementType,
        scale: f32,
        offset: i32,
        dims: &[i32],
    ) -> Result<IoBinding, QpcError> {
        Ok(IoBinding {
            name: self.binding.name.clone(),
            index: self.index,
            dtype,
            dir: self.dir,
            quant_scale: scale,
            quant_offset: offset,
            dims: dims.to_vec(),
            size: shape::mapping_bytes(&self.binding.name, dtype, dims)?,
            dma_buf_info: Vec::new(),
            is_partial_buf_allowed: self.binding.is_partial_allowed,
            is_valid: true,
        })
    }
}
