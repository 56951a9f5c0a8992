//! Traces: what devices and host did over time, for `chrome://tracing` and Perfetto (stats-profiling §5).
//!
//! A trace is written as a stream. Memory depends on the descriptors, not on the number of events.

mod block;
mod clock;
mod device;
mod flows;
mod foreign;
mod json;
mod perfetto;
mod sink;

use std::io::{self, Write};

use self::clock::Timeline;
pub use self::foreign::HostTrace;
use self::json::JsonSink;
use self::perfetto::PerfettoSink;
use self::sink::Sink;
use crate::descriptor::OpsDescriptor;
use crate::model::StatsModel;
use crate::walk::Watch;

/// Forms of trace files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceFormat {
    /// A Chrome trace, one event a line.
    #[default]
    Json,
    /// Perfetto's own protobuf.
    Perfetto,
}

/// What a trace shows.
#[derive(Clone, Debug)]
pub struct TraceOptions<'a> {
    /// The form of the file.
    pub format: TraceFormat,
    /// All threads of a group on one track, each execution once, else a track for each thread.
    pub merge_thread_groups: bool,
    /// Arrows for dependencies.
    pub flow_events: bool,
    /// Tracks with the waits after operations.
    pub barrier_events: bool,
    /// Only these cores.
    pub cores: Option<Vec<u16>>,
    /// Is told how far the reading has come.
    pub watch: Option<&'a dyn Watch>,
}

impl Default for TraceOptions<'_> {
    fn default() -> Self {
        Self {
            format: TraceFormat::default(),
            merge_thread_groups: true,
            flow_events: false,
            barrier_events: false,
            cores: None,
            watch: None,
        }
    }
}

/// What one device did.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Its stats buffer.
    pub model: &'a StatsModel<'a>,
    /// Its operations.
    pub descriptor: &'a OpsDescriptor,
    /// Name of the network, without the slice.
    pub network: &'a str,
    /// Which device of the program it is; `None` where there is one.
    pub slice: Option<u16>,
}

/// Writes what devices did, and what another tool recorded on the host, into one file.
pub fn write_trace(
    out: impl Write,
    parts: &[Part<'_>],
    host: Option<&HostTrace<'_>>,
    options: &TraceOptions<'_>,
) -> io::Result<()> {
    match options.format {
        TraceFormat::Json => write_to(&mut JsonSink::new(out), parts, host, options),
        TraceFormat::Perfetto => write_to(&mut PerfettoSink::new(out), parts, host, options),
    }
}

fn write_to(
    sink: &mut impl Sink,
    parts: &[Part<'_>],
    host: Option<&HostTrace<'_>>,
    options: &TraceOptions<'_>,
) -> io::Result<()> {
    let timeline =
        Timeline::of(parts.iter().map(|part| part.model), host.and_then(HostTrace::first_utc_ns).into_iter());
    sink.begin(timeline.origin_utc_ns);
    let mut flow_id = 1;
    for ((part, clock), pid) in parts.iter().zip(&timeline.clocks).zip(1_u32..) {
        flow_id = device::write_device(sink, part, clock, pid, flow_id, options)?;
    }
    if let Some(host) = host {
        let first_ns = timeline.at_utc(host.first_utc_ns());
        let pids = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        host.write(sink, first_ns, pids)?;
    }
    sink.finish()
}

#[cfg(test)]
mod perfetto_tests;
#[cfg(test)]
mod tests;
