//! Tensors that stay on the device between the inferences of an activation (python-api §B.9).
//!
//! An output `X_RetainedState` becomes the value of input `X` of the next inference. Each pair has two buffers: an
//! inference reads one and writes the other, and only a successful one exchanges them, so that a failure leaves the
//! value as it was. Nothing is copied.
//!
//! The exception are uploaded boxes ([`window::upload`]): they are written into the present value before the inference
//! begins, and stay there when it fails. To undo them would take a copy of the value each time; who tries again uploads
//! the same boxes again.

pub(crate) mod window;

use crate::buffer::{HostSliceMut, Storage};
use crate::error::RuntimeError;
use crate::tensors::RetainedPair;
use crate::transfer::TransferPlan;

/// The retained tensors of one activation. Zero at first.
#[derive(Debug)]
pub(crate) struct Retained {
    pairs: Vec<Pair>,
    // Positions in `pairs` by input and by output.
    by_input: Vec<Option<usize>>,
    by_output: Vec<Option<usize>>,
}

#[derive(Debug)]
struct Pair {
    buffers: [Storage; 2],
    current: usize,
    dims: Vec<usize>,
}

/// One of the two buffers of a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor<'a> {
    pub(crate) memory: HostSliceMut,
    pub(crate) dims: &'a [usize],
}

impl Retained {
    /// The buffers of a program's pairs; `None` when it has none.
    pub(crate) fn new(
        pairs: &[RetainedPair],
        transfers: &TransferPlan,
    ) -> Result<Option<Self>, RuntimeError> {
        if pairs.is_empty() {
            return Ok(None);
        }
        let mut retained = Self {
            pairs: Vec::with_capacity(pairs.len()),
            by_input: vec![None; transfers.inputs().len()],
            by_output: vec![None; transfers.outputs().len()],
        };
        for pair in pairs {
            let unknown = || RuntimeError::Internal { what: format!("{pair:?} is not of this program") };
            let transfer = transfers.inputs().get(pair.input).ok_or_else(unknown)?;
            let position = Some(retained.pairs.len());
            *retained.by_input.get_mut(pair.input).ok_or_else(unknown)? = position;
            *retained.by_output.get_mut(pair.output).ok_or_else(unknown)? = position;
            let buffer = || Storage::new(transfer.user_bytes());
            let dims = transfer.dims().to_vec();
            retained.pairs.push(Pair { buffers: [buffer()?, buffer()?], current: 0, dims });
        }
        Ok(Some(retained))
    }

    /// The present value of input `index`, if it is retained.
    pub(crate) fn input(&self, index: usize) -> Option<Tensor<'_>> {
        let pair = &self.pairs[(*self.by_input.get(index)?)?];
        Some(Tensor { memory: pair.buffers[pair.current].memory(), dims: &pair.dims })
    }

    /// Where output `index` becomes the next value, if it is retained.
    pub(crate) fn output(&self, index: usize) -> Option<Tensor<'_>> {
        let pair = &self.pairs[(*self.by_output.get(index)?)?];
        Some(Tensor { memory: pair.buffers[1 - pair.current].memory(), dims: &pair.dims })
    }

    /// Makes all values zero.
    pub(crate) fn clear(&mut self) {
        for pair in &self.pairs {
            pair.buffers[pair.current].memory().fill(0);
        }
    }

    /// Makes what the outputs wrote the present value.
    pub(crate) fn advance(&mut self) {
        for pair in &mut self.pairs {
            pair.current = 1 - pair.current;
        }
    }
}
