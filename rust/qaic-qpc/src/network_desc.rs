//! The network descriptor `networkdesc.bin`: bindings, transforms and DMA buffers.
//!
//! Field names are those of the format, so that the JSON form (serde) has the structure of the messages. Like
//! protobuf, the JSON form omits zero values.

use serde::{Deserialize, Serialize};

use crate::dtype::ElementType;
use crate::error::QpcError;
use crate::limits::Limits;
use crate::wire::{self, field::messages, open_enum::open_enum};

/// Major version that this library writes and expects.
pub(crate) const MAJOR_VERSION: u32 = 9;

messages! {
    /// Root message.
    NetworkDesc "network descriptor" {
        /// Descriptor version, 9 in all known files.
        1 => major_version: u32,
        /// Minor version, 0 in all known files.
        2 => minor_version: u32,
        3 => network_name: String,
        /// User inputs; the index is the user buffer index.
        4 => inputs: Vec<IoBinding>,
        /// User outputs; the user buffer index is the number of inputs plus the index.
        5 => outputs: Vec<IoBinding>,
        /// DMA buffers; the index is the DMA buffer number.
        6 => dma_buffers: Vec<DmaBuffer>,
        /// Number of NSP cores of one activation.
        7 => num_cores: u32,
        /// Number of threads per NSP.
        8 => num_threads: u32,
        /// Number of HVX threads among them.
        9 => num_hvx_threads: u32,
        /// Index into `thread_group_names` for each thread.
        10 => thread_groups: Vec<u32>,
        /// Number of issuing groups.
        11 => thread_group_issue_count: u32,
        /// Statistics settings, if the program was compiled with statistics.
        12 => stats: Option<Stats>,
        13 => thread_group_names: Vec<String>,
        /// Batch size that the program was compiled for.
        14 => batch_size: i32,
        /// CRC of the program's inputs and outputs.
        16 => crc_info: Option<CrcInfo>,
        /// First core of each cluster.
        17 => cluster_offsets: Vec<u32>,
        /// Every permitted combination of shapes, inputs then outputs.
        18 => allowed_shapes: Vec<IoShapes>,
    }
}

/// Name of the output with statistics; a suffix may follow.
const STATS_OUTPUT: &str = "aiccyclecounts";

/// Returns true if the name identifies an output with statistics. Programs for several devices add a suffix for each
/// device.
pub fn is_stats_output(name: &str) -> bool {
    name.strip_prefix(STATS_OUTPUT).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('_'))
}

impl NetworkDesc {
    /// Decodes `networkdesc.bin`. Unknown fields are skipped. Element types, kinds and dims are not checked;
    /// functions that require valid values return errors.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Self, QpcError> {
        wire::decode(bytes, limits)
    }

    /// Encodes the descriptor as `networkdesc.bin`; equal descriptors result in equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

    /// Index of the output with the device's statistics, which is the last output; `None` if the program has none.
    /// The graph does not compute this output.
    pub fn stats_output(&self) -> Option<usize> {
        self.stats.as_ref()?;
        let last = self.outputs.len().checked_sub(1)?;
        self.outputs.get(last).filter(|output| is_stats_output(&output.name)).map(|_| last)
    }

    /// Outputs that the graph computes.
    pub(crate) fn computed_outputs(&self) -> &[IoBinding] {
        self.stats_output().and_then(|count| self.outputs.get(..count)).unwrap_or(&self.outputs)
    }
}

messages! {
    /// One user tensor, and its transfer to or from its DMA buffer.
    IoBinding "IO binding" {
        1 => name: String,
        /// Tensor before the transform sequence: the user's tensor for an input, the DMA buffer's for an output.
        2 => io_initial: IoDescriptor,
        /// Tensor after the transform sequence: the DMA buffer's tensor for an input, the user's for an output.
        3 => io_transformed: IoDescriptor,
        /// Steps in order; the DMA copy is the last step of an input and the first step of an output. An empty
        /// sequence means that the tensor is optimized away.
        4 => transformseq: Vec<Transform>,
        /// True if the user may pass fewer bytes.
        5 => is_partial_allowed: bool,
        /// Byte alignment of a packed partial input; 0 means 1.
        6 => align: u32,
    }

    /// Type, quantization and shape of a tensor.
    IoDescriptor "IO descriptor" {
        #[serde(rename = "type")]
        1 => dtype: ElementType,
        2 => qscale: f32,
        3 => qoffset: i32,
        4 => dims: Vec<i32>,
        /// Code of the memory layout; 0 is row-major, other codes are tiled layouts.
        5 => layout: i32,
    }
}

open_enum! {
    /// Direction of a DMA buffer, seen from the device.
    pub enum Direction {
        /// To the device.
        #[default]
        In = 0,
        /// From the device.
        Out = 1,
    }
}

