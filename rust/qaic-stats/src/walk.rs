//! Iteration over the operations of a core, shared by summary and trace: thread by thread, in bounded memory.
//!
//! Threads of one group run an operation together. Such an execution counts once, with the value of the slowest
//! thread, so the threads' records are merged. The memory for records depends on the descriptor and on the distance
//! between the threads, not on the number of records.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;

use crate::decode::descriptor::OpsDescriptor;
use crate::decode::record::{EngineKind, Kind, Op, OpFlags, OpKindFlags, Pmu, Port, Records, Thread};
use crate::model::StatsModel;

/// Number of records between two calls of [`ProgressObserver::passed`].
const BLOCK_RECORDS: usize = 4096;
/// Maximum number of records that one thread of a group is ahead of the others during merging.
const TURN_RECORDS: usize = 64;
/// Maximum number of executions of one operation that wait for further threads. Beyond it, the oldest execution
/// counts as complete.
const MAX_WAITING: usize = 64;
const NONE: u32 = u32::MAX;

/// Observes the progress of reading a buffer.
pub trait ProgressObserver: Debug {
    /// Reports that these bytes of the buffer were read and are not read again in this pass. An error ends the work
    /// with that error.
    fn passed(&self, bytes: &[u8]) -> io::Result<()>;
}

/// The core-level records of one core.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoreRecords {
    pub(crate) threads: Vec<Thread>,
    pub(crate) ports: Vec<Port>,
    pub(crate) pmu: Vec<Pmu>,
}

/// Returns the records of every core, collected in one pass. A buffer may declare 65,535 cores, and searching all
/// threads for each core would take minutes.
pub(crate) fn by_core(model: &StatsModel<'_>) -> HashMap<u16, CoreRecords> {
    let mut cores: HashMap<u16, CoreRecords> = HashMap::new();
    for thread in model.records::<Thread>().iter() {
        cores.entry(thread.core).or_default().threads.push(thread);
    }
    for port in model.records::<Port>().iter() {
        cores.entry(port.core).or_default().ports.push(port);
    }
    for values in model.records::<Pmu>().iter() {
        cores.entry(values.core).or_default().pmu.push(values);
    }
    cores
}

/// Threads of a core that issue to the same engine.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) engine: String,
    pub(crate) threads: Vec<Thread>,
}

/// Name of a thread's engine: its group in the descriptor, or the engine in the record.
pub(crate) fn engine_of<'d>(descriptor: &'d OpsDescriptor, thread: &Thread) -> &'d str {
    descriptor
        .group_of_thread(thread.thread)
        .filter(|name| !name.is_empty())
        .unwrap_or(EngineKind::from_code(thread.engine).name())
}

/// Returns the thread groups of a core, ordered by their first threads.
pub(crate) fn groups_of(threads: &[Thread], descriptor: &OpsDescriptor) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for thread in threads {
        let engine = engine_of(descriptor, thread);
        match groups.iter_mut().find(|group| group.engine == engine) {
            Some(group) => group.threads.push(*thread),
            None => groups.push(Group { engine: engine.to_owned(), threads: vec![*thread] }),
        }
    }
    groups
}

/// One execution of an operation by all threads of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Execution {
    /// Record of the slowest thread.
    pub(crate) op: Op,
    /// Maximum of the threads' valid values.
    pub(crate) pcycles: Option<u64>,
    pub(crate) sync_u: Option<u32>,
    pub(crate) barrier_u: Option<u32>,
    pub(crate) out_bytes: Option<u64>,
}

impl Execution {
    pub(crate) fn of(op: Op) -> Self {
        let valid = |flag| op.flags.contains(flag);
        Self {
            op,
            pcycles: valid(OpFlags::PCYCLES).then_some(op.pcycles),
            sync_u: valid(OpFlags::SYNC).then_some(op.sync_u),
            barrier_u: valid(OpFlags::BARRIER).then_some(op.barrier_u),
            out_bytes: valid(OpFlags::OUT_BYTES).then_some(op.out_bytes),
        }
    }

