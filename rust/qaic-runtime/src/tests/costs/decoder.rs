//! Cost of an inference that reads the attended slots of a state with the device's operator, and writes one
//! row. The cost does not depend on the context, and the state has one buffer.
//!
//! The test needs the engine: set `QAIC_ONNXRUNTIME_LIB` to its library, as `make test-rust` does.

use std::ops::Deref;

use super::containers::program;
use super::counting::{allocations, bytes_of};
use crate::descriptor::{copied, two_buffers};
use crate::tests::prelude::*;
use qaic_qpc::wire::{put_bytes, put_tag, put_varint};

/// Number of attended slots, and of values in a row.
const ATTENDED: usize = 64;
const WIDTH: usize = 8;
const ROW_BYTES: usize = WIDTH * size_of::<f32>();
const ATTENDED_BYTES: usize = ATTENDED * ROW_BYTES;
const INDEX_BYTES: usize = 3 * size_of::<i64>();
const SHORT: usize = 256;
const LONG: usize = 65_536;
/// Inferences before the count.
const WARM_UP: usize = 50;
/// Allocations of the operator: for the dims of its operands and of its result, and for the dims of the
/// state, which it checks.
const ALLOCATIONS: u64 = 6;

const FLOAT: u64 = 1;
const INT64: u64 = 7;

fn varint(number: u32, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_tag(&mut bytes, number, 0);
    put_varint(&mut bytes, value);
    bytes
}

fn field(number: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, number, payload);
    bytes
}

fn value(name: &str, element: u64, dims: [usize; 4]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|&dim| field(1, &varint(1, dim as u64))).collect();
    let tensor = field(1, &[varint(1, element), field(2, &dims)].concat());
    [field(1, name.as_bytes()), field(2, &tensor)].concat()
}

fn node(operator: &str, domain: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| field(1, name.as_bytes())).collect();
    let rest = [field(2, output.as_bytes()), field(4, operator.as_bytes()), field(7, domain.as_bytes())];
    [inputs, rest.concat()].concat()
}

/// The graph, field by field (onnx.proto3): the attended slots, and the row with its index unchanged.
fn graph(context: usize) -> Vec<u8> {
    let count = ATTENDED as u64;
    let length = [varint(1, 1), varint(2, INT64), field(8, b"length"), field(9, &count.to_le_bytes())];
    let graph = [
        field(1, &node("AttendedRows", "com.openqaic", &["past", "length", "at", "row", ""], "attended")),
        field(1, &node("Neg", "", &["row"], "written")),
        field(1, &node("Identity", "", &["at"], "places")),
        field(2, b"rows"),
        field(5, &length.concat()),
        field(11, &value("past", FLOAT, [1, 1, context, WIDTH])),
        field(11, &value("at", INT64, [1, 1, 1, 3])),
        field(11, &value("row", FLOAT, [1, 1, 1, WIDTH])),
        field(12, &value("attended", FLOAT, [1, 1, ATTENDED, WIDTH])),
        field(12, &value("written", FLOAT, [1, 1, 1, WIDTH])),
        field(12, &value("places", INT64, [1, 1, 1, 3])),
    ];
    let own = [field(1, b"com.openqaic"), varint(2, 1)].concat();
    [varint(1, 8), field(7, &graph.concat()), field(8, &varint(2, 17)), field(8, &own)].concat()
}

fn binding(name: &str, dtype: ElementType, dims: [usize; 4], dir: Direction, offset: usize) -> IoBinding {
    let dims: Vec<i32> = dims.iter().map(|&dim| i32::try_from(dim).unwrap()).collect();
    copied(name, dtype, &dims, dir, (u32::from(dir == Direction::Out), offset.try_into().unwrap()))
}

