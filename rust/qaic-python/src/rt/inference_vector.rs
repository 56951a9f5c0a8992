//! `qaicrt.InferenceVector`: a buffer for every binding, made and filled from what a container says.
//!
//! The buffers live in a Python list that the caller may change: what it holds when the vector is submitted counts. The
//! C++ interface logs through a global logger here, because no context is at hand; so does this one.

use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PySequence, PyString};
use qaic_mem::ForeignMemoryMut;
use qaic_runtime::binding::{FileInput, RandomBytes, read_inputs};
use qaic_runtime::error::{ErrorDetail, QStatus, RuntimeError};
use qaic_runtime::process::log;

use super::argument::buffer;
use super::status::member;
use super::{call_failed, construction_failed, construction_failed_by, missing};
use crate::buffers::{PyQBuffer, copied, zeroed};
use crate::gil::Detach;

const OBJECT: &str = "InferenceVector";

/// Codes of where the bytes come from.
const ZERO_FILL: u32 = 0;
const RANDOM: u32 = 1;
const FILESET: u32 = 2;

/// A buffer for every binding of a program.
///
/// ``InferenceVector(bufferMappings)`` takes the mappings of a container or the container itself. ``source`` is one of
/// ``RANDOM`` (random bytes in the inputs), ``ZERO_FILL``, or a list of files; an empty list is as ``RANDOM``.
#[pyclass(frozen, name = "InferenceVector", module = "qaicrt")]
pub(crate) struct PyInferenceVector {
    buffers: Py<PyList>,
    slots: Vec<Slot>,
}

/// What a container says about one buffer.
struct Slot {
    name: String,
    len_bytes: usize,
    is_input: bool,
    is_partial: bool,
}

impl PyInferenceVector {
    /// The buffers as the caller left them.
    pub(crate) fn buffers<'py>(&self, py: Python<'py>) -> &Bound<'py, PyList> {
        self.buffers.bind(py)
    }
}

#[pymethods]
impl PyInferenceVector {
    #[classattr]
    #[pyo3(name = "ZERO_FILL")]
    const ZERO_FILL: u32 = ZERO_FILL;
    #[classattr]
    #[pyo3(name = "RANDOM")]
    const RANDOM: u32 = RANDOM;
    #[classattr]
    #[pyo3(name = "FILESET")]
    const FILESET: u32 = FILESET;

    /// Detached while files are read and inputs are filled.
    #[new]
    #[pyo3(signature = (bufferMappings, source = None, files = None))]
    #[allow(non_snake_case)] // the name of the interface
    fn new(
        py: Python<'_>,
        bufferMappings: &Bound<'_, PyAny>,
        source: Option<&Bound<'_, PyAny>>,
        files: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        if bufferMappings.is_none() {
            return Err(missing(py, OBJECT, "bufferMappings"));
        }
        let slots = slots(bufferMappings)?;
        let (code, files) = choice(source, files)?;
        let mut backings = Vec::with_capacity(slots.len());
        for slot in &slots {
            let backing = zeroed(py, slot.len_bytes);
            backings.push(backing.map_err(|error| construction_failed_by(py, OBJECT, error))?);
        }
        match code {
            RANDOM => {
                let inputs = slots.iter().zip(&backings).filter(|(slot, _)| slot.is_input);
                let inputs: Vec<_> =
                    inputs.filter_map(|(_, backing)| ForeignMemoryMut::of_shared(backing)).collect();
                py.detached(|| {
                    let mut random = RandomBytes::default();
                    for mut input in inputs {
                        random.fill(&mut input.as_mut());
                    }
                    Ok(())
                })?;
            }
            FILESET => {
                let contents = read_files(py, &slots, &files)?.map_err(|error| match error.detail() {
                    ErrorDetail::Io { .. } => call_failed(py, error.code(), &error.to_string()),
                    _ => construction_failed(py, OBJECT, error),
                })?;
                for (slot, content) in inputs_of(&slots).zip(&contents) {
                    backings[slot] = copied(py, content)?;
                }
            }
            _ => {}
        }
        let buffers = backings.into_iter().map(PyQBuffer::new);
        let buffers = buffers.map(|buffer| Bound::new(py, buffer)).collect::<PyResult<Vec<_>>>()?;
        Ok(Self { buffers: PyList::new(py, buffers)?.unbind(), slots })
    }

    /// The buffers, inputs then outputs. The list is the vector's own: what is put into it takes effect.
    #[pyo3(name = "getVector")]
    fn vector(&self, py: Python<'_>) -> Py<PyList> {
        self.buffers.clone_ref(py)
    }

    /// Replaces all buffers.
    #[pyo3(name = "setBuffers")]
    fn set_buffers(&self, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.replace(buffers, 0, self.slots.len(), "buffers")
    }

    /// Replaces the buffers of the inputs.
    #[pyo3(name = "setInputBuffers")]
    fn set_input_buffers(&self, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.replace(buffers, 0, self.input_count(), "inputs")
    }

    /// Replaces the buffers of the outputs.
    #[pyo3(name = "setOutputBuffers")]
    fn set_output_buffers(&self, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.replace(buffers, self.input_count(), self.slots.len(), "outputs")
    }

    /// Fills the inputs with the bytes of files, one per input; files beyond them name outputs and are not read.
    ///
    /// Detached while it reads.
    #[pyo3(name = "loadFromFileSet")]
    fn load_from_file_set(&self, py: Python<'_>, files: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let files = paths(files)?;
        if files.is_empty() {
            say(|| "loadFromFileSet was given no files; one per input is expected".to_owned());
            return member(py, QStatus::Inval);
        }
        // Nothing changes unless all of it can.
        let contents = match read_files(py, &self.slots, &files)? {
            Ok(contents) => contents,
            Err(error) => {
                say(|| error.to_string());
                return member(py, QStatus::Error);
            }
        };
        let fresh: PyResult<Vec<_>> =
            contents.iter().map(|content| Bound::new(py, PyQBuffer::new(copied(py, content)?))).collect();
        self.put(&PyList::new(py, fresh?)?, 0, self.input_count())
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.buffers.bind(py).len()
    }

