//! Compares the results of every kernel family bit for bit with those of plain scalar arithmetic.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed assumption fails the test

mod oracle;

use oracle::{elements, f32_bytes, narrow, transpose, view, view_mut, widen};
use proptest::prelude::*;
use qaic_mem::convert::{ElementOp, Isa, Pipeline, PipelineError, QuantParams, QuantType, Step};
use qaic_quant::affine;

const EDGES: [f32; 22] = [
    0.0,
    -0.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::MIN,
    f32::MAX,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    65504.0,
    65519.0,
    65519.996,
    65520.0,
    -65520.0,
    2048.0,
    2049.0,
    2051.0,
    5.960_464_5e-8,
    2.980_232_2e-8,
    6.103_515_6e-5,
    6.097_555e-5,
];

/// Returns the configuration for this number of cases; fewer cases run in Miri, which is slow.
fn cases(count: u32) -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() }
    } else {
        ProptestConfig::with_cases(count)
    }
}

/// Runs one operation with every family on unaligned memory and compares with `expected`.
fn check(op: ElementOp, source: &[u8], expected: &[u8]) {
    let count = source.len() / op.source_size();
    let pipeline = Pipeline::new(count, op.source_size(), &[Step::Element(op)]).unwrap();
    let mut shifted = vec![0; source.len() + 1];
    shifted[1..].copy_from_slice(source);
    for isa in Isa::available() {
        let mut out = vec![0xa5; expected.len() + 2];
        let dst = view_mut(&mut out).subslice(1, expected.len()).unwrap();
        pipeline.run(isa, view(&shifted[1..]), dst).unwrap();
        if let Some(at) = (0..count).find(|&k| {
            let size = op.result_size();
            out[1 + k * size..][..size] != expected[k * size..][..size]
        }) {
            let (from, to) = (op.source_size(), op.result_size());
            panic!(
                "{isa:?} {op:?} element {at} of {count}: source {:x?}, got {:x?}, expected {:x?}",
                &source[at * from..][..from],
                &out[1 + at * to..][..to],
                &expected[at * to..][..to]
            );
        }
        assert_eq!((out[0], out[expected.len() + 1]), (0xa5, 0xa5), "{isa:?} {op:?} wrote outside");
    }
}

#[test]
#[cfg_attr(miri, ignore)] // takes too long there
fn widening_of_every_f16_is_exact() {
    let source: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let expected: Vec<u8> = (0..=u16::MAX).flat_map(|bits| widen(bits).to_le_bytes()).collect();
    check(ElementOp::F16ToF32, &source, &expected);
}

#[test]
#[cfg_attr(miri, ignore)] // takes too long there
fn round_trip_of_every_f16_is_the_same_value() {
    for bits in 0..=u16::MAX {
        let x = widen(bits);
        let quiet = if x.is_nan() { bits | 0x200 } else { bits };
        assert_eq!(narrow(x), quiet, "{bits:x}");
    }
}

#[test]
#[cfg_attr(miri, ignore)] // takes too long there
fn narrowing_of_every_kind_of_f32_rounds_to_even() {
    // Values around each float16 and around each midpoint of two, and float32 values with a stride coprime to their
    // number.
    let near = (0..0x7c00_u16).flat_map(|bits| {
        let (low, high) = (f64::from(widen(bits)), f64::from(widen(bits + 1).min(65536.0)));
        #[allow(clippy::cast_possible_truncation)] // exact
        let middle = f64::midpoint(low, high) as f32;
        [
            middle,
            middle.next_down(),
            middle.next_up(),
            -middle,
            widen(bits).next_up(),
            widen(bits).next_down(),
        ]
    });
    let across = (0..u32::MAX).step_by(9973).map(f32::from_bits);
    let values: Vec<f32> = EDGES.into_iter().chain(near).chain(across).collect();
    let source = f32_bytes(&values);
    check(ElementOp::F32ToF16, &source, &elements(ElementOp::F32ToF16, &source));
}

#[test]
fn narrowing_edges_have_the_published_values() {
    let cases =
        [(65504.0, 0x7bff), (65519.0, 0x7bff), (65520.0, 0x7c00), (-65520.0, 0xfc00), (2049.0, 0x6800)];
    for (x, bits) in cases {
        check(ElementOp::F32ToF16, &f32_bytes(&[x; 40]), &[u16::to_le_bytes(bits); 40].concat());
    }
}

/// Scales: ordinary ones, powers of two, neighbors of powers of two, and scales that vector kernels do not
/// support.
fn scales() -> impl Strategy<Value = f32> {
    prop_oneof![
        1e-4_f32..2.0,
        (-20_i32..20).prop_map(|e| 2_f32.powi(e)),
        (-20_i32..20).prop_map(|e| 2_f32.powi(e).next_down()),
        prop_oneof![Just(1e-30), Just(1e30), Just(f32::MIN_POSITIVE), Just(f32::MAX), Just(1e-45)],
    ]
}

