//! Defects of a plan.

use thiserror::Error;

use super::{CONTROL_BYTES, PLAN_SECTION, VERSIONS};
use crate::error::{QpcError, counted};

/// Reason why a plan cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The container is malformed, or the position of its weights is invalid.
    #[error(transparent)]
    Qpc(#[from] QpcError),
    /// The section is not JSON, or lacks an entry.
    #[error("section {PLAN_SECTION} is not a plan: {reason}")]
    #[allow(missing_docs)]
    Json { reason: String },
    /// The plan has another version.
    #[error(
        "section {PLAN_SECTION} has version {found}, this library reads versions {} to {}",
        VERSIONS.start(),
        VERSIONS.end()
    )]
    #[allow(missing_docs)]
    Version { found: u64 },
    /// Plan and network descriptor have different numbers of tensors.
    #[error(
        "the plan has {} and {}, the network descriptor {expected_inputs} and {expected_outputs}",
        counted(inputs, "input"),
        counted(outputs, "output")
    )]
    #[allow(missing_docs)]
    TensorCount { inputs: usize, outputs: usize, expected_inputs: usize, expected_outputs: usize },
    /// An input may be partial.
    #[error("input `{input}` accepts partial data, which no graph supports")]
    #[allow(missing_docs)]
    PartialInput { input: String },
    /// A tensor of the plan does not match the binding at its index.
    #[error("the plan has tensor {tensor}, the network descriptor has binding {binding}")]
    #[allow(missing_docs)]
    Tensor { binding: String, tensor: String },
    /// Plan and network descriptor have different numbers of specializations.
    #[error("the plan has {}, the network descriptor {expected}", counted(found, "specialization"))]
    #[allow(missing_docs)]
    VariantCount { found: usize, expected: usize },
    /// A specialization does not match the permitted combination that selects it.
    #[error("specialization {number} of the plan is not entry {number} of allowed_shapes")]
    #[allow(missing_docs)]
    Variant { number: usize },
    /// The computed rows of a state cannot be written into the state.
    #[error("retained output `{name}`: found {found}; rows of the state and int64 index tuples are expected")]
    #[allow(missing_docs)]
    StateRows { name: String, found: String },
    /// The bytes of an initializer are outside of the constants.
    #[error(
        "initializer `{name}`: the range of {size} bytes at offset {offset} is outside constants.bin, which has {constants} \
         bytes; compile the model again"
    )]
    #[allow(missing_docs)]
    Initializer { name: String, size: u64, offset: u64, constants: usize },
    /// An initializer has a layout, an encoding or groups that no kernel reads.
    #[error("initializer `{name}`: found {found}")]
    #[allow(missing_docs)]
    Unreadable { name: String, found: String },
    /// The size of an initializer is not that of its type, dims and layout.
    #[error("initializer `{name}`: found {size} bytes of {format} with dims {dims:?}; expected {expected}")]
    #[allow(missing_docs)]
    Size { name: String, size: u64, format: String, dims: Vec<i64>, expected: String },
    /// Two initializers have one name.
    #[error("initializer `{name}` occurs twice; compile the model again")]
    #[allow(missing_docs)]
    Duplicate { name: String },
    /// Two initializers share bytes.
    #[error(
        "initializer `{name}` begins at offset {offset}, inside of initializer `{other}`; compile the model again"
    )]
    #[allow(missing_docs)]
    Overlap { name: String, other: String, offset: u64 },
    /// The control buffer has no room for the host's settings.
    #[error(
        "its control buffer is DMA buffer {number}, {found}; {CONTROL_BYTES} bytes of input without a tensor are \
         expected"
    )]
    #[allow(missing_docs)]
    ControlBuffer { number: usize, found: String },
}

impl PlanError {
    /// Stable name for programs, as in validation reports.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Qpc(error) => error.code(),
            Self::Json { .. } => "qpc.cpu_plan",
            Self::Version { .. } => "qpc.cpu_plan_version",
            Self::TensorCount { .. } | Self::PartialInput { .. } | Self::Tensor { .. } => {
                "qpc.cpu_plan_edges"
            }
            Self::VariantCount { .. } | Self::Variant { .. } => "qpc.cpu_plan_variants",
            Self::StateRows { .. } => "qpc.cpu_plan_state_rows",
            Self::Initializer { .. } => "qpc.initializer_out_of_bounds",
            Self::Unreadable { .. } => "qpc.initializer_form",
            Self::Size { .. } => "qpc.initializer_size",
            Self::Duplicate { .. } => "qpc.duplicate_initializer",
            Self::Overlap { .. } => "qpc.initializers_overlap",
            Self::ControlBuffer { .. } => "qpc.control_buffer",
        }
    }
}
