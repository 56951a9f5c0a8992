//! Transfers of the caller's tensors to the DMA buffers of a program and back (docs/reference/transfers.md).
//!
//! `qaic_qpc::transform` checks a descriptor and computes all offsets; this module moves the bytes. A
//! [`TransferPlan`] is created once per program and permitted combination of shapes, and fuses every sequence of
//! transform steps into one [`Route`]. An inference only checks the lengths of its buffers. No descriptor and no
//! caller can make a transfer access memory outside the given buffers.
//!
//! Several bindings may share one DMA buffer; bytes between the bindings are never written. Short output
//! arrays receive the first bytes of the result. Partial inputs are packed after the others, again for each
//! inference.
//!
//! The open runtime executes only single copies; docs/reference/transfers.md defines the arithmetic of conversions.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use qaic_mem::{HostSlice, HostSliceMut};
use qaic_qpc::transform::{BindingPlan, PartialLayout, Slice, TransferPlan as Checked};
use qaic_qpc::{Direction, NetworkDesc, QpcError, TransformKind};

use super::transfer::{BindingTransfer, Place, Route};
use crate::error::{InputError, RuntimeError};

/// The DMA buffers that contain tensors, as views for the host.
pub(crate) trait DmaBuffers {
    /// Returns all bytes of a DMA buffer.
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut<'_>, RuntimeError>;
}

/// All transfers of a program.
#[derive(Clone, Debug)]
pub struct TransferPlan {
    checked: Checked,
    /// Inputs in binding order.
    pub(crate) inputs: Vec<Arc<BindingTransfer>>,
    /// Outputs in binding order.
    pub(crate) outputs: Vec<Arc<BindingTransfer>>,
}

impl TransferPlan {
    /// Creates the transfers of `network`. Fails if a sequence has no host implementation or is inconsistent; the
    /// error names the binding and the step.
    pub fn new(network: &NetworkDesc) -> Result<Self, RuntimeError> {
        Self::of(Checked::new(network).map_err(refused)?)
    }

    /// Creates one plan per entry of `allowed_shapes`, in order, or one plan if there are no entries. All plans use
    /// the same offsets in the same DMA buffers; the sizes depend on the entry. Fails as [`TransferPlan::new`], and
    /// if a binding whose dims differ between entries has a transpose.
    pub(crate) fn variants(network: &NetworkDesc) -> Result<Vec<Arc<Self>>, RuntimeError> {
        let mut made = HashMap::new();
        let checked = Checked::variants(network).map_err(refused)?;
        // The list keeps the plans alive while the map uses their addresses as keys.
        checked.iter().map(|checked| Self::with(checked.clone(), &mut made).map(Arc::new)).collect()
    }

    fn of(checked: Checked) -> Result<Self, RuntimeError> {
        Self::with(checked, &mut HashMap::new())
    }

    /// Creates the transfers. Plans with the same binding share its transfer.
    fn with(
        checked: Checked,
        made: &mut HashMap<*const BindingPlan, Arc<BindingTransfer>>,
    ) -> Result<Self, RuntimeError> {
        let mut side = |plans: &[Arc<BindingPlan>], direction| {
            let transfer = |plan: &Arc<BindingPlan>| match made.entry(Arc::as_ptr(plan)) {
                Entry::Occupied(known) => Ok(Arc::clone(known.get())),
                Entry::Vacant(slot) => {
                    Ok(Arc::clone(slot.insert(Arc::new(BindingTransfer::new(plan, direction)?))))
                }
            };
            plans.iter().map(transfer).collect::<Result<Vec<_>, RuntimeError>>()
        };
        let inputs = side(&checked.inputs, Direction::In)?;
        let outputs = side(&checked.outputs, Direction::Out)?;
        Ok(Self { checked, inputs, outputs })
    }

    /// Bytes of each DMA buffer.
    pub(crate) fn dma_bytes(&self) -> &[u32] {
        &self.checked.dma_sizes
    }

    /// Returns the DMA buffer that contains only this binding (inputs then outputs), at its start and in the caller's
    /// format.
    pub(crate) fn whole_buffer(&self, binding: usize) -> Option<usize> {
        let all = || self.inputs.iter().chain(&self.outputs);
        let transfer = all().nth(binding)?;
        let place = transfer.place.filter(|_| matches!(transfer.route, Route::Direct))?;
        let here = all().filter(|other| other.place.is_some_and(|other| other.buffer == place.buffer));
        (place.offset == 0 && here.count() == 1 && !transfer.is_partial).then_some(place.buffer)
    }

    /// Returns true if any input may be partial. The offsets of inputs then depend on the input lengths of each
    /// inference.
    pub(crate) fn has_partial_inputs(&self) -> bool {
        self.checked.has_partial_inputs()
    }

