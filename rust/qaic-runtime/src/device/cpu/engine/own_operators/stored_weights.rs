//! Products with weights that stay in their container.
//!
//! The engine never sees these weights: a node names an initializer of the plan, and its kernel reads the mapped
//! bytes. Loading a program therefore does not copy, pack or read them.
//!
//! | operator | inputs | attributes | result |
//! |---|---|---|---|
//! | `StoredMatMul` | activations `[..., K]`, bias `[N]` or none | `weight`: `[N, K]`; `rounding` | `[..., N]` |
//! | `StoredGather` | indices `[...]` | `weight`: `[rows, K]` | `[..., K]` |
//!
//! `rounding` is the ONNX type that results are rounded to.

use std::collections::HashMap;
use std::ops::Range;

use qaic_mem::stored::{Form, Layout, Product, Rounding, StoredRows};
use qaic_qpc::plan::{Initializer, Plan};

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
    form: Form,
    layout: Layout,
    rows: usize,
    len: usize,
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
        for initializer in &plan.initializers {
            let Some(layout) = &initializer.layout else { continue };
            let name = initializer.name.clone();
            let layout = Layout::from_name(layout).ok_or_else(|| {
                format!("initializer `{name}` has the layout `{layout}`, which this release does not have")
            })?;
            let matrix = Matrix::new(initializer, layout, constants)
                .map_err(|message| format!("initializer `{name}`: {message}"))?;
            matrices.insert(name, matrix);
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
    fn new(initializer: &Initializer, layout: Layout, constants: &Constants) -> Result<Self, String> {
        let dims: Result<Vec<usize>, _> = initializer.dims.iter().map(|&dim| dim.try_into()).collect();
        let Ok(&[rows, len]) = dims.as_deref() else {
            return Err(format!(
                "stored rows of dims {:?}; rows and their length are expected",
                initializer.dims
            ));
        };
        let form = Form::from_name(initializer.form(), initializer.group)
            .ok_or_else(|| format!("no kernel reads the form `{}`", initializer.form()))?;
        let all = constants.bytes();
        let bytes = initializer.bytes(all).map_err(|error| error.to_string())?;
        StoredRows::new(form, layout, rows, len, bytes).map_err(|error| error.to_string())?;
        let start = bytes.as_ptr().addr() - all.as_ptr().addr();
        Ok(Self { form, layout, rows, len, bytes: start..start + bytes.len(), constants: constants.clone() })
    }

    fn stored(&self) -> Result<StoredRows<'_>, String> {
        let bytes = self.constants.bytes().get(self.bytes.clone()).unwrap_or_default();
        StoredRows::new(self.form, self.layout, self.rows, self.len, bytes).map_err(|error| error.to_string())
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
        let rounding = match attributes.number(c"rounding")? {
            1 => Rounding::Float32,
            10 => Rounding::Float16,
            16 => Rounding::Bfloat16,
            other => return Err(format!("results rounded to type {other}; 1, 10 or 16 is expected")),
        };
        Ok(Self { matrix: stored.named(attributes)?, rounding })
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
        let block = |block: usize| {
            product.block(block, |row, column, numbers| {
                let start = row * columns + column;
                // SAFETY: blocks and rows do not overlap, and the result has all of them.
                let place = unsafe { result.part(start..start + numbers.len()) };
                place.copy_from_slice(numbers);
            });
        };
        call.in_parallel(product.blocks(), &block)
    }
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
        let place = |index: i64| {
            let index = if index < 0 { index.checked_add_unsigned(rows as u64)? } else { index };
            usize::try_from(index).ok().filter(|&index| index < rows)
        };
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
            stored.gather(numbers.get(at).copied().and_then(place).unwrap_or(rows), to);
        };
        if numbers.len() >= PARALLEL_ROWS {
            return call.in_parallel(numbers.len(), &copy);
        }
        (0..numbers.len()).for_each(copy);
        Ok(())
    }
}