    fn join(&mut self, other: Self) {
        if other.op.dur_u > self.op.dur_u {
            self.op = other.op;
        }
        self.pcycles = self.pcycles.max(other.pcycles);
        self.sync_u = self.sync_u.max(other.sync_u);
        self.barrier_u = self.barrier_u.max(other.barrier_u);
        self.out_bytes = self.out_bytes.max(other.out_bytes);
    }

    /// Returns true if this is the transfer that an operation started, not the work of the thread.
    pub(crate) fn is_transfer(&self) -> bool {
        self.op.kflags.contains(OpKindFlags::ASYNC_TRANSFER)
    }
}

/// Durations of operations that contain other operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// The recorded duration.
    Whole,
    /// The duration without nested operations, so that durations add up.
    Own,
}

/// Operations of one thread that have not been read yet.
struct ThreadOps<'a> {
    bytes: &'a [u8],
    stride: usize,
    passed: usize,
    next: usize,
    len: usize,
    times: Times,
    // With `Times::Own`: operations that may still contain others, and their ends.
    open: Vec<(u64, Op)>,
}

impl<'a> ThreadOps<'a> {
    fn new(ops: &'a (impl AsRef<[u8]> + ?Sized), stride: usize, thread: &Thread, times: Times) -> Self {
        let stride = stride.max(1);
        let bytes = ops.as_ref();
        let place = |index: u32| {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            index.saturating_mul(stride).min(bytes.len())
        };
        let first = place(thread.first_op);
        let last = place(thread.first_op.saturating_add(thread.op_count));
        let bytes = bytes.get(first..last).unwrap_or_default();
        let len = bytes.len().checked_div(stride).unwrap_or(0);
        Self { bytes, stride, passed: 0, next: 0, len, times, open: Vec::new() }
    }

    fn records(&self) -> Records<'a, Op> {
        Records::new(self.bytes, self.stride)
    }

    /// Start of the next operation; `None` at the end.
    fn next_start(&self) -> Option<u64> {
        self.records().get(self.next).map(|op| op.start_u)
    }

    /// Passes on the executed operations among the next `limit` records.
    fn read_records(
        &mut self,
        limit: usize,
        observer: Option<&dyn ProgressObserver>,
        each: &mut impl FnMut(Op) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = self.next.saturating_add(limit).min(self.len);
        let records = self.records();
        for (op, place) in records.slice(self.next..end).iter().zip(self.next..) {
            if !op.kflags.contains(OpKindFlags::EXECUTED) {
                continue;
            }
            // Only operations that contain others are delayed, and there are almost none.
            let has_parts = || {
                let next = records.get(place.saturating_add(1));
                !self.open.is_empty() || next.is_some_and(|next| next.kflags.contains(OpKindFlags::NESTED))
            };
            if self.times == Times::Own && has_parts() {
                self.own_times(op, each)?;
            } else {
                each(op)?;
            }
        }
        self.next = end;
        if end == self.len {
            while let Some((_, op)) = self.open.pop() {
                each(op)?;
            }
        }
        self.report(observer)
    }

    /// Reports the progress of the reading, once per block and at the end.
    #[inline]
    fn report(&mut self, observer: Option<&dyn ProgressObserver>) -> io::Result<()> {
        if self.next == self.len || self.next.saturating_sub(self.passed) >= BLOCK_RECORDS {
            if let Some(observer) = observer {
                let place = |index: usize| index.saturating_mul(self.stride);
                observer.passed(self.bytes.get(place(self.passed)..place(self.next)).unwrap_or_default())?;
            }
            self.passed = self.next;
        }
        Ok(())
    }

    fn own_times(&mut self, op: Op, each: &mut impl FnMut(Op) -> io::Result<()>) -> io::Result<()> {
        while let Some(&(end_u, done)) = self.open.last()
            && end_u <= op.start_u
        {
            self.open.pop();
            each(done)?;
        }
        if op.kflags.contains(OpKindFlags::NESTED)
            && let Some((_, around)) = self.open.last_mut()
        {
            around.dur_u = around.dur_u.saturating_sub(op.dur_u);
            around.pcycles = around.pcycles.saturating_sub(op.pcycles);
        }
        self.open.push((op.start_u.saturating_add(u64::from(op.dur_u)), op));
        Ok(())
    }
}

