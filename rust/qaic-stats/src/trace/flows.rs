//! Executions that a dependency of the descriptor connects.
//!
//! Dependencies are static, but an operation in a loop runs many times. An execution depends on the last execution of
//! its producer that had ended before. Finding it requires the times of all executions, 16 bytes each. They are the
//! only part of a trace whose memory grows with its length, and are kept only if flows are requested.

use std::collections::HashMap;
use std::io;

use super::clock::Clock;
use super::sink::{Flow, FlowEnd, Sink, Track};
use crate::decode::descriptor::{Dependency, OpsDescriptor};
use crate::decode::record::Op;

/// Maximum number of concurrent executions of one operation that are searched for one that has ended.
const MAX_OVERLAPS: usize = 64;

/// Executions of each core.
#[derive(Debug, Default)]
pub(super) struct FlowTimes {
    current: CoreTimes,
    cores: HashMap<u16, CoreTimes>,
}

#[derive(Debug, Default)]
struct CoreTimes {
    /// Times, sorted by operation and start after the core has ended.
    times: Vec<Time>,
    /// First track of each operation. Other threads with their own tracks also run the operation, but a flow needs
    /// only one track.
    tracks: HashMap<u32, Track>,
}

#[derive(Clone, Copy, Debug)]
struct Time {
    start_u: u64,
    oc: u32,
    dur_u: u32,
}

impl Time {
    fn end_u(self) -> u64 {
        self.start_u.saturating_add(u64::from(self.dur_u))
    }
}

impl FlowTimes {
    pub(super) fn add(&mut self, track: Track, op: &Op) {
        if *self.current.tracks.entry(op.oc).or_insert(track) == track {
            self.current.times.push(Time { start_u: op.start_u, oc: op.oc, dur_u: op.dur_u });
        }
    }

    pub(super) fn end_of_core(&mut self, core: u16) {
        let mut done = std::mem::take(&mut self.current);
        done.times.sort_unstable_by_key(|time| (time.oc, time.start_u, time.dur_u));
        self.cores.insert(core, done);
    }

    /// Writes every flow, with its end directly after its start, so that no flow id is open twice.
    pub(super) fn write(
        &self,
        sink: &mut impl Sink,
        descriptor: &OpsDescriptor,
        clock: &Clock,
        first_id: u64,
    ) -> io::Result<u64> {
        let mut id = first_id;
        let mut cores: Vec<_> = self.cores.iter().collect();
        cores.sort_unstable_by_key(|(number, _)| **number);
        for (number, core) in cores {
            for time in &core.times {
                let Some(desc) = descriptor.op(*number, time.oc) else { continue };
                let Some(to) = core.tracks.get(&time.oc) else { continue };
                for dependency in &desc.deps {
                    let Some((track, producer)) = self.producer(dependency, *time) else { continue };
                    let start_ns = clock.ns(producer.start_u);
                    let to = FlowEnd { track: *to, oc: time.oc, at_ns: clock.ns(time.start_u) };
                    // Within the producer, so that viewers find the producer there, and not after the start of the
                    // consumer: viewers that order by time drop arrows to earlier times.
                    let at_ns = clock.ns(producer.end_u()).saturating_sub(1).max(start_ns).min(to.at_ns);
                    let from = FlowEnd { track, oc: producer.oc, at_ns };
                    sink.flow(&Flow { id, data: dependency.data, from, to });
                    sink.flush_if_full()?;
                    id = id.wrapping_add(1);
                }
            }
        }
        Ok(id)
    }

    /// Returns the execution that a consumer waited for: the last that ended before, or else the last that started
    /// before.
    fn producer(&self, dependency: &Dependency, consumer: Time) -> Option<(Track, Time)> {
        let core = self.cores.get(&u16::try_from(dependency.core).ok()?)?;
        let track = core.tracks.get(&dependency.oc)?;
        let from = core.times.partition_point(|time| time.oc < dependency.oc);
        let to = core.times.partition_point(|time| time.oc <= dependency.oc);
        let of_op = core.times.get(from..to)?;
        let started = of_op.partition_point(|time| time.start_u <= consumer.start_u);
        let of_op = of_op.get(..started)?;
        let found = of_op
            .iter()
            .rev()
            .take(MAX_OVERLAPS)
            .find(|time| time.end_u() <= consumer.start_u)
            .or(of_op.last())?;
        Some((*track, *found))
    }
}
