//! Requirements of a program's bindings.

use qaic_mem::SharedMemory;
use qaic_qpc::user_mappings;
use qaic_quant::mx::MxFormat;

use super::{Argument, ArgumentError, GivenShape};
use crate::binding::{ArrayType, TensorSpec, retained_pairs, tensor_specs};
use crate::error::{InputError, RuntimeError};
use crate::image::Image;
use crate::program::Program;

/// Requirements of a program: inputs, then outputs.
#[derive(Debug)]
pub struct BindingSpecs {
    pub(super) list: Vec<BindingSpec>,
    inputs: usize,
    /// Number of permitted combinations of shapes; at least one.
    pub variants: usize,
    /// True if the program was compiled for several combinations.
    pub(super) is_dynamic: bool,
}

/// Requirements of one binding.
#[derive(Debug)]
pub struct BindingSpec {
    /// Name of the binding.
    pub name: String,
    /// True for an input.
    pub is_input: bool,
    /// Type of the elements of arrays. For buffers, only the element size matters.
    pub dtype: Option<ArrayType>,
    /// True if fewer elements may be given, with any shapes.
    pub is_partial: bool,
    /// True if the tensor belongs to the model.
    pub is_visible: bool,
    /// Index of the input whose value the device retains, if this binding is that input or its next value.
    pub retained: Option<usize>,
    /// Values per row of the device's MXINT8 blocks, if the device stores blocks instead of an array.
    pub block_columns: Option<usize>,
    /// The largest shape, which is shown to callers and has room for every combination.
    pub largest: TensorShape,
    // Indexed by combination of shapes.
    pub(super) variants: Vec<TensorShape>,
}

/// A tensor in one of its shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Bytes of one element.
    pub item_bytes: usize,
    /// Elements in each dim; empty for a scalar.
    pub dims: Vec<usize>,
    /// Bytes of all elements.
    pub bytes: usize,
}

/// A buffer without type and shape.
#[derive(Clone, Copy, Debug)]
pub struct BufferFacts {
    /// Number of bytes.
    pub len: usize,
    /// True if the memory must not be written.
    pub is_readonly: bool,
    /// True if the binding occupies a whole DMA buffer. The DMA buffer may be a few bytes larger than the tensor.
    pub is_whole_dma_buffer: bool,
}

impl From<&SharedMemory> for BufferFacts {
    fn from(memory: &SharedMemory) -> Self {
        let is_whole_dma_buffer = memory.dma_buf().is_some();
        Self { len: memory.len(), is_readonly: memory.is_readonly(), is_whole_dma_buffer }
    }
}

impl BindingSpecs {
    /// Returns the requirements for arrays, which must have the right types and shapes.
    pub(crate) fn of_arrays(image: &Image) -> Result<Self, RuntimeError> {
        let specs = tensor_specs(image)?;
        let pairs = retained_pairs(image)?;
        let variants = specs.variants.len();
        let mut list = Vec::with_capacity(specs.inputs.len() + specs.outputs.len());
        for (index, tensor) in specs.inputs.iter().enumerate() {
            let retained = pairs.iter().any(|pair| pair.input == index).then_some(index);
            let dims = specs.variants.iter().filter_map(|variant| variant.inputs.get(index));
            list.push(BindingSpec::of_array(tensor, true, dims, retained)?);
        }
        for (index, tensor) in specs.outputs.iter().enumerate() {
            let retained = pairs.iter().find(|pair| pair.output == index).map(|pair| pair.input);
            let dims = specs.variants.iter().filter_map(|variant| variant.outputs.get(index));
            list.push(BindingSpec::of_array(tensor, false, dims, retained)?);
        }
        Ok(Self { list, inputs: specs.inputs.len(), variants: variants.max(1), is_dynamic: variants > 0 })
    }

