//! The `cpu` device: virtual cards whose cores are threads of the host and whose engine is ONNX Runtime.
//!
//! A loaded program is one session of the engine, whatever the number of activations: ONNX Runtime runs a session from
//! many threads at once, so weights, their prepacked forms and the worker threads exist once (docs/adr/0005).

pub mod blocks;
mod build;
mod calibration;
pub mod custom_ops;
mod encoded;
#[allow(unsafe_code)] // calls of the engine's C functions
mod engine;
mod execution;
mod external_data;
#[allow(unsafe_code)] // loads a library and its function table
mod loader;
pub mod plan;
mod profile;
mod stats;

use std::any::Any;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use qaic_qpc::container::names;

use super::{
    Activation, Canceller, Device, DeviceId, DeviceKind, Exec, Ledger, LoadOptions, LoadToken, LoadedProgram,
    Resources,
};
use crate::buffer::{HostSlice, HostSliceMut, Storage};
use crate::error::RuntimeError;
use crate::image::Image;
use crate::profiling::{Identity, Stages};
pub(in crate::device) use build::Parts;
use build::build_graph;
use engine::{GraphOptions, Purpose, SavePaths, Stop};
pub(in crate::device) use execution::{Executable, Execution, Setting};
pub use loader::{Engine, MINIMUM_VERSION};
pub(in crate::device) use stats::{Description, LoadedStats};

/// One virtual card.
#[derive(Debug)]
pub struct CpuDevice {
    ledger: Arc<Ledger>,
    engine_candidates: Vec<PathBuf>,
    family: &'static str,
}

impl CpuDevice {
    /// A card with these books. Loads nothing.
    pub fn new(ledger: Arc<Ledger>, engine_candidates: Vec<PathBuf>, family: &'static str) -> Self {
        Self { ledger, engine_candidates, family }
    }
}

impl Device for CpuDevice {
    fn id(&self) -> DeviceId {
        self.ledger.card()
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn name(&self) -> String {
        format!("openqaic virtual AI 100 {}", self.id().0)
    }

    fn resources(&self) -> Resources {
        self.ledger.resources()
    }

    fn family(&self) -> &'static str {
        self.family
    }

    fn executes_on_host(&self) -> bool {
        true
    }

    fn ledger(&self) -> Option<&Arc<Ledger>> {
        Some(&self.ledger)
    }

    fn partitions(&self, image: &Image) -> Result<Option<u32>, RuntimeError> {
        plan::devices(image)
    }

    fn load(
        &self,
        image: &Arc<Image>,
        options: &LoadOptions,
    ) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        let setting = Setting {
            cores: image.network().num_cores.max(1),
            activations: options.activations,
            family: (!options.any_hardware).then_some(self.family),
            token: &options.token,
        };
        let executable = Executable::new(
            &parts(image, self.id()),
            Description::of_container(image),
            &self.engine_candidates,
            &setting,
        )?;
        Ok(Arc::new(CpuProgram { image: Arc::clone(image), executable }))
    }
}

/// The parts of a container.
fn parts(image: &Arc<Image>, device: DeviceId) -> Parts<'_> {
    Parts {
        elf: image.segment(names::NETWORK_ELF).unwrap_or_default(),
        constants: image.segment(names::CONSTANTS).unwrap_or_default(),
        keeper: Arc::clone(image) as Arc<dyn Any + Send + Sync>,
        network: Some(image.network()),
        device,
    }
}

/// Checks that a CPU program loads: the engine takes its graph with its weights and shapes.
///
/// The weights are used where they are mapped. Blocking: as long as a load that packs no weights.
pub fn check_program(
    image: &Arc<Image>,
    engine_candidates: &[PathBuf],
    token: &LoadToken,
) -> Result<(), RuntimeError> {
    let options =
        GraphOptions { intra_op_threads: 1, purpose: Purpose::Check, family: None, save: None, token };
    build_graph(&parts(image, DeviceId(0)), engine_candidates, options).map(drop)
}