messages! {
    /// One DMA buffer.
    DmaBuffer "DMA buffer" {
        1 => size: u32,
        /// Direction of the buffer, which is fixed.
        2 => dir: Direction,
    }
}

open_enum! {
    /// Kind of a transform step.
    pub enum TransformKind {
        /// Element type conversion.
        #[default]
        Convert = 0,
        /// Flat to tiled layout.
        ConvertToD32 = 1,
        /// Tiled to flat layout.
        ConvertFromD32 = 2,
        /// Integer to float.
        Dequantize = 3,
        /// Permutation of dimensions.
        Transpose = 4,
        /// Float to integer.
        Quantize = 5,
        /// Copy between the tensor and its DMA buffer.
        CopyDmaBuffer = 6,
    }
}

messages! {
    /// One step; type, scale, offset, dims and layout describe the result of the step.
    Transform "transform" {
        /// The operation of the step.
        1 => kind: TransformKind,
        #[serde(rename = "type")]
        2 => dtype: ElementType,
        3 => scale: f32,
        4 => offset: i32,
        5 => dims: Vec<i32>,
        6 => layout: i32,
        /// Permutation of a transpose: result dimension `k` is source dimension `shuffle[k]`.
        7 => shuffle: Vec<i32>,
        /// Parameters of [`TransformKind::ConvertToD32`].
        8 => convert_to_d32: Option<ConvertToD32>,
        /// Parameters of [`TransformKind::CopyDmaBuffer`].
        9 => copy_dma_buffer: Option<CopyDmaBuffer>,
    }

    /// Padding of a tiled conversion.
    ConvertToD32 "tiled conversion" {
        1 => padding_val: i32,
        2 => x_pad_begin: i32,
        3 => y_pad_begin: i32,
        4 => x_pad_end: i32,
        5 => y_pad_end: i32,
        6 => d_pad_end: i32,
    }

    /// Location of a tensor in its DMA buffer.
    CopyDmaBuffer "DMA copy" {
        /// Direction of the copy.
        1 => dir: Direction,
        /// Byte offset of the tensor; for a partial input, offset of its 8-byte slice header.
        2 => offset: u32,
        3 => buffer_num: u32,
    }

    /// Type and shape of one tensor in a combination.
    TensorShape "tensor shape" {
        #[serde(rename = "type")]
        1 => dtype: ElementType,
        2 => dims: Vec<i32>,
    }

    /// One permitted combination of shapes, inputs then outputs.
    IoShapes "allowed shapes" {
        /// One entry per binding.
        1 => shapes: Vec<TensorShape>,
    }

    /// CRCs of DMA buffers that the device computes.
    CrcInfo "CRC info" {
        /// DMA buffer that receives the results.
        1 => buff_num: u32,
        /// The covered ranges.
        2 => entries: Vec<CrcEntry>,
    }

    /// One range with a CRC; all sizes are in bytes.
    CrcEntry "CRC entry" {
        1 => dma_buffer_num: u32,
        2 => offset: u32,
        3 => size: u32,
        4 => crc_entry_idx: u32,
        5 => begin_crc_block_size: u32,
        6 => end_crc_block_size: u32,
        7 => stride_interval: u32,
        8 => stride_size: u32,
        9 => algorithm: i32,
    }

    /// Statistics settings of the program.
    Stats "stats" {
        /// DMA buffer that holds the statistics.
        1 => buff_num: u32,
        2 => print_stats: bool,
        3 => stats_level: i32,
        4 => stats_no_host_sync: bool,
        5 => print_op_stats: bool,
        6 => op_stats_level: i32,
        7 => batch_size: i32,
        8 => count_ddr_bw: bool,
        9 => utimer_freq_ms: i32,
        10 => pmu_events: Vec<i32>,
        11 => ops_per_core: Vec<i32>,
        /// Operations, indexed by core.
        12 => core_op_name_kinds: Vec<CoreOpNameKinds>,
        13 => pmu_stats_level: i32,
    }

    /// Operations of one core.
    CoreOpNameKinds "operations of a core" {
        /// Operations, indexed by thread group.
        1 => tg_op_name_kinds: Vec<ThreadGroupOpNameKinds>,
    }

    /// Operations of one thread group of a core.
    ThreadGroupOpNameKinds "operations of a thread group" {
        /// Operations in order of execution.
        1 => op_name_kinds: Vec<OpNameKind>,
    }

    /// Description of one operation.
    OpNameKind "operation" {
        1 => name: String,
        2 => kind: String,
        #[serde(rename = "type")]
        3 => op_type: String,
        4 => memory: String,
        5 => shape: String,
        6 => operand: String,
        /// Size of the output in bytes.
        7 => output_size: u64,
        8 => attributes: String,
        9 => operands: Vec<String>,
    }
}
