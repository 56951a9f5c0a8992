//! Compares products with stored weights with sums in float64, and every family of kernels with the portable one.

#![allow(clippy::unwrap_used)] // a failed assumption fails the test
#![allow(clippy::cast_possible_truncation)] // float64 to float32 on purpose

use half::{bf16, f16};
use proptest::prelude::*;
use qaic_mem::convert::Isa;
use qaic_mem::stored::{
    Form, Layout, Prefetcher, Product, Rounding, StoredError, StoredRows, TILE_ROWS, UNIT, widen_float16,
};
use qaic_quant::mx::{self, MxFormat};

const FORMS: [Form; 11] = [
    Form::Float32,
    Form::Float16,
    Form::Bfloat16,
    Form::Mxfp6,
    Form::Mxint8,
    Form::Int8 { group: 0 },
    Form::Int8 { group: 32 },
    Form::Int8 { group: 64 },
    Form::Uint4 { group: 0 },
    Form::Uint4 { group: 32 },
    Form::Uint4 { group: 128 },
];

const LAYOUTS: [Layout; 2] = [Layout::Rows, Layout::Tiles];

/// Interleaves the units of the rows of a tile; each of `rows` rows has `count` units.
fn tiled(bytes: &[u8], rows: usize, count: usize) -> Vec<u8> {
    let unit = bytes.len() / rows / count;
    let mut tiles = vec![0; rows.next_multiple_of(TILE_ROWS) * count * unit];
    for (at, bytes) in bytes.chunks(unit).enumerate() {
        let (row, index) = (at / count, at % count);
        let place = (row / TILE_ROWS * count + index) * TILE_ROWS + row % TILE_ROWS;
        tiles[place * unit..(place + 1) * unit].copy_from_slice(bytes);
    }
    tiles
}

/// Returns stored bytes, and the numbers that they represent.
fn matrix(form: Form, layout: Layout, rows: usize, len: usize, numbers: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (parts, meant) = stored_parts(form, rows, len, numbers);
    let bytes = parts.iter().flat_map(|(bytes, count)| match layout {
        Layout::Rows => bytes.clone(),
        Layout::Tiles => tiled(bytes, rows, *count),
    });
    (bytes.collect(), meant)
}

/// Returns the parts of stored bytes, row by row, with the number of interleaved items of a row, and the
/// numbers that they represent.
fn stored_parts(form: Form, rows: usize, len: usize, numbers: &[f32]) -> (Vec<(Vec<u8>, usize)>, Vec<f32>) {
    let units = len.div_ceil(UNIT);
    let padded_len = len.next_multiple_of(UNIT);
    let mut padded = vec![0.0; rows * padded_len];
    for (to, from) in padded.chunks_mut(padded_len).zip(numbers.chunks(len)) {
        to[..len].copy_from_slice(from);
    }
    let mut behind = Vec::new();
    let (bytes, meant): (Vec<u8>, Vec<f32>) = match form {
        Form::Float32 => (padded.iter().flat_map(|x| x.to_le_bytes()).collect(), padded),
        Form::Float16 => {
            let halves: Vec<f16> = padded.iter().map(|&x| f16::from_f32(x)).collect();
            (
                halves.iter().flat_map(|x| x.to_le_bytes()).collect(),
                halves.iter().map(|x| x.to_f32()).collect(),
            )
        }
        Form::Bfloat16 => {
            let halves: Vec<bf16> = padded.iter().map(|&x| bf16::from_f32(x)).collect();
            (
                halves.iter().flat_map(|x| x.to_le_bytes()).collect(),
                halves.iter().map(|x| x.to_f32()).collect(),
            )
        }
        Form::Mxfp6 | Form::Mxint8 => {
            let format = MxFormat::from_name(form.name()).unwrap();
            let mut bytes = vec![0; format.stored_bytes(rows, padded_len).unwrap()];
            mx::encode(format, padded_len, &padded, &mut bytes);
            mx::decode(format, padded_len, &bytes, &mut padded);
            (bytes, padded)
        }
        Form::Int8 { group } | Form::Uint4 { group } => {
            let is_int8 = matches!(form, Form::Int8 { .. });
            let group = if group == 0 { padded_len } else { group };
            let (mut codes, mut scales, mut zeros) = (Vec::new(), Vec::new(), Vec::new());
            for (row, numbers) in padded.chunks_mut(padded_len).enumerate() {
                for (place, numbers) in numbers.chunks_mut(group).enumerate() {
                    let scale = 0.013 + f32::from(u16::try_from(row + place).unwrap()) / 64.0;
                    let zero = i8::try_from((row + 3 * place) % 7).unwrap() + if is_int8 { -3 } else { 4 };
                    scales.extend(scale.to_le_bytes());
                    zeros.push(zero.cast_unsigned());
                    for number in numbers {
                        let (low, high) = if is_int8 { (-128, 127) } else { (0, 15) };
                        let code = ((*number / scale) as i32 + i32::from(zero)).clamp(low, high);
                        codes.push(code.to_le_bytes()[0]);
                        *number = f32::from(i16::try_from(code - i32::from(zero)).unwrap()) * scale;
                    }
                }
            }
            if !is_int8 {
                codes = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
            }
            let groups = padded_len.div_ceil(group);
            behind = vec![(scales, groups), (zeros, groups)];
            (codes, padded)
        }
    };
    let meant = meant.chunks(padded_len).flat_map(|row| row[..len].to_vec()).collect();
    behind.insert(0, (bytes, units));
    (behind, meant)
}

