//! Products with weights that stay in their container.
//!
//! The engine never receives these weights: a node names an initializer of the plan, and its kernel reads the
//! mapped bytes. Loading a program therefore does not copy, pack or read them.
//!
//! | operator | inputs | attributes | result |
//! |---|---|---|---|
//! | `StoredMatMul` | activations `[..., K]`, bias `[N]` or none | `weight`: `[N, K]`; `rounding` | `[..., N]` |
//! | `StoredExperts` | activations `[B, M, K]` or `[1, M, K]`, indices `[B]` or `[1]` | `weight`: `[experts * N, K]`; `experts`; `rounding` | `[B, M, N]` |
//! | `StoredGather` | indices `[...]` | `weight`: `[rows, K]` | `[..., K]` |
//!
//! `StoredExperts` multiplies each entry of the batch with the matrix of its index, and reads only these matrices.
//! `rounding` is the ONNX type that results are rounded to.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use qaic_mem::convert::Isa;
use qaic_mem::stored::{Product, Rounding, StoredRows, TILE_ROWS};
use qaic_qpc::plan::{Plan, StoredMatrix};

use super::Attributes;
use super::call::Call;
use crate::device::cpu::executable::Constants;

/// Minimum number of indices for which a gather uses several threads.
const PARALLEL_ROWS: usize = 16;

/// The stored weights of a program by name.
#[derive(Debug)]
pub(in crate::device::cpu::engine) struct StoredWeights {
    matrices: HashMap<String, Matrix>,
}

/// One matrix in the constants of its program.
#[derive(Clone, Debug)]
struct Matrix {
    shape: StoredMatrix,
    bytes: Range<usize>,
    constants: Constants,
}

impl StoredWeights {
    /// Finds the stored weights of a plan, and checks that the bytes of each weight match the plan.
    pub(in crate::device::cpu::engine) fn of_plan(
        plan: &Plan,
        constants: &Constants,
    ) -> Result<Self, String> {
        let mut matrices = HashMap::new();
        let all = constants.bytes();
        for initializer in &plan.initializers {
            let Some(shape) = initializer.matrix().map_err(|error| error.to_string())? else { continue };
            let bytes = initializer.bytes(all).map_err(|error| error.to_string())?;
            let start = bytes.as_ptr().addr() - all.as_ptr().addr();
            let bytes = start..start + bytes.len();
            let matrix = Matrix { shape, bytes, constants: constants.clone() };
            matrices.insert(initializer.name.clone(), matrix);
        }
        Ok(Self { matrices })
    }

    fn named(&self, attributes: &Attributes) -> Result<Matrix, String> {
        let name = attributes.text(c"weight")?;
        let found = self.matrices.get(&name);
        found.cloned().ok_or_else(|| format!("the plan has no stored weight `{name}`"))
    }
}

impl Matrix {
    fn stored(&self) -> Result<StoredRows<'_>, String> {
        let StoredMatrix { form, layout, rows, len } = self.shape;
        let bytes = self.constants.bytes().get(self.bytes.clone()).unwrap_or_default();
        StoredRows::new(form, layout, rows, len, bytes).map_err(|error| error.to_string())
    }
}

/// The kernel of a `StoredMatMul`.
#[derive(Debug)]
pub(super) struct ProductKernel {
    matrix: Matrix,
    rounding: Rounding,
}

impl ProductKernel {
    pub(super) fn new(stored: &StoredWeights, attributes: &Attributes) -> Result<Self, String> {
        Ok(Self { matrix: stored.named(attributes)?, rounding: attributes.rounding()? })
    }

    pub(super) fn run(&self, call: Call) -> Result<(), String> {
        let activations = call.required(0)?;
        let bias = call.operand(1)?;
        let stored = self.matrix.stored()?;
        let dims = activations.dims_with_last(stored.row_len(), stored.rows())?;
        // SAFETY: the engine has checked the types of operands, and they do not change during the call.
        let numbers = unsafe { activations.elements::<f32>() };
        // SAFETY: as above.
        let bias = bias.as_ref().map(|bias| unsafe { bias.elements::<f32>() }).unwrap_or_default();
        let product =
            Product::new(stored, numbers, bias, self.rounding).map_err(|error| error.to_string())?;
        let columns = product.columns();
        let result = call.result(&dims, product.rows() * columns)?;
        let mut first = 0;
        for pass in product.passes() {
            if pass.parts() > 0 {
                call.in_parallel(pass.parts(), &|part| pass.pack(part))?;
            }
            let block = |block: usize| {
                pass.block(Isa::best(), block, |row, column, numbers| {
                    let start = (first + row) * columns + column;
                    // SAFETY: passes, blocks and rows do not overlap, and the result has all of them.
                    let place = unsafe { result.part(start..start + numbers.len()) };
                    place.copy_from_slice(numbers);
                });
            };
            call.in_parallel(pass.blocks(), &block)?;
            first += pass.rows();
        }
        Ok(())
    }
}

/// The kernel of a `StoredExperts`.
#[derive(Debug)]
pub(super) struct ExpertsKernel {
    matrix: Matrix,
    experts: usize,
    rounding: Rounding,
}

/// The entries of a batch that use one expert, and their rows of activations.
struct Chosen<'a> {
    expert: usize,
    entries: &'a [usize],
    activations: Cow<'a, [f32]>,
}

