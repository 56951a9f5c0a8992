//! Conversion of a container's parts to a runnable program: a plan that is checked against the other parts, and a
//! graph of the engine.
//!
//! The parts come from the container, or from the memory of a card that received only the ELF and the constants.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use qaic_qpc::plan::{self, GRAPH_SECTION, PLAN_SECTION, Plan};
use qaic_qpc::{NetworkDesc, names};

use super::blocks::BlockTensors;
use super::engine::{Engine, Graph, GraphOptions, Purpose};
use super::optimized_graph::{GraphNode, SavedGraph};
use super::state_rows::StateRows;
use super::stats::{Description, ProgramStats};
use super::turns::Turns;
use crate::device::{DeviceId, DeviceKind};
use crate::error::{DeviceError, ErrorDetail, RuntimeError};
use crate::image::Image;
use crate::process::{CancellationToken, clock};

/// Parts of a program.
#[derive(Debug)]
pub(in crate::device) struct Parts<'a> {
    /// Contents of `network.elf`.
    pub(in crate::device) elf: &'a [u8],
    /// The plan in the ELF, if there is one.
    pub(in crate::device) plan: Option<&'a Plan>,
    /// The payload of `constants.bin`.
    pub(in crate::device) constants: Constants,
    /// The network descriptor, if it determines the buffer sizes.
    pub(in crate::device) network: Option<&'a NetworkDesc>,
    /// Id of the device, for messages.
    pub(in crate::device) device: DeviceId,
}

/// Constants of a program with their owner, which never changes or moves them.
#[derive(Clone, Debug)]
pub(in crate::device) enum Constants {
    /// Constants in their container.
    Container(Arc<Image>),
    /// Constants in the memory of a card.
    #[cfg(feature = "emu")]
    Card(Arc<[u8]>),
}

impl Constants {
    /// The payload of `constants.bin`.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Container(image) => image.segment(names::CONSTANTS).unwrap_or_default(),
            #[cfg(feature = "emu")]
            Self::Card(bytes) => bytes,
        }
    }
}

/// Options for preparing a program.
#[derive(Debug)]
pub(in crate::device) struct ExecutableOptions<'a> {
    pub(in crate::device) cores: u32,
    /// Number of activations that share the program.
    pub(in crate::device) activations: u32,
    /// Hardware family that the program must be compiled for; `None` accepts any.
    pub(in crate::device) family: Option<&'static str>,
    /// Token that ends the preparation early.
    pub(in crate::device) token: &'a CancellationToken,
}

/// A program that is ready to run, any number of times concurrently.
#[derive(Clone, Debug)]
pub(in crate::device) struct Executable {
    pub(super) graph: Arc<Graph>,
    pub(super) state_rows: Option<Arc<StateRows>>,
    pub(super) blocks: Option<Arc<BlockTensors>>,
    pub(super) stats: Option<Arc<ProgramStats>>,
    // Only if the engine records threads in its profiles.
    pub(super) turns: Option<Arc<Turns>>,
}

impl Executable {
    /// Prepares a program. `description` describes its measurements.
    ///
    /// Blocking: reads the weights and prepares them for the kernels.
    pub(in crate::device) fn new(
        parts: &Parts<'_>,
        description: Option<Description>,
        engine_candidates: &[PathBuf],
        options: &ExecutableOptions<'_>,
    ) -> Result<Self, RuntimeError> {
        let begun_ns = clock::now_ns();
        let graph_options = GraphOptions {
            intra_op_threads: session_threads(options.cores, options.activations, usable_cpus()),
            purpose: Purpose::Run,
            family: options.family,
            save: None,
            token: options.token,
        };
        let measures_ops = description.as_ref().is_some_and(Description::measures_ops)
            && Engine::get(engine_candidates)?.run_profiling().is_some();
        let (built, nodes) = if measures_ops {
            build_known(parts, engine_candidates, graph_options)?
        } else {
            (build_graph(parts, engine_candidates, graph_options)?, Ok(Vec::new()))
        };
        let BuiltGraph { graph, state_rows, blocks, is_repeatable } = built;
        let stats = description.map(|description| {
            ProgramStats::new(description, nodes, graph.engine(), graph.variants(), is_repeatable, begun_ns)
        });
        let turns = (measures_ops && graph_options.intra_op_threads > 1).then(Arc::default);
        Ok(Self { graph: Arc::new(graph), state_rows, blocks, stats, turns })
    }

    /// As [`crate::device::Activation::updates_state`].
    pub(super) fn updates_state(&self, output: usize) -> bool {
        self.state_rows.as_ref().is_some_and(|state_rows| state_rows.updates(output))
    }
}

