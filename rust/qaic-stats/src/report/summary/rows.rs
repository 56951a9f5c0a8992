//! The table of one core: executions of operations, grouped by kind, engine, memory and types.

use std::collections::HashMap;
use std::io::{self, Write};

use super::lines::CoreTotals;
use crate::decode::descriptor::{OpDesc, OpsDescriptor};
use crate::decode::record::{Core, Kind, OpFlags, OpKindFlags, Thread};
use crate::model::StatsModel;
use crate::walk::{Execution, ProgressObserver, Times, executions, groups_of};

const HEADER: &str = "core  ucycles  ucycles(%)     pcycles  pcycles(%)  count      out KB  ucycles/KB  pcycles/KB  \
                      stddev(pc/KB)  opdetails";
const UNSEEN: u32 = u32::MAX;
const BYTES_PER_KB: f64 = 1024.0;

/// Tensor types in the order of a program's descriptor; other types follow by name.
const TYPE_ORDER: [&str; 15] = [
    "float", "float32", "float16", "i8", "ui8", "i16", "i32", "index32", "index64", "int8", "uint8", "int16",
    "int32", "int64", "bool",
];

/// The rows of one core.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Row>,
    /// Sum of the `PCycles` of each thread's operations; `None` if any were not measured.
    pub(super) thread_pcycles: HashMap<u8, Option<u64>>,
    // Without operations there is no table, not an empty one.
    recorded: bool,
}

/// Counters of one row.
#[derive(Clone, Debug, Default)]
struct Row {
    details: String,
    ucycles: u64,
    pcycles: u64,
    count: u64,
    /// True for waits, which have neither `PCycles` nor output.
    is_wait: bool,
    lacks_pcycles: bool,
    out_bytes: u64,
    // Welford's running mean and sum of squares of PCycles/KB, over the executions that have both.
    rated: f64,
    mean: f64,
    squares: f64,
}

impl Row {
    fn add(&mut self, execution: &Execution, output_bytes: u64) {
        self.ucycles = self.ucycles.saturating_add(u64::from(execution.op.dur_u));
        self.count = self.count.saturating_add(1);
        let out_bytes = execution.out_bytes.unwrap_or(output_bytes);
        self.out_bytes = self.out_bytes.saturating_add(out_bytes);
        let Some(pcycles) = execution.pcycles else {
            self.lacks_pcycles = true;
            return;
        };
        self.pcycles = self.pcycles.saturating_add(pcycles);
        if out_bytes > 0 {
            let rate = float(pcycles) * BYTES_PER_KB / float(out_bytes);
            let away = rate - self.mean;
            self.rated += 1.0;
            self.mean += away / self.rated;
            self.squares += away * (rate - self.mean);
        }
    }

    fn add_wait(&mut self, length_u: u32) {
        self.ucycles = self.ucycles.saturating_add(u64::from(length_u));
        self.count = self.count.saturating_add(1);
    }

    fn write(&self, out: &mut impl Write, core: &Core, totals: CoreTotals) -> io::Result<()> {
        let pcycles = (!self.is_wait && !self.lacks_pcycles).then_some(self.pcycles);
        let kilobytes = (!self.is_wait).then_some(float(self.out_bytes) / BYTES_PER_KB);
        let per_kilobyte =
            |cycles: Option<u64>| Some(float(cycles?) / kilobytes.filter(|&kilobytes| kilobytes > 0.0)?);
        let spread = (pcycles.is_some() && self.rated > 0.0).then(|| (self.squares / self.rated).sqrt());
        writeln!(
            out,
            "{:<4}  {:>7}  {:>10}  {:>10}  {:>10}  {:>5}  {:>10}  {:>10}  {:>10}  {:>13}  {}",
            format!("c{}", core.core),
            self.ucycles,
            share(Some(self.ucycles), Some(totals.ucycles)),
            pcycles.map_or("N/A".into(), |pcycles| pcycles.to_string()),
            share(pcycles, totals.pcycles),
            self.count,
            decimals(kilobytes),
            decimals(per_kilobyte(Some(self.ucycles).filter(|_| !self.is_wait))),
            decimals(per_kilobyte(pcycles)),
            decimals(spread),
            self.details,
        )
    }
}

/// Rows of one thread group during the count of its executions.
struct Builder<'t, 'd> {
    engine: &'t str,
    ops: &'d [OpDesc],
    rows: &'t mut Vec<Row>,
    by_details: &'t mut HashMap<String, u32>,
    // Row by operation number, so that an execution needs no lookup of names.
    row_of: Vec<u32>,
    // Kind, memory and types as strings of the descriptor: most operations share them, and formatting is slow.
    by_names: HashMap<(&'d str, &'d str, &'d str), u32>,
    sync: Row,
    barrier: Row,
}

impl<'d> Builder<'_, 'd> {
    fn add(&mut self, execution: &Execution) {
        if execution.is_transfer() {
            // An asynchronous transfer is not time of this thread: a row would count it in addition to the concurrent
            // computation.
            return;
        }
        let oc = usize::try_from(execution.op.oc).unwrap_or(usize::MAX);
        let ops: &'d [OpDesc] = self.ops;
        let desc = ops.get(oc);
        let row = match self.row_of.get(oc.min(self.ops.len())) {
            Some(&row) if row != UNSEEN => row,
            _ => self.find_row(oc, desc),
        };
        if let Some(row) = usize::try_from(row).ok().and_then(|row| self.rows.get_mut(row)) {
            row.add(execution, desc.map_or(0, |desc| desc.output_bytes));
        }
        if let Some(length_u) = execution.sync_u {
            self.sync.add_wait(length_u);
        }
        if let Some(length_u) = execution.barrier_u {
            self.barrier.add_wait(length_u);
        }
    }

