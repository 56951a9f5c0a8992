//! MXINT8 inputs and outputs of a graph that computes in float32.
//!
//! Blocks are converted to values before an execution, and values to blocks after it. The same conversion with
//! operators of the graph takes many times as long. The exec objects of a program share the memory for the values,
//! because they need it only during an execution.

use std::sync::Arc;

use qaic_mem::{HostSliceMut, Storage, StoragePool};
use qaic_qpc::plan::{Dtype, Plan, PlanTensor};

use super::engine::Bindings;
use crate::binding::mxint8::{blocks_bytes, from_blocks, to_blocks};
use crate::device::HostTensors;
use crate::error::{EngineError, ErrorDetail, RuntimeError};

/// The bindings of a program that contain blocks.
#[derive(Debug)]
pub(super) struct BlockTensors {
    // One entry per input and per output.
    inputs: Vec<Option<BlockTensor>>,
    outputs: Vec<Option<BlockTensor>>,
}

#[derive(Debug)]
struct BlockTensor {
    columns: usize,
    // One entry per specialization; one entry without specializations.
    block_bytes: Vec<usize>,
    // Values of the largest specialization, as float32.
    pool: Arc<StoragePool>,
}

impl BlockTensors {
    /// Replaces blocks with values in the plan of a graph; `None` if there are no blocks.
    pub(super) fn of(plan: &mut Plan) -> Result<Option<Arc<Self>>, RuntimeError> {
        if plan.inputs.iter().chain(&plan.outputs).all(|plan_tensor| plan_tensor.mxint8.is_none()) {
            return Ok(None);
        }
        let mut sets: Vec<_> = plan.variants.iter_mut().map(|variant| &mut variant.inputs).collect();
        let inputs = edges_of(&mut plan.inputs, &mut sets)?;
        let mut sets: Vec<_> = plan.variants.iter_mut().map(|variant| &mut variant.outputs).collect();
        let outputs = edges_of(&mut plan.outputs, &mut sets)?;
        Ok(Some(Arc::new(Self { inputs, outputs })))
    }
}

fn edges_of(
    plan_tensors: &mut [PlanTensor],
    sets: &mut [&mut Vec<Vec<i64>>],
) -> Result<Vec<Option<BlockTensor>>, RuntimeError> {
    let block_tensor = |(index, plan_tensor): (usize, &mut PlanTensor)| {
        let Some(columns) = plan_tensor.mxint8 else { return Ok(None) };
        let refused = || {
            ErrorDetail::Engine(EngineError::Graph {
                message: format!(
                    "tensor `{}` does not have blocks of rows of {columns} values",
                    plan_tensor.name
                ),
            })
        };
        let (mut value_bytes, mut block_bytes) = (Vec::new(), Vec::new());
        let mut decode = |dims: &mut Vec<i64>| {
            block_bytes.push(usize::try_from(Dtype::Uint8.dense_bytes(dims)?).ok()?);
            let row_bytes = blocks_bytes(1, usize::try_from(columns).ok()?)?;
            let last = dims.last_mut().filter(|last| usize::try_from(**last) == Ok(row_bytes))?;
            *last = i64::try_from(columns).ok()?;
            value_bytes.push(usize::try_from(Dtype::Float32.dense_bytes(dims)?).ok()?);
            Some(())
        };
        let mut dims = plan_tensor.dims.clone();
        decode(&mut dims).ok_or_else(refused)?;
        for set in sets.iter_mut() {
            decode(set.get_mut(index).ok_or_else(refused)?).ok_or_else(refused)?;
        }
        let largest = value_bytes.into_iter().max().unwrap_or(0);
        // The first entry was for the largest dims, which no specialization needs to have.
        if block_bytes.len() > 1 {
            block_bytes.remove(0);
        }
        plan_tensor.dims = dims;
        plan_tensor.dtype = Dtype::Float32;
        let pool = StoragePool::new(largest, 1);
        Ok(Some(BlockTensor { columns: usize::try_from(columns).unwrap_or(usize::MAX), block_bytes, pool }))
    };
    plan_tensors.iter_mut().enumerate().map(block_tensor).collect()
}

