//! The `noop` device: real buffers, no computation. It runs any container, for tests of everything around the device.
//!
//! It is chosen by name only and never found by enumeration, so that nobody measures it by accident.
//!
//! What it does with an inference is fixed, so that tests can predict it: the bytes of all inbound DMA buffers that hold
//! tensors, in order, are written to the outbound DMA buffers, in order, repeated as often as they fit. What goes wrong is decided by
//! a [`FaultPlan`] and a [`Control`].
//!
//! As a [`Control`] says, it takes executions before they are waited for, as a card does.
//!
//! Its statistics are when it ran, in the open layout, said to be of a test device.

mod control;
mod faults;
mod submissions;

use std::collections::HashSet;
use std::sync::Arc;

use qaic_qpc::container::names;
use qaic_qpc::network_desc::Direction;
use qaic_stats::model::{DeviceKind as Measurer, Run, StatsModel, run_flags};
use qaic_stats::oqstats;
use qaic_stats::record::Thread;

use super::{
    Activation, CORES, Canceller, Device, DeviceId, DeviceKind, DeviceStatus, Exec, Ledger, LoadOptions,
    LoadedProgram, Resources,
    stats_records::{self, Levels},
};
use crate::buffer::{HostSlice, HostSliceMut, Storage};
use crate::clock::ucycles;
use crate::error::RuntimeError;
use crate::image::Image;
use crate::profiling::{Identity, Stages};
pub use control::Control;
use control::Stop;
pub use faults::{Call, Fault, FaultPlan};
use submissions::Submission;

/// One `noop` device.
#[derive(Debug)]
pub struct NoopDevice {
    ledger: Arc<Ledger>,
    control: Arc<Control>,
}

impl NoopDevice {
    /// A device with these books, on which `faults` happen.
    pub fn new(ledger: Arc<Ledger>, faults: FaultPlan) -> Self {
        let control = Arc::new(Control::new(ledger.card(), faults));
        Self { ledger, control }
    }

    /// The hand on it.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }
}

impl Device for NoopDevice {
    fn id(&self) -> DeviceId {
        self.ledger.card()
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Noop
    }

    fn name(&self) -> String {
        format!("openqaic noop test device {}", self.id().0)
    }

    fn resources(&self) -> Resources {
        self.ledger.resources()
    }

    fn status(&self) -> DeviceStatus {
        self.control.status()
    }

    fn executes_on_host(&self) -> bool {
        false
    }

    fn may_stall(&self) -> bool {
        self.control.is_armed() && !self.queues_on_device()
    }

    fn queues_on_device(&self) -> bool {
        self.control.is_queueing()
    }

    fn ledger(&self) -> Option<&Arc<Ledger>> {
        Some(&self.ledger)
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
        let _watched = options.token.during(Box::new(move || control.wake()))?;
        let constants = image.segment(names::CONSTANTS).map_or(0, <[u8]>::len) as u64;
        let losses = self.control.load(constants, || options.token.was_cancelled())?;
        Ok(Arc::new(NoopProgram { image: Arc::clone(image), control: Arc::clone(&self.control), losses }))
    }
}

/// A loaded program, and likewise its activations.
#[derive(Clone, Debug)]
struct NoopProgram {
    image: Arc<Image>,
    control: Arc<Control>,
    // Losses of the device before the program was loaded.
    losses: u32,
}

impl NoopProgram {
    fn dma_bytes(&self) -> u64 {
        self.image.network().dma_buffers.iter().map(|buffer| u64::from(buffer.size)).sum()
    }
}

impl LoadedProgram for NoopProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        let cores = self.image.network().num_cores.max(1);
        self.control.activate(self.losses, cores, CORES, self.dma_bytes())?;
        Ok(Arc::new(self.clone()))
    }
}

impl Activation for NoopProgram {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        self.control.exec(self.losses, self.dma_bytes())?;
        let network = self.image.network();
        // What holds no tensor tells a card about an inference, and is not for the outputs.
        let copies = network.inputs.iter().flat_map(|input| &input.transformseq);
        let with_tensors: HashSet<u32> =
            copies.filter_map(|step| step.copy_dma_buffer.as_ref()).map(|copy| copy.buffer_num).collect();
        let buffers = (0..)
            .zip(&network.dma_buffers)
            .map(|(number, buffer)| {
                let is_echoed = buffer.dir == Direction::Out || with_tensors.contains(&number);
                let role = is_echoed.then_some(buffer.dir);
                Ok((role, Storage::new(buffer.size as usize)?))
            })
            .collect::<Result<Vec<_>, RuntimeError>>()?;
        let stop = Arc::new(NoopStop { control: Arc::clone(&self.control), stop: Stop::default() });
        let stats = self.image.network().stats.as_ref();
        let stats = stats.map(|stats| (stats.buff_num as usize, Levels::of(stats)));
        let image = Arc::clone(&self.image);
        Ok(Box::new(NoopExec { buffers, losses: self.losses, stop, stats, image, submission: None }))
    }
}

