//! The rows of a state that an inference attends to, copied once.
//!
//! `AttendedRows(state, length, indices, rows, blanked)` computes in one copy what three ONNX operators compute with
//! a copy each: `Slice` of the first `length` slots of the state, `ScatterND` of the changed rows, and `Where`, which
//! sets unused rows to zero.
//!
//! | operand | type | dims | |
//! |---|---|---|---|
//! | `state` | float32, float16 that is widened, or MXINT8 blocks as bytes | `[batch, groups, context, width]` | |
//! | `length` | int64 | one number | slots that are copied |
//! | `indices` | int64 | `[..., 3]` | row of the batch, group and slot of each row; those outside are not written |
//! | `rows` | float32 | `[..., width]` | the changed rows |
//! | `blanked` | bool | `[batch or 1, 1, length, 1]`, or left out | slots whose rows become zero |
//! | result | float32 | `[batch, groups, length, width]` | |
//!
//! With the attribute `rounding` 10, numbers of the state are rounded to float16 as they are read.

use std::ops::{Range, RangeInclusive};

use half::f16;
use qaic_mem::convert::Isa;
use qaic_mem::stored::{Form, Layout, Rounding, StoredRows, widen_float16};
use qaic_quant::mx::MxFormat;

use super::call::Call;
use super::{FLOAT16, UINT8};

/// Number of slots that one thread copies at a time.
const BLOCK_SLOTS: usize = 256;
/// Minimum number of result elements for which several threads copy.
const PARALLEL_LEN: usize = 1 << 15;
/// Indices of the operands.
const STATE: usize = 0;
const LENGTH: usize = 1;
const INDICES: usize = 2;
const ROWS: usize = 3;
const BLANKED: usize = 4;
/// Exponents for which all signed bytes in units of 1/64 are exact in float16: the unit is at least 2^-24, and 128
/// units are finite.
const FLOAT16_EXPONENTS: RangeInclusive<u8> = 109..=141;
/// Number of indices per row.
const DEPTH: usize = 3;

/// The elements of a state.
#[derive(Clone, Copy, Debug)]
enum StateNumbers<'a> {
    /// Float32, which the kernels use directly.
    Float32(&'a [f32]),
    /// Float16, which is widened.
    Float16(&'a [f16]),
    /// MXINT8 blocks of rows.
    Blocks(&'a [u8]),
}

/// Operands whose sizes agree.
#[derive(Clone, Copy, Debug)]
struct AttendedRows<'a> {
    state: StateNumbers<'a>,
    groups: usize,
    context: usize,
    width: usize,
    // Elements in a row of the state: numbers, or bytes of blocks.
    row_len: usize,
    length: usize,
    blocks_per_group: usize,
    blocks: usize,
    indices: &'a [i64],
    rows: &'a [f32],
    // Empty, one list of slots, or one for each row of the batch; any byte except 0 means true.
    blanked: &'a [u8],
    blanked_stride: usize,
}

/// The unchecked operands, with the dims of those that need them.
#[derive(Clone, Copy, Debug)]
struct Operands<'a> {
    state: StateNumbers<'a>,
    state_dims: &'a [i64],
    length: &'a [i64],
    indices: &'a [i64],
    index_dims: &'a [i64],
    rows: &'a [f32],
    row_dims: &'a [i64],
    blanked: Option<&'a [u8]>,
}