/// A program that keeps a state of `[1, 1, context, WIDTH]`.
fn image(context: usize) -> Arc<Image> {
    let state = [1, 1, context, WIDTH];
    let (float, index) = (ElementType::Float32, ElementType::Int64Index);
    let state_bytes = context * ROW_BYTES;
    let (inputs, outputs) = (state_bytes + INDEX_BYTES + ROW_BYTES, state_bytes + ATTENDED_BYTES);
    let network = NetworkDesc {
        major_version: 9,
        network_name: "rows".into(),
        inputs: vec![
            binding("past", float, state, Direction::In, 0),
            binding("at", index, [1, 1, 1, 3], Direction::In, state_bytes),
            binding("row", float, [1, 1, 1, WIDTH], Direction::In, state_bytes + INDEX_BYTES),
        ],
        outputs: vec![
            binding("past_RetainedState", float, state, Direction::Out, 0),
            binding("attended", float, [1, 1, ATTENDED, WIDTH], Direction::Out, state_bytes),
        ],
        dma_buffers: two_buffers(inputs.try_into().unwrap(), outputs.try_into().unwrap()),
        num_cores: 1,
        batch_size: 1,
        ..NetworkDesc::default()
    };
    let tensor = |name: &str, dtype: &str, dims: [usize; 4]| {
        format!(r#"{{"name":"{name}","dtype":"{dtype}","dims":{dims:?}}}"#)
    };
    let row = |name: &str, dtype: &str, dims: [usize; 4]| {
        format!(r#"{{"name":"{name}","dtype":"{dtype}","dims":[{dims:?}]}}"#)
    };
    let plan = format!(
        r#"{{"version":3,"target":"cpu","retained_state":true,"initializers":[],"own_operators":["AttendedRows"],
        "inputs":[{},{},{}],"outputs":[{},{}],"state_rows":{{"tensors":[{},{}],
        "updates":[{{"input":0,"output":0,"rows":0,"indices":1,"skips_outside":true}}]}}}}"#,
        tensor("past", "float32", state),
        tensor("at", "int64", [1, 1, 1, 3]),
        tensor("row", "float32", [1, 1, 1, WIDTH]),
        tensor("past_RetainedState", "float32", state),
        tensor("attended", "float32", [1, 1, ATTENDED, WIDTH]),
        row("written", "float32", [1, 1, 1, WIDTH]),
        row("places", "int64", [1, 1, 1, 3]),
    );
    let elf = elf::build(&[("openqaic_graph", &graph(context)), ("openqaic_plan", plan.as_bytes())]).unwrap();
    Image::from_bytes(program(&network, &elf).unwrap()).unwrap()
}

/// Runs the program; returns the median allocations of an inference, and the bytes that the set takes.
fn costs(device: &Arc<Context>, context: usize) -> (u64, usize) {
    let image = image(context);
    let placement = Placement::one(DeviceId(0));
    let make = || InferenceSet::new(device, &image, &placement, 1, 1, ProgramOptions::default()).unwrap();
    let (set, bytes) = bytes_of(make);
    let at = Storage::of(&[0_i64, 0, 5]).unwrap();
    let row = Storage::of(&[3.0_f32; WIDTH]).unwrap();
    let mut attended = Storage::new(ATTENDED_BYTES).unwrap();
    let mut lender = Lender::default();
    let mut run = |_: usize| {
        let lease = set.try_lease().unwrap();
        lender.scope(|loan| {
            // The state stays on the device.
            let inputs = [None, Some(at.memory()), Some(row.memory())];
            let outputs = [None, Some(attended.memory_mut())];
            lease.bind(|bindings| bindings.lend(loan, 0, inputs, outputs)).unwrap();
            lease.deref().run(&mut WaitScope::default()).unwrap();
            lease.bind(Bindings::clear).unwrap();
        });
    };
    (0..WARM_UP).for_each(&mut run);
    // After an inference that took long because its thread had no CPU, the next ones run on a worker, which allocates
    // on its own thread. The iterator takes 100 inferences of this thread.
    let each = (0..100_000).map(|_| allocations(|| run(0)));
    let mut counts: Vec<u64> = each.filter(|&count| count > 0).take(100).collect();
    assert_eq!(counts.len(), 100, "inferences that allocated on this thread");
    counts.sort_unstable();
    let count = counts[50];
    // A thread without a CPU changes the counts of a few inferences.
    assert_eq!((counts[25], counts[75]), (count, count), "{counts:?}");
    // The attended rows include the row of this inference.
    let mut found = [0.0_f32; ATTENDED * WIDTH];
    attended.memory().read_into(0, &mut found).unwrap();
    let mut expected = [0.0_f32; ATTENDED * WIDTH];
    expected[5 * WIDTH..6 * WIDTH].fill(3.0);
    assert_eq!(found.map(f32::to_bits), expected.map(f32::to_bits));
    (count, bytes)
}

#[test]
fn a_row_costs_the_same_with_any_context_and_a_state_has_one_buffer() {
    let Some(context) = super::on_cpu() else { return };
    // The first program allocates what all programs share.
    costs(&context, SHORT);
    let ((short, short_bytes), (long, long_bytes)) = (costs(&context, SHORT), costs(&context, LONG));
    assert_eq!((short, long), (ALLOCATIONS, ALLOCATIONS));
    assert_eq!(long_bytes - short_bytes, (LONG - SHORT) * ROW_BYTES);
}
