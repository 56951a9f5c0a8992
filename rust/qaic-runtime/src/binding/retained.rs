//! Tensors that stay on the device between the inferences of an activation.
//!
//! An output `X_RetainedState` becomes the value of input `X` of the next inference. If the device computes the
//! output whole, a pair has two buffers: an inference reads one and writes the other, and only a successful inference
//! exchanges them. If the device computes only the changed rows, a pair has one buffer, and a successful inference
//! writes the rows there. A failure therefore leaves the value unchanged, and no value is copied.
//!
//! Uploaded boxes ([`super::window::upload_all`]) are the exception: they are written into the current value before the
//! inference begins, and stay there if it fails. Undoing an upload would require a copy of the value for each
//! inference. A caller that repeats the inference uploads the same boxes again.

use std::mem;

use qaic_mem::{HostSlice, HostSliceMut, Storage};

use crate::binding::{BindingTransfer, RetainedPair, Route, TransferPlan};
use crate::error::RuntimeError;

/// The retained tensors of one activation; initially zero.
#[derive(Debug)]
pub(crate) struct Retained {
    // Indexed by pair, in the order of the outputs: the buffer that the next inference reads, and the buffer that it
    // writes; `None` if it writes rows of the buffer that it reads.
    values: Vec<Storage>,
    next: Vec<Option<Storage>>,
    pairs: Vec<RetainedPair>,
    is_updated: Vec<bool>,
    // Dims of the caller's tensors.
    dims: Vec<Vec<usize>>,
    // Indices of pairs by input and by output.
    by_input: Vec<Option<usize>>,
    by_output: Vec<Option<usize>>,
}

/// Retained tensors that an inference reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetainedValues<'a> {
    values: &'a [Storage],
    by_input: &'a [Option<usize>],
    by_output: &'a [Option<usize>],
    // True for each pair with one buffer.
    is_updated: &'a [bool],
}

/// Retained tensors that an inference writes. Outputs are requested in their order.
#[derive(Debug)]
pub(crate) struct RetainedNext<'a> {
    // Starts at index `first`.
    next: &'a mut [Option<Storage>],
    first: usize,
    by_output: &'a [Option<usize>],
}

impl Retained {
    /// Allocates the buffers of a program's pairs; `None` if the program has none. `is_updated` returns true if the
    /// device writes rows of a pair over the previous value. A pair that the host converts has two buffers in any
    /// case.
    pub(crate) fn new(
        pairs: &[RetainedPair],
        transfers: &TransferPlan,
        is_updated: impl Fn(&RetainedPair) -> bool,
    ) -> Result<Option<Self>, RuntimeError> {
        if pairs.is_empty() {
            return Ok(None);
        }
        let mut pairs = pairs.to_vec();
        pairs.sort_by_key(|pair| pair.output);
        let mut retained = Self {
            values: Vec::with_capacity(pairs.len()),
            next: Vec::with_capacity(pairs.len()),
            is_updated: Vec::with_capacity(pairs.len()),
            pairs: Vec::new(),
            dims: Vec::with_capacity(pairs.len()),
            by_input: vec![None; transfers.inputs.len()],
            by_output: vec![None; transfers.outputs.len()],
        };
        for (position, pair) in pairs.iter().enumerate() {
            let unknown = || RuntimeError::internal(format!("{pair:?} is not of this program"));
            let transfer = transfers.inputs.get(pair.input).ok_or_else(unknown)?;
            *retained.by_input.get_mut(pair.input).ok_or_else(unknown)? = Some(position);
            *retained.by_output.get_mut(pair.output).ok_or_else(unknown)? = Some(position);
            retained.values.push(Storage::new(transfer.user_bytes)?);
            let is_direct = |transfer: &BindingTransfer| {
                transfer.place.is_some() && matches!(transfer.route, Route::Direct)
            };
            let is_updated = is_updated(pair)
                && is_direct(transfer)
                && transfers.outputs.get(pair.output).is_some_and(|transfer| is_direct(transfer));
            let next = if is_updated { None } else { Some(Storage::new(transfer.user_bytes)?) };
            retained.next.push(next);
            retained.is_updated.push(is_updated);
            retained.dims.push(transfer.dims.clone());
        }
        retained.pairs = pairs;
        Ok(Some(retained))
    }

    /// Returns the current value of input `index` and its dims, if the input is retained.
    pub(crate) fn value_mut(&mut self, index: usize) -> Option<(HostSliceMut<'_>, &[usize])> {
        let position = (*self.by_input.get(index)?)?;
        Some((self.values.get_mut(position)?.memory_mut(), self.dims.get(position)?))
    }

    /// Returns the tensors that an inference reads and those that it writes.
    pub(crate) fn split(&mut self) -> (RetainedValues<'_>, RetainedNext<'_>) {
        let Self { values, next, by_input, by_output, is_updated, .. } = self;
        let values = RetainedValues { values, by_input, by_output, is_updated };
        (values, RetainedNext { next, first: 0, by_output })
    }

    /// Iterates over the pairs with one buffer: input, output, and the value.
    pub(crate) fn updated(&mut self) -> impl Iterator<Item = (usize, usize, HostSliceMut<'_>)> {
        let pairs = self.pairs.iter().zip(&self.is_updated).zip(&mut self.values);
        pairs
            .filter(|((_, is_updated), _)| **is_updated)
            .map(|((pair, _), value)| (pair.input, pair.output, value.memory_mut()))
    }

    /// Returns the memory in which output `index` becomes the next value, if the output is retained. For a pair with
    /// one buffer, this is the value itself.
    pub(crate) fn next_mut(&mut self, index: usize) -> Option<HostSliceMut<'_>> {
        let position = (*self.by_output.get(index)?)?;
        let next = self.next.get_mut(position)?.as_mut().or(self.values.get_mut(position));
        next.map(Storage::memory_mut)
    }

    /// Makes all values zero.
    pub(crate) fn clear(&mut self) {
        for value in &mut self.values {
            value.memory_mut().fill(0);
        }
    }

    /// Replaces the current values with those that the outputs wrote.
    pub(crate) fn advance(&mut self) {
        for (value, next) in self.values.iter_mut().zip(&mut self.next) {
            if let Some(next) = next {
                mem::swap(value, next);
            }
        }
    }
}

impl<'a> RetainedValues<'a> {
    /// Returns the current value of input `index`, if the input is retained.
    pub(crate) fn input(self, index: usize) -> Option<HostSlice<'a>> {
        let position = (*self.by_input.get(index)?)?;
        self.values.get(position).map(Storage::memory)
    }

    /// Returns true if output `index` is written over the value of its input.
    pub(crate) fn is_updated(self, index: usize) -> bool {
        let position = self.by_output.get(index).copied().flatten();
        position.and_then(|position| self.is_updated.get(position)).copied().unwrap_or(false)
    }
}

impl<'a> RetainedNext<'a> {
    /// Returns the memory in which output `index` becomes the next value, if the output is retained and has a second
    /// buffer.
    pub(crate) fn take(&mut self, index: usize) -> Option<HostSliceMut<'a>> {
        let position = (*self.by_output.get(index)?)?;
        let skipped = position.checked_sub(self.first)?;
        let (storage, rest) = mem::take(&mut self.next).get_mut(skipped..)?.split_first_mut()?;
        (self.next, self.first) = (rest, position + 1);
        storage.as_mut().map(Storage::memory_mut)
    }
}