fn product(
    isa: Isa,
    stored: StoredRows<'_>,
    activations: &[f32],
    bias: &[f32],
    rounding: Rounding,
) -> Vec<f32> {
    computed(isa, &Product::new(stored, activations, bias, rounding).unwrap())
}

fn computed(isa: Isa, product: &Product<'_>) -> Vec<f32> {
    let columns = product.columns();
    let mut result = vec![f32::from_bits(0x7fc0_1234); product.rows() * columns];
    for block in 0..product.blocks() {
        product.block(isa, block, |row, first, numbers| {
            let start = row * columns + first;
            result[start..start + numbers.len()].copy_from_slice(numbers);
        });
    }
    result
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| if number.is_nan() { u32::MAX } else { number.to_bits() }).collect()
}

/// Numbers of many magnitudes, including zeros.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![4 => -4.0_f32..4.0, 1 => -1e-3_f32..1e-3, 1 => Just(0.0), 1 => Just(-0.0), 1 => -1e-9_f32..1e-9]
}

fn sizes() -> impl Strategy<Value = (usize, usize, usize)> {
    let len = prop_oneof![1_usize..140, Just(1024), Just(1056), Just(1100)];
    (
        prop_oneof![2 => Just(1_usize), 2 => Just(2), 2 => 3_usize..14, 1 => 14_usize..40],
        prop_oneof![6 => 1_usize..20, 1 => 20_usize..70],
        len,
    )
}

