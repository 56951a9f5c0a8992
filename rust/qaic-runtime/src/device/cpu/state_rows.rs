//! Retained state that is written row by row.
//!
//! A graph may compute the changed rows of a state and their positions, instead of the whole next value
//! ([`qaic_qpc::plan::StateRows`]). The rows are written after a successful execution, so a failed or cancelled
//! execution leaves the state unchanged. A caller with one buffer for the previous and the next value provides no
//! memory for the output, and requests the write afterwards. Otherwise, the previous value is copied first.

use std::mem;
use std::sync::Arc;

use qaic_mem::{HostSlice, HostSliceMut, Storage};
use qaic_qpc::plan::{Plan, PlanTensor, RowTensor, RowUpdate};

use crate::binding::mxint8::{blocks_bytes, to_blocks};
use crate::device::{HostTensors, emptied_mut};
use crate::error::{EngineError, RuntimeError};

/// Maximum number of dims that indices address.
const MAX_DEPTH: usize = 8;

/// Graph outputs that replace rows of a program's state.
#[derive(Debug)]
pub(super) struct StateRows {
    updates: Vec<StateUpdate>,
    // Size of each tensor that is not a binding, in each specialization.
    tensor_bytes: Vec<Vec<usize>>,
    // True for each output of the program that the graph computes.
    is_computed: Vec<bool>,
}

#[derive(Debug)]
struct StateUpdate {
    name: String,
    // Indices of bindings.
    input: usize,
    output: usize,
    // Indices of tensors that are not bindings.
    rows: usize,
    indices: usize,
    // True if a tuple outside the state is skipped.
    skips_outside: bool,
    // Sizes of the dims that a tuple indexes, and the stride of each in bytes.
    sizes: Vec<usize>,
    strides: Vec<usize>,
    // Size of a row that the graph computes.
    row_bytes: usize,
    // Size of a row of the state and its number of values, if the state consists of MXINT8 blocks.
    blocks: Option<(usize, usize)>,
}

impl StateRows {
    /// Replaces the outputs of the program in a plan with those of the graph; `None` if they are equal.
    pub(super) fn of(plan: &mut Plan) -> Result<Option<Arc<Self>>, RuntimeError> {
        plan.check_state_rows()?;
        let Some(state) = plan.state_rows.take() else { return Ok(None) };
        let mut is_computed = vec![true; plan.outputs.len()];
        let mut updates = Vec::with_capacity(state.updates.len());
        for update in &state.updates {
            let described = plan.outputs.get(update.output).zip(state.tensors.get(update.indices));
            let found = described.and_then(|(output, indices)| StateUpdate::of(update, output, indices));
            if update.reads_blocks
                && let Some(input) = plan.inputs.get_mut(update.input)
            {
                input.mxint8 = None;
            }
            let found = found.ok_or_else(|| {
                RuntimeError::internal(format!(
                    "state whose sizes are not those that were checked: {update:?}"
                ))
            })?;
            if let Some(is_computed) = is_computed.get_mut(update.output) {
                *is_computed = false;
            }
            updates.push(found);
        }
        let tensor_bytes = state.tensors.iter().map(bytes_of).collect::<Result<_, _>>()?;
        keep(&mut plan.outputs, &is_computed);
        for (number, variant) in plan.variants.iter_mut().enumerate() {
            keep(&mut variant.outputs, &is_computed);
            variant
                .outputs
                .extend(state.tensors.iter().filter_map(|tensor| tensor.dims.get(number).cloned()));
        }
        plan.outputs.extend(state.tensors.into_iter().map(|tensor| PlanTensor {
            dims: tensor.dims.into_iter().next().unwrap_or_default(),
            name: tensor.name,
            dtype: tensor.dtype,
            mxint8: None,
        }));
        Ok(Some(Arc::new(Self { updates, tensor_bytes, is_computed })))
    }
}

impl StateRows {
    /// Bytes of a tensor without a binding, in a specialization.
    fn bytes(&self, number: usize, variant: usize) -> usize {
        self.tensor_bytes.get(number).and_then(|bytes| bytes.get(variant)).copied().unwrap_or(0)
    }

    /// Returns true if the graph computes rows instead of output `output`.
    pub(super) fn updates(&self, output: usize) -> bool {
        self.is_computed.get(output) == Some(&false)
    }
}

/// Removes the elements that are not computed.
fn keep<T>(list: &mut Vec<T>, is_computed: &[bool]) {
    let mut flags = is_computed.iter();
    list.retain(|_| flags.next().copied().unwrap_or(true));
}