    /// Returns the requirements for buffers, which must have the right sizes.
    pub fn of_buffers(program: &Program) -> Result<Self, RuntimeError> {
        let network = &program.image.network;
        let inputs = network.inputs.len();
        let tensors = network.inputs.iter().map(|binding| &binding.io_initial);
        let tensors = tensors.chain(network.outputs.iter().map(|binding| &binding.io_transformed));
        let allowed = &network.allowed_shapes;
        let list =
            user_mappings(network)?.into_iter().zip(tensors).enumerate().map(|(index, (mapping, tensor))| {
                let is_input = index < inputs;
                let shape = |item_bytes: Option<u64>, dims: &[i32], bytes| TensorShape {
                    item_bytes: item_bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(1),
                    dims: dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect(),
                    bytes,
                };
                let variants = program.variants.iter().enumerate().map(|(variant, plan)| {
                    let transfers = if is_input { &plan.inputs } else { &plan.outputs };
                    let position = if is_input { index } else { index - inputs };
                    let bytes = transfers.get(position).map_or(0, |transfer| transfer.user_bytes);
                    match allowed.get(variant).and_then(|entry| entry.shapes.get(index)) {
                        Some(entry) => shape(entry.dtype.size_bytes(), &entry.dims, bytes),
                        None => shape(tensor.dtype.size_bytes(), &tensor.dims, bytes),
                    }
                });
                let pair = program
                    .retained
                    .iter()
                    .find(|pair| if is_input { pair.input == index } else { pair.output + inputs == index });
                BindingSpec {
                    is_input,
                    dtype: None,
                    is_partial: mapping.is_partial_buffer_allowed,
                    is_visible: true,
                    retained: pair.map(|pair| pair.input),
                    block_columns: None,
                    largest: shape(
                        tensor.dtype.size_bytes(),
                        &tensor.dims,
                        usize::try_from(mapping.size).unwrap_or(usize::MAX),
                    ),
                    variants: variants.collect(),
                    name: mapping.buffer_name,
                }
            });
        Ok(Self {
            list: list.collect(),
            inputs,
            variants: program.variants.len().max(1),
            is_dynamic: !allowed.is_empty(),
        })
    }

    #[cfg(test)]
    pub(super) fn of_list(list: Vec<BindingSpec>, inputs: usize, is_dynamic: bool) -> Self {
        let variants = list.first().map_or(1, |spec| spec.variants.len());
        Self { list, inputs, variants, is_dynamic }
    }

    /// Number of bindings.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// All bindings, inputs then outputs.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, BindingSpec> {
        self.list.iter()
    }

    /// The inputs.
    pub fn inputs(&self) -> &[BindingSpec] {
        self.list.get(..self.inputs).unwrap_or_default()
    }

    /// The outputs.
    pub fn outputs(&self) -> &[BindingSpec] {
        self.list.get(self.inputs..).unwrap_or_default()
    }

    /// The binding with this index.
    pub fn get(&self, index: usize) -> Result<&BindingSpec, RuntimeError> {
        self.list.get(index).ok_or_else(|| self.unknown(index))
    }

    /// Converts a caller's index to a position.
    pub fn position(&self, index: i64) -> Result<usize, RuntimeError> {
        let position = usize::try_from(index).ok().filter(|&position| position < self.list.len());
        position.ok_or_else(|| self.unknown(index))
    }

    fn unknown(&self, index: impl std::fmt::Display) -> RuntimeError {
        let count = self.list.len();
        RuntimeError::argument(format!(
            "binding {index} does not exist; the program has {count}, numbered from 0"
        ))
    }

    /// Returns true if the device retains values between inferences.
    pub(crate) fn has_state(&self) -> bool {
        self.inputs().iter().any(|spec| spec.retained.is_some())
    }

    /// Fails for several activations of a program with retained values, because each activation would have its own
    /// values.
    pub fn check_activations(&self, activations: u32) -> Result<(), ArgumentError> {
        if activations > 1 && self.has_state() {
            return Err(ArgumentError::StatePerActivation { activations });
        }
        Ok(())
    }

    /// Fails if no visible output has this name.
    pub fn check_output_name(&self, name: &str) -> Result<(), ArgumentError> {
        if self.outputs().iter().any(|spec| spec.is_visible && spec.name == name) {
            return Ok(());
        }
        Err(ArgumentError::UnknownOutput { name: name.to_owned(), known: names(self.outputs()) })
    }

    /// Returns the error for missing inputs; `is_given` returns true if an input is given.
    pub fn missing_inputs(&self, is_given: impl Fn(usize) -> bool) -> ArgumentError {
        let needed = self.inputs().iter().enumerate().filter(|(_, spec)| spec.retained.is_none());
        let missing = needed.filter(|(index, _)| !is_given(*index)).map(|(_, spec)| spec.name.clone());
        ArgumentError::Missing { missing: missing.collect(), known: names(self.inputs()) }
    }
}

