//! Tensors that stay on the device between the inferences of an activation.
//!
//! An output `X_RetainedState` becomes the value of input `X` of the next inference. Each pair has two buffers: an
//! inference reads one and writes the other, and only a successful one exchanges them, so that a failure leaves the
//! value as it was. Nothing is copied.
//!
//! The exception are uploaded boxes ([`window::upload`]): they are written into the present value before the inference
//! begins, and stay there when it fails. To undo them would take a copy of the value each time; a caller that tries
//! again uploads the same boxes again.

use std::mem;

use qaic_mem::{HostSlice, HostSliceMut, Storage};

use crate::binding::{RetainedPair, TransferPlan};
use crate::error::{ErrorDetail, RuntimeError};

/// The retained tensors of one activation. Zero at first.
#[derive(Debug)]
pub(crate) struct Retained {
    // By pair, in the order of the outputs: what the next inference reads, and what it writes.
    values: Vec<Storage>,
    next: Vec<Storage>,
    // Of the caller's tensors.
    dims: Vec<Vec<usize>>,
    // Positions of pairs by input and by output.
    by_input: Vec<Option<usize>>,
    by_output: Vec<Option<usize>>,
}

/// What an inference reads of the retained tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetainedValues<'a> {
    values: &'a [Storage],
    by_input: &'a [Option<usize>],
}

/// What an inference writes of the retained tensors. Outputs are asked for in their order.
#[derive(Debug)]
pub(crate) struct RetainedNext<'a> {
    // From position `first` on.
    next: &'a mut [Storage],
    first: usize,
    by_output: &'a [Option<usize>],
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
        let mut pairs = pairs.to_vec();
        pairs.sort_by_key(|pair| pair.output);
        let mut retained = Self {
            values: Vec::with_capacity(pairs.len()),
            next: Vec::with_capacity(pairs.len()),
            dims: Vec::with_capacity(pairs.len()),
            by_input: vec![None; transfers.inputs().len()],
            by_output: vec![None; transfers.outputs().len()],
        };
        for (position, pair) in pairs.iter().enumerate() {
            let unknown = || ErrorDetail::Internal { what: format!("{pair:?} is not of this program") };
            let transfer = transfers.inputs().get(pair.input).ok_or_else(unknown)?;
            *retained.by_input.get_mut(pair.input).ok_or_else(unknown)? = Some(position);
            *retained.by_output.get_mut(pair.output).ok_or_else(unknown)? = Some(position);
            retained.values.push(Storage::new(transfer.user_bytes())?);
            retained.next.push(Storage::new(transfer.user_bytes())?);
            retained.dims.push(transfer.dims().to_vec());
        }
        Ok(Some(retained))
    }

    /// The present value of input `index`, if it is retained, and its dims.
    pub(crate) fn value_mut(&mut self, index: usize) -> Option<(HostSliceMut<'_>, &[usize])> {
        let position = (*self.by_input.get(index)?)?;
        Some((self.values.get_mut(position)?.memory_mut(), self.dims.get(position)?))
    }

    /// What an inference reads, and what it writes.
    pub(crate) fn split(&mut self) -> (RetainedValues<'_>, RetainedNext<'_>) {
        let Self { values, next, by_input, by_output, .. } = self;
        (RetainedValues { values, by_input }, RetainedNext { next, first: 0, by_output })
    }

    /// Where output `index` becomes the next value, if it is retained.
    pub(crate) fn next_mut(&mut self, index: usize) -> Option<HostSliceMut<'_>> {
        let position = (*self.by_output.get(index)?)?;
        self.next.get_mut(position).map(Storage::memory_mut)
    }

    /// Makes all values zero.
    pub(crate) fn clear(&mut self) {
        for value in &mut self.values {
            value.memory_mut().fill(0);
        }
    }

    /// Makes what the outputs wrote the present value.
    pub(crate) fn advance(&mut self) {
        mem::swap(&mut self.values, &mut self.next);
    }
}

impl<'a> RetainedValues<'a> {
    /// The present value of input `index`, if it is retained.
    pub(crate) fn input(self, index: usize) -> Option<HostSlice<'a>> {
        let position = (*self.by_input.get(index)?)?;
        self.values.get(position).map(Storage::memory)
    }
}

impl<'a> RetainedNext<'a> {
    /// Where output `index` becomes the next value, if it is retained.
    pub(crate) fn take(&mut self, index: usize) -> Option<HostSliceMut<'a>> {
        let position = (*self.by_output.get(index)?)?;
        let skipped = position.checked_sub(self.first)?;
        let (storage, rest) = mem::take(&mut self.next).get_mut(skipped..)?.split_first_mut()?;
        (self.next, self.first) = (rest, position + 1);
        Some(storage.memory_mut())
    }
}
