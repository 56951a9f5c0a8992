//! The inputs and outputs of a container as arrays of a host program.

use std::ffi::CStr;

use qaic_qpc::container::names;
use qaic_qpc::dtype::ElementType;
use qaic_qpc::elf;
use qaic_qpc::network_desc::{IoBinding, IoDescriptor};

use crate::device::cpu::plan::{self, Dtype, Plan};
use crate::error::RuntimeError;
use crate::image::Image;

/// Output that carries statistics; users of the high-level interface never see it (python-api §A.2.1).
const STATS_OUTPUT: &str = "aiccyclecounts";

/// Element types of arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ArrayType {
    Float32,
    Float16,
    Int8,
    UInt8,
    Int16,
    UInt16,
    Int32,
    Int64,
    Bool,
}

impl ArrayType {
    /// Buffer-protocol format, numpy name and bytes of one element.
    pub const fn numpy(self) -> (&'static CStr, &'static str, usize) {
        match self {
            Self::Float32 => (c"f", "float32", 4),
            Self::Float16 => (c"e", "float16", 2),
            Self::Int8 => (c"b", "int8", 1),
            Self::UInt8 => (c"B", "uint8", 1),
            Self::Int16 => (c"h", "int16", 2),
            Self::UInt16 => (c"H", "uint16", 2),
            Self::Int32 => (c"i", "int32", 4),
            Self::Int64 => (c"q", "int64", 8),
            Self::Bool => (c"?", "bool", 1),
        }
    }

    /// The array type that carries an element type. Brain floats travel as the unsigned integers of their bits, because
    /// the buffer protocol has no name for them.
    const fn of(dtype: ElementType) -> Option<Self> {
        match dtype {
            ElementType::Float32 => Some(Self::Float32),
            ElementType::Float16 => Some(Self::Float16),
            ElementType::Int8Q | ElementType::Int8 => Some(Self::Int8),
            ElementType::UInt8Q => Some(Self::UInt8),
            ElementType::Int16Q => Some(Self::Int16),
            ElementType::BFloat16 => Some(Self::UInt16),
            ElementType::Int32Q | ElementType::Int32Index => Some(Self::Int32),
            ElementType::Int64Index => Some(Self::Int64),
            ElementType::Unknown(_) => None,
        }
    }
}

/// One input or output.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Binding name.
    pub name: String,
    /// Element type.
    pub dtype: ArrayType,
    /// Dimensions; empty for a scalar.
    pub dims: Vec<u64>,
    /// Bytes of a full array.
    pub size_bytes: u64,
    /// Whether fewer elements may be given.
    pub partial: bool,
    /// Whether it is a tensor of the model.
    pub visible: bool,
}

/// All inputs and outputs in binding order.
#[derive(Clone, Debug)]
pub struct UserTensors {
    /// Inputs.
    pub inputs: Vec<Tensor>,
    /// Outputs.
    pub outputs: Vec<Tensor>,
    /// Whether one inference tells how long the next one takes. Not so where the values of the inputs decide, nor for
    /// a program compiled elsewhere, of which nothing is known.
    pub steady: bool,
}

/// The tensors a caller passes and gets.
///
/// The container stores booleans as 8-bit integers; a program compiled here remembers which they are.
pub fn user_tensors(image: &Image) -> Result<UserTensors, RuntimeError> {
    let plan = read_plan(image)?;
    let is_bool = |edges: Option<&Vec<plan::Edge>>, index: usize| {
        edges.and_then(|edges| edges.get(index)).is_some_and(|edge| edge.dtype == Dtype::Bool)
    };
    let network = image.network();
    let inputs = network
        .inputs
        .iter()
        .enumerate()
        .map(|(index, binding)| {
            tensor(binding, &binding.io_initial, is_bool(plan.as_ref().map(|plan| &plan.inputs), index))
        })
        .collect::<Result<_, _>>()?;
    let outputs = network
        .outputs
        .iter()
        .enumerate()
        .map(|(index, binding)| {
            tensor(binding, &binding.io_transformed, is_bool(plan.as_ref().map(|plan| &plan.outputs), index))
        })
        .collect::<Result<_, _>>()?;
    Ok(UserTensors { inputs, outputs, steady: plan.is_some_and(|plan| !plan.loops) })
}

fn read_plan(image: &Image) -> Result<Option<Plan>, RuntimeError> {
    let elf_bytes = image.segment(names::NETWORK_ELF).unwrap_or_default();
    // A container for a card may hold an ELF that is not ours to judge; it simply has no plan.
    let Ok(Some(range)) = elf::section(elf_bytes, plan::PLAN_SECTION) else { return Ok(None) };
    elf_bytes.get(range).map(Plan::decode).transpose()
}

fn tensor(binding: &IoBinding, descriptor: &IoDescriptor, is_bool: bool) -> Result<Tensor, RuntimeError> {
    let invalid =
        |what: String| RuntimeError::Argument { what: format!("binding `{}`: {what}", binding.name) };
    let dtype = ArrayType::of(descriptor.dtype)
        .ok_or_else(|| invalid(format!("element type {} is not known", descriptor.dtype.code())))?;
    let dims = descriptor
        .dims
        .iter()
        .map(|&dim| {
            u64::try_from(dim).map_err(|_| invalid(format!("dims {:?} are negative", descriptor.dims)))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let size_bytes = dims
        .iter()
        .try_fold(dtype.numpy().2 as u64, |product, &dim| product.checked_mul(dim))
        .ok_or_else(|| invalid(format!("dims {dims:?} overflow")))?;
    Ok(Tensor {
        name: binding.name.clone(),
        dtype: if is_bool && dtype == ArrayType::Int8 { ArrayType::Bool } else { dtype },
        dims,
        size_bytes,
        partial: binding.is_partial_allowed,
        visible: binding.name != STATS_OUTPUT,
    })
}
