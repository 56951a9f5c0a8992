//! The rules for the records of every layout.
//!
//! [`structure`] reads only cores and threads, which are few. After this check, every thread's operations are a valid
//! range of the records. [`records`] reads every record once.

use crate::decode::descriptor::OpsDescriptor;
use crate::decode::record::{Core, Kind, Op, OpFlags, OpPmu, Pmu, Port, Ring, Thread};
use crate::error::StatsError;
use crate::model::StatsModel;

/// Number of ticks that an operation may exceed its thread's interval, because both ends are rounded.
const TOLERANCE_U: u64 = 1;

/// Checks the records of cores and threads, and that the threads partition the operations.
///
/// # Errors
///
/// The first defect.
pub(crate) fn structure(model: &StatsModel<'_>) -> Result<(), StatsError> {
    let run = &model.run;
    let (cores, threads) = (model.records::<Core>(), model.records::<Thread>());
    if cores.len() != usize::from(run.cores) {
        return Err(StatsError::CoreCount { found: cores.len(), expected: usize::from(run.cores) });
    }
    let expected = usize::from(run.cores).saturating_mul(usize::from(run.threads_per_core));
    if threads.len() != expected {
        return Err(StatsError::ThreadCount {
            found: threads.len(),
            cores: run.cores,
            threads: run.threads_per_core,
        });
    }
    let mut seen = vec![false; cores.len()];
    for (index, core) in cores.iter().enumerate() {
        let slot = seen.get_mut(usize::from(core.core));
        if slot.is_none_or(|slot| std::mem::replace(slot, true)) {
            return Err(number(Kind::Core, index, core.core, 0));
        }
    }
    seen = vec![false; threads.len()];
    for (index, thread) in threads.iter().enumerate() {
        let place = usize::from(thread.core).saturating_mul(usize::from(run.threads_per_core));
        let place = place.saturating_add(usize::from(thread.thread));
        let slot = seen.get_mut(place).filter(|_| u16::from(thread.thread) < run.threads_per_core);
        if slot.is_none_or(|slot| std::mem::replace(slot, true)) {
            return Err(number(Kind::Thread, index, thread.core, thread.thread));
        }
    }
    ranges(model)
}

/// Checks that the threads' ranges of operations are disjoint and cover all operations.
fn ranges(model: &StatsModel<'_>) -> Result<(), StatsError> {
    let ops = model.records::<Op>().len();
    let mut threads: Vec<Thread> =
        model.records::<Thread>().iter().filter(|thread| thread.op_count != 0).collect();
    threads.sort_by_key(|thread| thread.first_op);
    let mut expected = 0_u64;
    for thread in threads {
        let end = u64::from(thread.first_op).saturating_add(u64::from(thread.op_count));
        if u64::from(thread.first_op) != expected || usize::try_from(end).is_ok_and(|end| end > ops) {
            return Err(StatsError::OpRanges {
                core: thread.core,
                thread: thread.thread,
                first: thread.first_op,
                count: thread.op_count,
                expected,
                ops,
            });
        }
        expected = end;
    }
    if usize::try_from(expected).is_ok_and(|expected| expected < ops) {
        return Err(StatsError::OpsUnclaimed { first: expected, ops });
    }
    Ok(())
}

/// Checks every record once; returns warnings.
///
/// # Errors
///
/// The first defect. `descriptor` describes the program that wrote the records; without it, operations are
/// not compared.
pub(crate) fn records(
    model: &StatsModel<'_>,
    descriptor: Option<&OpsDescriptor>,
) -> Result<Vec<String>, StatsError> {
    let mut anomalies = Anomalies::default();
    numbers(model)?;
    if let Some(descriptor) = descriptor {
        known_ops(model, descriptor)?;
    }
    intervals(model, &mut anomalies)?;
    ops(model, &mut anomalies)?;
    reserved(model, &mut anomalies);
    let mut warnings = anomalies.texts();
    if model.run.batch_size == 0 {
        warnings.push("the batch size is 0".to_owned());
    }
    if let Some((meta, _)) = model.section(Kind::Meta)
        && !meta.is_empty()
        && serde_json::from_slice::<serde::de::IgnoredAny>(meta).is_err()
    {
        warnings.push("section META is not JSON".to_owned());
    }
    Ok(warnings)
}

