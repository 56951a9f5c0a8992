//! The messages for prost, an independent implementation of the wire format that serves as an oracle. The
//! structs are written by hand; there is no schema file and no generated code.
#![allow(missing_docs, unreachable_pub, clippy::pedantic)] // The fields are those of `qaic_qpc`; the fuzz targets share this file.

use prost::Message;
use serde::Serialize;
use serde_json::Value;

macro_rules! messages {
    ($($name:ident { $($tag:literal $field:ident: $type:ty = $kind:ident $($repeated:ident)?;)* })*) => {
        $(#[derive(Clone, PartialEq, Message, Serialize)]
        pub struct $name {
            $(#[prost($kind, $($repeated,)? tag = $tag)] pub $field: $type,)*
        })*
    };
}

messages! {
    NetworkDesc {
        "1" major_version: u32 = uint32;
        "2" minor_version: u32 = uint32;
        "3" network_name: String = string;
        "4" inputs: Vec<IoBinding> = message repeated;
        "5" outputs: Vec<IoBinding> = message repeated;
        "6" dma_buffers: Vec<DmaBuffer> = message repeated;
        "7" num_cores: u32 = uint32;
        "8" num_threads: u32 = uint32;
        "9" num_hvx_threads: u32 = uint32;
        "10" thread_groups: Vec<u32> = uint32 repeated;
        "11" thread_group_issue_count: u32 = uint32;
        "12" stats: Option<Stats> = message optional;
        "13" thread_group_names: Vec<String> = string repeated;
        "14" batch_size: i32 = int32;
        "16" crc_info: Option<CrcInfo> = message optional;
        "17" cluster_offsets: Vec<u32> = uint32 repeated;
        "18" allowed_shapes: Vec<IoShapes> = message repeated;
    }
    IoBinding {
        "1" name: String = string;
        "2" io_initial: Option<IoDescriptor> = message optional;
        "3" io_transformed: Option<IoDescriptor> = message optional;
        "4" transformseq: Vec<Transform> = message repeated;
        "5" is_partial_allowed: bool = bool;
        "6" align: u32 = uint32;
    }
    IoDescriptor {
        "1" r#type: i32 = int32;
        "2" qscale: f32 = float;
        "3" qoffset: i32 = int32;
        "4" dims: Vec<i32> = int32 repeated;
        "5" layout: i32 = int32;
    }
    DmaBuffer {
        "1" size: u32 = uint32;
        "2" dir: i32 = int32;
    }
    Transform {
        "1" kind: i32 = int32;
        "2" r#type: i32 = int32;
        "3" scale: f32 = float;
        "4" offset: i32 = int32;
        "5" dims: Vec<i32> = int32 repeated;
        "6" layout: i32 = int32;
        "7" shuffle: Vec<i32> = int32 repeated;
        "8" convert_to_d32: Option<ConvertToD32> = message optional;
        "9" copy_dma_buffer: Option<CopyDmaBuffer> = message optional;
    }
    ConvertToD32 {
        "1" padding_val: i32 = int32;
        "2" x_pad_begin: i32 = int32;
        "3" y_pad_begin: i32 = int32;
        "4" x_pad_end: i32 = int32;
        "5" y_pad_end: i32 = int32;
        "6" d_pad_end: i32 = int32;
    }
    CopyDmaBuffer {
        "1" dir: i32 = int32;
        "2" offset: u32 = uint32;
        "3" buffer_num: u32 = uint32;
    }
    TensorShape {
        "1" r#type: i32 = int32;
        "2" dims: Vec<i32> = int32 repeated;
    }
    IoShapes {
        "1" shapes: Vec<TensorShape> = message repeated;
    }
    CrcInfo {
        "1" buff_num: u32 = uint32;
        "2" entries: Vec<CrcEntry> = message repeated;
    }
    CrcEntry {
        "1" dma_buffer_num: u32 = uint32;
        "2" offset: u32 = uint32;
        "3" size: u32 = uint32;
        "4" crc_entry_idx: u32 = uint32;
        "5" begin_crc_block_size: u32 = uint32;
        "6" end_crc_block_size: u32 = uint32;
        "7" stride_interval: u32 = uint32;
        "8" stride_size: u32 = uint32;
        "9" algorithm: i32 = int32;
    }
    Stats {
        "1" buff_num: u32 = uint32;
        "2" print_stats: bool = bool;
        "3" stats_level: i32 = int32;
        "4" stats_no_host_sync: bool = bool;
        "5" print_op_stats: bool = bool;
        "6" op_stats_level: i32 = int32;
        "7" batch_size: i32 = int32;
        "8" count_ddr_bw: bool = bool;
        "9" utimer_freq_ms: i32 = int32;
        "10" pmu_events: Vec<i32> = int32 repeated;
        "11" ops_per_core: Vec<i32> = int32 repeated;
        "12" core_op_name_kinds: Vec<CoreOpNameKinds> = message repeated;
        "13" pmu_stats_level: i32 = int32;
    }
    CoreOpNameKinds {
        "1" tg_op_name_kinds: Vec<ThreadGroupOpNameKinds> = message repeated;
    }
    ThreadGroupOpNameKinds {
        "1" op_name_kinds: Vec<OpNameKind> = message repeated;
    }
    OpNameKind {
        "1" name: String = string;
        "2" kind: String = string;
        "3" r#type: String = string;
        "4" memory: String = string;
        "5" shape: String = string;
        "6" operand: String = string;
        "7" output_size: u64 = uint64;
        "8" attributes: String = string;
        "9" operands: Vec<String> = string repeated;
    }
    IoDesc {
        "1" io_sets: Vec<IoSet> = message repeated;
        "2" selected_set: Option<IoSet> = message optional;
        "3" program_name: String = string;
        "4" dma_buf: Vec<DmaBuf> = message repeated;
        "5" runtime_constants: Vec<RuntimeConstants> = message repeated;
        "6" pre_process_skip_stages: Vec<IoSet> = message repeated;
        "7" post_process_skip_stages: Vec<IoSet> = message repeated;
        "8" allowed_shapes: Vec<IoShapes> = message repeated;
    }
    IoSet {
        "1" name: String = string;
        "2" bindings: Vec<IoSetBinding> = message repeated;
    }
    IoSetBinding {
        "1" name: String = string;
        "2" index: u32 = uint32;
        "3" r#type: i32 = int32;
        "4" dir: i32 = int32;
        "5" quant_scale: f32 = float;
        "6" quant_offset: i32 = int32;
        "7" dims: Vec<i32> = int32 repeated;
        "8" size: u32 = uint32;
        "9" dma_buf_info: Vec<DmaBufInfo> = message repeated;
        "10" is_partial_buf_allowed: bool = bool;
        "20" is_valid: bool = bool;
    }
    DmaBufInfo {
        "1" dma_buf_index: u32 = uint32;
        "2" dma_size: u32 = uint32;
        "3" io_binding_offset: u32 = uint32;
        "4" dma_offset: u32 = uint32;
    }
    DmaBuf {
        "1" index: u32 = uint32;
        "2" size: u32 = uint32;
        "3" dir: i32 = int32;
    }
    RuntimeConstants {
        "1" name: String = string;
        "2" size: u32 = uint32;
        "3" offset: u32 = uint32;
    }
}

/// The JSON form of either implementation, without the parts that the wire format omits: zeros, empty lists,
/// and the presence of messages that are always written.
pub fn canonical(message: &impl Serialize) -> Value {
    strip(serde_json::to_value(message).unwrap_or_default())
}

fn strip(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(strip).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, strip(value)))
            .filter(|(name, value)| match value {
                Value::Null => false,
                Value::Bool(set) => *set,
                Value::Number(number) => number.as_f64() != Some(0.0),
                Value::String(text) => !text.is_empty(),
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => {
                    !fields.is_empty() || !matches!(name.as_str(), "io_initial" | "io_transformed")
                }
            })
            .collect(),
        other => other,
    }
}