fn bytes_of(tensor: &RowTensor) -> Result<Vec<usize>, RuntimeError> {
    let bytes =
        |dims: &Vec<i64>| tensor.dtype.dense_bytes(dims).and_then(|bytes| usize::try_from(bytes).ok());
    let sizes: Option<_> = tensor.dims.iter().map(bytes).collect();
    sizes.ok_or_else(|| {
        let message = format!("tensor `{}`: dims {:?} are not dense shapes", tensor.name, tensor.dims);
        EngineError::Graph { message }.into()
    })
}

impl StateUpdate {
    fn of(update: &RowUpdate, output: &PlanTensor, indices: &RowTensor) -> Option<Self> {
        let depth = usize::try_from(*indices.dims.first()?.last()?).ok()?;
        let dims: Vec<_> = output.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?;
        let item_bytes = usize::try_from(output.dtype.size_bytes()).ok()?;
        let (sizes, row) = dims.split_at_checked(depth)?;
        let held_bytes = row.iter().try_fold(item_bytes, |bytes, &size| bytes.checked_mul(size))?;
        let (mut row_bytes, mut blocks) = (held_bytes, None);
        if let Some(columns) = output.mxint8 {
            let columns = usize::try_from(columns).ok()?;
            let count = held_bytes.checked_div(blocks_bytes(1, columns)?)?;
            row_bytes = count.checked_mul(columns)?.checked_mul(size_of::<f32>())?;
            blocks = Some((columns, held_bytes));
        }
        let mut strides = vec![0; depth];
        let mut step = held_bytes;
        for (stride, &size) in strides.iter_mut().zip(sizes).rev() {
            *stride = step;
            step = step.checked_mul(size)?;
        }
        let sizes = sizes.to_vec();
        let RowUpdate { input, output: place, rows, indices, skips_outside, reads_blocks: _ } = *update;
        Some(Self {
            name: output.name.clone(),
            input,
            output: place,
            rows,
            indices,
            skips_outside,
            sizes,
            strides,
            row_bytes,
            blocks,
        })
    }

    /// Returns the offset of a row in the state; `None` for a row outside of it.
    fn place(&self, tuple: &[i64]) -> Option<usize> {
        let mut place = 0;
        for ((&index, &size), &stride) in tuple.iter().zip(&self.sizes).zip(&self.strides) {
            let index = match usize::try_from(index) {
                Err(_) if !self.skips_outside => {
                    size.checked_sub(usize::try_from(index.unsigned_abs()).ok()?)?
                }
                index => index.ok()?,
            };
            place += (index < size).then_some(index)? * stride;
        }
        Some(place)
    }

    /// Calls `write` with the offsets of every row, in the state and in the rows.
    fn each(
        &self,
        indices: HostSlice<'_>,
        mut write: impl FnMut(usize, usize) -> Option<()>,
    ) -> Result<(), RuntimeError> {
        let outside = |tuple: &[i64]| {
            let message = format!(
                "retained output `{}`: a row was written at {tuple:?}, which is outside {:?}",
                self.name, self.sizes
            );
            RuntimeError::from(EngineError::Inference { status: "QS_ERROR", message })
        };
        let mut buffer = [0_i64; MAX_DEPTH];
        let Some(tuple) = buffer.get_mut(..self.sizes.len()) else { return Err(outside(&[])) };
        let tuple_bytes = size_of_val::<[i64]>(tuple);
        for number in 0..indices.len() / tuple_bytes.max(1) {
            indices.read_into(number * tuple_bytes, tuple).ok_or_else(|| outside(&[]))?;
            match self.place(tuple) {
                Some(place) => write(place, number * self.row_bytes).ok_or_else(|| outside(tuple))?,
                None if self.skips_outside => {}
                None => return Err(outside(tuple)),
            }
        }
        Ok(())
    }
}

/// The rows of one exec object.
#[derive(Debug)]
pub(super) struct RowBindings {
    shared: Arc<StateRows>,
    // Memory of the tensors that are not bindings, each with room for its largest shape.
    memory: Vec<Storage>,
    variant: usize,
    // Reused for the list of an execution; empty between executions.
    output_list: Vec<Option<HostSliceMut<'static>>>,
}

impl RowBindings {
    pub(super) fn new(shared: &Arc<StateRows>) -> Result<Self, RuntimeError> {
        let largest = |bytes: &Vec<usize>| bytes.iter().copied().max().unwrap_or(0);
        let memory = shared.tensor_bytes.iter().map(|bytes| Storage::new(largest(bytes)));
        let memory = memory.collect::<Result<Vec<_>, _>>()?;
        let output_list = Vec::with_capacity(shared.is_computed.len() + memory.len());
        Ok(Self { shared: Arc::clone(shared), memory, variant: 0, output_list })
    }

    pub(super) fn select_shapes(&mut self, variant: usize) {
        self.variant = variant;
    }

