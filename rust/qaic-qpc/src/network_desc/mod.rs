//! The network descriptor: what `networkdesc.bin` says about bindings, transforms and DMA buffers.
//!
//! Field names are those of the format, so that the JSON form (serde) reads like the messages; zero values are
//! left out of it as protobuf does.

mod codec;

use serde::{Deserialize, Serialize};

use crate::dtype::ElementType;

/// The major version this library writes and expects.
pub(crate) const MAJOR_VERSION: u32 = 9;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Root message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkDesc {
    /// Descriptor version, [`MAJOR_VERSION`] in all known files.
    #[serde(skip_serializing_if = "is_default")]
    pub major_version: u32,
    /// Minor version, 0 in all known files.
    #[serde(skip_serializing_if = "is_default")]
    pub minor_version: u32,
    /// Program name.
    #[serde(skip_serializing_if = "is_default")]
    pub network_name: String,
    /// User inputs; position = user buffer index.
    #[serde(skip_serializing_if = "is_default")]
    pub inputs: Vec<IoBinding>,
    /// User outputs; user buffer index = number of inputs + position.
    #[serde(skip_serializing_if = "is_default")]
    pub outputs: Vec<IoBinding>,
    /// DMA buffers; position = DMA buffer number.
    #[serde(skip_serializing_if = "is_default")]
    pub dma_buffers: Vec<DmaBuffer>,
    /// NSP cores one activation occupies.
    #[serde(skip_serializing_if = "is_default")]
    pub num_cores: u32,
    /// Threads per NSP.
    #[serde(skip_serializing_if = "is_default")]
    pub num_threads: u32,
    /// How many of the threads are HVX threads.
    #[serde(skip_serializing_if = "is_default")]
    pub num_hvx_threads: u32,
    /// Per thread, an index into `thread_group_names`.
    #[serde(skip_serializing_if = "is_default")]
    pub thread_groups: Vec<u32>,
    /// Number of issuing groups.
    #[serde(skip_serializing_if = "is_default")]
    pub thread_group_issue_count: u32,
    /// Present when the program was compiled with statistics.
    #[serde(skip_serializing_if = "is_default")]
    pub stats: Option<Stats>,
    /// Names of the thread groups.
    #[serde(skip_serializing_if = "is_default")]
    pub thread_group_names: Vec<String>,
    /// Batch the program was compiled for.
    #[serde(skip_serializing_if = "is_default")]
    pub batch_size: i32,
    /// CRC of the program's inputs and outputs.
    #[serde(skip_serializing_if = "is_default")]
    pub crc_info: Option<CrcInfo>,
    /// First core of each cluster.
    #[serde(skip_serializing_if = "is_default")]
    pub cluster_offsets: Vec<u32>,
    /// Every permitted combination of shapes, inputs then outputs.
    #[serde(skip_serializing_if = "is_default")]
    pub allowed_shapes: Vec<IoShapes>,
}

/// Output that carries statistics, with or without a suffix.
const STATS_OUTPUT: &str = "aiccyclecounts";

/// Returns whether an output is known to carry statistics, by its name. Several devices have a suffix each.
pub fn is_stats_output(name: &str) -> bool {
    name.strip_prefix(STATS_OUTPUT).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('_'))
}

impl NetworkDesc {
    /// The output through which the device's statistics reach the memory that is bound to it, the last one; `None` where the
    /// program has none. No graph computes it.
    pub fn stats_output(&self) -> Option<usize> {
        self.stats.as_ref()?;
        let last = self.outputs.len().checked_sub(1)?;
        self.outputs.get(last).filter(|output| is_stats_output(&output.name)).map(|_| last)
    }

    /// The outputs that the graph computes.
    pub fn computed_outputs(&self) -> &[IoBinding] {
        self.stats_output().and_then(|count| self.outputs.get(..count)).unwrap_or(&self.outputs)
    }
}

