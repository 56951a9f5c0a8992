//! An inference into the caller's arrays allocates nothing, whether it is run or submitted and collected.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

mod counting;
mod echo;

use std::sync::Arc;

use counting::allocations;
use echo::{ELEMENTS, image};
use qaic_qpc::dtype::ElementType;
use qaic_runtime::buffer::Storage;
use qaic_runtime::context::Context;
use qaic_runtime::device::{DeviceId, Placement, RegistryOptions};
use qaic_runtime::image::Image;
use qaic_runtime::inference_set::{HandleId, InferenceSet};
use qaic_runtime::program::ProgramOptions;
use qaic_runtime::wiring::{InputWire, OutputWire, Shapes};

/// Inferences before the count: threads are made and the usual duration becomes known.
const WARM_UP: usize = 200;

struct Tiny {
    set: Arc<InferenceSet>,
    input: Storage,
    outputs: [Storage; 2],
}

impl Tiny {
    /// `queues`: on a device that takes inferences before they are waited for.
    fn new(image: &Arc<Image>, set_size: u32, queues: bool) -> Self {
        // Contexts with equal options share devices.
        let marker = if queues { "queues" } else { "computes" };
        let options = RegistryOptions {
            kind: Some("noop".into()),
            engine_candidates: vec![marker.into()],
            ..RegistryOptions::default()
        };
        let context = Context::new(&options).unwrap();
        if queues {
            context.noop_control(DeviceId(0)).unwrap().queue();
        }
        let placement = Placement::one(DeviceId(0));
        let set = InferenceSet::new(&context, image, &placement, set_size, 1, ProgramOptions::default());
        let storage = || Storage::new(ELEMENTS as usize * 4).unwrap();
        Self { set: set.unwrap(), input: storage(), outputs: [storage(), storage()] }
    }
}

/// Allocations of 100 inferences, with outputs that take turns.
fn allocations_of_runs(image: &Arc<Image>, queues: bool) -> u64 {
    let tiny = Tiny::new(image, 2, queues);
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
fn allocations_of_batches(queues: bool, collect: impl Fn(&InferenceSet, u64) -> HandleId) -> u64 {
    let tiny = Tiny::new(&image(ElementType::Float32), 8, queues);
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
    for queues in [false, true] {
        assert_eq!(allocations_of_runs(&image(ElementType::Float32), queues), 0);
    }
}

#[test]
fn a_run_with_conversions_allocates_nothing() {
    for queues in [false, true] {
        assert_eq!(allocations_of_runs(&image(ElementType::Float16), queues), 0);
    }
}

#[test]
fn submitting_and_collecting_in_order_allocates_nothing() {
    let collect = |set: &InferenceSet, _| set.get_completed(None, || false).unwrap();
    for queues in [false, true] {
        assert_eq!(allocations_of_batches(queues, collect), 0);
    }
}

#[test]
fn submitting_and_collecting_by_id_allocates_nothing() {
    let collect = |set: &InferenceSet, id| set.get_completed_id(id, None, || false).unwrap();
    for queues in [false, true] {
        assert_eq!(allocations_of_batches(queues, collect), 0);
    }
}
