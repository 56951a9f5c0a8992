//! Weights in microscaling blocks, which are decoded once when a program is loaded.
//!
//! The blocks run along the dimension that a matrix product sums over. They are stored with that dimension last, so
//! that a row of blocks is contiguous. Decoding restores the original order of the elements.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use qaic_qpc::plan::{Dtype, Initializer};
use qaic_quant::mx::{self, BLOCK, MxFormat};

/// The elements of a tensor, aligned for their type.
#[derive(Debug)]
pub(super) enum Elements {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Elements {
    /// Address of the bytes.
    pub(super) fn address(&self) -> *const u8 {
        match self {
            Self::F32(values) => values.as_ptr().cast(),
            Self::F16(values) => values.as_ptr().cast(),
            Self::Bf16(values) => values.as_ptr().cast(),
        }
    }
}

/// Mapping of the stored rows of a tensor to its dimensions.
struct Rows {
    // Number of consecutive matrices.
    matrices: usize,
    // Number of stored rows of a matrix, and of their elements.
    count: usize,
    row_len: usize,
    // True if a stored row is a column of the tensor.
    are_columns: bool,
}

impl Rows {
    fn new(dims: &[i64], axis: usize) -> Option<Self> {
        let dims: Option<Vec<usize>> = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
        let dims = dims?;
        let (&last, leading) = dims.split_last()?;
        let (&before, batch) = leading.split_last()?;
        let matrices = batch.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
        match dims.len() - axis.min(dims.len()) {
            1 => Some(Self { matrices, count: before, row_len: last, are_columns: false }),
            2 => Some(Self { matrices, count: last, row_len: before, are_columns: true }),
            _ => None,
        }
    }

    fn elements(&self) -> Option<usize> {
        self.matrices.checked_mul(self.count)?.checked_mul(self.row_len)
    }
}

/// Decodes the stored bytes of an initializer.
///
/// Any bytes of the right length can be decoded. The result has at most four bytes per element, and the stored form
/// at least 25 bytes per 32 elements.
pub(super) fn decode(initializer: &Initializer, encoding: &str, stored: &[u8]) -> Result<Elements, String> {
    let (format, rows) = layout(initializer, encoding, stored)?;
    match initializer.dtype {
        Dtype::Float32 => Ok(Elements::F32(fill(&rows, format, stored, 0.0, <[f32]>::copy_from_slice))),
        Dtype::Float16 => Ok(Elements::F16(fill(
            &rows,
            format,
            stored,
            f16::ZERO,
            HalfFloatSliceExt::convert_from_f32_slice,
        ))),
        Dtype::Bfloat16 => Ok(Elements::Bf16(fill(
            &rows,
            format,
            stored,
            bf16::ZERO,
            HalfFloatSliceExt::convert_from_f32_slice,
        ))),
        other => Err(not_in_blocks(initializer, other)),
    }
}

/// Returns zeros with the size and the type of the result of `decode`, and fails for the same arguments. Zeros of
/// float32, the common type, use no memory until they are written.
pub(super) fn zeros(initializer: &Initializer, encoding: &str, stored: &[u8]) -> Result<Elements, String> {
    let (_, rows) = layout(initializer, encoding, stored)?;
    let count = rows.elements().unwrap_or(0);
    match initializer.dtype {
        Dtype::Float32 => Ok(Elements::F32(vec![0.0; count])),
        Dtype::Float16 => Ok(Elements::F16(vec![f16::ZERO; count])),
        Dtype::Bfloat16 => Ok(Elements::Bf16(vec![bf16::ZERO; count])),
        other => Err(not_in_blocks(initializer, other)),
    }
}

fn not_in_blocks(initializer: &Initializer, dtype: Dtype) -> String {
    format!("initializer `{}`: a tensor in blocks cannot have the type {dtype:?}", initializer.name)
}

/// Returns the format of the blocks and the layout of their rows, after checking them against the tensor.
fn layout(initializer: &Initializer, encoding: &str, stored: &[u8]) -> Result<(MxFormat, Rows), String> {
    let name = &initializer.name;
    let format = MxFormat::from_name(encoding)
        .ok_or_else(|| format!("initializer `{name}`: encoding `{encoding}` is not known"))?;
    let rows = Rows::new(&initializer.dims, initializer.axis)
        .filter(|rows| {
            let count = rows.matrices.checked_mul(rows.count);
            count.and_then(|count| format.stored_bytes(count, rows.row_len)) == Some(stored.len())
        })
        .ok_or_else(|| {
            format!(
                "initializer `{name}`: {} bytes are not {:?} in blocks of `{encoding}` along dimension {}",
                stored.len(),
                initializer.dims,
                initializer.axis
            )
        })?;
    Ok((format, rows))
}

/// Decodes several rows at a time; `narrow` converts between slices of the same length.
fn fill<T: Copy>(
    rows: &Rows,
    format: MxFormat,
    stored: &[u8],
    zero: T,
    narrow: fn(&mut [T], &[f32]),
) -> Vec<T> {
    let count = rows.elements().unwrap_or(0);
    let mut elements = vec![zero; count];
    if count == 0 {
        return elements;
    }
    let row_bytes = rows.row_len.div_ceil(BLOCK) * format.block_bytes();
    // The columns of a group fill at least one cache line of each row of the tensor.
    let group = BLOCK.min(rows.count);
    let mut decoded = vec![0f32; group * rows.row_len];
    let mut narrowed = vec![zero; group * rows.row_len];
    let matrix_len = rows.count * rows.row_len;
    for (matrix, into) in elements.chunks_exact_mut(matrix_len).enumerate() {
        for first in (0..rows.count).step_by(group) {
            let here = group.min(rows.count - first);
            let start = (matrix * rows.count + first) * row_bytes;
            let values = &mut decoded[..here * rows.row_len];
            mx::decode(format, rows.row_len, &stored[start..start + here * row_bytes], values);
            if rows.are_columns {
                let narrowed = &mut narrowed[..here * rows.row_len];
                narrow(narrowed, values);
                for (position, row) in into.chunks_exact_mut(rows.count).enumerate() {
                    for (column, target) in row[first..first + here].iter_mut().enumerate() {
                        *target = narrowed[column * rows.row_len + position];
                    }
                }
            } else {
                let begin = first * rows.row_len;
                narrow(&mut into[begin..begin + here * rows.row_len], values);
            }
        }
    }
    elements
}

#[cfg(test)]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_wrap, clippy::float_cmp)] // small exact numbers
mod tests {
    use super::*;

