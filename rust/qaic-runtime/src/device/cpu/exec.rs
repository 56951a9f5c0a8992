//! The exec of a virtual card: one inference at a time.

use std::sync::Arc;

use qaic_mem::{HostSlice, HostSliceMut, Storage};

use super::engine::Terminator;
use super::executable::Executable;
use super::execution::Execution;
use crate::device::{Canceller, Exec, HostTensors};
use crate::error::RuntimeError;
use crate::image::Image;
use crate::profiling::{Identity, Stages};

#[derive(Debug)]
pub(super) struct CpuExec {
    image: Arc<Image>,
    execution: Execution,
    // Memory of the statistics; allocated for the first measured inference.
    stats: Option<Storage>,
}

impl CpuExec {
    pub(super) fn new(image: &Arc<Image>, executable: &Executable) -> Result<Self, RuntimeError> {
        Ok(Self { image: Arc::clone(image), execution: Execution::new(executable)?, stats: None })
    }
}

impl Exec for CpuExec {
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut<'_>, RuntimeError> {
        Err(RuntimeError::internal(format!("DMA buffer {index} of a device that works in place")))
    }

    fn works_in_place(&self) -> bool {
        true
    }

    fn execute_in_place(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        self.execution.execute(tensors)
    }

    fn write_state(&mut self, output: usize, state: HostSliceMut<'_>) -> Result<(), RuntimeError> {
        self.execution.write_state(output, state)
    }

    fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        self.execution.select_shapes(variant)
    }

    fn measure(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        self.execution.measure(tensors)
    }

    fn write_stats(&mut self, stages: &Stages, identity: Identity) -> Result<HostSlice<'_>, RuntimeError> {
        let Self { image, execution, stats } = self;
        let missing = || RuntimeError::internal("the program has no buffer of statistics");
        let network = &image.network;
        let place = network.stats.as_ref().ok_or_else(missing)?.buff_num as usize;
        let size = network.dma_buffers.get(place).ok_or_else(missing)?.size;
        let storage = match stats {
            Some(storage) => storage,
            None => stats.insert(Storage::new(size as usize)?),
        };
        execution.write_stats(stages, identity, storage.memory_mut());
        Ok(storage.memory())
    }

    fn execute(&mut self) -> Result<(), RuntimeError> {
        Err(RuntimeError::internal("an execution of DMA buffers on a device that has none"))
    }

    fn canceller(&self) -> Arc<dyn Canceller> {
        self.execution.terminator()
    }
}

impl Canceller for Terminator {
    fn cancel(&self) {
        self.terminate();
    }
}