/// One user tensor and how it reaches its DMA buffer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoBinding {
    /// Binding name.
    #[serde(skip_serializing_if = "is_default")]
    pub name: String,
    /// Tensor before the transform sequence: the user's for an input, the DMA buffer's for an output.
    #[serde(skip_serializing_if = "is_default")]
    pub io_initial: IoDescriptor,
    /// Tensor after the transform sequence: the DMA buffer's for an input, the user's for an output.
    #[serde(skip_serializing_if = "is_default")]
    pub io_transformed: IoDescriptor,
    /// Steps in order; the DMA copy is last for inputs and first for outputs. Empty: optimized away.
    #[serde(skip_serializing_if = "is_default")]
    pub transformseq: Vec<Transform>,
    /// True if the user may pass fewer bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub is_partial_allowed: bool,
    /// Byte alignment of a packed partial input; 0 means 1.
    #[serde(skip_serializing_if = "is_default")]
    pub align: u32,
}

/// Type, quantization and shape of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoDescriptor {
    /// Element type.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub dtype: ElementType,
    /// Quantization scale.
    #[serde(skip_serializing_if = "is_default")]
    pub qscale: f32,
    /// Quantization offset.
    #[serde(skip_serializing_if = "is_default")]
    pub qoffset: i32,
    /// Dimensions in elements.
    #[serde(skip_serializing_if = "is_default")]
    pub dims: Vec<i32>,
    /// Memory layout code; 0 is the flat row-major one, the others are tiled forms.
    #[serde(skip_serializing_if = "is_default")]
    pub layout: i32,
}

/// Direction of a DMA buffer, seen from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "i32", into = "i32")]
pub enum Direction {
    /// To the device (code 0).
    #[default]
    In,
    /// From the device (code 1).
    Out,
    /// A code this library does not know.
    Unknown(i32),
}

impl From<i32> for Direction {
    fn from(code: i32) -> Self {
        match code {
            0 => Self::In,
            1 => Self::Out,
            other => Self::Unknown(other),
        }
    }
}

impl From<Direction> for i32 {
    fn from(value: Direction) -> Self {
        match value {
            Direction::In => 0,
            Direction::Out => 1,
            Direction::Unknown(code) => code,
        }
    }
}

/// One DMA buffer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DmaBuffer {
    /// Size in bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub size: u32,
    /// Direction; a buffer has one.
    #[serde(skip_serializing_if = "is_default")]
    pub dir: Direction,
}

/// Kind of a transform step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "i32", into = "i32")]
pub enum TransformKind {
    /// Element type conversion (code 0).
    #[default]
    Convert,
    /// Flat to tiled layout (code 1).
    ConvertToD32,
    /// Tiled to flat layout (code 2).
    ConvertFromD32,
    /// Integer to float (code 3).
    Dequantize,
    /// Permutation of dimensions (code 4).
    Transpose,
    /// Float to integer (code 5).
    Quantize,
    /// Copy between the tensor and its DMA buffer (code 6).
    CopyDmaBuffer,
    /// A code this library does not know.
    Unknown(i32),
}

impl From<i32> for TransformKind {
    fn from(code: i32) -> Self {
        match code {
            0 => Self::Convert,
            1 => Self::ConvertToD32,
            2 => Self::ConvertFromD32,
            3 => Self::Dequantize,
            4 => Self::Transpose,
            5 => Self::Quantize,
            6 => Self::CopyDmaBuffer,
            other => Self::Unknown(other),
        }
    }
}

impl From<TransformKind> for i32 {
    fn from(value: TransformKind) -> Self {
        match value {
            TransformKind::Convert => 0,
            TransformKind::ConvertToD32 => 1,
            TransformKind::ConvertFromD32 => 2,
            TransformKind::Dequantize => 3,
            TransformKind::Transpose => 4,
            TransformKind::Quantize => 5,
            TransformKind::CopyDmaBuffer => 6,
            TransformKind::Unknown(code) => code,
        }
    }
}

