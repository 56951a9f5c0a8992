//! The plan of a program for the `cpu` device: what the compiler decided, as JSON in a section of `network.elf`
//! (docs/reference/cpu-program.md).
//!
//! [`Plan`] is the only reader of it. What a plan says about the rest of its container is checked by the functions beside
//! it, which validation and every load call.

mod checks;
mod control;
mod error;
mod state_rows;

use std::ops::RangeInclusive;

use serde::Deserialize;

pub use control::{CONTROL_BYTES, Control};
pub use error::PlanError;
pub use state_rows::{RowTensor, RowUpdate, StateRows};

use crate::elf;
use crate::error::QpcError;

/// ELF section with the plan, as JSON.
pub const PLAN_SECTION: &str = "openqaic_plan";
/// ELF section with the ONNX graph, its large initializers moved to `constants.bin`.
pub const GRAPH_SECTION: &str = "openqaic_graph";
/// ELF section that describes the measured operations, as in the container.
pub const OPERATIONS_SECTION: &str = "openqaic_ops";
/// Versions this library reads. Version 2 may have specializations, retained state and encoded initializers, which a
/// reader of version 1 would not honor; version 3 may have a graph that computes rows in place of retained outputs;
/// version 4 may have weights with a layout.
pub const VERSIONS: RangeInclusive<u64> = 1..=4;
/// Initializers start at multiples of this in `constants.bin`, so that kernels may use them where they are mapped.
pub(crate) const INITIALIZER_ALIGNMENT: u64 = 64;

/// Instructions for a program's execution. Entries that are only informative are not decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Plan {
    /// Version of this structure.
    pub version: u64,
    /// Target the program was compiled for.
    pub target: String,
    /// Hardware family it was compiled for; `None` is the first of [`crate::hardware::FAMILIES`].
    #[serde(default)]
    pub hardware: Option<String>,
    /// Inputs in binding order.
    pub inputs: Vec<PlanTensor>,
    /// Outputs in binding order.
    pub outputs: Vec<PlanTensor>,
    /// Initializers that lie in `constants.bin`.
    pub initializers: Vec<Initializer>,
    /// True if the inputs' values decide how long an inference takes.
    #[serde(default)]
    pub loops: bool,
    /// Specializations, one per entry of `allowed_shapes`; empty when the tensors have the only dims.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// Libraries with operators of the graph.
    #[serde(default)]
    pub custom_op_libraries: Vec<CustomOpLibrary>,
    /// Operators of the device, in its own domain, that the graph has.
    #[serde(default)]
    pub own_operators: Vec<String>,
    /// True if outputs named `X_RetainedState` stay on the device as the next input `X`.
    #[serde(default)]
    pub retained_state: bool,
    /// True if callers may read and write the state between inferences.
    #[serde(default)]
    pub split_retained_state_io: bool,
    /// State of which the graph computes only the rows that change.
    #[serde(default)]
    pub state_rows: Option<StateRows>,
    /// Bytes of a section whose CRC is checked on its way in and out, 0 for whole buffers; `None` checks nothing.
    #[serde(default)]
    pub io_crc: Option<u64>,
    /// Devices that it is partitioned for; `None` where any will do.
    #[serde(default)]
    pub devices: Option<u32>,
    /// Places of tensors in DMA buffers. On the host the network descriptor has them, but no card is given
    /// one.
    #[serde(default)]
    pub places: Places,
    /// DMA buffer by which the host describes an inference to a card ([`Control`]).
    #[serde(default)]
    pub control_buffer: Option<usize>,
    /// Measurements; `None` measures nothing.
    #[serde(default)]
    pub stats: Option<StatsPlan>,
}

/// Dimensions of all tensors in one specialization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Variant {
    /// Per input.
    pub inputs: Vec<Vec<i64>>,
    /// Per output.
    pub outputs: Vec<Vec<i64>>,
}

/// One input or output of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PlanTensor {
    /// Tensor name.
    pub name: String,
    /// Type in the graph, which distinguishes `bool` from `int8`.
    pub dtype: Dtype,
    /// Dimensions; the largest of each where there are specializations.
    pub dims: Vec<i64>,
    /// Values per row where the bytes are MXINT8 blocks.
    #[serde(default)]
    pub mxint8: Option<u64>,
}

