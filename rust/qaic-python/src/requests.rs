//! Bodies of inference requests for the server: `qaic_requests` on Python bytes, without the interpreter lock.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use qaic_requests::json::{self, Kind};
use qaic_requests::message::{self, Element};
use qaic_requests::{RequestError, Split};

use crate::buffers::{BytesView, ReadOnlyBytes};
use crate::errors::Raise;

/// Start and end of a part of a body.
type Place = (usize, usize);

fn refused(py: Python<'_>, error: RequestError) -> PyErr {
    let raise = Raise::new(py, "InputError", "serving.request", error.to_string());
    match error {
        RequestError::Count { found } => raise.with("found", found).build(),
        _ => raise.build(),
    }
}

/// A body that arrived as one object, or in parts that [`join_bytes`] joined.
#[derive(FromPyObject)]
pub(crate) enum Body<'py> {
    One(PyBackedBytes),
    Joined(Bound<'py, BytesView>),
}

impl Body<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::One(bytes) => bytes,
            Self::Joined(view) => view.get().bytes(),
        }
    }
}

/// Joins parts of a body, without the interpreter lock.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // extracted from a Python object
pub(crate) fn join_bytes(py: Python<'_>, parts: Vec<PyBackedBytes>) -> BytesView {
    let slices: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
    BytesView::whole(ReadOnlyBytes::from(py.detach(|| slices.concat())))
}

/// Runs `read` on a part of a body, without the interpreter lock.
fn read_part<T: Send>(
    py: Python<'_>,
    body: &[u8],
    (begin, end): Place,
    read: impl FnOnce(&[u8]) -> Result<T, RequestError> + Send,
) -> PyResult<T> {
    py.detach(|| body.get(begin..end).ok_or(RequestError::NotJson).and_then(read))
        .map_err(|error| refused(py, error))
}

fn places(ranges: Vec<std::ops::Range<usize>>) -> Vec<Place> {
    ranges.into_iter().map(|range| (range.start, range.end)).collect()
}

/// Separates the numbers of tensors from a request in JSON.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // extracted from a Python object
pub(crate) fn split_infer_json<'py>(
    py: Python<'py>,
    body: Body<'py>,
    end: usize,
    most: usize,
) -> PyResult<(Bound<'py, PyBytes>, Vec<Place>)> {
    let Split { envelope, places: found, .. } =
        read_part(py, body.bytes(), (0, end), |text| json::split(text, most))?;
    Ok((PyBytes::new(py, &envelope), places(found)))
}

/// Decodes the JSON numbers in a part of a body.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // extracted from a Python object
pub(crate) fn read_json_numbers(
    py: Python<'_>,
    body: Body<'_>,
    place: Place,
    expected: usize,
    is_single: bool,
) -> PyResult<(BytesView, &'static str)> {
    let (bytes, kind) = read_part(py, body.bytes(), place, |text| json::numbers(text, expected, is_single))?;
    let dtype = match kind {
        Kind::Bool => "bool",
        Kind::Signed => "int64",
        Kind::Unsigned => "uint64",
        Kind::Float if is_single => "float32",
        Kind::Float => "float64",
    };
    Ok((BytesView::whole(ReadOnlyBytes::from(bytes)), dtype))
}

/// Separates the numbers of tensors from a `ModelInferRequest`.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, clippy::type_complexity)] // extracted from a Python object
pub(crate) fn split_infer_message<'py>(
    py: Python<'py>,
    body: Body<'py>,
    most: usize,
) -> PyResult<(Bound<'py, PyBytes>, Vec<Place>, Vec<Place>)> {
    let end = body.bytes().len();
    let split = read_part(py, body.bytes(), (0, end), |bytes| message::split(bytes, most))?;
    Ok((PyBytes::new(py, &split.envelope), places(split.places), places(split.raw)))
}

/// Decodes the numbers of a field of `InferTensorContents`.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // extracted from a Python object
pub(crate) fn read_message_numbers(
    py: Python<'_>,
    body: Body<'_>,
    place: Place,
    number: u64,
    dtype: &str,
    expected: usize,
) -> PyResult<BytesView> {
    let element = match dtype {
        "bool" => Element::Bool,
        "float32" => Element::Single,
        "float64" => Element::Double,
        _ => Element::Whole,
    };
    let bytes =
        read_part(py, body.bytes(), place, |contents| message::numbers(contents, number, element, expected))?;
    Ok(BytesView::whole(ReadOnlyBytes::from(bytes)))
}
