//! `_core.StatsBuffer`: an inference's records, as views of the bytes they were read from.

use std::ops::Range;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use qaic_mem::FileBytes;
use qaic_stats::decode::check;
use qaic_stats::decode::columns::columns;
use qaic_stats::decode::layout::{DecodeOptions, Registry};
use qaic_stats::decode::record::Kind;
use qaic_stats::error::StatsError;
use qaic_stats::model::{Run, StatsModel};

use super::{PyStatsDescriptor, kind, run, section};
use crate::buffers::{BytesView, ImmutableBytes, ReadOnlyBytes, copied_bytes};
use crate::errors::from_stats;
use crate::gil::Detach;

/// In this time some ten megabytes of a file are read.
const LET_GO_PERIOD: Duration = Duration::from_millis(5);

static LAYOUTS: LazyLock<Registry> = LazyLock::new(Registry::default);

/// Where the records of a section lie.
struct Place {
    owner: Arc<ReadOnlyBytes>,
    range: Range<usize>,
    stride: usize,
}

/// The stats buffer of one inference.
#[pyclass(frozen, name = "StatsBuffer", module = "qaic._core")]
pub(crate) struct PyStatsBuffer {
    run: Run,
    places: Vec<(Kind, Place)>,
    warnings: Vec<String>,
    descriptor: Option<Py<PyStatsDescriptor>>,
    any_program: bool,
    /// The buffer and the layout asked for; nothing where the records came one by one.
    whole: Option<(Arc<ReadOnlyBytes>, Option<String>)>,
    path: Option<String>,
    checked: OnceLock<Result<Vec<String>, StatsError>>,
}

