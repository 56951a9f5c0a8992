//! Traces: the activity of devices and host over time, for `chrome://tracing` and Perfetto.
//!
//! A trace is written as a stream. Its memory use depends on the descriptors, not on the number of events.

mod block;
mod clock;
mod device;
mod flows;
mod foreign;
mod host;
mod json;
mod perfetto;
mod sink;

use std::io::{self, Write};

use self::block::Target;
use self::clock::Timeline;
pub use self::foreign::HostTrace;
pub use self::host::write_host_trace;
use self::json::JsonSink;
use self::perfetto::PerfettoSink;
use self::sink::Sink;
use crate::decode::descriptor::OpsDescriptor;
use crate::model::StatsModel;
use crate::sample::HostSample;
use crate::walk::ProgressObserver;

/// Formats of trace files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceFormat {
    /// A Chrome trace, one event per line.
    #[default]
    Json,
    /// Perfetto's own protobuf format.
    Perfetto,
}

impl TraceFormat {
    /// Returns the format with this name in options.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "json" => Some(Self::Json),
            "perfetto" => Some(Self::Perfetto),
            _ => None,
        }
    }
}

/// Options of a trace.
#[derive(Clone, Debug)]
pub struct TraceOptions<'a> {
    /// The form of the file.
    pub format: TraceFormat,
    /// True to show all threads of a group on one track, and each execution once. False shows a track for each
    /// thread.
    pub merge_thread_groups: bool,
    /// True to show dependencies as arrows.
    pub flow_events: bool,
    /// True to show tracks with the waits after operations.
    pub barrier_events: bool,
    /// Cores to show; `None` shows all.
    pub cores: Option<Vec<u16>>,
    /// Observer of the reading progress.
    pub observer: Option<&'a dyn ProgressObserver>,
}

impl Default for TraceOptions<'_> {
    fn default() -> Self {
        Self {
            format: TraceFormat::default(),
            merge_thread_groups: true,
            flow_events: false,
            barrier_events: false,
            cores: None,
            observer: None,
        }
    }
}

/// Measurements of one device.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Stats buffer of the device.
    pub model: &'a StatsModel<'a>,
    /// Operations of the device's program.
    pub descriptor: &'a OpsDescriptor,
    /// Name of the network, without the slice.
    pub network: &'a str,
    /// Index of the device among those of the program; `None` for a program on one device.
    pub slice: Option<u16>,
}

/// Measurements of the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostSide<'a> {
    /// Measurements of this library.
    pub samples: &'a [HostSample],
    /// UTC nanoseconds at time 0 of the samples' clock.
    pub epoch_utc_ns: u64,
    /// A trace recorded by another tool.
    pub trace: Option<&'a HostTrace<'a>>,
}

/// Writes the activity of devices and host to one file, a block at a time.
pub fn write_trace(
    mut out: impl Write,
    parts: &[Part<'_>],
    host: &HostSide<'_>,
    options: &TraceOptions<'_>,
) -> io::Result<()> {
    write_to(Target::Writer(&mut out), parts, host, options)
}

/// Appends the trace of [`write_trace`] to `bytes`. After an error, the contents of `bytes` are lost.
pub fn push_trace(
    bytes: &mut Vec<u8>,
    parts: &[Part<'_>],
    host: &HostSide<'_>,
    options: &TraceOptions<'_>,
) -> io::Result<()> {
    write_to(Target::Memory(bytes), parts, host, options)
}

fn write_to(
    target: Target<'_>,
    parts: &[Part<'_>],
    host: &HostSide<'_>,
    options: &TraceOptions<'_>,
) -> io::Result<()> {
    match options.format {
        TraceFormat::Json => write_events(&mut JsonSink::new(target), parts, host, options),
        TraceFormat::Perfetto => write_events(&mut PerfettoSink::new(target), parts, host, options),
    }
}

fn write_events(
    sink: &mut impl Sink,
    parts: &[Part<'_>],
    host: &HostSide<'_>,
    options: &TraceOptions<'_>,
) -> io::Result<()> {
    let of_host =
        [host::first_utc_ns(host.samples, host.epoch_utc_ns), host.trace.and_then(HostTrace::first_utc_ns)];
    let timeline = Timeline::of(parts.iter().map(|part| part.model), of_host.into_iter().flatten());
    sink.begin(timeline.origin_utc_ns);
    let mut flow_id = 1;
    for ((part, clock), pid) in parts.iter().zip(&timeline.clocks).zip(1_u32..) {
        flow_id = device::write_device(sink, part, clock, pid, flow_id, options)?;
    }
    let pid = u32::try_from(parts.len()).unwrap_or(u32::MAX).saturating_add(1);
    host::write_samples(sink, host.samples, host.epoch_utc_ns, &timeline, pid)?;
    if let Some(trace) = host.trace {
        trace.write(sink, timeline.at_utc(trace.first_utc_ns()), pid)?;
    }
    sink.finish()
}

#[cfg(test)]
mod perfetto_tests;
#[cfg(test)]
mod tests;
