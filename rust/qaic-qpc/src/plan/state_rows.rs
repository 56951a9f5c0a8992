//! Retained state of which a graph computes only the changed rows.
//!
//! Instead of the state's next value, the graph has two outputs: rows, and tuples of indices with their positions, in
//! the format of `ScatterND`. The device writes the rows into the single buffer of the state.

use std::collections::HashSet;

use serde::Deserialize;

use super::{Dtype, Plan, PlanError, PlanTensor};

/// Graph outputs that replace rows of a program's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct StateRows {
    /// Additional outputs of the graph, which follow the computed outputs of the plan.
    pub tensors: Vec<RowTensor>,
    /// Updates of the states.
    pub updates: Vec<RowUpdate>,
}

/// An output of the graph without a binding.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RowTensor {
    /// Name in the graph.
    pub name: String,
    /// Type in the graph.
    pub dtype: Dtype,
    /// Dimensions in each specialization; one entry for a program without specializations.
    pub dims: Vec<Vec<i64>>,
}

/// Update of one state: a pair of bindings, and the written rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct RowUpdate {
    /// Index of the input that is the previous value.
    pub input: usize,
    /// Index of the output that is the next value, which the graph does not compute.
    pub output: usize,
    /// Index of the rows in [`StateRows::tensors`].
    pub rows: usize,
    /// Index of the tuples of indices in [`StateRows::tensors`].
    pub indices: usize,
    /// True if rows with a tuple outside of the state are ignored. If false, such a tuple is an error, and negative
    /// indices count from the end.
    #[serde(default)]
    pub skips_outside: bool,
    /// True if the graph reads the MXINT8 blocks of the previous value without conversion. The rows are always
    /// float32.
    #[serde(default)]
    pub reads_blocks: bool,
}

impl Plan {
    /// Checks that every update connects bindings of one type and shape, and that rows and indices match.
    pub fn check_state_rows(&self) -> Result<(), PlanError> {
        let Some(state) = &self.state_rows else { return Ok(()) };
        let count = self.variants.len().max(1);
        if let Some(tensor) = state.tensors.iter().find(|tensor| tensor.dims.len() != count) {
            return Err(PlanError::StateRows {
                name: tensor.name.clone(),
                found: format!("{} sets of dims for {count} specializations", tensor.dims.len()),
            });
        }
        let mut written = HashSet::new();
        for update in &state.updates {
            let refused = |name: &str, found: &str| {
                Err(PlanError::StateRows { name: name.to_owned(), found: found.to_owned() })
            };
            let Some(output) = self.outputs.get(update.output) else {
                return refused("", "an output that does not exist");
            };
            if !written.insert(update.output) {
                return refused(&output.name, "two updates");
            }
            match (
                self.inputs.get(update.input),
                state.tensors.get(update.rows),
                state.tensors.get(update.indices),
            ) {
                (Some(input), Some(rows), Some(indices)) => {
                    if !self.has_one_shape(update, input, output) {
                        return refused(&output.name, "a type or shape that differs from its input");
                    }
                    if update.reads_blocks && output.mxint8.is_none() {
                        return refused(&output.name, "a reader of MXINT8 blocks, but no blocks");
                    }
                    let (mut dims, mut dtype) = (output.dims.clone(), output.dtype);
                    if let (Some(columns), Some(last)) = (output.mxint8, dims.last_mut()) {
                        *last = i64::try_from(columns).unwrap_or(i64::MAX);
                        dtype = Dtype::Float32;
                    }
                    let fits = rows.dtype == dtype
                        && indices.dtype == Dtype::Int64
                        && rows.dims.iter().zip(&indices.dims).all(|(rows, indices)| {
                            // A number within a block has no address.
                            let is_whole = output.mxint8.is_none() || rows.len() >= indices.len();
                            is_whole && is_scattered(&dims, rows, indices)
                        });
                    if !fits {
                        return refused(&output.name, "rows and indices that do not fit it");
                    }
                }
                _ => return refused(&output.name, "an input or tensors that do not exist"),
            }
        }
        Ok(())
    }

    fn has_one_shape(&self, update: &RowUpdate, input: &PlanTensor, output: &PlanTensor) -> bool {
        let is_same = |dims: Option<&Vec<i64>>| dims == Some(&output.dims);
        input.dtype == output.dtype
            && input.mxint8 == output.mxint8
            && input.dims == output.dims
            && self.variants.iter().all(|variant| {
                is_same(variant.inputs.get(update.input)) && is_same(variant.outputs.get(update.output))
            })
    }
}

/// Returns true if rows of these dims can be written at tuples of these dims, in a tensor of dims `state`.
fn is_scattered(state: &[i64], rows: &[i64], indices: &[i64]) -> bool {
    let Some((&depth, tuples)) = indices.split_last() else { return false };
    let Some(row) =
        usize::try_from(depth).ok().filter(|&depth| depth > 0).and_then(|depth| state.get(depth..))
    else {
        return false;
    };
    rows.iter().eq(tuples.iter().chain(row))
}
