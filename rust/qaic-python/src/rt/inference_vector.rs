//! `qaicrt.InferenceVector`: a buffer for every binding, allocated and filled from the description in a container.
//!
//! The buffers are in a Python list that the caller may change; a submission uses the list at that time. As in the
//! C++ interface, errors go to a global logger, because a vector has no context.

use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PySequence, PyString};
use qaic_mem::ForeignMemoryMut;
use qaic_qpc::counted;
use qaic_runtime::binding::{BufferSlot, BufferSlots, InputSource, RandomBytes};
use qaic_runtime::process::log;
use qaic_runtime::request::Part;
use qaic_runtime::{ErrorDetail, QStatus};

use super::argument::buffer;
use super::status::member;
use super::{call_failed, construction_failed, construction_failed_by, missing};
use crate::buffers::{PyQBuffer, copied, zeroed};
use crate::gil::Detach;

const OBJECT: &str = "InferenceVector";

/// A buffer for every binding of a program.
///
/// ``InferenceVector(bufferMappings)`` takes the mappings of a container or the container itself. ``source`` is
/// ``RANDOM`` (random bytes in the inputs), ``ZERO_FILL``, or a list of files; an empty list means ``RANDOM``.
#[pyclass(frozen, name = "InferenceVector", module = "qaicrt")]
pub(crate) struct PyInferenceVector {
    buffers: Py<PyList>,
    slots: BufferSlots,
}

impl PyInferenceVector {
    /// Returns the buffers, including changes by the caller.
    pub(crate) fn buffers<'py>(&self, py: Python<'py>) -> &Bound<'py, PyList> {
        self.buffers.bind(py)
    }
}

#[pymethods]
impl PyInferenceVector {
    #[classattr]
    #[pyo3(name = "ZERO_FILL")]
    const ZERO_FILL: u32 = InputSource::ZeroFill as u32;
    #[classattr]
    #[pyo3(name = "RANDOM")]
    const RANDOM: u32 = InputSource::Random as u32;
    #[classattr]
    #[pyo3(name = "FILESET")]
    const FILESET: u32 = InputSource::Files as u32;

    /// Reads files and fills inputs without the interpreter lock.
    #[new]
    #[pyo3(signature = (bufferMappings, source = None, files = None))]
    #[allow(non_snake_case)] // the vendor's name
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
        let (source, files) = choice(source, files)?;
        let backings = slots.slots.iter().map(|slot| zeroed(py, slot.len_bytes));
        let backings = backings.collect::<PyResult<Vec<_>>>();
        let mut backings = backings.map_err(|error| construction_failed_by(py, OBJECT, error))?;
        match source {
            InputSource::ZeroFill => {}
            InputSource::Random => {
                let inputs =
                    backings[slots.range(Part::Inputs)].iter().filter_map(ForeignMemoryMut::of_shared);
                let inputs: Vec<_> = inputs.collect();
                py.detached(|_| {
                    let mut random = RandomBytes::default();
                    for mut input in inputs {
                        random.fill(&mut input.as_mut());
                    }
                    Ok(())
                })?;
            }
            InputSource::Files => {
                let contents = py.detached(|_| Ok(slots.read_inputs(&files)))?;
                let contents = contents.map_err(|error| match error.detail() {
                    ErrorDetail::Io { .. } => call_failed(py, error.code(), &error.to_string()),
                    _ => construction_failed(py, OBJECT, error),
                })?;
                for (backing, content) in backings.iter_mut().zip(&contents) {
                    *backing = copied(py, content)?;
                }
            }
        }
        let buffers = backings.into_iter().map(PyQBuffer::new);
        let buffers = buffers.map(|buffer| Bound::new(py, buffer)).collect::<PyResult<Vec<_>>>()?;
        Ok(Self { buffers: PyList::new(py, buffers)?.unbind(), slots })
    }

    /// The buffers, inputs then outputs. The list is the vector's own, so changes to it take effect.
    #[pyo3(name = "getVector")]
    fn vector(&self, py: Python<'_>) -> Py<PyList> {
        self.buffers.clone_ref(py)
    }

    /// Replaces all buffers.
    #[pyo3(name = "setBuffers")]
    fn set_buffers(&self, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.replace(buffers, Part::All)
    }

    /// Replaces the buffers of the inputs.
    #[pyo3(name = "setInputBuffers")]
    fn set_input_buffers(&self, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.replace(buffers, Part::Inputs)
    }

    /// Replaces the buffers of the outputs.
    #[pyo3(name = "setOutputBuffers")]
    fn set_output_buffers(&self, buffers: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.replace(buffers, Part::Outputs)
    }

    /// Fills the inputs with the bytes of files, one per input. Further files name outputs and are not read.
    ///
    /// Reads without the interpreter lock.
    #[pyo3(name = "loadFromFileSet")]
    fn load_from_file_set(&self, py: Python<'_>, files: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let files = paths(files)?;
        if files.is_empty() {
            return refuse(py, "loadFromFileSet was given no files; one per input is expected");
        }
        // Reads all files first: if one fails, no input changes.
        let contents = match py.detached(|_| Ok(self.slots.read_inputs(&files)))? {
            Ok(contents) => contents,
            Err(error) => {
                say(&error.to_string());
                return member(py, QStatus::Error);
            }
        };
        let fresh: PyResult<Vec<_>> =
            contents.iter().map(|content| Bound::new(py, PyQBuffer::new(copied(py, content)?))).collect();
        self.put(&PyList::new(py, fresh?)?, Part::Inputs)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.buffers.bind(py).len()
    }

    fn __repr__(&self) -> String {
        let [inputs, outputs] = [Part::Inputs, Part::Outputs].map(|part| self.slots.range(part).len());
        format!("InferenceVector({}, {})", counted(inputs, "input"), counted(outputs, "output"))
    }
}

