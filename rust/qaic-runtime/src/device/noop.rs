//! The `noop` device: real buffers, no computation. It runs any container, for tests of everything around the device.
//!
//! It is chosen by name only and never found by enumeration, so that nobody measures it by accident.
//!
//! What it does with an inference is fixed, so that tests can predict it: the bytes of all inbound DMA buffers, in
//! order, are written to the outbound DMA buffers, in order, repeated as often as they fit.

use std::sync::Arc;

use qaic_qpc::network_desc::Direction;

use super::{
    Activation, Canceller, Device, DeviceId, DeviceKind, Exec, Ledger, LoadOptions, LoadedProgram, Resources,
};
use crate::buffer::{HostSlice, HostSliceMut, Storage};
use crate::error::RuntimeError;
use crate::image::Image;

const CORES: u32 = 16;

/// One `noop` device.
#[derive(Debug)]
pub struct NoopDevice {
    id: DeviceId,
    ledger: Arc<Ledger>,
}

impl NoopDevice {
    /// A device with 16 cores.
    pub fn new(id: DeviceId) -> Self {
        Self { id, ledger: Ledger::new(id, CORES) }
    }
}

impl Device for NoopDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Noop
    }

    fn name(&self) -> String {
        format!("openqaic noop test device {}", self.id.0)
    }

    fn resources(&self) -> Resources {
        self.ledger.resources()
    }

    fn executes_on_host(&self) -> bool {
        false
    }

    fn ledger(&self) -> Option<&Arc<Ledger>> {
        Some(&self.ledger)
    }

    fn partitions(&self, _: &Image) -> Result<Option<u32>, RuntimeError> {
        Ok(None)
    }

    fn load(&self, image: &Arc<Image>, _: &LoadOptions) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        Ok(Arc::new(NoopProgram { image: Arc::clone(image) }))
    }
}

#[derive(Debug)]
struct NoopProgram {
    image: Arc<Image>,
}

impl LoadedProgram for NoopProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        Ok(Arc::new(NoopActivation { image: Arc::clone(&self.image) }))
    }
}

#[derive(Debug)]
struct NoopActivation {
    image: Arc<Image>,
}

impl Activation for NoopActivation {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        let buffers = self
            .image
            .network()
            .dma_buffers
            .iter()
            .map(|buffer| Ok((buffer.dir, Storage::new(buffer.size as usize)?)))
            .collect::<Result<Vec<_>, RuntimeError>>()?;
        Ok(Box::new(NoopExec { buffers }))
    }
}

#[derive(Debug)]
struct NoopExec {
    buffers: Vec<(Direction, Storage)>,
}

impl Exec for NoopExec {
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut, RuntimeError> {
        self.buffers.get(index).map(|(_, storage)| storage.memory()).ok_or_else(|| RuntimeError::Internal {
            what: format!("DMA buffer {index} of {}", self.buffers.len()),
        })
    }

    fn binds_in_place(&self) -> bool {
        false
    }

    fn bind_input(&mut self, index: usize, _: HostSlice) -> Result<(), RuntimeError> {
        Err(RuntimeError::Internal { what: format!("input {index} of the noop device bound in place") })
    }

    fn bind_output(&mut self, index: usize, _: HostSliceMut) -> Result<(), RuntimeError> {
        Err(RuntimeError::Internal { what: format!("output {index} of the noop device bound in place") })
    }

    fn execute(&mut self) -> Result<(), RuntimeError> {
        let memories = |wanted: Direction| {
            let is_wanted = move |(direction, _): &&(Direction, Storage)| *direction == wanted;
            self.buffers.iter().filter(is_wanted).map(|(_, storage)| storage.memory())
        };
        // Empty buffers would make the search for the next bytes endless.
        let mut sources = memories(Direction::In).filter(|memory| !memory.is_empty()).cycle();
        let mut source = HostSlice::empty();
        for mut target in memories(Direction::Out) {
            while !target.is_empty() {
                if source.is_empty() {
                    let Some(next) = sources.next() else { return Ok(()) };
                    source = next.as_const();
                }
                let copied = target.copy_from(source);
                // Both are at least this long, so the rest exists.
                source = source.subslice(copied, source.len() - copied).unwrap_or(HostSlice::empty());
                target = target.subslice(copied, target.len() - copied).unwrap_or(HostSliceMut::empty());
            }
        }
        Ok(())
    }

    fn canceller(&self) -> Arc<dyn Canceller> {
        Arc::new(NothingToCancel)
    }
}

#[derive(Debug)]
struct NothingToCancel;

impl Canceller for NothingToCancel {
    fn cancel(&self) {}
}
