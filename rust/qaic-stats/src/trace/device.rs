//! Activity of one device: the spans of its cores and, for each thread group, operations, waits and transfers.

use std::io;

use super::clock::Clock;
use super::flows::FlowTimes;
use super::sink::{OpEvent, Sink, Span, Track, Wait};
use super::{Part, TraceOptions};
use crate::decode::descriptor::OpDesc;
use crate::decode::record::{Core, Kind, OpFlags, Thread};
use crate::walk::{Execution, Group, Times, by_core, executions, groups_of};

/// Tracks of a thread group, or of one of its threads.
struct Unit<'a> {
    engine: &'a str,
    threads: &'a [Thread],
    /// Name of the operator track.
    name: String,
    /// Suffix of the names of all tracks, if threads have their own tracks.
    suffix: String,
    ops: Track,
    transfers: Track,
    barriers: Track,
}

/// Writes one device. `pid` is its process id, and `first_id` is the id of its first flow. Returns the id of the next
/// flow.
pub(super) fn write_device(
    sink: &mut impl Sink,
    part: &Part<'_>,
    clock: &Clock,
    pid: u32,
    first_id: u64,
    options: &TraceOptions<'_>,
) -> io::Result<u64> {
    let network = match part.slice {
        Some(slice) => format!("{}_slice{slice:02}", part.network),
        None => part.network.to_owned(),
    };
    let mut tids = 1_u32..;
    let mut next_track = || Track { pid, tid: tids.next().unwrap_or(u32::MAX) };
    let first = next_track();
    sink.process(first, &network);
    sink.track(first, &format!("{network}_Device"));
    let cores = part.model.records::<Core>();
    let ends = (cores.iter().map(|core| core.start_u).min(), cores.iter().map(|core| core.end_u).max());
    if let (Some(start), Some(end)) = ends {
        let name = format!("Device_{}-Execution", part.slice.unwrap_or(0));
        span(sink, clock, first, &name, (start, end));
    }
    let records = by_core(part.model);
    let mut times = FlowTimes::default();
    let chosen = |core: &Core| options.cores.as_ref().is_none_or(|cores| cores.contains(&core.core));
    for core in cores.iter().filter(chosen) {
        let number = core.core;
        let track = next_track();
        let core_name = format!("{network}_Core_{number}");
        sink.track(track, &core_name);
        span(sink, clock, track, &format!("Core-{number}-Execution"), (core.start_u, core.end_u));
        let ops = part.descriptor.cores.get(usize::from(number)).map_or(&[][..], |core| &core.ops);
        sink.ops_of_core(ops);
        let threads = records.get(&number).map_or(&[][..], |records| &records.threads);
        let groups = groups_of(threads, part.descriptor);
        for group in &groups {
            for unit in units(group, &core_name, options.merge_thread_groups, &mut next_track) {
                write_unit(sink, part, clock, &unit, ops, options, &mut times)?;
            }
        }
        times.end_of_core(number);
    }
    if options.flow_events {
        return times.write(sink, part.descriptor, clock, first_id);
    }
    Ok(first_id)
}

fn units<'a>(
    group: &'a Group,
    core_name: &str,
    merged: bool,
    next_track: &mut impl FnMut() -> Track,
) -> Vec<Unit<'a>> {
    let size = if merged { group.threads.len() } else { 1 };
    let chunks = group.threads.chunks(size.max(1)).map(|threads| {
        let suffix = match threads {
            [thread] if !merged => format!("_{}", thread.thread),
            _ => String::new(),
        };
        Unit {
            engine: &group.engine,
            threads,
            name: format!("{core_name}_{}", group.engine),
            suffix,
            ops: next_track(),
            transfers: next_track(),
            barriers: next_track(),
        }
    });
    chunks.collect()
}

fn write_unit(
    sink: &mut impl Sink,
    part: &Part<'_>,
    clock: &Clock,
    unit: &Unit<'_>,
    ops: &[OpDesc],
    options: &TraceOptions<'_>,
    times: &mut FlowTimes,
) -> io::Result<()> {
    sink.engine(unit.engine, part.model.run.ucycle_hz);
    sink.track(unit.ops, &format!("{}{}", unit.name, unit.suffix));
    if part.model.section(Kind::Op).is_none() {
        for thread in unit.threads {
            let name = format!("Thread-{}-Execution", thread.thread);
            span(sink, clock, unit.ops, &name, (thread.start_u, thread.end_u));
        }
        return sink.flush_if_full();
    }
    let (mut has_transfers, mut has_barriers) = (false, false);
    let stranger = OpDesc { kind: "unknown".into(), ..OpDesc::default() };
    let each = |execution: Execution| {
        let op = execution.op;
        let desc = usize::try_from(op.oc).ok().and_then(|oc| ops.get(oc)).unwrap_or(&stranger);
        let track = if execution.is_transfer() {
            if !has_transfers {
                sink.track(unit.transfers, &format!("{}_DMA{}", unit.name, unit.suffix));
                has_transfers = true;
            }
            unit.transfers
        } else {
            unit.ops
        };
        let end_u = op.start_u.saturating_add(u64::from(op.dur_u));
        let (start_ns, end_ns) = (clock.ns(op.start_u), clock.ns(end_u));
        if op.flags.contains(OpFlags::SYNC) {
            let from_ns = clock.ns(op.start_u.saturating_sub(u64::from(op.sync_u)));
            let dur_ns = between(from_ns, start_ns);
            sink.wait(track, Wait { is_barrier: false, oc: op.oc, start_ns: from_ns, dur_ns });
        }
        let event = OpEvent {
            oc: op.oc,
            iteration: op.iteration,
            start_ns,
            dur_ns: between(start_ns, end_ns),
            ucycles: u64::from(op.dur_u),
            pcycles: execution.pcycles,
            out_bytes: execution.out_bytes,
            saturated: op.flags.contains(OpFlags::DUR_SATURATED),
        };
        sink.op(track, desc, &event);
        if options.barrier_events && op.flags.contains(OpFlags::BARRIER) {
            if !has_barriers {
                sink.track(unit.barriers, &format!("{}_Barrier{}", unit.name, unit.suffix));
                has_barriers = true;
            }
            let until_ns = clock.ns(end_u.saturating_add(u64::from(op.barrier_u)));
            let dur_ns = between(end_ns, until_ns);
            sink.wait(unit.barriers, Wait { is_barrier: true, oc: op.oc, start_ns: end_ns, dur_ns });
        }
        if options.flow_events && !execution.is_transfer() {
            times.add(track, &op);
        }
        sink.flush_if_full()
    };
    executions(part.model, unit.threads, ops.len(), Times::Whole, options.observer, |_, _| (), each)
}

fn span(sink: &mut impl Sink, clock: &Clock, track: Track, name: &str, ticks: (u64, u64)) {
    let (start_ns, end_ns) = (clock.ns(ticks.0), clock.ns(ticks.1));
    sink.span(&Span { track, name, start_ns, dur_ns: between(start_ns, end_ns), args: &[] });
}

fn between(start_ns: i64, end_ns: i64) -> u64 {
    u64::try_from(end_ns.saturating_sub(start_ns)).unwrap_or(0)
}
