//! Inputs and outputs as numpy sees them: names, types, and the shapes of every permitted combination.

use std::ffi::CStr;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use qaic_runtime::buffer::{HostSlice, HostSliceMut, Storage, StoragePool};
use qaic_runtime::image::Image;
use qaic_runtime::tensors::{self, Tensor};

use super::blocks::{blocks_bytes, decode_array, encode_array};
use crate::buffers::{ArrayLayout, Exported, Exports, array_over};
use crate::errors::{Raise, from_runtime};

/// All tensors of a program, in binding order.
pub(super) struct Tensors {
    pub(super) inputs: Vec<Edge>,
    pub(super) outputs: Vec<Edge>,
    /// Permitted combinations of shapes; at least one.
    pub(super) variants: usize,
}

/// One input or output.
pub(super) struct Edge {
    pub(super) key: Py<PyString>,
    pub(super) name: String,
    pub(super) dtype: &'static str,
    format: u8,
    format_name: &'static CStr,
    pub(super) item_bytes: usize,
    pub(super) partial: bool,
    pub(super) visible: bool,
    /// Values per row of the blocks that the device has in its place.
    pub(super) blocks: Option<usize>,
    /// Of an input: whether the device can keep its value, so that it may be left out. Of an output: the input whose
    /// next value it is.
    pub(super) state: Option<usize>,
    /// By combination of shapes.
    pub(super) forms: Vec<Arc<Form>>,
    /// What is shown as its shape: room for every combination.
    largest: Vec<isize>,
}

/// A tensor in one of its shapes.
pub(super) struct Form {
    pub(super) shape: Vec<isize>,
    pub(super) size_bytes: usize,
    pub(super) layout: Arc<ArrayLayout>,
    pub(super) pool: Arc<StoragePool>,
    /// Memory for what the device has in its place, where that is something else.
    blocks_pool: Option<Arc<StoragePool>>,
}

impl Tensors {
    /// The tensors of a container; `unused` is the number of buffers of each that are kept for the next inference.
    pub(super) fn new(py: Python<'_>, image: &Image, unused: usize) -> PyResult<Self> {
        let user = tensors::user_tensors(image).map_err(|error| from_runtime(py, error))?;
        let pairs = tensors::retained_pairs(image).map_err(|error| from_runtime(py, error))?;
        let inputs = user.inputs.into_iter().enumerate().map(|(index, tensor)| {
            let state = pairs.iter().any(|pair| pair.input == index).then_some(index);
            let dims = user.variants.iter().filter_map(|variant| variant.inputs.get(index));
            Edge::new(py, tensor, dims, state, unused)
        });
        let outputs = user.outputs.into_iter().enumerate().map(|(index, tensor)| {
            let state = pairs.iter().find(|pair| pair.output == index).map(|pair| pair.input);
            let dims = user.variants.iter().filter_map(|variant| variant.outputs.get(index));
            Edge::new(py, tensor, dims, state, unused)
        });
        Ok(Self {
            inputs: inputs.collect::<PyResult<_>>()?,
            outputs: outputs.collect::<PyResult<_>>()?,
            variants: user.variants.len().max(1),
        })
    }

    /// Whether the device keeps values between inferences.
    pub(super) fn has_state(&self) -> bool {
        self.inputs.iter().any(|edge| edge.state.is_some())
    }
}

