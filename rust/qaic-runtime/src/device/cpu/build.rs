//! From the parts of a container to what runs: a plan that agrees with the rest, and a graph of the engine.
//!
//! The parts are where a device has them: in the container, or in the memory of a card that was given the ELF and the
//! constants and nothing else.

use std::any::Any;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use qaic_qpc::elf;
use qaic_qpc::network_desc::NetworkDesc;

use super::blocks::BlockEdges;
use super::engine::{Constants, Graph, GraphOptions};
use super::loader::Engine;
use super::plan::{self, Plan};
use crate::device::{DeviceId, DeviceKind};
use crate::error::RuntimeError;
use crate::tensors::stats_output;

/// Where the parts of a program are.
#[derive(Debug)]
pub(in crate::device) struct Parts<'a> {
    /// `network.elf`.
    pub(in crate::device) elf: &'a [u8],
    /// The payload of `constants.bin`.
    pub(in crate::device) constants: &'a [u8],
    /// Owns the constants, and never changes or moves them.
    pub(in crate::device) keeper: Arc<dyn Any + Send + Sync>,
    /// The network descriptor, where buffers are sized by it.
    pub(in crate::device) network: Option<&'a NetworkDesc>,
    /// The device, for messages.
    pub(in crate::device) device: DeviceId,
}

/// What a program runs with.
pub(super) struct Built {
    pub(super) graph: Graph,
    pub(super) blocks: Option<Arc<BlockEdges>>,
    /// Whether an inference can be run twice without anybody noticing.
    pub(super) is_repeatable: bool,
}

pub(super) fn build_graph(
    parts: &Parts<'_>,
    engine_candidates: &[PathBuf],
    options: GraphOptions<'_>,
) -> Result<Built, RuntimeError> {
    let section = |name| -> Result<Option<&[u8]>, RuntimeError> {
        Ok(elf::section(parts.elf, name)?.and_then(|range| parts.elf.get(range)))
    };
    let (Some(plan), Some(graph)) = (section(plan::PLAN_SECTION)?, section(plan::GRAPH_SECTION)?) else {
        return Err(RuntimeError::WrongTarget {
            built_for: "a card".to_owned(),
            device: parts.device.0,
            kind: DeviceKind::Cpu.name(),
            reason: format!("network.elf has no section {}", plan::PLAN_SECTION),
        });
    };
    let mut plan = Plan::decode(plan)?;
    if plan.target != DeviceKind::Cpu.name() {
        return Err(RuntimeError::WrongTarget {
            built_for: plan.target,
            device: parts.device.0,
            kind: DeviceKind::Cpu.name(),
            reason: "the plan names another target".to_owned(),
        });
    }
    let built_for = plan.hardware.as_deref().unwrap_or(plan::FAMILY);
    if let Some(family) = options.family.filter(|&family| family != built_for) {
        return Err(RuntimeError::HardwareFamily {
            built_for: built_for.to_owned(),
            device: parts.device.0,
            family,
        });
    }
    if let Some(network) = parts.network {
        check_edges(network, &plan)?;
    }
    let blocks = BlockEdges::of(&mut plan)?;
    let engine = Engine::get(engine_candidates)?;
    let is_repeatable = !plan.retained_state && !plan.loops && plan.custom_op_libraries.is_empty();
    let constants = Constants { bytes: parts.constants, keeper: Arc::clone(&parts.keeper) };
    let graph = Graph::build(engine, &plan, graph, &constants, options)?;
    Ok(Built { graph, blocks, is_repeatable })
}

/// The plan and the network descriptor must agree, because buffers are sized by one and used by the other. The plan does
/// not know the output of the statistics.
fn check_edges(network: &NetworkDesc, plan: &Plan) -> Result<(), RuntimeError> {
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
pub(super) fn usable_cpus() -> u32 {
    thread::available_parallelism().map_or(1, |count| u32::try_from(NonZero::get(count)).unwrap_or(u32::MAX))
}

/// Threads of the session that `activations` activations of `cores` cores share.
///
/// Each activation may use min(cores, CPUs / activations) threads (compile-options row 56). One of them is the thread
/// that calls, so the pool holds the others of all activations, plus one because the engine counts its caller.
pub(super) fn session_threads(cores: u32, activations: u32, cpus: u32) -> u32 {
    let activations = activations.max(1);
    let per_activation = cores.min(cpus / activations).max(1);
    (per_activation - 1).saturating_mul(activations).min(cpus.saturating_sub(1)) + 1
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