fn offsets() -> impl Strategy<Value = i32> {
    prop_oneof![-200_i32..200, -70_000_i32..70_000, any::<i32>()]
}

fn quant_types() -> impl Strategy<Value = QuantType> {
    prop_oneof![Just(QuantType::I8), Just(QuantType::U8), Just(QuantType::I16), Just(QuantType::I32)]
}

fn params() -> impl Strategy<Value = QuantParams> {
    (scales(), offsets()).prop_map(|(scale, offset)| QuantParams { scale, offset })
}

/// Values that are critical for a scale: near ties, near the bounds, and any others.
fn values(p: QuantParams) -> impl Strategy<Value = Vec<f32>> {
    let scale = p.scale;
    #[allow(clippy::cast_precision_loss)]
    let tie = (-300_i32..300).prop_map(move |k| (k as f32 + 0.5) * scale);
    #[allow(clippy::cast_precision_loss)]
    let wide = (-40_000_i32..40_000).prop_map(move |k| (k as f32 * 0.5) * scale);
    let value = prop_oneof![
        4 => tie.clone(),
        1 => tie.clone().prop_map(f32::next_up),
        1 => tie.prop_map(f32::next_down),
        4 => wide,
        3 => (-200.0_f32..200.0).prop_map(move |x| x * scale),
        2 => any::<u32>().prop_map(f32::from_bits),
        1 => proptest::sample::select(&EDGES[..]),
    ];
    proptest::collection::vec(value, 0..300)
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn quantization_matches_the_scalar_definition(
        (p, values) in params().prop_flat_map(|p| (Just(p), values(p))),
        to in quant_types(),
    ) {
        let (op, source) = (ElementOp::Quantize(to, p), f32_bytes(&values));
        check(op, &source, &elements(op, &source));
    }

    #[test]
    fn quantization_matches_the_quantizer_of_weights(
        (p, values) in params().prop_flat_map(|p| (Just(p), values(p))),
        to in quant_types(),
    ) {
        let expected = values.iter().flat_map(|&x| {
            let sum = affine::sum(x, p.scale, p.offset);
            match to {
                QuantType::I8 => affine::to_i8(sum).to_le_bytes().to_vec(),
                QuantType::U8 => vec![affine::to_i8(sum).cast_unsigned() ^ 0x80],
                QuantType::I16 => affine::to_i16(sum).to_le_bytes().to_vec(),
                QuantType::I32 => affine::to_i32(sum).to_le_bytes().to_vec(),
            }
        });
        check(ElementOp::Quantize(to, p), &f32_bytes(&values), &expected.collect::<Vec<u8>>());
    }

    #[test]
    fn dequantization_matches_the_scalar_definition(
        p in params(),
        from in quant_types(),
        bytes in proptest::collection::vec(any::<u8>(), 0..800),
    ) {
        let op = ElementOp::Dequantize(from, p);
        let source = &bytes[..bytes.len() / from.size_bytes() * from.size_bytes()];
        check(op, source, &elements(op, source));
    }

    #[test]
    fn narrowing_matches_the_scalar_definition(bits in proptest::collection::vec(any::<u32>(), 0..300)) {
        let source: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        check(ElementOp::F32ToF16, &source, &elements(ElementOp::F32ToF16, &source));
    }
}

/// A tensor and a sequence of steps that fits it.
fn sequences() -> impl Strategy<Value = (Vec<usize>, usize, Vec<Choice>)> {
    let dims = prop_oneof![
        8 => proptest::collection::vec(1_usize..7, 0..=5),
        2 => proptest::collection::vec(1_usize..80, 2..=3),
        1 => proptest::collection::vec(0_usize..3, 0..=8),
    ];
    let size = proptest::sample::select(vec![1_usize, 2, 4, 8]);
    dims.prop_flat_map(move |dims| {
        let order: Vec<usize> = (0..dims.len()).collect();
        let choice = prop_oneof![
            Just(order).prop_shuffle().prop_map(Choice::Transpose),
            (0_usize..4).prop_map(Choice::Op),
        ];
        (Just(dims), size.clone(), proptest::collection::vec(choice, 0..5))
    })
}

#[derive(Clone, Debug)]
enum Choice {
    Transpose(Vec<usize>),
    /// One of the operations for the element size at that step, if there is one.
    Op(usize),
}

