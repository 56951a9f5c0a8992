//! An inference into the caller's arrays allocates nothing, whether it is run or submitted and collected.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

mod counting;

use std::sync::Arc;

use counting::allocations;
use qaic_qpc::container::names;
use qaic_qpc::dtype::ElementType;
use qaic_qpc::network_desc::{
    CopyDmaBuffer, Direction, DmaBuffer, IoBinding, IoDescriptor, NetworkDesc, Transform, TransformKind,
};
use qaic_qpc::{constants::ConstantsDesc, elf, writer};
use qaic_runtime::buffer::Storage;
use qaic_runtime::context::Context;
use qaic_runtime::device::{DeviceId, Placement, RegistryOptions};
use qaic_runtime::image::Image;
use qaic_runtime::inference_set::{HandleId, InferenceSet};
use qaic_runtime::program::ProgramOptions;
use qaic_runtime::wiring::{InputWire, OutputWire, Shapes};

const ELEMENTS: u32 = 64;

fn tensor(dtype: ElementType) -> IoDescriptor {
    let dims = vec![1, i32::try_from(ELEMENTS).unwrap()];
    IoDescriptor { dtype, qscale: 1.0, dims, ..IoDescriptor::default() }
}

fn step(kind: TransformKind, dtype: ElementType) -> Transform {
    Transform { kind, dtype, scale: 1.0, dims: tensor(dtype).dims, ..Transform::default() }
}

/// A program of one f32 input and one f32 output that lie in device memory as `device` says.
fn image(device: ElementType) -> Arc<Image> {
    let user = ElementType::Float32;
    let bytes = ELEMENTS * u32::try_from(device.size_bytes().unwrap()).unwrap();
    let copy = |dir, buffer_num| Transform {
        copy_dma_buffer: Some(CopyDmaBuffer { dir, offset: 0, buffer_num }),
        ..step(TransformKind::CopyDmaBuffer, device)
    };
    let mut inward = vec![step(TransformKind::Convert, device), copy(Direction::In, 0)];
    let mut outward = vec![copy(Direction::Out, 1), step(TransformKind::Convert, user)];
    if device == user {
        inward.remove(0);
        outward.pop();
    }
    let binding = |name: &str, from, to, transformseq| IoBinding {
        name: name.into(),
        io_initial: tensor(from),
        io_transformed: tensor(to),
        transformseq,
        ..IoBinding::default()
    };
    let network = NetworkDesc {
        major_version: 9,
        inputs: vec![binding("x", user, device, inward)],
        outputs: vec![binding("y", device, user, outward)],
        dma_buffers: vec![
            DmaBuffer { size: bytes, dir: Direction::In },
            DmaBuffer { size: bytes, dir: Direction::Out },
        ],
        num_cores: 1,
        batch_size: 1,
        ..NetworkDesc::default()
    };
    let payloads = [
        (names::CONSTANTS_DESC, ConstantsDesc::default().encode()),
        (names::NETWORK_ELF, elf::build(&[]).unwrap()),
        (names::NETWORK_DESC, network.encode()),
    ];
    let segments =
        payloads.each_ref().map(|(name, payload)| writer::SegmentData { name, offset: 0, payload });
    Image::from_bytes(writer::build_in_memory(&segments, 64).unwrap()).unwrap()
}

/// Inferences before the count: threads are made and the usual duration becomes known.
const WARM_UP: usize = 200;

struct Tiny {
    set: Arc<InferenceSet>,
    input: Storage,
    outputs: [Storage; 2],
}

impl Tiny {
    fn new(image: &Arc<Image>, set_size: u32) -> Self {
        let options = RegistryOptions { kind: Some("noop".into()), ..RegistryOptions::default() };
        let context = Context::new(&options).unwrap();
        let placement = Placement::one(DeviceId(0));
        let set = InferenceSet::new(&context, image, &placement, set_size, 1, ProgramOptions::default());
        let storage = || Storage::new(ELEMENTS as usize * 4).unwrap();
        Self { set: set.unwrap(), input: storage(), outputs: [storage(), storage()] }
    }
}

/// Allocations of 100 inferences, with outputs that take turns.
fn allocations_of_runs(image: &Arc<Image>) -> u64 {
    let tiny = Tiny::new(image, 2);
    let run = |turn: usize| {
        let handle = tiny.set.try_lease().unwrap();
        handle
            .run(&[tiny.input.memory().as_const()], &[Some(tiny.outputs[turn % 2].memory())], None, || false)
            .unwrap();
    };
    (0..WARM_UP).for_each(run);
    allocations(|| (0..100).for_each(run))
}

/// Allocations of 100 batches of 8, each handle wired anew, submitted, collected by `collect` and put back.
fn allocations_of_batches(collect: impl Fn(&InferenceSet, u64) -> HandleId) -> u64 {
    let tiny = Tiny::new(&image(ElementType::Float32), 8);
    let batch = |batch: usize| {
        let ids = (batch * 8..(batch + 1) * 8).map(|id| id as u64);
        for id in ids.clone() {
            let handle = tiny.set.try_acquire().unwrap();
            tiny.set
                .exec_obj(handle)
                .unwrap()
                .wire(|wiring| {
                    wiring.shapes = Shapes::Variant(0);
                    wiring.inputs[0] =
                        InputWire::Memory { memory: tiny.input.memory().as_const(), owner: None };
                    let memory = tiny.outputs[batch % 2].memory();
                    wiring.outputs[0] = OutputWire::Memory { memory, owner: None };
                })
                .unwrap();
            tiny.set.submit(handle, id).unwrap();
        }
        for id in ids {
            let handle = collect(&tiny.set, id);
            tiny.set.outcome(handle).unwrap();
            tiny.set.put_completed(handle).unwrap();
        }
    };
    (0..WARM_UP).for_each(batch);
    allocations(|| (0..100).for_each(batch))
}

#[test]
fn counting_sees_allocations() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1_u64)))), 1);
}

#[test]
fn a_run_without_conversion_allocates_nothing() {
    assert_eq!(allocations_of_runs(&image(ElementType::Float32)), 0);
}

#[test]
fn a_run_with_conversions_allocates_nothing() {
    assert_eq!(allocations_of_runs(&image(ElementType::Float16)), 0);
}

#[test]
fn submitting_and_collecting_in_order_allocates_nothing() {
    let collect = |set: &InferenceSet, _| set.get_completed(None, || false).unwrap();
    assert_eq!(allocations_of_batches(collect), 0);
}

#[test]
fn submitting_and_collecting_by_id_allocates_nothing() {
    let collect = |set: &InferenceSet, id| set.get_completed_id(id, None, || false).unwrap();
    assert_eq!(allocations_of_batches(collect), 0);
}
