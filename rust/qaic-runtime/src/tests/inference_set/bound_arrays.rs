//! Arrays that are lent to inferences: the memory that the device uses for each tensor, and the results for
//! callers.

use crate::binding::mxint8::Half;
use crate::echo::{BLOCK_VALUES, blocks, retaining, with_split_state};
use crate::tests::prelude::*;
use qaic_runtime::request::{ArrayId, ArrayTensors, Arrays, BoundArrays, Destination};

const ALL: usize = ELEMENTS as usize;
const HALF: usize = ALL / 2;

/// Parts of one buffer, by first byte and length.
struct Parts {
    buffer: Storage,
    parts: Vec<(usize, usize)>,
}

impl Parts {
    fn new(values: &[f32], parts: &[(usize, usize)]) -> Self {
        let parts = parts.iter().map(|(first, count)| (4 * first, 4 * count)).collect();
        Self { buffer: Storage::of(values).unwrap(), parts }
    }

    fn bytes(&self, id: usize) -> Vec<u8> {
        self.memory(ArrayId(id)).to_vec()
    }

    fn holds(&self, id: usize, values: &[f32]) -> bool {
        self.bytes(id) == f32_bytes(values)
    }
}

impl Arrays for Parts {
    fn memory(&self, ArrayId(id): ArrayId) -> HostSlice<'_> {
        let (first, len) = self.parts[id];
        self.buffer.memory().subslice(first, len).unwrap()
    }

    fn memory_mut(&self, ArrayId(id): ArrayId) -> HostSliceMut<'_> {
        let (first, len) = self.parts[id];
        let address = self.buffer.as_mut_ptr().wrapping_add(first);
        // SAFETY: the part is in the buffer, to which no reference is ever created.
        unsafe { HostSliceMut::new(address, len) }
    }
}

struct Bench {
    control: Arc<Control>,
    tensors: ArrayTensors,
    bound: BoundArrays,
    // The set is dropped last.
    set: Arc<InferenceSet>,
}

impl Bench {
    fn new(image: &Arc<Image>) -> Self {
        let context = noop(RegistryOptions::default());
        let (control, set) = (control(&context), set(&context, image, 1, 1));
        let tensors = ArrayTensors::new(image, 2).unwrap();
        let bound = BoundArrays::for_tensors(&tensors);
        Self { control, tensors, bound, set }
    }

    /// Binds one input, and outputs in order.
    fn bind(&mut self, arrays: &Parts, variant: usize, input: Option<usize>, outputs: &[Destination]) {
        self.bound.begin(variant);
        self.bound.push_input(&self.tensors, arrays, input.map(ArrayId)).unwrap();
        for output in outputs {
            self.bound.push_output(&self.tensors, arrays, *output).unwrap();
        }
    }

    fn run(&mut self, arrays: &Parts) -> Result<(), RuntimeError> {
        self.bound.run(&self.set, &self.tensors, arrays, &mut WaitScope::default())
    }

    fn taken(&mut self, output: usize) -> Option<Vec<u8>> {
        self.bound.take_output(output).map(|array| array.memory().to_vec())
    }
}

fn to(id: usize) -> Destination {
    Destination::Array(ArrayId(id))
}

fn counted(count: usize) -> Vec<f32> {
    (0_u8..).map(f32::from).take(count).collect()
}

#[test]
fn outputs_go_to_arrays_at_hand_or_to_new_ones() {
    let mut bench = Bench::new(&resizable());
    let mut values = counted(ALL);
    values.resize(2 * ALL, -1.0);
    let arrays = Parts::new(&values, &[(0, ALL), (ALL, ALL)]);
    bench.bind(&arrays, 0, Some(0), &[to(1), Destination::New]);
    bench.bound.check_apart(&bench.tensors).unwrap();
    bench.run(&arrays).unwrap();
    assert!(arrays.holds(1, &counted(ALL)));
    assert_eq!(bench.taken(1), Some(f32_bytes(&counted(ALL))));
    // Each output can be taken once; outputs that were written to an array have no memory of their own.
    assert_eq!((bench.taken(1), bench.taken(0), bench.taken(7)), (None, None, None));
    bench.bind(&arrays, 0, Some(0), &[Destination::Dropped, Destination::New]);
    bench.run(&arrays).unwrap();
    assert_eq!((bench.taken(0), bench.taken(1)), (None, Some(f32_bytes(&counted(ALL)))));
}

#[test]
fn output_of_a_smaller_shape_is_the_head_of_a_larger_array() {
    let mut bench = Bench::new(&resizable());
    let mut values = counted(HALF);
    values.resize(HALF + ALL, -1.0);
    let arrays = Parts::new(&values, &[(0, HALF), (HALF, ALL)]);
    bench.bind(&arrays, 1, Some(0), &[to(1), Destination::New]);
    bench.run(&arrays).unwrap();
    let mut expected = counted(HALF);
    expected.resize(ALL, -1.0);
    assert!(arrays.holds(1, &expected));
    assert_eq!(bench.taken(1), Some(f32_bytes(&counted(HALF))));
    let layout = |variant| bench.tensors.output_layout(1, variant).unwrap().shape.to_vec();
    assert_eq!((layout(0), layout(1)), (vec![1, 64], vec![1, 32]));
    assert_eq!(bench.tensors.output_layout(2, 0).unwrap_err().code(), "internal");
}