impl PyInferenceVector {
    /// Replaces the buffers of a part with `buffers`.
    fn replace(&self, buffers: &Bound<'_, PyAny>, part: Part) -> PyResult<Py<PyAny>> {
        let py = buffers.py();
        let given = buffers.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        if let Err(what) = self.slots.check_part(part, given.len()) {
            return refuse(py, &what);
        }
        for (index, (item, position)) in given.iter().zip(self.slots.range(part)).enumerate() {
            let found = buffer(item, index)?.get().memory().len();
            if let Some(warning) = self.slots.size_warning(position, found) {
                log::global().warn(|| format!("{OBJECT}: {warning}"));
            }
        }
        self.put(&PyList::new(py, given)?, part)
    }

    fn put(&self, given: &Bound<'_, PyList>, part: Part) -> PyResult<Py<PyAny>> {
        let py = given.py();
        let buffers = self.buffers.bind(py);
        // The caller may have shortened the list, which then has no place for these buffers.
        if let Err(what) = self.slots.check_list(buffers.len()) {
            return refuse(py, &what);
        }
        let range = self.slots.range(part);
        buffers.set_slice(range.start, range.end, given)?;
        member(py, QStatus::Success)
    }
}

/// Logs a caller's error and returns its status.
fn refuse(py: Python<'_>, what: &str) -> PyResult<Py<PyAny>> {
    say(what);
    member(py, QStatus::Inval)
}

fn say(what: &str) {
    log::global().error(|| format!("{OBJECT}: {what}"));
}

/// Reads the mappings of an argument, which may be a container.
fn slots(mappings: &Bound<'_, PyAny>) -> PyResult<BufferSlots> {
    let list = match mappings.getattr_opt("getBufferMappings")? {
        Some(of_container) => of_container.call0()?,
        None => mappings.clone(),
    };
    let input = mappings.py().import("qaic.rt.enums")?.getattr("BufferIoTypeEnum")?;
    let input = input.getattr("BUFFER_IO_TYPE_INPUT")?;
    let slots = list.try_iter()?.map(|mapping| {
        let mapping = mapping?;
        Ok(BufferSlot {
            name: mapping.getattr("bufferName")?.extract()?,
            len_bytes: mapping.getattr("size")?.extract()?,
            is_input: mapping.getattr("ioType")?.eq(&input)?,
            is_partial: mapping.getattr("isPartialBufferAllowed")?.extract()?,
        })
    });
    BufferSlots::new(slots.collect::<PyResult<_>>()?).map_err(PyValueError::new_err)
}

/// Returns the source of the bytes and the files.
fn choice(
    source: Option<&Bound<'_, PyAny>>,
    files: Option<&Bound<'_, PyAny>>,
) -> PyResult<(InputSource, Vec<PathBuf>)> {
    // The argument may be a list of files instead of a code.
    let (code, files) = match source.map(|source| (source, source.extract::<u32>())) {
        Some((source, Err(_))) => (None, Some(source)),
        Some((_, Ok(code))) => (Some(code), files),
        None => (None, files),
    };
    let files = files.map(paths).transpose()?.unwrap_or_default();
    let source = InputSource::of(code, !files.is_empty()).map_err(PyValueError::new_err)?;
    Ok((source, files))
}

fn paths(files: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    if files.is_instance_of::<PyString>() || files.cast::<PySequence>().is_err() {
        let found = files.get_type();
        return Err(PyTypeError::new_err(format!("a list of files is expected, not {}", found.name()?)));
    }
    files.try_iter()?.map(|file| file?.extract()).collect()
}
