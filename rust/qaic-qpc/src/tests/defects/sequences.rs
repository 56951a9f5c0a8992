//! Descriptors that can be decoded but are inconsistent.

use qaic_qpc::transform::TransferPlan;
use qaic_qpc::{
    CopyDmaBuffer, Direction, ElementType, IoDesc, IoDescriptor, IoShapes, NetworkDesc, QpcError, StepDefect,
    Transform, TransformKind, user_mappings,
};

use super::code;
use super::sample::{copy, network, step, tensor};

fn plan_error(damage: impl FnOnce(&mut NetworkDesc)) -> QpcError {
    let mut network = network();
    TransferPlan::new(&network).unwrap();
    damage(&mut network);
    TransferPlan::new(&network).unwrap_err()
}

fn first_copy(network: &mut NetworkDesc) -> &mut CopyDmaBuffer {
    network.inputs[0].transformseq[0].copy_dma_buffer.as_mut().unwrap()
}

#[test]
fn rejects_dma_buffers_that_do_not_exist() {
    let error = plan_error(|network| first_copy(network).buffer_num = 2);
    assert_eq!(error, QpcError::DmaBufferIndex { binding: "x".into(), buffer: 2, count: 2 });
    let error = plan_error(|network| {
        network.outputs[0].transformseq[0].copy_dma_buffer =
            Some(CopyDmaBuffer { dir: Direction::Out, offset: 0, buffer_num: u32::MAX });
    });
    assert_eq!(code(&error), "qpc.dma_buffer_index");
}

#[test]
fn rejects_tensors_that_do_not_fit_their_dma_buffer() {
    for offset in [1, 16, u32::MAX] {
        let error = plan_error(|network| first_copy(network).offset = offset);
        let expected = QpcError::DmaOutOfBounds {
            binding: "x".into(),
            buffer: 0,
            offset: offset.into(),
            len: 16,
            size: 16,
        };
        assert_eq!(error, expected);
    }
    assert_eq!(code(&plan_error(|network| network.dma_buffers[1].size = 15)), "qpc.dma_out_of_bounds");
}

fn mismatch(damage: impl FnOnce(&mut NetworkDesc)) -> StepDefect {
    match plan_error(damage) {
        QpcError::TransformMismatch { defect, .. } => defect,
        other => panic!("{other}"),
    }
}

#[test]
fn rejects_copies_against_the_direction() {
    let damages: [fn(&mut NetworkDesc); 3] = [
        |network| first_copy(network).dir = Direction::Out,
        |network| network.dma_buffers[0].dir = Direction::Out,
        |network| network.dma_buffers[0].dir = Direction::Unknown(7),
    ];
    for damage in damages {
        assert_eq!(plan_error(damage), QpcError::DmaDirection { binding: "x".into(), buffer: 0 });
    }
}

#[test]
fn rejects_steps_by_their_defect() {
    type Damage<'a> = &'a dyn Fn(&mut NetworkDesc);
    let convert = || step(TransformKind::Convert, ElementType::Float32, &[4]);
    let cases: [(StepDefect, Damage<'_>); 9] = [
        (StepDefect::CopyPlace, &|network| network.inputs[0].transformseq.insert(1, convert())),
        (StepDefect::CopyPlace, &|network| network.outputs[0].transformseq.insert(0, convert())),
        (StepDefect::CopyPlace, &|network| network.inputs[0].transformseq[0].kind = TransformKind::Convert),
        (StepDefect::CopyPlace, &|network| {
            let again = network.inputs[0].transformseq[0].clone();
            network.inputs[0].transformseq.push(again);
        }),
        (StepDefect::CopyParameters, &|network| network.inputs[0].transformseq[0].copy_dma_buffer = None),
        (StepDefect::Type, &|network| network.inputs[0].transformseq[0].dtype = ElementType::Int32Index),
        (StepDefect::Type, &|network| network.outputs[0].io_transformed.dtype = ElementType::Int32Q),
        (StepDefect::Dims, &|network| network.inputs[0].transformseq[0].dims = vec![3]),
        (StepDefect::Dims, &|network| network.inputs[0].io_transformed.dims = vec![3]),
    ];
    for (expected, damage) in cases {
        assert_eq!(mismatch(damage), expected);
    }
}

fn quantized(scale: f32) -> impl FnOnce(&mut NetworkDesc) {
    move |network| {
        let quantize = Transform { scale, ..step(TransformKind::Quantize, ElementType::Int8Q, &[4]) };
        let input = &mut network.inputs[0];
        input.io_transformed.dtype = ElementType::Int8Q;
        input.transformseq = vec![quantize, copy(ElementType::Int8Q, &[4], Direction::In, 0, 0)];
    }
}

#[test]
fn rejects_scales_that_are_not_positive() {
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_eq!(mismatch(quantized(scale)), StepDefect::Quantization, "{scale}");
    }
    let mut sound = network();
    quantized(0.5)(&mut sound);
    TransferPlan::new(&sound).unwrap();
}

#[test]
fn rejects_shuffles_that_are_no_permutation() {
    let transposed = |shuffle: &[i32], dims: &[i32]| {
        let (shuffle, dims) = (shuffle.to_vec(), dims.to_vec());
        mismatch(move |network| {
            let input = &mut network.inputs[0];
            input.io_initial.dims = vec![1, 4];
            let transpose =
                Transform { shuffle, ..step(TransformKind::Transpose, ElementType::Float32, &dims) };
            input.transformseq.insert(0, transpose);
        })
    };
    assert_eq!(transposed(&[0, 0], &[1, 4]), StepDefect::Shuffle);
    assert_eq!(transposed(&[0, 2], &[1, 4]), StepDefect::Shuffle);
    assert_eq!(transposed(&[-1, 0], &[1, 4]), StepDefect::Shuffle);
    assert_eq!(transposed(&[0], &[4]), StepDefect::Shuffle);
    assert_eq!(transposed(&[1, 0], &[1, 4]), StepDefect::Dims);
}

