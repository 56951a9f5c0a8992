//! Programs compiled for the host, on the cores of emulated cards.

use std::path::PathBuf;
use std::sync::Arc;

use qaic_kmd::emu::workload::{CoreView, DeviceMemory, Images, MemoryFull, Progress, Running, Workload};

use super::card_plan::CardPlan;
use super::control::{self, Control};
use super::echo::EchoRunning;
use super::prepared::{Prepared, PreparedPrograms, TensorPlace};
use super::{Refusal, status};
use crate::buffer::{HostSliceMut, Storage};
use crate::device::cpu::Execution;
use crate::error::RuntimeError;
use crate::log;
use crate::profiling::Stages;

/// Runs programs compiled for the host, with the engine of the virtual cards; echoes those of silicon, as an
/// [`super::EchoWorkload`] does.
///
/// A graph is made once for each program that is loaded, and shared by its activations. An inference that fails is a failure
/// of the cores: a card has no other way to tell the host (device-kmd §2.8). The reason goes to the log.
#[derive(Debug)]
pub struct GraphWorkload {
    engine_candidates: Vec<PathBuf>,
    programs: PreparedPrograms,
}

impl GraphWorkload {
    /// Looks for the engine as virtual cards do. Loads nothing.
    pub fn new(engine_candidates: Vec<PathBuf>) -> Self {
        Self { engine_candidates, programs: PreparedPrograms::default() }
    }

    fn try_activate(&self, images: &Images) -> Result<Box<dyn Running>, Refusal> {
        if CardPlan::of_elf(&images.elf)?.is_none() {
            return Ok(Box::new(EchoRunning::new(images)?));
        }
        let program = self.programs.get(images, &self.engine_candidates)?;
        Ok(Box::new(
            GraphRunning::new(program, images)
                .map_err(|error| Refusal { status: status::GENERAL, reason: error.to_string() })?,
        ))
    }
}

impl Workload for GraphWorkload {
    fn demand(&self, elf: &[u8]) -> Result<qaic_kmd::emu::workload::Demand, i32> {
        super::demand(elf)
    }

    fn activate(&self, images: &Images) -> Result<Box<dyn Running>, i32> {
        self.try_activate(images).map_err(Refusal::tell)
    }
}

/// One activation.
#[derive(Debug)]
struct GraphRunning {
    program: Arc<Prepared>,
    execution: Execution,
    images: Images,
    // Memory that the engine works on, for each tensor and the statistics.
    inputs: Vec<Storage>,
    outputs: Vec<Storage>,
    stats: Option<Storage>,
}

impl GraphRunning {
    fn new(program: Arc<Prepared>, images: &Images) -> Result<Self, RuntimeError> {
        let storages = |places: &[TensorPlace]| {
            places.iter().map(|place| Storage::new(place.region.bytes)).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            execution: Execution::new(&program.executable)?,
            images: images.clone(),
            inputs: storages(&program.inputs)?,
            outputs: storages(&program.outputs)?,
            stats: program.stats.map(|region| Storage::new(region.bytes)).transpose()?,
            program,
        })
    }

    fn infer(&mut self, memory: &mut DeviceMemory) -> Result<(), Failure> {
        let program = Arc::clone(&self.program);
        let control = match &program.control {
            None => Control::default(),
            Some(region) => {
                let mut bytes = [0; control::BYTES];
                let read = bytes.len().min(region.bytes);
                memory.read(region.address(&self.images), &mut bytes[..read]);
                Control::decode(&bytes).ok_or(Failure::NoControl)?
            }
        };
        self.execution.select_shapes(control.variant)?;
        for (index, (place, storage)) in program.inputs.iter().zip(&self.inputs).enumerate() {
            let tensor = tensor(place, storage, control.variant);
            fetch(memory, place.region.address(&self.images), tensor);
            self.execution.bind_input(index, tensor.as_const())?;
        }
        for (index, (place, storage)) in program.outputs.iter().zip(&self.outputs).enumerate() {
            self.execution.bind_output(index, tensor(place, storage, control.variant))?;
        }
        if control.is_measured {
            self.execution.measure()?;
        }
        self.execution.execute()?;
        for (place, storage) in program.outputs.iter().zip(&self.outputs) {
            let tensor = tensor(place, storage, control.variant);
            store(memory, place.region.address(&self.images), tensor)?;
        }
        if let (true, Some(region), Some(storage)) = (control.is_measured, &program.stats, &self.stats) {
            // When inputs were wanted and outputs delivered, only the host knows.
            self.execution.write_stats(&Stages::default(), control.identity, storage.memory());
            store(memory, region.address(&self.images), storage.memory())?;
        }
        Ok(())
    }
}

impl Running for GraphRunning {
    fn honours_semaphores(&self) -> bool {
        self.program.protocol.handshake.is_some()
    }

    fn begin(&mut self, card: &mut CoreView<'_>) {
        if let Some(handshake) = &self.program.protocol.handshake {
            handshake.begin(card.semaphores);
        }
    }

    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress {
        card.doorbells.clear();
        let is_called = |handshake: &super::protocol::Handshake| handshake.take_arrival(card.semaphores);
        if !self.program.protocol.handshake.as_ref().is_none_or(is_called) {
            return Progress::Idle;
        }
        match self.infer(card.memory) {
            Ok(()) => {}
            Err(Failure::Stopped) => return Progress::Idle,
            Err(failure) => {
                log::global().error(|| format!("the cores of an emulated card failed: {failure}"));
                return Progress::Crashed;
            }
        }
        if let Some(handshake) = &self.program.protocol.handshake {
            handshake.release(card.semaphores);
        }
        Progress::Worked
    }

    fn stopper(&self) -> Arc<dyn Fn() + Send + Sync> {
        let stop = self.execution.stop();
        Arc::new(move || stop.request_for_good())
    }
}

/// Why an inference did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("it was stopped")]
    Stopped,
    #[error("the control buffer says something else")]
    NoControl,
    #[error("the memory of the card is full")]
    MemoryFull,
    #[error("{0}")]
    Engine(RuntimeError),
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Interrupted => Self::Stopped,
            other => Self::Engine(other),
        }
    }
}

impl From<MemoryFull> for Failure {
    fn from(_: MemoryFull) -> Self {
        Self::MemoryFull
    }
}

/// The memory of a tensor in a set of shapes; all of it for a set that does not exist, which the engine refuses.
fn tensor(place: &TensorPlace, storage: &Storage, variant: usize) -> HostSliceMut {
    let whole = storage.memory();
    let bytes = place.variant_bytes.get(variant).copied().unwrap_or(whole.len());
    whole.subslice(0, bytes).unwrap_or(whole)
}

/// Copies from the card's memory.
fn fetch(memory: &DeviceMemory, address: u64, into: HostSliceMut) {
    let copied =
        memory.read_pieces(address, into.len(), |offset, piece| into.write_from(offset, piece).ok_or(()));
    debug_assert_eq!(copied, Ok(()), "pieces lie in what was asked for");
}

/// Copies to the card's memory.
fn store(memory: &mut DeviceMemory, address: u64, from: HostSliceMut) -> Result<(), MemoryFull> {
    let from = from.as_const();
    // Pieces lie in what was asked for.
    memory.write_pieces(address, from.len(), |offset, piece| from.read_into(offset, piece).ok_or(MemoryFull))
}
