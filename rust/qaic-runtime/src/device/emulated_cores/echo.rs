//! Cores that compute nothing and write the bytes of the inputs to the outputs, like the `noop` device. They allow
//! tests and measurements of data transfers with programs that no host can run.

use std::sync::Arc;

use qaic_emu::{CoreView, DeviceMemory, Images, MemoryFull, Progress, Requirements, Running, Workload};
use qaic_kmd::protocol::NncStatus;
use qaic_qpc::plan::{CONTROL_BYTES, Control};
use qaic_stats::decode::{Thread, oqstats};
use qaic_stats::{DeviceKind as Measurer, Run, RunFlags, StatsModel};

use super::card_plan;
use super::protocol::Protocol;
use super::{Refusal, metadata_of};
use crate::device::stats_records::{self, LoadedStats};
use crate::process::clock;
use crate::process::log;
use crate::profiling::{Identity, Stages};

/// Writes the bytes of all inputs to the outputs, in the order of the transfers, repeated as often as they fit.
/// Control buffers do not count as inputs. A measured inference writes its statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct EchoWorkload;

impl Workload for EchoWorkload {
    fn requirements(&self, elf: &[u8]) -> Result<Requirements, NncStatus> {
        super::requirements(elf)
    }

    fn activate(&self, images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        let running = EchoRunning::new(images).map_err(Refusal::log_refusal)?;
        Ok(Box::new(running))
    }
}

/// A part of a card's memory.
#[derive(Clone, Copy, Debug)]
struct Span {
    address: u64,
    bytes: usize,
}

/// One activation.
#[derive(Debug)]
pub(super) struct EchoRunning {
    protocol: Protocol,
    inputs: Vec<Span>,
    outputs: Vec<Span>,
    control: Option<Span>,
    stats: Option<(Span, LoadedStats)>,
    // Concatenated inputs of an inference.
    bytes: Vec<u8>,
}

impl EchoRunning {
    pub(super) fn new(images: &Images) -> Result<Self, Refusal> {
        let protocol = Protocol::of(&metadata_of(&images.elf)?)?;
        let plan = card_plan::of_elf(&images.elf)?.unwrap_or_default();
        let (mut inputs, mut outputs, mut control, mut stats) = (Vec::new(), Vec::new(), None, None);
        let measured = card_plan::stats(&plan, &images.elf);
        for region in &protocol.regions {
            let span = Span { address: region.address(images), bytes: region.bytes };
            if !region.is_input {
                outputs.push(span);
                if measured.as_ref().is_some_and(|measured| measured.buffer == region.buffer) {
                    stats = Some(span);
                }
            } else if plan.control_buffer == Some(region.buffer) {
                control = Some(span);
            } else {
                inputs.push(span);
            }
        }
        let total = inputs.iter().try_fold(0_usize, |sum, span| sum.checked_add(span.bytes));
        let mut bytes = Vec::new();
        total
            .and_then(|total| bytes.try_reserve_exact(total).ok().map(|()| bytes.resize(total, 0)))
            .ok_or_else(|| Refusal::metadata("its inputs do not fit in the memory of the host"))?;
        Ok(Self { protocol, inputs, outputs, control, stats: stats.zip(measured), bytes })
    }

    fn echo(&mut self, memory: &mut DeviceMemory) -> Result<(), MemoryFull> {
        let begin_u = clock::ucycles(clock::now_ns());
        let mut rest = &mut *self.bytes;
        for span in &self.inputs {
            let (mine, others) = rest.split_at_mut(span.bytes);
            memory.read(span.address, mine);
            rest = others;
        }
        let mut position = 0;
        for span in self.outputs.iter().filter(|_| !self.bytes.is_empty()) {
            position = fill(memory, *span, &self.bytes, position)?;
        }
        if let (Some(control), Some((span, stats))) = (self.control, &self.stats) {
            let mut bytes = [0; CONTROL_BYTES];
            memory.read(control.address, &mut bytes[..CONTROL_BYTES.min(control.bytes)]);
            if let Some(control) = Control::decode(&bytes).filter(|control| control.is_measured) {
                let identity = Identity::of_control(&control);
                memory.write(span.address, &statistics(stats, identity, begin_u, span.bytes))?;
            }
        }
        Ok(())
    }
}

/// Writes `source` repeatedly, from `position` on; returns the position after the last byte.
fn fill(
    memory: &mut DeviceMemory,
    span: Span,
    source: &[u8],
    mut position: usize,
) -> Result<usize, MemoryFull> {
    memory.write_pieces(span.address, span.bytes, |_, mut piece| {
        while !piece.is_empty() {
            let copied = piece.len().min(source.len() - position);
            let (now, later) = piece.split_at_mut(copied);
            now.copy_from_slice(&source[position..position + copied]);
            position = (position + copied) % source.len();
            piece = later;
        }
        Ok::<(), MemoryFull>(())
    })?;
    Ok(position)
}

/// Writes the times of the echo in the open layout, and identifies the device as a test device.
fn statistics(stats: &LoadedStats, identity: Identity, start_u: u64, bytes: usize) -> Vec<u8> {
    let flags = RunFlags::COMPLETE | RunFlags::PCYCLES_ABSENT;
    let run = Run { device: Measurer::Test, flags, ..stats_records::run(stats.levels, identity) };
    let mut model = StatsModel::new(run);
    let thread = Thread { start_u, end_u: clock::ucycles(clock::now_ns()), ..Thread::default() };
    stats_records::set(&mut model, thread, &Stages::default());
    let mut encoded = vec![0; bytes];
    // A buffer may have no room; zeros are empty statistics.
    let _ = oqstats::encode(&model, stats.fingerprint, &mut encoded);
    encoded
}

impl Running for EchoRunning {
    fn honors_semaphores(&self) -> bool {
        self.protocol.handshake.is_some()
    }

    fn begin(&mut self, card: &mut CoreView<'_>) {
        if let Some(handshake) = &self.protocol.handshake {
            handshake.begin(card.semaphores);
        }
    }

    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress {
        card.doorbells.clear();
        let called =
            self.protocol.handshake.as_ref().map(|handshake| handshake.take_arrival(card.semaphores));
        if called == Some(false) {
            return Progress::Idle;
        }
        if self.echo(card.memory).is_err() {
            log::global().error(|| "the memory of an emulated card is full".to_owned());
            return Progress::Crashed;
        }
        if let Some(handshake) = &self.protocol.handshake {
            handshake.release(card.semaphores);
        }
        Progress::Worked
    }

    fn stopper(&self) -> Arc<dyn Fn() + Send + Sync> {
        // The copy ends by itself, so there is nothing to cancel.
        Arc::new(|| ())
    }
}