#[test]
fn rejects_transforms_that_no_host_executes() {
    let with = |kind, dtype| {
        plan_error(move |network| network.inputs[0].transformseq.insert(0, step(kind, dtype, &[4])))
    };
    for (kind, dtype) in [
        (TransformKind::ConvertToD32, ElementType::Float32),
        (TransformKind::ConvertFromD32, ElementType::Float32),
        (TransformKind::Unknown(42), ElementType::Float32),
        (TransformKind::Convert, ElementType::Int32Index),
        (TransformKind::Quantize, ElementType::Float16),
        (TransformKind::Dequantize, ElementType::Float32),
    ] {
        let expected = QpcError::UnsupportedTransform { binding: "x".into(), step: 0, kind: kind.into() };
        assert_eq!(with(kind, dtype), expected);
    }
}

#[test]
fn rejects_conversions_of_tiled_tensors() {
    let error = plan_error(|network| {
        quantized(1.0)(network);
        network.inputs[0].transformseq[0].layout = 3;
    });
    assert_eq!(code(&error), "qpc.unsupported_transform");
}

#[test]
fn rejects_impossible_tensors_everywhere() {
    let cases: [(IoDescriptor, &str); 4] = [
        (tensor(ElementType::Unknown(99), &[4]), "qpc.unknown_element_type"),
        (tensor(ElementType::Float32, &[-1]), "qpc.negative_dim"),
        (tensor(ElementType::Int64Index, &[i32::MAX, i32::MAX, i32::MAX]), "qpc.tensor_too_large"),
        (tensor(ElementType::Float32, &[i32::MAX, i32::MAX, i32::MAX, i32::MAX, 0]), "qpc.tensor_too_large"),
    ];
    for (descriptor, expected) in cases {
        let mut network = network();
        network.inputs[0].io_initial = descriptor.clone();
        assert_eq!(code(&TransferPlan::new(&network).unwrap_err()), expected);
        assert_eq!(code(&user_mappings(&network).unwrap_err()), expected);
        assert_eq!(code(&IoDesc::from_network(&network).unwrap_err()), expected);
    }
    let of_a_step = plan_error(|network| network.inputs[0].transformseq[0].dims = vec![-4]);
    assert_eq!(code(&of_a_step), "qpc.negative_dim");
    // 4 GiB: more than a mapping can represent.
    let mut network = network();
    network.inputs[0].io_initial = tensor(ElementType::Float32, &[1 << 15, 1 << 15]);
    assert_eq!(code(&user_mappings(&network).unwrap_err()), "qpc.tensor_too_large");
}

fn partial(network: &mut NetworkDesc) {
    network.inputs[0].is_partial_allowed = true;
    network.inputs[0].align = 4;
    network.dma_buffers[0].size = 24;
}

#[test]
fn rejects_partial_inputs_that_cannot_shrink() {
    let expected = QpcError::PartialInput { binding: "x".into() };
    let error = plan_error(|network| {
        partial(network);
        network.inputs[0].io_initial.dims = vec![2, 2];
    });
    assert_eq!(error, expected);
    let error = plan_error(|network| {
        quantized(1.0)(network);
        partial(network);
    });
    assert_eq!(error, expected);
}

#[test]
fn rejects_partial_data_that_does_not_fit() {
    let mut network = network();
    partial(&mut network);
    let plan = TransferPlan::new(&network).unwrap();
    assert_eq!(plan.pack(&[16]).unwrap().resize, [24, 0]);
    assert_eq!(code(&plan.pack(&[17]).unwrap_err()), "qpc.buffer_size");
    assert_eq!(code(&plan.pack(&[]).unwrap_err()), "qpc.buffer_size");
    network.dma_buffers[0].size = 23;
    let plan = TransferPlan::new(&network).unwrap();
    assert_eq!(plan.pack(&[15]).unwrap().resize, [20, 0]);
    assert_eq!(code(&plan.pack(&[16]).unwrap_err()), "qpc.dma_out_of_bounds");
    let outside = plan_error(|network| {
        partial(network);
        first_copy(network).offset = 17;
    });
    assert_eq!(code(&outside), "qpc.dma_out_of_bounds");
    // An alignment larger than the buffer.
    network.inputs[0].align = u32::MAX;
    let plan = TransferPlan::new(&network).unwrap();
    assert_eq!(code(&plan.pack(&[4]).unwrap_err()), "qpc.dma_out_of_bounds");
    assert_eq!(plan.pack(&[0]).unwrap().slices[0].bytes, 0);
}

#[test]
fn rejects_stages_and_shapes_that_leave_out_what_they_need() {
    let mut network = network();
    network.allowed_shapes = vec![IoShapes::default()];
    let expected = QpcError::AllowedShapes { entry: 0, found: 0, expected: 2 };
    assert_eq!(network.check_allowed_shapes().unwrap_err(), expected);
    network.outputs[0].transformseq.insert(0, step(TransformKind::Dequantize, ElementType::Float32, &[4]));
    let expected = QpcError::StageWithoutPredecessor { binding: "y".into(), kind: 3 };
    assert_eq!(IoDesc::from_network(&network).unwrap_err(), expected);
}
