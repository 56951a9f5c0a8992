//! Compares packed payloads with each number converted and placed on its own.

#![allow(clippy::unwrap_used)] // a failed assumption fails the test
#![allow(clippy::cast_possible_truncation)] // float64 to float32 on purpose
#![allow(clippy::cast_sign_loss, clippy::float_cmp, clippy::many_single_char_names)] // exact values

use std::io;

use half::{bf16, f16};
use proptest::prelude::*;
use qaic_mem::convert::packing::{Code, Found, Matrices, Number, Packing};
use qaic_quant::mx::{self, MxFormat};
use qaic_quant::stored::{Layout, TILE_ROWS, UNIT};

/// Computes all blocks of a payload, the last one first if `is_backward`.
fn packed(packing: &Packing, source: &[u8], is_backward: bool) -> (Vec<u8>, Found) {
    let read = |offset: u64, into: &mut [u8]| {
        let start = usize::try_from(offset).unwrap();
        let found = source.get(start..start + into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(found);
        Ok(())
    };
    let mut blocks: Vec<_> = (0..packing.blocks).collect();
    if is_backward {
        blocks.reverse();
    }
    let mut computed = Vec::new();
    for index in blocks {
        let mut block = vec![0xa5; packing.block_bytes(index)];
        let found = packing.fill(index, &read, &mut block).unwrap();
        computed.push((index, block, found));
    }
    computed.sort_by_key(|(index, ..)| *index);
    assert_eq!(packing.block_bytes(packing.blocks), 0);
    assert_eq!(packing.fill(packing.blocks, &read, &mut []).unwrap(), Found::default());
    let mut all = Found::default();
    for (_, _, found) in &computed {
        all += *found;
    }
    (computed.into_iter().flat_map(|(_, block, _)| block).collect(), all)
}

/// Returns the bytes of a number that is converted on its own.
fn bytes_of(number: Number, value: f64) -> Vec<u8> {
    match number {
        Number::Float64 => value.to_le_bytes().to_vec(),
        Number::Float32 => (value as f32).to_le_bytes().to_vec(),
        Number::Float16 => f16::from_f64(value).to_le_bytes().to_vec(),
        Number::Bfloat16 => bf16::from_f32(value as f32).to_le_bytes().to_vec(),
        Number::Byte => vec![value as u8],
    }
}

fn value_of(number: Number, bytes: &[u8]) -> f64 {
    match number {
        Number::Float64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        Number::Float32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        Number::Float16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        Number::Bfloat16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        Number::Byte => f64::from(bytes[0]),
    }
}

/// Stores the rows of matrices unit by unit, as the documentation of the layouts describes them.
fn placed(values: &[f64], number: Number, code: Code, order: &Matrices) -> Vec<u8> {
    let Matrices { count, rows, columns, is_turned, layout, unit } = *order;
    let (stored_rows, len) = if is_turned { (columns, rows) } else { (rows, columns) };
    let units = len.div_ceil(unit);
    let mut result = Vec::new();
    let mut all_rows = Vec::new();
    for matrix in 0..count {
        for row in 0..stored_rows {
            let at = |k: usize| if is_turned { k * columns + row } else { row * columns + k };
            let numbers: Vec<f64> = (0..len).map(|k| values[matrix * rows * columns + at(k)]).collect();
            all_rows.push(numbers);
        }
    }
    let together = layout.together();
    let blank = if code == Code::Signed { 0x80 } else { 0 };
    let zeros = units_of(&vec![0.0; len], units, unit, number, code);
    for tile in all_rows.chunks(together) {
        let rows: Vec<_> = tile.iter().map(|row| units_of(row, units, unit, number, code)).collect();
        for at in 0..units {
            for row in 0..together {
                match rows.get(row) {
                    Some(units) => result.extend(&units[at]),
                    None => result.extend(vec![blank; zeros[at].len()]),
                }
            }
        }
    }
    result
}

fn units_of(row: &[f64], units: usize, unit: usize, number: Number, code: Code) -> Vec<Vec<u8>> {
    let mut padded = row.to_vec();
    padded.resize(units * unit, 0.0);
    let encode = |numbers: &[f64]| match code {
        Code::Plain => numbers.iter().flat_map(|&value| bytes_of(number, value)).collect(),
        Code::Signed => numbers.iter().map(|&value| value as u8 ^ 0x80).collect(),
        Code::Mxfp6 | Code::Mxfp6Float16 => {
            let mut floats: Vec<f32> = numbers.iter().map(|&value| value as f32).collect();
            let mut stored = vec![0; 25];
            mx::encode(MxFormat::Fp6E2M3, 32, &floats, &mut stored);
            if code == Code::Mxfp6Float16 {
                mx::decode(MxFormat::Fp6E2M3, 32, &stored, &mut floats);
                for value in &mut floats {
                    *value = f16::from_f32(*value).to_f32();
                }
                if floats.iter().all(|value| value.is_finite()) {
                    mx::encode(MxFormat::Fp6E2M3, 32, &floats, &mut stored);
                }
            }
            stored
        }
    };
    padded.chunks(unit).map(encode).collect()
}

const FLOATS: [Number; 4] = [Number::Float64, Number::Float32, Number::Float16, Number::Bfloat16];

/// Values that every type represents, so that the oracle converts each only once.
fn value(seed: u64, at: usize) -> f64 {
    let bits = (at as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let scale = f64::from(i32::try_from(bits >> 8 & 7).unwrap() - 12).exp2();
    (f64::from(u8::try_from(bits & 0xff).unwrap()) - 128.0) * scale
}

fn order() -> impl Strategy<Value = Matrices> {
    let sides =
        prop_oneof![(1..9_usize, 1..90_usize), (1..90_usize, 1..9_usize), (30..40_usize, 60..70_usize)];
    (1..3_usize, sides, any::<bool>(), any::<bool>()).prop_map(
        |(count, (rows, columns), is_turned, is_tiled)| {
            let layout = if is_tiled { Layout::Tiles } else { Layout::Rows };
            // Tiles do not contain columns of two matrices.
            let columns = if is_turned && count > 1 { columns.next_multiple_of(TILE_ROWS) } else { columns };
            Matrices { count, rows, columns, is_turned, layout, unit: UNIT }
        },
    )
}

proptest! {
    #[test]
    fn matrices_are_stored_as_their_numbers_one_by_one(
        order in order(), seed in any::<u64>(), from in 0..4_usize, to in 0..4_usize,
        code in prop_oneof![Just(Code::Plain), Just(Code::Mxfp6), Just(Code::Mxfp6Float16)], is_backward: bool,
    ) {
        let (from, to) = (FLOATS[from], FLOATS[to]);
        let values: Vec<f64> = (0..order.count * order.rows * order.columns).map(|at| value(seed, at)).collect();
        let source: Vec<u8> = values.iter().flat_map(|&value| bytes_of(from, value)).collect();
        let packing = Packing::new(source.len(), (from, to), false, code, Some(order)).unwrap();
        let (stored, found) = packed(&packing, &source, is_backward);
        prop_assert_eq!(stored.len(), packing.bytes);
        prop_assert!(stored == placed(&values, to, code, &order));
        prop_assert_eq!((found.beyond, found.not_finite), Default::default());
    }

    #[test]
    fn bytes_are_stored_in_units_of_any_size(
        rows in 1..50_usize, units in 1..9_usize, is_wide: bool, is_signed: bool, seed in any::<u8>(),
    ) {
        let unit = if is_wide { 32 } else { 16 };
        let order = Matrices {
            count: 1, rows, columns: units * unit, is_turned: false, layout: Layout::Tiles, unit,
        };
        let code = if is_signed { Code::Signed } else { Code::Plain };
        let source: Vec<u8> = (0..rows * units * unit).map(|at| (at as u8).wrapping_mul(seed)).collect();
        let values: Vec<f64> = source.iter().map(|&byte| f64::from(byte)).collect();
        let packing = Packing::new(source.len(), (Number::Byte, Number::Byte), false, code, Some(order)).unwrap();
        prop_assert!(packed(&packing, &source, false).0 == placed(&values, Number::Byte, code, &order));
    }

    #[test]
    fn numbers_in_order_are_converted_one_by_one(
        bits in prop::collection::vec(any::<u64>(), 0..300), from in 0..4_usize, to in 0..4_usize, clip: bool,
    ) {
        let (from, to) = (FLOATS[from], FLOATS[to]);
        let source: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).take(bits.len() * from.size()).collect();
        let values: Vec<f64> = source.chunks(from.size()).map(|bytes| value_of(from, bytes)).collect();
        let packing = Packing::new(source.len(), (from, to), clip, Code::Plain, None).unwrap();
        let (stored, found) = packed(&packing, &source, false);
        let results: Vec<f64> = stored.chunks(to.size()).map(|bytes| value_of(to, bytes)).collect();
        let is_narrowed = to == Number::Float16 && from != to;
        let mut beyond = Vec::new();
        for (&value, &result) in values.iter().zip(&results) {
            let expected = value_of(to, &bytes_of(to, value));
            if is_narrowed && value.is_finite() && value.abs() >= 65520.0 {
                beyond.push(value);
                let limit = if clip { 65504.0 } else { f64::INFINITY };
                prop_assert_eq!(result, limit.copysign(value));
            } else if (from, to) != (Number::Float64, Number::Float16) {
                // The oracle ignores the lower half of a float64.
                prop_assert!(result == expected || result.is_nan() && expected.is_nan(), "{value:e}");
            }
        }
        prop_assert_eq!(found.beyond, beyond.len() as u64);
        let farthest = beyond.iter().copied().fold(0.0, |far: f64, value| if value.abs() > far.abs() { value } else { far });
        prop_assert_eq!(found.farthest, farthest);
        if is_narrowed && !results.is_empty() {
            prop_assert_eq!(found.has_survivors, results.iter().any(|&result| result != 0.0));
        }
    }
}

#[test]
fn matrices_of_many_blocks_are_whole() {
    for (rows, columns, is_turned) in
        [(700, 5000, true), (5000, 700, false), (3, 70_000, false), (70_000, 3, true)]
    {
        let order = Matrices { count: 1, rows, columns, is_turned, layout: Layout::Tiles, unit: UNIT };
        let values: Vec<f64> = (0..rows * columns).map(|at| value(7, at)).collect();
        let source: Vec<u8> = values.iter().flat_map(|&value| bytes_of(Number::Float32, value)).collect();
        for code in [Code::Plain, Code::Mxfp6] {
            let numbers = (Number::Float32, Number::Float32);
            let packing = Packing::new(source.len(), numbers, false, code, Some(order)).unwrap();
            assert!(packing.blocks > 1 || code == Code::Mxfp6 || rows * columns < 1 << 20);
            let expected = placed(&values, Number::Float32, code, &order);
            assert!(packed(&packing, &source, true).0 == expected, "{rows} x {columns} {code:?}");
        }
    }
}

#[test]
fn values_that_no_form_represents_are_counted() {
    let mut values = vec![1.0_f32; 3 * 40 * 40];
    (values[0], values[1700], values[4799]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let source: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for is_turned in [false, true] {
        let order =
            Matrices { count: 3, rows: 40, columns: 40, is_turned, layout: Layout::Tiles, unit: UNIT };
        let packing =
            Packing::new(source.len(), (Number::Float32, Number::Float32), false, Code::Mxfp6, Some(order))
                .unwrap();
        let found = packed(&packing, &source, false).1.not_finite;
        assert_eq!((found.nan, found.infinite), (1, 2));
    }
}

#[test]
fn values_that_become_zero_are_found() {
    let numbers = (Number::Float32, Number::Float16);
    for (values, lost, has_survivors) in [
        ([1e-9_f32, -2e-9, 0.0], f64::from(2e-9_f32), false),
        ([1e-9, 1.0, 0.0], 0.0, true),
        ([0.0, 0.0, -0.0], 0.0, false),
    ] {
        let source: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let found = packed(&Packing::new(12, numbers, false, Code::Plain, None).unwrap(), &source, false).1;
        assert_eq!((found.lost, found.has_survivors), (lost, has_survivors));
    }
}

#[test]
fn payloads_that_do_not_exist_are_refused() {
    let floats = (Number::Float32, Number::Float16);
    let order = |count, rows, columns, unit, is_turned| {
        Some(Matrices { count, rows, columns, is_turned, layout: Layout::Tiles, unit })
    };
    let refused = |bytes, numbers, code, order| Packing::new(bytes, numbers, false, code, order).is_err();
    assert!(refused(7, floats, Code::Plain, None), "a part of a number");
    assert!(refused(8, (Number::Byte, Number::Float32), Code::Plain, None));
    assert!(refused(8, (Number::Byte, Number::Byte), Code::Mxfp6, order(1, 1, 8, 32, false)));
    assert!(refused(8, floats, Code::Signed, order(1, 1, 2, 32, false)));
    assert!(refused(8, floats, Code::Mxfp6, None), "blocks of no rows");
    assert!(refused(8, floats, Code::Mxfp6, order(1, 1, 2, 16, false)));
    assert!(refused(8, floats, Code::Plain, order(1, 1, 3, 32, false)), "another size");
    assert!(refused(8, floats, Code::Plain, order(1, 1, 2, 0, false)));
    assert!(refused(24, floats, Code::Plain, order(2, 1, 3, 32, true)), "a tile of two matrices");
    for huge in [usize::MAX, usize::MAX / 2, usize::MAX / 4, 1 << 62] {
        assert!(refused(8, floats, Code::Plain, order(huge, 1, 1, 32, false)));
        assert!(refused(8, floats, Code::Plain, order(1, huge, 1, 32, true)));
        assert!(refused(0, floats, Code::Plain, order(0, 1, huge, 32, true)));
        assert!(refused(4, floats, Code::Plain, order(1, 1, 1, huge, true)));
    }
    let empty = Packing::new(0, floats, false, Code::Plain, order(1, 0, 5, 32, true)).unwrap();
    assert_eq!((empty.blocks, empty.bytes), (0, 0));
}