impl<'a> AttendedRows<'a> {
    /// Checks that the operands match; the error names the operand that does not.
    fn new(operands: &Operands<'a>) -> Result<Self, String> {
        let Operands { state, state_dims, length, indices, index_dims, rows, row_dims, blanked } = *operands;
        let count = match state {
            StateNumbers::Float32(numbers) => numbers.len(),
            StateNumbers::Float16(numbers) => numbers.len(),
            StateNumbers::Blocks(bytes) => bytes.len(),
        };
        let dims: Vec<usize> = state_dims.iter().filter_map(|&dim| usize::try_from(dim).ok()).collect();
        let &[batch, groups, context, row_len] = &*dims else {
            return Err(format!("a state of dims {state_dims:?}, expected four"));
        };
        if batch.checked_mul(groups).and_then(|all| all.checked_mul(context)?.checked_mul(row_len))
            != Some(count)
        {
            return Err(format!("{count} numbers of a state of dims {state_dims:?}"));
        }
        let mut width = row_len;
        if let StateNumbers::Blocks(_) = state {
            width = row_dims.last().and_then(|&width| usize::try_from(width).ok()).unwrap_or(0);
            if MxFormat::Int8.stored_bytes(1, width) != Some(row_len) {
                return Err(format!("{row_len} bytes of blocks for rows of {width} numbers"));
            }
        }
        let &[length] = length else { return Err(format!("{} lengths, expected one", length.len())) };
        let length = usize::try_from(length)
            .ok()
            .filter(|&length| length <= context)
            .ok_or_else(|| format!("a length of {length}, expected at most {context}"))?;
        if index_dims.last().and_then(|&depth| usize::try_from(depth).ok()) != Some(DEPTH) {
            return Err(format!("tuples of dims {index_dims:?}, expected {DEPTH} numbers in each"));
        }
        if (indices.len() / DEPTH).checked_mul(width) != Some(rows.len()) {
            return Err(format!("{} numbers for {} rows of {width}", rows.len(), indices.len() / DEPTH));
        }
        let blanked = blanked.unwrap_or_default();
        let blanked_stride = match blanked.len() {
            found if found == length || found == 0 => 0,
            found if Some(found) == batch.checked_mul(length) => length,
            found => return Err(format!("{found} slots to blank, expected {length} for {batch} rows")),
        };
        let blocks_per_group = length.div_ceil(BLOCK_SLOTS);
        // Rows without width are empty, regardless of their number.
        let blocks = if width == 0 { 0 } else { batch * groups * blocks_per_group };
        Ok(Self {
            state,
            groups,
            context,
            width,
            row_len,
            length,
            blocks_per_group,
            blocks,
            indices,
            rows,
            blanked,
            blanked_stride,
        })
    }

    /// Number of slots that are copied.
    fn length(&self) -> usize {
        self.length
    }

    /// Numbers of the result.
    fn result_len(&self) -> usize {
        self.blocks.checked_div(self.blocks_per_group).unwrap_or(0) * self.length * self.width
    }

    /// Number of parts of the result, each of which [`Self::write`] writes.
    fn blocks(&self) -> usize {
        self.blocks
    }

    /// Range of the result's elements that a block contains.
    fn range(&self, block: usize) -> Range<usize> {
        let (pair, slots) = self.place(block);
        let start = (pair * self.length + slots.start) * self.width;
        start..start + slots.len() * self.width
    }

    /// Combined index of batch row and group, and slots of a block.
    fn place(&self, block: usize) -> (usize, Range<usize>) {
        let pair = block / self.blocks_per_group;
        let start = block % self.blocks_per_group * BLOCK_SLOTS;
        (pair, start..(start + BLOCK_SLOTS).min(self.length))
    }

    /// Writes a block to memory with the size of its range.
    fn write(&self, block: usize, mut is_rounded: bool, result: &mut [f32]) {
        let (pair, slots) = self.place(block);
        let (entry, group) = (pair / self.groups, pair % self.groups);
        let first = (pair * self.context + slots.start) * self.row_len;
        let source = first..first + slots.len() * self.row_len;
        match self.state {
            StateNumbers::Float32(numbers) => {
                if let Some(numbers) = numbers.get(source) {
                    result.copy_from_slice(numbers);
                }
            }
            StateNumbers::Float16(numbers) => {
                if let Some(numbers) = numbers.get(source) {
                    widen_float16(Isa::best(), numbers, result);
                }
            }
            StateNumbers::Blocks(bytes) => {
                if let Some(bytes) = bytes.get(source)
                    && let Ok(rows) =
                        StoredRows::new(Form::Mxint8, Layout::Rows, slots.len(), self.width, bytes)
                {
                    rows.gather(Isa::best(), 0, result);
                    is_rounded &= !are_float16(bytes);
                }
            }
        }
        if is_rounded {
            Rounding::Float16.round(Isa::best(), result);
        }
        let key = [entry, group].map(|number| i64::try_from(number).unwrap_or(-1));
        for (tuple, row) in self.indices.chunks_exact(DEPTH).zip(self.rows.chunks_exact(self.width.max(1))) {
            let &[of_entry, of_group, slot] = tuple else { continue };
            let slot = usize::try_from(slot).ok().filter(|slot| slots.contains(slot));
            if let Some(slot) = slot.filter(|_| [of_entry, of_group] == key) {
                let start = (slot - slots.start) * self.width;
                if let Some(place) = result.get_mut(start..start + self.width) {
                    place.copy_from_slice(row);
                }
            }
        }
        let start = entry * self.blanked_stride + slots.start;
        let blanked = self.blanked.get(start..start + slots.len()).unwrap_or_default();
        for (row, _) in
            result.chunks_exact_mut(self.width.max(1)).zip(blanked).filter(|(_, flag)| **flag != 0)
        {
            row.fill(0.0);
        }
    }
}

