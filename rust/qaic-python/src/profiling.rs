//! `_core.Profiler` and `_core.Samples`: what the host measures of inferences, and the reports made of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use qaic_runtime::error::RuntimeError;
use qaic_runtime::image::Image;
use qaic_runtime::inference_set::InferenceSet;
use qaic_runtime::process::{Deadline, clock};
use qaic_runtime::profiling::observer::{self, ProgramObserver};
use qaic_runtime::profiling::{
    Collected, DeviceStats, Limits, Profiler, Sample, SamplingRule, SubscriptionRegistry,
};
use qaic_stats::decode::descriptor::{Fingerprint, OpsDescriptor};
use qaic_stats::decode::layout::{DecodeOptions, Program, Registry};
use qaic_stats::error::StatsError;
use qaic_stats::report::kpi::DeviceKpi;
use qaic_stats::report::summary::{SummaryOptions, write_summary};
use qaic_stats::report::{ProgramFacts, write_latency_report};
use qaic_stats::sample::HostSample;
use qaic_stats::trace::write_host_trace;
use qaic_stats::trace::{HostSide, Part, TraceOptions, write_trace};

use crate::buffers::{BytesView, ReadOnlyBytes};
use crate::errors::from_stats;
use crate::gil::{Detach, deadline_after, signal_pending};
use crate::rt::inference_set::PyQaicInferenceSet;
use crate::rt::program::PyProgram;
use crate::session::PyInferenceSet;
use crate::stats::{PyStatsBuffer, PyStatsDescriptor};

/// What is kept of a program for its reports, after it is gone.
#[derive(Clone, Debug)]
struct Known {
    facts: ProgramFacts,
    has_stats: bool,
    // What explains stats buffers, until the last of a program that is gone was fetched: it keeps a file mapped.
    image: Option<Arc<Image>>,
    // Dead when the program is gone or was removed.
    registry: Weak<SubscriptionRegistry>,
}

impl Known {
    fn is_of(&self, registry: &Arc<SubscriptionRegistry>) -> bool {
        std::ptr::eq(self.registry.as_ptr(), Arc::as_ptr(registry))
    }

    /// Whether there can be more samples of it.
    fn is_profiled(&self) -> bool {
        self.registry.strong_count() > 0
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = PyDict::new(py);
        facts.set_item("network", &self.facts.network)?;
        facts.set_item("activations", self.facts.activations)?;
        facts.set_item("set_size", self.facts.set_size)?;
        facts.set_item("cores", self.facts.cores)?;
        facts.set_item("batch", self.facts.batch)?;
        facts.set_item("has_stats", self.has_stats)?;
        facts.set_item("is_profiled", self.is_profiled())?;
        Ok(facts)
    }
}

/// Takes samples of programs, and knows what the reports say of these.
#[derive(Debug)]
struct Collector {
    profiler: Arc<Profiler>,
    known: Mutex<Vec<Known>>,
    // Programs whose whole name matches are added when they are made.
    pattern: Option<Py<PyAny>>,
}

impl Collector {
    fn add(&self, registry: &Arc<SubscriptionRegistry>) -> Result<u32, RuntimeError> {
        let mut known = self.known();
        let number = self.profiler.add(registry)?;
        if number as usize == known.len() {
            let network = registry.image().network();
            let facts = ProgramFacts {
                number,
                network: network.network_name.clone(),
                activations: registry.activations(),
                set_size: registry.set_size(),
                cores: network.num_cores,
                batch: u32::try_from(network.batch_size).unwrap_or(0).max(1),
                dropped: 0,
            };
            known.push(Known {
                facts,
                has_stats: registry.has_stats(),
                image: Some(Arc::clone(registry.image())),
                registry: Arc::downgrade(registry),
            });
        }
        Ok(number)
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        // Only ever grows, by one step.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgramObserver for Collector {
    fn created(&self, program: &Arc<SubscriptionRegistry>) {
        let Some(pattern) = &self.pattern else { return };
        let matches = Python::attach(|py| {
            let found = pattern.bind(py).call_method1("fullmatch", (program.name(),))?;
            Ok::<_, PyErr>(!found.is_none())
        });
        // A pattern that was compiled does not fail on a string; without its answer there is nothing to add.
        if matches.unwrap_or(false) {
            let _ = self.add(program);
        }
    }
}

/// Takes samples of the inferences of some programs. It does not keep the programs.
#[pyclass(frozen, name = "Profiler", module = "qaic._core", weakref)]
pub(crate) struct PyProfiler {
    collector: Arc<Collector>,
}

#[pymethods]
impl PyProfiler {
    /// `first` inferences of a program are let pass after each start, then `count` of each activation are taken, one in
    /// `sampling`. With `device_stats` the stats buffers are kept as well; `None` keeps those of programs that were compiled with an
    /// output for them. `pattern`: a compiled regular expression; a program
    /// that is made from now on and whose whole name matches is added.
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
        let listens = pattern.is_some();
        let collector = Arc::new(Collector { profiler, known: Mutex::default(), pattern });
        let this = Self { collector };
        if let Some(programs) = programs {
            for program in programs.try_iter()? {
                this.add(py, &program?)?;
            }
        }
        if listens {
            let listener: Arc<dyn ProgramObserver> = Arc::clone(&this.collector) as Arc<dyn ProgramObserver>;
            observer::register(Arc::downgrade(&listener));
        }
        Ok(this)
    }