/// One initializer, used from the mapping.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
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
    /// How it is stored for the kernels of the device; the graph has no tensor of it. `None` of an initializer of the graph.
    #[serde(default)]
    pub layout: Option<String>,
    /// Elements that share a scale in a layout of quantized numbers, 0 where those of a row do.
    #[serde(default)]
    pub group: usize,
}

/// A library with custom operators.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CustomOpLibrary {
    /// File name, without folders.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// CRC-32 of its bytes.
    pub crc32: u32,
}

/// DMA buffer and byte offset of each tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Places {
    /// DMA buffer and offset of each input.
    pub inputs: Vec<(usize, u64)>,
    /// DMA buffer and offset of each output.
    pub outputs: Vec<(usize, u64)>,
}

/// Measurements, and the DMA buffer for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatsPlan {
    /// Level of the program.
    pub level: u64,
    /// Level of its operations.
    pub op_level: u64,
    /// Samples of an inference.
    pub batch_size: u32,
    /// DMA buffer that the statistics are written to.
    pub buffer: usize,
    /// Fingerprint of what is measured, in hexadecimal digits.
    pub fingerprint: String,
    /// True if bytes of memory are counted.
    pub ddr: bool,
    /// Events that are counted.
    pub pmu_events: Vec<u32>,
}

/// Tensor types by their ONNX names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
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
    /// Name in plans.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int16 => "int16",
            Self::Uint16 => "uint16",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Bool => "bool",
        }
    }

    /// Bytes of one element.
    pub const fn size_bytes(self) -> u64 {
        match self {
            Self::Int8 | Self::Uint8 | Self::Bool => 1,
            Self::Float16 | Self::Bfloat16 | Self::Int16 | Self::Uint16 => 2,
            Self::Float32 | Self::Int32 | Self::Uint32 => 4,
            Self::Float64 | Self::Int64 | Self::Uint64 => 8,
        }
    }

    /// Bytes of a dense tensor, `None` when the product overflows or a dimension is negative.
    pub fn dense_bytes(self, dims: &[i64]) -> Option<u64> {
        dims.iter().try_fold(self.size_bytes(), |product, &dim| product.checked_mul(u64::try_from(dim).ok()?))
    }
}

impl Plan {
    /// The plan of a `network.elf`; `None` of a program for silicon.
    pub fn of_elf(file: &[u8]) -> Result<Option<Self>, PlanError> {
        let Some(section) = elf::section(file, PLAN_SECTION)? else { return Ok(None) };
        Self::decode(file.get(section).unwrap_or_default()).map(Some)
    }

    /// Decodes the section.
    pub fn decode(json: &[u8]) -> Result<Self, PlanError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u64,
        }
        // Also what no entry of a plan holds has to be text.
        let json =
            std::str::from_utf8(json).map_err(|error| PlanError::Json { reason: error.to_string() })?;
        let decoded: Result<Self, _> = serde_json::from_str(json);
        // The entries of another version may have other types.
        let version = match &decoded {
            Ok(plan) => Some(plan.version),
            Err(_) => serde_json::from_str(json).ok().map(|Versioned { version }| version),
        };
        if let Some(found) = version.filter(|version| !VERSIONS.contains(version)) {
            return Err(PlanError::Version { found });
        }
        decoded.map_err(|error| PlanError::Json { reason: error.to_string() })
    }

    /// Name of the hardware family it was compiled for.
    pub fn family(&self) -> &str {
        self.hardware.as_deref().unwrap_or(crate::hardware::FAMILIES[0].name)
    }
}

impl StatsPlan {
    /// The fingerprint; zeros where the text is none, which no program has.
    pub fn fingerprint(&self) -> [u8; 16] {
        let text = &self.fingerprint;
        // A sign is no digit.
        let number =
            u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32 && !text.starts_with('+'));
        number.unwrap_or_default().to_be_bytes()
    }
}

/// The graph of a `network.elf`, if it has one.
pub fn graph(file: &[u8]) -> Result<Option<&[u8]>, QpcError> {
    Ok(elf::section(file, GRAPH_SECTION)?.and_then(|range| file.get(range)).filter(|graph| !graph.is_empty()))
}
