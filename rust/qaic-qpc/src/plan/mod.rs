//! The plan of a program for the `cpu` device: the compiler's decisions, as JSON in a section of `network.elf`
//! (docs/reference/cpu-program.md).
//!
//! [`Plan`] is its only reader. Validation and every load call the functions in this module that check the plan
//! against the other parts of its container.

mod checks;
mod control;
mod error;
mod initializer;
mod state_rows;

use std::ops::RangeInclusive;

use serde::Deserialize;

pub use control::{CONTROL_BYTES, Control};
pub use error::PlanError;
pub use initializer::StoredMatrix;
pub use state_rows::{RowTensor, RowUpdate, StateRows};

use crate::elf;
use crate::error::QpcError;

/// ELF section with the plan, as JSON.
pub const PLAN_SECTION: &str = "openqaic_plan";
/// ELF section with the ONNX graph. Its large initializers are in `constants.bin`.
pub const GRAPH_SECTION: &str = "openqaic_graph";
/// ELF section that describes the measured operations, in the same format as the container's.
pub const OPERATIONS_SECTION: &str = "openqaic_ops";
/// Supported versions. Version 2 adds specializations, retained state and encoded initializers, which a reader of
/// version 1 would ignore. Version 3 adds graphs that compute rows instead of retained outputs, and version 4 weights
/// with a layout.
pub const VERSIONS: RangeInclusive<u64> = 1..=4;
/// Alignment of initializers in `constants.bin`, so that kernels may use them in the mapped file.
pub(crate) const INITIALIZER_ALIGNMENT: u64 = 64;

/// Instructions for a program's execution. Purely informative entries are not decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Plan {
    /// Version of this structure.
    pub version: u64,
    /// Target the program was compiled for.
    pub target: String,
    /// Hardware family the program was compiled for; `None` is the first of [`crate::hardware::FAMILIES`].
    #[serde(default)]
    pub hardware: Option<String>,
    /// Inputs in binding order.
    pub inputs: Vec<PlanTensor>,
    /// Outputs in binding order.
    pub outputs: Vec<PlanTensor>,
    /// Initializers that are in `constants.bin`.
    pub initializers: Vec<Initializer>,
    /// True if the duration of an inference depends on the values of the inputs.
    #[serde(default)]
    pub loops: bool,
    /// Specializations, one per entry of `allowed_shapes`; empty if the tensors have fixed dims.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// Libraries with operators of the graph.
    #[serde(default)]
    pub custom_op_libraries: Vec<CustomOpLibrary>,
    /// Operators of the graph from the device's own domain.
    #[serde(default)]
    pub own_operators: Vec<String>,
    /// True if outputs named `X_RetainedState` stay on the device as the next input `X`.
    #[serde(default)]
    pub retained_state: bool,
    /// True if callers may read and write the state between inferences.
    #[serde(default)]
    pub split_retained_state_io: bool,
    /// States of which the graph computes only the changed rows.
    #[serde(default)]
    pub state_rows: Option<StateRows>,
    /// Section size in bytes for the CRCs of inputs and outputs; 0 means whole buffers, `None` disables the checks.
    #[serde(default)]
    pub io_crc: Option<u64>,
    /// Number of devices that the program is partitioned for; `None` if any number works.
    #[serde(default)]
    pub devices: Option<u32>,
    /// Locations of tensors in DMA buffers. The host also finds them in the network descriptor, but a card does not
    /// receive it.
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
    /// Dimensions of each input.
    pub inputs: Vec<Vec<i64>>,
    /// Dimensions of each output.
    pub outputs: Vec<Vec<i64>>,
}

/// One input or output of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PlanTensor {
    /// Tensor name.
    pub name: String,
    /// Type in the graph, which distinguishes `bool` from `int8`.
    pub dtype: Dtype,
    /// Dimensions; for specializations, the maximum of each.
    pub dims: Vec<i64>,
    /// Values per row if the bytes are MXINT8 blocks.
    #[serde(default)]
    pub mxint8: Option<u64>,
}

/// One initializer, which is used from the mapping.
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
    /// Number of bytes.
    pub size: u64,
    /// Format of the blocks; `None` if the bytes are elements of the type.
    #[serde(default)]
    pub encoding: Option<String>,
    /// Dimension along which the blocks run.
    #[serde(default)]
    pub axis: usize,
    /// Storage layout for the device's kernels; the graph then has no such tensor. `None` for an initializer of the
    /// graph.
    #[serde(default)]
    pub layout: Option<String>,
    /// Number of elements that share a scale in a layout of quantized numbers; 0 if a row has one scale.
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
    /// CRC-32 of the file.
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
    /// Measurement level of the program.
    pub level: u64,
    /// Measurement level of the operations.
    pub op_level: u64,
    /// Number of samples of an inference.
    pub batch_size: u32,
    /// DMA buffer that the statistics are written to.
    pub buffer: usize,
    /// Fingerprint of the measurements, in hexadecimal digits.
    pub fingerprint: String,
    /// True if memory traffic is counted in bytes.
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

    /// Bytes of a dense tensor; `None` if the product overflows or a dimension is negative.
    pub fn dense_bytes(self, dims: &[i64]) -> Option<u64> {
        dims.iter().try_fold(self.size_bytes(), |product, &dim| product.checked_mul(u64::try_from(dim).ok()?))
    }
}

impl Plan {
    /// Returns the plan of a `network.elf`; `None` for a program for silicon.
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
        // Unknown entries of a plan must be UTF-8 too.
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

    /// Name of the hardware family the program was compiled for.
    pub fn family(&self) -> &str {
        self.hardware.as_deref().unwrap_or(crate::hardware::FAMILIES[0].name)
    }
}

impl StatsPlan {
    /// Returns the fingerprint; zeros if the text is invalid. No program has a fingerprint of zeros.
    pub fn fingerprint(&self) -> [u8; 16] {
        let text = &self.fingerprint;
        // A sign is not a digit.
        let number =
            u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32 && !text.starts_with('+'));
        number.unwrap_or_default().to_be_bytes()
    }
}

/// Returns the graph of a `network.elf`, if it has one.
pub fn graph(file: &[u8]) -> Result<Option<&[u8]>, QpcError> {
    Ok(elf::section(file, GRAPH_SECTION)?.and_then(|range| file.get(range)).filter(|graph| !graph.is_empty()))
}
