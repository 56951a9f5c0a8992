//! Plans from descriptors: conversions end to end, partial inputs, and all kinds of invalid descriptors and buffers.

use super::dma::Dma;
use crate::descriptor::{binding, copied, copy, step, tensor, two_buffers};
use crate::oracle::{f32_bytes, view, view_mut};
use ElementType::{Float16, Float32, Int8Q, Int32Index, UInt8Q};
use TransformKind::{Convert, Dequantize, Quantize, Transpose};
use proptest::prelude::*;
use qaic_qpc::{
    Direction, DmaBuffer, ElementType, IoBinding, IoDescriptor, NetworkDesc, Transform, TransformKind,
};
use qaic_runtime::binding::{Route, TransferPlan};
use qaic_runtime::{ErrorDetail, InputError, RuntimeError};

fn scaled(kind: TransformKind, dtype: ElementType, dims: &[i32], scale: f32, offset: i32) -> Transform {
    Transform { scale, offset, ..step(kind, dtype, dims) }
}

fn edge(initial: IoDescriptor, transformed: IoDescriptor, sequence: Vec<Transform>) -> IoBinding {
    binding("edge", initial, transformed, sequence)
}

/// An input in a buffer of `size` bytes.
fn with_input(input: IoBinding, size: u32) -> NetworkDesc {
    let dma_buffers = vec![DmaBuffer { size, dir: Direction::In }];
    NetworkDesc { inputs: vec![input], dma_buffers, ..NetworkDesc::default() }
}

/// An output in a buffer of `size` bytes.
fn with_output(output: IoBinding, size: u32) -> NetworkDesc {
    let dma_buffers = vec![DmaBuffer { size, dir: Direction::Out }];
    NetworkDesc { outputs: vec![output], dma_buffers, ..NetworkDesc::default() }
}

/// A plain f32 input of `dims` at `offset`.
fn plain_input(dims: &[i32], offset: u32) -> IoBinding {
    copied("edge", Float32, dims, Direction::In, (0, offset))
}

/// The DMA buffer after the transfer of `input`.
fn staged(network: &NetworkDesc, input: &[u8]) -> Vec<u8> {
    let plan = TransferPlan::new(network).unwrap();
    let mut dma = Dma::whole(vec![vec![0xee; network.dma_buffers[0].size as usize]]);
    dma.stage(&plan, &[input]).unwrap();
    dma.0.remove(0).0
}

/// Returns the caller's buffer of `size` bytes after the transfer of the output.
fn fetched(network: &NetworkDesc, device: &[u8], size: usize) -> Vec<u8> {
    let plan = TransferPlan::new(network).unwrap();
    let mut user = vec![0xcc; size];
    Dma::whole(vec![device.to_vec()]).fetch(&plan, &mut [&mut user]).unwrap();
    user
}

fn code(network: &NetworkDesc) -> &'static str {
    TransferPlan::new(network).expect_err("the descriptor is wrong").code()
}

