//! Checks that an inference into the caller's arrays allocates nothing, whether it is run or submitted and
//! collected. Also measures the memory of exec objects on a card.

use super::counting::{allocations, bytes_of};
use super::counting_kernel as kernel;
use crate::tests::prelude::*;
use qaic_runtime::binding::Shapes;
use qaic_runtime::request::{ArrayId, ArrayTensors, Arrays, BoundArrays, Destination};

/// Inferences before the count, which create threads and determine the usual duration.
const WARM_UP: usize = 200;

/// Behavior of the device.
#[derive(Clone, Copy)]
enum Where {
    /// The device computes on the calling thread.
    Here,
    /// A card, which is used through system calls.
    Card,
}

const EVERYWHERE: [Where; 2] = [Where::Here, Where::Card];

struct Tiny {
    set: Arc<InferenceSet>,
    input: Storage,
    outputs: [Storage; 2],
}

impl Tiny {
    fn new(dtype: ElementType, set_size: u32, place: Where) -> Self {
        let context = match place {
            Where::Here => noop(RegistryOptions::default()),
            Where::Card => Context::of_cards(&kernel::card()).unwrap(),
        };
        let placement = Placement::one(DeviceId(0));
        let set =
            InferenceSet::new(&context, &image(dtype), &placement, set_size, 1, ProgramOptions::default());
        let storage = || Storage::new(ELEMENTS as usize * 4).unwrap();
        Self { set: set.unwrap(), input: storage(), outputs: [storage(), storage()] }
    }
}

/// Allocations of 100 inferences with alternating outputs.
fn allocations_of_runs(dtype: ElementType, place: Where) -> u64 {
    let mut tiny = Tiny::new(dtype, 2, place);
    let mut lender = Lender::default();
    let mut run = |turn: usize| {
        let lease = tiny.set.try_lease().unwrap();
        let outputs = &mut [Some(tiny.outputs[turn % 2].memory_mut())];
        lease.run(&mut lender, &[tiny.input.memory()], outputs, &mut WaitScope::default()).unwrap();
    };
    (0..WARM_UP).for_each(&mut run);
    allocations(|| (0..100).for_each(&mut run))
}

/// Allocations of 100 batches of 8, each handle bound again, submitted, collected by `collect` and put back.
fn allocations_of_batches(place: Where, collect: impl Fn(&InferenceSet, u64) -> HandleId) -> u64 {
    let tiny = Tiny::new(ElementType::Float32, 8, place);
    let storages = |_| [(); 2].map(|()| Some(Storage::new(ELEMENTS as usize * 4).unwrap()));
    let mut storages: Vec<_> = (0..8).map(storages).collect();
    let mut batch = |batch: usize| {
        let ids = (batch * 8..(batch + 1) * 8).map(|id| id as u64);
        for id in ids.clone() {
            let handle = tiny.set.try_acquire().unwrap();
            tiny.set
                .exec_obj(handle)
                .unwrap()
                .bind(|bindings| {
                    bindings.shapes = Shapes::Variant(0);
                    let [input, output] = &mut storages[handle.0 as usize];
                    *output = bindings.take_storage(0).or(output.take());
                    if let Some(input) = input.take() {
                        bindings.inputs[0] = InputBinding::Memory(input.into());
                    }
                    bindings.outputs[0] = OutputBinding::Memory(output.take().unwrap().into());
                })
                .unwrap();
            tiny.set.submit(handle, id, Detached::assume()).unwrap();
        }
        for id in ids {
            let handle = collect(&tiny.set, id);
            tiny.set.exec_obj(handle).unwrap().outcome().unwrap();
            tiny.set.put_completed(handle).unwrap();
        }
    };
    (0..WARM_UP).for_each(&mut batch);
    allocations(|| (0..100).for_each(&mut batch))
}

#[test]
fn counter_of_an_allocation_sees_it() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1_u64)))), 1);
}

#[test]
fn run_without_conversion_allocates_nothing() {
    for place in EVERYWHERE {
        assert_eq!(allocations_of_runs(ElementType::Float32, place), 0);
    }
}

#[test]
fn run_with_conversions_allocates_nothing() {
    for place in EVERYWHERE {
        assert_eq!(allocations_of_runs(ElementType::Float16, place), 0);
    }
}

#[test]
fn submission_collected_in_order_allocates_nothing() {
    let collect = |set: &InferenceSet, _| set.get_completed(&mut WaitScope::default()).unwrap();
    for place in EVERYWHERE {
        assert_eq!(allocations_of_batches(place, collect), 0);
    }
}

#[test]
fn submission_collected_by_id_allocates_nothing() {
    let collect = |set: &InferenceSet, id| set.get_completed_id(id, &mut WaitScope::default()).unwrap();
    for place in EVERYWHERE {
        assert_eq!(allocations_of_batches(place, collect), 0);
    }
}

/// An input and an output.
struct Pair([Storage; 2]);

impl Arrays for Pair {
    fn memory(&self, ArrayId(id): ArrayId) -> HostSlice<'_> {
        self.0[id].memory()
    }

    fn memory_mut(&self, ArrayId(id): ArrayId) -> HostSliceMut<'_> {
        // SAFETY: all of the storage's memory, to which no reference is ever created.
        unsafe { HostSliceMut::new(self.0[id].as_mut_ptr(), self.0[id].memory().len()) }
    }
}

/// The lists have room for the tensors of an inference from the start.
#[test]
fn first_inference_of_bound_arrays_allocates_nothing() {
    let tiny = Tiny::new(ElementType::Float32, 1, Where::Here);
    let tensors = ArrayTensors::new(&image(ElementType::Float32), 1).unwrap();
    let arrays = Pair([(); 2].map(|()| Storage::new(ELEMENTS as usize * 4).unwrap()));
    let run = |bound: &mut BoundArrays| {
        bound.begin(0);
        bound.push_input(&tensors, &arrays, Some(ArrayId(0))).unwrap();
        bound.push_output(&tensors, &arrays, Destination::Array(ArrayId(1))).unwrap();
        bound.check_apart(&tensors).unwrap();
        bound.run(&tiny.set, &tensors, &arrays, &mut WaitScope::default()).unwrap();
    };
    (0..WARM_UP).for_each(|_| run(&mut BoundArrays::for_tensors(&tensors)));
    let mut bound = BoundArrays::for_tensors(&tensors);
    assert_eq!(allocations(|| run(&mut bound)), 0);
}

/// The allocator does not provide the pages of buffer objects.
#[test]
fn exec_object_on_a_card_takes_little_besides_its_buffers() {
    const MORE: usize = 256;
    let bytes = |set_size| {
        let (mut tiny, bytes) = bytes_of(|| Tiny::new(ElementType::Float16, set_size, Where::Card));
        assert_eq!(tiny.set.handle_count(), set_size as usize);
        // Memory that is allocated at the first use also counts.
        let Tiny { set, input, outputs } = &mut tiny;
        let leases: Vec<_> = (0..set_size).map(|_| set.try_lease().unwrap()).collect();
        let mut lender = Lender::with_capacity(2);
        let ((), used) = bytes_of(|| {
            for lease in &leases {
                let outputs = &mut [Some(outputs[0].memory_mut())];
                lease.run(&mut lender, &[input.memory()], outputs, &mut WaitScope::default()).unwrap();
            }
        });
        bytes + used
    };
    // The first exec object already allocates the shared parts, such as threads and lists.
    let each = (bytes(u32::try_from(MORE).unwrap() + 1) - bytes(1)) / MORE;
    assert!((256..4096).contains(&each), "{each} bytes");
}
