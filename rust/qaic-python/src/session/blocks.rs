//! float16 arrays of callers and the MXINT8 blocks that the device has in their place (compile-options §5.4).
//!
//! Rows are converted a few at a time through memory of our own: a caller may write to its array meanwhile.

use half::f16;
use half::slice::HalfFloatSliceExt;
use qaic_quant::mx::{MxFormat, decode, encode};
use qaic_runtime::buffer::{HostSlice, HostSliceMut};

/// Values that are converted at a time, when rows are shorter.
const STEP_VALUES: usize = 4096;

/// Bytes of the blocks of an array; `None` when they are more than the address space.
pub(super) fn blocks_bytes(shape: &[isize]) -> Option<usize> {
    let (&columns, outer) = shape.split_last()?;
    let rows = outer.iter().try_fold(1_usize, |rows, &dim| rows.checked_mul(usize::try_from(dim).ok()?))?;
    MxFormat::Int8.stored_bytes(rows, usize::try_from(columns).ok()?)
}

/// Fills `blocks` with the blocks of a float16 array whose rows have `columns` values. What does not fit is left out.
pub(super) fn encode_array(columns: usize, array: HostSlice, blocks: HostSliceMut) {
    let mut steps = Steps::new(columns);
    let mut halves = vec![0_u16; steps.values];
    let mut values = vec![0_f32; steps.values];
    let mut stored = vec![0_u8; steps.bytes];
    while let Some((values_at, bytes_at, rows)) = steps.next(array.len() / size_of::<u16>()) {
        let (count, bytes) = (rows * columns, rows * steps.row_bytes);
        if array.read_into(values_at * size_of::<u16>(), &mut halves[..count]).is_none() {
            return;
        }
        for (value, &bits) in values.iter_mut().zip(&halves[..count]) {
            *value = f16::from_bits(bits).to_f32();
        }
        encode(MxFormat::Int8, columns, &values[..count], &mut stored[..bytes]);
        if blocks.write_from(bytes_at, &stored[..bytes]).is_none() {
            return;
        }
    }
}

/// Fills a float16 array with the values of its blocks; those beyond float16 become infinite.
pub(super) fn decode_array(columns: usize, blocks: HostSlice, array: HostSliceMut) {
    let mut steps = Steps::new(columns);
    let mut stored = vec![0_u8; steps.bytes];
    let mut values = vec![0_f32; steps.values];
    let mut halves = vec![f16::ZERO; steps.values];
    let mut bits = vec![0_u16; steps.values];
    while let Some((values_at, bytes_at, rows)) = steps.next(array.len() / size_of::<u16>()) {
        let (count, bytes) = (rows * columns, rows * steps.row_bytes);
        if blocks.read_into(bytes_at, &mut stored[..bytes]).is_none() {
            return;
        }
        decode(MxFormat::Int8, columns, &stored[..bytes], &mut values[..count]);
        halves[..count].convert_from_f32_slice(&values[..count]);
        for (bits, half) in bits.iter_mut().zip(&halves[..count]) {
            *bits = half.to_bits();
        }
        if array.write_from(values_at * size_of::<u16>(), &bits[..count]).is_none() {
            return;
        }
    }
}

/// A walk over the rows of an array, some at a time.
struct Steps {
    columns: usize,
    row_bytes: usize,
    rows: usize,
    /// Values and bytes of a step.
    values: usize,
    bytes: usize,
    done: usize,
}

impl Steps {
    fn new(columns: usize) -> Self {
        let columns = columns.max(1);
        let rows = (STEP_VALUES / columns).max(1);
        let row_bytes = MxFormat::Int8.stored_bytes(1, columns).unwrap_or(usize::MAX);
        Self {
            columns,
            row_bytes,
            rows,
            values: rows * columns,
            bytes: rows.saturating_mul(row_bytes),
            done: 0,
        }
    }

    /// Where the next step begins, in values and in bytes of blocks, and its rows.
    fn next(&mut self, values: usize) -> Option<(usize, usize, usize)> {
        let rows = self.rows.min((values / self.columns).saturating_sub(self.done));
        let at = (self.done * self.columns, self.done * self.row_bytes, rows);
        self.done += rows;
        (rows > 0).then_some(at)
    }
}
