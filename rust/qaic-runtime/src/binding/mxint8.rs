//! Conversion of number arrays to MXINT8 blocks and back, a few rows at a time.

pub(crate) use half::f16 as Half;
use qaic_mem::{HostSlice, HostSliceMut, Pod};
use qaic_quant::mx::{MxFormat, decode, encode};

/// Number of values that are converted at a time, if rows are shorter.
const STEP_VALUES: usize = 4096;

/// Element types of arrays that represent blocks.
pub(crate) trait Number: Pod + Default {
    /// Returns the value as float32.
    fn value(self) -> f32;
    /// Returns the nearest value of the type, ties to even; infinity if the value is out of range.
    fn nearest(value: f32) -> Self;
}

impl Number for f32 {
    fn value(self) -> f32 {
        self
    }

    fn nearest(value: f32) -> Self {
        value
    }
}

impl Number for Half {
    fn value(self) -> f32 {
        self.to_f32()
    }

    fn nearest(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// Number of bytes of the blocks of `rows` rows of `columns` values; `None` if it exceeds the address space.
pub(crate) fn blocks_bytes(rows: usize, columns: usize) -> Option<usize> {
    MxFormat::Int8.stored_bytes(rows, columns)
}

/// Fills `blocks` with the blocks of an array whose rows have `columns` values. Values that do not fit are ignored.
pub(crate) fn to_blocks<T: Number>(columns: usize, array: HostSlice<'_>, mut blocks: HostSliceMut<'_>) {
    let mut steps = Steps::new(columns);
    let mut numbers = vec![T::default(); steps.values];
    let mut values = vec![0_f32; steps.values];
    let mut stored = vec![0_u8; steps.bytes];
    while let Some(step) = steps.next(array.len() / size_of::<T>()) {
        let (numbers, values) = (&mut numbers[..step.values], &mut values[..step.values]);
        if array.read_into(step.first_value * size_of::<T>(), numbers).is_none() {
            return;
        }
        for (value, number) in values.iter_mut().zip(&*numbers) {
            *value = number.value();
        }
        encode(MxFormat::Int8, columns, values, &mut stored[..step.bytes]);
        if blocks.write_from(step.first_byte, &stored[..step.bytes]).is_none() {
            return;
        }
    }
}

/// Fills an array with the values of its blocks.
pub(crate) fn from_blocks<T: Number>(columns: usize, blocks: HostSlice<'_>, mut array: HostSliceMut<'_>) {
    let mut steps = Steps::new(columns);
    let mut numbers = vec![T::default(); steps.values];
    let mut values = vec![0_f32; steps.values];
    let mut stored = vec![0_u8; steps.bytes];
    while let Some(step) = steps.next(array.len() / size_of::<T>()) {
        let (numbers, values) = (&mut numbers[..step.values], &mut values[..step.values]);
        if blocks.read_into(step.first_byte, &mut stored[..step.bytes]).is_none() {
            return;
        }
        decode(MxFormat::Int8, columns, &stored[..step.bytes], values);
        for (number, &value) in numbers.iter_mut().zip(&*values) {
            *number = T::nearest(value);
        }
        if array.write_from(step.first_value * size_of::<T>(), numbers).is_none() {
            return;
        }
    }
}

/// Iterates over the rows of an array, several at a time.
struct Steps {
    columns: usize,
    row_bytes: usize,
    rows: usize,
    // Number of values of a whole step.
    values: usize,
    bytes: usize,
    done: usize,
}

struct Step {
    first_value: usize,
    first_byte: usize,
    values: usize,
    bytes: usize,
}

impl Steps {
    fn new(columns: usize) -> Self {
        let columns = columns.max(1);
        let rows = (STEP_VALUES / columns).max(1);
        let row_bytes = blocks_bytes(1, columns).unwrap_or(usize::MAX);
        Self {
            columns,
            row_bytes,
            rows,
            values: rows * columns,
            bytes: rows.saturating_mul(row_bytes),
            done: 0,
        }
    }

    fn next(&mut self, values: usize) -> Option<Step> {
        let rows = self.rows.min((values / self.columns).saturating_sub(self.done));
        let step = Step {
            first_value: self.done * self.columns,
            first_byte: self.done * self.row_bytes,
            values: rows * self.columns,
            bytes: rows * self.row_bytes,
        };
        self.done += rows;
        (rows > 0).then_some(step)
    }
}
