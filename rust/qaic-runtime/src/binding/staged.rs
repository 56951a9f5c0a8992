//! Inferences of devices with DMA buffers: copies the inputs into the buffers before, and the outputs from them
//! after.

use std::mem;

use qaic_mem::{HostSlice, HostSliceMut};

use super::retained::{Retained, RetainedValues};
use super::sources::Sources;
use super::window;
use crate::binding::{Bindings, DmaBuffers, OutputBinding, Place, TransferPlan, Window};
use crate::device::{Exec, emptied};
use crate::error::RuntimeError;

/// Memory and transforms that move tensors through DMA buffers.
#[derive(Debug)]
pub(super) struct Staged {
    // Reused for the inputs of an inference; empty between inferences.
    inputs: Vec<Option<HostSlice<'static>>>,
    // Number of bytes in use per DMA buffer with packed partial inputs, else 0.
    resize: Vec<u32>,
    // Output of the statistics, which no graph computes.
    stats_output: Option<usize>,
}

impl Staged {
    pub(super) fn new(transfers: &TransferPlan, stats_output: Option<usize>) -> Self {
        Self { inputs: Vec::with_capacity(transfers.inputs.len()), resize: Vec::new(), stats_output }
    }

    /// Moves all inputs into the DMA buffers, except those that the device moves itself.
    pub(super) fn stage(
        &mut self,
        exec: &mut dyn Exec,
        bindings: &Bindings,
        transfers: &TransferPlan,
        values: Option<&RetainedValues<'_>>,
    ) -> Result<(), RuntimeError> {
        let sources = Sources { inputs: &bindings.inputs, windows: &bindings.windows, values };
        let mut inputs = emptied(mem::take(&mut self.inputs));
        for (index, transfer) in transfers.inputs.iter().enumerate() {
            inputs.push(sources.get(index, transfer)?);
        }
        transfers.stage(&inputs, exec, &mut self.resize)?;
        self.inputs = emptied(inputs);
        if transfers.has_partial_inputs() {
            exec.set_transfer_bytes(&self.resize);
        }
        Ok(())
    }

    /// Moves all requested outputs from the DMA buffers.
    pub(super) fn fetch(
        &self,
        exec: &mut dyn Exec,
        bindings: &mut Bindings,
        transfers: &TransferPlan,
        mut retained: Option<&mut Retained>,
    ) -> Result<(), RuntimeError> {
        let Bindings { outputs, windows, .. } = bindings;
        for (index, (transfer, binding)) in transfers.outputs.iter().zip(outputs).enumerate() {
            let Some(place) = transfer.place.filter(|_| self.stats_output != Some(index)) else { continue };
            let is_wanted = |window: &Window| window.binding == transfers.inputs.len() + index;
            let memory = match binding {
                OutputBinding::Memory(memory) => Some(memory.as_mut()),
                OutputBinding::Dropped | OutputBinding::DmaBuf { .. } => None,
            };
            let kept = retained.as_deref_mut().and_then(|retained| retained.next_mut(index));
            if kept.is_none() && memory.is_none() && !windows.iter().any(is_wanted) {
                continue;
            }
            let buffer = exec.dma_buffer(place.buffer)?.into_const();
            let mut result = in_buffer(place, buffer)?;
            if let Some(memory) = memory {
                transfer.fetch(result, memory)?;
            }
            if let Some(mut kept) = kept {
                transfer.fetch(result, kept.reborrow())?;
                result = kept.into_const();
            }
            window::download_of(windows, transfers, index, result)?;
        }
        Ok(())
    }
}

impl DmaBuffers for dyn Exec + '_ {
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut<'_>, RuntimeError> {
        Exec::dma_buffer(self, index)
    }
}

/// Returns the device's tensor in its DMA buffer.
fn in_buffer(place: Place, buffer: HostSlice<'_>) -> Result<HostSlice<'_>, RuntimeError> {
    buffer.subslice(place.offset, place.bytes).ok_or_else(|| {
        RuntimeError::internal(format!("{place:?} is not inside a DMA buffer of {} bytes", buffer.len()))
    })
}