#[test]
fn output_that_shares_memory_with_the_input_gets_it_after_all_was_read() {
    let mut bench = Bench::new(&resizable());
    let mut values = counted(ALL);
    values.push(-1.0);
    // The output begins one value after the input.
    let arrays = Parts::new(&values, &[(0, ALL), (1, ALL)]);
    bench.bind(&arrays, 0, Some(0), &[to(1), Destination::New]);
    bench.run(&arrays).unwrap();
    assert!(arrays.holds(1, &counted(ALL)));
    assert_eq!(bench.taken(1), Some(f32_bytes(&counted(ALL))));
}

#[test]
fn outputs_that_share_memory_are_refused() {
    let mut bench = Bench::new(&resizable());
    let arrays = Parts::new(&counted(3 * ALL), &[(0, ALL), (ALL, ALL), (2 * ALL - 1, ALL), (2 * ALL, ALL)]);
    bench.bind(&arrays, 0, Some(0), &[to(1), to(2)]);
    let error = bench.bound.check_apart(&bench.tensors).unwrap_err();
    assert!(error.to_string().contains('z'), "{error}");
    bench.bind(&arrays, 0, Some(0), &[to(1), to(3)]);
    bench.bound.check_apart(&bench.tensors).unwrap();
    // Only the starts of the arrays receive outputs, and these do not overlap.
    bench.bind(&arrays, 1, Some(0), &[to(1), to(2)]);
    bench.bound.check_apart(&bench.tensors).unwrap();
}

/// Runs an inference whose deadline has passed when it begins, after two that have ended well.
fn run_late(bench: &mut Bench, before: &Parts, late: &Parts) -> Result<(), RuntimeError> {
    let outputs = [Destination::New, Destination::New];
    for _ in 0..2 {
        bench.bind(before, 0, Some(0), &outputs);
        bench.run(before).unwrap();
    }
    bench.bind(late, 0, Some(0), &outputs);
    let mut scope = WaitScope::until(Deadline::after(Duration::ZERO));
    bench.bound.run(&bench.set, &bench.tensors, late, &mut scope)
}

#[test]
fn late_inference_with_state_has_timed_out_only_where_the_state_has_not_gone_on() {
    let (before, after) = (vec![1.0; ALL], vec![2.0; ALL]);
    let arrays = [&before, &after].map(|values| Parts::new(values, &[(0, ALL)]));
    let [first, late] = &arrays;
    let mut stateless = Bench::new(&image(ElementType::Float32));
    assert_eq!(run_late(&mut stateless, first, late).unwrap_err().code(), "device.timeout");
    let mut bench = Bench::new(&retaining());
    // The watchdog may end the inference before the device receives it.
    let state = match run_late(&mut bench, first, late) {
        Ok(()) => after,
        Err(error) => {
            assert_eq!(error.code(), "device.timeout");
            before
        }
    };
    bench.bind(first, 0, None, &[Destination::New]);
    bench.run(first).unwrap();
    assert_eq!(bench.taken(0), Some(f32_bytes(&state)));
}

#[test]
fn failed_inference_leaves_the_arrays_and_the_set() {
    let mut bench = Bench::new(&resizable());
    let arrays = Parts::new(&counted(2 * ALL), &[(0, ALL), (ALL, ALL)]);
    let before = arrays.bytes(1);
    bench.bind(&arrays, 0, Some(0), &[to(1), to(0)]);
    bench.control.hold().unwrap();
    let deadline = Deadline::after(Duration::from_millis(5));
    let late = bench.bound.run(&bench.set, &bench.tensors, &arrays, &mut WaitScope::until(deadline));
    assert_eq!(late.unwrap_err().code(), "device.timeout");
    bench.control.release().unwrap();
    assert_eq!(arrays.bytes(1), before);
    bench.bind(&arrays, 0, Some(0), &[to(1), Destination::New]);
    bench.run(&arrays).unwrap();
    assert!(arrays.holds(1, &counted(ALL)));
}

#[test]
fn input_left_out_is_the_value_that_the_device_keeps() {
    let mut bench = Bench::new(&retaining());
    let arrays = Parts::new(&counted(ALL), &[(0, ALL)]);
    bench.bind(&arrays, 0, Some(0), &[Destination::Dropped]);
    assert!(!bench.bound.is_left_out(0));
    bench.run(&arrays).unwrap();
    bench.bind(&arrays, 0, None, &[Destination::New]);
    assert!(bench.bound.is_left_out(0) && !bench.bound.is_left_out(1));
    assert_eq!(bench.bound.input_bytes(&arrays), 0);
    bench.run(&arrays).unwrap();
    assert_eq!(bench.taken(0), Some(f32_bytes(&counted(ALL))));
    // The next value also stays on the device.
    bench.bind(&arrays, 0, None, &[]);
    let pending = bench.bound.prepare(&bench.set, &bench.tensors, &arrays, None).unwrap();
    pending.start(&bench.set, None, &mut WaitScope::default()).unwrap();
    pending.wait(&mut WaitScope::default()).unwrap();
    assert!(matches!(pending.take_outputs()[..], [None]));
}

