//! The `noop` device: real buffers, but no computation. The device accepts any container, for tests of everything
//! around a device.
//!
//! A `noop` device is used only if it is selected by name, so that no user measures it by accident.
//!
//! An inference has a fixed result, which tests can predict. The bytes of all inbound DMA buffers that contain
//! tensors are written, in order, to the outbound DMA buffers, in order, and repeated as often as they fit. A
//! [`FaultPlan`] and a [`Control`] determine the faults.
//!
//! The statistics contain the times of the execution, in the open layout, and identify the device as a test device.

mod control;

use std::collections::HashSet;
use std::sync::Arc;

use qaic_emu::fault::FaultPlan;
use qaic_mem::{HostSlice, HostSliceMut, Storage};
use qaic_qpc::{Direction, names};
use qaic_sched::Executor;
use qaic_stats::decode::{Thread, oqstats};
use qaic_stats::{DeviceKind as Measurer, Run, RunFlags, StatsModel};
use qaic_sync::OwnerCount;

use super::{
    Activation, CORES, Canceller, Device, DeviceId, DeviceKind, DeviceStatus, Exec, LoadOptions,
    LoadedProgram, ResourceTracker,
    stats_records::{self, Levels},
};
use crate::error::RuntimeError;
use crate::image::Image;
use crate::process::clock::ucycles;
use crate::profiling::{Identity, Stages};
use control::Stop;
pub use control::{CALLS, Control};

#[derive(Debug)]
pub(crate) struct NoopDevice {
    resource_tracker: Arc<ResourceTracker>,
    pub(crate) control: Arc<Control>,
}

impl NoopDevice {
    /// Creates a device. The tracker counts its resources, and `faults` happen on it.
    pub(crate) fn new(resource_tracker: Arc<ResourceTracker>, faults: FaultPlan) -> Self {
        let control = Arc::new(Control::new(resource_tracker.card, faults));
        Self { resource_tracker, control }
    }
}

impl Executor for NoopDevice {
    fn executes_on_host(&self) -> bool {
        false
    }

    fn is_bounded(&self) -> bool {
        !self.control.is_armed()
    }
}

impl Device for NoopDevice {
    fn id(&self) -> DeviceId {
        self.resource_tracker.card
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Noop
    }

    fn name(&self) -> String {
        format!("openqaic noop test device {}", self.id().0)
    }

    fn status(&self) -> DeviceStatus {
        self.control.status()
    }

    fn resource_tracker(&self) -> Option<&Arc<ResourceTracker>> {
        Some(&self.resource_tracker)
    }

    fn partitions(&self, _: &Image) -> Result<Option<u32>, RuntimeError> {
        Ok(None)
    }

    fn load(
        &self,
        image: &Arc<Image>,
        options: &LoadOptions,
    ) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        let control = Arc::clone(&self.control);
        let _on_cancel = options.token.on_cancel(Box::new(move || control.wake()))?;
        let constants = image.segment(names::CONSTANTS).map_or(0, <[u8]>::len) as u64;
        let losses = self.control.load(constants, || options.token.is_cancelled())?;
        Ok(Arc::new(NoopProgram { image: Arc::clone(image), control: Arc::clone(&self.control), losses }))
    }
}

/// A loaded program or one of its activations.
#[derive(Clone, Debug)]
struct NoopProgram {
    image: Arc<Image>,
    control: Arc<Control>,
    // Number of losses of the device before the load of the program.
    losses: u32,
}

impl NoopProgram {
    fn dma_bytes(&self) -> u64 {
        self.image.network.dma_buffers.iter().map(|buffer| u64::from(buffer.size)).sum()
    }
}

impl LoadedProgram for NoopProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        let cores = self.image.network.num_cores.max(1);
        self.control.activate(self.losses, cores, CORES, self.dma_bytes())?;
        Ok(Arc::new(self.clone()))
    }
}

