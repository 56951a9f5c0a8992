//! The `cpu` device: virtual cards whose cores are threads of the host and whose engine is ONNX Runtime.
//!
//! A loaded program is one session of the engine, whatever the number of activations: ONNX Runtime runs a session from
//! many threads at once, so weights, their prepacked forms and the worker threads exist once (docs/adr/0005).

pub mod blocks;
mod calibration;
pub mod custom_ops;
mod encoded;
#[allow(unsafe_code)] // calls of the engine's C functions
mod engine;
#[allow(unsafe_code)] // loads a library and its function table
mod loader;
pub mod plan;
mod profile;
mod stats;

use std::ffi::CString;
use std::fs;
use std::num::NonZero;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use qaic_qpc::container::names;
use qaic_qpc::elf;
use qaic_qpc::network_desc::NetworkDesc;

use super::{
    Activation, Canceller, Device, DeviceId, DeviceKind, Exec, Ledger, LoadOptions, LoadToken, LoadedProgram,
    Resources,
};
use crate::buffer::{HostSlice, HostSliceMut, Storage};
use crate::clock;
use crate::error::RuntimeError;
use crate::image::Image;
use crate::profiling::{Identity, Stages};
use crate::tensors::stats_output;
use blocks::{BlockBindings, BlockEdges};
use engine::{Bindings, Graph, GraphOptions, SavePaths, Stop};
pub use loader::{Engine, MINIMUM_VERSION};
use plan::Plan;
use stats::{ExecStats, ProgramStats};

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
        let begun_ns = clock::now_ns();
        let cores = image.network().num_cores.max(1);
        let intra_op_threads = session_threads(cores, options.activations, usable_cpus());
        let Built { graph, blocks, is_repeatable } = build_graph(
            image,
            self.id(),
            &self.engine_candidates,
            GraphOptions {
                intra_op_threads,
                optimize: true,
                family: (!options.any_hardware).then_some(self.family),
                save: None,
                token: &options.token,
            },
        )?;
        let stats = ProgramStats::new(image, graph.engine(), is_repeatable, begun_ns);
        Ok(Arc::new(CpuProgram { image: Arc::clone(image), graph: Arc::new(graph), blocks, stats }))
    }
}

/// Checks that the engine can run every node of a CPU program, without the cost of optimizing it.
///
/// Blocking: about a third of a load.
pub fn check_program(
    image: &Arc<Image>,
    engine_candidates: &[PathBuf],
    token: &LoadToken,
) -> Result<(), RuntimeError> {
    let options = GraphOptions { intra_op_threads: 1, optimize: false, family: None, save: None, token };
    build_graph(image, DeviceId(0), engine_candidates, options).map(drop)
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
        GraphOptions { intra_op_threads: 1, optimize: true, family: None, save: Some(&save), token };
    let built = build_graph(image, DeviceId(0), engine_candidates, options);
    // Some engines remove it themselves.
    let _ = fs::remove_file(sink);
    built.map(|_| graph_path)
}

/// What a program runs with.
struct Built {
    graph: Graph,
    blocks: Option<Arc<BlockEdges>>,
    // Whether an inference can be run twice without anybody noticing.
    is_repeatable: bool,
}

fn build_graph(
    image: &Arc<Image>,
    device: DeviceId,
    engine_candidates: &[PathBuf],
    options: GraphOptions<'_>,
) -> Result<Built, RuntimeError> {
    let elf_bytes = image.segment(names::NETWORK_ELF).unwrap_or_default();
    let section = |name| -> Result<Option<&[u8]>, RuntimeError> {
        Ok(elf::section(elf_bytes, name)?.and_then(|range| elf_bytes.get(range)))
    };
    let (Some(plan), Some(graph)) = (section(plan::PLAN_SECTION)?, section(plan::GRAPH_SECTION)?) else {
        return Err(RuntimeError::WrongTarget {
            built_for: "a card".to_owned(),
            device: device.0,
            kind: DeviceKind::Cpu.name(),
            reason: format!("network.elf has no section {}", plan::PLAN_SECTION),
        });
    };
    let mut plan = Plan::decode(plan)?;
    if plan.target != DeviceKind::Cpu.name() {
        return Err(RuntimeError::WrongTarget {
            built_for: plan.target,
            device: device.0,
            kind: DeviceKind::Cpu.name(),
            reason: "the plan names another target".to_owned(),
        });
    }
    let built_for = plan.hardware.as_deref().unwrap_or(plan::FAMILY);
    if let Some(family) = options.family.filter(|&family| family != built_for) {
        return Err(RuntimeError::HardwareFamily {
            built_for: built_for.to_owned(),
            device: device.0,
            family,
        });
    }
    check_edges(image, &plan)?;
    let blocks = BlockEdges::of(&mut plan)?;
    let constants = image.segment(names::CONSTANTS).unwrap_or_default();
    let engine = Engine::get(engine_candidates)?;
    let is_repeatable = !plan.retained_state && !plan.loops && plan.custom_op_libraries.is_empty();
    let graph = Graph::build(engine, image, &plan, graph, constants, options)?;
    Ok(Built { graph, blocks, is_repeatable })
}