    /// Adds a `qaicrt.Program`, a `qaicrt.InferenceSet` or the inference set of a session, and returns its number.
    fn add(&self, py: Python<'_>, program: &Bound<'_, PyAny>) -> PyResult<u32> {
        let registry = registry_of(program)?;
        py.detached(|| self.collector.add(&registry))
    }

    /// Takes no more samples of a program; whether it was there.
    fn remove(&self, py: Python<'_>, program: &Bound<'_, PyAny>) -> PyResult<bool> {
        let registry = registry_of(program)?;
        py.detached(|| {
            let was_there = self.collector.profiler.remove(&registry)?;
            for known in self.collector.known().iter_mut().filter(|known| known.is_of(&registry)) {
                known.registry = Weak::new();
            }
            Ok(was_there)
        })
    }

    /// Begins; forgets what was not fetched. False when it runs.
    fn start(&self, py: Python<'_>) -> PyResult<bool> {
        py.detached(|| self.collector.profiler.start())
    }

    /// Ends; inferences under way are no samples. False when it does not run.
    fn stop(&self, py: Python<'_>) -> PyResult<bool> {
        py.detached(|| self.collector.profiler.stop())
    }

    /// Facts about the programs, by their numbers.
    #[getter]
    fn programs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.collector.known().clone().iter().map(|known| known.to_dict(py)).collect()
    }

    #[getter]
    fn is_running(&self) -> bool {
        self.collector.profiler.is_running()
    }

    /// Whether every activation has given `count` samples.
    ///
    /// Blocking, without the interpreter lock: until then, until it is stopped, or for `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = deadline_after(py, timeout)?.map(Deadline::at);
        py.detached(|| self.collector.profiler.wait(deadline, signal_pending))
    }

    /// The samples since the last call.
    fn drain(&self, py: Python<'_>) -> PyResult<PySamples> {
        // Asked before: of a program that is gone by now, no sample comes later.
        let gone: Vec<bool> = self.collector.known().iter().map(|known| !known.is_profiled()).collect();
        let collected = py.detached(|| self.collector.profiler.drain())?;
        let mut all = self.collector.known();
        let known = all.clone();
        for (known, _) in all.iter_mut().zip(gone).filter(|(_, is_gone)| *is_gone) {
            known.image = None;
        }
        drop(all);
        Ok(PySamples { collected, known })
    }
}

/// Where the inferences of a program are announced.
fn registry_of(program: &Bound<'_, PyAny>) -> PyResult<Arc<SubscriptionRegistry>> {
    let of_set =
        |set: &InferenceSet| set.programs().first().map(|program| Arc::clone(program.subscriptions()));
    let registry = if let Ok(program) = program.cast::<PyProgram>() {
        Some(Arc::clone(program.get().inner().subscriptions()))
    } else if let Ok(set) = program.cast::<PyQaicInferenceSet>() {
        of_set(set.get().core().set())
    } else if let Ok(set) = program.cast::<PyInferenceSet>() {
        of_set(set.get().inner())
    } else {
        None
    };
    registry.ok_or_else(|| {
        let found = program.get_type();
        PyTypeError::new_err(format!("a {found} cannot be profiled; a Program or an InferenceSet is needed"))
    })
}