    /// Moves all inputs into the DMA buffers. Inputs that are `None` are not moved, because the device moves them
    /// itself or they are optimized away.
    ///
    /// If inputs may be partial, `resize` receives one value per DMA buffer: the number of bytes in use if partial
    /// inputs were packed into the buffer, otherwise 0.
    pub(crate) fn stage<D: DmaBuffers + ?Sized>(
        &self,
        inputs: &[Option<HostSlice<'_>>],
        dma: &mut D,
        resize: &mut Vec<u32>,
    ) -> Result<(), RuntimeError> {
        if inputs.len() != self.inputs.len() {
            let what = format!("input count is {}; the program has {}", inputs.len(), self.inputs.len());
            return Err(RuntimeError::argument(what));
        }
        for (index, (transfer, source)) in self.inputs.iter().zip(inputs).enumerate() {
            if let (Some(place), Some(source), false) = (transfer.place, source, transfer.is_partial) {
                self.stage_input(index, *source, dma.dma_buffer(place.buffer)?)?;
            }
        }
        if self.has_partial_inputs() {
            let given: Vec<_> = inputs.iter().map(|input| input.map_or(0, HostSlice::len) as u64).collect();
            let layout = self.lay_out(&given)?;
            for slice in layout.slices.iter().filter(|slice| slice.bytes > 0) {
                let source = inputs[slice.input].unwrap_or(HostSlice::empty());
                write_slice(slice, source, dma.dma_buffer(slice.buffer as usize)?)?;
            }
            resize.clear();
            resize.extend_from_slice(&layout.resize);
        }
        Ok(())
    }

    /// Computes the layout of the partial inputs from the lengths of all inputs. Fails if an input is longer than its
    /// tensor, or if the data do not fit.
    pub(crate) fn lay_out(&self, given: &[u64]) -> Result<PartialLayout, RuntimeError> {
        self.checked.pack(given).map_err(refused)
    }

    /// Moves input `index` into `dma`, which is the whole DMA buffer of the binding. Does nothing for an input that
    /// is optimized away. The offset of a partial input depends on all other inputs ([`TransferPlan::lay_out`]).
    pub(crate) fn stage_input(
        &self,
        index: usize,
        src: HostSlice<'_>,
        dma: HostSliceMut<'_>,
    ) -> Result<(), RuntimeError> {
        let input = lookup(&self.inputs, index)?;
        let Some(place) = input.place else { return Ok(()) };
        if input.is_partial {
            let what = format!("input `{}` is partial and cannot be moved alone", input.name);
            return Err(RuntimeError::argument(what));
        }
        let found = dma.len();
        let dst = dma.subslice(place.offset, place.bytes).ok_or_else(|| place.too_short(found))?;
        input.stage(src, dst)
    }

    /// Moves output `index` from `dma`, which is the whole DMA buffer of the binding, to the caller, up to the size
    /// of `dst`. Does nothing for an output that is optimized away.
    pub(crate) fn fetch_output(
        &self,
        index: usize,
        dma: HostSlice<'_>,
        dst: HostSliceMut<'_>,
    ) -> Result<(), RuntimeError> {
        let output = lookup(&self.outputs, index)?;
        let Some(place) = output.place else { return Ok(()) };
        let src = dma.subslice(place.offset, place.bytes).ok_or_else(|| place.too_short(dma.len()))?;
        output.fetch(src, dst)
    }
}

/// Writes the slice header and the data of one partial input. Writes neither if there are no data.
fn write_slice(slice: &Slice, src: HostSlice<'_>, mut dma: HostSliceMut<'_>) -> Result<(), RuntimeError> {
    let place = Place {
        buffer: slice.buffer as usize,
        offset: slice.data_offset as usize,
        bytes: slice.bytes as usize,
    };
    let found = dma.len();
    let data = dma.reborrow().subslice(place.offset, place.bytes);
    data.ok_or_else(|| place.too_short(found))?.copy_from(src);
    let header = dma.write_from(slice.header_offset as usize, &slice.header());
    header.ok_or_else(|| place.too_short(found))
}

/// Converts errors that callers may need to distinguish to the runtime's own errors.
fn refused(error: QpcError) -> RuntimeError {
    match error {
        QpcError::UnsupportedTransform { binding, step, kind } => InputError::UnsupportedTransform {
            binding,
            step: usize::try_from(step).unwrap_or(usize::MAX),
            kind: format!("{:?}", TransformKind::from(kind)),
        }
        .into(),
        QpcError::BufferSize { binding, found, max } => {
            InputError::BufferSize { buffer: binding, expected: max, found }.into()
        }
        other => other.into(),
    }
}

fn lookup(bindings: &[Arc<BindingTransfer>], index: usize) -> Result<&BindingTransfer, RuntimeError> {
    bindings.get(index).map(AsRef::as_ref).ok_or_else(|| {
        RuntimeError::argument(format!("binding {index} does not exist; the program has {}", bindings.len()))
    })
}