/// Writes the graph that the engine runs for a CPU program into `folder`, and tells where it is. It is an ONNX file whose
/// larger initializers have no values: they are said to lie in a file beside it that holds nothing.
///
/// The same program can be another graph on another processor or with another engine, as the engine decides.
///
/// Blocking: as long as a load.
pub fn save_optimized(
    image: &Arc<Image>,
    folder: &Path,
    engine_candidates: &[PathBuf],
    token: &LoadToken,
) -> Result<PathBuf, RuntimeError> {
    let graph_path = folder.join("optimized.onnx");
    let c_path = |path: &Path| {
        CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| RuntimeError::Argument {
            what: format!("the folder {} has a zero byte in its name", folder.display()),
        })
    };
    // The engine has no way to leave the constants out; it may write them where nothing stays.
    let constants = Path::new("constants");
    let sink = folder.join(constants);
    symlink("/dev/null", &sink)
        .map_err(|source| RuntimeError::Io { path: sink.clone(), source: Arc::new(source) })?;
    let save = SavePaths { graph: c_path(&graph_path)?, constants: c_path(constants)? };
    let options =
        GraphOptions { intra_op_threads: 1, purpose: Purpose::Run, family: None, save: Some(&save), token };
    let built = build_graph(&parts(image, DeviceId(0)), engine_candidates, options);
    // Some engines remove it themselves.
    let _ = fs::remove_file(sink);
    built.map(|_| graph_path)
}

#[derive(Debug)]
struct CpuProgram {
    image: Arc<Image>,
    executable: Executable,
}

impl LoadedProgram for CpuProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        Ok(Arc::new(CpuActivation { image: Arc::clone(&self.image), executable: self.executable.clone() }))
    }
}

#[derive(Debug)]
struct CpuActivation {
    image: Arc<Image>,
    executable: Executable,
}

impl Activation for CpuActivation {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        let dma_buffers = self.image.network().dma_buffers.iter().map(|_| None).collect();
        let execution = Execution::new(&self.executable)?;
        Ok(Box::new(CpuExec { image: Arc::clone(&self.image), execution, dma_buffers }))
    }
}

#[derive(Debug)]
struct CpuExec {
    image: Arc<Image>,
    execution: Execution,
    // Most programs bind everything in place, so these are made on first use.
    dma_buffers: Vec<Option<Storage>>,
}

impl Exec for CpuExec {
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut, RuntimeError> {
        let outside = || RuntimeError::Internal { what: format!("DMA buffer {index} does not exist") };
        let slot = self.dma_buffers.get_mut(index).ok_or_else(outside)?;
        if let Some(storage) = slot {
            return Ok(storage.memory());
        }
        let size = self.image.network().dma_buffers.get(index).ok_or_else(outside)?.size;
        Ok(slot.insert(Storage::new(size as usize)?).memory())
    }

    fn binds_in_place(&self) -> bool {
        true
    }

    fn select_shapes(&mut self, variant: usize) -> Result<(), RuntimeError> {
        self.execution.select_shapes(variant)
    }

    fn bind_input(&mut self, index: usize, memory: HostSlice) -> Result<(), RuntimeError> {
        self.execution.bind_input(index, memory)
    }

    fn bind_output(&mut self, index: usize, memory: HostSliceMut) -> Result<(), RuntimeError> {
        self.execution.bind_output(index, memory)
    }

    fn measure(&mut self) -> Result<(), RuntimeError> {
        self.execution.measure()
    }

    fn write_stats(&mut self, stages: &Stages, identity: Identity) -> Result<(), RuntimeError> {
        let Some(buffer) = self.execution.stats_buffer() else { return Ok(()) };
        let memory = self.dma_buffer(buffer)?;
        self.execution.write_stats(stages, identity, memory);
        Ok(())
    }

    fn execute(&mut self) -> Result<(), RuntimeError> {
        self.execution.execute()
    }

    fn canceller(&self) -> Arc<dyn Canceller> {
        self.execution.stop()
    }
}

impl Canceller for Stop {
    fn cancel(&self) {
        self.request();
    }
}
