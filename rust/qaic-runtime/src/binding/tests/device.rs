//! A device that echoes its inputs and records its calls.

use std::sync::{Arc, Mutex, MutexGuard};

use qaic_mem::{DmaBuf, HostSlice, HostSliceMut, Storage};
use qaic_qpc::Direction;

use crate::device::{Activation, Canceller, Exec, HostTensors};
use crate::error::{ErrorDetail, RuntimeError};
use crate::process::{CancellationCheck, clock};
use crate::profiling::{Identity, Stages};

/// A call of a device.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Asked {
    Shapes(usize),
    Identify(u64),
    Measure,
    Submit,
    Execute,
    Reclaim,
    TransferBytes(Vec<u32>),
    DmaBuf(usize, bool),
    /// Addresses and lengths of inputs and outputs.
    InPlace(Vec<Option<(usize, usize)>>, Vec<Option<(usize, usize)>>),
}

/// A device that the test observes and controls.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) asked: Vec<Asked>,
    /// Error of the next execution.
    pub(super) fails: Option<RuntimeError>,
    /// The next execution calls the check, and ends early if it fails.
    pub(super) waits: bool,
    /// Nanoseconds that measuring takes.
    pub(super) measuring_ns: u64,
    pub(super) stats: Vec<u8>,
    pub(super) loses_stats: bool,
}

/// A device that echoes, through DMA buffers or in place.
#[derive(Clone, Debug)]
pub(super) struct Echoing {
    pub(super) device: Arc<Mutex<Device>>,
    pub(super) buffers: Vec<(Direction, usize)>,
    pub(super) in_place: bool,
}

#[derive(Debug)]
struct EchoExec {
    of: Echoing,
    buffers: Vec<Storage>,
    stats: Storage,
}

#[derive(Debug)]
struct Nothing;

impl Canceller for Nothing {
    fn cancel(&self) {}
}

impl Activation for Echoing {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        let buffers = self.buffers.iter().map(|&(_, bytes)| Storage::new(bytes).unwrap()).collect();
        Ok(Box::new(EchoExec { of: self.clone(), buffers, stats: Storage::new(0).unwrap() }))
    }

    fn updates_state(&self, _output: usize) -> bool {
        false
    }
}

impl EchoExec {
    fn device(&self) -> MutexGuard<'_, Device> {
        self.of.device.lock().unwrap()
    }

    fn ask(&self, asked: Asked) {
        self.device().asked.push(asked);
    }

    /// Fails if the test requested it.
    fn end(&self, check: Option<CancellationCheck<'_>>) -> Result<(), RuntimeError> {
        self.ask(Asked::Execute);
        let mut device = self.device();
        if std::mem::take(&mut device.waits) && check.is_some_and(|check| check()) {
            return Err(ErrorDetail::Interrupted.into());
        }
        device.fails.take().map_or(Ok(()), Err)
    }

    fn echo(&mut self) {
        let sides = self.of.buffers.clone();
        let parts = self.buffers.iter().zip(&sides).filter(|(_, (dir, _))| *dir == Direction::In);
        let mut source =
            parts.flat_map(|(storage, _)| storage.memory().to_vec()).collect::<Vec<_>>().into_iter().cycle();
        for (storage, _) in self.buffers.iter_mut().zip(&sides).filter(|(_, (dir, _))| *dir == Direction::Out)
        {
            let bytes: Vec<u8> = source.by_ref().take(storage.memory().len()).collect();
            storage.memory_mut().write_from(0, &bytes);
        }
    }
}

impl Exec for EchoExec {
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut<'_>, RuntimeError> {
        assert!(!self.of.in_place, "it has none");
        Ok(self.buffers[index].memory_mut())
    }

    fn works_in_place(&self) -> bool {
        self.of.in_place
    }

    fn execute_in_place(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        let place = |memory: HostSlice<'_>| (memory.as_ptr().addr(), memory.len());
        let inputs = tensors.inputs.iter().map(|memory| memory.map(place)).collect();
        let outputs = tensors.outputs.iter().map(|memory| Some(place(memory.as_ref()?.as_const()))).collect();
        self.ask(Asked::InPlace(inputs, outputs));
        self.end(None)?;
        // Copies byte by byte, so that an output that overlaps an input is visible.
        let sources: Vec<_> = tensors.inputs.iter().flatten().copied().collect();
        let places = sources.iter().flat_map(|source| (0..source.len()).map(move |at| (source, at)));
        let mut places = places.cycle();
        for output in tensors.outputs.iter_mut().flatten() {
            for at in 0..output.len() {
                let (source, from) = places.next().unwrap();
                let mut byte = [0_u8];
                source.read_into(from, &mut byte).unwrap();
                output.write_from(at, &byte).unwrap();
            }
        }
        Ok(())
    }

    fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        self.ask(Asked::Shapes(variant));
        Ok(())
    }

    fn bind_dma_buf(&mut self, index: usize, memory: Option<&Arc<DmaBuf>>) -> Result<(), RuntimeError> {
        self.ask(Asked::DmaBuf(index, memory.is_some()));
        Ok(())
    }

    fn identify(&mut self, identity: Identity) {
        self.ask(Asked::Identify(identity.inference));
    }

    fn measure(&mut self, tensors: &mut HostTensors<'_, '_>) -> Result<(), RuntimeError> {
        assert_eq!(tensors.inputs.is_empty(), !self.of.in_place);
        self.ask(Asked::Measure);
        let until = clock::now_ns() + self.device().measuring_ns;
        while clock::now_ns() < until {}
        Ok(())
    }

    fn write_stats(&mut self, _: &Stages, _: Identity) -> Result<HostSlice<'_>, RuntimeError> {
        let bytes = self.device().stats.clone();
        if self.device().loses_stats {
            return Err(RuntimeError::internal("as expected"));
        }
        self.stats = Storage::of(&bytes).unwrap();
        Ok(self.stats.memory())
    }

    fn reclaim(&mut self, check: CancellationCheck<'_>) -> Result<(), RuntimeError> {
        self.ask(Asked::Reclaim);
        if check() { Err(ErrorDetail::Interrupted.into()) } else { Ok(()) }
    }

    fn set_transfer_bytes(&mut self, bytes: &[u32]) {
        self.ask(Asked::TransferBytes(bytes.to_vec()));
    }

    fn submit(&mut self) -> Result<(), RuntimeError> {
        self.ask(Asked::Submit);
        self.echo();
        Ok(())
    }

    fn execute(&mut self) -> Result<(), RuntimeError> {
        self.end(None)
    }

    fn execute_interruptibly(&mut self, check: CancellationCheck<'_>) -> Result<(), RuntimeError> {
        self.end(Some(check))
    }

    fn canceller(&self) -> Arc<dyn Canceller> {
        Arc::new(Nothing)
    }
}
