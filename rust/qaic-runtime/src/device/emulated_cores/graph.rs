//! Programs compiled for the host, on the cores of emulated cards.

use std::path::PathBuf;
use std::sync::Arc;

use qaic_emu::{CoreView, DeviceMemory, Images, MemoryFull, Progress, Running, Workload};
use qaic_kmd::protocol::NncStatus;
use qaic_mem::{HostSlice, HostSliceMut, Storage};
use qaic_qpc::plan::{CONTROL_BYTES, Control};

use super::Refusal;
use super::card_plan;
use super::echo::EchoRunning;
use super::prepared::{Prepared, PreparedPrograms, TensorPlace};
use crate::device::HostTensors;
use crate::device::cpu::Execution;
use crate::error::RuntimeError;
use crate::process::log;
use crate::profiling::{Identity, Stages};

/// Runs programs compiled for the host with the engine of the virtual cards; echoes programs for silicon, as an
/// [`super::EchoWorkload`] does.
///
/// A graph is built once for each loaded program, and shared by its activations. A failed inference counts as a
/// failure of the cores, because a card cannot report it to the host otherwise. The reason is logged.
#[derive(Debug)]
pub struct GraphWorkload {
    engine_candidates: Vec<PathBuf>,
    programs: PreparedPrograms,
}

impl GraphWorkload {
    /// Creates a workload that finds the engine as virtual cards do. Loads nothing.
    pub fn new(engine_candidates: Vec<PathBuf>) -> Self {
        Self { engine_candidates, programs: PreparedPrograms::default() }
    }

    fn try_activate(&self, images: &Images) -> Result<Box<dyn Running>, Refusal> {
        if card_plan::of_elf(&images.elf)?.is_none() {
            return Ok(Box::new(EchoRunning::new(images)?));
        }
        let program = self.programs.get(images, &self.engine_candidates)?;
        Ok(Box::new(
            GraphRunning::new(program, images)
                .map_err(|error| Refusal { status: NncStatus::GENERAL, reason: error.to_string() })?,
        ))
    }
}

impl Workload for GraphWorkload {
    fn requirements(&self, elf: &[u8]) -> Result<qaic_emu::Requirements, NncStatus> {
        super::requirements(elf)
    }

    fn activate(&self, images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        self.try_activate(images).map_err(Refusal::log_refusal)
    }
}

/// One activation.
#[derive(Debug)]
struct GraphRunning {
    program: Arc<Prepared>,
    execution: Execution,
    images: Images,
    // Memory of the engine for each tensor and the statistics.
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
                let mut bytes = [0; CONTROL_BYTES];
                let read = bytes.len().min(region.bytes);
                memory.read(region.address(&self.images), &mut bytes[..read]);
                Control::decode(&bytes).ok_or(Failure::NoControl)?
            }
        };
        let variant = control.variant as usize;
        self.execution.select_shapes(variant)?;
        for (place, storage) in program.inputs.iter().zip(&mut self.inputs) {
            let tensor = storage.memory_mut().first(place.bytes(variant));
            fetch(memory, place.region.address(&self.images), tensor);
        }
        let inputs = program.inputs.iter().zip(&self.inputs);
        let inputs: Vec<_> = inputs.map(|(place, storage)| Some(tensor(place, storage, variant))).collect();
        let outputs = program.outputs.iter().zip(&mut self.outputs);
        let mut outputs: Vec<_> =
            outputs.map(|(place, storage)| Some(storage.memory_mut().first(place.bytes(variant)))).collect();
        let mut tensors = HostTensors { inputs: &inputs, outputs: &mut outputs };
        if control.is_measured {
            self.execution.measure(&mut tensors)?;
        }
        self.execution.execute(&mut tensors)?;
        for (place, storage) in program.outputs.iter().zip(&self.outputs) {
            store(memory, place.region.address(&self.images), tensor(place, storage, variant))?;
        }
        if let (true, Some(region), Some(storage)) = (control.is_measured, &program.stats, &mut self.stats) {
            // Only the host knows when inputs were requested and outputs delivered.
            self.execution.write_stats(
                &Stages::default(),
                Identity::of_control(&control),
                storage.memory_mut(),
            );
            store(memory, region.address(&self.images), storage.memory())?;
        }
        Ok(())
    }
}

impl Running for GraphRunning {
    fn honors_semaphores(&self) -> bool {
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
        let terminator = self.execution.terminator();
        Arc::new(move || terminator.terminate_for_good())
    }
}

/// Reason why an inference did not complete.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("it was stopped")]
    Stopped,
    #[error("the control buffer contains other values")]
    NoControl,
    #[error("the memory of the card is full")]
    MemoryFull,
    #[error("{0}")]
    Engine(RuntimeError),
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        if error.is_interrupted() { Self::Stopped } else { Self::Engine(error) }
    }
}

impl From<MemoryFull> for Failure {
    fn from(_: MemoryFull) -> Self {
        Self::MemoryFull
    }
}

/// Returns the memory of a tensor in a set of shapes.
fn tensor<'a>(place: &TensorPlace, storage: &'a Storage, variant: usize) -> HostSlice<'a> {
    let whole = storage.memory();
    whole.subslice(0, place.bytes(variant)).unwrap_or(whole)
}

/// Copies from the card's memory.
fn fetch(memory: &DeviceMemory, address: u64, mut into: HostSliceMut<'_>) {
    let copied =
        memory.read_pieces(address, into.len(), |offset, piece| into.write_from(offset, piece).ok_or(()));
    debug_assert_eq!(copied, Ok(()), "pieces lie in what was asked for");
}

/// Copies to the card's memory.
fn store(memory: &mut DeviceMemory, address: u64, from: HostSlice<'_>) -> Result<(), MemoryFull> {
    // Pieces are within the requested range.
    memory.write_pieces(address, from.len(), |offset, piece| from.read_into(offset, piece).ok_or(MemoryFull))
}
