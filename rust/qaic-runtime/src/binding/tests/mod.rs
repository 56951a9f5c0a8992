//! Calls of an `IoBinding` to its device, and the data that arrives in place.

mod device;
mod echo_model;
mod transfers;

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard};

use device::{Asked, Device, Echoing};
use echo_model::{Echo, Model, calls, programs};
use proptest::prelude::*;
use qaic_mem::DmaBuf;
use qaic_qpc::ElementType::{Float16, Float32, UInt8Q};
use qaic_qpc::{
    Direction, DmaBuffer, IoBinding as BindingDesc, IoShapes, NetworkDesc, Stats as StatsDesc, TensorShape,
    TransformKind,
};

use super::{Bindings, InputBinding, IoBinding, OutputBinding, Retained, Shapes, StatsPlace, TransferPlan};
use crate::binding::RetainedPair;
use crate::descriptor::{copied, step, two_buffers};
use crate::device::Activation;
use crate::error::{ErrorDetail, RuntimeError};
use crate::oracle::Array;
use crate::process::clock;
use crate::profiling::{Identity, Stages, Watch};

/// A binding to a device that echoes.
struct Rig {
    io: IoBinding,
    device: Arc<Mutex<Device>>,
    bindings: Bindings,
    retained: Option<Retained>,
}

impl Rig {
    fn new(network: &NetworkDesc, pairs: &[RetainedPair], in_place: bool) -> Self {
        let device = Arc::new(Mutex::new(Device::default()));
        let buffers = network.dma_buffers.iter().map(|buffer| (buffer.dir, buffer.size as usize)).collect();
        let activation: Arc<dyn Activation> =
            Arc::new(Echoing { device: Arc::clone(&device), buffers, in_place });
        let variants: Arc<[_]> = TransferPlan::variants(network).unwrap().into();
        let retained = Retained::new(pairs, &variants[0], |_| false).unwrap();
        let io = IoBinding::new(&activation, &variants, StatsPlace::of(network)).unwrap();
        let bindings = Bindings::new(network.inputs.len(), network.outputs.len());
        Self { io, device, bindings, retained }
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap()
    }

    fn run(&mut self) -> Result<(), RuntimeError> {
        self.io.run(&mut self.bindings, self.retained.as_mut(), None, None)
    }

    fn run_watched(&mut self, watch: &mut Watch) {
        self.io.run(&mut self.bindings, self.retained.as_mut(), Some(watch), None).unwrap();
    }

    /// Returns the device's calls since the previous call of this function.
    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.device().asked)
    }
}

/// A float32 tensor without a conversion, at the start of a buffer.
fn plain(name: &str, dir: Direction, buffer: u32, dims: &[i32]) -> BindingDesc {
    copied(name, Float32, dims, dir, (buffer, 0))
}

/// A float32 input in buffer 0 and a float32 output in buffer 1, both of these dims.
fn network(dims: &[i32]) -> NetworkDesc {
    let size = u32::try_from(dims.iter().product::<i32>() * 4).unwrap();
    NetworkDesc {
        inputs: vec![plain("x", Direction::In, 0, dims)],
        outputs: vec![plain("y", Direction::Out, 1, dims)],
        dma_buffers: two_buffers(size, size),
        ..NetworkDesc::default()
    }
}

/// [`network`] whose device works with half precision.
fn halved(dims: &[i32]) -> NetworkDesc {
    let mut network = network(dims);
    for (binding, at) in [(&mut network.inputs[0], 0), (&mut network.outputs[0], 1)] {
        let convert = step(TransformKind::Convert, if at == 0 { Float16 } else { Float32 }, dims);
        binding.transformseq[0].dtype = Float16;
        binding.transformseq.insert(at, convert);
        let device = if at == 0 { &mut binding.io_transformed } else { &mut binding.io_initial };
        device.dtype = Float16;
    }
    for buffer in &mut network.dma_buffers {
        buffer.size /= 2;
    }
    network
}