    /// Calls `run` to compute the graph's outputs from the inputs, and writes the states that have memory.
    pub(super) fn execute(
        &mut self,
        tensors: &mut HostTensors<'_, '_>,
        run: impl FnOnce(&mut HostTensors<'_, '_>) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        let Self { shared, memory, variant, output_list } = self;
        let mut outputs = emptied_mut(mem::take(output_list));
        let computed = tensors.outputs.iter_mut().zip(&shared.is_computed).filter(|(_, computed)| **computed);
        outputs.extend(computed.map(|(memory, _)| memory.as_mut().map(HostSliceMut::reborrow)));
        for (number, memory) in memory.iter_mut().enumerate() {
            outputs.push(Some(memory.memory_mut().first(shared.bytes(number, *variant))));
        }
        let outcome = run(&mut HostTensors { inputs: tensors.inputs, outputs: &mut outputs });
        *output_list = emptied_mut(outputs);
        outcome?;
        // Checks everything before the first write.
        for update in &self.shared.updates {
            let rows = self.tensor(update.rows);
            update
                .each(self.tensor(update.indices), |_, at| rows.subslice(at, update.row_bytes).map(drop))?;
        }
        for update in &self.shared.updates {
            let Some(Some(state)) = tensors.outputs.get_mut(update.output) else { continue };
            if let Some(Some(before)) = tensors.inputs.get(update.input) {
                state.copy_from(*before);
            }
            self.write_rows(update, state.reborrow())?;
        }
        Ok(())
    }

    /// Writes the rows that the last execution computed for output `output`.
    pub(super) fn write(&self, output: usize, state: HostSliceMut<'_>) -> Result<(), RuntimeError> {
        let update = self.shared.updates.iter().find(|update| update.output == output);
        let unknown = || RuntimeError::internal(format!("output {output} is not written row by row"));
        self.write_rows(update.ok_or_else(unknown)?, state)
    }

    fn write_rows(&self, update: &StateUpdate, mut state: HostSliceMut<'_>) -> Result<(), RuntimeError> {
        let rows = self.tensor(update.rows);
        update.each(self.tensor(update.indices), |place, at| {
            let row = rows.subslice(at, update.row_bytes)?;
            match update.blocks {
                None => {
                    state.reborrow().subslice(place, update.row_bytes)?.copy_from(row);
                }
                Some((columns, bytes)) => {
                    to_blocks::<f32>(columns, row, state.reborrow().subslice(place, bytes)?);
                }
            }
            Some(())
        })
    }

