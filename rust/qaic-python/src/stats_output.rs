//! Summary and trace of stats buffers: as text and bytes, and as files that are whole or not there.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use qaic_mem::reserve_large;
use qaic_runtime::error::{ErrorDetail, RuntimeError};
use qaic_runtime::process::cancellation::CHECK_PERIOD;
use qaic_runtime::process::clock;
use qaic_stats::decode::descriptor::OpsDescriptor;
use qaic_stats::model::StatsModel;
use qaic_stats::report::summary::{SummaryOptions, write_summary};
use qaic_stats::sample::HostSample;
use qaic_stats::trace::{HostSide, HostTrace, Part, TraceFormat, TraceOptions, push_trace, write_trace};
use qaic_stats::{ProgressObserver, write_whole};

use crate::buffers::{BytesView, ReadOnlyBytes, copied_bytes};
use crate::errors::{Raise, from_stats};
use crate::gil::{Detach, signal_pending};
use crate::profiling::PySamples;
use crate::stats::{PyStatsBuffer, PyStatsDescriptor};

/// What an operation takes in a trace that names its shape and operands. Only room: less costs nothing.
const TRACE_BYTES_PER_OP: usize = 768;

/// (buffer, operations, network, device of the program) of each device.
type Parts<'py> =
    Vec<(Bound<'py, PyStatsBuffer>, Option<Bound<'py, PyStatsDescriptor>>, String, Option<u16>)>;

/// Lets go of what was read, and looks for Ctrl-C now and then.
struct Progress<'a> {
    buffers: Vec<&'a PyStatsBuffer>,
    looked: Cell<Instant>,
}

impl<'a> Progress<'a> {
    fn new(buffers: impl IntoIterator<Item = &'a PyStatsBuffer>) -> Self {
        Self { buffers: buffers.into_iter().collect(), looked: Cell::new(Instant::now()) }
    }
}

impl fmt::Debug for Progress<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Progress").field("buffers", &self.buffers.len()).finish_non_exhaustive()
    }
}

impl ProgressObserver for Progress<'_> {
    fn passed(&self, bytes: &[u8]) -> io::Result<()> {
        for buffer in &self.buffers {
            buffer.inner().let_go(bytes);
        }
        if self.looked.get().elapsed() >= CHECK_PERIOD {
            self.looked.set(Instant::now());
            if signal_pending() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        Ok(())
    }
}

/// The summary of an inference.
///
/// Blocking, without the interpreter lock: reads every record.
#[pyfunction]
#[pyo3(signature = (buffer, descriptor = None, *, cores = None))]
pub(crate) fn stats_summary(
    py: Python<'_>,
    buffer: &PyStatsBuffer,
    descriptor: Option<&PyStatsDescriptor>,
    cores: Option<Vec<u16>>,
) -> PyResult<String> {
    let bytes = summary(py, Target::Memory, buffer, descriptor, cores)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes the summary of an inference to a file, which is replaced when the summary is complete.
///
/// Blocking, without the interpreter lock: reads every record.
#[pyfunction]
#[pyo3(signature = (path, buffer, descriptor = None, *, cores = None))]
pub(crate) fn write_stats_summary(
    py: Python<'_>,
    path: PathBuf,
    buffer: &PyStatsBuffer,
    descriptor: Option<&PyStatsDescriptor>,
    cores: Option<Vec<u16>>,
) -> PyResult<()> {
    summary(py, Target::File(path), buffer, descriptor, cores).map(|_| ())
}

fn summary(
    py: Python<'_>,
    target: Target,
    buffer: &PyStatsBuffer,
    descriptor: Option<&PyStatsDescriptor>,
    cores: Option<Vec<u16>>,
) -> PyResult<Vec<u8>> {
    buffer.check(py)?;
    let ops = descriptor.map(|descriptor| Arc::clone(&descriptor.inner().ops)).unwrap_or_default();
    py.detached(|| {
        let progress = Progress::new([buffer]);
        let options = SummaryOptions { cores, observer: Some(&progress) };
        let model = buffer.inner().model();
        target.write(
            |bytes| write_summary(bytes, &model, &ops, &options),
            |mut out| write_summary(&mut out, &model, &ops, &options),
        )
    })
}

/// What a trace shows, as Python says it.
struct Shown {
    format: String,
    merge_thread_groups: bool,
    flow_events: bool,
    barrier_events: bool,
    cores: Option<Vec<u16>>,
}

/// The trace of devices and host, in memory that views may share: it can be large.
///
/// Blocking, without the interpreter lock: reads every record.
#[pyfunction]
#[pyo3(signature = (
    parts, *, format = "json", merge_thread_groups = true, flow_events = false, barrier_events = false, cores = None,
    host_trace = None, host_samples = None,
))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // keywords, as the binding takes them
pub(crate) fn stats_trace<'py>(
    py: Python<'py>,
    parts: Parts<'py>,
    format: &str,
    merge_thread_groups: bool,
    flow_events: bool,
    barrier_events: bool,
    cores: Option<Vec<u16>>,
    host_trace: Option<&Bound<'py, PyAny>>,
    host_samples: Option<&PySamples>,
) -> PyResult<BytesView> {
    let format = format.to_owned();
    let shown = Shown { format, merge_thread_groups, flow_events, barrier_events, cores };
    let bytes = trace(py, Target::Memory, &parts, &shown, host_trace, host_samples)?;
    Ok(BytesView::whole(ReadOnlyBytes::from(bytes)))
}