/// Permitted combinations of shapes for one input and one output: 2 elements, or 4.
fn two_shapes() -> Vec<IoShapes> {
    let entry = |count| {
        let shape = || TensorShape { dims: vec![count], dtype: Float32 };
        IoShapes { shapes: vec![shape(), shape()] }
    };
    vec![entry(2), entry(4)]
}

fn bound(rig: &mut Rig, input: &Array, output: &Array) {
    rig.bindings.inputs[0] = InputBinding::Memory(input.memory());
    rig.bindings.outputs[0] = OutputBinding::Memory(output.memory_mut());
}

fn address(array: &Array) -> usize {
    array.memory().as_slice().as_ptr().addr()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn data_arrive_in_place_and_through_dma_buffers(program in programs(), calls in calls()) {
        let pairs: Vec<_> = program.states().map(|state| RetainedPair { input: state, output: state }).collect();
        for (in_place, echo) in [(true, Echo::Tensors), (false, Echo::DmaBuffers)] {
            let mut rig = Rig::new(&program.network(), &pairs, in_place);
            let mut model = Model::new(&program, echo);
            for call in &calls {
                let expected = model.bind(call, &mut rig.bindings);
                rig.run().unwrap();
                for array in expected {
                    array.check()?;
                }
            }
        }
    }
}

#[test]
fn tensors_that_fit_are_used_where_they_lie() {
    let mut rig = Rig::new(&network(&[4]), &[], true);
    let (input, output) = (Array::of(&[1; 20]), Array::of(&[0; 20]));
    bound(&mut rig, &input, &output);
    rig.run().unwrap();
    let [Asked::InPlace(inputs, outputs), Asked::Execute] = &rig.asked()[..] else { panic!("one execution") };
    assert_eq!(
        (inputs[..].to_vec(), outputs[..].to_vec()),
        (vec![Some((address(&input), 16))], vec![Some((address(&output), 16))])
    );
}

#[test]
fn tensors_that_begin_within_an_element_are_moved() {
    let mut rig = Rig::new(&network(&[4]), &[], true);
    for (offset, is_moved) in [(0, false), (1, true), (2, true), (4, false), (8, false)] {
        let (input, output) = (Array::at(offset, &[3; 16]), Array::at(offset, &[0; 16]));
        bound(&mut rig, &input, &output);
        rig.run().unwrap();
        assert_eq!(output.bytes(), [3; 16]);
        let asked = rig.asked();
        let [Asked::InPlace(inputs, outputs), _] = &asked[..] else { panic!("one execution") };
        assert_eq!(inputs[0].unwrap().0 != address(&input), is_moved, "{offset}");
        assert_eq!(outputs[0].unwrap().0 != address(&output), is_moved, "{offset}");
        assert!(inputs[0].unwrap().0.is_multiple_of(4) && outputs[0].unwrap().0.is_multiple_of(4));
    }
}