fn op_for(size: usize, which: usize) -> Option<ElementOp> {
    let p = QuantParams { scale: 0.05, offset: -3 };
    let types = [QuantType::I8, QuantType::U8, QuantType::I16, QuantType::I32];
    match size {
        1 => Some(ElementOp::Dequantize(types[which % 2], p)),
        2 if which.is_multiple_of(2) => Some(ElementOp::F16ToF32),
        2 => Some(ElementOp::Dequantize(QuantType::I16, p)),
        4 if which == 3 => Some(ElementOp::F32ToF16),
        4 => Some(ElementOp::Quantize(types[which], p)),
        _ => None,
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn fused_sequence_equals_its_steps(
        (mut dims, size, choices) in sequences(),
        seed in any::<u64>(),
        cut in 0_usize..40,
    ) {
        let count: usize = dims.iter().product();
        let mut state = seed | 1;
        let source: Vec<u8> = (0..count * size).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_le_bytes()[7]
        }).collect();
        let (mut expected, mut steps, mut now) = (source.clone(), Vec::new(), size);
        for choice in choices {
            match choice {
                Choice::Transpose(shuffle) => {
                    expected = transpose(&expected, now, &dims, &shuffle);
                    let next = shuffle.iter().map(|&k| dims[k]).collect();
                    steps.push(Step::Transpose { dims: std::mem::replace(&mut dims, next), shuffle });
                }
                Choice::Op(which) => if let Some(op) = op_for(now, which) {
                    expected = elements(op, &expected);
                    now = op.result_size();
                    steps.push(Step::Element(op));
                }
            }
        }
        let pipeline = Pipeline::new(count, size, &steps).unwrap();
        prop_assert_eq!(pipeline.source_bytes(), source.len());
        prop_assert_eq!(pipeline.result_bytes(), expected.len());
        for isa in Isa::available() {
            let mut out = vec![0xa5; expected.len()];
            pipeline.run(isa, view(&source), view_mut(&mut out)).unwrap();
            prop_assert_eq!(&out, &expected);
        }
        let short = expected.len().saturating_sub(cut);
        let mut out = vec![0xa5; short];
        pipeline.run_prefix(view(&source), view_mut(&mut out)).unwrap();
        prop_assert_eq!(&out[..], &expected[..short]);
    }
}

#[test]
fn nchw_image_is_quantized_into_nhwc_in_one_pass() {
    let dims = vec![2, 3, 37, 41];
    let p = QuantParams { scale: 1.0 / 255.0, offset: -128 };
    let op = ElementOp::Quantize(QuantType::U8, p);
    #[allow(clippy::cast_precision_loss)]
    let values: Vec<f32> = (0..2 * 3 * 37 * 41).map(|i| (i % 1009) as f32 / 1000.0).collect();
    let source = f32_bytes(&values);
    let shuffle = vec![0, 2, 3, 1];
    let expected = elements(op, &transpose(&source, 4, &dims, &shuffle));
    for steps in [
        [Step::Element(op), Step::Transpose { dims: dims.clone(), shuffle: shuffle.clone() }],
        [Step::Transpose { dims, shuffle }, Step::Element(op)],
    ] {
        let pipeline = Pipeline::new(values.len(), 4, &steps).unwrap();
        let mut out = vec![0; expected.len()];
        pipeline.run(Isa::best(), view(&source), view_mut(&mut out)).unwrap();
        assert_eq!(out, expected);
    }
}

#[test]
fn pipeline_of_steps_that_do_not_fit_is_refused() {
    let narrow = Step::Element(ElementOp::F32ToF16);
    let turn = |dims: &[usize], shuffle: &[usize]| Step::Transpose {
        dims: dims.to_vec(),
        shuffle: shuffle.to_vec(),
    };
    let build = |steps: &[Step]| Pipeline::new(6, 4, steps).map(drop);
    assert_eq!(
        build(&[narrow.clone(), narrow]),
        Err(PipelineError::ElementSize { step: 1, expected: 4, found: 2 })
    );
    let bad = Err(PipelineError::Shuffle { step: 0 });
    assert_eq!(build(&[turn(&[2, 3], &[0, 0])]), bad);
    assert_eq!(build(&[turn(&[2, 3], &[0, 2])]), bad);
    assert_eq!(build(&[turn(&[2, 3], &[0])]), bad);
    assert_eq!(build(&[turn(&[2, 4], &[1, 0])]), bad);
    assert_eq!(build(&[turn(&[1, 1, 1, 1, 1, 1, 1, 2, 3], &[0, 1, 2, 3, 4, 5, 6, 7, 8])]), bad);
    assert_eq!(
        build(&[turn(&[2, 3], &[1, 0]), turn(&[6, 1], &[1, 0])]),
        Err(PipelineError::Shuffle { step: 1 })
    );
    assert_eq!(Pipeline::new(usize::MAX / 2, 4, &[]).map(drop), Err(PipelineError::TooLarge));
}

#[test]
fn pipeline_with_buffers_of_another_size_is_refused() {
    let pipeline = Pipeline::new(3, 4, &[Step::Element(ElementOp::F32ToF16)]).unwrap();
    let (source, mut out) = ([0; 12], [0; 6]);
    let mut run =
        |from: usize, to: usize| pipeline.run(Isa::best(), view(&source[..from]), view_mut(&mut out[..to]));
    assert_eq!(run(12, 6), Ok(()));
    assert_eq!(run(11, 6), Err(PipelineError::BufferSize { expected: 12, found: 11 }));
    assert_eq!(run(12, 5), Err(PipelineError::BufferSize { expected: 6, found: 5 }));
}
