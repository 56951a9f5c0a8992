//! Summary and trace of stats buffers. `qaic.support.atomic_io` renames the files of traces.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use qaic_runtime::profiling::{self, DevicePart};
use qaic_stats::decode::descriptor::OpsDescriptor;
use qaic_stats::{HostTrace, TraceFormat, TraceOptions};

use crate::buffers::{BytesView, ReadOnlyBytes, copied_bytes};
use crate::errors::{Raise, from_stats};
use crate::gil::Detach;
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
    buffer.check(py)?;
    let (buffer, ops) = (&buffer.buffer, ops(descriptor));
    let bytes = py.waiting(None, |scope| profiling::stats_summary(buffer, &ops, cores, scope))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the trace of devices and host in memory that views can share, because it can be large. With `path`, writes
/// it to this file, and returns no bytes.
///
/// Blocking, without the interpreter lock: reads every record.
#[pyfunction]
#[pyo3(signature = (
    parts, *, path = None, format = "json", merge_thread_groups = true, flow_events = false, barrier_events = false,
    cores = None, host_trace = None, host_samples = None,
))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // keyword arguments of the Python function
pub(crate) fn stats_trace<'py>(
    py: Python<'py>,
    parts: Parts<'py>,
    path: Option<PathBuf>,
    format: &str,
    merge_thread_groups: bool,
    flow_events: bool,
    barrier_events: bool,
    cores: Option<Vec<u16>>,
    host_trace: Option<&Bound<'py, PyAny>>,
    host_samples: Option<&PySamples>,
) -> PyResult<BytesView> {
    let format = TraceFormat::from_name(format).ok_or_else(|| {
        let text = format!("a trace has the format json or perfetto, not {format:?}");
        Raise::new(py, "StatsError", "stats.argument", text).build()
    })?;
    for (buffer, ..) in &parts {
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
    let bytes = py.waiting(None, |scope| {
        let options =
            TraceOptions { format, merge_thread_groups, flow_events, barrier_events, cores, observer: None };
        profiling::stats_trace(path, &devices, options, &samples, host_trace.as_ref(), scope)
    })?;
    Ok(BytesView::whole(ReadOnlyBytes::from(bytes)))
}
