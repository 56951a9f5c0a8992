//! `_core.QpcWriter` and the encoders the compiler calls: Python decides what a program holds, Rust knows the bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use qaic_qpc::crc::Crc32;
use qaic_qpc::elf;
use qaic_qpc::metadata::Metadata;
use qaic_qpc::network_desc::NetworkDesc;
use qaic_qpc::writer::{Layout, SegmentSpec};

use crate::buffers::with_bytes;
use crate::errors::{Raise, from_qpc, os_error};

/// Bytes copied out of a Python object at a time, so that its memory is never borrowed while it may change.
const CHUNK_BYTES: usize = 1 << 20;

/// Writes a container piece by piece, so that constants of any size pass through without being held.
///
/// The layout (which segments, of which size) is fixed at the start. A writer dropped before `finish` removes its file.
#[pyclass(frozen, name = "QpcWriter", module = "qaic._core")]
pub(crate) struct PyQpcWriter {
    state: Mutex<Option<State>>,
}

struct State {
    path: PathBuf,
    file: File,
    segments: Vec<Segment>,
    total: u64,
    finished: bool,
}

struct Segment {
    name: String,
    start: u64,
    size: u64,
    written: u64,
    crc: Crc32,
}

impl Drop for State {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing half-written may stay; a failure of that is not reported.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[pymethods]
impl PyQpcWriter {
    /// `segments` are (name, size in bytes, offset field) in the order of the table. `path` must not exist.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        segments: Vec<(String, u64, u64)>,
        alignment: u64,
    ) -> PyResult<Self> {
        let specs: Vec<SegmentSpec> =
            segments.into_iter().map(|(name, size, offset)| SegmentSpec { name, size, offset }).collect();
        let layout = Layout::in_memory(&specs, alignment).map_err(|error| from_qpc(py, &error))?;
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let mut file = file.map_err(|error| io_error(py, &path, &error))?;
        let prepared = file.write_all(&layout.head).and_then(|()| file.set_len(layout.total_size));
        let segments = specs
            .into_iter()
            .zip(&layout.payload_starts)
            .map(|(spec, &start)| Segment {
                name: spec.name,
                start,
                size: spec.size,
                written: 0,
                crc: Crc32::new(),
            })
            .collect();
        let state = State { path, file, segments, total: layout.total_size, finished: false };
        prepared.map_err(|error| io_error(py, &state.path, &error))?;
        Ok(Self { state: Mutex::new(Some(state)) })
    }

    /// Appends bytes to the payload of segment `name`.
    fn write(&self, py: Python<'_>, name: &str, data: &Bound<'_, PyAny>) -> PyResult<()> {
        with_bytes(data, |source| {
            let mut guard = self.lock();
            let state = open_state(py, &mut guard)?;
            let path = state.path.clone();
            let segment = state.segment(py, name)?;
            let len = source.len() as u64;
            if len > segment.size - segment.written {
                return Err(misuse(
                    py,
                    format!(
                        "segment {name} has room for {} more bytes, {len} were given",
                        segment.size - segment.written
                    ),
                ));
            }
            let position = segment.start + segment.written;
            segment.written += len;
            let mut chunk = vec![0_u8; source.len().min(CHUNK_BYTES)];
            let mut failed = state.file.seek(SeekFrom::Start(position)).err();
            let mut done = 0;
            while done < source.len() && failed.is_none() {
                let count = chunk.len().min(source.len() - done);
                // In range by construction.
                let _ = source.read_into(done, &mut chunk[..count]);
                if let Ok(segment) = state.segment(py, name) {
                    segment.crc.update(&chunk[..count]);
                }
                failed = state.file.write_all(&chunk[..count]).err();
                done += count;
            }
            failed.map_or(Ok(()), |error| Err(io_error(py, &path, &error)))
        })?
    }

    /// CRC-32 of what was written to segment `name` so far.
    fn crc32(&self, py: Python<'_>, name: &str) -> PyResult<u32> {
        let mut guard = self.lock();
        Ok(open_state(py, &mut guard)?.segment(py, name)?.crc.value())
    }

    /// Checks that every segment is complete and closes the file.
    ///
    /// It does not wait for the disk: a container can be compiled again, and CRCs show if one was cut off by a crash.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let mut guard = self.lock();
        let state = open_state(py, &mut guard)?;
        if let Some(short) = state.segments.iter().find(|segment| segment.written != segment.size) {
            return Err(misuse(
                py,
                format!("segment {} has {} of {} bytes", short.name, short.written, short.size),
            ));
        }
        match state.file.metadata().map(|metadata| metadata.len()) {
            Ok(len) if len == state.total => {
                state.finished = true;
                *guard = None;
                Ok(())
            }
            Ok(len) => Err(misuse(py, format!("the file has {len} bytes, {} were planned", state.total))),
            Err(error) => Err(io_error(py, &state.path, &error)),
        }
    }
}

impl PyQpcWriter {
    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn segment(&mut self, py: Python<'_>, name: &str) -> PyResult<&mut Segment> {
        self.segments
            .iter_mut()
            .find(|segment| segment.name == name)
            .ok_or_else(|| misuse(py, format!("the container has no segment {name}")))
    }
}

fn open_state<'a>(py: Python<'_>, guard: &'a mut MutexGuard<'_, Option<State>>) -> PyResult<&'a mut State> {
    guard.as_mut().ok_or_else(|| {
        Raise::new(py, "StateError", "writer.finished", "the container is already finished").build()
    })
}

fn misuse(py: Python<'_>, message: String) -> PyErr {
    Raise::new(py, "QpcError", "writer.misuse", message).build()
}

fn io_error(py: Python<'_>, path: &Path, error: &std::io::Error) -> PyErr {
    os_error(py, &path.display().to_string(), error)
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

/// Builds a small ELF file with these sections.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // what the binding extracts
pub(crate) fn encode_elf(py: Python<'_>, sections: Vec<(String, Vec<u8>)>) -> PyResult<Bound<'_, PyBytes>> {
    let borrowed: Vec<(&str, &[u8])> =
        sections.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let bytes = elf::build(&borrowed).map_err(|error| from_qpc(py, &error))?;
    Ok(PyBytes::new(py, &bytes))
}
