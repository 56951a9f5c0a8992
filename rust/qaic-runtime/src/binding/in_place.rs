//! Executions of devices that work on the host's memory.
//!
//! The device uses the caller's memory for each tensor that needs no conversion. Other tensors, and outputs without
//! memory of the caller, have a buffer here.

use std::mem;

use qaic_mem::{HostSlice, HostSliceMut, Storage};

use super::retained::{Retained, RetainedNext, RetainedValues};
use super::sources::Sources;
use super::window;
use crate::binding::{BindingTransfer, Bindings, InputBinding, OutputBinding, Route, TransferPlan};
use crate::device::{Exec, HostTensors, emptied, emptied_mut};
use crate::error::RuntimeError;

/// Memory that in-place executions need in addition to the caller's.
#[derive(Debug)]
pub(super) struct InPlace {
    // Allocated at the first use.
    inputs: Vec<Option<Storage>>,
    outputs: Vec<Option<Storage>>,
    // True for each output that the last execution wrote into the caller's memory.
    is_delivered: Vec<bool>,
    // Output of the statistics, which no graph computes.
    stats_output: Option<usize>,
    // Reused for the lists of an execution; empty between executions.
    input_list: Vec<Option<HostSlice<'static>>>,
    output_list: Vec<Option<HostSliceMut<'static>>>,
}

impl InPlace {
    pub(super) fn new(transfers: &TransferPlan, stats_output: Option<usize>) -> Self {
        let (inputs, outputs) = (transfers.inputs.len(), transfers.outputs.len());
        Self {
            inputs: (0..inputs).map(|_| None).collect(),
            outputs: (0..outputs).map(|_| None).collect(),
            is_delivered: vec![false; outputs],
            stats_output,
            input_list: Vec::with_capacity(inputs),
            output_list: Vec::with_capacity(outputs),
        }
    }

