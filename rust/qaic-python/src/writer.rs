//! `_core.QpcWriter` and the encoders of the compiler: Python decides the content of a container, Rust writes the
//! bytes.

use std::path::{Path, PathBuf};

use pyo3::exceptions::PyEOFError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use qaic_qpc::metadata::Metadata;
use qaic_qpc::writer::SegmentSpec;
use qaic_qpc::{FileWriter, FileWriterError, NetworkDesc, elf};

use crate::buffers::with_bytes;
use crate::errors::{Raise, from_qpc, os_error};
use crate::gil::Detach;
use crate::payload::PyPayload;

/// Number of bytes that are copied at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Writes a container in pieces, so that constants of any size need no memory.
///
/// The segments and their sizes are fixed at construction. A writer that is dropped before `finish` removes its file.
/// Only one thread may use it.
#[pyclass(name = "QpcWriter", module = "qaic._core")]
pub(crate) struct PyQpcWriter {
    // `None` after `finish`.
    writer: Option<FileWriter>,
}

#[pymethods]
impl PyQpcWriter {
    /// Creates the file `path`, which must not exist. `segments` are (name, size in bytes, offset field) in the order
    /// of the table.
    #[new]
    #[allow(clippy::needless_pass_by_value)] // the binding extracts owned values
    fn new(
        py: Python<'_>,
        path: PathBuf,
        segments: Vec<(String, u64, u64)>,
        alignment: u64,
    ) -> PyResult<Self> {
        let spec = |(name, size, offset)| SegmentSpec { name, size, offset };
        let specs = segments.into_iter().map(spec).collect();
        let writer =
            FileWriter::create(&path, specs, alignment).map_err(|error| refused(py, &path, &error))?;
        Ok(Self { writer: Some(writer) })
    }

    /// Appends bytes to the payload of segment `name`.
    fn write(&mut self, py: Python<'_>, name: &str, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let writer = self.open(py)?;
        with_bytes(data, |source| {
            let blocks: Vec<usize> =
                (0..source.len()).step_by(BLOCK_BYTES).map(|at| BLOCK_BYTES.min(source.len() - at)).collect();
            // The interpreter may change the bytes, so they are copied before their CRC is computed.
            let written = writer.append(name, &blocks, |index, block| {
                let _ = source.read_into(index * BLOCK_BYTES, block);
                Ok(())
            });
            written.map_err(|error| refused(py, &writer.path, &error))
        })?
    }

    /// Appends `count` blocks of a payload, from block `first` on, to segment `name`. Returns the number of bytes.
    ///
    /// Blocking, without the interpreter lock, on all processors.
    fn write_blocks(
        &mut self,
        py: Python<'_>,
        name: &str,
        payload: &Bound<'_, PyPayload>,
        first: usize,
        count: usize,
    ) -> PyResult<usize> {
        let writer = self.open(py)?;
        let payload = payload.get();
        let sizes: Vec<usize> =
            (first..first.saturating_add(count)).map(|at| payload.block_bytes(at)).collect();
        let written = py.detached(|_| {
            Ok(writer.append(name, &sizes, |index, block| payload.fill(first + index, block)))
        })?;
        written.map_err(|error| refused(py, &writer.path, &error))?;
        Ok(sizes.iter().sum())
    }

    /// Returns the CRC-32 of the bytes written to segment `name` so far.
    fn crc32(&mut self, py: Python<'_>, name: &str) -> PyResult<u32> {
        let writer = self.open(py)?;
        writer.crc32(name).map_err(|error| refused(py, &writer.path, &error))
    }

    /// Checks that every segment is complete and closes the file.
    ///
    /// It does not sync the file: a container can be compiled again, and its CRCs detect truncation by a crash.
    fn finish(&mut self, py: Python<'_>) -> PyResult<()> {
        let writer = self.open(py)?;
        writer.finish().map_err(|error| refused(py, &writer.path, &error))?;
        self.writer = None;
        Ok(())
    }
}

impl PyQpcWriter {
    fn open(&mut self, py: Python<'_>) -> PyResult<&mut FileWriter> {
        self.writer.as_mut().ok_or_else(|| {
            Raise::new(py, "StateError", "writer.finished", "the container is already finished").build()
        })
    }
}

fn refused(py: Python<'_>, path: &Path, error: &FileWriterError) -> PyErr {
    match error {
        FileWriterError::Layout(error) => from_qpc(py, error),
        FileWriterError::Io(error) => os_error(py, &path.display().to_string(), error),
        FileWriterError::Source(error) => source_error(py, error),
        _ => misuse(py, error.to_string()),
    }
}

/// Returns the exception for a source that could not be read; `EOFError` if it ended early.
pub(crate) fn source_error(py: Python<'_>, error: &std::io::Error) -> PyErr {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return PyEOFError::new_err("the source of a payload has ended");
    }
    os_error(py, "the source of a payload", error)
}

fn misuse(py: Python<'_>, message: String) -> PyErr {
    Raise::new(py, "QpcError", "writer.misuse", message).build()
}

/// Encodes `networkdesc.bin` from its JSON form.
#[pyfunction]
pub(crate) fn encode_network_desc<'py>(py: Python<'py>, json: &str) -> PyResult<Bound<'py, PyBytes>> {
    let network: NetworkDesc = serde_json::from_str(json).map_err(|error| misuse(py, error.to_string()))?;
    Ok(PyBytes::new(py, &network.encode()))
}

/// Encodes the metadata FlatBuffer from its JSON form.
#[pyfunction]
pub(crate) fn encode_metadata<'py>(py: Python<'py>, json: &str) -> PyResult<Bound<'py, PyBytes>> {
    let metadata: Metadata = serde_json::from_str(json).map_err(|error| misuse(py, error.to_string()))?;
    Ok(PyBytes::new(py, &metadata.encode_flatbuffer()))
}

/// Builds a small ELF file with the given sections.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // the binding extracts owned values
pub(crate) fn encode_elf(py: Python<'_>, sections: Vec<(String, Vec<u8>)>) -> PyResult<Bound<'_, PyBytes>> {
    let borrowed: Vec<(&str, &[u8])> =
        sections.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let bytes = elf::build(&borrowed).map_err(|error| from_qpc(py, &error))?;
    Ok(PyBytes::new(py, &bytes))
}