    fn __repr__(&self) -> String {
        let inputs = self.input_count();
        format!("InferenceVector({inputs} inputs, {} outputs)", self.slots.len() - inputs)
    }
}

impl PyInferenceVector {
    fn input_count(&self) -> usize {
        inputs_of(&self.slots).count()
    }

    /// Puts `buffers` in the place of those of the bindings from `first` to `end`.
    fn replace(
        &self,
        buffers: &Bound<'_, PyAny>,
        first: usize,
        end: usize,
        what: &str,
    ) -> PyResult<Py<PyAny>> {
        let py = buffers.py();
        let given = buffers.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        if given.len() != end - first {
            say(|| format!("{} {what} given; {} are expected", given.len(), end - first));
            return member(py, QStatus::Inval);
        }
        for (index, (item, slot)) in given.iter().zip(&self.slots[first..end]).enumerate() {
            let found = buffer(item, index)?.get().memory().len();
            if found != slot.len_bytes {
                log::global().warn(|| {
                    format!(
                        "{OBJECT}: buffer of `{}` has {found} bytes; the largest tensor has {}",
                        slot.name, slot.len_bytes
                    )
                });
            }
        }
        self.put(&PyList::new(py, given)?, first, end)
    }

    fn put(&self, given: &Bound<'_, PyList>, first: usize, end: usize) -> PyResult<Py<PyAny>> {
        let py = given.py();
        let buffers = self.buffers.bind(py);
        // The caller may have shortened the list; then there is no place for these.
        if buffers.len() != self.slots.len() {
            say(|| {
                format!(
                    "the list of buffers has {} entries; {} are expected",
                    buffers.len(),
                    self.slots.len()
                )
            });
            return member(py, QStatus::Inval);
        }
        buffers.set_slice(first, end, given)?;
        member(py, QStatus::Success)
    }
}

/// Writes a line about what a caller did wrong.
fn say(what: impl FnOnce() -> String) {
    log::global().error(|| format!("{OBJECT}: {}", what()));
}

/// Positions of the inputs; they come first.
fn inputs_of(slots: &[Slot]) -> std::ops::Range<usize> {
    0..slots.iter().take_while(|slot| slot.is_input).count()
}

/// Reads mappings, or those of a container.
fn slots(mappings: &Bound<'_, PyAny>) -> PyResult<Vec<Slot>> {
    let list = match mappings.getattr_opt("getBufferMappings")? {
        Some(of_container) => of_container.call0()?,
        None => mappings.clone(),
    };
    let input = mappings.py().import("qaic.rt.enums")?.getattr("BufferIoTypeEnum")?;
    let input = input.getattr("BUFFER_IO_TYPE_INPUT")?;
    let slots: Vec<Slot> = list
        .try_iter()?
        .map(|mapping| {
            let mapping = mapping?;
            Ok(Slot {
                name: mapping.getattr("bufferName")?.extract()?,
                len_bytes: mapping.getattr("size")?.extract()?,
                is_input: mapping.getattr("ioType")?.eq(&input)?,
                is_partial: mapping.getattr("isPartialBufferAllowed")?.extract()?,
            })
        })
        .collect::<PyResult<_>>()?;
    if let Some(late) = slots.iter().skip(inputs_of(&slots).len()).find(|slot| slot.is_input) {
        return Err(PyValueError::new_err(format!(
            "input `{}` follows an output; mappings list the inputs first",
            late.name
        )));
    }
    Ok(slots)
}

/// Where the bytes come from, and the files.
fn choice(
    source: Option<&Bound<'_, PyAny>>,
    files: Option<&Bound<'_, PyAny>>,
) -> PyResult<(u32, Vec<PathBuf>)> {
    let Some(source) = source else {
        let files = files.map(paths).transpose()?.unwrap_or_default();
        return Ok((if files.is_empty() { RANDOM } else { FILESET }, files));
    };
    let Ok(code) = source.extract::<u32>() else {
        let files = paths(source)?;
        return Ok((if files.is_empty() { RANDOM } else { FILESET }, files));
    };
    let files = files.map(paths).transpose()?.unwrap_or_default();
    match code {
        FILESET if files.is_empty() => Ok((RANDOM, files)),
        ZERO_FILL | RANDOM | FILESET => Ok((code, files)),
        _ => Err(PyValueError::new_err(format!(
            "source is {code}; InferenceVector.RANDOM, ZERO_FILL or FILESET is expected, or a list of files"
        ))),
    }
}

fn paths(files: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    if files.is_instance_of::<PyString>() || files.cast::<PySequence>().is_err() {
        let found = files.get_type();
        return Err(PyTypeError::new_err(format!("a list of files is expected, not {}", found.name()?)));
    }
    files.try_iter()?.map(|file| file?.extract()).collect()
}

/// Contents of one file per input.
fn read_files(
    py: Python<'_>,
    slots: &[Slot],
    files: &[PathBuf],
) -> PyResult<Result<Vec<Vec<u8>>, RuntimeError>> {
    let inputs = slots[inputs_of(slots)].iter().map(|slot| FileInput {
        name: &slot.name,
        len_bytes: slot.len_bytes,
        is_partial: slot.is_partial,
    });
    let inputs: Vec<_> = inputs.collect();
    py.detached(|| Ok(read_inputs(&inputs, slots.len(), files)))
}
