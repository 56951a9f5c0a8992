//! The network descriptor: what `networkdesc.bin` says about bindings, transforms and DMA buffers.
//!
//! Field names are those of the format, so that the JSON form (serde) reads like the messages; zero values are
//! left out of it as protobuf does.

use serde::{Deserialize, Serialize};

use crate::dtype::ElementType;
use crate::error::QpcError;
use crate::limits::Limits;
use crate::wire::{self, field::messages, open_enum::open_enum};

/// The major version this library writes and expects.
pub(crate) const MAJOR_VERSION: u32 = 9;

messages! {
    /// Root message.
    NetworkDesc "network descriptor" {
        /// Descriptor version, [`MAJOR_VERSION`] in all known files.
        1 => major_version: u32,
        /// Minor version, 0 in all known files.
        2 => minor_version: u32,
        /// Program name.
        3 => network_name: String,
        /// User inputs; position = user buffer index.
        4 => inputs: Vec<IoBinding>,
        /// User outputs; user buffer index = number of inputs + position.
        5 => outputs: Vec<IoBinding>,
        /// DMA buffers; position = DMA buffer number.
        6 => dma_buffers: Vec<DmaBuffer>,
        /// NSP cores one activation occupies.
        7 => num_cores: u32,
        /// Threads per NSP.
        8 => num_threads: u32,
        /// How many of the threads are HVX threads.
        9 => num_hvx_threads: u32,
        /// Per thread, an index into `thread_group_names`.
        10 => thread_groups: Vec<u32>,
        /// Number of issuing groups.
        11 => thread_group_issue_count: u32,
        /// Present when the program was compiled with statistics.
        12 => stats: Option<Stats>,
        /// Names of the thread groups.
        13 => thread_group_names: Vec<String>,
        /// Batch the program was compiled for.
        14 => batch_size: i32,
        /// CRC of the program's inputs and outputs.
        16 => crc_info: Option<CrcInfo>,
        /// First core of each cluster.
        17 => cluster_offsets: Vec<u32>,
        /// Every permitted combination of shapes, inputs then outputs.
        18 => allowed_shapes: Vec<IoShapes>,
    }
}

/// Output that carries statistics, with or without a suffix.
const STATS_OUTPUT: &str = "aiccyclecounts";

/// Returns whether an output is known to carry statistics, by its name. Several devices have a suffix each.
pub fn is_stats_output(name: &str) -> bool {
    name.strip_prefix(STATS_OUTPUT).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('_'))
}

impl NetworkDesc {
    /// Reads `networkdesc.bin`. Unknown fields are skipped; element types, kinds and dims are kept as they are, the
    /// functions that need them to make sense say when they do not.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Self, QpcError> {
        wire::decode(bytes, limits)
    }

    /// The bytes of `networkdesc.bin`; equal descriptors give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }

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

messages! {
    /// One user tensor and how it reaches its DMA buffer.
    IoBinding "IO binding" {
        /// Binding name.
        1 => name: String,
        /// Tensor before the transform sequence: the user's for an input, the DMA buffer's for an output.
        2 => io_initial: IoDescriptor,
        /// Tensor after the transform sequence: the DMA buffer's for an input, the user's for an output.
        3 => io_transformed: IoDescriptor,
        /// Steps in order; the DMA copy is last for inputs and first for outputs. Empty: optimized away.
        4 => transformseq: Vec<Transform>,
        /// True if the user may pass fewer bytes.
        5 => is_partial_allowed: bool,
        /// Byte alignment of a packed partial input; 0 means 1.
        6 => align: u32,
    }

    /// Type, quantization and shape of a tensor.
    IoDescriptor "IO descriptor" {
        /// Element type.
        #[serde(rename = "type")]
        1 => dtype: ElementType,
        /// Quantization scale.
        2 => qscale: f32,
        /// Quantization offset.
        3 => qoffset: i32,
        /// Dimensions in elements.
        4 => dims: Vec<i32>,
        /// Memory layout code; 0 is the flat row-major one, the others are tiled forms.
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
        /// Size in bytes.
        1 => size: u32,
        /// Direction; a buffer has one.
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
    /// One step; type, scale, offset, dims and layout describe its result.
    Transform "transform" {
        /// The operation of the step.
        1 => kind: TransformKind,
        /// Element type of the result.
        #[serde(rename = "type")]
        2 => dtype: ElementType,
        /// Quantization scale of the result.
        3 => scale: f32,
        /// Quantization offset of the result.
        4 => offset: i32,
        /// Dimensions of the result.
        5 => dims: Vec<i32>,
        /// Layout code of the result.
        6 => layout: i32,
        /// Permutation of a transpose: result dimension `k` is source dimension `shuffle[k]`.
        7 => shuffle: Vec<i32>,
        /// Parameters of [`TransformKind::ConvertToD32`].
        8 => convert_to_d32: Option<ConvertToD32>,
        /// Parameters of [`TransformKind::CopyDmaBuffer`].
        9 => copy_dma_buffer: Option<CopyDmaBuffer>,
    }

    /// Padding of a tiled conversion.
    #[allow(missing_docs)]
    ConvertToD32 "tiled conversion" {
        1 => padding_val: i32,
        2 => x_pad_begin: i32,
        3 => y_pad_begin: i32,
        4 => x_pad_end: i32,
        5 => y_pad_end: i32,
        6 => d_pad_end: i32,
    }

    /// Place of a tensor in its DMA buffer.
    CopyDmaBuffer "DMA copy" {
        /// Direction of the copy.
        1 => dir: Direction,
        /// Byte offset of the tensor; of its 8-byte slice header for a partial input.
        2 => offset: u32,
        /// DMA buffer number.
        3 => buffer_num: u32,
    }

    /// Type and shape of one tensor in a combination.
    TensorShape "tensor shape" {
        /// Element type.
        #[serde(rename = "type")]
        1 => dtype: ElementType,
        /// Dimensions in elements.
        2 => dims: Vec<i32>,
    }

    /// One permitted combination of shapes, inputs then outputs.
    IoShapes "allowed shapes" {
        /// One entry per binding.
        1 => shapes: Vec<TensorShape>,
    }

    /// CRC of DMA buffers computed by the device.
    CrcInfo "CRC info" {
        /// DMA buffer that receives the results.
        1 => buff_num: u32,
        /// The covered ranges.
        2 => entries: Vec<CrcEntry>,
    }

    /// One CRC range; all sizes in bytes.
    #[allow(missing_docs)]
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

    /// How the program was instrumented.
    #[allow(missing_docs)]
    #[allow(clippy::struct_excessive_bools)] // One per compiler option it records.
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
        /// Outer index = core.
        12 => core_op_name_kinds: Vec<CoreOpNameKinds>,
        13 => pmu_stats_level: i32,
    }

    /// Operations of one core.
    CoreOpNameKinds "operations of a core" {
        /// Index = thread group.
        1 => tg_op_name_kinds: Vec<ThreadGroupOpNameKinds>,
    }

    /// Operations of one thread group of a core.
    ThreadGroupOpNameKinds "operations of a thread group" {
        /// In order of execution.
        1 => op_name_kinds: Vec<OpNameKind>,
    }

    /// Description of one operation.
    #[allow(missing_docs)]
    OpNameKind "operation" {
        1 => name: String,
        2 => kind: String,
        #[serde(rename = "type")]
        3 => op_type: String,
        4 => memory: String,
        5 => shape: String,
        6 => operand: String,
        /// Bytes.
        7 => output_size: u64,
        8 => attributes: String,
        9 => operands: Vec<String>,
    }
}
