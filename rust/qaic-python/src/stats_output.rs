//! Summary and trace of stats buffers, as text or bytes and as files. Files are written atomically.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::marker::Ungil;
use pyo3::prelude::*;
use qaic_runtime::profiling::{self, DevicePart, OutputTarget};
use qaic_stats::decode::descriptor::OpsDescriptor;
use qaic_stats::{HostTrace, TraceFormat, TraceOptions};

use crate::buffers::{BytesView, ReadOnlyBytes, copied_bytes};
use crate::errors::{Raise, from_stats};
use crate::gil::{Detach, answering_signals};
use crate::profiling::PySamples;
use crate::stats::{PyStatsBuffer, PyStatsDescriptor};

/// (buffer, operations, network, device) for each device of the program.
type Parts<'py> =
    Vec<(Bound<'py, PyStatsBuffer>, Option<Bound<'py, PyStatsDescriptor>>, String, Option<u16>)>;

fn ops(descriptor: Option<&PyStatsDescriptor>) -> Arc<OpsDescriptor> {
    descriptor.map(|descriptor| Arc::clone(&descriptor.program.ops)).unwrap_or_default()
}

/// Returns the summary of an inference.
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
    let bytes = summary(py, OutputTarget::Memory, buffer, descriptor, cores)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes the summary of an inference to a file atomically.
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
    summary(py, OutputTarget::File(path), buffer, descriptor, cores).map(|_| ())
}

fn summary(
    py: Python<'_>,
    target: OutputTarget,
    buffer: &PyStatsBuffer,
    descriptor: Option<&PyStatsDescriptor>,
    cores: Option<Vec<u16>>,
) -> PyResult<Vec<u8>> {
    buffer.check(py)?;
    let (buffer, ops) = (&buffer.buffer, ops(descriptor));
    py.detached(|detached| {
        answering_signals(detached, None, |scope| {
            profiling::stats_summary(target, buffer, &ops, cores, scope)
        })
    })
}

/// Returns the trace of devices and host in memory that views can share, because it can be large.
///
/// Blocking, without the interpreter lock: reads every record.
#[pyfunction]
#[pyo3(signature = (
    parts, *, format = "json", merge_thread_groups = true, flow_events = false, barrier_events = false, cores = None,
    host_trace = None, host_samples = None,
))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // keyword arguments of the Python function
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
    let format = self::format(py, format)?;
    let options =
        || TraceOptions { format, merge_thread_groups, flow_events, barrier_events, cores, observer: None };
    let bytes = trace(py, OutputTarget::Memory, &parts, options, host_trace, host_samples)?;
    Ok(BytesView::whole(ReadOnlyBytes::from(bytes)))
}

/// Writes the trace of devices and host to a file atomically.
///
/// Blocking, without the interpreter lock: reads every record.
#[pyfunction]
#[pyo3(signature = (
    path, parts, *, format = "json", merge_thread_groups = true, flow_events = false, barrier_events = false,
    cores = None, host_trace = None, host_samples = None,
))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // keyword arguments of the Python function
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
    let format = self::format(py, format)?;
    let options =
        || TraceOptions { format, merge_thread_groups, flow_events, barrier_events, cores, observer: None };
    trace(py, OutputTarget::File(path), &parts, options, host_trace, host_samples).map(|_| ())
}

fn format(py: Python<'_>, name: &str) -> PyResult<TraceFormat> {
    TraceFormat::from_name(name).ok_or_else(|| {
        let text = format!("a trace has the format json or perfetto, not {name:?}");
        Raise::new(py, "StatsError", "stats.argument", text).build()
    })
}

fn trace(
    py: Python<'_>,
    target: OutputTarget,
    parts: &Parts<'_>,
    options: impl FnOnce() -> TraceOptions<'static> + Ungil + Send,
    host_trace: Option<&Bound<'_, PyAny>>,
    host_samples: Option<&PySamples>,
) -> PyResult<Vec<u8>> {
    for (buffer, ..) in parts {
        buffer.get().check(py)?;
    }
    let devices = parts.iter().map(|(buffer, descriptor, network, slice)| DevicePart {
        buffer: &buffer.get().buffer,
        ops: ops(descriptor.as_ref().map(Bound::get)),
        network,
        slice: *slice,
    });
    let devices: Vec<_> = devices.collect();
    let samples = host_samples.map(PySamples::host).unwrap_or_default();
    let json = host_trace.map(|json| copied_bytes(json)).transpose()?;
    let host_trace = py.detached(|_| Ok(json.as_deref().map(HostTrace::open).transpose()))?;
    let host_trace = host_trace.map_err(|error| from_stats(py, &error, None))?;
    py.detached(|detached| {
        let host_trace = host_trace.as_ref();
        answering_signals(detached, None, |scope| {
            profiling::stats_trace(target, &devices, options(), &samples, host_trace, scope)
        })
    })
}