impl ExpertsKernel {
    pub(super) fn new(stored: &StoredWeights, attributes: &Attributes) -> Result<Self, String> {
        let matrix = stored.named(attributes)?;
        let rows = matrix.shape.rows;
        let found = attributes.number(c"experts")?;
        let experts = usize::try_from(found).ok().filter(|&count| {
            count > 0 && rows.is_multiple_of(count) && (rows / count).is_multiple_of(TILE_ROWS)
        });
        let Some(experts) = experts else {
            return Err(format!("{rows} stored rows for {found} experts; whole tiles for each are expected"));
        };
        Ok(Self { matrix, experts, rounding: attributes.rounding()? })
    }

    pub(super) fn run(&self, call: Call) -> Result<(), String> {
        let (activations, indices) = (call.required(0)?, call.required(1)?);
        let stored = self.matrix.stored()?;
        let columns = stored.rows() / self.experts;
        // SAFETY: the engine has checked the types of operands, and they do not change during the call.
        let indices = unsafe { indices.elements::<i64>() };
        // SAFETY: as above.
        let numbers = unsafe { activations.elements::<f32>() };
        let mut dims = activations.dims_with_last(stored.row_len(), columns)?;
        let [given, rows, _] = *dims else {
            return Err(format!("activations of dims {:?}, expected three", activations.dims));
        };
        let (given, rows) = (usize::try_from(given).unwrap_or(0), usize::try_from(rows).unwrap_or(0));
        // A single entry or index is that of the whole batch.
        let batch = if given == 1 { indices.len() } else { given };
        if ![1, batch].contains(&indices.len()) {
            return Err(format!("{} indices of experts for {given} entries of activations", indices.len()));
        }
        dims[0] = i64::try_from(batch).unwrap_or(i64::MAX);
        let entry_len = rows * stored.row_len();
        let entry_at = |entry: usize| if given == 1 { 0 } else { entry * entry_len };
        let experts = indices.iter().map(|&index| {
            index_of(index, self.experts).ok_or_else(|| format!("index {index} of {} experts", self.experts))
        });
        let mut experts: Vec<usize> = experts.collect::<Result<_, _>>()?;
        experts.resize(batch, experts.first().copied().unwrap_or(0));
        let count = batch.checked_mul(columns).and_then(|count| count.checked_mul(rows));
        let count = count.ok_or("more numbers than there can be")?;
        let result = call.result(&dims, count)?;
        // Each expert is read once, for all entries that use it.
        let mut order: Vec<usize> = (0..batch).collect();
        order.sort_by_key(|&entry| experts[entry]);
        let chosen = order.chunk_by(|&one, &other| experts[one] == experts[other]).map(|entries| {
            let part = |entry: usize| &numbers[entry_at(entry)..entry_at(entry) + entry_len];
            let activations = match *entries {
                [one] => Cow::Borrowed(part(one)),
                _ => Cow::Owned(entries.iter().flat_map(|&entry| part(entry)).copied().collect()),
            };
            Chosen { expert: experts[entries[0]], entries, activations }
        });
        let chosen: Vec<Chosen<'_>> = chosen.collect();
        let mut first = 0;
        let products = chosen.iter().map(|chosen| {
            let start = chosen.expert * columns;
            let weights =
                stored.part(start..start + columns).ok_or("an expert that begins inside of a tile")?;
            let product = Product::new(weights, &chosen.activations, &[], self.rounding)
                .map_err(|error| error.to_string())?;
            first += product.blocks();
            Ok((first, product, chosen.entries))
        });
        let products: Vec<_> = products.collect::<Result<_, String>>()?;
        let block = |block: usize| {
            let at = products.partition_point(|(end, ..)| *end <= block);
            let Some((end, product, entries)) = products.get(at) else { return };
            product.block(Isa::best(), block + product.blocks() - end, |row, column, numbers| {
                let start = (entries[row / rows] * rows + row % rows) * columns + column;
                // SAFETY: blocks, rows and entries do not overlap, and the result has all of them.
                let place = unsafe { result.part(start..start + numbers.len()) };
                place.copy_from_slice(numbers);
            });
        };
        call.in_parallel(first, &block)
    }
}

/// Returns the place of an index, which counts from the end if negative; `None` if it is outside.
fn index_of(index: i64, count: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add_unsigned(count as u64)? } else { index };
    usize::try_from(index).ok().filter(|&index| index < count)
}

#[derive(Debug)]
pub(super) struct GatherKernel {
    matrix: Matrix,
}

impl GatherKernel {
    pub(super) fn new(stored: &StoredWeights, attributes: &Attributes) -> Result<Self, String> {
        Ok(Self { matrix: stored.named(attributes)? })
    }

    pub(super) fn run(&self, call: Call) -> Result<(), String> {
        let indices = call.required(0)?;
        let stored = self.matrix.stored()?;
        let (rows, len) = (stored.rows(), stored.row_len());
        // SAFETY: the engine has checked the type of the operand, and it does not change during the call.
        let numbers = unsafe { indices.elements::<i64>() };
        let place = |index| index_of(index, rows);
        if let Some(outside) = numbers.iter().find(|&&index| place(index).is_none()) {
            return Err(format!("index {outside} of {rows} rows"));
        }
        let mut dims = indices.dims.clone();
        dims.push(i64::try_from(len).unwrap_or(i64::MAX));
        let count = numbers.len().checked_mul(len).ok_or("more numbers than there can be")?;
        let result = call.result(&dims, count)?;
        let copy = |at: usize| {
            // SAFETY: each index has its own part of the result.
            let to = unsafe { result.part(at * len..(at + 1) * len) };
            stored.gather(Isa::best(), numbers.get(at).copied().and_then(place).unwrap_or(rows), to);
        };
        if numbers.len() >= PARALLEL_ROWS {
            return call.in_parallel(numbers.len(), &copy);
        }
        (0..numbers.len()).for_each(copy);
        Ok(())
    }
}
