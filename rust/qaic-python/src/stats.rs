//! Stats buffers: `_core.StatsBuffer`, `_core.StatsDescriptor`, and writing buffers.

mod buffer;
mod run;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use qaic_runtime::Image;
use qaic_stats::StatsModel;
use qaic_stats::decode::descriptor::{self, Fingerprint};
use qaic_stats::decode::{Kind, ProgramOperations, oqstats};

use crate::buffers::{Exports, copied_bytes};
use crate::errors::{Raise, from_stats, to_json};
use crate::qpc::PyQpc;

pub(crate) use buffer::PyStatsBuffer;

/// The operations of a program.
#[pyclass(frozen, name = "StatsDescriptor", module = "qaic._core")]
pub(crate) struct PyStatsDescriptor {
    pub(crate) program: ProgramOperations,
}

impl PyStatsDescriptor {
    /// Reads the operations of a container's program; `None` for a program without statistics.
    pub(crate) fn of_image(py: Python<'_>, image: &Image) -> PyResult<Option<Self>> {
        let found = ProgramOperations::of_container(&image.container, image.bytes());
        let found = found.map_err(|error| from_stats(py, &error, None))?;
        Ok(found.map(|program| Self { program }))
    }
}

#[pymethods]
impl PyStatsDescriptor {
    /// Reads the operations of a container's program; `None` for a program without statistics.
    #[staticmethod]
    fn of_qpc(py: Python<'_>, qpc: &PyQpc) -> PyResult<Option<Self>> {
        Self::of_image(py, qpc.program(py)?)
    }

    /// Reads the JSON of the segment `opstatsdesc.open`.
    #[staticmethod]
    fn from_json(py: Python<'_>, json: &Bound<'_, PyAny>) -> PyResult<Self> {
        let program = ProgramOperations::from_json(&copied_bytes(json)?);
        Ok(Self { program: program.map_err(|error| from_stats(py, &error, None))? })
    }

    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        to_json(py, &*self.program.ops)
    }

    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.program.fingerprint)
    }

    #[getter]
    fn network(&self) -> &str {
        &self.program.ops.network
    }

    #[getter]
    fn stats_level(&self) -> u32 {
        self.program.ops.stats_level
    }
}

/// Returns (name, numpy type code, elements) of each field of a section's records, in order.
#[pyfunction]
pub(crate) fn stats_record_fields(name: &str) -> PyResult<Vec<(&'static str, &'static str, usize)>> {
    let kind = kind(name)?;
    Ok(kind.fields().iter().map(|field| (field.name, field.code, field.count)).collect())
}

/// Returns the size in bytes of a buffer for these numbers of records by section.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // the binding extracts owned values
pub(crate) fn stats_capacity(py: Python<'_>, counts: Bound<'_, PyDict>) -> PyResult<u64> {
    let mut by_kind = Vec::with_capacity(counts.len());
    for (name, count) in counts {
        by_kind.push((kind(&name.extract::<String>()?)?, count.extract::<usize>()?));
    }
    oqstats::capacity_bytes(&by_kind)
        .ok_or_else(|| argument(py, "the records do not fit in memory".to_owned()))
}

/// Writes a buffer in the open layout.
///
/// Blocking: copies the records.
#[pyfunction]
#[pyo3(signature = (run, sections, fingerprint = None, size = None))]
pub(crate) fn encode_stats<'py>(
    py: Python<'py>,
    run: &Bound<'py, PyDict>,
    sections: &Bound<'py, PyDict>,
    fingerprint: Option<&[u8]>,
    size: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut model = StatsModel::new(run::of_dict(py, run)?);
    for (name, records) in sections {
        let (kind, bytes, stride) = section(py, &name, &records)?;
        model.set(kind, bytes, stride);
    }
    let fingerprint: Fingerprint = match fingerprint {
        None => descriptor::fingerprint(&[]),
        Some(bytes) => bytes
            .try_into()
            .map_err(|_| argument(py, format!("a fingerprint has 16 bytes, not {}", bytes.len())))?,
    };
    let failed = |error| from_stats(py, &error, None);
    let Some(size) = size else {
        return Ok(PyBytes::new(py, &oqstats::encode_to_vec(&model, fingerprint).map_err(failed)?));
    };
    PyBytes::new_with(py, size, |buffer| {
        oqstats::encode(&model, fingerprint, buffer).map(|_| ()).map_err(failed)
    })
}

/// Returns the section kind `name`, a copy of its records, and their stride in bytes.
fn section(
    py: Python<'_>,
    name: &Bound<'_, PyAny>,
    records: &Bound<'_, PyAny>,
) -> PyResult<(Kind, Vec<u8>, usize)> {
    let name: String = name.extract()?;
    let kind = kind(&name)?;
    let mut exports = Exports::with_capacity(1);
    let Some(exported) = exports.take(records, false) else {
        let found = records.get_type().name()?;
        return Err(argument(py, format!("section {name} has type {found}; a contiguous array is expected")));
    };
    // Plain bytes have records of the size that this library writes.
    let stride = exported.argument.item_bytes.max(kind.record_bytes());
    let bytes = exported.memory.to_vec();
    if !bytes.len().is_multiple_of(stride) {
        let (found, size) = (bytes.len(), stride);
        let text = format!("section {name} has {found} bytes, which is not a multiple of {size}");
        return Err(argument(py, text));
    }
    Ok((kind, bytes, stride))
}

/// Returns the section kind with this name.
fn kind(name: &str) -> PyResult<Kind> {
    Kind::from_name(name).ok_or_else(|| PyKeyError::new_err(name.to_owned()))
}

fn argument(py: Python<'_>, message: String) -> PyErr {
    Raise::new(py, "StatsError", "stats.argument", message).build()
}
