//! The messages as prost reads them: a second, independent implementation of the wire
//! format to hold ours against. Derived by hand-written structs; there is no schema file and no generated code.
#![allow(missing_docs, unreachable_pub, clippy::pedantic)] // The fields are those of `qaic_qpc`; the fuzz targets share this file.

use prost::Message;
use serde::Serialize;
use serde_json::Value;

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct NetworkDesc {
    #[prost(uint32, tag = "1")]
    pub major_version: u32,
    #[prost(uint32, tag = "2")]
    pub minor_version: u32,
    #[prost(string, tag = "3")]
    pub network_name: String,
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<IoBinding>,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<IoBinding>,
    #[prost(message, repeated, tag = "6")]
    pub dma_buffers: Vec<DmaBuffer>,
    #[prost(uint32, tag = "7")]
    pub num_cores: u32,
    #[prost(uint32, tag = "8")]
    pub num_threads: u32,
    #[prost(uint32, tag = "9")]
    pub num_hvx_threads: u32,
    #[prost(uint32, repeated, tag = "10")]
    pub thread_groups: Vec<u32>,
    #[prost(uint32, tag = "11")]
    pub thread_group_issue_count: u32,
    #[prost(message, optional, tag = "12")]
    pub stats: Option<Stats>,
    #[prost(string, repeated, tag = "13")]
    pub thread_group_names: Vec<String>,
    #[prost(int32, tag = "14")]
    pub batch_size: i32,
    #[prost(message, optional, tag = "16")]
    pub crc_info: Option<CrcInfo>,
    #[prost(uint32, repeated, tag = "17")]
    pub cluster_offsets: Vec<u32>,
    #[prost(message, repeated, tag = "18")]
    pub allowed_shapes: Vec<IoShapes>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct IoBinding {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub io_initial: Option<IoDescriptor>,
    #[prost(message, optional, tag = "3")]
    pub io_transformed: Option<IoDescriptor>,
    #[prost(message, repeated, tag = "4")]
    pub transformseq: Vec<Transform>,
    #[prost(bool, tag = "5")]
    pub is_partial_allowed: bool,
    #[prost(uint32, tag = "6")]
    pub align: u32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct IoDescriptor {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    #[prost(float, tag = "2")]
    pub qscale: f32,
    #[prost(int32, tag = "3")]
    pub qoffset: i32,
    #[prost(int32, repeated, tag = "4")]
    pub dims: Vec<i32>,
    #[prost(int32, tag = "5")]
    pub layout: i32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct DmaBuffer {
    #[prost(uint32, tag = "1")]
    pub size: u32,
    #[prost(int32, tag = "2")]
    pub dir: i32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct Transform {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(int32, tag = "2")]
    pub r#type: i32,
    #[prost(float, tag = "3")]
    pub scale: f32,
    #[prost(int32, tag = "4")]
    pub offset: i32,
    #[prost(int32, repeated, tag = "5")]
    pub dims: Vec<i32>,
    #[prost(int32, tag = "6")]
    pub layout: i32,
    #[prost(int32, repeated, tag = "7")]
    pub shuffle: Vec<i32>,
    #[prost(message, optional, tag = "8")]
    pub convert_to_d32: Option<ConvertToD32>,
    #[prost(message, optional, tag = "9")]
    pub copy_dma_buffer: Option<CopyDmaBuffer>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct ConvertToD32 {
    #[prost(int32, tag = "1")]
    pub padding_val: i32,
    #[prost(int32, tag = "2")]
    pub x_pad_begin: i32,
    #[prost(int32, tag = "3")]
    pub y_pad_begin: i32,
    #[prost(int32, tag = "4")]
    pub x_pad_end: i32,
    #[prost(int32, tag = "5")]
    pub y_pad_end: i32,
    #[prost(int32, tag = "6")]
    pub d_pad_end: i32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct CopyDmaBuffer {
    #[prost(int32, tag = "1")]
    pub dir: i32,
    #[prost(uint32, tag = "2")]
    pub offset: u32,
    #[prost(uint32, tag = "3")]
    pub buffer_num: u32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct TensorShape {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    #[prost(int32, repeated, tag = "2")]
    pub dims: Vec<i32>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct IoShapes {
    #[prost(message, repeated, tag = "1")]
    pub shapes: Vec<TensorShape>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct CrcInfo {
    #[prost(uint32, tag = "1")]
    pub buff_num: u32,
    #[prost(message, repeated, tag = "2")]
    pub entries: Vec<CrcEntry>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct CrcEntry {
    #[prost(uint32, tag = "1")]
    pub dma_buffer_num: u32,
    #[prost(uint32, tag = "2")]
    pub offset: u32,
    #[prost(uint32, tag = "3")]
    pub size: u32,
    #[prost(uint32, tag = "4")]
    pub crc_entry_idx: u32,
    #[prost(uint32, tag = "5")]
    pub begin_crc_block_size: u32,
    #[prost(uint32, tag = "6")]
    pub end_crc_block_size: u32,
    #[prost(uint32, tag = "7")]
    pub stride_interval: u32,
    #[prost(uint32, tag = "8")]
    pub stride_size: u32,
    #[prost(int32, tag = "9")]
    pub algorithm: i32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct Stats {
    #[prost(uint32, tag = "1")]
    pub buff_num: u32,
    #[prost(bool, tag = "2")]
    pub print_stats: bool,
    #[prost(int32, tag = "3")]
    pub stats_level: i32,
    #[prost(bool, tag = "4")]
    pub stats_no_host_sync: bool,
    #[prost(bool, tag = "5")]
    pub print_op_stats: bool,
    #[prost(int32, tag = "6")]
    pub op_stats_level: i32,
    #[prost(int32, tag = "7")]
    pub batch_size: i32,
    #[prost(bool, tag = "8")]
    pub count_ddr_bw: bool,
    #[prost(int32, tag = "9")]
    pub utimer_freq_ms: i32,
    #[prost(int32, repeated, tag = "10")]
    pub pmu_events: Vec<i32>,
    #[prost(int32, repeated, tag = "11")]
    pub ops_per_core: Vec<i32>,
    #[prost(message, repeated, tag = "12")]
    pub core_op_name_kinds: Vec<CoreOpNameKinds>,
    #[prost(int32, tag = "13")]
    pub pmu_stats_level: i32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct CoreOpNameKinds {
    #[prost(message, repeated, tag = "1")]
    pub tg_op_name_kinds: Vec<ThreadGroupOpNameKinds>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct ThreadGroupOpNameKinds {
    #[prost(message, repeated, tag = "1")]
    pub op_name_kinds: Vec<OpNameKind>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct OpNameKind {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(string, tag = "3")]
    pub r#type: String,
    #[prost(string, tag = "4")]
    pub memory: String,
    #[prost(string, tag = "5")]
    pub shape: String,
    #[prost(string, tag = "6")]
    pub operand: String,
    #[prost(uint64, tag = "7")]
    pub output_size: u64,
    #[prost(string, tag = "8")]
    pub attributes: String,
    #[prost(string, repeated, tag = "9")]
    pub operands: Vec<String>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct IoDesc {
    #[prost(message, repeated, tag = "1")]
    pub io_sets: Vec<IoSet>,
    #[prost(message, optional, tag = "2")]
    pub selected_set: Option<IoSet>,
    #[prost(string, tag = "3")]
    pub program_name: String,
    #[prost(message, repeated, tag = "4")]
    pub dma_buf: Vec<DmaBuf>,
    #[prost(message, repeated, tag = "5")]
    pub runtime_constants: Vec<RuntimeConstants>,
    #[prost(message, repeated, tag = "6")]
    pub pre_process_skip_stages: Vec<IoSet>,
    #[prost(message, repeated, tag = "7")]
    pub post_process_skip_stages: Vec<IoSet>,
    #[prost(message, repeated, tag = "8")]
    pub allowed_shapes: Vec<IoShapes>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct IoSet {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub bindings: Vec<IoSetBinding>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct IoSetBinding {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint32, tag = "2")]
    pub index: u32,
    #[prost(int32, tag = "3")]
    pub r#type: i32,
    #[prost(int32, tag = "4")]
    pub dir: i32,
    #[prost(float, tag = "5")]
    pub quant_scale: f32,
    #[prost(int32, tag = "6")]
    pub quant_offset: i32,
    #[prost(int32, repeated, tag = "7")]
    pub dims: Vec<i32>,
    #[prost(uint32, tag = "8")]
    pub size: u32,
    #[prost(message, repeated, tag = "9")]
    pub dma_buf_info: Vec<DmaBufInfo>,
    #[prost(bool, tag = "10")]
    pub is_partial_buf_allowed: bool,
    #[prost(bool, tag = "20")]
    pub is_valid: bool,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct DmaBufInfo {
    #[prost(uint32, tag = "1")]
    pub dma_buf_index: u32,
    #[prost(uint32, tag = "2")]
    pub dma_size: u32,
    #[prost(uint32, tag = "3")]
    pub io_binding_offset: u32,
    #[prost(uint32, tag = "4")]
    pub dma_offset: u32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct DmaBuf {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(uint32, tag = "2")]
    pub size: u32,
    #[prost(int32, tag = "3")]
    pub dir: i32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct RuntimeConstants {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint32, tag = "2")]
    pub size: u32,
    #[prost(uint32, tag = "3")]
    pub offset: u32,
}

/// The JSON form of either implementation with everything left out that the wire does not carry: zeros, empty lists,
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
