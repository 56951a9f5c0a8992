//! Memory that callers share with exec objects: the bound memory, its shapes, and its lifetime.

use std::sync::Barrier;

use crate::tests::prelude::*;
use qaic_mem::ForeignMemoryMut;
use qaic_runtime::StateError;
use qaic_runtime::binding::{Window, WindowArray};
use qaic_runtime::request::ListedBuffer;

const ALL: usize = ELEMENTS as usize;
const HALF: usize = ALL / 2;

type Memory = Arc<SharedMemory>;

/// A program that returns `x` as `y` and `z`, on a separate device.
struct Bench {
    bound: BoundBuffers,
    control: Arc<Control>,
    // The set is dropped last.
    set: Arc<InferenceSet>,
}

impl Bench {
    fn new() -> Self {
        let context = noop(RegistryOptions::default());
        let (control, set) = (control(&context), set(&context, &resizable(), 1, 1));
        let bound = BoundBuffers::of_set(&set).unwrap().pop().unwrap();
        Self { bound, control, set }
    }

    fn run(&self) -> Result<(), RuntimeError> {
        self.bound.exec.run(&mut WaitScope::default())
    }

    fn is_bound_to(&self, expected: &[&Memory]) -> bool {
        let bound = self.bound.buffers().unwrap();
        let mut pairs = bound.iter().zip(expected);
        bound.len() == expected.len()
            && pairs
                .all(|(bound, &expected)| bound.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, expected)))
    }
}

fn memory(elements: usize, value: f32) -> Memory {
    shared(Storage::of(&f32_bytes(&vec![value; elements])).unwrap())
}

fn holds(memory: &Memory, elements: usize, value: f32) -> bool {
    memory.memory().to_vec() == f32_bytes(&vec![value; elements])
}

fn shapes(elements: [usize; 3]) -> Vec<GivenShape> {
    elements.map(|elements| GivenShape { item_bytes: 4, dims: vec![1, elements as u64] }).into()
}

/// Binds buffers as for a newly acquired handle.
fn bind_anew(bound: &BoundBuffers, buffers: &[Memory]) {
    let given = || Ok::<_, RuntimeError>(buffers.to_vec());
    bound.bind_for_new_inference(buffers.len(), |_, _| false, given).unwrap();
}

fn code(outcome: Result<(), RuntimeError>) -> &'static str {
    outcome.unwrap_err().code()
}

