//! One inference at a time: the caller's buffers in, the caller's buffers out.

use std::sync::Arc;

use crate::buffer::{HostSlice, HostSliceMut};
use crate::device::{Activation, Canceller, Exec};
use crate::error::RuntimeError;
use crate::transfer::{BindingTransfer, Place, Route, TransferPlan};

/// Carries one inference of an activated program. Exec objects of one program run independently of each other.
#[derive(Debug)]
pub struct ExecObj {
    exec: Box<dyn Exec>,
    transfers: Arc<TransferPlan>,
    // Views of the device's DMA buffers, taken when they are first needed.
    dma_buffers: Vec<Option<HostSliceMut>>,
    // All of them in order, for runs that use all.
    staging: Vec<HostSliceMut>,
    // Per DMA buffer, the bytes in use where partial inputs were packed, else 0.
    resize: Vec<u32>,
}

impl ExecObj {
    pub(crate) fn new(
        activation: &Arc<dyn Activation>,
        transfers: &Arc<TransferPlan>,
    ) -> Result<Self, RuntimeError> {
        let exec = activation.create_exec()?;
        let dma_buffers = vec![None; transfers.dma_bytes().len()];
        Ok(Self {
            exec,
            transfers: Arc::clone(transfers),
            dma_buffers,
            staging: Vec::new(),
            resize: Vec::new(),
        })
    }

    /// Runs one inference on the calling thread.
    ///
    /// `inputs` and `outputs` are in binding order; an output that is `None` is computed and not delivered. On a device
    /// that works on host memory, tensors that need no conversion are used where they lie.
    ///
    /// Blocking: as long as the device takes.
    pub fn run(
        &mut self,
        inputs: &[HostSlice],
        outputs: &[Option<HostSliceMut>],
    ) -> Result<(), RuntimeError> {
        let expected = (self.transfers.inputs().len(), self.transfers.outputs().len());
        if (inputs.len(), outputs.len()) != expected {
            return Err(RuntimeError::Argument {
                what: format!(
                    "{} inputs and {} outputs given; the program has {} and {}",
                    inputs.len(),
                    outputs.len(),
                    expected.0,
                    expected.1
                ),
            });
        }
        if self.exec.binds_in_place() && !self.transfers.has_partial_inputs() {
            self.run_in_place(inputs, outputs)
        } else {
            self.run_staged(inputs, outputs)
        }
    }

    /// The handle that ends a run early.
    pub fn canceller(&self) -> Arc<dyn Canceller> {
        self.exec.canceller()
    }

    /// Everything goes through the DMA buffers.
    fn run_staged(
        &mut self,
        inputs: &[HostSlice],
        outputs: &[Option<HostSliceMut>],
    ) -> Result<(), RuntimeError> {
        for index in self.staging.len()..self.dma_buffers.len() {
            let buffer = self.dma_buffer(index)?;
            self.staging.push(buffer);
        }
        self.transfers.pre_process(inputs, &self.staging, &mut self.resize)?;
        self.exec.execute()?;
        let transfers = Arc::clone(&self.transfers);
        for (index, (transfer, memory)) in transfers.outputs().iter().zip(outputs).enumerate() {
            if let (Some(place), Some(memory)) = (transfer.place(), memory) {
                let buffer = self.dma_buffer(place.buffer)?;
                transfers.fetch_output(index, buffer.as_const(), *memory)?;
            }
        }
        Ok(())
    }

    /// Only what needs a conversion, or has no memory of the caller's, touches a DMA buffer.
    fn run_in_place(
        &mut self,
        inputs: &[HostSlice],
        outputs: &[Option<HostSliceMut>],
    ) -> Result<(), RuntimeError> {
        let transfers = Arc::clone(&self.transfers);
        for (index, (transfer, memory)) in transfers.inputs().iter().zip(inputs).enumerate() {
            let Some(place) = transfer.place() else { continue };
            let bound = if matches!(transfer.route(), Route::Direct) {
                memory.subslice(0, transfer.user_bytes()).ok_or_else(|| wrong_size(transfer, memory.len()))?
            } else {
                transfers.stage_input(index, *memory, self.dma_buffer(place.buffer)?)?;
                self.tensor_in_dma(place)?.as_const()
            };
            self.exec.bind_input(index, bound)?;
        }
        for (index, (transfer, memory)) in transfers.outputs().iter().zip(outputs).enumerate() {
            let Some(place) = transfer.place() else { continue };
            let bound = match memory {
                Some(memory) if delivers_in_place(transfer, *memory) => *memory,
                _ => self.tensor_in_dma(place)?,
            };
            self.exec.bind_output(index, bound)?;
        }
        self.exec.execute()?;
        for (index, (transfer, memory)) in transfers.outputs().iter().zip(outputs).enumerate() {
            if let (Some(place), Some(memory)) = (transfer.place(), memory)
                && !delivers_in_place(transfer, *memory)
            {
                let buffer = self.dma_buffer(place.buffer)?;
                transfers.fetch_output(index, buffer.as_const(), *memory)?;
            }
        }
        Ok(())
    }

    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut, RuntimeError> {
        let outside = || RuntimeError::Internal { what: format!("DMA buffer {index} does not exist") };
        let slot = self.dma_buffers.get_mut(index).ok_or_else(outside)?;
        match slot {
            Some(memory) => Ok(*memory),
            None => Ok(*slot.insert(self.exec.dma_buffer(index)?)),
        }
    }

    fn tensor_in_dma(&mut self, place: Place) -> Result<HostSliceMut, RuntimeError> {
        let memory = self.dma_buffer(place.buffer)?;
        memory.subslice(place.offset, place.bytes).ok_or_else(|| RuntimeError::Internal {
            what: format!("{place:?} does not lie in a DMA buffer of {} bytes", memory.len()),
        })
    }
}

/// Whether the device can write this output where the caller wants it: unconverted, and with room for all of it.
fn delivers_in_place(transfer: &BindingTransfer, memory: HostSliceMut) -> bool {
    matches!(transfer.route(), Route::Direct) && memory.len() >= transfer.user_bytes()
}

fn wrong_size(transfer: &BindingTransfer, found: usize) -> RuntimeError {
    RuntimeError::BufferSize {
        buffer: transfer.name().to_owned(),
        expected: transfer.user_bytes() as u64,
        found: found as u64,
    }
}