/// The plan and the network descriptor must agree, because buffers are sized by one and used by the other. The plan does
/// not know the output of the statistics.
fn check_edges(image: &Image, plan: &Plan) -> Result<(), RuntimeError> {
    let network = image.network();
    let disagree = |message| Err(RuntimeError::EngineGraph { message });
    let computed = stats_output(network).unwrap_or(network.outputs.len());
    if plan.inputs.len() != network.inputs.len() || plan.outputs.len() != computed {
        return disagree(format!(
            "the plan has {} inputs and {} outputs, the network descriptor {} and {}",
            plan.inputs.len(),
            plan.outputs.len(),
            network.inputs.len(),
            computed
        ));
    }
    if let Some(partial) = network.inputs.iter().find(|binding| binding.is_partial_allowed) {
        return disagree(format!("input `{}` may be given in part, which no graph can take", partial.name));
    }
    let edges = plan
        .inputs
        .iter()
        .zip(&network.inputs)
        .map(|(edge, binding)| (edge, binding, &binding.io_transformed));
    let outputs =
        plan.outputs.iter().zip(&network.outputs).map(|(edge, binding)| (edge, binding, &binding.io_initial));
    for (edge, binding, device_side) in edges.chain(outputs) {
        let same_dims = edge.dims.iter().copied().eq(device_side.dims.iter().copied().map(i64::from));
        let same_size = device_side.dtype.size_bytes() == Some(edge.dtype.size_bytes());
        if edge.name != binding.name || !same_dims || !same_size {
            return disagree(format!(
                "binding `{}` of the network descriptor is not tensor `{}` of the plan",
                binding.name, edge.name
            ));
        }
    }
    check_variants(network, plan)
}

/// Each specialization of the plan must be the permitted combination that callers choose it by.
fn check_variants(network: &NetworkDesc, plan: &Plan) -> Result<(), RuntimeError> {
    let disagree = |message| Err(RuntimeError::EngineGraph { message });
    if plan.variants.len() != network.allowed_shapes.len() {
        return disagree(format!(
            "the plan has {} specializations, the network descriptor {} permitted combinations of shapes",
            plan.variants.len(),
            network.allowed_shapes.len()
        ));
    }
    for (number, (variant, allowed)) in plan.variants.iter().zip(&network.allowed_shapes).enumerate() {
        let dims = variant.inputs.iter().chain(&variant.outputs);
        let same = variant.inputs.len() == plan.inputs.len()
            && variant.outputs.len() == plan.outputs.len()
            && allowed.shapes.len() == network.inputs.len() + network.outputs.len()
            && dims
                .zip(&allowed.shapes)
                .all(|(dims, shape)| dims.iter().copied().eq(shape.dims.iter().copied().map(i64::from)));
        if !same {
            return disagree(format!(
                "specialization {number} of the plan is not entry {number} of allowed_shapes"
            ));
        }
    }
    Ok(())
}

/// CPUs this process may use, respecting affinity and control groups.
fn usable_cpus() -> u32 {
    thread::available_parallelism().map_or(1, |count| u32::try_from(NonZero::get(count)).unwrap_or(u32::MAX))
}

/// Threads of the session that `activations` activations of `cores` cores share.
///
/// Each activation may use min(cores, CPUs / activations) threads (compile-options row 56). One of them is the thread
/// that calls, so the pool holds the others of all activations, plus one because the engine counts its caller.
fn session_threads(cores: u32, activations: u32, cpus: u32) -> u32 {
    let activations = activations.max(1);
    let per_activation = cores.min(cpus / activations).max(1);
    (per_activation - 1).saturating_mul(activations).min(cpus.saturating_sub(1)) + 1
}

#[derive(Debug)]
struct CpuProgram {
    image: Arc<Image>,
    graph: Arc<Graph>,
    blocks: Option<Arc<BlockEdges>>,
    stats: Option<Arc<ProgramStats>>,
}

impl LoadedProgram for CpuProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        Ok(Arc::new(CpuActivation {
            image: Arc::clone(&self.image),
            graph: Arc::clone(&self.graph),
            blocks: self.blocks.clone(),
            stats: self.stats.clone(),
        }))
    }
}

#[derive(Debug)]
struct CpuActivation {
    image: Arc<Image>,
    graph: Arc<Graph>,
    blocks: Option<Arc<BlockEdges>>,
    stats: Option<Arc<ProgramStats>>,
}

