//! The inputs and outputs of a container as arrays of a host program.

use std::collections::HashMap;
use std::ffi::CStr;

use qaic_qpc::plan::{Dtype, Plan, PlanError, PlanTensor};
use qaic_qpc::{ElementType, IoBinding, IoDescriptor, IoShapes, NetworkDesc, TensorShape, is_stats_output};

use super::mxint8::blocks_bytes;
use crate::error::RuntimeError;
use crate::image::Image;

/// Suffix of outputs that are the next value of an input.
const RETAINED_SUFFIX: &str = "_RetainedState";

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

    /// Returns the array type for an element type. bfloat16 values use an unsigned integer type for their bits,
    /// because the buffer protocol has no name for them.
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
pub struct TensorSpec {
    /// Name of the binding.
    pub name: String,
    /// Element type.
    pub dtype: ArrayType,
    /// Dimensions; empty for a scalar.
    pub dims: Vec<u64>,
    /// Bytes of a full array.
    pub size_bytes: u64,
    /// True if fewer elements may be given.
    pub partial: bool,
    /// True if the tensor belongs to the model.
    pub visible: bool,
    /// True if the device stores MXINT8 blocks along the last dimension instead of the array. Type, dims and size are
    /// those of the array, which is float16.
    pub mxint8: bool,
}

/// All inputs and outputs in binding order.
#[derive(Clone, Debug)]
pub struct TensorSpecs {
    /// Inputs.
    pub inputs: Vec<TensorSpec>,
    /// Outputs.
    pub outputs: Vec<TensorSpec>,
    /// Dims of all tensors in each permitted combination of shapes, in the order of `allowed_shapes`; empty if the
    /// tensors have fixed dims.
    pub variants: Vec<ShapeVariant>,
}

/// One permitted combination of shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeVariant {
    /// Dims of each input.
    pub inputs: Vec<Vec<u64>>,
    /// Dims of each output.
    pub outputs: Vec<Vec<u64>>,
}

/// An input whose next value is an output. The device may retain the value between inferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetainedPair {
    pub(crate) input: usize,
    /// Index among the outputs.
    pub(crate) output: usize,
}

/// Returns the tensors that a caller passes and receives.
///
/// Containers store booleans as 8-bit integers. A program compiled by this project records which integers are
/// booleans.
pub fn tensor_specs(image: &Image) -> Result<TensorSpecs, RuntimeError> {
    let plan = read_plan(image)?;
    let network = &image.network;
    let plan_tensors =
        |plan_tensors: fn(&Plan) -> &Vec<PlanTensor>| plan.map(plan_tensors).map_or(&[][..], Vec::as_slice);
    let (inputs_of_plan, outputs_of_plan) =
        (plan_tensors(|plan| &plan.inputs), plan_tensors(|plan| &plan.outputs));
    let inputs: Vec<_> = network
        .inputs
        .iter()
        .enumerate()
        .map(|(index, binding)| tensor(binding, &binding.io_initial, inputs_of_plan.get(index)))
        .collect::<Result<_, _>>()?;
    let outputs: Vec<_> = network
        .outputs
        .iter()
        .enumerate()
        .map(|(index, binding)| tensor(binding, &binding.io_transformed, outputs_of_plan.get(index)))
        .collect::<Result<_, _>>()?;
    let mut variants = variant_dims(network)?;
    for variant in &mut variants {
        decode_variant(&mut variant.inputs, &inputs, inputs_of_plan);
        decode_variant(&mut variant.outputs, &outputs, outputs_of_plan);
    }
    Ok(TensorSpecs { inputs, outputs, variants })
}

/// Replaces the dims of blocks with the dims of their arrays.
fn decode_variant(dims: &mut [Vec<u64>], tensors: &[TensorSpec], plan_tensors: &[PlanTensor]) {
    for ((dims, tensor), plan_tensor) in dims.iter_mut().zip(tensors).zip(plan_tensors) {
        if tensor.mxint8 {
            decode_dims(dims, Some(plan_tensor));
        }
    }
}

/// Replaces the bytes of a row of blocks with the number of their values. Returns true if there are blocks.
fn decode_dims(dims: &mut [u64], plan_tensor: Option<&PlanTensor>) -> bool {
    let (Some(last), Some(columns)) =
        (dims.last_mut(), plan_tensor.and_then(|plan_tensor| plan_tensor.mxint8))
    else {
        return false;
    };
    let row = usize::try_from(columns).ok().and_then(|columns| blocks_bytes(1, columns));
    let is_blocks = row.is_some_and(|bytes| bytes as u64 == *last);
    if is_blocks {
        *last = columns;
    }
    is_blocks
}