/// Writes the trace of devices and host to a file, which is replaced when the trace is complete.
///
/// Blocking, without the interpreter lock: reads every record.
#[pyfunction]
#[pyo3(signature = (
    path, parts, *, format = "json", merge_thread_groups = true, flow_events = false, barrier_events = false,
    cores = None, host_trace = None, host_samples = None,
))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // keywords, as the binding takes them
pub(crate) fn write_stats_trace<'py>(
    py: Python<'py>,
    path: PathBuf,
    parts: Parts<'py>,
    format: &str,
    merge_thread_groups: bool,
    flow_events: bool,
    barrier_events: bool,
    cores: Option<Vec<u16>>,
    host_trace: Option<&Bound<'py, PyAny>>,
    host_samples: Option<&PySamples>,
) -> PyResult<()> {
    let format = format.to_owned();
    let shown = Shown { format, merge_thread_groups, flow_events, barrier_events, cores };
    trace(py, Target::File(path), &parts, &shown, host_trace, host_samples).map(|_| ())
}

/// One device, without Python around it.
struct Device<'a> {
    buffer: &'a PyStatsBuffer,
    model: StatsModel<'a>,
    ops: Arc<OpsDescriptor>,
    network: &'a str,
    slice: Option<u16>,
}

fn trace(
    py: Python<'_>,
    target: Target,
    parts: &Parts<'_>,
    shown: &Shown,
    host_trace: Option<&Bound<'_, PyAny>>,
    host_samples: Option<&PySamples>,
) -> PyResult<Vec<u8>> {
    let format = match shown.format.as_str() {
        "json" => TraceFormat::Json,
        "perfetto" => TraceFormat::Perfetto,
        other => {
            let text = format!("a trace has the format json or perfetto, not {other:?}");
            return Err(Raise::new(py, "StatsError", "stats.argument", text).build());
        }
    };
    for (buffer, ..) in parts {
        buffer.get().check(py)?;
    }
    let devices: Vec<Device<'_>> = parts
        .iter()
        .map(|(buffer, descriptor, network, slice)| Device {
            buffer: buffer.get(),
            model: buffer.get().inner().model(),
            ops: descriptor
                .as_ref()
                .map(|descriptor| Arc::clone(&descriptor.get().inner().ops))
                .unwrap_or_default(),
            network,
            slice: *slice,
        })
        .collect();
    let json = host_trace.map(|json| copied_bytes(json)).transpose()?;
    let samples: Vec<HostSample> = host_samples.map(PySamples::host).unwrap_or_default();
    let host_trace = py.detached(|| Ok(json.as_deref().map(HostTrace::open).transpose()))?;
    let host_trace = host_trace.map_err(|error| from_stats(py, &error, None))?;
    py.detached(|| {
        let progress = Progress::new(devices.iter().map(|device| device.buffer));
        let options = TraceOptions {
            format,
            merge_thread_groups: shown.merge_thread_groups,
            flow_events: shown.flow_events,
            barrier_events: shown.barrier_events,
            cores: shown.cores.clone(),
            observer: Some(&progress),
        };
        let parts: Vec<Part<'_>> = devices
            .iter()
            .map(|device| Part {
                model: &device.model,
                descriptor: &device.ops,
                network: device.network,
                slice: device.slice,
            })
            .collect();
        let epoch_utc_ns = clock::epoch_utc_ns();
        let host = HostSide { samples: &samples, epoch_utc_ns, trace: host_trace.as_ref() };
        target.write(
            |bytes| {
                let ops: usize = parts.iter().map(|part| part.model.ops().len()).sum();
                reserve_large(bytes, ops.saturating_mul(TRACE_BYTES_PER_OP));
                push_trace(bytes, &parts, &host, &options)
            },
            |out| write_trace(out, &parts, &host, &options),
        )
    })
}

/// Where output goes.
enum Target {
    Memory,
    File(PathBuf),
}

impl Target {
    /// Bytes written to memory; none for a file.
    fn write(
        self,
        to_memory: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
        to_file: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Vec<u8>, RuntimeError> {
        let mut bytes = Vec::new();
        let (result, path) = match self {
            Self::Memory => (to_memory(&mut bytes), PathBuf::new()),
            Self::File(path) => (write_whole(&path, to_file), path),
        };
        match result {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(ErrorDetail::Interrupted.into()),
            Err(source) => Err(ErrorDetail::Io { path, source: Arc::new(source) }.into()),
        }
    }
}