proptest! {
    // Portable code without optimizations is slow; a case has many sums.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn products_are_those_of_float64(
        (rows, columns, len) in sizes(),
        (at, layout) in (0..FORMS.len(), prop::sample::select(&LAYOUTS[..])),
        numbers in prop::collection::vec(number(), 997),
        (has_bias, rounding) in (any::<bool>(), 0..3_usize),
    ) {
        let drawn = |count: usize, step: usize| -> Vec<f32> { (0..count).map(|at| numbers[at * step % 997]).collect() };
        let (bytes, weights) = matrix(FORMS[at], layout, columns, len, &drawn(columns * len, 1));
        let stored = StoredRows::new(FORMS[at], layout, columns, len, &bytes).unwrap();
        let (activations, bias) = (drawn(rows * len, 3), if has_bias { drawn(columns, 5) } else { Vec::new() });
        let rounding = [Rounding::Float32, Rounding::Float16, Rounding::Bfloat16][rounding];
        let found = product(Isa::best(), stored, &activations, &bias, rounding);
        for (row, activations) in activations.chunks(len).enumerate() {
            for (column, weights) in weights.chunks(len).enumerate() {
                let terms = activations.iter().zip(weights).map(|(&a, &b)| f64::from(a) * f64::from(b));
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                let sum = sum + bias.get(column).map_or(0.0, |&bias| f64::from(bias));
                let found = f64::from(found[row * columns + column]);
                let step = match rounding {
                    Rounding::Float32 => 1e-7,
                    Rounding::Float16 => 1.0 / 2048.0,
                    Rounding::Bfloat16 => 1.0 / 256.0,
                } * sum.abs() + if rounding == Rounding::Float16 { 3e-8 } else { 0.0 };
                prop_assert!((found - sum).abs() <= 1e-6 * size + step, "{found} {sum} {size}");
            }
        }
    }

    #[test]
    fn kernels_of_every_family_give_the_bits_of_the_portable_one(
        (rows, columns, len) in sizes(),
        (at, layout) in (0..FORMS.len(), prop::sample::select(&LAYOUTS[..])),
        codes in prop::collection::vec(any::<u8>(), 1009),
        numbers in prop::collection::vec(number(), 97),
        rounding in 0..3_usize,
    ) {
        // Any bytes: infinities, NaN, subnormal numbers, blocks of every exponent.
        let form = FORMS[at];
        let bytes: Vec<u8> = codes.iter().copied().cycle().take(form.bytes(layout, columns, len).unwrap()).collect();
        let stored = StoredRows::new(form, layout, columns, len, &bytes).unwrap();
        let activations: Vec<f32> = numbers.iter().copied().cycle().take(rows * len).collect();
        let rounding = [Rounding::Float32, Rounding::Float16, Rounding::Bfloat16][rounding];
        let portable = product(Isa::Portable, stored, &activations, &[], rounding);
        let mut gathered = vec![0.0; len];
        stored.gather(Isa::Portable, columns - 1, &mut gathered);
        for isa in Isa::available() {
            for prefetcher in [Prefetcher::StopsAtPages, Prefetcher::CrossesPages, Prefetcher::FallsBehind] {
                let product = Product::new(stored, &activations, &[], rounding).unwrap().with_prefetcher(prefetcher);
                let found = computed(isa, &product);
                prop_assert_eq!(bits(&found), bits(&portable), "{:?}, {:?}", isa, prefetcher);
            }
            let mut row = vec![0.0; len];
            stored.gather(isa, columns - 1, &mut row);
            prop_assert_eq!(bits(&row), bits(&gathered), "{:?}", isa);
        }
    }

    #[test]
    fn a_row_of_a_product_is_the_same_beside_others(
        (rows, columns, len) in sizes(), (at, layout) in (0..FORMS.len(), prop::sample::select(&LAYOUTS[..])),
        codes in prop::collection::vec(any::<u8>(), 1009),
        numbers in prop::collection::vec(number(), 997),
    ) {
        // Any bytes, as above.
        let form = FORMS[at];
        let bytes: Vec<u8> = codes.iter().copied().cycle().take(form.bytes(layout, columns, len).unwrap()).collect();
        let stored = StoredRows::new(form, layout, columns, len, &bytes).unwrap();
        let activations: Vec<f32> = numbers.iter().copied().cycle().take(rows * len).collect();
        let together = product(Isa::best(), stored, &activations, &[], Rounding::Float32);
        for (row, activations) in activations.chunks(len).enumerate() {
            let alone = product(Isa::best(), stored, activations, &[], Rounding::Float32);
            prop_assert_eq!(bits(&alone), bits(&together[row * columns..(row + 1) * columns]));
        }
    }

    #[test]
    fn gathered_rows_are_the_stored_numbers(
        (rows, len) in (1_usize..9, 1_usize..140), (row, count) in any::<(prop::sample::Index, prop::sample::Index)>(),
        (at, layout) in (0..FORMS.len(), prop::sample::select(&LAYOUTS[..])),
        numbers in prop::collection::vec(number(), 997),
    ) {
        let numbers: Vec<f32> = numbers.into_iter().cycle().take(rows * len).collect();
        let (bytes, meant) = matrix(FORMS[at], layout, rows, len, &numbers);
        let stored = StoredRows::new(FORMS[at], layout, rows, len, &bytes).unwrap();
        let row = row.index(rows);
        let end = row + 1 + count.index(rows - row);
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            let mut found = vec![9.0; (end - row) * len];
            stored.gather(isa, row, &mut found);
            prop_assert_eq!(bits(&found), bits(&meant[row * len..end * len]));
        }
    }

    #[test]
    fn a_product_with_a_part_has_the_columns_of_that_part(
        (rows, columns, len) in sizes(), (first, last) in any::<(prop::sample::Index, prop::sample::Index)>(),
        (at, layout) in (0..FORMS.len(), prop::sample::select(&LAYOUTS[..])),
        numbers in prop::collection::vec(number(), 997),
    ) {
        let drawn = |count: usize| -> Vec<f32> { numbers.iter().copied().cycle().take(count).collect() };
        let (bytes, _) = matrix(FORMS[at], layout, columns, len, &drawn(columns * len));
        let stored = StoredRows::new(FORMS[at], layout, columns, len, &bytes).unwrap();
        let activations = drawn(rows * len);
        let whole = product(Isa::best(), stored, &activations, &[], Rounding::Float32);
        let first = first.index(columns);
        let range = first..first + 1 + last.index(columns - first);
        let is_whole = |end: usize| layout == Layout::Rows || end.is_multiple_of(TILE_ROWS);
        let Some(part) = stored.part(range.clone()) else {
            prop_assert!(!(is_whole(range.start) && (is_whole(range.end) || range.end == columns)));
            return Ok(());
        };
        prop_assert!(is_whole(range.start) && (is_whole(range.end) || range.end == columns));
        let found = product(Isa::best(), part, &activations, &[], Rounding::Float32);
        for (found, whole) in found.chunks(range.len()).zip(whole.chunks(columns)) {
            prop_assert_eq!(bits(found), bits(&whole[range.clone()]));
        }
    }

    #[test]
    fn bytes_of_another_number_are_refused(
        (rows, len) in (any::<usize>(), any::<usize>()), count in 0_usize..200,
        (at, layout) in (0..FORMS.len(), prop::sample::select(&LAYOUTS[..])),
    ) {
        let bytes = vec![0; count];
        let found = StoredRows::new(FORMS[at], layout, rows, len, &bytes);
        prop_assert_eq!(found.is_ok(), FORMS[at].bytes(layout, rows, len) == Some(count));
    }
}