impl Activation for NoopProgram {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        self.control.exec(self.losses, self.dma_bytes())?;
        let network = &self.image.network;
        // A buffer without a tensor controls a card and is not for the outputs.
        let copies = network.inputs.iter().flat_map(|input| &input.transformseq);
        let with_tensors: HashSet<u32> =
            copies.filter_map(|step| step.copy_dma_buffer.as_ref()).map(|copy| copy.buffer_num).collect();
        let mut buffers = Buffers::default();
        for (number, buffer) in (0..).zip(&network.dma_buffers) {
            let storage = Storage::new(buffer.size as usize)?;
            let list = match buffer.dir {
                Direction::Out => &mut buffers.outputs,
                Direction::In if with_tensors.contains(&number) => &mut buffers.inputs,
                Direction::In | Direction::Unknown(_) => &mut buffers.others,
            };
            list.push((number as usize, storage));
        }
        let stop = Arc::new(Stop::new(&self.control));
        let stats = self.image.network.stats.as_ref();
        let stats = stats.map(|stats| (stats.buff_num as usize, Levels::of(stats)));
        let image = Arc::clone(&self.image);
        let unarmed = self.control.unarmed_count();
        Ok(Box::new(NoopExec { buffers, losses: self.losses, stop, stats, image, unarmed }))
    }

    fn updates_state(&self, _output: usize) -> bool {
        false
    }
}

/// Numbers and views of DMA buffers, by their role in the echo.
#[derive(Debug, Default)]
struct Buffers {
    inputs: Vec<(usize, Storage)>,
    outputs: Vec<(usize, Storage)>,
    others: Vec<(usize, Storage)>,
}

#[derive(Debug)]
struct NoopExec {
    buffers: Buffers,
    losses: u32,
    stop: Arc<Stop>,
    // DMA buffer of the statistics, and their levels.
    stats: Option<(usize, Levels)>,
    image: Arc<Image>,
    unarmed: OwnerCount,
}

impl Buffers {
    fn get_mut(&mut self, index: usize) -> Option<&mut Storage> {
        let Self { inputs, outputs, others } = self;
        let mut all = inputs.iter_mut().chain(outputs).chain(others);
        all.find(|(number, _)| *number == index).map(|(_, storage)| storage)
    }
}

impl NoopExec {
    /// Computes the outputs of an inference.
    fn compute(&mut self) {
        let Buffers { inputs, outputs, .. } = &mut self.buffers;
        // Empty buffers would make the search for the next bytes endless.
        let mut sources =
            inputs.iter().map(|(_, storage)| storage.memory()).filter(|memory| !memory.is_empty()).cycle();
        let mut source = HostSlice::empty();
        for (_, storage) in outputs {
            let mut target = storage.memory_mut();
            while !target.is_empty() {
                if source.is_empty() {
                    let Some(next) = sources.next() else { return };
                    source = next;
                }
                let copied = target.copy_from(source);
                // Both are at least this long.
                source = source.subslice(copied, source.len() - copied).unwrap_or(HostSlice::empty());
                let left = target.len() - copied;
                target = target.subslice(copied, left).unwrap_or(HostSliceMut::empty());
            }
        }
    }
}

impl Exec for NoopExec {
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut<'_>, RuntimeError> {
        let storage = self.buffers.get_mut(index);
        storage
            .map(Storage::memory_mut)
            .ok_or_else(|| RuntimeError::internal(format!("DMA buffer {index} does not exist")))
    }

    fn execute(&mut self) -> Result<(), RuntimeError> {
        self.stop.control.execute(self.losses, &self.stop, &mut self.unarmed)?;
        self.compute();
        Ok(())
    }

    fn write_stats(&mut self, stages: &Stages, identity: Identity) -> Result<HostSlice<'_>, RuntimeError> {
        let missing = || RuntimeError::internal("the program has no buffer of statistics");
        let (buffer, levels) = self.stats.ok_or_else(missing)?;
        let fingerprint = stats_records::fingerprint(&self.image);
        let mut memory = self.dma_buffer(buffer)?;
        let flags = RunFlags::COMPLETE | RunFlags::PCYCLES_ABSENT;
        let run = Run { device: Measurer::Test, flags, ..stats_records::run(levels, identity) };
        let mut model = StatsModel::new(run);
        let (start_u, end_u) = (ucycles(stages.inputs_ready_ns), ucycles(stages.executed_ns));
        stats_records::set(&mut model, Thread { start_u, end_u, ..Thread::default() }, stages);
        let mut encoded = vec![0; memory.len()];
        // A buffer of a card may have no room; zeros are empty statistics.
        let _ = oqstats::encode(&model, fingerprint, &mut encoded);
        let _ = memory.write_from(0, &encoded);
        Ok(memory.into_const())
    }

    fn canceller(&self) -> Arc<dyn Canceller> {
        Arc::clone(&self.stop) as Arc<dyn Canceller>
    }
}
