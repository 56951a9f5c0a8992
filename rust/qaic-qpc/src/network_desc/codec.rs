//! Field numbers of the network descriptor: the one place where they stand.

use super::{
    ConvertToD32, CopyDmaBuffer, CoreOpNameKinds, CrcEntry, CrcInfo, DmaBuffer, IoBinding, IoDescriptor,
    IoShapes, NetworkDesc, OpNameKind, Stats, TensorShape, ThreadGroupOpNameKinds, Transform,
};
use crate::error::QpcError;
use crate::limits::Limits;
use crate::wire::{self, field::wire_message};

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
}

wire_message!(NetworkDesc, "network descriptor", {
    1 => major_version: uint32,
    2 => minor_version: uint32,
    3 => network_name: string,
    4 => inputs: repeated_message,
    5 => outputs: repeated_message,
    6 => dma_buffers: repeated_message,
    7 => num_cores: uint32,
    8 => num_threads: uint32,
    9 => num_hvx_threads: uint32,
    10 => thread_groups: repeated_uint32,
    11 => thread_group_issue_count: uint32,
    12 => stats: optional_message,
    13 => thread_group_names: repeated_string,
    14 => batch_size: int32,
    16 => crc_info: optional_message,
    17 => cluster_offsets: repeated_uint32,
    18 => allowed_shapes: repeated_message,
});

wire_message!(IoDescriptor, "IO descriptor", {
    1 => dtype: enumeration,
    2 => qscale: float,
    3 => qoffset: int32,
    4 => dims: repeated_int32,
    5 => layout: int32,
});

wire_message!(IoBinding, "IO binding", {
    1 => name: string,
    2 => io_initial: message,
    3 => io_transformed: message,
    4 => transformseq: repeated_message,
    5 => is_partial_allowed: boolean,
    6 => align: uint32,
});

wire_message!(DmaBuffer, "DMA buffer", {
    1 => size: uint32,
    2 => dir: enumeration,
});

wire_message!(Transform, "transform", {
    1 => kind: enumeration,
    2 => dtype: enumeration,
    3 => scale: float,
    4 => offset: int32,
    5 => dims: repeated_int32,
    6 => layout: int32,
    7 => shuffle: repeated_int32,
    8 => convert_to_d32: optional_message,
    9 => copy_dma_buffer: optional_message,
});

wire_message!(ConvertToD32, "tiled conversion", {
    1 => padding_val: int32,
    2 => x_pad_begin: int32,
    3 => y_pad_begin: int32,
    4 => x_pad_end: int32,
    5 => y_pad_end: int32,
    6 => d_pad_end: int32,
});

wire_message!(CopyDmaBuffer, "DMA copy", {
    1 => dir: enumeration,
    2 => offset: uint32,
    3 => buffer_num: uint32,
});

wire_message!(TensorShape, "tensor shape", {
    1 => dtype: enumeration,
    2 => dims: repeated_int32,
});

wire_message!(IoShapes, "allowed shapes", {
    1 => shapes: repeated_message,
});

wire_message!(CrcInfo, "CRC info", {
    1 => buff_num: uint32,
    2 => entries: repeated_message,
});

wire_message!(CrcEntry, "CRC entry", {
    1 => dma_buffer_num: uint32,
    2 => offset: uint32,
    3 => size: uint32,
    4 => crc_entry_idx: uint32,
    5 => begin_crc_block_size: uint32,
    6 => end_crc_block_size: uint32,
    7 => stride_interval: uint32,
    8 => stride_size: uint32,
    9 => algorithm: int32,
});

wire_message!(Stats, "stats", {
    1 => buff_num: uint32,
    2 => print_stats: boolean,
    3 => stats_level: int32,
    4 => stats_no_host_sync: boolean,
    5 => print_op_stats: boolean,
    6 => op_stats_level: int32,
    7 => batch_size: int32,
    8 => count_ddr_bw: boolean,
    9 => utimer_freq_ms: int32,
    10 => pmu_events: repeated_int32,
    11 => ops_per_core: repeated_int32,
    12 => core_op_name_kinds: repeated_message,
    13 => pmu_stats_level: int32,
});

wire_message!(CoreOpNameKinds, "operations of a core", {
    1 => tg_op_name_kinds: repeated_message,
});

wire_message!(ThreadGroupOpNameKinds, "operations of a thread group", {
    1 => op_name_kinds: repeated_message,
});

wire_message!(OpNameKind, "operation", {
    1 => name: string,
    2 => kind: string,
    3 => op_type: string,
    4 => memory: string,
    5 => shape: string,
    6 => operand: string,
    7 => output_size: uint64,
    8 => attributes: string,
    9 => operands: repeated_string,
});