/// Calls `each` for every execution on the threads of a group. Before that, calls `alone` for every record of the
/// execution, with the index of its thread in the group.
pub(crate) fn executions(
    model: &StatsModel<'_>,
    threads: &[Thread],
    known_ops: usize,
    times: Times,
    observer: Option<&dyn ProgressObserver>,
    mut alone: impl FnMut(usize, &Op),
    mut each: impl FnMut(Execution) -> io::Result<()>,
) -> io::Result<()> {
    let Some((bytes, stride)) = model.section(Kind::Op) else { return Ok(()) };
    let mut left: Vec<ThreadOps<'_>> =
        threads.iter().map(|thread| ThreadOps::new(bytes, stride, thread, times)).collect();
    if let [only] = left.as_mut_slice() {
        while only.next < only.len {
            only.read_records(BLOCK_RECORDS, observer, &mut |op| {
                alone(0, &op);
                each(Execution::of(op))
            })?;
        }
        return Ok(());
    }
    let mut waiting = Waiting::new(known_ops, left.len());
    loop {
        if waiting.is_empty() {
            merge_threads(&mut left, observer, &mut alone, &mut each)?;
        }
        // The thread with the earliest position continues, so that the threads stay close to each other.
        let behind = left
            .iter_mut()
            .enumerate()
            .filter(|(_, thread)| thread.next < thread.len)
            .min_by_key(|(_, thread)| thread.next_start());
        let Some((place, thread)) = behind else { break };
        thread.read_records(TURN_RECORDS, observer, &mut |op| {
            alone(place, &op);
            waiting.add(place, op, &mut each)
        })?;
    }
    waiting.finish(&mut each)
}