/// Numbers from -2 to 2 without a pattern that rows or units share.
fn spread(count: usize, seed: usize) -> Vec<f32> {
    let number = |at: usize| u16::try_from((at + seed) * 7919 % 4001).unwrap();
    (0..count).map(|at| f32::from(number(at)) / 1000.0 - 2.0).collect()
}

/// Compares sizes on both sides of the boundaries of tiles, panels, blocks, units and chunks with a part of
/// one portable result.
#[test]
fn kernels_of_every_family_agree_at_the_borders_of_their_loops() {
    const ROWS: [usize; 7] = [3, 4, 5, 8, 9, 12, 13];
    const COLUMNS: [usize; 6] = [1, 15, 16, 17, 32, 33];
    let [most_rows, most_columns] = [ROWS[6], COLUMNS[5]];
    for (len, form) in [1, 31, 1024, 1025].into_iter().flat_map(|len| FORMS.map(|form| (len, form))) {
        let (activations, numbers) = (spread(most_rows * len, 1), spread(most_columns * len, 17));
        let (bytes, _) = matrix(form, Layout::Tiles, most_columns, len, &numbers);
        let stored = StoredRows::new(form, Layout::Tiles, most_columns, len, &bytes).unwrap();
        let portable = bits(&product(Isa::Portable, stored, &activations, &[], Rounding::Float32));
        for (layout, columns) in LAYOUTS.into_iter().flat_map(|layout| COLUMNS.map(|count| (layout, count))) {
            let (bytes, _) = matrix(form, layout, columns, len, &numbers[..columns * len]);
            let stored = StoredRows::new(form, layout, columns, len, &bytes).unwrap();
            for (rows, isa) in
                ROWS.into_iter().flat_map(|rows| Isa::available().into_iter().map(move |isa| (rows, isa)))
            {
                // Long sums take minutes without optimizations, and chunks differ from each other only in length.
                if len > UNIT && (isa == Isa::Portable || !([4, 13].contains(&rows) && columns == 17)) {
                    continue;
                }
                let found = product(isa, stored, &activations[..rows * len], &[], Rounding::Float32);
                for (row, found) in found.chunks(columns).enumerate() {
                    let expected = &portable[row * most_columns..][..columns];
                    assert_eq!(
                        bits(found),
                        expected,
                        "{isa:?} {form:?} {layout:?} {rows} x {columns} x {len}"
                    );
                }
            }
        }
    }
}

