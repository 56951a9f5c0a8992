//! Conversion of whole arrays to blocks with a common exponent and back ([`qaic_quant::mx`]).

use qaic_quant::mx::{self, BLOCK, MxFormat, NotFinite};

use super::pieces::{PIECE, in_rows};
use crate::error::MemoryError;
use crate::{HostSlice, Storage};

// A piece of a long row must end at a block boundary.
const _: () = assert!(PIECE.is_multiple_of(BLOCK));

fn stored_bytes(format: MxFormat, len: usize, row_len: usize) -> usize {
    len / row_len * row_len.div_ceil(BLOCK) * format.block_bytes()
}

/// Encodes rows of `row_len` float32 values into `stored`, which must have the required size.
pub fn encode(format: MxFormat, values: HostSlice<'_>, row_len: usize, mut stored: &mut [u8]) -> NotFinite {
    let mut total = NotFinite::default();
    let mut buffer = [0.0_f32; PIECE];
    in_rows(values.len() / size_of::<f32>(), row_len, |start, len, row_len| {
        let piece = &mut buffer[..len];
        // The range is within `values` by construction.
        let _ = values.read_into(start * size_of::<f32>(), piece);
        if let Some(into) = stored.split_off_mut(..stored_bytes(format, len, row_len)) {
            total += mx::encode(format, row_len, piece, into);
        }
    });
    total
}

/// Decodes `count` float32 values from rows of `row_len`.
pub fn decode(
    format: MxFormat,
    stored: HostSlice<'_>,
    row_len: usize,
    count: usize,
) -> Result<Storage, MemoryError> {
    let mut storage = Storage::new(count * size_of::<f32>())?;
    let mut values = storage.memory_mut();
    let mut bytes = vec![0_u8; PIECE * format.block_bytes()];
    let mut buffer = [0.0_f32; PIECE];
    let mut done = 0;
    in_rows(count, row_len, |start, len, row_len| {
        let piece = &mut bytes[..stored_bytes(format, len, row_len)];
        let _ = stored.read_into(done, piece);
        done += piece.len();
        mx::decode(format, row_len, piece, &mut buffer[..len]);
        let _ = values.write_from(start * size_of::<f32>(), &buffer[..len]);
    });
    Ok(storage)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(memory: &Storage) -> Vec<f32> {
        let bytes = memory.memory().to_vec();
        bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn arrays_are_as_their_rows_at_once(
            rows in 0..4_usize, row_len in 1..5000_usize, seed in any::<u32>(), which in 0..3_usize,
        ) {
            let format = MxFormat::ALL[which];
            let value = |at: u32| f32::from_bits(seed.wrapping_add(at).wrapping_mul(2_654_435_761) & 0x8fff_ffff);
            let values: Vec<f32> = (0..).map(value).take(rows * row_len).collect();
            let mut expected = vec![0; format.stored_bytes(rows, row_len).unwrap()];
            let expected_found = mx::encode(format, row_len, &values, &mut expected);
            let mut stored = vec![1; expected.len()];
            let found = encode(format, HostSlice::of(&values), row_len, &mut stored);
            prop_assert_eq!((found, &stored), (expected_found, &expected));

            let mut decoded = vec![0.0; values.len()];
            mx::decode(format, row_len, &expected, &mut decoded);
            let given = decode(format, HostSlice::of(&stored), row_len, values.len()).unwrap();
            prop_assert_eq!(numbers(&given), &decoded[..]);
        }
    }

    #[test]
    fn values_without_a_place_are_counted_in_every_piece() {
        let mut values = vec![1.0_f32; 3 * PIECE];
        (values[0], values[PIECE], values[3 * PIECE - 1]) = (f32::NAN, f32::INFINITY, f32::NAN);
        let mut stored = vec![0; MxFormat::Int8.stored_bytes(1, values.len()).unwrap()];
        let found = encode(MxFormat::Int8, HostSlice::of(&values), values.len(), &mut stored);
        assert_eq!(found, NotFinite { nan: 2, infinite: 1 });
    }
}
