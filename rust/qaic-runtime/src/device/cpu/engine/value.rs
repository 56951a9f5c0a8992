//! Tensors of the engine over memory of the host, and the description of a graph's inputs and outputs.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;

use ort_sys::{ONNXTensorElementDataType, OrtValue};
use qaic_qpc::plan::{Dtype, PlanTensor, Variant};

use super::library::{Engine, check};

/// An input or output of the graph in all its shapes.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: CString,
    pub(super) dtype: ONNXTensorElementDataType,
    // Size of an element.
    pub(super) item_bytes: usize,
    // Distinct shapes.
    pub(super) shapes: Vec<Shape>,
    // Index of the shape of each specialization; empty if there is only one.
    by_variant: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Shape {
    dims: Vec<i64>,
    pub(super) size_bytes: usize,
}

/// A tensor over memory that another object owns.
#[derive(Debug)]
pub(super) struct Value {
    engine: &'static Engine,
    pub(super) raw: *mut OrtValue,
}

impl Value {
    /// Creates a tensor at `address`.
    ///
    /// # Safety
    ///
    /// From `address` on, `shape.size_bytes` bytes are valid, for writes too if it becomes an output, and aligned for the
    /// type whenever a session runs with the value.
    pub(super) unsafe fn new(
        engine: &'static Engine,
        dtype: ONNXTensorElementDataType,
        shape: &Shape,
        address: *mut u8,
    ) -> Result<Self, String> {
        let mut raw = ptr::null_mut();
        // SAFETY: dims describe exactly `size_bytes` bytes, and the value only records pointers.
        let status = unsafe {
            (engine.api.CreateTensorWithDataAsOrtValue)(
                engine.host_memory,
                address.cast::<c_void>(),
                shape.size_bytes,
                shape.dims.as_ptr(),
                shape.dims.len(),
                dtype,
                &raw mut raw,
            )
        };
        check(engine.api, status)?;
        Ok(Self { engine, raw })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: created by `Value::new`, released once; a binding that still names it holds its own reference.
        unsafe { (self.engine.api.ReleaseValue)(self.raw) };
    }
}

impl Tensor {
    /// Creates the tensors of one side; `dims_of` returns their dims in a specialization.
    pub(super) fn of_edges(
        plan_tensors: &[PlanTensor],
        variants: &[Variant],
        dims_of: impl Fn(&Variant) -> &[Vec<i64>],
    ) -> Result<Vec<Self>, String> {
        let tensor = |(index, plan_tensor): (usize, &PlanTensor)| {
            let mut tensor = Self {
                name: c_name(&plan_tensor.name)?,
                dtype: element_type(plan_tensor.dtype),
                // The size is at most 8.
                item_bytes: usize::try_from(plan_tensor.dtype.size_bytes()).unwrap_or(8),
                shapes: Vec::new(),
                by_variant: Vec::new(),
            };
            if variants.is_empty() {
                tensor.shapes.push(Shape::new(&plan_tensor.name, plan_tensor.dtype, &plan_tensor.dims)?);
            }
            let mut known = HashMap::new();
            for variant in variants {
                let dims = dims_of(variant).get(index).ok_or_else(|| {
                    format!("a specialization has no dims for tensor `{}`", plan_tensor.name)
                })?;
                let number = *known.entry(dims).or_insert(tensor.shapes.len());
                if number == tensor.shapes.len() {
                    tensor.shapes.push(Shape::new(&plan_tensor.name, plan_tensor.dtype, dims)?);
                }
                tensor.by_variant.push(number);
            }
            Ok(tensor)
        };
        plan_tensors.iter().enumerate().map(tensor).collect()
    }

    /// Index of the shape of the tensor in a specialization.
    pub(super) fn shape_in(&self, variant: usize) -> usize {
        self.by_variant.get(variant).copied().unwrap_or(0)
    }
}

impl Shape {
    pub(super) fn new(name: &str, dtype: Dtype, dims: &[i64]) -> Result<Self, String> {
        let size_bytes = dtype
            .dense_bytes(dims)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(|| format!("tensor `{name}`: dims {dims:?} are not a dense shape"))?;
        Ok(Self { dims: dims.to_vec(), size_bytes })
    }
}

pub(super) fn c_name(name: &str) -> Result<CString, String> {
    CString::new(name).map_err(|_| format!("tensor name {name:?} contains a NUL"))
}

pub(super) const fn element_type(dtype: Dtype) -> ONNXTensorElementDataType {
    use ONNXTensorElementDataType as E;
    match dtype {
        Dtype::Float32 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        Dtype::Float64 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        Dtype::Float16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        Dtype::Bfloat16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
        Dtype::Int8 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        Dtype::Uint8 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        Dtype::Int16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        Dtype::Uint16 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        Dtype::Int32 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        Dtype::Uint32 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        Dtype::Int64 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        Dtype::Uint64 => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        Dtype::Bool => E::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
    }
}