impl PyStatsBuffer {
    /// The records. Those of operations are unchecked until [`PyStatsBuffer::check`] was called; reading them is safe all
    /// the same.
    pub(crate) fn model(&self) -> StatsModel<'_> {
        let mut model = StatsModel::new(self.run);
        for (kind, place) in &self.places {
            let bytes = place.owner.bytes().get(place.range.clone()).unwrap_or_default();
            model.set(*kind, bytes, place.stride);
        }
        model.warnings.clone_from(&self.warnings);
        model
    }

    /// Says that these bytes are not needed soon, if they are some of a mapped file.
    pub(crate) fn let_go(&self, part: &[u8]) {
        if let Some((owner, _)) = &self.whole
            && let ReadOnlyBytes::File(file) = &**owner
        {
            file.let_go(part);
        }
    }

    /// Reads every record; of a large mapped file, what was read does not stay in memory.
    fn read_records(&self, descriptor: Option<&PyStatsDescriptor>) -> Result<Vec<String>, StatsError> {
        let Some((owner, _)) = &self.whole else { return self.read_whole(descriptor) };
        let ReadOnlyBytes::File(file) = &**owner else { return self.read_whole(descriptor) };
        if !file.is_let_go() {
            return self.read_whole(descriptor);
        }
        thread::scope(|scope| {
            let (done, ended) = mpsc::channel();
            let reader = scope.spawn(move || {
                let result = self.read_whole(descriptor);
                // The receiver is gone only when the scope has ended, which waits for this thread.
                let _ = done.send(());
                result
            });
            while ended.recv_timeout(LET_GO_PERIOD) == Err(RecvTimeoutError::Timeout) {
                file.let_go(file);
            }
            file.let_go(file);
            reader.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn read_whole(&self, descriptor: Option<&PyStatsDescriptor>) -> Result<Vec<String>, StatsError> {
        let program = descriptor.map(PyStatsDescriptor::program);
        if let Some((bytes, layout)) = &self.whole {
            let options = DecodeOptions { any_program: self.any_program, records: true };
            let model = LAYOUTS.decode(bytes.bytes(), program, layout.as_deref(), options)?;
            return Ok(model.warnings);
        }
        let descriptor = program.filter(|_| !self.any_program).map(|program| program.descriptor);
        check::records(&self.model(), descriptor)
    }
}

#[pymethods]
impl PyStatsBuffer {
    /// Opens a file or takes bytes; other buffers than `bytes` are copied, as they may be written to.
    #[new]
    #[pyo3(signature = (source, descriptor = None, *, layout = None, any_program = false))]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        descriptor: Option<Bound<'_, PyStatsDescriptor>>,
        layout: Option<String>,
        any_program: bool,
    ) -> PyResult<Self> {
        let (owner, path) = freeze(py, source)?;
        let owner = Arc::new(owner);
        let program = descriptor.as_ref().map(|descriptor| descriptor.get().program());
        let bytes = owner.bytes();
        let options = DecodeOptions { any_program, records: false };
        // Without the detour through another thread: a few records are looked at, whatever the size.
        let model = LAYOUTS.decode(bytes, program, layout.as_deref(), options);
        let model = model.map_err(|error| from_stats(py, &error, path.as_deref()))?;
        let place = |kind: Kind| {
            let (records, stride) = model.section(kind)?;
            let start = records.as_ptr().addr().checked_sub(bytes.as_ptr().addr());
            let inside = start.filter(|start| start + records.len() <= bytes.len());
            let place = match inside {
                Some(start) => {
                    Place { owner: Arc::clone(&owner), range: start..start + records.len(), stride }
                }
                None => Place {
                    owner: Arc::new(ReadOnlyBytes::Owned(records.into())),
                    range: 0..records.len(),
                    stride,
                },
            };
            Some((kind, place))
        };
        Ok(Self {
            run: model.run,
            places: Kind::ALL.into_iter().filter_map(place).collect(),
            warnings: model.warnings.clone(),
            descriptor: descriptor.map(Bound::unbind),
            any_program,
            whole: Some((Arc::clone(&owner), layout)),
            path,
            checked: OnceLock::new(),
        })
    }

    /// Takes the records of an inference section by section; they are copied.
    #[staticmethod]
    #[pyo3(signature = (run, sections, descriptor = None, *, any_program = false))]
    fn of_sections(
        py: Python<'_>,
        run: &Bound<'_, PyDict>,
        sections: &Bound<'_, PyDict>,
        descriptor: Option<Py<PyStatsDescriptor>>,
        any_program: bool,
    ) -> PyResult<Self> {
        let run = run::of_dict(py, run)?;
        let mut places = Vec::with_capacity(sections.len());
        for (name, records) in sections {
            let (kind, bytes, stride) = section(py, &name, &records)?;
            let range = 0..bytes.len();
            places.push((kind, Place { owner: Arc::new(ReadOnlyBytes::Owned(bytes.into())), range, stride }));
        }
        let (warnings, path, checked) = (Vec::new(), None, OnceLock::new());
        let made = Self { run, places, warnings, descriptor, any_program, whole: None, path, checked };
        check::structure(&made.model()).map_err(|error| from_stats(py, &error, None))?;
        Ok(made)
    }

    #[getter]
    fn run<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        run::to_dict(py, &self.run)
    }

    /// (bytes, bytes from one record to the next, records) of a section; `None` where the device wrote none.
    fn section(&self, name: &str) -> PyResult<Option<(BytesView, usize, usize)>> {
        let kind = kind(name)?;
        let found = self.places.iter().find(|(known, _)| *known == kind);
        Ok(found.and_then(|(_, place)| {
            let count = place.range.len() / place.stride.max(1);
            Some((BytesView::new(&place.owner, place.range.clone())?, place.stride, count))
        }))
    }

    /// Fields of the records from `start` to `stop`, each as bytes of its own, in the order of `names`.
    ///
    /// Blocking, without the interpreter lock: reads these records once.
    #[allow(clippy::needless_pass_by_value)] // the binding's way to take a list
    fn columns(
        &self,
        py: Python<'_>,
        name: &str,
        names: Vec<String>,
        start: usize,
        stop: usize,
    ) -> PyResult<Vec<BytesView>> {
        let kind = kind(name)?;
        let place = self.places.iter().find(|(known, _)| *known == kind).map(|(_, place)| place);
        let (bytes, stride) = place.map_or((&[][..], kind.record_bytes()), |place| {
            (place.owner.bytes().get(place.range.clone()).unwrap_or_default(), place.stride)
        });
        let fields: Vec<&str> = names.iter().map(String::as_str).collect();
        let filled = py.detached(|| Ok(columns(kind, bytes, stride, &fields, start..stop)))?;
        let filled = filled.ok_or_else(|| PyKeyError::new_err(names.clone()))?;
        let views = filled.into_iter().map(|bytes| {
            let range = 0..bytes.len();
            BytesView::new(&Arc::new(ReadOnlyBytes::Owned(bytes.into_boxed_slice())), range)
        });
        Ok(views.flatten().collect())
    }

    /// Says that the records from `start` to `stop` are not needed soon: of a large mapped file, their pages stop counting
    /// as memory of the process. They can be read again.
    #[pyo3(name = "let_go")]
    fn let_go_records(&self, name: &str, start: usize, stop: usize) -> PyResult<()> {
        let kind = kind(name)?;
        if let Some((_, place)) = self.places.iter().find(|(known, _)| *known == kind) {
            let bytes = place.owner.bytes().get(place.range.clone()).unwrap_or_default();
            let stop = stop.saturating_mul(place.stride).min(bytes.len());
            let start = start.saturating_mul(place.stride).min(stop);
            self.let_go(bytes.get(start..stop).unwrap_or_default());
        }
        Ok(())
    }

    #[getter]
    fn meta(&self) -> Option<String> {
        self.model().meta().map(ToOwned::to_owned)
    }

    /// What is odd about the buffer; complete after `check`.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        match self.checked.get() {
            Some(Ok(all)) => all.clone(),
            _ => self.warnings.clone(),
        }
    }

    #[getter]
    fn descriptor(&self, py: Python<'_>) -> Option<Py<PyStatsDescriptor>> {
        self.descriptor.as_ref().map(|descriptor| descriptor.clone_ref(py))
    }

    #[getter]
    fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Reads every record once to check it; later calls know the answer.
    ///
    /// Blocking, without the interpreter lock.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        let descriptor = self.descriptor.as_ref().map(Py::get);
        let result = if let Some(known) = self.checked.get() {
            known
        } else {
            let result = py.detached(|| Ok(self.read_records(descriptor)))?;
            self.checked.get_or_init(|| result)
        };
        result.as_ref().map(|_| ()).map_err(|error| from_stats(py, error, self.path.as_deref()))
    }
}

/// Memory that stays as it is, and the file it is of.
fn freeze(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<(ReadOnlyBytes, Option<String>)> {
    if source.is_instance_of::<PyBytes>() {
        return Ok((ReadOnlyBytes::Python(source.extract::<PyBackedBytes>()?), None));
    }
    if let Ok(path) = source.extract::<PathBuf>() {
        let bytes = py.detached(|| Ok(FileBytes::open(&path, true)?))?;
        return Ok((ReadOnlyBytes::File(bytes), Some(path.display().to_string())));
    }
    Ok((ReadOnlyBytes::Owned(copied_bytes(source)?.into_boxed_slice()), None))
}