impl Edge {
    fn new<'a>(
        py: Python<'_>,
        tensor: Tensor,
        variants: impl Iterator<Item = &'a Vec<u64>>,
        state: Option<usize>,
        unused: usize,
    ) -> PyResult<Self> {
        let (format, dtype, item_bytes) = tensor.dtype.numpy();
        let mut forms: Vec<Arc<Form>> = Vec::new();
        for dims in variants {
            let form = Form::new(py, &tensor, dims, format, item_bytes, unused)?;
            // Equal shapes share their buffers.
            let same = forms.iter().find(|other| other.shape == form.shape).cloned();
            forms.push(same.unwrap_or_else(|| Arc::new(form)));
        }
        if forms.is_empty() {
            forms.push(Arc::new(Form::new(py, &tensor, &tensor.dims, format, item_bytes, unused)?));
        }
        Ok(Self {
            key: PyString::intern(py, &tensor.name).unbind(),
            format_name: format,
            format: format.to_bytes().first().copied().unwrap_or(b'B'),
            dtype,
            item_bytes,
            partial: tensor.partial,
            visible: tensor.visible,
            blocks: tensor.dims.last().filter(|_| tensor.mxint8).and_then(|&dim| usize::try_from(dim).ok()),
            largest: tensor.dims.iter().map(|&dim| isize::try_from(dim).unwrap_or(isize::MAX)).collect(),
            name: tensor.name,
            state,
            forms,
        })
    }

    /// Element format as the buffer protocol spells it.
    pub(super) fn format_name(&self) -> &'static CStr {
        self.format_name
    }

    /// The tensor in the combination of shapes `variant`.
    pub(super) fn form(&self, variant: usize) -> &Arc<Form> {
        // There is one per combination, and at least one.
        self.forms.get(variant).unwrap_or(&self.forms[0])
    }

    /// Whether an exported buffer is exactly this tensor.
    pub(super) fn fits(&self, form: &Form, exported: &Exported<'_>) -> bool {
        let same_shape = exported.shape == form.shape
            || (self.partial && exported.shape.len() == 1 && exported.memory.len() <= form.size_bytes);
        same_shape && self.has_elements_of(exported)
    }

    /// Whether the elements of an exported buffer are those of this tensor.
    fn has_elements_of(&self, exported: &Exported<'_>) -> bool {
        let same_type = exported.item_bytes == self.item_bytes
            && (exported.format == [self.format] || is_same_integer(exported.format, self.format));
        // An array may start in the middle of an element; kernels want whole ones.
        same_type && exported.memory.as_mut_ptr().addr().is_multiple_of(self.item_bytes)
    }

    /// The array of what the device wrote into `storage`.
    pub(super) fn array<'py>(
        &self,
        py: Python<'py>,
        form: &Form,
        storage: Storage,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(columns) = self.blocks else { return array_over(py, storage, &form.layout) };
        let array = form.pool.take().map_err(|error| from_runtime(py, error))?;
        decode_array(columns, storage.memory().as_const(), array.memory());
        array_over(py, array, &form.layout)
    }

    /// What the device reads in place of `array`; `keep` receives the memory of it, if it is not that of the array.
    pub(super) fn for_device(
        &self,
        py: Python<'_>,
        form: &Form,
        array: HostSlice,
        keep: &mut Vec<Storage>,
    ) -> PyResult<HostSlice> {
        let Some(columns) = self.blocks else { return Ok(array) };
        let blocks = form.device_pool().take().map_err(|error| from_runtime(py, error))?;
        encode_array(columns, array, blocks.memory());
        let memory = blocks.memory().as_const();
        keep.push(blocks);
        Ok(memory)
    }

    /// Brings what the device wrote to the caller's array.
    pub(super) fn bring(&self, storage: &Storage, array: HostSliceMut) {
        match self.blocks {
            Some(columns) => decode_array(columns, storage.memory().as_const(), array),
            None => drop(array.copy_from(storage.memory().as_const())),
        }
    }

    /// Whether an exported buffer has the shape that has room for all combinations, or that of another one, and more
    /// bytes.
    fn is_larger(&self, form: &Form, exported: &Exported<'_>) -> bool {
        let mut shapes = self.forms.iter().map(|other| &other.shape).chain([&self.largest]);
        exported.memory.len() > form.size_bytes && shapes.any(|shape| exported.shape == shape)
    }

    /// The memory for this output in an array that has its shape, or a larger one of the program: then it is the head of
    /// it.
    pub(super) fn writable(
        &self,
        py: Python<'_>,
        form: &Form,
        array: &Bound<'_, PyAny>,
        exports: &mut Exports,
    ) -> PyResult<HostSliceMut> {
        if let Some(exported) = exports.take(array, true)
            && self.has_elements_of(&exported)
            && (exported.shape == form.shape || self.is_larger(form, &exported))
            && let Some(head) = exported.memory.subslice(0, form.size_bytes)
        {
            return Ok(head);
        }
        let found = array
            .getattr("dtype")
            .and_then(|dtype| Ok(format!("{dtype} of shape {}", array.getattr("shape")?)))
            .unwrap_or_else(|_| array.get_type().to_string());
        Err(Raise::new(
            py,
            "InputError",
            "output.array",
            format!(
                "out[{:?}] is {found}; a writable, aligned, C-contiguous {} array of shape {:?} is expected",
                self.name, self.dtype, form.shape
            ),
        )
        .with("name", &self.name)
        .build())
    }
}

impl Form {
    fn new(
        py: Python<'_>,
        tensor: &Tensor,
        dims: &[u64],
        format: &CStr,
        item_bytes: usize,
        unused: usize,
    ) -> PyResult<Self> {
        let too_large = || {
            let text = format!("tensor `{}` of dims {dims:?} is too large for this host", tensor.name);
            Raise::new(py, "QpcLimitError", "qpc.tensor_too_large", text).build()
        };
        let shape: Vec<isize> = dims
            .iter()
            .map(|&dim| isize::try_from(dim))
            .collect::<Result<_, _>>()
            .map_err(|_| too_large())?;
        let size_bytes = dims
            .iter()
            .try_fold(item_bytes, |bytes, &dim| bytes.checked_mul(usize::try_from(dim).ok()?))
            .ok_or_else(too_large)?;
        let blocks_pool = if tensor.mxint8 {
            let bytes = blocks_bytes(&shape).ok_or_else(too_large)?;
            Some(StoragePool::new(bytes, unused))
        } else {
            None
        };
        Ok(Self {
            layout: ArrayLayout::new(&shape, format, item_bytes),
            pool: StoragePool::new(size_bytes, unused),
            shape,
            size_bytes,
            blocks_pool,
        })
    }

    /// Memory for what the device has.
    pub(super) fn device_pool(&self) -> &Arc<StoragePool> {
        self.blocks_pool.as_ref().unwrap_or(&self.pool)
    }
}

/// C has several names for an integer of the same size; the caller has compared the sizes.
fn is_same_integer(format: &[u8], wanted: u8) -> bool {
    matches!((format, wanted), ([b'l' | b'q' | b'i' | b'n'], b'q' | b'i') | ([b'c'], b'b'))
}

/// Names of the tensors of the model.
pub(super) fn names(edges: &[Edge]) -> Vec<&str> {
    edges.iter().filter(|edge| edge.visible).map(|edge| edge.name.as_str()).collect()
}

/// Refuses a key that names no tensor of the model.
pub(super) fn check_keys(
    py: Python<'_>,
    given: &Bound<'_, PyDict>,
    edges: &[Edge],
    what: &str,
) -> PyResult<()> {
    for key in given.keys() {
        let known = match key.cast::<PyString>() {
            Ok(text) => {
                let text = text.to_string_lossy();
                edges.iter().any(|edge| edge.visible && edge.name == text)
            }
            Err(_) => false,
        };
        if !known {
            return Err(Raise::new(
                py,
                "InputError",
                "input.unknown_name",
                format!("{what} {} does not exist; the program has {:?}", key.repr()?, names(edges)),
            )
            .with("name", key)
            .with("known", names(edges))
            .build());
        }
    }
    Ok(())
}