/// Unusual properties of records, with their counts.
#[derive(Default)]
struct Anomalies {
    outside: usize,
    unordered: usize,
    saturation: usize,
    reserved: usize,
}

impl Anomalies {
    fn texts(&self) -> Vec<String> {
        let texts = [
            (self.outside, "operations are outside their thread's interval"),
            (self.unordered, "operations start before the previous operation"),
            (self.saturation, "operations have a saturated duration without its flag"),
            (self.reserved, "records have reserved bytes that are not zero"),
        ];
        texts.iter().filter(|(count, _)| *count != 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

/// Checks that the cores, threads and operations in smaller records exist.
fn numbers(model: &StatsModel<'_>) -> Result<(), StatsError> {
    let run = &model.run;
    let known = |core: u16, thread: u8| core < run.cores && u16::from(thread) < run.threads_per_core;
    for (index, port) in model.records::<Port>().iter().enumerate() {
        if !known(port.core, port.thread) {
            return Err(number(Kind::Port, index, port.core, port.thread));
        }
    }
    for (index, ring) in model.records::<Ring>().iter().enumerate() {
        if ring.core >= run.cores {
            return Err(number(Kind::Ring, index, ring.core, 0));
        }
    }
    for (index, pmu) in model.records::<Pmu>().iter().enumerate() {
        if !known(pmu.core, pmu.thread) {
            return Err(number(Kind::Pmu, index, pmu.core, pmu.thread));
        }
        if pmu.valid_count > 8 {
            return Err(StatsError::PmuCount { index, found: pmu.valid_count });
        }
    }
    let ops = model.records::<Op>().len();
    for (index, values) in model.records::<OpPmu>().iter().enumerate() {
        if usize::try_from(values.op).is_ok_and(|op| op >= ops) {
            return Err(StatsError::OpIndex { index, op: values.op, ops });
        }
    }
    Ok(())
}

/// Checks that every operation is in the descriptor, and ran on a thread of its group.
fn known_ops(model: &StatsModel<'_>, descriptor: &OpsDescriptor) -> Result<(), StatsError> {
    // The groups are copied into one list, because the descriptors of the operations are far apart in memory.
    let groups: Vec<Vec<u32>> =
        descriptor.cores.iter().map(|core| core.ops.iter().map(|op| op.group).collect()).collect();
    for thread in model.records::<Thread>().iter() {
        let of_core = groups.get(usize::from(thread.core)).map_or(&[][..], Vec::as_slice);
        let of_thread = descriptor.thread_groups.get(usize::from(thread.thread));
        for (index, op) in of(model, &thread) {
            let known = usize::try_from(op.oc).ok().and_then(|oc| of_core.get(oc));
            let Some(&group) = known else {
                let (oc, core, ops) = (op.oc, thread.core, of_core.len());
                return Err(StatsError::UnknownOp { index, oc, core, ops });
            };
            if of_thread.is_some_and(|of_thread| *of_thread != group) {
                let (oc, core, thread) = (op.oc, thread.core, thread.thread);
                return Err(StatsError::OpGroup { index, oc, core, group, thread });
            }
        }
    }
    Ok(())
}

/// The operations of a thread with their indices.
fn of<'a>(model: &'a StatsModel<'_>, thread: &Thread) -> impl Iterator<Item = (usize, Op)> + use<'a> {
    let first = usize::try_from(thread.first_op).unwrap_or(usize::MAX);
    let count = usize::try_from(thread.op_count).unwrap_or(usize::MAX);
    (first..).zip(model.records::<Op>().slice(first..first.saturating_add(count)).iter())
}

/// Checks that intervals of cores and threads end after they begin.
fn intervals(model: &StatsModel<'_>, anomalies: &mut Anomalies) -> Result<(), StatsError> {
    let backwards = |kind: Kind, index: usize, start: u64, end: u64| {
        if end < start {
            return Err(StatsError::CounterOrder { section: kind.code(), index, start, end });
        }
        Ok(())
    };
    for (index, core) in model.records::<Core>().iter().enumerate() {
        let Core { start_u, end_u, .. } = core;
        backwards(Kind::Core, index, start_u, end_u)?;
    }
    for (index, thread) in model.records::<Thread>().iter().enumerate() {
        backwards(Kind::Thread, index, thread.start_u, thread.end_u)?;
        backwards(Kind::Thread, index, thread.act_start_u, thread.act_end_u)?;
    }
    for (index, port) in model.records::<Port>().iter().enumerate() {
        backwards(Kind::Port, index, port.first_ring_u, port.last_ring_u)?;
        anomalies.reserved = anomalies.reserved.saturating_add(usize::from(port.flags != 0));
    }
    Ok(())
}

/// Checks that operations end after they begin, and are within the interval of their thread.
fn ops(model: &StatsModel<'_>, anomalies: &mut Anomalies) -> Result<(), StatsError> {
    for thread in model.records::<Thread>().iter() {
        let earliest = thread.start_u.saturating_sub(TOLERANCE_U);
        let latest = thread.end_u.saturating_add(TOLERANCE_U);
        let mut before = 0;
        let (mut outside, mut unordered, mut saturation) = (0_usize, 0_usize, 0_usize);
        for (index, op) in of(model, &thread) {
            if op.core != thread.core || op.thread != thread.thread {
                return Err(StatsError::OpThread { index, core: op.core, thread: op.thread });
            }
            let end = op.start_u.checked_add(u64::from(op.dur_u));
            let end = end.and_then(|end| end.checked_add(u64::from(op.barrier_u)).map(|_| end));
            let begin = op.start_u.checked_sub(u64::from(op.sync_u));
            let (Some(end), Some(_)) = (end, begin) else {
                let end = op.start_u.wrapping_add(u64::from(op.dur_u));
                let section = Kind::Op.code();
                return Err(StatsError::CounterOrder { section, index, start: op.start_u, end });
            };
            outside = outside.saturating_add(usize::from(op.start_u < earliest || end > latest));
            unordered = unordered.saturating_add(usize::from(op.start_u < before));
            let missing = saturated(&op).difference(op.flags);
            saturation = saturation.saturating_add(usize::from(!missing.is_empty()));
            before = op.start_u;
        }
        anomalies.outside = anomalies.outside.saturating_add(outside);
        anomalies.unordered = anomalies.unordered.saturating_add(unordered);
        anomalies.saturation = anomalies.saturation.saturating_add(saturation);
    }
    Ok(())
}

/// Returns the saturation flags that an operation's durations require.
fn saturated(op: &Op) -> OpFlags {
    let flag = |value: u32, flag| if value == u32::MAX { flag } else { OpFlags::empty() };
    flag(op.dur_u, OpFlags::DUR_SATURATED)
        | flag(op.sync_u, OpFlags::SYNC_SATURATED)
        | flag(op.barrier_u, OpFlags::BARRIER_SATURATED)
}

/// Checks that reserved bytes are zero.
fn reserved(model: &StatsModel<'_>, anomalies: &mut Anomalies) {
    let pmu = model.records::<Pmu>().iter().filter(|pmu| pmu.reserved != 0).count();
    let op_pmu = model.records::<OpPmu>().iter().filter(|values| values.reserved != 0).count();
    anomalies.reserved = anomalies.reserved.saturating_add(pmu).saturating_add(op_pmu);
}

fn number(kind: Kind, index: usize, core: u16, thread: u8) -> StatsError {
    StatsError::CoreNumber { section: kind.code(), index, core, thread }
}
