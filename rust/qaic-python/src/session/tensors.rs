//! Inputs and outputs as numpy sees them: their names in Python, and memory for the arrays of every shape.

use std::ffi::CStr;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use qaic_mem::{HostSlice, HostSliceMut, Storage, StoragePool};
use qaic_runtime::binding::{ArgumentError, ArrayLayout, ArrayType, BindingSpec, BindingSpecs, TensorShape};
use qaic_runtime::device::cpu::blocks;
use qaic_runtime::error::RuntimeError;
use qaic_runtime::image::Image;

use crate::buffers::{ExportId, Exports, array_over};
use crate::errors::from_runtime;

/// All tensors of a program, in binding order.
pub(super) struct Tensors {
    pub(super) specs: BindingSpecs,
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
}

/// One input or output.
pub(super) struct Tensor {
    pub(super) key: Py<PyString>,
    /// Values per row of the blocks that the device has in its place.
    columns: Option<usize>,
    // By combination of shapes.
    forms: Vec<Arc<ArrayForm>>,
}

/// What arrays of a tensor in one of its shapes are made of.
pub(super) struct ArrayForm {
    layout: Arc<ArrayLayout>,
    pool: Arc<StoragePool>,
    /// Memory for what the device has in its place, where that is something else.
    blocks_pool: Option<Arc<StoragePool>>,
}

impl Tensors {
    /// The tensors of a container; `unused` is the number of buffers of each that are kept for the next inference.
    pub(super) fn new(py: Python<'_>, image: &Image, unused: usize) -> Result<Self, RuntimeError> {
        let specs = BindingSpecs::of_arrays(image)?;
        let tensors = |list: &[BindingSpec]| {
            list.iter().map(|spec| Tensor::new(py, spec, specs.variants(), unused)).collect()
        };
        let (inputs, outputs) = (tensors(specs.inputs()), tensors(specs.outputs()));
        Ok(Self { specs, inputs, outputs })
    }

    /// The inputs with what they take.
    pub(super) fn inputs(&self) -> impl Iterator<Item = (&BindingSpec, &Tensor)> {
        self.specs.inputs().iter().zip(&self.inputs)
    }

    /// The outputs with what they are.
    pub(super) fn outputs(&self) -> impl Iterator<Item = (&BindingSpec, &Tensor)> {
        self.specs.outputs().iter().zip(&self.outputs)
    }
}

impl Tensor {
    fn new(py: Python<'_>, spec: &BindingSpec, variants: usize, unused: usize) -> Self {
        let mut made: Vec<(&TensorShape, Arc<ArrayForm>)> = Vec::new();
        for variant in 0..variants {
            let shape = spec.shape(variant);
            // Equal shapes share their buffers.
            let same = made.iter().find(|(other, _)| *other == shape).map(|(_, form)| Arc::clone(form));
            made.push((shape, same.unwrap_or_else(|| Arc::new(ArrayForm::new(spec, shape, unused)))));
        }
        Self {
            key: PyString::intern(py, &spec.name).unbind(),
            columns: spec.block_columns,
            forms: made.into_iter().map(|(_, form)| form).collect(),
        }
    }

    /// The tensor in a combination of shapes.
    pub(super) fn form(&self, variant: usize) -> &ArrayForm {
        // There is one per combination, and at least one.
        self.forms.get(variant).unwrap_or(&self.forms[0])
    }

    /// The array of what the device wrote into `storage`.
    pub(super) fn array<'py>(
        &self,
        py: Python<'py>,
        variant: usize,
        storage: Storage,
    ) -> PyResult<Bound<'py, PyAny>> {
        let form = self.form(variant);
        let Some(columns) = self.columns else { return array_over(py, storage, &form.layout) };
        let mut array = form.pool.take().map_err(|error| from_runtime(py, error))?;
        decode_array(columns, storage.memory(), array.memory_mut());
        array_over(py, array, &form.layout)
    }

    /// What the device reads in place of `array`; `None` where it reads the array itself.
    pub(super) fn for_device(
        &self,
        py: Python<'_>,
        variant: usize,
        array: HostSlice<'_>,
    ) -> PyResult<Option<Storage>> {
        let Some(columns) = self.columns else { return Ok(None) };
        let pool = self.form(variant).device_pool();
        let mut blocks = pool.take().map_err(|error| from_runtime(py, error))?;
        encode_array(columns, array, blocks.memory_mut());
        Ok(Some(blocks))
    }

    /// Brings what the device wrote to the caller's array.
    pub(super) fn bring(&self, storage: &Storage, mut array: HostSliceMut<'_>) {
        match self.columns {
            Some(columns) => decode_array(columns, storage.memory(), array),
            None => {
                array.copy_from(storage.memory());
            }
        }
    }

    /// Whether the device has something else in place of its arrays.
    pub(super) fn has_blocks(&self) -> bool {
        self.columns.is_some()
    }
}

