//! The tensors of a program as arrays: their description for callers, their memory, and their form on the device.

use std::ffi::CStr;
use std::sync::Arc;

use qaic_mem::{HostSlice, HostSliceMut, Storage, StoragePool};

use crate::binding::{ArrayLayout, BindingSpec, BindingSpecs, TensorShape, mxint8};
use crate::error::RuntimeError;
use crate::image::Image;

/// All tensors of a program, in binding order.
#[derive(Debug)]
pub struct ArrayTensors {
    /// Requirements of the arrays, which are never replaced: the forms of the tensors follow from them.
    pub specs: BindingSpecs,
    inputs: Vec<ArrayTensor>,
    outputs: Vec<ArrayTensor>,
}

/// One input or output.
#[derive(Debug)]
pub(super) struct ArrayTensor {
    /// Values per row of the tensor's MXINT8 blocks, if the device stores blocks.
    columns: Option<usize>,
    // Indexed by combination of shapes.
    forms: Vec<Arc<ArrayForm>>,
}

/// Shape, strides and type of a tensor's arrays in one of its shapes.
#[derive(Debug)]
struct ArrayForm {
    layout: Arc<ArrayLayout>,
    pool: Arc<StoragePool>,
    /// Pool of memory for the device's form of the tensor, if it differs from the array.
    blocks_pool: Option<Arc<StoragePool>>,
}

impl ArrayTensors {
    /// Creates the tensors of a container. `unused` is the number of buffers per tensor that are kept for later
    /// inferences.
    pub fn new(image: &Image, unused: usize) -> Result<Self, RuntimeError> {
        let specs = BindingSpecs::of_arrays(image)?;
        let tensors = |list: &[BindingSpec]| {
            list.iter().map(|spec| ArrayTensor::new(spec, specs.variants, unused)).collect()
        };
        let (inputs, outputs) = (tensors(specs.inputs()), tensors(specs.outputs()));
        Ok(Self { specs, inputs, outputs })
    }

    /// Memory layout of an output's arrays, in a combination of shapes.
    pub fn output_layout(&self, output: usize, variant: usize) -> Result<&Arc<ArrayLayout>, RuntimeError> {
        let tensor = self
            .output(output)
            .ok_or_else(|| RuntimeError::internal(format!("there is no output {output}")))?;
        Ok(&tensor.form(variant).layout)
    }

    /// Returns the array of an output, made from the memory that the device wrote.
    pub fn output_array(
        &self,
        output: usize,
        variant: usize,
        written: Storage,
    ) -> Result<Storage, RuntimeError> {
        match self.output(output).filter(|tensor| tensor.has_blocks()) {
            Some(tensor) => tensor.array(variant, &written),
            None => Ok(written),
        }
    }

    pub(super) fn input(&self, input: usize) -> Option<&ArrayTensor> {
        self.inputs.get(input)
    }

    pub(super) fn output(&self, output: usize) -> Option<&ArrayTensor> {
        self.outputs.get(output)
    }
}

impl ArrayTensor {
    fn new(spec: &BindingSpec, variants: usize, unused: usize) -> Self {
        let mut made: Vec<(&TensorShape, Arc<ArrayForm>)> = Vec::new();
        for variant in 0..variants {
            let shape = spec.shape(variant);
            // Equal shapes share their buffers.
            let same = made.iter().find(|(other, _)| *other == shape).map(|(_, form)| Arc::clone(form));
            made.push((shape, same.unwrap_or_else(|| Arc::new(ArrayForm::new(spec, shape, unused)))));
        }
        Self { columns: spec.block_columns, forms: made.into_iter().map(|(_, form)| form).collect() }
    }

    /// Array form of the tensor in a combination of shapes.
    fn form(&self, variant: usize) -> &ArrayForm {
        // There is at least one combination, and one form for each.
        self.forms.get(variant).unwrap_or(&self.forms[0])
    }

    /// Returns memory for the device's form of the tensor.
    pub(super) fn device_memory(&self, variant: usize) -> Result<Storage, RuntimeError> {
        let form = self.form(variant);
        Ok(form.blocks_pool.as_ref().unwrap_or(&form.pool).take()?)
    }

    /// Returns the data that the device reads in place of `array`; `None` if it reads the array itself.
    pub(super) fn for_device(
        &self,
        variant: usize,
        array: HostSlice<'_>,
    ) -> Result<Option<Storage>, RuntimeError> {
        let Some(columns) = self.columns else { return Ok(None) };
        let mut blocks = self.device_memory(variant)?;
        encode(columns, array, blocks.memory_mut());
        Ok(Some(blocks))
    }

    /// Returns a new array with the values of the blocks that the device wrote.
    pub(super) fn array(&self, variant: usize, written: &Storage) -> Result<Storage, RuntimeError> {
        let mut array = self.form(variant).pool.take()?;
        self.bring(written, array.memory_mut());
        Ok(array)
    }

    /// Copies the device's output to the caller's array, with conversion if needed.
    pub(super) fn bring(&self, written: &Storage, mut array: HostSliceMut<'_>) {
        match self.columns {
            Some(columns) => decode(columns, written.memory(), array),
            None => {
                array.copy_from(written.memory());
            }
        }
    }

    /// Returns true if the device stores the tensor in another form than its arrays.
    pub(super) fn has_blocks(&self) -> bool {
        self.columns.is_some()
    }
}

impl ArrayForm {
    fn new(spec: &BindingSpec, shape: &TensorShape, unused: usize) -> Self {
        let blocks = shape.block_bytes().filter(|_| spec.block_columns.is_some());
        Self {
            layout: spec.layout(&shape.dims),
            pool: StoragePool::new(shape.bytes, unused),
            blocks_pool: blocks.map(|bytes| StoragePool::new(bytes, unused)),
        }
    }
}

impl BindingSpec {
    /// Format of an element in the buffer protocol, and name of its type.
    pub fn element_type(&self) -> (&'static CStr, &'static str) {
        let (format, name, _) = self.dtype.map_or((c"B", "uint8", 1), crate::binding::ArrayType::numpy);
        (format, name)
    }

    /// Memory layout of arrays with these dims.
    pub(crate) fn layout(&self, dims: &[usize]) -> Arc<ArrayLayout> {
        ArrayLayout::new(dims, self.element_type().0, self.largest.item_bytes)
    }
}

/// Fills `blocks` with the blocks of a float16 array whose rows have `columns` values. Values that do not fit are
/// ignored.
pub(super) fn encode(columns: usize, array: HostSlice<'_>, blocks: HostSliceMut<'_>) {
    mxint8::to_blocks::<mxint8::Half>(columns, array, blocks);
}

/// Fills a float16 array with the values of its blocks. Values beyond the range of float16 become infinite.
pub(super) fn decode(columns: usize, blocks: HostSlice<'_>, array: HostSliceMut<'_>) {
    mxint8::from_blocks::<mxint8::Half>(columns, blocks, array);
}