    fn initializer(dims: &[i64], axis: usize, dtype: Dtype) -> Initializer {
        Initializer {
            name: "w".to_owned(),
            dtype,
            dims: dims.to_vec(),
            offset: 0,
            size: 0,
            encoding: Some("mxfp6_e2m3".to_owned()),
            axis,
            layout: None,
            group: 0,
        }
    }

    fn stored(rows: usize, row_len: usize, value: impl Fn(usize, usize) -> f32) -> Vec<u8> {
        let values: Vec<f32> = (0..rows)
            .flat_map(|row| (0..row_len).map(move |at| (row, at)))
            .map(|(row, at)| value(row, at))
            .collect();
        let format = MxFormat::Fp6E2M3;
        let mut bytes = vec![0; format.stored_bytes(rows, row_len).unwrap()];
        mx::encode(format, row_len, &values, &mut bytes);
        bytes
    }

    // The grid of every block contains small integers.
    fn number(row: usize, at: usize) -> f32 {
        ((row * 5 + at * 3) % 8) as f32
    }

    #[test]
    fn blocks_along_the_last_but_one_dimension_decode_to_columns() {
        for (rows, row_len) in [(1, 1), (3, 40), (33, 32), (70, 65), (64, 31)] {
            let bytes = stored(2 * rows, row_len, number);
            let initializer = initializer(&[2, row_len as i64, rows as i64], 1, Dtype::Float32);
            let Elements::F32(values) = decode(&initializer, "mxfp6_e2m3", &bytes).unwrap() else { panic!() };
            for matrix in 0..2 {
                for row in 0..rows {
                    for at in 0..row_len {
                        let found = values[(matrix * row_len + at) * rows + row];
                        assert_eq!(found, number(matrix * rows + row, at), "{rows} {row_len} {row} {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_along_the_last_dimension_decode_to_rows() {
        let bytes = stored(40, 33, number);
        let initializer = initializer(&[40, 33], 1, Dtype::Float16);
        let Elements::F16(values) = decode(&initializer, "mxfp6_e2m3", &bytes).unwrap() else { panic!() };
        for (index, value) in values.iter().enumerate() {
            assert_eq!(value.to_f32(), number(index / 33, index % 33));
        }
    }

    #[test]
    fn initializer_of_zeros_has_all_elements() {
        let bytes = stored(40, 33, number);
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
            let initializer = initializer(&[40, 33], 1, dtype);
            let count = |elements: &Elements| match elements {
                Elements::F32(values) => values.len(),
                Elements::F16(values) => values.len(),
                Elements::Bf16(values) => values.len(),
            };
            let decoded = decode(&initializer, "mxfp6_e2m3", &bytes).unwrap();
            let zeros = zeros(&initializer, "mxfp6_e2m3", &bytes).unwrap();
            assert_eq!(count(&zeros), count(&decoded));
            assert_eq!(std::mem::discriminant(&zeros), std::mem::discriminant(&decoded));
        }
        assert!(zeros(&initializer(&[40, 33], 1, Dtype::Int8), "mxfp6_e2m3", &bytes).is_err());
        assert!(zeros(&initializer(&[40, 32], 1, Dtype::Float32), "mxfp6_e2m3", &bytes).is_err());
    }

    #[test]
    fn initializer_that_does_not_fit_is_refused_by_name() {
        let bytes = stored(32, 32, number);
        let refused = |initializer: &Initializer, encoding: &str, bytes: &[u8]| {
            decode(initializer, encoding, bytes).expect_err("refused")
        };
        let good = initializer(&[32, 32], 0, Dtype::Float32);
        assert!(decode(&good, "mxfp6_e2m3", &bytes).is_ok());
        assert!(refused(&good, "mxfp9", &bytes).contains("mxfp9"));
        assert!(refused(&good, "mxfp6_e2m3", &bytes[1..]).contains("799 bytes"));
        for (dims, axis) in [
            (&[32, 33][..], 0),
            (&[32, 32], 2),
            (&[1, 32, 32], 0),
            (&[32], 0),
            (&[], 0),
            (&[-32, -32], 0),
            (&[i64::MAX, i64::MAX, 32], 1),
            (&[32, 32], usize::MAX),
        ] {
            assert!(
                refused(&initializer(dims, axis, Dtype::Float32), "mxfp6_e2m3", &bytes).contains("blocks"),
                "{dims:?}"
            );
        }
        assert!(refused(&initializer(&[32, 32], 0, Dtype::Int8), "mxfp6_e2m3", &bytes).contains("Int8"));
        let empty = initializer(&[0, 32], 1, Dtype::Float32);
        assert!(decode(&empty, "mxfp6_e2m3", &[]).is_ok());
    }
}
