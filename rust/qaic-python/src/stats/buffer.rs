//! `_core.StatsBuffer`: records of an inference, as views of the bytes that were read.

use std::path::PathBuf;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use qaic_mem::FileBytes;
use qaic_stats::StatsBuffer;
use qaic_stats::decode::ProgramOperations;

use super::{PyStatsDescriptor, kind, run, section};
use crate::buffers::{BytesView, ReadOnlyBytes, copied_bytes};
use crate::errors::from_stats;
use crate::gil::Detach;

/// The stats buffer of one inference.
#[pyclass(frozen, name = "StatsBuffer", module = "qaic._core")]
pub(crate) struct PyStatsBuffer {
    pub(crate) buffer: StatsBuffer<ReadOnlyBytes>,
    descriptor: Option<Py<PyStatsDescriptor>>,
    path: Option<String>,
}

#[pymethods]
impl PyStatsBuffer {
    /// Opens a file or takes bytes. Buffers other than `bytes` are copied, because they can change.
    #[new]
    #[pyo3(signature = (source, descriptor = None, *, layout = None, any_program = false))]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        descriptor: Option<Py<PyStatsDescriptor>>,
        layout: Option<String>,
        any_program: bool,
    ) -> PyResult<Self> {
        let (bytes, path) = freeze(py, source)?;
        // Runs on this thread: the number of records that are read does not depend on the size.
        let buffer = StatsBuffer::open(bytes, operations(descriptor.as_ref()), layout, any_program);
        let buffer = buffer.map_err(|error| from_stats(py, &error, path.as_deref()))?;
        Ok(Self { buffer, descriptor, path })
    }

    /// Copies the records of an inference, section by section.
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
        let sections = sections.iter().map(|(name, records)| section(py, &name, &records));
        let sections = sections.collect::<PyResult<Vec<_>>>()?;
        let buffer = StatsBuffer::of_sections(run, sections, operations(descriptor.as_ref()), any_program);
        let buffer = buffer.map_err(|error| from_stats(py, &error, None))?;
        Ok(Self { buffer, descriptor, path: None })
    }

    #[getter]
    fn run<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        run::to_dict(py, &self.buffer.run)
    }

    /// (bytes, stride in bytes, number of records) of a section; `None` if the device wrote none.
    fn section(&self, name: &str) -> PyResult<Option<(BytesView, usize, usize)>> {
        let place = self.buffer.place(kind(name)?);
        Ok(place.and_then(|place| {
            Some((BytesView::new(&place.owner, place.range.clone())?, place.stride, place.count()))
        }))
    }

    /// Returns the fields `names` of the records from `start` to `stop`, each as separate bytes.
    ///
    /// Blocking, without the interpreter lock: reads these records once.
    #[allow(clippy::needless_pass_by_value)] // the binding extracts owned values
    fn columns(
        &self,
        py: Python<'_>,
        name: &str,
        names: Vec<String>,
        start: usize,
        stop: usize,
    ) -> PyResult<Vec<BytesView>> {
        let kind = kind(name)?;
        let fields: Vec<&str> = names.iter().map(String::as_str).collect();
        let filled = py.detached(|_| Ok(self.buffer.columns(kind, &fields, start..stop)))?;
        let filled = filled.ok_or_else(|| PyKeyError::new_err(names.clone()))?;
        Ok(filled.into_iter().map(|bytes| BytesView::whole(ReadOnlyBytes::from(bytes))).collect())
    }

    /// Marks the records from `start` to `stop` as not needed soon: the pages of a large mapped file no longer count
    /// as memory of the process. The records stay readable.
    fn advise_unneeded(&self, name: &str, start: usize, stop: usize) -> PyResult<()> {
        self.buffer.let_go_records(kind(name)?, start..stop);
        Ok(())
    }

    #[getter]
    fn meta(&self) -> Option<String> {
        self.buffer.model().meta().map(ToOwned::to_owned)
    }

    /// Returns the warnings about the buffer; complete after `check`.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.buffer.warnings().to_vec()
    }

    #[getter]
    fn descriptor(&self, py: Python<'_>) -> Option<Py<PyStatsDescriptor>> {
        self.descriptor.as_ref().map(|descriptor| descriptor.clone_ref(py))
    }

    #[getter]
    fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Checks every record; later calls return the same result without a check.
    ///
    /// Blocking, without the interpreter lock.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        let checked = py.detached(|_| Ok(self.buffer.check()))?;
        checked.map_err(|error| from_stats(py, error, self.path.as_deref()))
    }
}

fn operations(descriptor: Option<&Py<PyStatsDescriptor>>) -> Option<ProgramOperations> {
    descriptor.map(|descriptor| descriptor.get().program.clone())
}

/// Returns memory that does not change, and the path of its file.
fn freeze(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<(ReadOnlyBytes, Option<String>)> {
    if source.is_instance_of::<PyBytes>() {
        return Ok((ReadOnlyBytes::Python(source.extract::<PyBackedBytes>()?), None));
    }
    if let Ok(path) = source.extract::<PathBuf>() {
        let bytes = py.detached(|_| Ok(FileBytes::open(&path, true)?))?;
        return Ok((ReadOnlyBytes::File(bytes), Some(path.display().to_string())));
    }
    Ok((copied_bytes(source)?.into(), None))
}