/// The blocks that one exec object reads and writes.
#[derive(Debug)]
pub(super) struct BlockBindings {
    tensors: Arc<BlockTensors>,
    variant: usize,
}

impl BlockBindings {
    pub(super) fn new(tensors: &Arc<BlockTensors>) -> Self {
        Self { tensors: Arc::clone(tensors), variant: 0 }
    }

    pub(super) fn select_shapes(&mut self, variant: usize) {
        self.variant = variant;
    }

    /// Runs the graph on the values of the blocks.
    pub(super) fn execute(
        &mut self,
        bindings: &mut Bindings,
        tensors: &mut HostTensors<'_, '_>,
    ) -> Result<(), RuntimeError> {
        let (block_tensors, variant) = (&*self.tensors, self.variant);
        let mut values = Vec::new();
        for (block_tensor, blocks) in block_tensors.inputs.iter().zip(tensors.inputs) {
            let (Some(block_tensor), Some(blocks)) = (block_tensor, blocks) else { continue };
            block_tensor.check(variant, blocks.len())?;
            let mut storage = block_tensor.pool.take()?;
            from_blocks::<f32>(
                block_tensor.columns,
                *blocks,
                storage.memory_mut().first(block_tensor.value_bytes(variant)),
            );
            values.push(storage);
        }
        let mut results = Vec::new();
        for (block_tensor, blocks) in block_tensors.outputs.iter().zip(&*tensors.outputs) {
            let (Some(block_tensor), Some(blocks)) = (block_tensor, blocks) else { continue };
            block_tensor.check(variant, blocks.len())?;
            results.push(block_tensor.pool.take()?);
        }
        let mut values = values.iter();
        let inputs = block_tensors.inputs.iter().zip(tensors.inputs);
        let inputs: Vec<_> = inputs
            .map(|(block_tensor, memory)| match block_tensor {
                Some(_) => memory.and_then(|_| values.next()).map(Storage::memory),
                None => *memory,
            })
            .collect();
        let mut next = results.iter_mut();
        let outputs = block_tensors.outputs.iter().zip(tensors.outputs.iter_mut());
        let mut outputs: Vec<_> = outputs
            .map(|(block_tensor, memory)| match block_tensor {
                Some(_) => memory.as_ref().and_then(|_| next.next()).map(Storage::memory_mut),
                None => memory.as_mut().map(HostSliceMut::reborrow),
            })
            .collect();
        bindings.execute(&mut HostTensors { inputs: &inputs, outputs: &mut outputs })?;
        let mut results = results.iter();
        for (block_tensor, blocks) in block_tensors.outputs.iter().zip(tensors.outputs.iter_mut()) {
            let (Some(block_tensor), Some(blocks)) = (block_tensor, blocks) else { continue };
            let Some(storage) = results.next() else { continue };
            let values = storage.memory();
            let values = values.subslice(0, block_tensor.value_bytes(variant)).unwrap_or(values);
            to_blocks::<f32>(block_tensor.columns, values, blocks.reborrow());
        }
        Ok(())
    }
}

impl BlockTensor {
    fn bytes_in(&self, variant: usize) -> usize {
        self.block_bytes.get(variant).or(self.block_bytes.first()).copied().unwrap_or(0)
    }

    fn check(&self, variant: usize, found: usize) -> Result<(), RuntimeError> {
        let expected = self.bytes_in(variant);
        if found >= expected {
            return Ok(());
        }
        Err(RuntimeError::internal(format!("{found} bytes bound for blocks of {expected}")))
    }

    /// Bytes of the values that a specialization uses.
    fn value_bytes(&self, variant: usize) -> usize {
        let row_bytes = blocks_bytes(1, self.columns).unwrap_or(usize::MAX).max(1);
        self.bytes_in(variant) / row_bytes * self.columns * size_of::<f32>()
    }
}
