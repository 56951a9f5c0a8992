//! Statistics records that every host device writes. The records describe one core with one thread, in host time.

#[cfg(all(feature = "cpu", feature = "emu"))]
use std::{ops::Range, sync::Arc};

use qaic_qpc::{Stats, names};
use qaic_stats::decode::descriptor::{self, Fingerprint};
use qaic_stats::decode::{Core, EngineKind, Port, Thread};
use qaic_stats::{Run, StatsModel};

use crate::image::Image;
use crate::process::clock::{self, UCYCLE_HZ, ucycles};
use crate::profiling::{Identity, Stages};

/// Lowest level that records waits for ports.
const PORTS_LEVEL: u16 = 50;
/// Numbers of the host's ports.
const INPUT_PORT: u16 = 100;
const OUTPUT_PORT: u16 = 101;

/// Requested measurements of a program.
#[derive(Clone, Copy, Debug)]
pub(in crate::device) struct Levels {
    pub(super) level: u16,
    pub(super) op_level: u16,
    pub(super) batch_size: u32,
}

impl Levels {
    pub(super) fn of(stats: &Stats) -> Self {
        let level = |level: i32| u16::try_from(level.max(0)).unwrap_or(u16::MAX);
        Self {
            level: level(stats.stats_level),
            op_level: level(stats.op_stats_level),
            batch_size: u32::try_from(stats.batch_size).unwrap_or(0).max(1),
        }
    }
}

/// Statistics settings that a program passes to a card, because a card does not receive the container.
#[cfg(all(feature = "cpu", feature = "emu"))]
#[derive(Debug)]
pub(in crate::device) struct LoadedStats {
    /// Requested measurements, and the samples of an inference.
    pub(in crate::device) levels: Levels,
    /// DMA buffer of the statistics.
    pub(in crate::device) buffer: usize,
    /// Fingerprint of the program in its stats buffers.
    pub(in crate::device) fingerprint: Fingerprint,
    /// True if memory traffic was to be counted.
    pub(in crate::device) counts_ddr: bool,
    /// True if hardware events were to be counted.
    pub(in crate::device) counts_events: bool,
    /// The ELF, and the range of its description of operations, if it has one.
    pub(in crate::device) operations: Option<(Arc<[u8]>, Range<usize>)>,
}

/// Returns the fingerprint of the program in its stats buffers.
pub(super) fn fingerprint(image: &Image) -> Fingerprint {
    let segment = image.segment(descriptor::SEGMENT).or_else(|| image.segment(names::NETWORK_DESC));
    descriptor::fingerprint(segment.unwrap_or_default())
}

/// Returns the facts about an inference that are known before its records exist.
pub(super) fn run(levels: Levels, identity: Identity) -> Run {
    Run {
        stats_level: levels.level,
        op_stats_level: levels.op_level,
        cores: 1,
        threads_per_core: 1,
        batch_size: levels.batch_size,
        ucycle_hz: UCYCLE_HZ,
        epoch_utc_ns: clock::epoch_utc_ns(),
        inference: identity.inference,
        program: identity.program,
        activation: identity.activation,
        ..Run::default()
    }
}

/// Adds a thread and its core to a model and, at a sufficient level, two waits: from the start of the inference until
/// its inputs are ready, and from the end of the execution until its outputs are delivered.
pub(super) fn set(model: &mut StatsModel<'_>, thread: Thread, stages: &Stages) {
    model.set_records([Core { start_u: thread.start_u, end_u: thread.end_u, ..Core::default() }]);
    model.set_records([Thread { engine: EngineKind::Cpu.code(), ..thread }]);
    set_waits(model, stages);
}

/// Adds the waits for inputs and outputs to a model, if they are known and the level is sufficient. Returns true if
/// the level is sufficient.
pub(super) fn set_waits(model: &mut StatsModel<'_>, stages: &Stages) -> bool {
    if model.run.stats_level < PORTS_LEVEL {
        return false;
    }
    let port = |direction, port, from_ns: u64, until_ns: u64| {
        let ring_u = ucycles(until_ns);
        let wait_u = ring_u.checked_sub(ucycles(from_ns))?;
        let port =
            Port { direction, port, wait_u, first_ring_u: ring_u, last_ring_u: ring_u, ..Port::default() };
        (from_ns != 0).then_some(port)
    };
    let ports = [
        port(Port::IN, INPUT_PORT, stages.begun_ns, stages.inputs_ready_ns),
        port(Port::OUT, OUTPUT_PORT, stages.executed_ns, stages.outputs_ready_ns),
    ];
    model.set_records(ports.into_iter().flatten());
    true
}