/// All patterns of float16, the numbers next to the middle between neighbors, and special values, in slices of any length.
#[test]
fn every_family_rounds_and_widens_as_the_half_crate() {
    let narrow: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let wide: Vec<f32> = narrow.iter().map(|number| number.to_f32()).collect();
    let near = |number: &f32| {
        [-0x1001, -0x1000, -0xfff, -1, 0, 1, 0xfff, 0x1000, 0x1001]
            .map(|step: i32| f32::from_bits(number.to_bits().wrapping_add_signed(step)))
    };
    let numbers: Vec<f32> =
        wide.iter().flat_map(near).chain([f32::MAX, f32::MIN_POSITIVE, 1e-45, -1e-40]).collect();
    let same = |found: &[f32], expected: &[f32]| {
        found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
    };
    for isa in Isa::available() {
        let mut found = vec![0.0; narrow.len()];
        widen_float16(isa, &narrow, &mut found);
        assert!(same(&found, &wide), "{isa:?}");
        for (rounding, round) in [
            (Rounding::Float32, (|number| number) as fn(f32) -> f32),
            (Rounding::Float16, |number| f16::from_f32(number).to_f32()),
            (Rounding::Bfloat16, |number| bf16::from_f32(number).to_f32()),
        ] {
            let expected: Vec<f32> = numbers.iter().map(|&number| round(number)).collect();
            let mut found = numbers.clone();
            rounding.round(isa, &mut found);
            assert!(same(&found, &expected), "{isa:?} {rounding:?}");
            for len in 0..40 {
                let mut found = numbers[7..7 + len].to_vec();
                rounding.round(isa, &mut found);
                assert!(same(&found, &expected[7..7 + len]), "{isa:?} {rounding:?} {len}");
                let mut found = vec![9.0; 40];
                widen_float16(isa, &narrow[15_000..15_000 + len], &mut found);
                assert!(
                    same(&found[..len], &wide[15_000..15_000 + len])
                        && found[len..].iter().all(|rest| rest.to_bits() == 9.0_f32.to_bits())
                );
            }
        }
    }
}

/// Passes, and threads that pack parts in any order, change no bit of the result.
#[test]
fn passes_have_the_rows_of_the_whole_product() {
    for rows in [1, 4, 5, 512, 513, 1025] {
        let (columns, len) = (3, 1025);
        let (bytes, _) = matrix(Form::Float16, Layout::Tiles, columns, len, &spread(columns * len, 17));
        let stored = StoredRows::new(Form::Float16, Layout::Tiles, columns, len, &bytes).unwrap();
        let (activations, bias) = (spread(rows * len, 1), spread(columns, 5));
        let product = || Product::new(stored, &activations, &bias, Rounding::Float16).unwrap();
        let mut found = Vec::new();
        for pass in product().passes() {
            assert!((rows.min(5)..=Product::PASS_ROWS).contains(&pass.rows()), "{} of {rows}", pass.rows());
            std::thread::scope(|scope| {
                scope.spawn(|| (0..pass.parts()).rev().for_each(|part| pass.pack(part)));
                (0..pass.parts()).for_each(|part| pass.pack(part));
            });
            found.extend(computed(Isa::best(), &pass));
        }
        assert_eq!(bits(&found), bits(&computed(Isa::best(), &product())), "{rows} rows");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused_with_their_numbers() {
    let bytes = vec![0; 4 * 40 * UNIT * 2];
    let stored = StoredRows::new(Form::Float32, Layout::Rows, 40, 33, &bytes).unwrap();
    let refused = |activations: &[f32], bias: &[f32]| {
        Product::new(stored, activations, bias, Rounding::Float32).unwrap_err().to_string()
    };
    assert_eq!(refused(&[0.0; 34], &[]), "activations: found 34 numbers, expected rows of 33");
    assert_eq!(refused(&[0.0; 33], &[0.0; 41]), "bias: found 41 numbers, expected 40");
    assert_eq!(Product::new(stored, &[], &[], Rounding::Float32).unwrap().blocks(), 0);
    for group in [1, 33, 48, 96] {
        let refused = StoredRows::new(Form::Int8 { group }, Layout::Rows, 1, 96, &[0; 101]).unwrap_err();
        assert_eq!(refused, StoredError::Group { found: group });
    }
    assert!(stored.part(39..41).is_none());
    assert!(stored.part(41..42).is_none());
    let short = StoredRows::new(Form::Float16, Layout::Rows, 2, 40, &[0; 255]).unwrap_err().to_string();
    assert_eq!(short, "float16 of 2 rows x 40 elements: found 255 bytes, expected 256");
}
