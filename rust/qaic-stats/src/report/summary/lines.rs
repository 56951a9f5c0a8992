//! The lines around the tables: totals, threads, ports, activation, counters of a core, and the whole network.

use std::fmt::Display;
use std::io::{self, Write};

use super::rows::{Table, float, share};
use crate::decode::descriptor::OpsDescriptor;
use crate::decode::record::{Core, CoreFlags, Pmu, Port, Thread, ThreadFlags};
use crate::model::{DeviceKind, StatsModel};
use crate::number::general;
use crate::walk::{CoreRecords, engine_of};

/// Ports for the host's inputs and outputs.
const HOST_PORTS: [u16; 2] = [100, 101];
/// Maximum number and length of the producer's facts that are shown.
const MAX_FACTS: usize = 32;
const MAX_FACT_CHARS: usize = 200;

/// Base of the percentages in a core's table: the longest duration of its threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreTotals {
    pub(super) ucycles: u64,
    pub(super) pcycles: Option<u64>,
}

impl CoreTotals {
    pub(super) fn of(threads: &[Thread]) -> Self {
        Self {
            ucycles: threads.iter().map(ticks).max().unwrap_or(0),
            pcycles: threads.iter().filter_map(pcycles).max(),
        }
    }
}

/// Writes the device, if it is not one that readers expect, and its facts about itself.
pub(super) fn write_producer(out: &mut impl Write, model: &StatsModel<'_>) -> io::Result<()> {
    if !matches!(model.run.device, DeviceKind::Cpu | DeviceKind::Other(_)) {
        return Ok(());
    }
    writeln!(out, "device: {}", model.run.device.name())?;
    let facts: Option<serde_json::Map<String, serde_json::Value>> =
        model.meta().and_then(|meta| serde_json::from_str(meta).ok());
    for (name, value) in facts.unwrap_or_default().iter().take(MAX_FACTS) {
        let text = match value {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Number(number) => number.to_string(),
            serde_json::Value::Bool(value) => value.to_string(),
            _ => continue,
        };
        writeln!(out, "{}: {}", one_line(name), one_line(&text))?;
    }
    writeln!(out)
}

fn one_line(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(MAX_FACT_CHARS).collect()
}

/// Writes the lines of a core that follow its table.
pub(super) fn write_core(
    out: &mut impl Write,
    model: &StatsModel<'_>,
    descriptor: &OpsDescriptor,
    core: &Core,
    records: &CoreRecords,
    table: &Table,
) -> io::Result<()> {
    let (number, threads) = (core.core, &records.threads);
    let totals = CoreTotals::of(threads);
    let to_column = |label: &str, column: usize, value: Option<u64>| {
        let width = column.saturating_sub(label.len());
        format!("{label}{:>width$}", known(value))
    };
    let total = to_column(&format!("c{number} total:"), 25, Some(totals.ucycles));
    writeln!(out, "{total} ucycles{:>16} pcycles (thread max)", known(totals.pcycles))?;
    for thread in threads {
        let whole = pcycles(thread);
        let ops = table.thread_pcycles.get(&thread.thread).copied().flatten();
        writeln!(
            out,
            "{:<6}t{} {:<8}{:>16} ucycles [{}, {}]{:>16} pcycles{:>8} utilization",
            format!("c{number}"),
            thread.thread,
            engine_of(descriptor, thread),
            ticks(thread),
            thread.start_u,
            thread.end_u,
            known(whole),
            share(ops.filter(|_| whole.is_some()), whole),
        )?;
    }
    write!(out, "\n\n")?;
    for thread in threads {
        writeln!(
            out,
            "c{number:02}t{} batch ucycles: {:>16} [{},{}]    pcycles:{:>16} ",
            thread.thread,
            ticks(thread),
            thread.start_u,
            thread.end_u,
            known(pcycles(thread)),
        )?;
    }
    let span_u = core.end_u.saturating_sub(core.start_u);
    let cycles = (core.flags.contains(CoreFlags::PCYCLES)).then_some(core.pcycles);
    writeln!(out, "c{number}: Total inference pcycle is {}", known(cycles))?;
    match cycles.filter(|_| span_u > 0) {
        Some(cycles) => {
            let frequency = float(cycles) / float(span_u) * (float(model.run.ucycle_hz) / 1e6);
            writeln!(out, "c{number}: Effective frequency is {frequency:.2}MHz")?;
        }
        None => writeln!(out, "c{number}: Effective frequency is N/A")?,
    }
    let mut ports = records.ports.clone();
    ports.sort_by_key(|port| (port.port, port.thread));
    for port in ports {
        let name = if HOST_PORTS.contains(&port.port) { "Host_IO_Port" } else { "Port" };
        writeln!(out, "c{number:02}t{}p{} {name} ucycles: {:>16}", port.thread, port.port, port.wait_u)?;
    }
    for thread in threads {
        let valid = thread.flags.contains(ThreadFlags::ACTIVATION);
        let length_u = valid.then(|| thread.act_end_u.saturating_sub(thread.act_start_u));
        let label = format!("c{number:02}t{} activate ucycles:", thread.thread);
        writeln!(out, "{}", to_column(&label, 41, length_u))?;
    }
    write_counters(out, model, core, &records.pmu)
}