impl<'a> IntoIterator for &'a BindingSpecs {
    type Item = &'a BindingSpec;
    type IntoIter = std::slice::Iter<'a, BindingSpec>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Returns the names of the tensors of the model.
pub(super) fn names(specs: &[BindingSpec]) -> Vec<String> {
    specs.iter().filter(|spec| spec.is_visible).map(|spec| spec.name.clone()).collect()
}

impl BindingSpec {
    fn of_array<'a>(
        tensor: &TensorSpec,
        is_input: bool,
        variants: impl Iterator<Item = &'a Vec<u64>>,
        retained: Option<usize>,
    ) -> Result<Self, RuntimeError> {
        let item_bytes = tensor.dtype.numpy().2;
        let shape = |dims: &[u64]| {
            TensorShape::of(item_bytes, dims)
                .filter(|shape| !tensor.mxint8 || shape.block_bytes().is_some())
                .ok_or_else(|| ArgumentError::TensorTooLarge {
                    name: tensor.name.clone(),
                    dims: dims.to_vec(),
                })
        };
        let largest = shape(&tensor.dims)?;
        let mut variants = variants.map(|dims| shape(dims)).collect::<Result<Vec<_>, _>>()?;
        if variants.is_empty() {
            variants.push(largest.clone());
        }
        Ok(Self {
            name: tensor.name.clone(),
            is_input,
            dtype: Some(tensor.dtype),
            is_partial: tensor.partial,
            is_visible: tensor.visible,
            retained,
            block_columns: largest.dims.last().copied().filter(|_| tensor.mxint8),
            largest,
            variants,
        })
    }

    /// Shape of the tensor in a combination of shapes.
    pub fn shape(&self, variant: usize) -> &TensorShape {
        self.variants.get(variant).unwrap_or(&self.largest)
    }

    /// Returns true if an array fits this input in a combination of shapes without conversion.
    pub fn takes(&self, variant: usize, argument: &Argument<'_>) -> bool {
        let shape = self.shape(variant);
        let is_short = || {
            let bytes = argument.len_bytes();
            self.is_partial && argument.shape.len() == 1 && bytes.is_some_and(|bytes| bytes <= shape.bytes)
        };
        self.has_elements(argument) && (argument.has_dims(&shape.dims) || is_short())
    }

    /// Returns true if an array can receive this output in a combination of shapes. The array must have the output's
    /// shape, or the shape of a larger combination; in the latter case the output fills the start of the array.
    pub fn fits_into(&self, variant: usize, argument: &Argument<'_>) -> bool {
        let shape = self.shape(variant);
        let has_room = || {
            let mut shapes = self.variants.iter().chain([&self.largest]);
            argument.len_bytes().is_some_and(|bytes| bytes > shape.bytes)
                && shapes.any(|other| argument.has_dims(&other.dims))
        };
        !argument.is_readonly && self.has_elements(argument) && (argument.has_dims(&shape.dims) || has_room())
    }

    /// Returns true if this output is copied to the host if no array was given for it. `asked` contains the requested
    /// names. `is_left_out` returns true if the device provides an input: the next value of such an input is copied
    /// only if its name is requested, so that a cache is not copied in every step.
    pub fn is_delivered(&self, asked: Option<&[String]>, is_left_out: impl Fn(usize) -> bool) -> bool {
        let stays = || self.retained.is_some_and(is_left_out);
        self.is_visible && asked.map_or_else(|| !stays(), |names| names.contains(&self.name))
    }