#[test]
fn output_over_an_input_is_made_elsewhere() {
    let mut rig = Rig::new(&network(&[2]), &[], true);
    let array = Array::of(&[1, 2, 3, 4, 5, 6, 7, 8]);
    bound(&mut rig, &array, &array);
    rig.run().unwrap();
    let [Asked::InPlace(inputs, outputs), _] = &rig.asked()[..] else { panic!("one execution") };
    assert_eq!(inputs[0].unwrap().0, address(&array));
    assert_ne!(outputs[0].unwrap().0, address(&array));
    assert_eq!(array.bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn short_output_is_made_elsewhere_and_cut_off() {
    let mut rig = Rig::new(&network(&[2]), &[], true);
    let output = Array::of(&[9; 5]);
    bound(&mut rig, &Array::of(&[1, 2, 3, 4, 5, 6, 7, 8]), &output);
    rig.run().unwrap();
    assert_eq!(output.bytes(), [1, 2, 3, 4, 5]);
}

#[test]
fn buffers_of_converted_tensors_stay_and_grow() {
    let network = NetworkDesc { allowed_shapes: two_shapes(), ..halved(&[4]) };
    let mut rig = Rig::new(&network, &[], true);
    let mut places = Vec::new();
    for (variant, count) in [(0, 2), (1, 4), (0, 2), (1, 4)] {
        let ones = [0, 0, 0x80, 0x3f].repeat(count);
        let output = Array::of(&vec![0; 4 * count]);
        bound(&mut rig, &Array::of(&ones), &output);
        rig.bindings.shapes = Shapes::Variant(variant);
        rig.run().unwrap();
        assert_eq!(output.bytes(), ones);
        let asked = rig.asked();
        let Some(Asked::InPlace(inputs, outputs)) =
            asked.iter().find(|asked| matches!(asked, Asked::InPlace(..)))
        else {
            panic!("one execution")
        };
        assert_eq!((inputs[0].unwrap().1, outputs[0].unwrap().1), (2 * count, 2 * count));
        places.push((inputs[0].unwrap().0, outputs[0].unwrap().0));
    }
    assert!(places[1] == places[2] && places[2] == places[3], "{places:x?}");
}

#[test]
fn shapes_are_selected_where_they_change() {
    let network = NetworkDesc { allowed_shapes: two_shapes(), ..network(&[4]) };
    let mut rig = Rig::new(&network, &[], false);
    bound(&mut rig, &Array::of(&[1; 16]), &Array::of(&[0; 16]));
    let selected = |rig: &mut Rig, variant| {
        rig.bindings.shapes = Shapes::Variant(variant);
        rig.run().unwrap();
        let bytes: Vec<_> = rig.io.output_bytes().collect();
        let asked = rig.asked().into_iter().filter(|asked| matches!(asked, Asked::Shapes(_)));
        (asked.collect::<Vec<_>>(), bytes)
    };
    assert_eq!(selected(&mut rig, 0), (vec![], vec![8]));
    assert_eq!(selected(&mut rig, 1), (vec![Asked::Shapes(1)], vec![16]));
    assert_eq!(selected(&mut rig, 1), (vec![], vec![16]));
    assert_eq!(selected(&mut rig, 0), (vec![Asked::Shapes(0)], vec![8]));
    rig.bindings.shapes = Shapes::Variant(2);
    assert_eq!(rig.run().unwrap_err().code(), "internal");
    rig.bindings.shapes = Shapes::Mismatch("none fits".into());
    assert!(rig.run().unwrap_err().to_string().ends_with("none fits"));
}

#[test]
fn what_does_not_fit_is_refused_before_the_device_is_asked() {
    for in_place in [false, true] {
        let mut rig = Rig::new(&network(&[4]), &[], in_place);
        assert_eq!(rig.run().unwrap_err().code(), "input.state_required");
        bound(&mut rig, &Array::of(&[1; 15]), &Array::of(&[0; 16]));
        assert_eq!(rig.run().unwrap_err().code(), "input.size");
        rig.bindings.inputs[0] = InputBinding::Retained;
        assert_eq!(rig.run().unwrap_err().code(), "input.state_required");
        rig.bindings.inputs.push(InputBinding::Unset);
        let error = rig.run().unwrap_err();
        assert_eq!(error.code(), "call.argument");
        assert!(
            error.to_string().contains("found 2 bound inputs and 1 bound output, expected 1 and 1"),
            "{error}"
        );
        assert_eq!(rig.asked(), []);
    }
}

#[test]
fn failed_inference_keeps_the_state_and_is_reclaimed_first() {
    let pair = RetainedPair { input: 0, output: 0 };
    for in_place in [false, true] {
        let mut rig = Rig::new(&network(&[2]), &[pair], in_place);
        let output = Array::of(&[9; 8]);
        bound(&mut rig, &Array::of(&[7; 8]), &output);
        rig.run().unwrap();
        assert!(!rig.io.needs_reclaim);
        rig.asked();

        bound(&mut rig, &Array::of(&[1; 8]), &output);
        rig.device().fails = Some(ErrorDetail::Cancelled.into());
        assert_eq!(rig.run().unwrap_err().code(), "inference.cancelled");
        assert_eq!(rig.io.needs_reclaim, !in_place);
        rig.asked();

        rig.bindings.inputs[0] = InputBinding::Retained;
        rig.run().unwrap();
        assert_eq!(output.bytes(), [7; 8], "the value is that of the inference before");
        let first = rig.asked().remove(0);
        assert_eq!(first == Asked::Reclaim, !in_place);
        assert!(!rig.io.needs_reclaim);
    }
}

#[test]
fn reclaim_that_is_interrupted_begins_nothing() {
    let mut rig = Rig::new(&network(&[2]), &[], false);
    bound(&mut rig, &Array::of(&[1; 8]), &Array::of(&[0; 8]));
    rig.device().fails = Some(ErrorDetail::Cancelled.into());
    rig.run().unwrap_err();
    rig.asked();
    let outcome = rig.io.run(&mut rig.bindings, None, None, Some(&mut || true));
    assert_eq!(outcome.unwrap_err().code(), "call.interrupted");
    assert_eq!(rig.asked(), [Asked::Reclaim]);
    assert!(rig.io.needs_reclaim);
}

#[test]
fn wait_that_is_given_up_leaves_the_inference_to_the_device() {
    for ends_well in [true, false] {
        let mut rig = Rig::new(&network(&[2]), &[], false);
        let output = Array::of(&[0; 8]);
        bound(&mut rig, &Array::of(&[5; 8]), &output);
        rig.device().waits = true;
        let outcome = rig.io.run(&mut rig.bindings, None, None, Some(&mut || true));
        assert_eq!(outcome.unwrap_err().code(), "call.interrupted");
        assert_eq!(rig.asked(), [Asked::Submit, Asked::Execute]);
        rig.device().fails = (!ends_well).then_some(ErrorDetail::Cancelled.into());
        rig.io.discard();
        assert_eq!(rig.asked(), [Asked::Execute]);
        assert_eq!(rig.io.needs_reclaim, !ends_well);
        // No inference is left to discard.
        rig.io.discard();
        assert_eq!(rig.asked(), []);
        assert_eq!(output.bytes(), [0; 8]);
    }
}

#[test]
fn wait_that_goes_on_delivers() {
    let mut rig = Rig::new(&network(&[2]), &[], false);
    let output = Array::of(&[0; 8]);
    bound(&mut rig, &Array::of(&[5; 8]), &output);
    rig.device().waits = true;
    let mut asked = 0;
    rig.io.submit(&mut rig.bindings, None, None, None).unwrap();
    assert_eq!(output.bytes(), [0; 8]);
    let mut check = || {
        asked += 1;
        false
    };
    rig.io.complete(&mut rig.bindings, None, None, Some(&mut check)).unwrap();
    assert_eq!((asked, output.bytes()), (1, vec![5; 8]));
    rig.io.discard();
    assert_eq!(rig.asked(), [Asked::Submit, Asked::Execute]);
}

#[test]
fn short_inputs_are_packed_and_the_device_knows_how_much() {
    // A header of 8 bytes, followed by up to 16 bytes.
    let mut network = network(&[4]);
    network.inputs[0].is_partial_allowed = true;
    network.dma_buffers[0].size = 24;
    network.outputs[0] = plain("y", Direction::Out, 1, &[6]);
    network.dma_buffers[1].size = 24;
    let mut rig = Rig::new(&network, &[], false);
    let output = Array::of(&[0; 24]);
    bound(&mut rig, &Array::of(&[1; 8]), &output);
    rig.run().unwrap();
    let header = [8, 0, 0, 0, 8, 0, 0, 0];
    assert_eq!(output.bytes(), [&header[..], &[1; 8], &[0; 8]].concat());
    assert_eq!(rig.asked()[0], Asked::TransferBytes(vec![16, 0]));
    // Without data, the content of the buffer does not change.
    rig.bindings.inputs[0] = InputBinding::Unset;
    rig.run().unwrap();
    assert_eq!(output.bytes(), [&header[..], &[1; 8], &[0; 8]].concat());
}

#[test]
fn memory_behind_descriptors_is_left_to_the_device() {
    let mut rig = Rig::new(&network(&[2]), &[], false);
    let memory = Arc::new(DmaBuf { descriptor: File::open("/dev/null").unwrap().into(), offset: 0, len: 8 });
    let output = Array::of(&[9; 8]);
    bound(&mut rig, &Array::of(&[4; 8]), &output);
    rig.run().unwrap();
    assert!(!rig.asked().iter().any(|asked| matches!(asked, Asked::DmaBuf(..))));

    rig.bindings.inputs[0] = InputBinding::DmaBuf { memory: Arc::clone(&memory) };
    rig.bindings.outputs[0] = OutputBinding::DmaBuf { memory: Arc::clone(&memory) };
    rig.run().unwrap();
    assert_eq!(rig.asked(), [Asked::DmaBuf(0, true), Asked::DmaBuf(1, true), Asked::Submit, Asked::Execute]);
    rig.run().unwrap();
    assert_eq!(rig.asked(), [Asked::Submit, Asked::Execute], "they are bound already");

    let other = Arc::new(DmaBuf { descriptor: File::open("/dev/null").unwrap().into(), offset: 0, len: 8 });
    rig.bindings.outputs[0] = OutputBinding::DmaBuf { memory: other };
    rig.run().unwrap();
    assert_eq!(rig.asked()[..2], [Asked::DmaBuf(1, false), Asked::DmaBuf(1, true)]);

    bound(&mut rig, &Array::of(&[6; 8]), &output);
    rig.run().unwrap();
    let mut undone: Vec<_> = rig.asked().drain(..2).collect();
    undone.sort_by_key(|asked| matches!(asked, Asked::DmaBuf(1, _)));
    assert_eq!(undone, [Asked::DmaBuf(0, false), Asked::DmaBuf(1, false)]);
    assert_eq!(output.bytes(), [6; 8]);

    // A tensor that shares its buffer with another tensor cannot have a descriptor.
    let mut shared = network(&[2]);
    shared.inputs.push(plain("z", Direction::In, 0, &[2]));
    let mut rig = Rig::new(&shared, &[], false);
    rig.bindings.inputs[0] = InputBinding::DmaBuf { memory };
    assert_eq!(rig.run().unwrap_err().code(), "call.argument");
}

/// [`network`] with statistics of 6 bytes, which the last output returns.
fn measured() -> NetworkDesc {
    let mut network = network(&[2]);
    let mut stats = plain("aiccyclecounts", Direction::Out, 2, &[6]);
    stats.io_initial.dtype = UInt8Q;
    stats.io_transformed.dtype = UInt8Q;
    stats.transformseq[0].dtype = UInt8Q;
    network.outputs.push(stats);
    network.dma_buffers.push(DmaBuffer { size: 6, dir: Direction::Out });
    network.stats = Some(StatsDesc { buff_num: 2, stats_level: 70, ..StatsDesc::default() });
    network
}

#[test]
fn inference_is_measured_where_that_is_wanted() {
    for in_place in [false, true] {
        let mut rig = Rig::new(&measured(), &[], in_place);
        rig.device().stats = vec![1, 2, 3, 4, 5, 6];
        bound(&mut rig, &Array::of(&[5; 8]), &Array::of(&[0; 8]));
        let measures = |rig: &Rig| rig.asked().iter().filter(|asked| **asked == Asked::Measure).count();

        rig.run().unwrap();
        assert_eq!(measures(&rig), 0);
        let mut watch = Watch::default();
        rig.run_watched(&mut watch);
        assert_eq!((measures(&rig), &watch.stats), (0, &None));

        let identity = Identity { inference: 77, ..Identity::default() };
        let mut watch = Watch { wants_device: true, identity, ..Watch::default() };
        rig.run_watched(&mut watch);
        let asked = rig.asked();
        assert!(asked.contains(&Asked::Measure) && asked.contains(&Asked::Identify(77)));
        assert_eq!(watch.stats.as_deref(), Some(&[1, 2, 3, 4, 5, 6][..]));

        // The bound memory has the whole size, or only a part.
        for room in [6, 4, 9] {
            let shown = Array::of(&vec![9; room]);
            rig.bindings.outputs[1] = OutputBinding::Memory(shown.memory_mut());
            let mut watch = Watch::default();
            rig.run_watched(&mut watch);
            assert_eq!((measures(&rig), &watch.stats), (1, &None));
            assert_eq!(shown.bytes(), [1, 2, 3, 4, 5, 6, 9, 9, 9][..room]);
        }
        // Without a watch, the output stays unchanged.
        let shown = Array::of(&[9; 6]);
        rig.bindings.outputs[1] = OutputBinding::Memory(shown.memory_mut());
        rig.run().unwrap();
        assert_eq!((measures(&rig), shown.bytes()), (0, vec![9; 6]));
        // Empty memory receives nothing.
        rig.bindings.outputs[1] = OutputBinding::Memory(Array::of(&[]).memory_mut());
        rig.run_watched(&mut Watch::default());
        assert_eq!(measures(&rig), 0);
    }
}

#[test]
fn statistics_that_are_lost_are_zeros_and_fail_nothing() {
    let mut rig = Rig::new(&measured(), &[], true);
    rig.device().loses_stats = true;
    let (output, shown) = (Array::of(&[0; 8]), Array::of(&[9; 6]));
    bound(&mut rig, &Array::of(&[5; 8]), &output);
    rig.bindings.outputs[1] = OutputBinding::Memory(shown.memory_mut());
    let mut watch = Watch { wants_device: true, ..Watch::default() };
    rig.run_watched(&mut watch);
    assert_eq!((output.bytes(), shown.bytes(), watch.stats), (vec![5; 8], vec![0; 6], None));
}

#[test]
fn stages_follow_each_other_and_leave_measuring_out() {
    const LONG_NS: u64 = 5_000_000;
    for in_place in [false, true] {
        let mut rig = Rig::new(&measured(), &[], in_place);
        rig.device().stats = vec![0; 6];
        rig.device().measuring_ns = LONG_NS;
        bound(&mut rig, &Array::of(&[5; 8]), &Array::of(&[0; 8]));
        let enqueued_ns = clock::now_ns();
        let stages = Stages { enqueued_ns, ..Stages::default() };
        let mut watch = Watch { wants_device: true, stages, ..Watch::default() };
        rig.run_watched(&mut watch);
        let stages = watch.stages;
        let order = [
            stages.enqueued_ns,
            stages.begun_ns,
            stages.inputs_ready_ns,
            stages.executed_ns,
            stages.outputs_ready_ns,
        ];
        assert!(order.is_sorted() && stages.completed_ns == 0, "{order:?}");
        assert!(stages.enqueued_ns >= enqueued_ns + LONG_NS, "it is as if it had come later");
        assert!(stages.inputs_ready_ns - stages.begun_ns <= clock::now_ns() - enqueued_ns - LONG_NS);

        // An earlier start time stays; without a measurement, no time changes.
        let stages = Stages { enqueued_ns, begun_ns: enqueued_ns + 1, ..Stages::default() };
        let mut watch = Watch { stages, ..Watch::default() };
        rig.run_watched(&mut watch);
        assert_eq!((watch.stages.enqueued_ns, watch.stages.begun_ns), (enqueued_ns, enqueued_ns + 1));
        if in_place {
            assert_eq!(watch.stages.outputs_ready_ns, watch.stages.executed_ns, "nothing was moved");
        }
    }
}
