//! `IoDesc`: what a program shows its users of its bindings at every stage of their transform sequences.
//!
//! The message is handed out as bytes, so its encoding follows protobuf's field order and defaults exactly.

use serde::{Deserialize, Serialize};

use crate::dtype::ElementType;
use crate::error::QpcError;
use crate::limits::Limits;
use crate::network_desc::{
    Direction, IoBinding as NetworkBinding, IoDescriptor, IoShapes, NetworkDesc, Transform, TransformKind,
};
use crate::shape;
use crate::wire::{self, field::wire_message};

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Root message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoDesc {
    /// `default`, then one set per kind of stage that occurs.
    #[serde(skip_serializing_if = "is_default")]
    pub io_sets: Vec<IoSet>,
    /// The set the user's buffers follow.
    #[serde(skip_serializing_if = "is_default")]
    pub selected_set: Option<IoSet>,
    /// Never filled by known runtimes.
    #[serde(skip_serializing_if = "is_default")]
    pub program_name: String,
    /// DMA buffers.
    #[serde(skip_serializing_if = "is_default")]
    pub dma_buf: Vec<DmaBuf>,
    /// Never filled by known runtimes.
    #[serde(skip_serializing_if = "is_default")]
    pub runtime_constants: Vec<RuntimeConstants>,
    /// Per binding, the stage up to which the user has processed an input.
    #[serde(skip_serializing_if = "is_default")]
    pub pre_process_skip_stages: Vec<IoSet>,
    /// Per binding, the stage from which the user will process an output.
    #[serde(skip_serializing_if = "is_default")]
    pub post_process_skip_stages: Vec<IoSet>,
    /// Every permitted combination of shapes.
    #[serde(skip_serializing_if = "is_default")]
    pub allowed_shapes: Vec<IoShapes>,
}

/// The bindings as they are at one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoSet {
    /// Stage name.
    #[serde(skip_serializing_if = "is_default")]
    pub name: String,
    /// Inputs, then outputs.
    #[serde(skip_serializing_if = "is_default")]
    pub bindings: Vec<IoBinding>,
}

/// One binding at one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoBinding {
    /// Binding name.
    #[serde(skip_serializing_if = "is_default")]
    pub name: String,
    /// Position among inputs then outputs.
    #[serde(skip_serializing_if = "is_default")]
    pub index: u32,
    /// Element type; the codes are those of the network descriptor, 255 means invalid.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub dtype: ElementType,
    /// Direction, seen from the device.
    #[serde(skip_serializing_if = "is_default")]
    pub dir: Direction,
    /// Quantization scale.
    #[serde(skip_serializing_if = "is_default")]
    pub quant_scale: f32,
    /// Quantization offset.
    #[serde(skip_serializing_if = "is_default")]
    pub quant_offset: i32,
    /// Dimensions in elements.
    #[serde(skip_serializing_if = "is_default")]
    pub dims: Vec<i32>,
    /// Bytes; zero dims do not count.
    #[serde(skip_serializing_if = "is_default")]
    pub size: u32,
    /// Places of the tensor in its DMA buffer, at the stage that has one.
    #[serde(skip_serializing_if = "is_default")]
    pub dma_buf_info: Vec<DmaBufInfo>,
    /// True if fewer bytes may be passed.
    #[serde(skip_serializing_if = "is_default")]
    pub is_partial_buf_allowed: bool,
    /// True if the binding has this stage; otherwise this is the default binding.
    #[serde(skip_serializing_if = "is_default")]
    pub is_valid: bool,
}

/// Place of a tensor in a DMA buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DmaBufInfo {
    /// DMA buffer number.
    #[serde(skip_serializing_if = "is_default")]
    pub dma_buf_index: u32,
    /// Bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub dma_size: u32,
    /// Byte offset in the tensor.
    #[serde(skip_serializing_if = "is_default")]
    pub io_binding_offset: u32,
    /// Byte offset in the DMA buffer.
    #[serde(skip_serializing_if = "is_default")]
    pub dma_offset: u32,
}

/// A DMA buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DmaBuf {
    /// Number.
    #[serde(skip_serializing_if = "is_default")]
    pub index: u32,
    /// Bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub size: u32,
    /// Direction, seen from the device.
    #[serde(skip_serializing_if = "is_default")]
    pub dir: Direction,
}

/// Constants that can be replaced at run time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeConstants {
    /// Name.
    #[serde(skip_serializing_if = "is_default")]
    pub name: String,
    /// Bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub size: u32,
    /// Byte offset.
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u32,
}

wire_message!(IoDesc, "IoDesc", {
    1 => io_sets: repeated_message,
    2 => selected_set: optional_message,
    3 => program_name: string,
    4 => dma_buf: repeated_message,
    5 => runtime_constants: repeated_message,
    6 => pre_process_skip_stages: repeated_message,
    7 => post_process_skip_stages: repeated_message,
    8 => allowed_shapes: repeated_message,
});

wire_message!(IoSet, "IoSet", {
    1 => name: string,
    2 => bindings: repeated_message,
});

wire_message!(IoBinding, "IoBinding", {
    1 => name: string,
    2 => index: uint32,
    3 => dtype: enumeration,
    4 => dir: enumeration,
    5 => quant_scale: float,
    6 => quant_offset: int32,
    7 => dims: repeated_int32,
    8 => size: uint32,
    9 => dma_buf_info: repeated_message,
    10 => is_partial_buf_allowed: boolean,
    20 => is_valid: boolean,
});

wire_message!(DmaBufInfo, "DmaBufInfo", {
    1 => dma_buf_index: uint32,
    2 => dma_size: uint32,
    3 => io_binding_offset: uint32,
    4 => dma_offset: uint32,
});

wire_message!(DmaBuf, "DmaBuf", {
    1 => index: uint32,
    2 => size: uint32,
    3 => dir: enumeration,
});

wire_message!(RuntimeConstants, "RuntimeConstants", {
    1 => name: string,
    2 => size: uint32,
    3 => offset: uint32,
});

/// A set besides `default`: its name and the kind of step it stands for in inputs and in outputs.
struct Stage {
    name: &'static str,
    input: TransformKind,
    output: TransformKind,
}

/// In the order the sets are listed.
const STAGES: [Stage; 5] = [
    Stage { name: "quantize", input: TransformKind::Quantize, output: TransformKind::Dequantize },
    Stage { name: "transpose", input: TransformKind::Transpose, output: TransformKind::Transpose },
    Stage { name: "d32convert", input: TransformKind::ConvertToD32, output: TransformKind::ConvertFromD32 },
    Stage { name: "convert", input: TransformKind::Convert, output: TransformKind::Convert },
    Stage { name: "dma", input: TransformKind::CopyDmaBuffer, output: TransformKind::CopyDmaBuffer },
];

impl IoDesc {
    /// Reads the message.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Self, QpcError> {
        wire::decode(bytes, limits)
    }

    /// The message's bytes.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

    /// Derives what a program shows its users.
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

/// A binding of the network descriptor with its place among all.
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

    /// The side of the stage that is nearer to the device: after it for inputs, before it for outputs.
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