/// Samples in the order in which their inferences ended.
#[pyclass(frozen, name = "Samples", module = "qaic._core")]
pub(crate) struct PySamples {
    collected: Collected,
    known: Vec<Known>,
}

impl PySamples {
    /// What the host saw of each inference.
    pub(crate) fn host(&self) -> Vec<HostSample> {
        self.collected.samples.iter().map(|sample| sample.host).collect()
    }

    fn sample(&self, index: usize) -> PyResult<&Sample> {
        let sample = self.collected.samples.get(index);
        sample.ok_or_else(|| PyIndexError::new_err(format!("there are {} samples", self.__len__())))
    }

    fn known(&self, program: u32) -> PyResult<&Known> {
        let found = self.known.get(program as usize);
        found.ok_or_else(|| PyIndexError::new_err(format!("there are {} programs", self.known.len())))
    }
}

#[pymethods]
impl PySamples {
    fn __len__(&self) -> usize {
        self.collected.samples.len()
    }

    /// Samples that there was no room for.
    #[getter]
    fn dropped(&self) -> u64 {
        self.collected.dropped.values().sum()
    }

    /// Facts about the profiled programs, by their numbers.
    #[getter]
    fn programs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.known.iter().map(|known| known.to_dict(py)).collect()
    }

    /// The samples as a numpy array with a field for each figure.
    fn times<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut bytes = Vec::with_capacity(self.collected.samples.len() * HostSample::SIZE);
        for sample in self.host() {
            sample.encode(&mut bytes);
        }
        let end = bytes.len();
        let owner = Arc::new(ReadOnlyBytes::Owned(bytes.into()));
        let fields: Vec<_> = HostSample::FIELDS.iter().map(|field| (field.name, field.code)).collect();
        let numpy = py.import("numpy")?;
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", fields)?;
        let Some(view) = BytesView::new(&owner, 0..end).filter(|_| end > 0) else {
            return numpy.call_method("empty", (0,), Some(&keywords));
        };
        numpy.call_method("frombuffer", (view,), Some(&keywords))
    }

    /// The device's stats buffer of a sample; `None` where there is none.
    fn stats<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.sample(index)?.stats.as_ref().map(|stats| PyBytes::new(py, stats)))
    }

    /// (activation, inference, metrics by name) of the samples of a program that have a stats buffer; a metric that was not
    /// measured is `None`.
    ///
    /// Blocking, without the interpreter lock: decodes the buffers.
    fn device_kpis<'py>(&self, py: Python<'py>, program: u32) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let known = self.known(program)?.clone();
        let decoded = py.detached(|| Ok(self.decoded(program, &known)))?;
        let decoded = decoded.map_err(|error| from_stats(py, &error, None))?;
        let tuple = |(sample, kpi): (HostSample, Option<DeviceKpi>)| {
            Some((sample.activation, sample.inference, metrics(py, &kpi?)))
        };
        let tuples = decoded.into_iter().filter_map(tuple);
        tuples
            .map(|(activation, inference, metrics)| (activation, inference, metrics?).into_pyobject(py))
            .collect()
    }

    /// The samples of one program, which keeps its number.
    fn of_program(&self, program: u32) -> Self {
        Self { collected: self.collected.of_program(program), known: self.known.clone() }
    }

    /// The operations of a program; `None` of a program without statistics.
    fn descriptor(&self, py: Python<'_>, program: u32) -> PyResult<Option<PyStatsDescriptor>> {
        match &self.known(program)?.image {
            Some(image) => PyStatsDescriptor::of_image(py, image),
            None => Ok(None),
        }
    }

    /// A Chrome trace of the host: what each inference spent its time on.
    ///
    /// Blocking, without the interpreter lock.
    fn host_trace<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let json = py.detached(|| {
            let mut json = Vec::new();
            // Writing to memory does not fail.
            let _ = write_host_trace(&mut json, &self.host(), clock::epoch_utc_ns());
            Ok(json)
        })?;
        Ok(PyBytes::new(py, &json))
    }

    /// What the device measured of a sample, as the text of a summary, or as a Chrome trace; `None` where there is no stats
    /// buffer.
    ///
    /// Blocking, without the interpreter lock.
    fn op_stats<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        as_trace: bool,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let sample = self.sample(index)?;
        let image = &self.known(sample.host.program)?.image;
        let (Some(stats), Some(image)) = (&sample.stats, image) else { return Ok(None) };
        let written = py.detached(|| Ok(op_stats(stats, image, as_trace)))?;
        let written = written.map_err(|error| from_stats(py, &error, None))?;
        Ok(written.map(|text| PyBytes::new(py, &text)))
    }

    /// The latency report of one program; of one without samples `None`, or its head with `always`.
    ///
    /// Blocking, without the interpreter lock.
    #[pyo3(signature = (program = 0, *, always = false))]
    fn latency_report(&self, py: Python<'_>, program: u32, always: bool) -> PyResult<Option<String>> {
        let known = self.known(program)?.clone();
        let written = py.detached(|| {
            Ok(self.decoded(program, &known).map(|rows| {
                if rows.is_empty() && !always {
                    return None;
                }
                let dropped = self.collected.dropped.get(&program).copied().unwrap_or(0);
                let facts = ProgramFacts { dropped, ..known.facts };
                let mut text = Vec::new();
                // Writing to memory does not fail, and the text is made of strings.
                let _ = write_latency_report(&mut text, &facts, rows);
                Some(String::from_utf8_lossy(&text).into_owned())
            }))
        })?;
        written.map_err(|error| from_stats(py, &error, None))
    }
}