    /// Calls `work` with the tensors in their final memory.
    pub(super) fn with_tensors(
        &mut self,
        bindings: &mut Bindings,
        transfers: &TransferPlan,
        retained: Option<&mut Retained>,
        work: impl FnOnce(&mut HostTensors<'_, '_>) -> Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        let (values, mut next) = retained.map(Retained::split).unzip();
        let values: Option<&RetainedValues<'_>> = values.as_ref();
        let is_updated = |index| values.is_some_and(|values| values.is_updated(index));
        let sources = Sources { inputs: &bindings.inputs, windows: &bindings.windows, values };
        let mut inputs = emptied(mem::take(&mut self.input_list));
        for ((index, transfer), staged) in transfers.inputs.iter().enumerate().zip(&mut self.inputs) {
            inputs.push(match sources.get(index, transfer)? {
                Some(source) if transfer.place.is_some() => Some(read_from(transfer, source, staged)?),
                _ => None,
            });
        }
        let mut outputs = emptied_mut(mem::take(&mut self.output_list));
        let bound = bindings.outputs.iter_mut().zip(&mut self.outputs).zip(&mut self.is_delivered);
        for ((index, transfer), ((binding, staged), is_delivered)) in
            transfers.outputs.iter().enumerate().zip(bound)
        {
            // Called for every output, in their order.
            let kept = next.as_mut().and_then(|next: &mut RetainedNext<'_>| next.take(index));
            *is_delivered = false;
            if transfer.place.is_none() || self.stats_output == Some(index) || is_updated(index) {
                outputs.push(None);
                continue;
            }
            outputs.push(Some(match (kept, binding) {
                (Some(kept), _) if matches!(transfer.route, Route::Direct) => kept,
                (None, OutputBinding::Memory(memory))
                    if is_written_in_place(transfer, memory.as_slice(), &inputs) =>
                {
                    *is_delivered = true;
                    // The rest of memory that is larger stays as it is.
                    memory.as_mut().first(transfer.user_bytes)
                }
                _ => staging(transfer, staged)?,
            }));
        }
        let outcome = work(&mut HostTensors { inputs: &inputs, outputs: &mut outputs });
        (self.input_list, self.output_list) = (emptied(inputs), emptied_mut(outputs));
        outcome
    }

    /// Makes the device write the states that have one buffer, after a successful execution.
    pub(super) fn write_state(
        exec: &mut dyn Exec,
        bindings: &mut Bindings,
        transfers: &TransferPlan,
        retained: &mut Retained,
    ) -> Result<(), RuntimeError> {
        window::check_downloads(&mut bindings.windows, transfers)?;
        for (input, output, mut state) in retained.updated() {
            // The result is copied to the caller's value, if there is one.
            let sources = Sources { inputs: &bindings.inputs, windows: &bindings.windows, values: None };
            if let Some(transfer) = transfers.inputs.get(input)
                && matches!(bindings.inputs.get(input), Some(InputBinding::Memory(_)))
                && let Ok(Some(given)) = sources.get(input, transfer)
            {
                state.copy_from(given);
            }
            exec.write_state(output, state)?;
        }
        Ok(())
    }

    /// Copies results of the last execution from internal buffers to the caller's memory. Returns true if there were
    /// any.
    pub(super) fn deliver(
        &self,
        bindings: &mut Bindings,
        transfers: &TransferPlan,
        mut retained: Option<&mut Retained>,
    ) -> Result<bool, RuntimeError> {
        let Bindings { outputs, windows, .. } = bindings;
        let mut has_moved = !windows.is_empty();
        let bound = outputs.iter_mut().zip(&self.outputs).zip(&self.is_delivered);
        for ((index, transfer), ((binding, staged), is_delivered)) in
            transfers.outputs.iter().enumerate().zip(bound)
        {
            let Some(place) = transfer.place.filter(|_| self.stats_output != Some(index)) else { continue };
            // Empty where the execution wrote elsewhere.
            let staged = staged.as_ref().and_then(|storage| storage.memory().subslice(0, place.bytes));
            let staged = staged.unwrap_or(HostSlice::empty());
            let mut result = staged;
            let kept = retained.as_deref_mut().and_then(|retained| retained.next_mut(index));
            let is_kept = kept.is_some();
            if let Some(mut kept) = kept {
                if !matches!(transfer.route, Route::Direct) {
                    has_moved = true;
                    transfer.fetch(staged, kept.reborrow())?;
                }
                result = kept.into_const();
            }
            if let OutputBinding::Memory(memory) = binding {
                if is_kept {
                    has_moved = true;
                    memory.as_mut().copy_from(result);
                } else if *is_delivered {
                    result = memory.as_slice();
                } else {
                    has_moved = true;
                    transfer.fetch(staged, memory.as_mut())?;
                }
            }
            window::download_of(windows, transfers, index, result)?;
        }
        Ok(has_moved)
    }
}

/// Returns the memory from which the device reads an input: the caller's, or `staged` after the conversion.
fn read_from<'a>(
    transfer: &BindingTransfer,
    source: HostSlice<'a>,
    staged: &'a mut Option<Storage>,
) -> Result<HostSlice<'a>, RuntimeError> {
    if matches!(transfer.route, Route::Direct) && has_whole_elements(transfer, source) {
        return source.subslice(0, transfer.user_bytes).ok_or_else(|| transfer.wrong_size(source.len()));
    }
    let mut staged = staging(transfer, staged)?;
    transfer.stage(source, staged.reborrow())?;
    Ok(staged.into_const())
}

/// Returns a buffer for the device's tensor, which grows up to the largest permitted shape.
fn staging<'a>(
    transfer: &BindingTransfer,
    slot: &'a mut Option<Storage>,
) -> Result<HostSliceMut<'a>, RuntimeError> {
    let bytes = transfer.place.map_or(0, |place| place.bytes);
    slot.take_if(|storage| storage.memory().len() < bytes);
    let storage = match slot {
        Some(storage) => storage,
        None => slot.insert(Storage::new(bytes)?),
    };
    Ok(storage.memory_mut().first(bytes))
}

/// Returns true if the device can write this output directly to the caller's memory. The output must be unconverted,
/// the memory must have room for all of it, and must not overlap an input, which the device may read after the write.
fn is_written_in_place(
    transfer: &BindingTransfer,
    memory: HostSlice<'_>,
    inputs: &[Option<HostSlice<'_>>],
) -> bool {
    matches!(transfer.route, Route::Direct)
        && memory.len() >= transfer.user_bytes
        && has_whole_elements(transfer, memory)
        && !inputs.iter().flatten().any(|input| input.overlaps(memory))
}

/// Returns true if the memory is aligned for its elements, because kernels load whole elements.
fn has_whole_elements(transfer: &BindingTransfer, memory: HostSlice<'_>) -> bool {
    let address = memory.as_ptr().addr();
    // Elements have at most eight bytes.
    if address.is_multiple_of(8) {
        return true;
    }
    let count = transfer.dims.iter().product::<usize>().max(1);
    address.is_multiple_of((transfer.user_bytes / count).max(1))
}