    /// Returns a result of the last execution.
    fn tensor(&self, number: usize) -> HostSlice<'_> {
        let bytes = self.shared.bytes(number, self.variant);
        let memory = self.memory.get(number).and_then(|memory| memory.memory().subslice(0, bytes));
        memory.unwrap_or(HostSlice::empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use qaic_qpc::plan::{Dtype, StateRows as PlanRows};

    use super::*;
    use crate::error::ErrorDetail;

    const COLUMNS: usize = 3;

    fn plan(slots: usize, context: usize, count: usize, skips_outside: bool) -> Plan {
        let dims = |dims: &[usize]| dims.iter().map(|&dim| i64::try_from(dim).unwrap()).collect::<Vec<_>>();
        let tensor = |name: &str, of: &[usize]| PlanTensor {
            name: name.to_owned(),
            dtype: Dtype::Float32,
            dims: dims(of),
            mxint8: None,
        };
        Plan {
            inputs: vec![tensor("x", &[1]), tensor("past", &[slots, context, COLUMNS])],
            outputs: vec![tensor("past_RetainedState", &[slots, context, COLUMNS]), tensor("y", &[1])],
            state_rows: Some(PlanRows {
                tensors: vec![
                    RowTensor {
                        name: "rows".to_owned(),
                        dtype: Dtype::Float32,
                        dims: vec![dims(&[count, COLUMNS])],
                    },
                    RowTensor { name: "at".to_owned(), dtype: Dtype::Int64, dims: vec![dims(&[count, 2])] },
                ],
                updates: vec![RowUpdate {
                    input: 1,
                    output: 0,
                    rows: 0,
                    indices: 1,
                    skips_outside,
                    reads_blocks: false,
                }],
            }),
            ..Plan::default()
        }
    }

    /// Returns the state after an execution with these results; the state is one buffer if `is_in_place`.
    fn written(
        (slots, context): (usize, usize),
        before: &[f32],
        rows: &[f32],
        at: &[i64],
        outcome: Result<(), RuntimeError>,
        (is_in_place, skips_outside): (bool, bool),
    ) -> (Result<(), RuntimeError>, Vec<f32>) {
        let mut plan = plan(slots, context, at.len() / 2, skips_outside);
        let shared = StateRows::of(&mut plan).unwrap().unwrap();
        assert_eq!(
            plan.outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>(),
            ["y", "rows", "at"]
        );
        let mut bindings = RowBindings::new(&shared).unwrap();
        let (x, mut y) = (Storage::new(4).unwrap(), Storage::new(4).unwrap());
        let mut value = Storage::of(before).unwrap();
        let mut next = Storage::new(size_of_val(before)).unwrap();
        let inputs = [Some(x.memory()), Some(value.memory())];
        let mut outputs = [(!is_in_place).then(|| next.memory_mut()), Some(y.memory_mut())];
        let mut tensors = HostTensors { inputs: &inputs, outputs: &mut outputs };
        let mut ended = bindings.execute(&mut tensors, |graph| {
            assert_eq!((graph.inputs.len(), graph.outputs.len()), (2, 3));
            graph.outputs[1].as_mut().unwrap().write_from(0, rows).unwrap();
            graph.outputs[2].as_mut().unwrap().write_from(0, at).unwrap();
            outcome
        });
        if ended.is_ok() && is_in_place {
            ended = bindings.write(0, value.memory_mut());
        }
        let mut found = vec![0.0; before.len()];
        let memory = if is_in_place { value.memory() } else { next.memory() };
        memory.read_into(0, &mut found).unwrap();
        (ended, found)
    }

    fn numbers(count: usize) -> Vec<f32> {
        (0..u8::MAX).cycle().take(count).map(f32::from).collect()
    }

    proptest! {
        #[test]
        fn rows_go_where_their_indices_say(
            (slots, context) in (1_usize..4, 1_usize..6),
            places in prop::collection::vec((any::<usize>(), any::<usize>(), any::<bool>()), 0..6),
            is_in_place in any::<bool>(),
        ) {
            let before: Vec<f32> = numbers(slots * context * COLUMNS);
            let rows: Vec<f32> = numbers(places.len() * COLUMNS).iter().map(|value| -1.0 - value).collect();
            let mut expected = before.clone();
            let mut at = Vec::new();
            for (number, (slot, row, from_end)) in places.iter().enumerate() {
                let (slot, row) = (slot % slots, row % context);
                let start = (slot * context + row) * COLUMNS;
                expected[start..start + COLUMNS]
                    .copy_from_slice(&rows[number * COLUMNS..(number + 1) * COLUMNS]);
                let row = i64::try_from(row).unwrap() - if *from_end { i64::try_from(context).unwrap() } else { 0 };
                at.extend([i64::try_from(slot).unwrap(), row]);
            }
            let (ended, found) = written((slots, context), &before, &rows, &at, Ok(()), (is_in_place, false));
            prop_assert!(ended.is_ok());
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn rows_outside_are_skipped_where_that_is_said(
            (slots, context) in (1_usize..4, 1_usize..6),
            places in prop::collection::vec((-2_i64..5, -2_i64..8), 0..6),
            is_in_place in any::<bool>(),
        ) {
            let before: Vec<f32> = numbers(slots * context * COLUMNS);
            let rows: Vec<f32> = numbers(places.len() * COLUMNS).iter().map(|value| -1.0 - value).collect();
            let mut expected = before.clone();
            for (number, (slot, row)) in places.iter().enumerate() {
                let inside = |index: i64, size| usize::try_from(index).ok().filter(|&index| index < size);
                if let Some((slot, row)) = inside(*slot, slots).zip(inside(*row, context)) {
                    let start = (slot * context + row) * COLUMNS;
                    expected[start..start + COLUMNS]
                        .copy_from_slice(&rows[number * COLUMNS..(number + 1) * COLUMNS]);
                }
            }
            let at: Vec<i64> = places.iter().flat_map(|(slot, row)| [*slot, *row]).collect();
            let (ended, found) = written((slots, context), &before, &rows, &at, Ok(()), (is_in_place, true));
            prop_assert!(ended.is_ok());
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn failure_or_a_row_outside_leaves_the_state() {
        let before: Vec<f32> = (0_u8..12).map(f32::from).collect();
        let rows = [-1.0; 6];
        let (ended, found) = written(
            (2, 2),
            &before,
            &rows,
            &[0, 0, 1, 1],
            Err(ErrorDetail::Interrupted.into()),
            (true, false),
        );
        assert!(ended.unwrap_err().is_interrupted());
        assert_eq!(found, before);
        for outside in [[0, 0, 2, 0], [0, 1, 0, 2], [0, 0, -3, 0], [0, 0, 0, i64::MIN], [0, 0, i64::MAX, 0]] {
            let (ended, found) = written((2, 2), &before, &rows, &outside, Ok(()), (true, false));
            assert!(ended.unwrap_err().to_string().contains("outside [2, 2]"), "{outside:?}");
            assert_eq!(found, before, "{outside:?}");
        }
    }
}