impl PySamples {
    /// The samples of a program, and what their buffers say.
    fn decoded(
        &self,
        program: u32,
        known: &Known,
    ) -> Result<Vec<(HostSample, Option<DeviceKpi>)>, StatsError> {
        let samples = || self.collected.samples.iter().filter(|sample| sample.host.program == program);
        let mut of_container: Option<(OpsDescriptor, Fingerprint)> = None;
        if let Some(image) = known.image.as_ref().filter(|_| samples().any(|sample| sample.stats.is_some())) {
            of_container = OpsDescriptor::of_container(image.container(), image.bytes())?;
        }
        let layouts = Registry::default();
        samples()
            .map(|sample| {
                let Some(stats) = &sample.stats else { return Ok((sample.host, None)) };
                let asked = of_container.as_ref();
                let program =
                    asked.map(|(descriptor, fingerprint)| Program { descriptor, fingerprint: *fingerprint });
                // Only its few records of threads and ports are read.
                let options = DecodeOptions { any_program: false, records: false };
                let model = layouts.decode(stats, program, None, options)?;
                Ok((sample.host, DeviceKpi::of_model(&model)))
            })
            .collect()
    }
}

/// The summary or the trace of a stats buffer; `None` of a program without statistics.
fn op_stats(stats: &[u8], image: &Image, as_trace: bool) -> Result<Option<Vec<u8>>, StatsError> {
    let Some((descriptor, fingerprint)) = OpsDescriptor::of_container(image.container(), image.bytes())?
    else {
        return Ok(None);
    };
    let program = Some(Program { descriptor: &descriptor, fingerprint });
    let options = DecodeOptions { any_program: false, records: true };
    let layouts = Registry::default();
    let model = layouts.decode(stats, program, None, options)?;
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = if as_trace {
        let part = Part {
            model: &model,
            descriptor: &descriptor,
            network: &image.network().network_name,
            slice: None,
        };
        write_trace(&mut text, &[part], &HostSide::default(), &TraceOptions::default())
    } else {
        write_summary(&mut text, &model, &descriptor, &SummaryOptions::default())
    };
    Ok(Some(text))
}

fn metrics<'py>(py: Python<'py>, kpi: &DeviceKpi) -> PyResult<Bound<'py, PyDict>> {
    let metrics = PyDict::new(py);
    for (name, value) in DeviceKpi::METRICS {
        metrics.set_item(name, value(kpi))?;
    }
    Ok(metrics)
}

/// The metrics of a stats buffer by name, `None` what was not measured; `None` of a buffer without cores and threads.
#[pyfunction]
pub(crate) fn device_kpi<'py>(
    py: Python<'py>,
    buffer: &PyStatsBuffer,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    DeviceKpi::of_model(&buffer.model()).map(|kpi| metrics(py, &kpi)).transpose()
}

/// Nanoseconds of the clock that samples are measured with, and UTC nanoseconds at its begin.
#[pyfunction]
pub(crate) fn profiling_clock() -> (u64, u64) {
    (clock::now_ns(), clock::epoch_utc_ns())
}