    fn has_elements(&self, argument: &Argument<'_>) -> bool {
        self.dtype.is_some_and(|dtype| argument.has_elements_of(dtype)) && argument.is_contiguous()
    }

    /// Fails if the elements of an array are not contiguous.
    pub fn check_contiguous(&self, argument: &Argument<'_>) -> Result<(), RuntimeError> {
        if argument.is_contiguous() {
            return Ok(());
        }
        Err(RuntimeError::argument(format!(
            "`{}` was given an array of shape {:?} with strides {:?}; a C-contiguous array is expected",
            self.name, argument.shape, argument.strides
        )))
    }

    /// Fails if an output cannot be written to the memory.
    pub(crate) fn check_writable(&self, is_readonly: bool) -> Result<(), RuntimeError> {
        if self.is_input || !is_readonly {
            return Ok(());
        }
        Err(RuntimeError::argument(format!(
            "output `{}` was given read-only memory; a writable array is expected",
            self.name
        )))
    }

    /// Checks a buffer that is not omitted, together with its shape.
    pub(crate) fn check_buffer(
        &self,
        buffer: BufferFacts,
        given: Option<&GivenShape>,
    ) -> Result<(), RuntimeError> {
        let len = match given {
            _ if !buffer.is_whole_dma_buffer => buffer.len,
            None => self.largest.bytes,
            // The memory of the descriptor has the size of the DMA buffer, regardless of the shape.
            Some(given) => given.bytes().unwrap_or(usize::MAX),
        };
        if let Some(given) = given
            && given.bytes() != Some(len)
        {
            return Err(RuntimeError::argument(format!(
                "`{}`: {len} bytes given with element size {} and dims {:?}; both must give the same size",
                self.name, given.item_bytes, given.dims
            )));
        }
        self.check_bytes(len, given.is_some())?;
        self.check_writable(buffer.is_readonly)
    }

    /// Checks a number of bytes. A buffer with a shape may have a size that matches no combination: the inference
    /// then reports the mismatch (docs/reference/transfers.md).
    fn check_bytes(&self, found: usize, has_shape: bool) -> Result<(), RuntimeError> {
        let is_of_a_variant = || self.variants.iter().any(|shape| shape.bytes == found);
        let may_be_short = || self.is_partial || (has_shape && self.variants.len() > 1) || is_of_a_variant();
        let expected = self.largest.bytes;
        if found == expected || (found < expected && may_be_short()) {
            return Ok(());
        }
        Err(InputError::BufferSize {
            buffer: self.name.clone(),
            expected: expected as u64,
            found: found as u64,
        }
        .into())
    }

    pub(crate) fn tensor_bytes(&self, buffer: BufferFacts) -> usize {
        if buffer.is_whole_dma_buffer { self.largest.bytes } else { buffer.len }
    }
}

impl TensorShape {
    /// Creates the shape of a tensor with these dims; `None` if it exceeds the address space.
    fn of(item_bytes: usize, dims: &[u64]) -> Option<Self> {
        let dims =
            dims.iter().map(|&dim| isize::try_from(dim).ok().and_then(|dim| usize::try_from(dim).ok()));
        let dims = dims.collect::<Option<Vec<_>>>()?;
        let bytes = dims.iter().try_fold(item_bytes, |bytes, &dim| bytes.checked_mul(dim))?;
        Some(Self { item_bytes, dims, bytes })
    }

    /// Bytes of the device's MXINT8 blocks; `None` if they exceed the address space, and for a scalar, which has no
    /// blocks.
    pub(crate) fn block_bytes(&self) -> Option<usize> {
        let (&columns, outer) = self.dims.split_last()?;
        let rows = outer.iter().try_fold(1_usize, |rows, &dim| rows.checked_mul(dim))?;
        MxFormat::Int8.stored_bytes(rows, columns)
    }
}
