//! The resolved plan of a CPU program: what the compiler decided, as section `openqaic_plan` of `network.elf`.

use std::ops::RangeInclusive;

use qaic_qpc::container::names;
use qaic_qpc::elf;
use serde::Deserialize;

use super::custom_ops::CustomOpLibrary;
use crate::error::RuntimeError;
use crate::image::Image;

/// ELF section with the ONNX graph, its large initializers moved to `constants.bin`.
pub const GRAPH_SECTION: &str = "openqaic_graph";
/// ELF section with this plan as JSON.
pub const PLAN_SECTION: &str = "openqaic_plan";
/// Plan versions this library reads. Version 2 may have specializations, retained state and encoded initializers,
/// which a reader of version 1 would not honour.
pub const VERSIONS: RangeInclusive<u32> = 1..=2;

/// Hardware family of programs and virtual cards that name none.
pub const FAMILY: &str = "ai100";
/// All hardware families.
pub const FAMILIES: [&str; 2] = [FAMILY, "ai200"];

/// Plan of a CPU program. Fields that only inform people are not decoded.
#[derive(Clone, Debug, Deserialize)]
pub struct Plan {
    /// Version of this structure.
    pub version: u32,
    /// Target the program was compiled for.
    pub target: String,
    /// Hardware family it was compiled for; `None` is that of [`FAMILY`].
    #[serde(default)]
    pub hardware: Option<String>,
    /// Inputs in binding order.
    pub inputs: Vec<Edge>,
    /// Outputs in binding order.
    pub outputs: Vec<Edge>,
    /// Initializers that live in `constants.bin`.
    pub initializers: Vec<Initializer>,
    /// Whether the inputs' values decide how long an inference takes.
    #[serde(default)]
    pub loops: bool,
    /// Specializations, one per entry of `allowed_shapes`; empty when the edges have the only dims.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// Libraries with operators of the graph.
    #[serde(default)]
    pub custom_op_libraries: Vec<CustomOpLibrary>,
    /// Whether outputs named `X_RetainedState` stay on the device as the next input `X`.
    #[serde(default)]
    pub retained_state: bool,
    /// Whether callers may read and write the state between inferences.
    #[serde(default)]
    pub split_retained_state_io: bool,
    /// Bytes of a section whose CRC is checked on its way in and out, 0 for whole buffers; `None` checks nothing.
    #[serde(default)]
    pub io_crc: Option<u64>,
}

/// Dimensions of all edges in one specialization.
#[derive(Clone, Debug, Deserialize)]
pub struct Variant {
    /// Per input.
    pub inputs: Vec<Vec<i64>>,
    /// Per output.
    pub outputs: Vec<Vec<i64>>,
}

/// One graph input or output.
#[derive(Clone, Debug, Deserialize)]
pub struct Edge {
    /// Tensor name.
    pub name: String,
    /// Type in the graph, which tells `bool` from `int8`.
    pub dtype: Dtype,
    /// Dimensions; the largest of each where there are specializations.
    pub dims: Vec<i64>,
    /// Values per row where the bytes are MXINT8 blocks (compile-options §5.4).
    #[serde(default)]
    pub mxint8: Option<u64>,
}

/// One initializer used from the mapping.
#[derive(Clone, Debug, Deserialize)]
pub struct Initializer {
    /// Tensor name.
    pub name: String,
    /// Type in the graph.
    pub dtype: Dtype,
    /// Dimensions.
    pub dims: Vec<i64>,
    /// Byte offset in the payload of `constants.bin`.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Format of the blocks that the bytes are; `None` for elements of the type.
    #[serde(default)]
    pub encoding: Option<String>,
    /// Dimension that the blocks lie along.
    #[serde(default)]
    pub axis: usize,
}

/// Tensor types by their ONNX names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Dtype {
    Float32,
    Float64,
    Float16,
    Bfloat16,
    Int8,
    Uint8,
    Int16,
    Uint16,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Bool,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> u64 {
        match self {
            Self::Int8 | Self::Uint8 | Self::Bool => 1,
            Self::Float16 | Self::Bfloat16 | Self::Int16 | Self::Uint16 => 2,
            Self::Float32 | Self::Int32 | Self::Uint32 => 4,
            Self::Float64 | Self::Int64 | Self::Uint64 => 8,
        }
    }
}

impl Plan {
    /// Decodes the section.
    pub fn decode(json: &[u8]) -> Result<Self, RuntimeError> {
        let plan: Self = serde_json::from_slice(json).map_err(|error| RuntimeError::EngineGraph {
            message: format!("section {PLAN_SECTION} is not a plan: {error}"),
        })?;
        if !VERSIONS.contains(&plan.version) {
            return Err(RuntimeError::EngineGraph {
                message: format!(
                    "section {PLAN_SECTION} has version {}, this library reads versions {} to {}",
                    plan.version,
                    VERSIONS.start(),
                    VERSIONS.end()
                ),
            });
        }
        Ok(plan)
    }
}

/// Devices that the plan of a container partitions it for; `None` without a plan or without partitions.
pub fn devices(image: &Image) -> Result<Option<u32>, RuntimeError> {
    #[derive(Deserialize)]
    struct Partitions {
        #[serde(default)]
        devices: Option<u32>,
    }
    let file = image.segment(names::NETWORK_ELF).unwrap_or_default();
    let Some(range) = elf::section(file, PLAN_SECTION)? else { return Ok(None) };
    // The whole plan is decoded and judged by the load that follows.
    let plan: Option<Partitions> = serde_json::from_slice(file.get(range).unwrap_or_default()).ok();
    Ok(plan.and_then(|plan| plan.devices))
}

/// Bytes of a dense tensor, `None` when the product overflows or a dimension is negative.
pub fn dense_bytes(dtype: Dtype, dims: &[i64]) -> Option<u64> {
    dims.iter().try_fold(dtype.size_bytes(), |product, &dim| product.checked_mul(u64::try_from(dim).ok()?))
}
