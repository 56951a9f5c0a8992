//! How the caller's tensors reach the DMA buffers of a program and come back (qpc-format §3).
//!
//! A [`TransferPlan`] is made once per program: every sequence of transform steps is checked and fused into one
//! [`Route`], every place in a DMA buffer is checked against that buffer. What is left for an inference is to check the
//! lengths of the buffers at hand and move the bytes. Nothing a descriptor or a caller says can make a transfer touch
//! memory outside the buffers given.
//!
//! Several bindings may lie in one DMA buffer; bytes between them are never written. Short output arrays get the first
//! bytes of the result. Partial inputs are packed behind each other, see [`partial`].
//!
//! The original runtime executes single copies only; conversions follow the arithmetic of qpc-format §3.6.

mod binding;
pub mod partial;

use qaic_qpc::network_desc::{Direction, NetworkDesc};

use crate::buffer::{HostSlice, HostSliceMut};
use crate::convert::PipelineError;
use crate::error::RuntimeError;

pub use binding::{BindingTransfer, Place, Route};
use partial::{Layout, PartialInput};

/// All transfers of a program.
#[derive(Clone, Debug)]
pub struct TransferPlan {
    inputs: Vec<BindingTransfer>,
    outputs: Vec<BindingTransfer>,
    /// Bytes of each DMA buffer.
    dma_bytes: Vec<u32>,
    /// End of the last full-size input in each DMA buffer.
    extents: Vec<u64>,
    /// Inputs that may be short, in input order.
    partial: Vec<PartialInput>,
}

impl TransferPlan {
    /// The transfers of `network`. Fails when a sequence has no host implementation or is not consistent, naming the
    /// binding and the step.
    pub fn new(network: &NetworkDesc) -> Result<Self, RuntimeError> {
        let buffers = &network.dma_buffers;
        let build = |bindings: &[_], direction| {
            bindings
                .iter()
                .map(|binding| BindingTransfer::new(binding, direction, buffers))
                .collect::<Result<Vec<_>, _>>()
        };
        let inputs = build(&network.inputs, Direction::In)?;
        let outputs = build(&network.outputs, Direction::Out)?;
        let mut extents = vec![0; buffers.len()];
        for place in inputs.iter().filter(|input| !input.is_partial()).filter_map(BindingTransfer::place) {
            let extent: &mut u64 = &mut extents[place.buffer];
            *extent = (*extent).max((place.offset + place.bytes) as u64);
        }
        let partial = partial::inputs(&inputs, &network.inputs);
        Ok(Self {
            inputs,
            outputs,
            dma_bytes: buffers.iter().map(|buffer| buffer.size).collect(),
            extents,
            partial,
        })
    }

    /// Inputs in binding order.
    pub fn inputs(&self) -> &[BindingTransfer] {
        &self.inputs
    }

    /// Outputs in binding order.
    pub fn outputs(&self) -> &[BindingTransfer] {
        &self.outputs
    }

    /// Bytes of each DMA buffer.
    pub fn dma_bytes(&self) -> &[u32] {
        &self.dma_bytes
    }

