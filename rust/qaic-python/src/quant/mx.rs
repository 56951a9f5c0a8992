//! `mx_encode` and `mx_decode`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use qaic_mem::convert::mx;
use qaic_quant::mx::{MxFormat, NotFinite};

use super::arrays::{Lent, array as array_of};
use super::{named, refused};
use crate::buffers::with_bytes;
use crate::gil::Detach;

fn format(py: Python<'_>, name: &str) -> PyResult<MxFormat> {
    named(py, "encoding", name, &MxFormat::ALL.map(MxFormat::name), MxFormat::from_name)
}

fn check(py: Python<'_>, found: NotFinite, count: usize, refuse: bool) -> PyResult<()> {
    if refuse { found.refuse(count).map_err(|error| refused(py, &error)) } else { Ok(()) }
}

/// Encodes a float32 array in blocks along its last axis.
#[pyfunction]
#[pyo3(signature = (array, encoding, *, refuse_not_finite = false))]
pub(crate) fn mx_encode<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    encoding: &str,
    refuse_not_finite: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let format = format(py, encoding)?;
    let values = Lent::floats(py, array)?;
    let memory = values.memory();
    let size = format.size_of_shape(&values.shape).map_err(|error| refused(py, &error))?;
    PyBytes::new_with(py, size.bytes, |stored| {
        let found = py.detached(move |_| Ok(mx::encode(format, memory, size.row_len, stored)))?;
        check(py, found, size.count, refuse_not_finite)
    })
}

/// Decodes an array of `shape` from its encoded blocks.
#[pyfunction]
#[pyo3(signature = (data, shape, encoding))]
#[allow(clippy::needless_pass_by_value)] // the binding converts a sequence to this type
pub(crate) fn mx_decode<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    shape: Vec<usize>,
    encoding: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let format = format(py, encoding)?;
    let storage = with_bytes(data, |stored| {
        let size = format.check_stored(&shape, stored.len()).map_err(|error| refused(py, &error))?;
        py.detached(move |_| Ok(mx::decode(format, stored, size.row_len, size.count)?))
    })??;
    array_of(py, storage, &shape, c"f", size_of::<f32>())
}