#[test]
fn memory_is_kept_until_other_memory_is_bound() {
    let bench = Bench::new();
    let first = [memory(ALL, 3.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.replace_all(&first, None).unwrap();
    bench.run().unwrap();
    assert!(holds(&first[1], ALL, 3.0) && holds(&first[2], ALL, 3.0));
    // The same buffers again, as callers in a loop bind them, in the shapes that match the sizes.
    bench.bound.replace_all(&first, None).unwrap();
    let second = [memory(HALF, 4.0), memory(HALF, 0.0), memory(HALF, 0.0)];
    assert!(first.iter().all(|memory| Arc::strong_count(memory) > 1));
    bench.bound.replace_all(&second, None).unwrap();
    assert!(first.iter().all(|memory| Arc::strong_count(memory) == 1));
    bench.run().unwrap();
    assert!(holds(&second[1], HALF, 4.0) && holds(&second[2], HALF, 4.0));
}

#[test]
fn buffers_of_before_are_kept_for_a_new_inference() {
    let bench = Bench::new();
    // True if the bindings were kept; otherwise nothing is bound.
    let keep = |buffers: &[Memory]| {
        let is_same = |index: usize, bound: &Memory| Arc::ptr_eq(bound, &buffers[index]);
        let outcome =
            bench.bound.bind_for_new_inference(buffers.len(), is_same, || Err(StateError::InFlight.into()));
        outcome.map_err(|error: RuntimeError| assert_eq!(error.code(), "inference.in_flight")).is_ok()
    };
    let first = [memory(ALL, 3.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    assert!(!keep(&first), "nothing is bound");
    let all = || Ok::<_, RuntimeError>(first.to_vec());
    bench.bound.bind_for_new_inference(3, |_, _| panic!("nothing is bound"), all).unwrap();
    assert!(keep(&first) && !keep(&first[..2]));
    let others = [Arc::clone(&first[0]), Arc::clone(&first[1]), memory(ALL, 0.0)];
    assert!(!keep(&others) && bench.is_bound_to(&first.each_ref()));
    bench.run().unwrap();
    assert!(holds(&first[2], ALL, 3.0));
    // Dims that were announced for another inference are forgotten, as are windows.
    bench.bound.announce(shapes([HALF; 3])).unwrap();
    assert!(bench.bound.check_announced().is_err() && keep(&first));
    bench.bound.check_announced().unwrap();
    let window = Window {
        binding: 1,
        origin: vec![0, 0],
        extent: vec![1, 1],
        item_bytes: 4,
        array: WindowArray::Target(ForeignMemoryMut::from(Storage::new(4).unwrap())),
        strides: vec![4, 4],
    };
    bench.bound.replace_some(&[], vec![window]).unwrap();
    assert!(keep(&first));
    bench.bound.exec.bind(|bindings| assert!(bindings.windows.is_empty())).unwrap();
    // Buffers that were bound with dims are bound again.
    bench.bound.replace_all(&first, Some(&shapes([ALL; 3]))).unwrap();
    assert!(!keep(&first));
    bench.bound.replace_all(&first, None).unwrap();
    bench.control.hold().unwrap();
    bench.bound.exec.enqueue(Detached::assume()).unwrap();
    assert!(!keep(&first));
    assert_eq!(code(bench.bound.replace_all(&first, None)), "inference.in_flight");
    bench.control.release().unwrap();
    bench.bound.exec.wait(&mut WaitScope::default()).unwrap();
}

#[test]
fn refused_call_leaves_what_was_bound() {
    let bench = Bench::new();
    let all = [memory(ALL, 3.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.replace_all(&all, None).unwrap();
    let [x, y, z] = &all;
    let with_output = |output: &Memory| [Arc::clone(x), Arc::clone(output), Arc::clone(z)];
    let readonly = Storage::new(4 * ALL).unwrap();
    let address = readonly.as_mut_ptr();
    // SAFETY: the storage keeps the memory, which nothing else reaches.
    let readonly = unsafe { SharedMemory::foreign(address, 4 * ALL, true, readonly) };
    assert_eq!(code(bench.bound.replace_all(&all[..2], None)), "call.argument");
    assert_eq!(code(bench.bound.replace_all(&all, Some(&shapes([ALL; 3])[..2]))), "call.argument");
    assert_eq!(code(bench.bound.replace_all(&all, Some(&shapes([ALL, ALL, HALF])))), "call.argument");
    assert_eq!(code(bench.bound.replace_all(&with_output(&memory(3, 0.0)), None)), "input.size");
    assert_eq!(code(bench.bound.replace_all(&with_output(&readonly), None)), "call.argument");
    assert_eq!(code(bench.bound.replace_all(&with_output(z), None)), "call.argument", "shared by outputs");
    assert_eq!(code(bench.bound.replace_part(Part::Inputs, &all)), "call.argument");
    assert_eq!(code(bench.bound.replace_part(Part::Outputs, &all)), "call.argument");
    let listed = |index, memory: &Memory| ListedBuffer { index, memory: Arc::clone(memory), shape: None };
    assert_eq!(code(bench.bound.replace_some(&[listed(3, x)], Vec::new())), "call.argument");
    assert_eq!(code(bench.bound.replace_some(&[listed(1, z)], Vec::new())), "call.argument");
    let swapped = [listed(1, z), listed(2, y), listed(2, z)];
    assert_eq!(code(bench.bound.replace_some(&swapped, Vec::new())), "call.argument", "the last one counts");
    assert!(bench.is_bound_to(&[x, y, z]));
    bench.run().unwrap();
    assert!(holds(y, ALL, 3.0) && holds(z, ALL, 3.0));
}

#[test]
fn listed_buffers_replace_their_bindings_alone() {
    let bench = Bench::new();
    let all = [memory(ALL, 5.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.replace_all(&all, None).unwrap();
    let other = memory(ALL, 0.0);
    let entry = |memory: &Memory, elements| ListedBuffer {
        index: 1,
        memory: Arc::clone(memory),
        shape: shapes([elements; 3]).pop(),
    };
    bench.bound.replace_some(&[entry(&other, ALL)], Vec::new()).unwrap();
    assert!(bench.is_bound_to(&[&all[0], &other, &all[2]]));
    bench.run().unwrap();
    assert!(holds(&other, ALL, 5.0) && holds(&all[1], ALL, 0.0) && holds(&all[2], ALL, 5.0));
    // Shapes that match no combination are bound, and the inference reports them.
    bench.bound.replace_some(&[entry(&memory(HALF, 0.0), HALF)], Vec::new()).unwrap();
    assert_eq!(code(bench.run()), "input.no_matching_shape");
    // Bindings by name are independent of bindings by size.
    bench.bound.replace_all(&all, None).unwrap();
    assert!(bench.is_bound_to(&[&all[0], &all[1], &all[2]]));
    bench.run().unwrap();
    assert!(holds(&all[1], ALL, 5.0));
}

#[test]
fn memory_of_an_inference_under_way_is_not_replaced() {
    let bench = Bench::new();
    let all = [memory(ALL, 2.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.replace_all(&all, None).unwrap();
    bench.control.hold().unwrap();
    bench.set.submit(HandleId(0), 1, Detached::assume()).unwrap();
    let other = [memory(ALL, 7.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    let in_flight = "inference.in_flight";
    assert_eq!(code(bench.bound.replace_all(&other, None)), in_flight);
    assert_eq!(code(bench.bound.replace_all(&all, None)), in_flight, "the same buffers neither");
    assert_eq!(code(bench.bound.replace_part(Part::Inputs, &other[..1])), in_flight);
    assert_eq!(code(bench.bound.announce(shapes([ALL; 3]))), in_flight);
    assert!(bench.is_bound_to(&[&all[0], &all[1], &all[2]]));
    bench.control.release().unwrap();
    bench.set.wait_for_completion(&mut WaitScope::default()).unwrap();
    bench.set.check_completed().unwrap();
    assert!(holds(&all[2], ALL, 2.0));
    bench.bound.replace_all(&other, None).unwrap();
}

#[test]
fn parts_without_dims_have_the_shapes_of_their_sizes() {
    let bench = Bench::new();
    let small = [memory(HALF, 6.0), memory(HALF, 0.0), memory(HALF, 0.0)];
    bench.bound.replace_part(Part::Inputs, &small[..1]).unwrap();
    bench.bound.replace_part(Part::Outputs, &small[1..]).unwrap();
    bench.run().unwrap();
    assert!(holds(&small[1], HALF, 6.0) && holds(&small[2], HALF, 6.0));
    let is_kept = |buffers: &[Memory]| {
        let is_same = |index: usize, bound: &Memory| Arc::ptr_eq(bound, &buffers[index]);
        let again = || Err(RuntimeError::from(StateError::InFlight));
        bench.bound.bind_for_new_inference(buffers.len(), is_same, again).is_ok()
    };
    assert!(!is_kept(&small), "bound one part after the other");
    bench.bound.replace_part(Part::All, &small).unwrap();
    assert!(is_kept(&small), "bound at once");
}

#[test]
fn dims_announced_before_their_buffers_wait_for_them() {
    let bench = Bench::new();
    assert_eq!(code(bench.bound.announce(shapes([ALL; 3])[..2].to_vec())), "call.argument");
    bench.bound.announce(shapes([HALF; 3])).unwrap();
    assert_eq!(code(bench.bound.check_announced()), "call.argument");
    let small = [memory(HALF, 6.0), memory(HALF, 0.0), memory(HALF, 0.0)];
    bench.bound.replace_part(Part::Inputs, &small[..1]).unwrap();
    assert_eq!(code(bench.bound.check_announced()), "call.argument", "the outputs are still to come");
    bench.bound.replace_part(Part::Outputs, &small[1..]).unwrap();
    bench.bound.check_announced().unwrap();
    bench.run().unwrap();
    assert!(holds(&small[1], HALF, 6.0) && holds(&small[2], HALF, 6.0));
}

#[test]
fn dims_that_do_not_fit_the_buffers_at_hand_are_for_the_next() {
    let bench = Bench::new();
    let large = [memory(ALL, 1.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.replace_part(Part::All, &large).unwrap();
    bench.bound.announce(shapes([HALF; 3])).unwrap();
    assert_eq!(code(bench.bound.check_announced()), "call.argument");
    assert_eq!(code(bench.bound.replace_part(Part::All, &large)), "call.argument");
    let small = [memory(HALF, 8.0), memory(HALF, 0.0), memory(HALF, 0.0)];
    bench.bound.replace_part(Part::All, &small).unwrap();
    bench.bound.check_announced().unwrap();
    // The dims belonged to the earlier buffers; the next buffers have the shapes of their sizes.
    bench.bound.replace_part(Part::All, &large).unwrap();
    bench.run().unwrap();
    assert!(holds(&large[2], ALL, 1.0));
}

#[test]
fn dims_are_forgotten_for_a_new_inference() {
    let bench = Bench::new();
    let all = [memory(ALL, 1.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.announce(shapes([HALF; 3])).unwrap();
    bind_anew(&bench.bound, &all);
    bench.bound.check_announced().unwrap();
    bench.bound.announce(shapes([HALF; 3])).unwrap();
    bench.bound.forget_announced().unwrap();
    bench.bound.check_announced().unwrap();
}

#[test]
fn buffer_that_dims_leave_out_comes_back_with_other_dims() {
    let bench = Bench::new();
    let all = [memory(ALL, 9.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.replace_part(Part::All, &all).unwrap();
    bench.bound.announce(shapes([ALL, ALL, 0])).unwrap();
    bench.bound.check_announced().unwrap();
    assert!(!bench.is_bound_to(&[&all[0], &all[1], &all[2]]));
    bench.run().unwrap();
    assert!(holds(&all[1], ALL, 9.0) && holds(&all[2], ALL, 0.0));
    bench.bound.announce(shapes([ALL; 3])).unwrap();
    assert!(bench.is_bound_to(&[&all[0], &all[1], &all[2]]));
    bench.run().unwrap();
    assert!(holds(&all[2], ALL, 9.0));
    // A buffer that is replaced while its binding is omitted is not bound again.
    bench.bound.announce(shapes([ALL, ALL, 0])).unwrap();
    let outputs = [memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.replace_part(Part::Outputs, &outputs).unwrap();
    bench.bound.announce(shapes([ALL; 3])).unwrap();
    assert!(bench.is_bound_to(&[&all[0], &outputs[0], &outputs[1]]));
}

#[test]
fn lease_that_let_go_of_everything_is_followed_by_a_full_binding() {
    let bench = Bench::new();
    let all = [memory(ALL, 2.5), memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.replace_all(&all, None).unwrap();
    bench.bound.exec.bind(qaic_runtime::binding::Bindings::clear).unwrap();
    bench.bound.bind_again().unwrap();
    bench.bound.replace_all(&all, None).unwrap();
    bench.run().unwrap();
    assert!(holds(&all[1], ALL, 2.5));
}

#[test]
fn buffers_of_an_inference_under_way_are_read_by_any_thread() {
    let bench = Bench::new();
    let all = [memory(ALL, 2.0), memory(ALL, 0.0), memory(ALL, 0.0)];
    bench.bound.announce(shapes([ALL; 3])).unwrap();
    bench.bound.replace_part(Part::All, &all).unwrap();
    bench.control.hold().unwrap();
    bench.set.submit(HandleId(0), 1, Detached::assume()).unwrap();
    thread::scope(|scope| {
        let elsewhere = scope.spawn(|| bench.bound.check_announced().is_ok() && is_all(&bench, &all));
        assert!(elsewhere.join().unwrap());
    });
    bench.control.release().unwrap();
    bench.set.wait_for_completion(&mut WaitScope::default()).unwrap();
    bench.set.check_completed().unwrap();
}

/// A call that runs concurrently with another fails completely; the final bindings are those of one call.
#[test]
fn threads_that_bind_at_the_same_time_are_served_or_refused() {
    const THREADS: u8 = 4;
    let bench = Bench::new();
    let start = Barrier::new(THREADS.into());
    let of_thread = |number: u8| [memory(ALL, number.into()), memory(ALL, 0.0), memory(ALL, 0.0)];
    let all: Vec<_> = (0..THREADS).map(of_thread).collect();
    let served: u32 = thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter()
            .map(|own| {
                let (bench, start) = (&bench, &start);
                scope.spawn(move || {
                    start.wait();
                    let bind = |_| match bench.bound.replace_all(own, None) {
                        Ok(()) => 1,
                        Err(error) => {
                            assert_eq!(error.code(), "call.state");
                            0
                        }
                    };
                    (0..500).map(bind).sum::<u32>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(served > 0);
    let last = all.iter().position(|own| is_all(&bench, own)).unwrap();
    bench.run().unwrap();
    assert!(holds(&all[last][1], ALL, u8::try_from(last).unwrap().into()));
    // The memory of the other calls is released.
    let kept = all.iter().filter(|own| own.iter().all(|memory| Arc::strong_count(memory) > 1));
    assert_eq!(kept.count(), 1);
}

fn is_all(bench: &Bench, all: &[Memory; 3]) -> bool {
    bench.is_bound_to(&[&all[0], &all[1], &all[2]])
}