    /// Whether some input may be given short; then the place of inputs depends on the lengths of each inference.
    pub fn has_partial_inputs(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Moves all inputs into the DMA buffers.
    ///
    /// `resize` receives one value per DMA buffer: the bytes in use where partial inputs were packed, else 0. Inputs
    /// that are optimized away are ignored.
    pub fn pre_process(
        &self,
        user: &[HostSlice],
        dma: &[HostSliceMut],
        resize: &mut Vec<u32>,
    ) -> Result<(), RuntimeError> {
        expect_count("input", self.inputs.len(), user.len())?;
        expect_count("DMA buffer", self.dma_bytes.len(), dma.len())?;
        resize.clear();
        resize.resize(self.dma_bytes.len(), 0);
        for (index, (input, &src)) in self.inputs.iter().zip(user).enumerate() {
            if let Some(place) = input.place().filter(|_| !input.is_partial()) {
                self.stage_input(index, src, dma[place.buffer])?;
            }
        }
        if self.has_partial_inputs() {
            let layout = self.lay_out(user)?;
            for slice in &layout.slices {
                slice.write(user[slice.input], dma[slice.buffer])?;
            }
            resize.copy_from_slice(&layout.resize);
        }
        Ok(())
    }

    /// Layout of the partial inputs for the lengths of `user`, one per input. Fails when an input is longer than its
    /// tensor or the data do not fit.
    pub fn lay_out(&self, user: &[HostSlice]) -> Result<Layout, RuntimeError> {
        expect_count("input", self.inputs.len(), user.len())?;
        partial::lay_out(self, user)
    }

    /// Moves all outputs from the DMA buffers to the caller.
    pub fn post_process(&self, dma: &[HostSliceMut], user: &[HostSliceMut]) -> Result<(), RuntimeError> {
        expect_count("output", self.outputs.len(), user.len())?;
        expect_count("DMA buffer", self.dma_bytes.len(), dma.len())?;
        for (index, (output, &dst)) in self.outputs.iter().zip(user).enumerate() {
            if let Some(place) = output.place() {
                self.fetch_output(index, dma[place.buffer].as_const(), dst)?;
            }
        }
        Ok(())
    }

    /// Moves input `index` to its place in `dma`, the whole DMA buffer the binding names. An input that is optimized
    /// away moves nothing. The place of a partial input depends on all the others, so only
    /// [`TransferPlan::pre_process`] can move one.
    pub fn stage_input(&self, index: usize, src: HostSlice, dma: HostSliceMut) -> Result<(), RuntimeError> {
        let input = lookup(&self.inputs, index)?;
        let Some(place) = input.place() else { return Ok(()) };
        if input.is_partial() {
            let what = format!("input `{}` is partial and cannot be moved alone", input.name());
            return Err(RuntimeError::Argument { what });
        }
        let dst = dma.subslice(place.offset, place.bytes).ok_or_else(|| place.too_short(dma.len()))?;
        let src = src.subslice(0, input.user_bytes()).ok_or_else(|| input.wrong_size(src.len()))?;
        match input.route() {
            Route::Skip => {}
            Route::Direct => {
                dst.copy_from(src);
            }
            Route::Convert(pipeline) => pipeline.run(src, dst).map_err(|error| sizes(&error))?,
        }
        Ok(())
    }

    /// Moves output `index` from `dma`, the whole DMA buffer the binding names, to the caller; as much of it as fits.
    /// An output that is optimized away leaves `dst` as it is.
    pub fn fetch_output(&self, index: usize, dma: HostSlice, dst: HostSliceMut) -> Result<(), RuntimeError> {
        let output = lookup(&self.outputs, index)?;
        let Some(place) = output.place() else { return Ok(()) };
        let src = dma.subslice(place.offset, place.bytes).ok_or_else(|| place.too_short(dma.len()))?;
        match output.route() {
            Route::Skip => {}
            Route::Direct => {
                dst.copy_from(src);
            }
            Route::Convert(pipeline) => pipeline.run_prefix(src, dst).map_err(|error| sizes(&error))?,
        }
        Ok(())
    }
}

fn lookup(bindings: &[BindingTransfer], index: usize) -> Result<&BindingTransfer, RuntimeError> {
    bindings.get(index).ok_or_else(|| RuntimeError::Argument {
        what: format!("binding {index} does not exist; there are {}", bindings.len()),
    })
}

fn expect_count(what: &str, expected: usize, found: usize) -> Result<(), RuntimeError> {
    if expected == found {
        return Ok(());
    }
    Err(RuntimeError::Argument { what: format!("{what} count is {found}; the program has {expected}") })
}

/// The plan gave both sides the sizes of its own pipeline.
fn sizes(error: &PipelineError) -> RuntimeError {
    RuntimeError::Internal { what: format!("transfer: {error}") }
}
