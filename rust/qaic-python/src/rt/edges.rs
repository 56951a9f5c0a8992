//! What the bindings of a program accept: sizes, element sizes and shapes (python-api §B.8, §B.9).

use std::fmt::Write;
use std::sync::Arc;

use qaic_qpc::error::QpcError;
use qaic_qpc::mappings::user_mappings;
use qaic_qpc::shape::RequestedShape;
use qaic_runtime::error::RuntimeError;
use qaic_runtime::program::Program;
use qaic_runtime::wiring::Shapes;

use super::dims::Dims;
use crate::buffers::Backing;

/// One binding, as a caller sees it.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) name: String,
    pub(crate) is_input: bool,
    /// Bytes of the largest tensor.
    pub(crate) size: usize,
    pub(crate) item_bytes: usize,
    /// Dims of the largest tensor.
    pub(crate) dims: Vec<i32>,
    /// Whether fewer elements may be given whatever the shapes.
    partial: bool,
    /// Whether the device keeps a value for it.
    pub(crate) retained: bool,
    // Bytes in each of the permitted combinations of shapes.
    sizes: Vec<usize>,
}

/// All bindings of a program, inputs then outputs.
#[derive(Debug)]
pub(crate) struct Edges {
    list: Vec<Edge>,
    inputs: usize,
    program: Arc<Program>,
}

impl Edges {
    pub(crate) fn new(program: &Arc<Program>) -> Result<Arc<Self>, QpcError> {
        let network = program.image().network();
        let inputs = network.inputs.iter().map(|binding| (&binding.io_initial, true));
        let outputs = network.outputs.iter().map(|binding| (&binding.io_transformed, false));
        let list = user_mappings(network)?
            .into_iter()
            .zip(inputs.chain(outputs))
            .enumerate()
            .map(|(index, (mapping, (tensor, is_input)))| {
                let retained = program.retained().iter().any(|pair| {
                    if is_input { pair.input == index } else { pair.output + network.inputs.len() == index }
                });
                let sizes = program.variants().iter().map(|plan| {
                    let transfers = if is_input { plan.inputs() } else { plan.outputs() };
                    let position = if is_input { index } else { index - network.inputs.len() };
                    transfers.get(position).map_or(0, |transfer| transfer.user_bytes())
                });
                Edge {
                    is_input,
                    size: usize::try_from(mapping.size).unwrap_or(usize::MAX),
                    item_bytes: tensor
                        .dtype
                        .size_bytes()
                        .and_then(|bytes| usize::try_from(bytes).ok())
                        .unwrap_or(1),
                    dims: tensor.dims.clone(),
                    partial: mapping.is_partial_buffer_allowed,
                    retained,
                    sizes: sizes.collect(),
                    name: mapping.buffer_name,
                }
            })
            .collect();
        Ok(Arc::new(Self { list, inputs: network.inputs.len(), program: Arc::clone(program) }))
    }

    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Number of inputs; the outputs follow them.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Edge> {
        self.list.iter()
    }

    /// The position that `index` names, or an error that says which there are.
    pub(crate) fn position(&self, index: i64) -> Result<usize, RuntimeError> {
        let position = usize::try_from(index).ok().filter(|&position| position < self.list.len());
        position.ok_or_else(|| self.unknown(index))
    }

    /// Bytes of the tensor in a buffer. Behind a descriptor lies all of the DMA buffer, with the largest tensor at its begin.
    pub(crate) fn tensor_bytes(&self, index: usize, backing: &Backing) -> usize {
        match (backing.dma_buf(), self.list.get(index)) {
            (Some(_), Some(edge)) => edge.size,
            _ => backing.len(),
        }
    }

    /// The binding of this index.
    pub(crate) fn get(&self, index: usize) -> Result<&Edge, RuntimeError> {
        self.list.get(index).ok_or_else(|| self.unknown(index))
    }

    fn unknown(&self, index: impl std::fmt::Display) -> RuntimeError {
        refused(format!(
            "binding {index} does not exist; the program has {}, numbered from 0",
            self.list.len()
        ))
    }

    /// Whether the program was compiled for several combinations of shapes.
    fn is_dynamic(&self) -> bool {
        !self.program.image().network().allowed_shapes.is_empty()
    }

    /// The combination that tensors of these shapes belong to; `None` is a tensor that is left out.
    pub(crate) fn shapes(&self, given: &[Option<RequestedShape>]) -> Shapes {
        let found = if self.is_dynamic() {
            self.program.match_shapes(given).or_else(|| self.variant_with_room(given))
        } else {
            let fits = |(edge, shape): (&Edge, &Option<RequestedShape>)| {
                shape.as_ref().is_none_or(|shape| {
                    edge.partial
                        || (shape.element_bytes == edge.item_bytes as u64
                            && rank_one(&shape.dims) == rank_one(&edge.dims))
                })
            };
            self.list.iter().zip(given).all(fits).then_some(0)
        };
        match found {
            Some(variant) => Shapes::Variant(variant),
            None => Shapes::Mismatch(self.mismatch(given).into()),
        }
    }

