//! `_core.Qpc`: content of a container as views and JSON. `qaic.qpc` has the public classes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use qaic_mem::FileBytes;
use qaic_qpc::{MAGIC, QpcError};
use qaic_runtime::binding::{TensorSpec, tensor_specs};
use qaic_runtime::{ErrorDetail, Image};
use serde_json::json;

use crate::buffers::{BytesView, copied_bytes};
use crate::errors::{Raise, from_qpc, from_qpc_file, from_runtime, to_json};
use crate::gil::Detach;

/// An opened container.
#[pyclass(frozen, name = "Qpc", module = "qaic._core")]
pub(crate) struct PyQpc {
    image: Arc<Image>,
}

impl PyQpc {
    /// Returns the program of the container; an error if the container has one container per device instead.
    pub(crate) fn program(&self, py: Python<'_>) -> PyResult<&Arc<Image>> {
        if self.image.is_program() {
            return Ok(&self.image);
        }
        let message = "this container contains one container per device and is not a program";
        Err(Raise::new(py, "QpcError", "qpc.multi_device", message)
            .hint("qaic.Qpc(...).slices contains them; each is a program")
            .build())
    }

    fn fail(py: Python<'_>) -> impl Fn(QpcError) -> PyErr {
        move |error| from_qpc(py, &error)
    }
}

#[pymethods]
impl PyQpc {
    /// Opens a path, or takes the bytes of a container.
    ///
    /// Blocking, without the interpreter lock: reads headers and descriptors.
    #[new]
    #[pyo3(signature = (source, mmap = true))]
    fn new(py: Python<'_>, source: &Bound<'_, PyAny>, mmap: bool) -> PyResult<Self> {
        if let Ok(path) = source.extract::<PathBuf>() {
            return Ok(Self { image: inspect(py, &path, mmap)? });
        }
        let bytes = copied_bytes(source)?;
        Ok(Self { image: py.detached(move |_| Image::inspect_bytes(bytes))? })
    }

    /// Returns true if the container has a program; otherwise it contains one container per device.
    #[getter]
    fn is_program(&self) -> bool {
        self.image.is_program()
    }

    /// Opens the container that a segment contains, on the same bytes.
    fn inner(&self, py: Python<'_>, name: &str) -> PyResult<Option<Self>> {
        let image = self.image.inner(name).map_err(Self::fail(py))?;
        Ok(image.map(|image| Self { image }))
    }

