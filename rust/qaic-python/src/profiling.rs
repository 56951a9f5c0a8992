//! `_core.Profiler` and `_core.Samples`: host measurements of inferences, and their reports.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use qaic_runtime::InferenceSet;
use qaic_runtime::process::clock;
use qaic_runtime::profiling::{
    Collector, DeviceStats, Limits, NameFilter, ProfiledProgram, Profiler, ProgramSamples, Sample,
    SamplingRule, SubscriptionRegistry,
};
use qaic_stats::HostSample;
use qaic_stats::report::DeviceKpi;

use crate::buffers::{BytesView, ReadOnlyBytes};
use crate::errors::{from_stats, record};
use crate::gil::{Detach, deadline_after};
use crate::rt::inference_set::PyQaicInferenceSet;
use crate::rt::program::PyProgram;
use crate::session::PyInferenceSet;
use crate::stats::PyStatsDescriptor;

fn facts_of<'py>(py: Python<'py>, programs: &[ProfiledProgram]) -> PyResult<Bound<'py, PyAny>> {
    record(py, &programs.iter().map(ProfiledProgram::record).collect::<Vec<_>>())
}

/// Returns a filter for names that fully match a compiled regular expression.
fn filter_of(pattern: Py<PyAny>) -> NameFilter {
    Box::new(move |name| {
        let found = Python::attach(|py| {
            let found = pattern.bind(py).call_method1("fullmatch", (name,))?;
            Ok::<_, PyErr>(!found.is_none())
        });
        // Matching a string with a compiled pattern cannot fail; on any other error the program is not added.
        found.unwrap_or(false)
    })
}

/// Samples the inferences of some programs. It does not keep the programs alive.
#[pyclass(frozen, name = "Profiler", module = "qaic._core", weakref)]
pub(crate) struct PyProfiler {
    collector: Arc<Collector>,
}

#[pymethods]
impl PyProfiler {
    /// After each start, the profiler skips the `first` inferences of a program, then takes `count` samples of each
    /// activation, one in every `sampling` inferences. With `device_stats`, it also keeps the stats buffers; `None`
    /// keeps them for programs that were compiled with a stats output. The profiler adds programs that are created
    /// later if the compiled regular expression `pattern` matches their whole name.
    #[new]
    #[pyo3(signature = (
        programs = None, *, first = 0, count = None, sampling = 1, device_stats = Some(false),
        max_samples = None, max_stats_bytes = None, pattern = None,
    ))]
    #[allow(clippy::too_many_arguments)] // keywords
    fn new(
        py: Python<'_>,
        programs: Option<&Bound<'_, PyAny>>,
        first: u64,
        count: Option<u64>,
        sampling: u32,
        device_stats: Option<bool>,
        max_samples: Option<usize>,
        max_stats_bytes: Option<usize>,
        pattern: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let limits = Limits::default();
        let limits = Limits {
            samples: max_samples.unwrap_or(limits.samples),
            stats_bytes: max_stats_bytes.unwrap_or(limits.stats_bytes),
        };
        let device = match device_stats {
            None => DeviceStats::WhereAskedFor,
            Some(false) => DeviceStats::Never,
            Some(true) => DeviceStats::Always,
        };
        let profiler = Profiler::new(SamplingRule { first, count, every: sampling.max(1) }, limits, device);
        let this = Self { collector: Collector::new(profiler, pattern.map(filter_of)) };
        if let Some(programs) = programs {
            for program in programs.try_iter()? {
                this.add(py, &program?)?;
            }
        }
        Ok(this)
    }

    /// Adds a `qaicrt.Program`, a `qaicrt.InferenceSet` or the inference set of a session, and returns its number.
    fn add(&self, py: Python<'_>, program: &Bound<'_, PyAny>) -> PyResult<u32> {
        let registry = registry_of(program)?;
        py.detached(|_| self.collector.add(&registry))
    }

    /// Stops sampling a program; returns false if the program was not sampled.
    fn remove(&self, py: Python<'_>, program: &Bound<'_, PyAny>) -> PyResult<bool> {
        let registry = registry_of(program)?;
        py.detached(|_| self.collector.remove(&registry))
    }

    /// Starts sampling and discards samples that were not fetched. Returns false if the profiler is already running.
    fn start(&self, py: Python<'_>) -> PyResult<bool> {
        py.detached(|_| self.collector.profiler.start())
    }

    /// Stops sampling; inferences in flight produce no samples. Returns false if the profiler is not running.
    fn stop(&self, py: Python<'_>) -> PyResult<bool> {
        py.detached(|_| self.collector.profiler.stop())
    }

    /// Facts about the programs, by program number.
    #[getter]
    fn programs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        facts_of(py, &self.collector.programs())
    }

    /// Waits until every activation has `count` samples; returns false if the profiler stops or `timeout` seconds
    /// pass first.
    ///
    /// Blocking, without the interpreter lock.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Bound<'_, PyAny>>) -> PyResult<bool> {
        let deadline = deadline_after(py, timeout)?;
        py.waiting(deadline, |scope| self.collector.profiler.wait(scope))
    }

    /// Returns the samples since the last call.
    fn drain(&self, py: Python<'_>) -> PyResult<PySamples> {
        py.detached(|_| self.collector.drain()).map(|samples| PySamples { samples })
    }
}

