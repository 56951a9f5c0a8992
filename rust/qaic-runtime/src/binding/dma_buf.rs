//! Tensors behind descriptors. The device moves these tensors directly, and the host does not access their
//! contents.
//!
//! A descriptor represents a whole DMA buffer of a program. A descriptor can therefore replace a binding that has its
//! own DMA buffer and needs no conversion. Features that need the bytes on the host exclude descriptors: checksums,
//! retained state, and partial inputs.

use std::sync::Arc;

use qaic_mem::DmaBuf;

use crate::binding::{Bindings, InputBinding, OutputBinding, RetainedPair, TransferPlan};
use crate::device::{DeviceKind, Exec};
use crate::error::{DeviceError, InputError, RuntimeError};
use crate::program::Program;

impl Program {
    /// Fails if a binding (inputs then outputs) cannot use `len` bytes behind a descriptor.
    pub(crate) fn check_dma_buf(&self, binding: usize, len: u64) -> Result<(), RuntimeError> {
        let kind = self.context.kind_of(&self.placement);
        if kind != Some(DeviceKind::Card) {
            let kind = kind.map_or("unknown", DeviceKind::name);
            return Err(DeviceError::Unsupported {
                what: format!(
                    "a buffer of type QBUFFER_TYPE_DMABUF on a device of kind `{kind}`; only cards (`kmd`) accept it"
                ),
            }.into());
        }
        let network = &self.image.network;
        let inputs = network.inputs.len();
        let name = || {
            let bindings = network.inputs.iter().chain(&network.outputs);
            bindings.into_iter().nth(binding).map_or_else(String::new, |binding| binding.name.clone())
        };
        let refused = |why: &str| {
            let what = format!("binding `{}` cannot use the memory of a descriptor: {why}", name());
            Err(RuntimeError::argument(what))
        };
        if self.io_options.io_crc.is_some() {
            return refused("the program was compiled with io_crc, which computes checksums on the host");
        }
        let is_kept = |pair: &RetainedPair| pair.input == binding || pair.output + inputs == binding;
        if self.retained.iter().any(is_kept) {
            return refused("its value is kept between inferences");
        }
        if network.stats_output().is_some_and(|output| output + inputs == binding) {
            return refused("the host assembles the statistics");
        }
        if self.variants.iter().any(|transfers| transfers.has_partial_inputs()) {
            return refused("the program accepts partial inputs, so it packs all inputs");
        }
        for transfers in self.variants.iter() {
            let Some(buffer) = transfers.whole_buffer(binding) else {
                return refused("it needs a conversion, or shares its DMA buffer; use ordinary memory");
            };
            // The device moves the whole buffer, which may be longer than the tensor at its start.
            let expected = transfers.dma_bytes().get(buffer).copied().unwrap_or(0);
            if u64::from(expected) != len {
                let what = format!("DMA buffer {buffer} of binding `{}`", name());
                return Err(
                    InputError::BufferSize { buffer: what, expected: expected.into(), found: len }.into()
                );
            }
        }
        Ok(())
    }
}

/// The DMA buffers of an exec object that the device replaces with descriptors.
#[derive(Debug, Default)]
pub(crate) struct DmaBufBindings {
    bound: Vec<(usize, Arc<DmaBuf>)>,
}

impl DmaBufBindings {
    /// Makes the device use the descriptors of some bindings, and its own memory for all others.
    ///
    /// Blocking: as long as the device takes to map a new descriptor.
    pub(crate) fn bind(
        &mut self,
        exec: &mut dyn Exec,
        bindings: &Bindings,
        transfers: &TransferPlan,
    ) -> Result<(), RuntimeError> {
        if self.bound.is_empty() && descriptors(bindings).next().is_none() {
            return Ok(());
        }
        let mut wanted: Vec<(usize, &Arc<DmaBuf>)> = Vec::new();
        for (binding, memory) in descriptors(bindings) {
            let buffer = transfers.whole_buffer(binding).ok_or_else(|| {
                RuntimeError::argument(format!(
                    "binding {binding} is only part of a DMA buffer, so a descriptor cannot replace it"
                ))
            })?;
            wanted.push((buffer, memory));
        }
        let is_wanted = |bound: &(usize, Arc<DmaBuf>)| {
            wanted.iter().any(|(buffer, memory)| *buffer == bound.0 && Arc::ptr_eq(memory, &bound.1))
        };
        // Released before others are bound: they may be the same memory, which a card accepts only once.
        while let Some(at) = self.bound.iter().position(|bound| !is_wanted(bound)) {
            exec.bind_dma_buf(self.bound[at].0, None)?;
            self.bound.swap_remove(at);
        }
        for (buffer, memory) in wanted {
            if !self.bound.iter().any(|(bound, _)| *bound == buffer) {
                exec.bind_dma_buf(buffer, Some(memory))?;
                self.bound.push((buffer, Arc::clone(memory)));
            }
        }
        Ok(())
    }
}

/// Iterates over the bindings with descriptors, inputs then outputs.
fn descriptors(bindings: &Bindings) -> impl Iterator<Item = (usize, &Arc<DmaBuf>)> {
    let inputs = bindings.inputs.iter().enumerate().filter_map(|(index, binding)| match binding {
        InputBinding::DmaBuf { memory } => Some((index, memory)),
        _ => None,
    });
    let first = bindings.inputs.len();
    let outputs = bindings.outputs.iter().enumerate().filter_map(move |(index, binding)| match binding {
        OutputBinding::DmaBuf { memory } => Some((first + index, memory)),
        _ => None,
    });
    inputs.chain(outputs)
}