    /// Returns all defects of the container, including wrong CRCs.
    ///
    /// Blocking, without the interpreter lock: reads every byte.
    fn validate(&self, py: Python<'_>) -> PyResult<Vec<Finding>> {
        let image = Arc::clone(&self.image);
        py.detached(move |_| Ok(findings(image.bytes())))
    }

    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.image.path.clone()
    }

    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let header = &self.image.container.header;
        let fields = PyDict::new(py);
        fields.set_item("magic", MAGIC)?;
        fields.set_item("major_version", header.major_version)?;
        fields.set_item("minor_version", header.minor_version)?;
        fields.set_item("compression_type", header.compression_type)?;
        fields.set_item("size", header.size)?;
        fields.set_item("base", header.base)?;
        fields.set_item("num_images", header.num_images)?;
        fields.set_item("images", header.table_offset)?;
        Ok(fields)
    }

    #[getter]
    fn segments(&self) -> Vec<(String, u64, u64, usize)> {
        let segments = self.image.container.segments.iter();
        segments.map(|s| (s.name.clone(), s.size(), s.offset, s.range.start)).collect()
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.image.container.warnings.iter().map(ToString::to_string).collect()
    }

    #[getter]
    fn batch_size(&self) -> i32 {
        self.image.network.batch_size
    }

    #[getter]
    fn num_cores(&self) -> u32 {
        self.image.network.num_cores
    }

    /// View of the whole container.
    fn content(&self) -> PyResult<BytesView> {
        let all = BytesView::new(&self.image, 0..self.image.bytes().len());
        all.ok_or_else(|| PyKeyError::new_err("content"))
    }

    fn payload(&self, name: &str) -> PyResult<BytesView> {
        let segment = self.image.container.segment(name);
        segment
            .and_then(|segment| BytesView::new(&self.image, segment.range.clone()))
            .ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    fn elf_section(&self, py: Python<'_>, name: &str) -> PyResult<Option<BytesView>> {
        let section = self.image.elf_section(name).map_err(Self::fail(py))?;
        Ok(section.and_then(|range| BytesView::new(&self.image, range)))
    }

    fn tensors(&self, py: Python<'_>) -> PyResult<(Vec<PyTensor>, Vec<PyTensor>)> {
        let tensors = tensor_specs(self.program(py)?).map_err(|error| from_runtime(py, error))?;
        let wrap =
            |list: Vec<_>| list.into_iter().map(|spec| PyTensor::new(py, spec)).collect::<PyResult<_>>();
        Ok((wrap(tensors.inputs)?, wrap(tensors.outputs)?))
    }

    fn network_desc_json(&self, py: Python<'_>) -> PyResult<String> {
        to_json(py, &self.program(py)?.network)
    }

    fn program_info_json(&self, py: Python<'_>) -> PyResult<String> {
        to_json(py, &self.program(py)?.program_info().map_err(Self::fail(py))?)
    }

    fn constants_json(&self, py: Python<'_>) -> PyResult<String> {
        let descriptor = self.program(py)?.constants_desc().map_err(Self::fail(py))?;
        let ranges = self.image.container.constants();
        let static_size = ranges.map(|ranges| ranges.static_part.len());
        to_json(py, &json!({ "descriptor": descriptor, "static_size": static_size }))
    }

    fn metadata_json(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let located = self.program(py)?.metadata().map_err(Self::fail(py))?;
        located.map(|located| to_json(py, &located)).transpose()
    }

    fn io_desc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let io_desc = self.program(py)?.io_desc().map_err(Self::fail(py))?;
        Ok(PyBytes::new(py, &io_desc.encode()))
    }

    fn io_desc_json(&self, py: Python<'_>) -> PyResult<String> {
        let io_desc = self.program(py)?.io_desc().map_err(Self::fail(py))?;
        to_json(py, &io_desc)
    }
}

/// Opens a file; errors about its content include its name.
///
/// Blocking, without the interpreter lock: reads headers and descriptors.
pub(crate) fn inspect(py: Python<'_>, path: &Path, mmap: bool) -> PyResult<Arc<Image>> {
    let opened = py.detached(|_| Ok(Image::inspect(path, mmap)))?;
    opened.map_err(|error| match error.detail() {
        ErrorDetail::Qpc(error) => from_qpc_file(py, error, &path.display().to_string()),
        _ => from_runtime(py, error),
    })
}

/// Description of an input or output as an array of the host program.
#[pyclass(frozen, get_all, name = "Tensor", module = "qaic._core")]
pub(crate) struct PyTensor {
    name: String,
    shape: Py<PyTuple>,
    dtype: &'static str,
    partial: bool,
    visible: bool,
}

impl PyTensor {
    fn new(py: Python<'_>, spec: TensorSpec) -> PyResult<Self> {
        let TensorSpec { name, partial, visible, .. } = spec;
        let shape = PyTuple::new(py, spec.dims)?.unbind();
        Ok(Self { name, shape, dtype: spec.dtype.numpy().1, partial, visible })
    }
}

/// (severity, code, segment, message) of one finding.
type Finding = (String, String, Option<String>, String);

fn findings(bytes: &[u8]) -> Vec<Finding> {
    qaic_qpc::validate(bytes)
        .into_iter()
        .map(|finding| {
            (finding.severity.to_string(), finding.code.to_string(), finding.segment, finding.message)
        })
        .collect()
}

/// Returns all defects of a container, even of one that cannot be opened.
///
/// Blocking, without the interpreter lock: reads every byte.
#[pyfunction]
pub(crate) fn validate_container(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<Vec<Finding>> {
    let bytes = if let Ok(path) = source.extract::<PathBuf>() {
        py.detached(move |_| Ok(FileBytes::open(&path, true)?))?
    } else {
        FileBytes::Owned(copied_bytes(source)?.into_boxed_slice())
    };
    py.detached(move |_| Ok(findings(&bytes)))
}