impl Activation for CpuActivation {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        let dma_buffers = self.image.network().dma_buffers.iter().map(|_| None).collect();
        let mut bindings = Bindings::new(&self.graph)?;
        bindings.set_timed(self.stats.as_ref().is_some_and(|stats| stats.measures_ops()));
        Ok(Box::new(CpuExec {
            image: Arc::clone(&self.image),
            bindings,
            stats: self.stats.as_ref().map(ExecStats::new),
            is_announced: false,
            blocks: self.blocks.as_ref().map(BlockBindings::new),
            dma_buffers,
        }))
    }
}

#[derive(Debug)]
struct CpuExec {
    image: Arc<Image>,
    bindings: Bindings,
    blocks: Option<BlockBindings>,
    // Most programs bind everything in place, so these are made on first use.
    dma_buffers: Vec<Option<Storage>>,
    stats: Option<ExecStats>,
    // Whether the next execution is to be measured.
    is_announced: bool,
}

impl CpuExec {
    fn run(&mut self) -> Result<(), RuntimeError> {
        match &mut self.blocks {
            None => self.bindings.execute(),
            Some(blocks) => blocks.execute(&mut self.bindings),
        }
    }

    /// Runs the inference that is going to be measured without measuring it, where there is no other way to know what
    /// measuring costs. Whatever it computes is computed again.
    fn repeat(&mut self) -> Result<(), RuntimeError> {
        let mut total_ns = 0;
        for _ in 0..calibration::REPEATS {
            match self.run() {
                Ok(()) => total_ns += self.note_plain(),
                Err(RuntimeError::Interrupted) => return Err(RuntimeError::Interrupted),
                // The inference itself is going to say so.
                Err(_) => break,
            }
            if total_ns > calibration::REPEATING_NS {
                break;
            }
        }
        Ok(())
    }

    /// Notes how long an execution took that was not measured, and tells it.
    fn note_plain(&self) -> u64 {
        let (begin_ns, end_ns) = self.bindings.ran_ns();
        let duration_ns = end_ns.saturating_sub(begin_ns);
        if let Some(stats) = &self.stats {
            stats.program.add_plain(self.bindings.variant(), duration_ns);
        }
        duration_ns
    }

    #[cold]
    fn execution_ended(&mut self, succeeded: bool) {
        let Some(stats) = &mut self.stats else { return };
        if self.is_announced {
            self.is_announced = false;
            stats.end(&mut self.bindings, succeeded);
            self.bindings.set_timed(stats.program.measures_ops());
        } else if succeeded {
            self.note_plain();
        }
    }
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
        if let Some(blocks) = &mut self.blocks {
            blocks.select_shapes(variant);
        }
        self.bindings.select_shapes(variant)
    }

    fn bind_input(&mut self, index: usize, memory: HostSlice) -> Result<(), RuntimeError> {
        if let Some(blocks) = &mut self.blocks
            && blocks.bind_input(index, memory)?
        {
            return Ok(());
        }
        self.bindings.bind_input(index, memory)
    }

    fn bind_output(&mut self, index: usize, memory: HostSliceMut) -> Result<(), RuntimeError> {
        if let Some(blocks) = &mut self.blocks
            && blocks.bind_output(index, memory)?
        {
            return Ok(());
        }
        self.bindings.bind_output(index, memory)
    }

    fn measure(&mut self) -> Result<(), RuntimeError> {
        let Some(stats) = &self.stats else { return Ok(()) };
        let repeats = stats.program.claim_repeats(self.bindings.variant());
        self.bindings.set_timed(true);
        if repeats {
            self.repeat()?;
        }
        if let Some(stats) = &mut self.stats {
            stats.begin(&mut self.bindings);
            self.is_announced = true;
        }
        Ok(())
    }

    fn write_stats(&mut self, stages: &Stages, identity: Identity) -> Result<(), RuntimeError> {
        let Some(buffer) = self.stats.as_ref().map(|stats| stats.program.buffer) else { return Ok(()) };
        let memory = self.dma_buffer(buffer)?;
        if let Some(stats) = &mut self.stats {
            stats.write(&self.bindings, stages, identity, memory);
        }
        Ok(())
    }

    fn execute(&mut self) -> Result<(), RuntimeError> {
        let outcome = self.run();
        if self.bindings.is_timed() {
            self.execution_ended(outcome.is_ok());
        }
        outcome
    }

    fn canceller(&self) -> Arc<dyn Canceller> {
        self.bindings.stop()
    }
}

impl Canceller for Stop {
    fn cancel(&self) {
        self.request();
    }
}

#[cfg(test)]
mod tests {
    use super::session_threads;

    #[test]
    fn threads_follow_cores_and_are_capped_by_the_host() {
        assert_eq!(session_threads(1, 1, 2), 1);
        assert_eq!(session_threads(2, 1, 2), 2);
        assert_eq!(session_threads(16, 1, 2), 2);
        assert_eq!(session_threads(2, 2, 2), 1);
        assert_eq!(session_threads(4, 4, 16), 13);
        assert_eq!(session_threads(16, 14, 2), 1);
        assert_eq!(session_threads(0, 0, 0), 1);
    }
}
