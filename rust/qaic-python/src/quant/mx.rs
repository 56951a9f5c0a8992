//! `mx_encode`, `mx_decode` and `mx_round`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use qaic_mem::{HostSlice, HostSliceMut, Storage};
use qaic_quant::error::QuantError;
use qaic_quant::mx::{BLOCK, MxFormat, NotFinite, decode, encode, round};
use qaic_runtime::error::RuntimeError;

use super::arrays::{Lent, PIECE, array as array_of};
use super::{named, refused};
use crate::buffers::with_bytes;
use crate::gil::Detach;

// A piece of a long row must end where a block ends.
const _: () = assert!(PIECE.is_multiple_of(BLOCK));

fn format(py: Python<'_>, name: &str) -> PyResult<MxFormat> {
    named(py, "encoding", name, &MxFormat::ALL.map(MxFormat::name), MxFormat::from_name)
}

/// Elements of a row; an array without dimensions is one row of one element.
fn row_len(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

/// Visits whole rows, or pieces of one row that end at blocks: `visit(first element, elements, row length of the piece)`.
fn in_rows(count: usize, row_len: usize, mut visit: impl FnMut(usize, usize, usize)) {
    let (mut start, mut left) = (0, row_len);
    while start < count {
        let len = if left < row_len || row_len > PIECE {
            left.min(PIECE)
        } else {
            (PIECE / row_len * row_len).min(count - start)
        };
        visit(start, len, row_len.min(len));
        start += len;
        left = if row_len > PIECE && left > len { left - len } else { row_len };
    }
}

/// Refuses values without a place in a block, where the caller wants that.
fn check(py: Python<'_>, found: NotFinite, count: usize, refuse: bool) -> PyResult<()> {
    let NotFinite { nan, infinite } = found;
    if refuse && found.any() {
        return Err(refused(py, &QuantError::NotFinite { nan, infinite, count: count as u64 }));
    }
    Ok(())
}

fn add(total: &mut NotFinite, more: NotFinite) {
    total.nan += more.nan;
    total.infinite += more.infinite;
}

fn encode_all(format: MxFormat, values: HostSlice<'_>, row_len: usize, mut stored: &mut [u8]) -> NotFinite {
    let mut total = NotFinite::default();
    let mut buffer = [0.0_f32; PIECE];
    in_rows(values.len() / size_of::<f32>(), row_len, |start, len, row_len| {
        let piece = &mut buffer[..len];
        // Inside by construction.
        let _ = values.read_into(start * size_of::<f32>(), piece);
        let bytes = len / row_len * row_len.div_ceil(BLOCK) * format.block_bytes();
        if let Some(into) = stored.split_off_mut(..bytes) {
            add(&mut total, encode(format, row_len, piece, into));
        }
    });
    total
}

fn round_all(
    format: MxFormat,
    values: HostSlice<'_>,
    row_len: usize,
    mut rounded: HostSliceMut<'_>,
) -> NotFinite {
    let mut total = NotFinite::default();
    let (mut buffer, mut result) = ([0.0_f32; PIECE], [0.0_f32; PIECE]);
    in_rows(values.len() / size_of::<f32>(), row_len, |start, len, row_len| {
        let _ = values.read_into(start * size_of::<f32>(), &mut buffer[..len]);
        add(&mut total, round(format, row_len, &buffer[..len], &mut result[..len]));
        let _ = rounded.write_from(start * size_of::<f32>(), &result[..len]);
    });
    total
}

fn decode_all(
    format: MxFormat,
    stored: HostSlice<'_>,
    row_len: usize,
    count: usize,
    mut values: HostSliceMut<'_>,
) {
    let mut bytes = vec![0_u8; PIECE * format.block_bytes()];
    let mut buffer = [0.0_f32; PIECE];
    let mut done = 0;
    in_rows(count, row_len, |start, len, row_len| {
        let piece = &mut bytes[..len / row_len * row_len.div_ceil(BLOCK) * format.block_bytes()];
        let _ = stored.read_into(done, piece);
        done += piece.len();
        decode(format, row_len, piece, &mut buffer[..len]);
        let _ = values.write_from(start * size_of::<f32>(), &buffer[..len]);
    });
}

fn too_large(what: &str, shape: &[usize]) -> QuantError {
    QuantError::Parameters { what: format!("{what} of shape {shape:?} do not fit this host's memory") }
}

/// Stores a float32 array in blocks along its last axis.
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
    let (memory, row_len, count) = (values.memory(), row_len(&values.shape), values.len());
    let rows = count.checked_div(row_len).unwrap_or(0);
    let bytes = format
        .stored_bytes(rows, row_len)
        .ok_or_else(|| refused(py, &too_large("stored elements", &values.shape)))?;
    PyBytes::new_with(py, bytes, |stored| {
        let found = py.detached(move || Ok(encode_all(format, memory, row_len, stored)))?;
        check(py, found, count, refuse_not_finite)
    })
}

/// Gives an array of `shape` back from its stored blocks.
#[pyfunction]
#[pyo3(signature = (data, shape, encoding))]
#[allow(clippy::needless_pass_by_value)] // what the binding makes of a sequence
pub(crate) fn mx_decode<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    shape: Vec<usize>,
    encoding: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let format = format(py, encoding)?;
    let row_len = row_len(&shape);
    let count = shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim));
    let sizes = count.and_then(|count| {
        let rows = count.checked_div(row_len).unwrap_or(0);
        Some((count, count.checked_mul(size_of::<f32>())?, format.stored_bytes(rows, row_len)?))
    });
    let Some((count, bytes, expected)) = sizes else {
        return Err(refused(py, &too_large("elements", &shape)));
    };
    let storage = with_bytes(data, |stored| {
        if stored.len() != expected {
            let what = format!(
                "{} bytes of {} for shape {shape:?}; {expected} are expected",
                stored.len(),
                format.name()
            );
            return Err(refused(py, &QuantError::Parameters { what }));
        }
        py.detached(move || -> Result<Storage, RuntimeError> {
            let mut storage = Storage::new(bytes)?;
            decode_all(format, stored, row_len, count, storage.memory_mut());
            Ok(storage)
        })
    })??;
    array_of(py, storage, &shape, c"f", size_of::<f32>())
}

/// Rounds a float32 array to what its stored blocks hold.
#[pyfunction]
#[pyo3(signature = (array, encoding, *, refuse_not_finite = false))]
pub(crate) fn mx_round<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
    encoding: &str,
    refuse_not_finite: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let format = format(py, encoding)?;
    let values = Lent::floats(py, array)?;
    let (memory, row_len) = (values.memory(), row_len(&values.shape));
    let (storage, found) = py.detached(move || {
        let mut storage = Storage::new(memory.len())?;
        let found = round_all(format, memory, row_len, storage.memory_mut());
        Ok((storage, found))
    })?;
    check(py, found, values.len(), refuse_not_finite)?;
    array_of(py, storage, &values.shape, c"f", size_of::<f32>())
}