/// Returns true if all values of MXINT8 blocks are exact in float16, according to their exponents.
fn are_float16(blocks: &[u8]) -> bool {
    blocks.iter().step_by(MxFormat::Int8.block_bytes()).all(|exponent| FLOAT16_EXPONENTS.contains(exponent))
}

/// Runs the kernel once; numbers of the state are rounded to float16 if `is_rounded`.
pub(super) fn run(call: Call, is_rounded: bool) -> Result<(), String> {
    let (state, length) = (call.required(STATE)?, call.required(LENGTH)?);
    let (indices, rows) = (call.required(INDICES)?, call.required(ROWS)?);
    let blanked = call.operand(BLANKED)?;
    let element_type = call.element_type(STATE)?;
    let operands = Operands {
        state: if element_type == FLOAT16 {
            // SAFETY: the engine has checked the type of every operand, and they do not change during the call.
            StateNumbers::Float16(unsafe { state.elements::<f16>() })
        } else if element_type == UINT8 {
            // SAFETY: as above.
            StateNumbers::Blocks(unsafe { state.elements::<u8>() })
        } else {
            // SAFETY: as above.
            StateNumbers::Float32(unsafe { state.elements::<f32>() })
        },
        state_dims: &state.dims,
        // SAFETY: as above.
        length: unsafe { length.elements::<i64>() },
        // SAFETY: as above.
        indices: unsafe { indices.elements::<i64>() },
        index_dims: &indices.dims,
        // SAFETY: as above.
        rows: unsafe { rows.elements::<f32>() },
        row_dims: &rows.dims,
        // SAFETY: as above; a bool of the engine is a byte, which a caller's memory may give any value.
        blanked: blanked.as_ref().map(|blanked| unsafe { blanked.elements::<u8>() }),
    };
    let attended = AttendedRows::new(&operands)?;
    let mut dims = state.dims.clone();
    if let [.., slots, width] = &mut *dims {
        *slots = i64::try_from(attended.length()).unwrap_or(i64::MAX);
        *width = i64::try_from(attended.width).unwrap_or(i64::MAX);
    }
    let result = call.result(&dims, attended.result_len())?;
    let write = |block: usize| {
        // SAFETY: ranges of blocks do not overlap, and the engine calls once for each block.
        attended.write(block, is_rounded, unsafe { result.part(attended.range(block)) });
    };
    if attended.result_len() < PARALLEL_LEN || attended.length() <= BLOCK_SLOTS {
        (0..attended.blocks()).for_each(write);
        return Ok(());
    }
    call.in_parallel(attended.blocks(), &write)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use qaic_quant::mx;

    use super::*;

    /// Returns the result of `Slice`, `ScatterND` and `Where`, one number at a time.
    fn expected(
        state: &[f32],
        (batch, groups, context, width): (usize, usize, usize, usize),
        length: usize,
        tuples: &[[i64; 3]],
        rows: &[f32],
        blanked: &[u8],
    ) -> Vec<f32> {
        let mut result = Vec::new();
        for entry in 0..batch {
            for group in 0..groups {
                for slot in 0..length {
                    for column in 0..width {
                        let place = [entry, group, slot].map(|number| i64::try_from(number).unwrap());
                        let last = tuples.iter().rposition(|tuple| *tuple == place);
                        let number = match last {
                            Some(row) => rows[row * width + column],
                            None => state[((entry * groups + group) * context + slot) * width + column],
                        };
                        let of_entry = if blanked.len() == length { 0 } else { entry * length };
                        let is_blanked = !blanked.is_empty() && blanked[of_entry + slot] != 0;
                        result.push(if is_blanked { 0.0 } else { number });
                    }
                }
            }
        }
        result
    }

    proptest! {
        #[test]
        fn result_is_that_of_three_operators(
            (batch, groups, width) in (1_usize..3, 1_usize..3, 1_usize..4),
            context in prop_oneof![1_usize..9, 250_usize..600, 1000_usize..1400],
            length in any::<prop::sample::Index>(),
            tuples in prop::collection::vec((-1_i64..3, -1_i64..3, any::<prop::sample::Index>(), any::<bool>()), 0..6),
            blanked in prop::option::of((any::<bool>(), prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 2800))),
            (form, is_rounded, power) in (0..3_usize, any::<bool>(), -40_i32..25),
        ) {
            let length = length.index(context + 1);
            let sizes = (batch, groups, context, width);
            let numbers = (0..2048_u16).map(|number| (f32::from(number) - 1000.0) * 2_f32.powi(power));
            let mut state: Vec<f32> = numbers.cycle().take(batch * groups * context * width).collect();
            let tuples: Vec<[i64; 3]> = tuples
                .iter()
                .map(|(entry, group, slot, is_outside)| {
                    let slot = if *is_outside { i64::from(i32::MAX) } else { i64::try_from(slot.index(context)).unwrap() };
                    [*entry, *group, slot]
                })
                .collect();
            let rows: Vec<f32> = (1..100_u8).map(|number| -f32::from(number)).take(tuples.len() * width).collect();
            let blanked = blanked.map(|(is_shared, flags)| flags[..if is_shared { length } else { batch * length }].to_vec());
            let format = MxFormat::Int8;
            let mut blocks = vec![0; format.stored_bytes(state.len() / width, width).unwrap()];
            if form == 2 {
                mx::encode(format, width, &state, &mut blocks);
                mx::decode(format, width, &blocks, &mut state);
            }
            let row_len = if form == 2 { format.stored_bytes(1, width).unwrap() } else { width };
            let halves: Vec<f16> = state.iter().map(|&number| f16::from_f32(number)).collect();
            let rounded: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();
            let meant = if is_rounded || form == 1 { &rounded } else { &state };
            let flat = tuples.concat();
            let operands = Operands {
                state: match form {
                    0 => StateNumbers::Float32(&state),
                    1 => StateNumbers::Float16(&halves),
                    _ => StateNumbers::Blocks(&blocks),
                },
                state_dims: &[batch, groups, context, row_len].map(|size| i64::try_from(size).unwrap()),
                length: &[i64::try_from(length).unwrap()],
                indices: &flat,
                index_dims: &[i64::try_from(tuples.len()).unwrap(), 3],
                rows: &rows,
                row_dims: &[i64::try_from(width).unwrap()],
                blanked: blanked.as_deref(),
            };
            let attended = AttendedRows::new(&operands).unwrap();
            let mut result = vec![f32::NAN; attended.result_len()];
            let mut next = 0;
            for block in 0..attended.blocks() {
                let range = attended.range(block);
                prop_assert_eq!(range.start, next);
                next = range.end;
                attended.write(block, is_rounded, &mut result[range]);
            }
            prop_assert_eq!(next, result.len());
            let blanked = blanked.unwrap_or_default();
            prop_assert_eq!(result, expected(meant, sizes, length, &tuples, &rows, &blanked));
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let state = [0.0; 24];
        let fitting = Operands {
            state: StateNumbers::Float32(&state),
            state_dims: &[1, 2, 4, 3],
            length: &[2],
            indices: &[0, 0, 1],
            index_dims: &[1, 3],
            rows: &[1.0, 2.0, 3.0],
            row_dims: &[1, 3],
            blanked: Some(&[0, 1]),
        };
        assert!(AttendedRows::new(&fitting).is_ok());
        for (operands, named) in [
            (Operands { state_dims: &[2, 4, 3], ..fitting }, "a state of dims"),
            (Operands { state_dims: &[1, 2, 4, -3], ..fitting }, "a state of dims"),
            (Operands { state_dims: &[1, 2, 4, 4], ..fitting }, "24 numbers"),
            (Operands { state: StateNumbers::Blocks(&[0; 24]), ..fitting }, "3 bytes of blocks"),
            (Operands { length: &[5], ..fitting }, "a length of 5"),
            (Operands { length: &[-1], ..fitting }, "a length of -1"),
            (Operands { length: &[], ..fitting }, "0 lengths"),
            (Operands { index_dims: &[3, 1], ..fitting }, "tuples of dims"),
            (Operands { rows: &[1.0], ..fitting }, "1 numbers for 1 rows"),
            (Operands { blanked: Some(&[1; 3]), ..fitting }, "3 slots to blank"),
        ] {
            assert!(AttendedRows::new(&operands).unwrap_err().contains(named), "{named}");
        }
    }
}
