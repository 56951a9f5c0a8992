//! `qaicrt.Qpc`: an opened container.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyTuple};
use qaic_runtime::{Image, QStatus};

use super::status::{member, refused};
use super::{call_failed, construction_failed, construction_failed_by, missing};
use crate::buffers::{BytesView, copied_bytes};
use crate::errors::{from_runtime, to_json};
use crate::gil::Detach;
use crate::qpc::inspect;

/// An opened container.
#[pyclass(frozen, name = "Qpc", module = "qaicrt", weakref)]
pub(crate) struct RtQpc {
    pub(crate) image: Arc<Image>,
}

impl RtQpc {
    /// Returns the program info as JSON, for the structures in `qaic.rt.containers`.
    fn info(&self, py: Python<'_>) -> PyResult<String> {
        let info = self.image.program_info();
        to_json(py, &info.map_err(|error| call_failed(py, error.code(), &error.to_string()))?)
    }

    fn structures<'py>(
        &self,
        py: Python<'py>,
        function: &str,
        arguments: impl FnOnce(String) -> PyResult<Bound<'py, PyTuple>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = arguments(self.info(py)?)?;
        py.import("qaic.rt.containers")?.getattr(function)?.call1(arguments)
    }
}

#[pymethods]
impl RtQpc {
    /// Opens the file `qpcFilename` in a directory, or a file, or takes the bytes of a container. With bytes, the
    /// argument `qpcFilename` is their number; further bytes are ignored. The bytes are copied, so `makeCopy` has no
    /// effect.
    ///
    /// Blocking, without the interpreter lock: reads headers and descriptors.
    #[new]
    #[pyo3(signature = (basePath, qpcFilename = None, makeCopy = true))]
    #[allow(non_snake_case)] // the vendor's names
    fn new(
        py: Python<'_>,
        basePath: &Bound<'_, PyAny>,
        qpcFilename: Option<&Bound<'_, PyAny>>,
        makeCopy: bool,
    ) -> PyResult<Self> {
        let _ = makeCopy;
        let failed = |error| construction_failed_by(py, "Qpc", error);
        // A `bytes` argument is data, never a path.
        if !basePath.is_instance_of::<PyBytes>()
            && let Ok(base) = basePath.extract::<PathBuf>()
        {
            let name = qpcFilename.map(|name| {
                name.extract::<PathBuf>().map_err(|_| {
                    PyTypeError::new_err(format!(
                        "qpcFilename is {}; the name of a file in {} is expected",
                        shown(name),
                        base.display()
                    ))
                })
            });
            return open(py, base.clone(), name.transpose()?).map(|image| Self { image }).map_err(failed);
        }
        if basePath.is_none() {
            return Err(missing(py, "Qpc", "basePath"));
        }
        let mut bytes = copied_bytes(basePath).map_err(|_| {
            let what =
                format!("basePath is {}; a path or the bytes of a container are expected", shown(basePath));
            construction_failed(py, "Qpc", refused(what))
        })?;
        if let Some(size) = qpcFilename {
            let given = size.extract::<usize>().map_err(|_| {
                PyTypeError::new_err(format!(
                    "the size of the container is {}; a number of bytes is expected",
                    shown(size)
                ))
            })?;
            if given > bytes.len() {
                let why =
                    format!("the size of the container is {given}, and the buffer has {} bytes", bytes.len());
                return Err(construction_failed(py, "Qpc", refused(why)));
            }
            bytes.truncate(given);
        }
        let image = py.detached(move |_| Image::inspect_bytes(bytes)).map_err(failed)?;
        Ok(Self { image })
    }

    /// (status, serialized `IoDesc`).
    #[pyo3(name = "getIoDescriptor")]
    fn io_descriptor<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        // A container of containers has no bindings of its own.
        match Some(&self.image).filter(|image| image.is_program()).and_then(|image| image.io_desc().ok()) {
            Some(io_desc) => {
                (member(py, QStatus::Success)?, PyBytes::new(py, &io_desc.encode())).into_pyobject(py)
            }
            None => (member(py, QStatus::Inval)?, py.None()).into_pyobject(py),
        }
    }

    /// User buffers of a program: inputs, then outputs.
    #[pyo3(name = "getBufferMappings", signature = (programIndex = 0))]
    #[allow(non_snake_case)]
    fn buffer_mappings<'py>(&self, py: Python<'py>, programIndex: i64) -> PyResult<Bound<'py, PyAny>> {
        self.structures(py, "buffer_mappings", |info| (info, programIndex).into_pyobject(py))
    }

    /// DMA buffers of a program.
    #[pyo3(name = "getBufferMappingsDma", signature = (programIndex = 0))]
    #[allow(non_snake_case)]
    fn buffer_mappings_dma<'py>(&self, py: Python<'py>, programIndex: i64) -> PyResult<Bound<'py, PyAny>> {
        self.structures(py, "transfer_mappings", |info| (info, programIndex).into_pyobject(py))
    }

    /// User buffers with their permitted dims.
    #[pyo3(name = "getBufferMappingsV2")]
    fn buffer_mappings_v2<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let io_desc =
            self.image.io_desc().map_err(|error| call_failed(py, error.code(), &error.to_string()))?;
        let io_desc = to_json(py, &io_desc)?;
        self.structures(py, "buffer_mappings_v2", |info| (info, io_desc).into_pyobject(py))
    }

    /// Programs and constants of the container.
    #[pyo3(name = "getInfo")]
    fn qpc_info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.structures(py, "container_info", |info| (info,).into_pyobject(py))
    }

    /// Size of the container in bytes.
    fn size(&self) -> usize {
        self.image.bytes().len()
    }

    /// Read-only view of the container's bytes, without a copy.
    fn buffer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let view = BytesView::new(&self.image, 0..self.size());
        let view = view.ok_or_else(|| call_failed(py, "internal", "the container lost its bytes"))?;
        PyMemoryView::from(Bound::new(py, view)?.as_any())
    }
}

/// Formats a value for messages.
fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| String::new(), |text| text.to_string())
}

/// Opens the file `base`, or the file `name` in the directory `base`.
fn open(py: Python<'_>, base: PathBuf, name: Option<PathBuf>) -> PyResult<Arc<Image>> {
    let path = Image::locate(base, name).map_err(|error| from_runtime(py, error))?;
    inspect(py, &path, true)
}