#[test]
fn plain_copy_is_direct_and_keeps_the_gaps() {
    let network = with_input(plain_input(&[2], 4), 16);
    assert!(matches!(TransferPlan::new(&network).unwrap().inputs[0].route, Route::Direct));
    let dma = staged(&network, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(dma, [0xee, 0xee, 0xee, 0xee, 1, 2, 3, 4, 5, 6, 7, 8, 0xee, 0xee, 0xee, 0xee]);
}

#[test]
fn quantized_edges_follow_scale_and_offset_of_the_tensor() {
    let dims = [3];
    let sequence = vec![
        scaled(Quantize, Int8Q, &dims, 0.05, -3),
        Transform { scale: 0.05, offset: -3, ..copy(Direction::In, (0, 0), Int8Q, &dims) },
    ];
    let network = with_input(edge(tensor(Float32, &dims), tensor(Int8Q, &dims), sequence), 3);
    assert_eq!(staged(&network, &f32_bytes(&[1.0, 100.0, f32::NAN])), [17, 127, 0x80]);

    let initial = IoDescriptor { qscale: 0.125, qoffset: 7, ..tensor(Int8Q, &dims) };
    // Some compilers write the copy with scale 1 and offset 0; the parameters of the tensor apply.
    for (scale, offset) in [(0.125, 7), (1.0, 0)] {
        let sequence = vec![
            Transform { scale, offset, ..copy(Direction::Out, (0, 0), Int8Q, &dims) },
            step(Dequantize, Float32, &dims),
        ];
        let network = with_output(edge(initial.clone(), tensor(Float32, &dims), sequence), 3);
        assert_eq!(fetched(&network, &[7, 15, 0], 12), f32_bytes(&[0.0, 1.0, -0.875]));
    }
}

#[test]
fn unsigned_edges_refer_to_the_signed_value() {
    let dims = [2];
    let sequence =
        vec![scaled(Quantize, UInt8Q, &dims, 1.0 / 255.0, -128), copy(Direction::In, (0, 0), UInt8Q, &dims)];
    let network = with_input(edge(tensor(Float32, &dims), tensor(UInt8Q, &dims), sequence), 2);
    assert_eq!(staged(&network, &f32_bytes(&[0.0, 1.0])), [0, 255]);
}

#[test]
fn tensors_without_elements_move_nothing() {
    let network = with_input(plain_input(&[0, 4], 0), 8);
    assert_eq!(staged(&network, &[]), [0xee; 8]);
    // The mapping of such a tensor is not empty (docs/reference/transfers.md), so callers may pass bytes.
    assert_eq!(staged(&network, &[1; 16]), [0xee; 8]);
    let sequence = vec![step(Convert, Float16, &[0, 4]), copy(Direction::In, (0, 8), Float16, &[0, 4])];
    let network = with_input(edge(tensor(Float32, &[0, 4]), tensor(Float16, &[0, 4]), sequence), 8);
    assert_eq!(staged(&network, &[]), [0xee; 8]);
}

#[test]
fn copy_of_another_layout_passes_the_bytes() {
    let mut input = plain_input(&[2], 0);
    input.io_initial.layout = 3;
    input.io_transformed.layout = 3;
    input.transformseq[0].layout = 3;
    assert_eq!(staged(&with_input(input, 8), &[9; 8]), [9; 8]);
}

#[test]
fn single_bindings_can_be_moved_alone() {
    let plan = TransferPlan::new(&with_input(plain_input(&[2], 4), 12)).unwrap();
    let mut dma = [0_u8; 12];
    plan.stage_input(0, view(&[5; 8]), view_mut(&mut dma)).unwrap();
    assert_eq!(dma, [0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5]);
    assert_eq!(plan.stage_input(1, view(&[]), view_mut(&mut dma)).unwrap_err().code(), "call.argument");
    assert_eq!(plan.fetch_output(0, view(&[]), view_mut(&mut dma)).unwrap_err().code(), "call.argument");
}

#[test]
fn rejects_steps_that_no_host_can_do() {
    for (at, kind) in [TransformKind::ConvertToD32, TransformKind::ConvertFromD32, TransformKind::Unknown(77)]
        .into_iter()
        .enumerate()
    {
        let mut sequence = vec![step(Convert, Float32, &[4]); at];
        sequence.extend([step(kind, Float32, &[4]), copy(Direction::In, (0, 0), Float32, &[4])]);
        let network = with_input(edge(tensor(Float32, &[4]), tensor(Float32, &[4]), sequence), 16);
        match TransferPlan::new(&network).map_err(RuntimeError::into_detail) {
            Err(ErrorDetail::Input(InputError::UnsupportedTransform { binding, step, kind: named })) => {
                assert_eq!((binding.as_str(), step, named), ("edge", at, format!("{kind:?}")));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn rejects_conversions_between_types_without_a_rule() {
    let sequence = vec![step(Convert, Float16, &[4]), copy(Direction::In, (0, 0), Float16, &[4])];
    let network = with_input(edge(tensor(Int32Index, &[4]), tensor(Float16, &[4]), sequence), 16);
    assert_eq!(code(&network), "program.unsupported_transform");
    let sequence = vec![scaled(Quantize, Float16, &[4], 1.0, 0), copy(Direction::In, (0, 0), Float16, &[4])];
    let network = with_input(edge(tensor(Float32, &[4]), tensor(Float16, &[4]), sequence), 16);
    assert_eq!(code(&network), "program.unsupported_transform");
    let mut sequence = vec![step(Convert, Float16, &[4]), copy(Direction::In, (0, 0), Float16, &[4])];
    sequence[0].layout = 2;
    let network = with_input(edge(tensor(Float32, &[4]), tensor(Float16, &[4]), sequence), 16);
    assert_eq!(code(&network), "program.unsupported_transform");
}

#[test]
fn rejects_transposes_that_do_not_fuse() {
    let turn = |dims: &[i32], shuffle: &[i32]| Transform {
        shuffle: shuffle.to_vec(),
        ..step(Transpose, Float32, dims)
    };
    let sequence = vec![
        turn(&[3, 2], &[1, 0]),
        step(Convert, Float32, &[6, 1]),
        turn(&[1, 6], &[1, 0]),
        copy(Direction::In, (0, 0), Float32, &[1, 6]),
    ];
    let network = with_input(edge(tensor(Float32, &[2, 3]), tensor(Float32, &[1, 6]), sequence), 24);
    assert_eq!(code(&network), "program.unsupported_transform");
    let nine = [1; 9];
    let sequence =
        vec![turn(&nine, &[0, 1, 2, 3, 4, 5, 6, 7, 8]), copy(Direction::In, (0, 0), Float32, &nine)];
    let network = with_input(edge(tensor(Float32, &nine), tensor(Float32, &nine), sequence), 4);
    assert_eq!(code(&network), "program.unsupported_transform");
}

fn partial(dims: &[i32], offset: u32, align: u32) -> IoBinding {
    IoBinding { is_partial_allowed: true, align, ..plain_input(dims, offset) }
}

#[test]
fn partial_inputs_that_do_not_fit_are_refused_and_leave_the_buffer() {
    // Room for a header and three of the four elements.
    let plan = TransferPlan::new(&with_input(partial(&[4], 0, 0), 20)).unwrap();
    let mut dma = Dma::whole(vec![vec![0xee; 20]]);
    let mut run = |given: usize| {
        let outcome = dma.stage(&plan, &[&[1; 64][..given]]);
        (outcome.map_err(|error| error.code()), dma.0[0].0.clone())
    };
    assert_eq!(run(16), (Err("qpc.dma_out_of_bounds"), vec![0xee; 20]));
    assert_eq!(run(20).0, Err("input.size"));
    let (outcome, dma) = run(12);
    assert_eq!(outcome, Ok(vec![20]));
    assert_eq!(dma, [8, 0, 0, 0, 12, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    let alone = plan.stage_input(0, view(&[1; 12]), view_mut(&mut [0; 20]));
    assert_eq!(alone.unwrap_err().code(), "call.argument");
}

#[test]
fn empty_partial_input_never_needs_more_than_the_buffer() {
    let plan = TransferPlan::new(&with_input(partial(&[4], 0, u32::MAX), 20)).unwrap();
    assert_eq!(plan.lay_out(&[0]).unwrap().resize, [20]);
}

#[test]
fn buffers_that_are_too_short_or_too_few_are_refused() {
    let plan = TransferPlan::new(&with_input(plain_input(&[4], 0), 16)).unwrap();
    let run = |given: usize, size: usize, inputs: usize| {
        let outcome = Dma::whole(vec![vec![0; size]]).stage(&plan, &vec![&[0; 16][..given]; inputs]);
        outcome.map(drop).map_err(|error| error.code())
    };
    assert_eq!(run(16, 16, 1), Ok(()));
    assert_eq!(run(15, 16, 1), Err("input.size"));
    assert_eq!(run(16, 15, 1), Err("input.size"));
    assert_eq!(run(16, 16, 2), Err("call.argument"));
    assert_eq!(run(16, 16, 0), Err("call.argument"));
    let sequence = vec![copy(Direction::Out, (0, 0), Float32, &[1])];
    let output = edge(tensor(Float32, &[1]), tensor(Float32, &[1]), sequence);
    let plan = TransferPlan::new(&with_output(output, 4)).unwrap();
    let short = plan.fetch_output(0, view(&[0; 3]), view_mut(&mut [0; 4]));
    assert_eq!(short.unwrap_err().code(), "input.size");
    let other = plan.fetch_output(1, view(&[0; 4]), view_mut(&mut [0; 4]));
    assert_eq!(other.unwrap_err().code(), "call.argument");
}

/// Returns the step with this number after `state`, which it updates.
fn next_step(choice: u8, state: &mut (ElementType, Vec<i32>)) -> Transform {
    let (dtype, dims) = state.clone();
    let to = match (choice % 4, dtype) {
        (0, _) => {
            state.1.reverse();
            let shuffle = (0..i32::try_from(dims.len()).unwrap()).rev().collect();
            return Transform { shuffle, ..step(Transpose, dtype, &state.1) };
        }
        (1, Float32) => (Convert, Float16),
        (1, Float16) => (Convert, Float32),
        (_, Float32 | Float16) => (Quantize, if choice.is_multiple_of(2) { Int8Q } else { UInt8Q }),
        (_, Int8Q | UInt8Q) => (Dequantize, if choice.is_multiple_of(2) { Float32 } else { Float16 }),
        _ => (Convert, dtype),
    };
    state.0 = to.1;
    scaled(to.0, to.1, &dims, 0.05, 1)
}

/// Type and dims, choices of steps, offset in the DMA buffer, partial if below 60, and the changed number with its
/// change.
type Parts = (ElementType, Vec<i32>, Vec<u8>, u32, u8, Option<(u8, i32)>);

/// Valid descriptors, and descriptors with one invalid number in one binding. DMA buffer 0 is for inputs, 1 for
/// outputs.
fn descriptors() -> impl Strategy<Value = NetworkDesc> {
    let dtype = proptest::sample::select(vec![Float32, Float16, Int8Q, UInt8Q, Int32Index]);
    let dims = proptest::sample::select(vec![vec![], vec![4], vec![2, 3], vec![3, 1, 2], vec![0], vec![6]]);
    let choices = proptest::collection::vec(any::<u8>(), 0..3);
    let wrong = proptest::option::weighted(0.15, (0_u8..6, any::<i32>()));
    let one = (dtype, dims, choices, 0_u32..48, any::<u8>(), wrong);
    let make = |dir: Direction, buffer: u32, list: Vec<Parts>| -> Vec<IoBinding> {
        let made = list.into_iter().map(|(dtype, dims, choices, offset, partial, wrong)| {
            let initial = IoDescriptor { qscale: 0.125, ..tensor(dtype, &dims) };
            let mut state = (dtype, dims);
            let is_input = dir == Direction::In;
            let first = copy(dir, (buffer, offset), state.0, &state.1);
            let mut sequence: Vec<_> =
                choices.into_iter().map(|choice| next_step(choice, &mut state)).collect();
            if is_input {
                sequence.push(copy(dir, (buffer, offset), state.0, &state.1));
            } else {
                sequence.insert(0, first);
            }
            let mut made = edge(initial, tensor(state.0, &state.1), sequence);
            made.is_partial_allowed = partial < 60;
            let at = if is_input { made.transformseq.len() - 1 } else { 0 };
            let place = made.transformseq[at].copy_dma_buffer.as_mut().unwrap();
            match wrong {
                Some((0, n)) => place.offset = n.cast_unsigned(),
                Some((1, n)) => place.buffer_num = n.cast_unsigned(),
                Some((2, n)) => made.io_initial.dims.push(n),
                Some((3, n)) => made.io_transformed.dtype = n.into(),
                Some((4, n)) => made.align = n.cast_unsigned(),
                Some((_, n)) => made.transformseq[0].kind = n.into(),
                None => {}
            }
            made
        });
        made.collect()
    };
    let bindings = proptest::collection::vec(one, 0..3);
    (bindings.clone(), bindings, 30_u32..80).prop_map(move |(inputs, outputs, size)| NetworkDesc {
        inputs: make(Direction::In, 0, inputs),
        outputs: make(Direction::Out, 1, outputs),
        dma_buffers: two_buffers(size, size),
        ..NetworkDesc::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn plan_of_any_descriptor_stays_inside_its_buffers(network in descriptors(), length in 0_usize..50) {
        let Ok(plan) = TransferPlan::new(&network) else { return Ok(()) };
        let guarded = |size: usize| { let mut bytes = vec![0xee_u8; size + 16]; bytes[..8].fill(0xa5); bytes[size + 8..].fill(0xa5); bytes };
        let buffers = network.dma_buffers.iter().map(|buffer| buffer.size as usize);
        let mut dma = Dma(buffers.map(|size| (guarded(size), 8..size + 8)).collect());
        let mut outputs: Vec<_> = plan.outputs.iter().map(|_| guarded(length)).collect();
        let input = vec![0x3f_u8; length];
        let _ = dma.stage(&plan, &vec![&input[..]; plan.inputs.len()]);
        let mut user: Vec<_> = outputs.iter_mut().map(|bytes| &mut bytes[8..length + 8]).collect();
        let _ = dma.fetch(&plan, &mut user);
        for bytes in dma.0.iter().map(|(bytes, _)| bytes).chain(&outputs) {
            prop_assert_eq!(&bytes[..8], &[0xa5; 8]);
            prop_assert_eq!(&bytes[bytes.len() - 8..], &[0xa5; 8]);
        }
    }
}