    #[cold]
    fn find_row(&mut self, oc: usize, desc: Option<&'d OpDesc>) -> u32 {
        let names = desc.map(|desc| (desc.kind.as_str(), desc.memory.as_str(), desc.types.as_str()));
        let row = match names.and_then(|names| self.by_names.get(&names)) {
            Some(&row) => row,
            None => self.make_row(desc),
        };
        self.by_names.extend(names.map(|names| (names, row)));
        if let Some(known) = self.row_of.get_mut(oc.min(self.ops.len())) {
            *known = row;
        }
        row
    }

    fn make_row(&mut self, desc: Option<&OpDesc>) -> u32 {
        let details = match desc {
            Some(desc) => details(desc, self.engine),
            None => format!("unknown {}  ", self.engine),
        };
        if let Some(&row) = self.by_details.get(&details) {
            return row;
        }
        let row = u32::try_from(self.rows.len()).unwrap_or(UNSEEN);
        self.rows.push(Row { details: details.clone(), ..Row::default() });
        self.by_details.insert(details, row);
        row
    }
}

impl Table {
    pub(super) fn of_core(
        model: &StatsModel<'_>,
        descriptor: &OpsDescriptor,
        core: u16,
        threads: &[Thread],
        observer: Option<&dyn ProgressObserver>,
    ) -> io::Result<Self> {
        let ops = descriptor.cores.get(usize::from(core)).map_or(&[][..], |core| &core.ops);
        let mut table = Self { recorded: model.section(Kind::Op).is_some(), ..Self::default() };
        let mut by_details = HashMap::new();
        for group in groups_of(threads, descriptor) {
            let mut of_threads = vec![table.recorded.then_some(0_u64); group.threads.len()];
            let wait = |what: &str| Row {
                details: format!("{what} {}", group.engine),
                is_wait: true,
                ..Row::default()
            };
            let mut builder = Builder {
                engine: &group.engine,
                ops,
                rows: &mut table.rows,
                by_details: &mut by_details,
                row_of: vec![UNSEEN; ops.len().saturating_add(1)],
                by_names: HashMap::new(),
                sync: wait("sync"),
                barrier: wait("barrier"),
            };
            executions(
                model,
                &group.threads,
                ops.len(),
                Times::Own,
                observer,
                |thread, op| {
                    if op.kflags.contains(OpKindFlags::ASYNC_TRANSFER) {
                        return;
                    }
                    if let Some(sum) = of_threads.get_mut(thread) {
                        let measured = (op.flags.contains(OpFlags::PCYCLES)).then_some(op.pcycles);
                        *sum = sum.zip(measured).map(|(sum, pcycles)| sum.saturating_add(pcycles));
                    }
                },
                |execution| {
                    builder.add(&execution);
                    Ok(())
                },
            )?;
            let waits = [builder.sync, builder.barrier];
            table.rows.extend(waits.into_iter().filter(|row| row.count > 0));
            table.thread_pcycles.extend(group.threads.iter().map(|thread| thread.thread).zip(of_threads));
        }
        table.rows.sort_by(|a, b| b.ucycles.cmp(&a.ucycles).then_with(|| a.details.cmp(&b.details)));
        Ok(table)
    }

    pub(super) fn write(&self, out: &mut impl Write, core: &Core, totals: CoreTotals) -> io::Result<()> {
        if !self.recorded {
            return Ok(());
        }
        writeln!(out, "{HEADER}")?;
        for row in &self.rows {
            row.write(out, core, totals)?;
        }
        writeln!(out)
    }
}

/// Returns the text that distinguishes rows.
fn details(desc: &OpDesc, engine: &str) -> String {
    let types = types_in_order(&desc.types);
    let types = if types.is_empty() { String::new() } else { format!("({types})") };
    let text = format!("{} {engine} {} {types}", desc.kind, desc.memory);
    // Names come from files and may contain control characters; a row is one line.
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Returns each type once, in the order of descriptors.
fn types_in_order(types: &str) -> String {
    let mut names: Vec<&str> = types.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let place = |name: &str| TYPE_ORDER.iter().position(|known| *known == name).unwrap_or(TYPE_ORDER.len());
    names.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| a.cmp(b)));
    names.dedup();
    names.join(", ")
}

/// Converts cycles to float64, which is exact up to 53 bits; two decimals are printed.
#[allow(clippy::as_conversions, clippy::cast_precision_loss)]
pub(super) fn float(value: u64) -> f64 {
    value as f64
}

fn decimals(value: Option<f64>) -> String {
    value.map_or("N/A".into(), |value| format!("{value:.2}"))
}

/// Formats a part of a whole in percent.
pub(super) fn share(part: Option<u64>, whole: Option<u64>) -> String {
    match part.zip(whole) {
        Some((part, whole)) if whole > 0 => format!("{:.2}%", float(part) / float(whole) * 100.0),
        Some((0, 0)) => "0.00%".into(),
        _ => "N/A".into(),
    }
}