/// Returns the registry in which a program announces its inferences.
fn registry_of(program: &Bound<'_, PyAny>) -> PyResult<Arc<SubscriptionRegistry>> {
    let of_set = |set: &InferenceSet| set.programs.first().map(|program| Arc::clone(&program.subscriptions));
    let registry = if let Ok(program) = program.cast::<PyProgram>() {
        Some(Arc::clone(&program.get().inner().subscriptions))
    } else if let Ok(set) = program.cast::<PyQaicInferenceSet>() {
        of_set(set.get().core().set())
    } else if let Ok(set) = program.cast::<PyInferenceSet>() {
        of_set(set.get().inner())
    } else {
        None
    };
    registry.ok_or_else(|| {
        let found = program.get_type();
        PyTypeError::new_err(format!("found type {found}, expected a Program or an InferenceSet"))
    })
}

/// Samples in the order in which their inferences ended.
#[pyclass(frozen, name = "Samples", module = "qaic._core")]
pub(crate) struct PySamples {
    samples: ProgramSamples,
}

impl PySamples {
    /// Returns the host's times of each inference.
    pub(crate) fn host(&self) -> Vec<HostSample> {
        self.samples.host()
    }

    fn sample(&self, index: usize) -> PyResult<&Sample> {
        let sample = self.samples.collected.samples.get(index);
        sample.ok_or_else(|| PyIndexError::new_err(format!("the number of samples is {}", self.__len__())))
    }

    fn program(&self, program: u32) -> PyResult<&ProfiledProgram> {
        let programs = &self.samples.programs;
        let found = programs.get(program as usize);
        found.ok_or_else(|| PyIndexError::new_err(format!("the number of programs is {}", programs.len())))
    }
}

#[pymethods]
impl PySamples {
    fn __len__(&self) -> usize {
        self.samples.collected.samples.len()
    }

    /// Number of samples that were discarded because the buffer was full.
    #[getter]
    fn dropped(&self) -> u64 {
        self.samples.collected.dropped.values().sum()
    }

    /// Facts about the profiled programs, by program number.
    #[getter]
    fn programs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        facts_of(py, &self.samples.programs)
    }

    /// Returns the samples as a structured numpy array.
    fn times<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut bytes = Vec::with_capacity(self.samples.collected.samples.len() * HostSample::SIZE);
        for sample in self.host() {
            sample.encode(&mut bytes);
        }
        let fields: Vec<_> = HostSample::FIELDS.iter().map(|field| (field.name, field.code)).collect();
        let numpy = py.import("numpy")?;
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", fields)?;
        if bytes.is_empty() {
            return numpy.call_method("empty", (0,), Some(&keywords));
        }
        numpy.call_method("frombuffer", (BytesView::whole(ReadOnlyBytes::from(bytes)),), Some(&keywords))
    }

    /// Returns the stats buffer of a sample; `None` if it has none.
    fn stats<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.sample(index)?.stats.as_ref().map(|stats| PyBytes::new(py, stats)))
    }

    /// (activation, inference, metrics by name) of each sample of a program that has a stats buffer. Metrics without
    /// a measurement are `None`.
    ///
    /// Blocking, without the interpreter lock: decodes the buffers.
    fn device_kpis<'py>(&self, py: Python<'py>, program: u32) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        self.program(program)?;
        let decoded = py.detached(|_| Ok(self.samples.device_kpis(program)))?;
        let decoded = decoded.map_err(|error| from_stats(py, &error, None))?;
        let tuple = |(sample, kpi): (HostSample, Option<DeviceKpi>)| {
            Some((sample.activation, sample.inference, metrics(py, &kpi?)))
        };
        let tuples = decoded.into_iter().filter_map(tuple);
        tuples
            .map(|(activation, inference, metrics)| (activation, inference, metrics?).into_pyobject(py))
            .collect()
    }

    /// Returns the samples of one program, which keeps its number.
    fn of_program(&self, program: u32) -> Self {
        Self { samples: self.samples.of_program(program) }
    }

    /// Returns the operations of a program; `None` for a program without statistics.
    fn descriptor(&self, py: Python<'_>, program: u32) -> PyResult<Option<PyStatsDescriptor>> {
        match &self.program(program)?.image {
            Some(image) => PyStatsDescriptor::of_image(py, image),
            None => Ok(None),
        }
    }

    /// Returns a Chrome trace with the host phases of each inference.
    ///
    /// Blocking, without the interpreter lock.
    fn host_trace<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let json = py.detached(|_| Ok(self.samples.host_trace()))?;
        Ok(PyBytes::new(py, &json))
    }

    /// Returns the latency report of one program. For a program without samples, returns `None`, or only the report
    /// header if `always` is true.
    ///
    /// Blocking, without the interpreter lock.
    #[pyo3(signature = (program = 0, *, always = false))]
    fn latency_report(&self, py: Python<'_>, program: u32, always: bool) -> PyResult<Option<String>> {
        self.program(program)?;
        let written = py.detached(|_| Ok(self.samples.latency_report(program, always)))?;
        written.map_err(|error| from_stats(py, &error, None))
    }
}

fn metrics<'py>(py: Python<'py>, kpi: &DeviceKpi) -> PyResult<Bound<'py, PyDict>> {
    let metrics = PyDict::new(py);
    for (name, value) in DeviceKpi::METRICS {
        metrics.set_item(name, value(kpi))?;
    }
    Ok(metrics)
}

/// Returns the sample clock in nanoseconds, and the UTC time in nanoseconds at its start.
#[pyfunction]
pub(crate) fn profiling_clock() -> (u64, u64) {
    (clock::now_ns(), clock::epoch_utc_ns())
}