    /// The first combination that inputs of these shapes belong to and whose outputs find room in those that are given:
    /// clients keep buffers for the largest shape. The head of such a buffer is written.
    fn variant_with_room(&self, given: &[Option<RequestedShape>]) -> Option<usize> {
        (0..self.program.variants().len()).find(|&variant| {
            self.list.iter().zip(given).enumerate().all(|(index, (edge, shape))| {
                let Some(shape) = shape else { return true };
                let dims = rank_one(&shape.dims);
                shape.element_bytes == edge.item_bytes as u64
                    && if edge.is_input {
                        dims == rank_one(self.dims_in(variant, index))
                    } else {
                        let bytes = dims.iter().try_fold(edge.item_bytes, |bytes, &dim| {
                            bytes.checked_mul(usize::try_from(dim).ok()?)
                        });
                        edge.has_room(variant, bytes.unwrap_or(0))
                    }
            })
        })
    }

    /// The first combination in which every tensor that is not left out has this many bytes, or else every input has, and
    /// every output no more: for buffers that came without dims.
    pub(crate) fn variant_of_sizes(&self, sizes: &[usize]) -> Option<usize> {
        let find = |fits: fn(&Edge, usize, usize) -> bool| {
            let all = |variant| {
                let mut pairs = self.list.iter().zip(sizes);
                pairs.all(|(edge, &size)| size == 0 || fits(edge, variant, size))
            };
            (0..self.program.variants().len()).find(|&variant| all(variant))
        };
        let is_exact = |edge: &Edge, variant, size| edge.sizes.get(variant) == Some(&size);
        find(is_exact).or_else(|| {
            find(|edge, variant, size| {
                if edge.is_input {
                    edge.sizes.get(variant) == Some(&size)
                } else {
                    edge.has_room(variant, size)
                }
            })
        })
    }

    /// Dims of binding `index` in a combination.
    pub(crate) fn dims_in(&self, variant: usize, index: usize) -> &[i32] {
        let allowed = self.program.image().network().allowed_shapes.get(variant);
        match (allowed.and_then(|entry| entry.shapes.get(index)), self.list.get(index)) {
            (Some(shape), _) => &shape.dims,
            (None, Some(edge)) => &edge.dims,
            (None, None) => &[],
        }
    }

    /// The shape of a buffer that came without one, if its size says it: `None` where combinations differ in the dims of a
    /// binding and not in its size, and for one that is left out or partial.
    pub(crate) fn dims_of_size(&self, index: usize, size: usize) -> Option<Dims> {
        let edge = self.list.get(index)?;
        let of = |dims: &[i32]| (edge.item_bytes as u64, dims.iter().copied().map(i64::from).collect());
        if size == edge.size {
            return Some(of(&edge.dims));
        }
        let variants = edge.sizes.iter().enumerate().filter(|&(_, &bytes)| bytes == size && size > 0);
        let mut found = variants.map(|(variant, _)| self.dims_in(variant, index));
        let first = found.next()?;
        found.all(|other| other == first).then(|| of(first))
    }

    /// What was passed and what is allowed, of the tensors that were passed.
    fn mismatch(&self, given: &[Option<RequestedShape>]) -> String {
        let mut text = "passed:".to_owned();
        for (edge, shape) in self.list.iter().zip(given) {
            if let Some(shape) = shape {
                let _ = write!(text, " {} {} x {:?}", edge.name, shape.element_bytes, rank_one(&shape.dims));
            }
        }
        let entries = &self.program.image().network().allowed_shapes;
        for variant in 0..entries.len().max(1) {
            let _ = write!(text, "; allowed {variant}:");
            for (index, _) in given.iter().enumerate().filter(|(_, shape)| shape.is_some()) {
                let Some(edge) = self.list.get(index) else { continue };
                let dims = rank_one(self.dims_in(variant, index));
                let _ = write!(text, " {} {} x {dims:?}", edge.name, edge.item_bytes);
            }
        }
        text
    }
}

impl Edge {
    /// Whether the tensor of a combination has no more than this many bytes.
    fn has_room(&self, variant: usize, bytes: usize) -> bool {
        self.sizes.get(variant).is_some_and(|&size| size <= bytes)
    }

    /// Checks the size of a buffer that is not empty. One that came with dims may have a size that no combination of
    /// shapes has: that dims match none is said when the inference runs (python-api §B.8).
    pub(crate) fn check_size(&self, found: usize, has_dims: bool) -> Result<(), RuntimeError> {
        let is_dynamic = self.sizes.len() > 1;
        let may_be_short = self.partial || (has_dims && is_dynamic) || self.sizes.contains(&found);
        if found == self.size || (found < self.size && may_be_short) {
            return Ok(());
        }
        Err(RuntimeError::BufferSize {
            buffer: self.name.clone(),
            expected: self.size as u64,
            found: found as u64,
        })
    }

    /// Checks that `found` bytes are what dims and element size say.
    pub(crate) fn check_dims(&self, item_bytes: u64, dims: &[i64], found: usize) -> Result<(), RuntimeError> {
        let bytes =
            dims.iter().try_fold(item_bytes, |bytes, &dim| bytes.checked_mul(u64::try_from(dim).ok()?));
        if bytes == Some(found as u64) {
            return Ok(());
        }
        Err(refused(format!(
            "`{}`: {found} bytes given with element size {item_bytes} and dims {dims:?}; both must say the same",
            self.name
        )))
    }
}

/// The caller's mistake.
pub(crate) fn refused(what: String) -> RuntimeError {
    RuntimeError::Argument { what }
}

/// A scalar is passed as one dim of 1 (qpc-format §8.2).
fn rank_one(dims: &[i32]) -> &[i32] {
    if dims.is_empty() { &[1] } else { dims }
}