/// The built graph of a program, with its state and its blocks.
pub(super) struct BuiltGraph {
    pub(super) graph: Graph,
    pub(super) state_rows: Option<Arc<StateRows>>,
    pub(super) blocks: Option<Arc<BlockTensors>>,
    /// True if an inference can be run twice with the same result.
    pub(super) is_repeatable: bool,
}

/// Checks the plan against the other parts of its program, and builds its graph.
///
/// Blocking: reads the weights and prepares them for the kernels.
pub(super) fn build_graph(
    parts: &Parts<'_>,
    engine_candidates: &[PathBuf],
    options: GraphOptions<'_>,
) -> Result<BuiltGraph, RuntimeError> {
    let wrong_target = |built_for: &str, reason: String| {
        ErrorDetail::Device(DeviceError::WrongTarget {
            built_for: built_for.to_owned(),
            device: parts.device.0,
            kind: DeviceKind::Cpu.name(),
            reason,
        })
    };
    let without = |section| wrong_target("a card", format!("network.elf has no section {section}"));
    let plan = parts.plan.ok_or_else(|| without(PLAN_SECTION))?;
    let graph = plan::graph(parts.elf)?.ok_or_else(|| without(GRAPH_SECTION))?;
    if plan.target != DeviceKind::Cpu.name() {
        return Err(wrong_target(&plan.target, "its program is for another target".to_owned()).into());
    }
    let built_for = plan.family();
    if let Some(family) = options.family.filter(|&family| family != built_for) {
        return Err(DeviceError::HardwareFamily {
            built_for: built_for.to_owned(),
            device: parts.device.0,
            family,
        }
        .into());
    }
    if let Some(network) = parts.network {
        plan.check_network(network)?;
    }
    let constants = parts.constants.bytes();
    plan.check_initializers(constants.len(), constants.as_ptr().addr() as u64)?;
    let mut plan = plan.clone();
    let state_rows = StateRows::of(&mut plan)?;
    let blocks = BlockTensors::of(&mut plan)?;
    let engine = Engine::get(engine_candidates)?;
    let is_repeatable = !plan.retained_state && !plan.loops && plan.custom_op_libraries.is_empty();
    let graph = Graph::build(engine, &plan, graph, &parts.constants, options)?;
    Ok(BuiltGraph { graph, state_rows, blocks, is_repeatable })
}

/// Builds the graph as [`build_graph`] does; also returns the nodes that the engine runs, or the reason why they are
/// unknown.
fn build_known(
    parts: &Parts<'_>,
    engine_candidates: &[PathBuf],
    options: GraphOptions<'_>,
) -> Result<(BuiltGraph, Result<Vec<GraphNode>, String>), RuntimeError> {
    let saved = match SavedGraph::new() {
        Ok(saved) => saved,
        Err(reason) => return Ok((build_graph(parts, engine_candidates, options)?, Err(reason))),
    };
    let saving = GraphOptions { save: Some(saved.paths()), ..options };
    match build_graph(parts, engine_candidates, saving) {
        Ok(built) => Ok((built, saved.nodes())),
        Err(error) if error.is_interrupted() => Err(error),
        // The file system may have no room for the file; the program must work without it.
        Err(error) => Ok((build_graph(parts, engine_candidates, options)?, Err(error.to_string()))),
    }
}

/// CPUs this process may use, respecting affinity and control groups.
fn usable_cpus() -> u32 {
    thread::available_parallelism().map_or(1, |count| u32::try_from(NonZero::get(count)).unwrap_or(u32::MAX))
}

/// Number of session threads for `activations` activations of `cores` cores.
///
/// Each activation may use min(cores, CPUs / activations) threads. One of them is the calling thread, so the pool
/// contains the other threads of all activations, plus one because the engine counts its caller.
fn session_threads(cores: u32, activations: u32, cpus: u32) -> u32 {
    let activations = activations.max(1);
    let per_activation = cores.min(cpus / activations).max(1);
    (per_activation - 1).saturating_mul(activations).min(cpus.saturating_sub(1)) + 1
}

#[cfg(test)]
mod tests {
    use super::session_threads;

    #[test]
    fn session_threads_follow_cores_up_to_those_of_the_host() {
        assert_eq!(session_threads(1, 1, 2), 1);
        assert_eq!(session_threads(2, 1, 2), 2);
        assert_eq!(session_threads(16, 1, 2), 2);
        assert_eq!(session_threads(2, 2, 2), 1);
        assert_eq!(session_threads(4, 4, 16), 13);
        assert_eq!(session_threads(16, 14, 2), 1);
        assert_eq!(session_threads(0, 0, 0), 1);
    }
}