fn variant_dims(network: &NetworkDesc) -> Result<Vec<ShapeVariant>, RuntimeError> {
    network.check_allowed_shapes()?;
    let names: Vec<_> = network.inputs.iter().chain(&network.outputs).map(|binding| &binding.name).collect();
    let variant = |entry: &IoShapes| {
        let dims = |(name, shape): (&&String, &TensorShape)| {
            let unsigned = shape.dims.iter().map(|&dim| u64::try_from(dim)).collect::<Result<Vec<_>, _>>();
            unsigned.map_err(|_| {
                RuntimeError::argument(format!(
                    "binding `{name}`: permitted dims {:?} are negative",
                    shape.dims
                ))
            })
        };
        let mut inputs = names.iter().zip(&entry.shapes).map(dims).collect::<Result<Vec<_>, _>>()?;
        let outputs = inputs.split_off(network.inputs.len());
        Ok(ShapeVariant { inputs, outputs })
    };
    network.allowed_shapes.iter().map(variant).collect()
}

/// Returns the inputs that the device can retain between inferences: output `X_RetainedState` is the next value of
/// input `X`.
///
/// A program compiled by this project has retained inputs only if that was requested. For other programs, the names
/// decide. Both tensors must have one type and, in every permitted combination, one shape.
pub(crate) fn retained_pairs(image: &Image) -> Result<Vec<RetainedPair>, RuntimeError> {
    let network = &image.network;
    let bases = network.outputs.iter().enumerate().filter_map(|(output, binding)| {
        binding.name.strip_suffix(RETAINED_SUFFIX).map(|base| (output, base))
    });
    let bases: Vec<_> = bases.collect();
    // The plan is read only if it can contain the answer.
    if bases.is_empty() || read_plan(image)?.is_some_and(|plan| !plan.retained_state) {
        return Ok(Vec::new());
    }
    network.check_allowed_shapes()?;
    // If two inputs have the same name, the first one is used, as in every look-up by name.
    let mut by_name = HashMap::new();
    for (input, binding) in network.inputs.iter().enumerate() {
        by_name.entry(binding.name.as_str()).or_insert(input);
    }
    let pair = |(output, base): (usize, &str)| {
        // Removed, so that an input has at most one next value.
        let input = by_name.remove(base)?;
        let (from, to) =
            (&network.inputs.get(input)?.io_initial, &network.outputs.get(output)?.io_transformed);
        let same_everywhere = network.allowed_shapes.iter().all(|entry| {
            entry.shapes.get(input).map(|shape| &shape.dims)
                == entry.shapes.get(network.inputs.len() + output).map(|shape| &shape.dims)
        });
        (from.dtype == to.dtype && from.dims == to.dims && same_everywhere)
            .then_some(RetainedPair { input, output })
    };
    Ok(bases.into_iter().filter_map(pair).collect())
}

/// Options of a program other than its computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IoOptions {
    /// Section size in bytes for the CRCs of inputs and outputs; 0 means whole buffers, `None` disables the checks.
    pub io_crc: Option<usize>,
    /// True if callers may read and write the state between inferences.
    pub split_state: bool,
}

/// Returns the options in the plan of a container; the defaults if there is no plan.
pub(crate) fn io_options(image: &Image) -> Result<IoOptions, RuntimeError> {
    let Some(plan) = read_plan(image)? else { return Ok(IoOptions::default()) };
    let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
    Ok(IoOptions { io_crc: plan.io_crc.map(bytes), split_state: plan.split_retained_state_io })
}

fn read_plan(image: &Image) -> Result<Option<&Plan>, RuntimeError> {
    match image.plan() {
        // A container for a card may have an ELF that this parser does not support; it has no plan.
        Err(PlanError::Qpc(_)) => Ok(None),
        plan => Ok(plan?),
    }
}

fn tensor(
    binding: &IoBinding,
    descriptor: &IoDescriptor,
    plan_tensor: Option<&PlanTensor>,
) -> Result<TensorSpec, RuntimeError> {
    let invalid = |what: String| RuntimeError::argument(format!("binding `{}`: {what}", binding.name));
    let dtype = ArrayType::of(descriptor.dtype)
        .ok_or_else(|| invalid(format!("element type {} is unknown", descriptor.dtype.code())))?;
    let mut dims = descriptor
        .dims
        .iter()
        .map(|&dim| {
            u64::try_from(dim).map_err(|_| invalid(format!("dims {:?} are negative", descriptor.dims)))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mxint8 = dtype == ArrayType::UInt8 && decode_dims(&mut dims, plan_tensor);
    let is_bool = plan_tensor.is_some_and(|plan_tensor| plan_tensor.dtype == Dtype::Bool);
    let dtype = match dtype {
        ArrayType::Int8 if is_bool => ArrayType::Bool,
        // Blocks have no type and shape of an array.
        _ if mxint8 => ArrayType::Float16,
        other => other,
    };
    let size_bytes = dims
        .iter()
        .try_fold(dtype.numpy().2 as u64, |product, &dim| product.checked_mul(dim))
        .ok_or_else(|| invalid(format!("dims {dims:?} overflow")))?;
    Ok(TensorSpec {
        name: binding.name.clone(),
        dtype,
        dims,
        size_bytes,
        partial: binding.is_partial_allowed,
        // The high-level interface never shows statistics.
        visible: !is_stats_output(&binding.name),
        mxint8,
    })
}