/// Writes lines that only this library has: PMU events, DDR and multicast traffic.
fn write_counters(
    out: &mut impl Write,
    model: &StatsModel<'_>,
    core: &Core,
    values: &[Pmu],
) -> io::Result<()> {
    let number = core.core;
    for (place, event) in model.pmu_events().iter().enumerate() {
        let valid = values.iter().filter(|values| usize::from(values.valid_count) > place);
        let sum = valid.clone().filter_map(|values| values.value.get(place).copied());
        let sum = sum.reduce(u64::saturating_add);
        let flag = u32::try_from(place).ok().and_then(|place| 1_u32.checked_shl(place)).unwrap_or(0);
        let wrapped = valid.clone().any(|values| values.flags & flag != 0);
        writeln!(out, "c{number}: PMU {event:X} {}{}", known(sum), if wrapped { " (wrapped)" } else { "" })?;
    }
    let traffic = [
        (CoreFlags::DDR, "DDR", core.ddr_read_bytes, core.ddr_write_bytes),
        (CoreFlags::MULTICAST, "Multicast", core.mc_read_bytes, core.mc_write_bytes),
    ];
    for (flag, what, read, written) in traffic {
        if core.flags.contains(flag) {
            writeln!(out, "c{number}: {what} read bytes: {read} write bytes: {written}")?;
        }
    }
    Ok(())
}

/// Writes the whole network, from the first tick of any core to the last.
pub(super) fn write_network(
    out: &mut impl Write,
    model: &StatsModel<'_>,
    descriptor: &OpsDescriptor,
) -> io::Result<()> {
    let start = model.records::<Core>().iter().map(|core| core.start_u).min().unwrap_or(0);
    let end = model.records::<Core>().iter().map(|core| core.end_u).max().unwrap_or(0);
    let span_u = end.saturating_sub(start);
    writeln!(out, "total batch ucycles: {span_u:>16} [{start}, {end}]")?;
    let name = one_line(&descriptor.network);
    let batch = model.run.batch_size.max(1);
    if span_u > 0 && model.run.ucycle_hz > 0 {
        let seconds = float(span_u) / float(model.run.ucycle_hz);
        let text = general(seconds);
        let rate = general(1.0 / seconds);
        writeln!(out, "[{name}] Device instance batch/s: (1/{text}): {rate}")?;
        let rate = general(f64::from(batch) / seconds);
        writeln!(out, "[{name}] Device instance inf/s: ({batch}/{text}): {rate}")?;
    } else {
        writeln!(out, "[{name}] Device instance batch/s: N/A")?;
        writeln!(out, "[{name}] Device instance inf/s: N/A")?;
    }
    for (what, direction) in [("input", Port::IN), ("output", Port::OUT)] {
        let waits =
            model.records::<Port>().iter().filter(|port| port.direction == direction).map(|port| port.wait_u);
        let label = format!("max {what} wait ucycles:");
        let width = 41_usize.saturating_sub(label.len());
        writeln!(out, "{label}{:>width$}", known(waits.max()))?;
    }
    Ok(())
}

fn ticks(thread: &Thread) -> u64 {
    thread.end_u.saturating_sub(thread.start_u)
}

fn pcycles(thread: &Thread) -> Option<u64> {
    (thread.flags.contains(ThreadFlags::PCYCLES)).then_some(thread.pcycles)
}

fn known(value: Option<impl Display>) -> String {
    value.map_or("N/A".into(), |value| value.to_string())
}
