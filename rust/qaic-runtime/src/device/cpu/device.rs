//! A virtual card, and the functions for its programs other than loading.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use qaic_qpc::names;
use qaic_qpc::plan::PlanError;
use qaic_sched::Executor;

use super::MemoryLimit;
use super::engine::{GraphOptions, Purpose};
use super::executable::{Constants, Executable, ExecutableOptions, Parts, build_graph};
use super::optimized_graph::SavePlace;
use super::program::CpuProgram;
use super::stats::Description;
use crate::device::{Device, DeviceId, DeviceKind, LoadOptions, LoadedProgram, ResourceTracker};
use crate::error::RuntimeError;
use crate::image::Image;
use crate::process::CancellationToken;

/// One virtual card.
#[derive(Debug)]
pub(crate) struct CpuDevice {
    resource_tracker: Arc<ResourceTracker>,
    engine_candidates: Vec<PathBuf>,
    family: &'static str,
    memory: MemoryLimit,
}

impl CpuDevice {
    /// Creates a card whose resources the tracker counts. Loads nothing.
    pub(crate) fn new(
        resource_tracker: Arc<ResourceTracker>,
        engine_candidates: Vec<PathBuf>,
        family: &'static str,
        memory: MemoryLimit,
    ) -> Self {
        Self { resource_tracker, engine_candidates, family, memory }
    }
}

impl Executor for CpuDevice {
    fn executes_on_host(&self) -> bool {
        true
    }
}

impl Device for CpuDevice {
    fn id(&self) -> DeviceId {
        self.resource_tracker.card
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn name(&self) -> String {
        format!("openqaic virtual AI 100 {}", self.id().0)
    }

    fn family(&self) -> &'static str {
        self.family
    }

    fn resource_tracker(&self) -> Option<&Arc<ResourceTracker>> {
        Some(&self.resource_tracker)
    }

    fn partitions(&self, image: &Image) -> Result<Option<u32>, RuntimeError> {
        // The load validates the whole plan later.
        match image.plan() {
            Err(PlanError::Qpc(error)) => Err(error.into()),
            plan => Ok(plan.ok().flatten().and_then(|plan| plan.devices)),
        }
    }

    fn load(
        &self,
        image: &Arc<Image>,
        options: &LoadOptions,
    ) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        if let Some(plan) = image.plan()? {
            self.memory.check(plan, options.activations, Path::new("/"))?;
        }
        let options = ExecutableOptions {
            cores: image.network.num_cores.max(1),
            activations: options.activations,
            family: (!options.any_hardware).then_some(self.family),
            token: &options.token,
        };
        let executable = Executable::new(
            &parts(image, self.id())?,
            Description::of_container(image),
            &self.engine_candidates,
            &options,
        )?;
        Ok(Arc::new(CpuProgram::new(image, executable)))
    }
}

/// Returns the parts of a container.
fn parts(image: &Arc<Image>, device: DeviceId) -> Result<Parts<'_>, RuntimeError> {
    Ok(Parts {
        elf: image.segment(names::NETWORK_ELF).unwrap_or_default(),
        plan: image.plan()?,
        constants: Constants::Container(Arc::clone(image)),
        network: Some(&image.network),
        device,
    })
}

/// Checks that a CPU program can be loaded: the engine accepts its graph with the weights and shapes.
///
/// The weights stay in their mapped memory. Blocking: as long as a load that packs no weights.
pub fn check_program(
    image: &Arc<Image>,
    engine_candidates: &[PathBuf],
    token: &CancellationToken,
) -> Result<(), RuntimeError> {
    let options =
        GraphOptions { intra_op_threads: 1, purpose: Purpose::Check, family: None, save: None, token };
    build_graph(&parts(image, DeviceId(0))?, engine_candidates, options).map(drop)
}

/// Writes the graph that the engine runs for a CPU program into `folder`, and returns its path. The result is an ONNX
/// file without the values of its larger initializers, which reference an empty file in the same folder.
///
/// The graph of a program can differ between processors and engine versions, because the engine optimizes it.
///
/// Blocking: as long as a load.
pub fn save_optimized(
    image: &Arc<Image>,
    folder: &Path,
    engine_candidates: &[PathBuf],
    token: &CancellationToken,
) -> Result<PathBuf, RuntimeError> {
    let place = SavePlace::inside(folder)?;
    let options = GraphOptions {
        intra_op_threads: 1,
        purpose: Purpose::Run,
        family: None,
        save: Some(&place.paths),
        token,
    };
    let built = build_graph(&parts(image, DeviceId(0))?, engine_candidates, options);
    let graph_path = place.finish();
    built.map(|_| graph_path)
}
