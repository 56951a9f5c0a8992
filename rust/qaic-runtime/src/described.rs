//! Tensors that lie behind descriptors: the device moves them by itself, and nothing of them is seen here.
//!
//! A descriptor stands for a whole DMA buffer of a program, so it can take the place of a binding that is all of one and is
//! not converted on its way. What needs to see the bytes on the host excludes it: checksums, state kept between
//! inferences, inputs of which parts may be given.

use std::sync::Arc;

use crate::buffer::DmaBuf;
use crate::device::{DeviceKind, Exec};
use crate::error::RuntimeError;
use crate::program::Program;
use crate::tensors;
use crate::transfer::TransferPlan;
use crate::wiring::{InputWire, OutputWire, Wiring};

impl Program {
    /// Refuses a binding, inputs then outputs, that memory behind a descriptor cannot be wired to.
    pub fn check_dma_buf(&self, binding: usize) -> Result<(), RuntimeError> {
        let kind = self.context().kind_of(self.placement());
        if kind != Some(DeviceKind::Kmd) {
            let kind = kind.map_or("unknown", DeviceKind::name);
            return Err(RuntimeError::Unsupported {
                what: format!(
                    "a buffer of type QBUFFER_TYPE_DMABUF on a device of kind `{kind}`; cards take them (`kmd`)"
                ),
            });
        }
        let network = self.image().network();
        let inputs = network.inputs.len();
        let name = || {
            let bindings = network.inputs.iter().chain(&network.outputs);
            bindings.into_iter().nth(binding).map_or_else(String::new, |binding| binding.name.clone())
        };
        let refused = |why: &str| {
            let what = format!("binding `{}` takes no memory behind a descriptor: {why}", name());
            Err(RuntimeError::Argument { what })
        };
        if self.duties().io_crc.is_some() {
            return refused("the program was compiled with io_crc, which sums the bytes on the host");
        }
        let is_kept = |pair: &tensors::RetainedPair| pair.input == binding || pair.output + inputs == binding;
        if self.retained().iter().any(is_kept) {
            return refused("its value is kept between inferences");
        }
        if tensors::stats_output(network).is_some_and(|output| output + inputs == binding) {
            return refused("the statistics are put together on the host");
        }
        if self.variants().iter().any(|transfers| transfers.has_partial_inputs()) {
            return refused("the program has inputs of which parts may be given, so it packs all of them");
        }
        if self.variants().iter().any(|transfers| transfers.whole_buffer(binding).is_none()) {
            return refused("it is converted on its way, or shares its DMA buffer; use memory of the heap");
        }
        Ok(())
    }
}

/// The DMA buffers of an exec object that its device moves from and to descriptors.
#[derive(Debug, Default)]
pub(crate) struct Described {
    buffers: Vec<usize>,
}

impl Described {
    /// Whether nothing lies behind a descriptor.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Has the device use the descriptors of a wiring, and its own memory for all else.
    ///
    /// Blocking where a descriptor is new to the device: as long as that takes to map it.
    pub(crate) fn bind(
        &mut self,
        exec: &mut dyn Exec,
        wiring: &Wiring,
        transfers: &TransferPlan,
    ) -> Result<(), RuntimeError> {
        if self.buffers.is_empty() && descriptors(wiring).next().is_none() {
            return Ok(());
        }
        let mut wanted: Vec<(usize, &Arc<DmaBuf>)> = Vec::new();
        for (binding, memory) in descriptors(wiring) {
            let buffer = transfers.whole_buffer(binding).ok_or_else(|| RuntimeError::Argument {
                what: format!("binding {binding} is not all of a DMA buffer; no descriptor can stand for it"),
            })?;
            wanted.push((buffer, memory));
        }
        while let Some(at) =
            self.buffers.iter().position(|bound| !wanted.iter().any(|(buffer, _)| buffer == bound))
        {
            exec.bind_dma_buf(self.buffers[at], None)?;
            self.buffers.swap_remove(at);
        }
        for (buffer, memory) in wanted {
            exec.bind_dma_buf(buffer, Some(memory))?;
            if !self.buffers.contains(&buffer) {
                self.buffers.push(buffer);
            }
        }
        Ok(())
    }
}

/// Bindings that are wired to descriptors, inputs then outputs.
fn descriptors(wiring: &Wiring) -> impl Iterator<Item = (usize, &Arc<DmaBuf>)> {
    let inputs = wiring.inputs.iter().enumerate().filter_map(|(index, wire)| match wire {
        InputWire::DmaBuf { memory } => Some((index, memory)),
        _ => None,
    });
    let first = wiring.inputs.len();
    let outputs = wiring.outputs.iter().enumerate().filter_map(move |(index, wire)| match wire {
        OutputWire::DmaBuf { memory } => Some((first + index, memory)),
        _ => None,
    });
    inputs.chain(outputs)
}