/// One step; type, scale, offset, dims and layout describe its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Transform {
    /// The operation of the step.
    #[serde(skip_serializing_if = "is_default")]
    pub kind: TransformKind,
    /// Element type of the result.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub dtype: ElementType,
    /// Quantization scale of the result.
    #[serde(skip_serializing_if = "is_default")]
    pub scale: f32,
    /// Quantization offset of the result.
    #[serde(skip_serializing_if = "is_default")]
    pub offset: i32,
    /// Dimensions of the result.
    #[serde(skip_serializing_if = "is_default")]
    pub dims: Vec<i32>,
    /// Layout code of the result.
    #[serde(skip_serializing_if = "is_default")]
    pub layout: i32,
    /// Permutation of a transpose: result dimension `k` is source dimension `shuffle[k]`.
    #[serde(skip_serializing_if = "is_default")]
    pub shuffle: Vec<i32>,
    /// Parameters of [`TransformKind::ConvertToD32`].
    #[serde(skip_serializing_if = "is_default")]
    pub convert_to_d32: Option<ConvertToD32>,
    /// Parameters of [`TransformKind::CopyDmaBuffer`].
    #[serde(skip_serializing_if = "is_default")]
    pub copy_dma_buffer: Option<CopyDmaBuffer>,
}

/// Padding of a tiled conversion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ConvertToD32 {
    #[serde(skip_serializing_if = "is_default")]
    pub padding_val: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub x_pad_begin: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub y_pad_begin: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub x_pad_end: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub y_pad_end: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub d_pad_end: i32,
}

/// Place of a tensor in its DMA buffer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CopyDmaBuffer {
    /// Direction of the copy.
    #[serde(skip_serializing_if = "is_default")]
    pub dir: Direction,
    /// Byte offset of the tensor; of its 8-byte slice header for a partial input.
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u32,
    /// DMA buffer number.
    #[serde(skip_serializing_if = "is_default")]
    pub buffer_num: u32,
}

/// Type and shape of one tensor in a combination.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TensorShape {
    /// Element type.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub dtype: ElementType,
    /// Dimensions in elements.
    #[serde(skip_serializing_if = "is_default")]
    pub dims: Vec<i32>,
}

/// One permitted combination of shapes, inputs then outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoShapes {
    /// One entry per binding.
    #[serde(skip_serializing_if = "is_default")]
    pub shapes: Vec<TensorShape>,
}

/// CRC of DMA buffers computed by the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrcInfo {
    /// DMA buffer that receives the results.
    #[serde(skip_serializing_if = "is_default")]
    pub buff_num: u32,
    /// The covered ranges.
    #[serde(skip_serializing_if = "is_default")]
    pub entries: Vec<CrcEntry>,
}

/// One CRC range; all sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct CrcEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub dma_buffer_num: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub offset: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub size: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub crc_entry_idx: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub begin_crc_block_size: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub end_crc_block_size: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub stride_interval: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub stride_size: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub algorithm: i32,
}

/// How the program was instrumented.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
#[allow(clippy::struct_excessive_bools)] // One per compiler option it records.
pub struct Stats {
    /// DMA buffer that holds the statistics.
    #[serde(skip_serializing_if = "is_default")]
    pub buff_num: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub print_stats: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub stats_level: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub stats_no_host_sync: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub print_op_stats: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub op_stats_level: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub batch_size: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub count_ddr_bw: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub utimer_freq_ms: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub pmu_events: Vec<i32>,
    #[serde(skip_serializing_if = "is_default")]
    pub ops_per_core: Vec<i32>,
    /// Outer index = core.
    #[serde(skip_serializing_if = "is_default")]
    pub core_op_name_kinds: Vec<CoreOpNameKinds>,
    #[serde(skip_serializing_if = "is_default")]
    pub pmu_stats_level: i32,
}

/// Operations of one core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoreOpNameKinds {
    /// Index = thread group.
    #[serde(skip_serializing_if = "is_default")]
    pub tg_op_name_kinds: Vec<ThreadGroupOpNameKinds>,
}

/// Operations of one thread group of a core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadGroupOpNameKinds {
    /// In order of execution.
    #[serde(skip_serializing_if = "is_default")]
    pub op_name_kinds: Vec<OpNameKind>,
}

/// Description of one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct OpNameKind {
    #[serde(skip_serializing_if = "is_default")]
    pub name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub kind: String,
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub op_type: String,
    #[serde(skip_serializing_if = "is_default")]
    pub memory: String,
    #[serde(skip_serializing_if = "is_default")]
    pub shape: String,
    #[serde(skip_serializing_if = "is_default")]
    pub operand: String,
    /// Bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub output_size: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub attributes: String,
    #[serde(skip_serializing_if = "is_default")]
    pub operands: Vec<String>,
}