#[test]
fn prepared_inference_has_copies() {
    let mut bench = Bench::new(&resizable());
    let arrays = Parts::new(&counted(ALL), &[(0, ALL), (0, HALF)]);
    for (variant, id, elements) in [(0, 0, ALL), (1, 1, HALF)] {
        arrays.memory_mut(ArrayId(0)).copy_from(HostSlice::of(&counted(ALL)));
        bench.bind(&arrays, variant, Some(id), &[]);
        assert_eq!(bench.bound.input_bytes(&arrays), 4 * elements);
        let pending = bench.bound.prepare(&bench.set, &bench.tensors, &arrays, None).unwrap();
        arrays.memory_mut(ArrayId(0)).fill(0);
        pending.start(&bench.set, None, &mut WaitScope::default()).unwrap();
        pending.wait(&mut WaitScope::default()).unwrap();
        let outputs = pending.take_outputs();
        assert_eq!(outputs.len(), 2);
        for output in outputs {
            assert_eq!(output.unwrap().memory().to_vec(), f32_bytes(&counted(elements)));
        }
    }
}

#[test]
fn benchmark_runs_on_the_arrays_without_outputs() {
    let mut bench = Bench::new(&image(ElementType::Float32));
    let arrays = Parts::new(&counted(ALL), &[(0, ALL)]);
    bench.bind(&arrays, 0, Some(0), &[]);
    let outcome =
        bench.bound.benchmark(&bench.set, &arrays, Some(7), None, &mut WaitScope::default()).unwrap();
    assert_eq!(outcome.completed, 7);
    // No memory stays lent.
    bench.bind(&arrays, 0, Some(0), &[Destination::New]);
    bench.run(&arrays).unwrap();
    assert_eq!(bench.taken(0), Some(f32_bytes(&counted(ALL))));
}

/// Two rows of float16, which are whole numbers up to 60: blocks hold them exactly.
fn halves() -> Vec<u8> {
    let values = (0_u8..60).chain(0..60).map(|value| Half::from_f32(f32::from(value)));
    values.flat_map(Half::to_le_bytes).collect()
}

#[test]
fn arrays_in_place_of_blocks_are_made_into_them_and_back() {
    let mut bench = Bench::new(&blocks());
    let mut bytes = halves();
    let len = bytes.len();
    assert_eq!(len, 2 * 2 * BLOCK_VALUES);
    bytes.resize(2 * len, 0xff);
    let arrays = Parts { buffer: Storage::of(&bytes).unwrap(), parts: vec![(0, len), (len, len)] };
    bench.bind(&arrays, 0, Some(0), &[Destination::New]);
    // The device reads the blocks.
    assert_eq!(bench.bound.input_bytes(&arrays), 2 * 66);
    bench.run(&arrays).unwrap();
    assert_eq!(bench.taken(0), Some(halves()));
    bench.bind(&arrays, 0, Some(0), &[to(1)]);
    bench.run(&arrays).unwrap();
    assert_eq!(arrays.bytes(1), halves());
    bench.bind(&arrays, 0, Some(0), &[]);
    let pending = bench.bound.prepare(&bench.set, &bench.tensors, &arrays, None).unwrap();
    pending.start(&bench.set, None, &mut WaitScope::default()).unwrap();
    pending.wait(&mut WaitScope::default()).unwrap();
    let written = pending.take_outputs().pop().flatten().unwrap();
    let array = bench.tensors.output_array(0, 0, written).unwrap();
    assert_eq!(array.memory().to_vec(), halves());
}

#[test]
fn state_is_read_and_written_as_an_array() {
    let bench = Bench::new(&with_split_state());
    let state = bench.tensors.state(&bench.set, "x", None).unwrap();
    assert_eq!((state.dims(), state.element_type()), (&[1, ALL][..], "float32"));
    assert_eq!((state.layout().shape.to_vec(), state.layout().format.to_bytes()), (vec![1, 64], &b"f"[..]));
    state.write(HostSlice::of(&counted(ALL)), &mut WaitScope::default()).unwrap();
    assert_eq!(state.read(&mut WaitScope::default()).unwrap().memory().to_vec(), f32_bytes(&counted(ALL)));
    let short = state.write(HostSlice::of(&counted(HALF)), &mut WaitScope::default()).unwrap_err();
    assert_eq!(short.code(), "internal.coerce");
    assert_eq!(bench.tensors.state(&bench.set, "y", None).unwrap_err().code(), "state.unknown_name");
    let last = bench.tensors.state(&bench.set, "x", Some(0)).unwrap();
    assert_eq!(last.dims(), [ALL]);
    assert_eq!(bench.tensors.state(&bench.set, "x", Some(1)).unwrap_err().code(), "state.sequence");
    let whole = Bench::new(&retaining());
    assert_eq!(whole.tensors.state(&whole.set, "x", None).unwrap_err().code(), "state.not_split");
}