#[derive(Debug)]
struct NoopExec {
    // With which part they have in the echo.
    buffers: Vec<(Option<Direction>, Storage)>,
    losses: u32,
    stop: Arc<NoopStop>,
    // DMA buffer of the statistics, and what goes there.
    stats: Option<(usize, Levels)>,
    image: Arc<Image>,
    // The last that was submitted, until the device has let go of the buffers.
    submission: Option<Submission>,
}

impl NoopExec {
    fn memories(&self, wanted: Direction) -> impl Iterator<Item = HostSliceMut> + Clone {
        let is_wanted = move |(role, _): &&(Option<Direction>, Storage)| *role == Some(wanted);
        self.buffers.iter().filter(is_wanted).map(|(_, storage)| storage.memory())
    }

    /// What the device does with an inference.
    fn compute(&self) {
        // Empty buffers would make the search for the next bytes endless.
        let mut sources = self.memories(Direction::In).filter(|memory| !memory.is_empty()).cycle();
        let mut source = HostSlice::empty();
        for mut target in self.memories(Direction::Out) {
            while !target.is_empty() {
                if source.is_empty() {
                    let Some(next) = sources.next() else { return };
                    source = next.as_const();
                }
                let copied = target.copy_from(source);
                // Both are at least this long, so the rest exists.
                source = source.subslice(copied, source.len() - copied).unwrap_or(HostSlice::empty());
                target = target.subslice(copied, target.len() - copied).unwrap_or(HostSliceMut::empty());
            }
        }
    }

    /// Notices whoever touches the buffers while the device has them.
    fn sum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        let mut buffer = [0; 1024];
        for memory in self.memories(Direction::In) {
            for at in (0..memory.len()).step_by(buffer.len()) {
                let part = buffer.len().min(memory.len() - at);
                if memory.as_const().read_into(at, &mut buffer[..part]).is_some() {
                    sum.update(&buffer[..part]);
                }
            }
        }
        sum.finalize()
    }

    /// Waits until the device has let go of what was submitted.
    fn end(&mut self, look: Option<&mut dyn FnMut() -> bool>, is_reclaim: bool) -> Result<(), RuntimeError> {
        let Some(submission) = self.submission.take() else {
            return if is_reclaim { Ok(()) } else { self.stop.control.execute(self.losses, &self.stop.stop) };
        };
        let ended = self.stop.control.await_end(&submission, self.losses, &self.stop.stop, look, is_reclaim);
        if matches!(ended, Err(RuntimeError::Interrupted)) {
            self.submission = Some(submission);
        } else if submission.sum != self.sum() {
            return Err(RuntimeError::Internal {
                what: "somebody wrote to the buffers while the device had them".to_owned(),
            });
        }
        ended
    }
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

    fn reclaim(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), RuntimeError> {
        self.end(Some(interrupted), true)
    }

    fn submit(&mut self) -> Result<(), RuntimeError> {
        if self.stop.control.is_queueing() {
            let sum = self.sum();
            self.submission = Some(self.stop.control.submit(self.losses, &self.stop.stop, sum)?);
        }
        Ok(())
    }

    fn execute(&mut self) -> Result<(), RuntimeError> {
        self.end(None, false)?;
        self.compute();
        Ok(())
    }

    fn execute_interruptibly(&mut self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), RuntimeError> {
        self.end(Some(interrupted), false)?;
        self.compute();
        Ok(())
    }

    fn write_stats(&mut self, stages: &Stages, identity: Identity) -> Result<(), RuntimeError> {
        let Some((buffer, levels)) = self.stats else { return Ok(()) };
        let memory = self.dma_buffer(buffer)?;
        let flags = run_flags::COMPLETE | run_flags::PCYCLES_ABSENT;
        let run = Run { device: Measurer::Test, flags, ..stats_records::run(levels, identity) };
        let mut model = StatsModel::new(run);
        let (start_u, end_u) = (ucycles(stages.inputs_ready_ns), ucycles(stages.executed_ns));
        stats_records::set(&mut model, Thread { start_u, end_u, ..Thread::default() }, stages);
        let mut encoded = vec![0; memory.len()];
        // A buffer of a card may have no room; zeros are the statistics of nothing.
        let _ = oqstats::encode(&model, stats_records::fingerprint(&self.image), &mut encoded);
        let _ = memory.write_from(0, &encoded);
        Ok(())
    }

    fn canceller(&self) -> Arc<dyn Canceller> {
        Arc::clone(&self.stop) as Arc<dyn Canceller>
    }
}

impl Drop for NoopExec {
    fn drop(&mut self) {
        if let Some(submission) = self.submission.take() {
            self.stop.control.forget(&submission, &self.stop.stop);
        }
    }
}

#[derive(Debug)]
struct NoopStop {
    control: Arc<Control>,
    stop: Stop,
}

impl Canceller for NoopStop {
    fn cancel(&self) {
        self.control.cancel(&self.stop);
    }
}