impl ArrayForm {
    fn new(spec: &BindingSpec, shape: &TensorShape, unused: usize) -> Self {
        let blocks = shape.block_bytes().filter(|_| spec.block_columns.is_some());
        Self {
            layout: layout(spec, &shape.dims),
            pool: StoragePool::new(shape.bytes, unused),
            blocks_pool: blocks.map(|bytes| StoragePool::new(bytes, unused)),
        }
    }

    /// Memory for what the device has.
    pub(super) fn device_pool(&self) -> &Arc<StoragePool> {
        self.blocks_pool.as_ref().unwrap_or(&self.pool)
    }
}

/// Format and name of the elements.
pub(super) fn numpy_type(spec: &BindingSpec) -> (&'static CStr, &'static str) {
    let (format, name, _) = spec.dtype.map_or((c"B", "uint8", 1), ArrayType::numpy);
    (format, name)
}

/// How arrays of these dims lie in memory.
pub(super) fn layout(spec: &BindingSpec, dims: &[usize]) -> Arc<ArrayLayout> {
    ArrayLayout::new(dims, numpy_type(spec).0, spec.largest.item_bytes)
}

/// Fills `blocks` with the blocks of a float16 array whose rows have `columns` values. What does not fit is left out.
pub(super) fn encode_array(columns: usize, array: HostSlice<'_>, blocks: HostSliceMut<'_>) {
    blocks::to_blocks::<blocks::Half>(columns, array, blocks);
}

/// Fills a float16 array with the values of its blocks; those beyond float16 become infinite.
pub(super) fn decode_array(columns: usize, blocks: HostSlice<'_>, array: HostSliceMut<'_>) {
    blocks::from_blocks::<blocks::Half>(columns, blocks, array);
}

/// The buffer of an array for an output that has its shape, or a larger one of the program: then the output is the head of
/// it.
pub(super) fn writable(
    py: Python<'_>,
    spec: &BindingSpec,
    variant: usize,
    array: &Bound<'_, PyAny>,
    exports: &mut Exports,
) -> PyResult<ExportId> {
    let shape = spec.shape(variant);
    if let Some(exported) = exports.take(array, true)
        && spec.fits_into(variant, &exported.argument)
    {
        return Ok(exported.id);
    }
    let found = array
        .getattr("dtype")
        .and_then(|dtype| Ok(format!("{dtype} of shape {}", array.getattr("shape")?)))
        .unwrap_or_else(|_| array.get_type().to_string());
    let error = ArgumentError::OutputArray {
        name: spec.name.clone(),
        found,
        dtype: numpy_type(spec).1,
        shape: shape.dims.clone(),
    };
    Err(from_runtime(py, error))
}

/// Refuses a key that names no tensor of the model.
pub(super) fn check_keys(
    py: Python<'_>,
    given: &Bound<'_, PyDict>,
    specs: &[BindingSpec],
    side: &'static str,
) -> PyResult<()> {
    for key in given.keys() {
        let text = key.cast::<PyString>().map(|text| text.to_string_lossy().into_owned());
        let visible = || specs.iter().filter(|spec| spec.is_visible);
        if text.as_ref().is_ok_and(|text| visible().any(|spec| spec.name == *text)) {
            continue;
        }
        let shown = key.repr()?.to_string();
        let error = ArgumentError::UnknownName {
            side,
            name: text.unwrap_or_else(|_| shown.clone()),
            shown,
            known: visible().map(|spec| spec.name.clone()).collect(),
        };
        return Err(from_runtime(py, error));
    }
    Ok(())
}