/// Merges threads that run the same operations in the same order, which threads of a group usually do, up to the
/// first difference.
fn merge_threads(
    threads: &mut [ThreadOps<'_>],
    observer: Option<&dyn ProgressObserver>,
    alone: &mut impl FnMut(usize, &Op),
    each: &mut impl FnMut(Execution) -> io::Result<()>,
) -> io::Result<()> {
    if threads.iter().any(|thread| !thread.open.is_empty()) {
        return Ok(());
    }
    let is_nested = |op: &Op| op.kflags.contains(OpKindFlags::NESTED);
    let key = |op: &Op| (op.oc, op.iteration, op.kflags);
    while let Some(first) = threads.first().and_then(|thread| thread.records().get(thread.next)) {
        let mut execution = Execution::of(first);
        let same = first.kflags.contains(OpKindFlags::EXECUTED)
            && threads.iter().all(|thread| {
                let records = thread.records();
                // An operation with parts counts at its end.
                let has_parts =
                    records.get(thread.next.saturating_add(1)).is_some_and(|next| is_nested(&next));
                match records.get(thread.next) {
                    Some(op) if key(&op) == key(&first) && !has_parts && !is_nested(&op) => {
                        execution.join(Execution::of(op));
                        true
                    }
                    _ => false,
                }
            });
        if !same {
            break;
        }
        for (place, thread) in threads.iter_mut().enumerate() {
            if let Some(op) = thread.records().get(thread.next) {
                alone(place, &op);
            }
            thread.next = thread.next.saturating_add(1);
            thread.report(observer)?;
        }
        each(execution)?;
    }
    Ok(())
}

/// Executions without the records of all threads of the group.
struct Waiting {
    // Indexed by operation number: the oldest execution. The last entry is for all operations that are not in the
    // descriptor.
    heads: Vec<u32>,
    entries: Vec<WaitingExecution>,
    free: Vec<u32>,
    all_threads: u64,
}

#[derive(Clone, Copy)]
struct WaitingExecution {
    execution: Execution,
    seen: u64,
    next: u32,
}

impl Waiting {
    fn new(known_ops: usize, threads: usize) -> Self {
        let all_threads = u32::try_from(threads)
            .ok()
            .and_then(|count| 1_u64.checked_shl(count))
            .unwrap_or(0)
            .wrapping_sub(1);
        Self {
            heads: vec![NONE; known_ops.saturating_add(1)],
            entries: Vec::new(),
            free: Vec::new(),
            all_threads,
        }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    fn slot(&self, oc: u32) -> usize {
        usize::try_from(oc).unwrap_or(usize::MAX).min(self.heads.len().saturating_sub(1))
    }

    fn add(
        &mut self,
        thread: usize,
        op: Op,
        each: &mut impl FnMut(Execution) -> io::Result<()>,
    ) -> io::Result<()> {
        let execution = Execution::of(op);
        let Some(bit) = u32::try_from(thread).ok().and_then(|place| 1_u64.checked_shl(place)) else {
            // A real group never has this many threads: each of the others counts separately.
            return each(execution);
        };
        let slot = self.slot(op.oc);
        let mut before = NONE;
        let mut at = self.heads.get(slot).copied().unwrap_or(NONE);
        let mut length = 0_usize;
        while let Some(entry) = entry_mut(&mut self.entries, at) {
            let known = &entry.execution.op;
            let same = known.oc == op.oc
                && known.iteration == op.iteration
                && !(known.kflags ^ op.kflags).contains(OpKindFlags::ASYNC_TRANSFER);
            if same && entry.seen & bit == 0 {
                entry.seen |= bit;
                entry.execution.join(execution);
                if entry.seen == self.all_threads {
                    let (done, next) = (entry.execution, entry.next);
                    self.remove(slot, before, at, next);
                    return each(done);
                }
                return Ok(());
            }
            before = at;
            at = entry.next;
            length = length.saturating_add(1);
        }
        if length >= MAX_WAITING {
            let oldest = self.heads.get(slot).copied().unwrap_or(NONE);
            if let Some(entry) = entry_mut(&mut self.entries, oldest) {
                let (done, next) = (entry.execution, entry.next);
                self.remove(slot, NONE, oldest, next);
                if before == oldest {
                    before = NONE;
                }
                each(done)?;
            }
        }
        let entry = WaitingExecution { execution, seen: bit, next: NONE };
        let place = if let Some(place) = self.free.pop() {
            if let Some(slot) = entry_mut(&mut self.entries, place) {
                *slot = entry;
            }
            place
        } else {
            let place = u32::try_from(self.entries.len()).unwrap_or(NONE);
            self.entries.push(entry);
            place
        };
        self.link(slot, before, place);
        Ok(())
    }

    fn remove(&mut self, slot: usize, before: u32, at: u32, next: u32) {
        self.link(slot, before, next);
        self.free.push(at);
    }

    fn link(&mut self, slot: usize, before: u32, to: u32) {
        if let Some(entry) = entry_mut(&mut self.entries, before) {
            entry.next = to;
        } else if let Some(head) = self.heads.get_mut(slot) {
            *head = to;
        }
    }

    /// Passes on executions without the records of all threads, ordered by start.
    fn finish(&mut self, each: &mut impl FnMut(Execution) -> io::Result<()>) -> io::Result<()> {
        let mut rest: Vec<Execution> = Vec::new();
        for head in &self.heads {
            let mut at = *head;
            while let Some(entry) = entry_mut(&mut self.entries, at) {
                rest.push(entry.execution);
                at = entry.next;
            }
        }
        rest.sort_by_key(|execution| execution.op.start_u);
        rest.into_iter().try_for_each(each)
    }
}

fn entry_mut(entries: &mut [WaitingExecution], place: u32) -> Option<&mut WaitingExecution> {
    entries.get_mut(usize::try_from(place).ok()?)
}
