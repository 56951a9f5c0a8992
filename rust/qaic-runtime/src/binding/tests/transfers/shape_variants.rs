//! Programs with several permitted combinations of shapes: transfers per combination, and the results for
//! callers.

use std::sync::Arc;
use std::time::Duration;

use super::dma::Dma;
use crate::descriptor::{copied, step, two_buffers};
use crate::echo::{self, noop};
use crate::oracle::{elements, f32_bytes, view, view_mut};
use ElementType::{Float16, Float32, Int8, UInt8Q};
use TransformKind::{Convert, Transpose};
use qaic_mem::Storage;
use qaic_mem::convert::ElementOp;
use qaic_qpc::{Direction, ElementType, IoShapes, NetworkDesc, TensorShape, Transform, TransformKind};
use qaic_runtime::binding::{
    ArrayType, BindingTransfer, InputBinding, OutputBinding, RetainedPair, ShapeVariant, Shapes,
    TransferPlan, retained_pairs, tensor_specs,
};
use qaic_runtime::device::{DeviceId, Placement, RegistryOptions};
use qaic_runtime::process::{Deadline, WaitScope};
use qaic_runtime::request::ExecObj;
use qaic_runtime::{Detached, ErrorDetail, Image, InputError, Program, ProgramOptions};

fn shapes(entry: &[(ElementType, &[i32])]) -> IoShapes {
    let shapes = entry.iter().map(|&(dtype, dims)| TensorShape { dtype, dims: dims.to_vec() }).collect();
    IoShapes { shapes }
}

/// Input `a` f32[4] converted to f16 and `b` i8[2], both in buffer 0; output `c` f32[4] in buffer 1.
fn network(entries: &[IoShapes]) -> NetworkDesc {
    let mut a = copied("a", Float32, &[4], Direction::In, (0, 0));
    a.io_transformed.dtype = Float16;
    a.transformseq[0].dtype = Float16;
    a.transformseq.insert(0, step(Convert, Float16, &[4]));
    NetworkDesc {
        inputs: vec![a, copied("b", Int8, &[2], Direction::In, (0, 8))],
        outputs: vec![copied("c", Float32, &[4], Direction::Out, (1, 4))],
        dma_buffers: two_buffers(12, 20),
        allowed_shapes: entries.to_vec(),
        ..NetworkDesc::default()
    }
}

fn two_entries() -> Vec<IoShapes> {
    vec![
        shapes(&[(Float32, &[4]), (Int8, &[2]), (Float32, &[4])]),
        shapes(&[(Float32, &[1]), (Int8, &[2]), (Float32, &[3])]),
    ]
}

#[test]
fn network_without_permitted_shapes_has_one_variant() {
    let variants = TransferPlan::variants(&network(&[])).unwrap();
    assert_eq!(variants.len(), 1);
    assert_eq!(variants[0].inputs[0].user_bytes, 16);
}

#[test]
fn variant_moves_its_own_sizes_to_the_common_places() {
    let variants = TransferPlan::variants(&network(&two_entries())).unwrap();
    assert_eq!(variants.len(), 2);
    let sizes: Vec<_> = variants[1].inputs.iter().map(|input| input.user_bytes).collect();
    assert_eq!((sizes, variants[1].outputs[0].user_bytes), (vec![4, 2], 12));
    for (full, small) in variants[0].inputs.iter().zip(&variants[1].inputs) {
        let start = |transfer: &BindingTransfer| transfer.place.map(|place| (place.buffer, place.offset));
        assert_eq!(start(full), start(small), "{}", full.name);
    }

    let given = f32_bytes(&[1.5]);
    let mut buffers = Dma::whole(vec![vec![0xee_u8; 12], (0..20).collect()]);
    buffers.stage(&variants[1], &[&given, &[7, 8]]).unwrap();
    let dma = &buffers.bytes()[0];
    assert_eq!(dma[..2], elements(ElementOp::F32ToF16, &given));
    assert_eq!(dma[2..], [0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 7, 8, 0xee, 0xee]);

    let mut user = vec![0xcc; 16];
    buffers.fetch(&variants[1], &mut [&mut user]).unwrap();
    let expected: Vec<u8> = (4..16).chain([0xcc; 4]).collect();
    assert_eq!(user, expected);
}

#[test]
fn buffer_of_another_variant_is_too_small() {
    let variants = TransferPlan::variants(&network(&two_entries())).unwrap();
    let small = f32_bytes(&[1.5]);
    let mut dma = vec![0; 12];
    let error = variants[0].stage_input(0, view(&small), view_mut(&mut dma)).unwrap_err();
    assert!(
        matches!(error.detail(), ErrorDetail::Input(InputError::BufferSize { expected: 16, found: 4, .. })),
        "{error}"
    );
}

#[test]
fn transpose_is_refused_only_where_the_dims_change() {
    let mut network = network(&[]);
    let mut moved = copied("a", Float32, &[2, 1], Direction::In, (0, 0));
    moved.io_initial.dims = vec![1, 2];
    moved.transformseq.insert(0, Transform { shuffle: vec![1, 0], ..step(Transpose, Float32, &[2, 1]) });
    network.inputs[0] = moved;
    let entry = |dims: &[i32]| shapes(&[(Float32, dims), (Int8, &[2]), (Float32, &[3])]);
    network.allowed_shapes = vec![entry(&[1, 2])];
    let variants = TransferPlan::variants(&network).unwrap();
    assert_eq!(variants[0].outputs[0].user_bytes, 12);

    network.allowed_shapes.push(entry(&[1, 1]));
    match TransferPlan::variants(&network).unwrap_err().into_detail() {
        ErrorDetail::Input(InputError::UnsupportedTransform { binding, step, kind }) => {
            assert_eq!((binding.as_str(), step, kind.as_str()), ("a", 0, "Transpose"));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn copy_in_a_tiled_layout_is_refused_where_the_dims_change() {
    let mut network = network(&two_entries());
    let output = &mut network.outputs[0];
    output.io_initial.layout = 1;
    output.io_transformed.layout = 1;
    output.transformseq[0].layout = 1;
    let error = TransferPlan::variants(&network).unwrap_err();
    assert_eq!(error.code(), "program.unsupported_transform", "{error}");
}

#[test]
fn entries_that_do_not_fit_their_bindings_are_refused() {
    let sound = two_entries();
    let with = |entry: &[(ElementType, &[i32])]| network(&[sound[0].clone(), shapes(entry)]);
    for (network, code) in [
        // The tensor is larger than the binding, although the DMA buffer has enough room.
        (with(&[(Float32, &[5]), (Int8, &[2]), (Float32, &[4])]), "qpc.allowed_shape"),
        (with(&[(Float32, &[4]), (Float32, &[2]), (Float32, &[4])]), "qpc.allowed_shape"),
        (with(&[(Float32, &[4]), (Int8, &[2])]), "qpc.allowed_shapes"),
        (with(&[(Float32, &[-1]), (Int8, &[2]), (Float32, &[4])]), "qpc.negative_dim"),
        (with(&[(Float32, &[4]), (Int8, &[2]), (Float32, &[5])]), "qpc.dma_out_of_bounds"),
    ] {
        let error = TransferPlan::variants(&network).expect_err(code);
        assert_eq!(error.code(), code, "{error}");
    }
}

#[test]
fn entries_with_equal_bindings_share_them() {
    let variants = TransferPlan::variants(&network(&two_entries())).unwrap();
    // `b` has one shape; `a` and `c` have two, of which the first is that of the binding.
    assert!(Arc::ptr_eq(&variants[0].inputs[1], &variants[1].inputs[1]));
    assert!(!Arc::ptr_eq(&variants[0].inputs[0], &variants[1].inputs[0]));
}

#[test]
fn entries_of_any_number_have_bounded_cost() {
    // The file contains a long name once; every entry would copy it.
    let mut long = network(&[]);
    long.inputs[0].name = "n".repeat(1 << 20);
    long.allowed_shapes = vec![two_entries().remove(1); 20_000];
    assert_eq!(TransferPlan::variants(&long).unwrap().len(), 20_000);

    let many = network(&vec![two_entries().remove(0); 400_000]);
    assert_eq!(TransferPlan::variants(&many).unwrap_err().code(), "qpc.limit_exceeded");

    let mut steps = network(&two_entries());
    let copy = steps.inputs[0].transformseq.pop().unwrap();
    steps.inputs[0].transformseq.extend(vec![step(Convert, Float16, &[4]); 20]);
    steps.inputs[0].transformseq.push(copy);
    assert_eq!(TransferPlan::variants(&steps).unwrap_err().code(), "qpc.limit_exceeded");
    steps.allowed_shapes.truncate(1);
    assert_eq!(TransferPlan::variants(&steps).unwrap().len(), 1);
}

#[test]
fn partial_inputs_are_limited_by_their_variant() {
    let mut network = network(&two_entries());
    let mut partial = copied("a", Float32, &[4], Direction::In, (0, 0));
    partial.is_partial_allowed = true;
    network.inputs[0] = partial;
    network.dma_buffers[0].size = 64;
    network.inputs[1] = copied("b", Int8, &[2], Direction::In, (0, 8));
    let variants = TransferPlan::variants(&network).unwrap();
    assert!(variants[0].lay_out(&[8, 2]).is_ok());
    let error = variants[1].lay_out(&[8, 2]).unwrap_err();
    assert!(
        matches!(error.detail(), ErrorDetail::Input(InputError::BufferSize { expected: 4, found: 8, .. })),
        "{error}"
    );
}

/// A container with this descriptor, and with this plan if one is given.
fn container(network: &NetworkDesc, plan: Option<&str>) -> Arc<Image> {
    let sections: Vec<_> = plan.map(|plan| ("openqaic_plan", plan.as_bytes())).into_iter().collect();
    echo::container(network, &sections)
}

#[test]
fn tensor_specs_of_permitted_shapes_have_the_dims_of_each() {
    assert_eq!(tensor_specs(&container(&network(&[]), None)).unwrap().variants, []);
    let image = container(&network(&two_entries()), None);
    let tensors = tensor_specs(&image).unwrap();
    assert_eq!((tensors.inputs[0].dims.as_slice(), tensors.inputs[0].size_bytes), (&[4][..], 16));
    let full = ShapeVariant { inputs: vec![vec![4], vec![2]], outputs: vec![vec![4]] };
    let small = ShapeVariant { inputs: vec![vec![1], vec![2]], outputs: vec![vec![3]] };
    assert_eq!(tensors.variants, [full, small]);
}

#[test]
fn blocks_are_arrays_where_plan_and_descriptor_agree() {
    let entry = |rows, last| shapes(&[(UInt8Q, &[rows, 66]), (UInt8Q, &[rows, last])]);
    let network = NetworkDesc {
        inputs: vec![copied("a", UInt8Q, &[3, 66], Direction::In, (0, 0))],
        outputs: vec![copied("c", UInt8Q, &[3, 33], Direction::Out, (1, 0))],
        dma_buffers: two_buffers(198, 99),
        allowed_shapes: vec![entry(3, 33), entry(2, 33), entry(2, 32)],
        ..NetworkDesc::default()
    };
    let specs_with = |columns: &str| {
        let tensor = |name, columns| format!(r#"{{"name":"{name}","dtype":"uint8","dims":[]{columns}}}"#);
        let plan = format!(
            r#"{{"version":2,"target":"cpu","inputs":[{}],"outputs":[{}],"initializers":[]}}"#,
            tensor("a", columns),
            tensor("c", r#","mxint8":7"#)
        );
        tensor_specs(&container(&network, Some(&plan))).unwrap()
    };
    let tensors = specs_with(r#","mxint8":40"#);
    let dims = |variant: usize| {
        (tensors.variants[variant].inputs[0].clone(), tensors.variants[variant].outputs[0].clone())
    };
    let input = &tensors.inputs[0];
    assert_eq!((input.dtype, input.size_bytes, input.mxint8), (ArrayType::Float16, 240, true));
    assert_eq!(dims(0), (vec![3, 40], vec![3, 7]));
    assert_eq!(dims(1), (vec![2, 40], vec![2, 7]));
    // There are no blocks of 32 bytes.
    assert_eq!(dims(2), (vec![2, 40], vec![2, 32]));
    for wrong in
        ["", r#","mxint8":32"#, r#","mxint8":65"#, r#","mxint8":0"#, r#","mxint8":18446744073709551615"#]
    {
        let tensors = specs_with(wrong);
        let input = &tensors.inputs[0];
        assert_eq!(
            (input.dtype, input.dims.as_slice(), input.mxint8),
            (ArrayType::UInt8, &[3, 66][..], false)
        );
        assert_eq!(tensors.variants[0].inputs[0], [3, 66]);
    }
}

/// Inputs `ids`, `k`, `v`; outputs `v_RetainedState`, `out`, `k_RetainedState`, `w_RetainedState`.
fn stateful(entries: &[IoShapes]) -> NetworkDesc {
    let input = |name, offset| copied(name, Float32, &[2], Direction::In, (0, offset));
    let output = |name, offset| copied(name, Float32, &[2], Direction::Out, (1, offset));
    NetworkDesc {
        inputs: vec![input("ids", 0), input("k", 8), input("v", 16)],
        outputs: vec![
            output("v_RetainedState", 0),
            output("out", 8),
            output("k_RetainedState", 16),
            output("w_RetainedState", 24),
        ],
        dma_buffers: two_buffers(24, 32),
        allowed_shapes: entries.to_vec(),
        ..NetworkDesc::default()
    }
}

const PAIRS: [RetainedPair; 2] = [RetainedPair { input: 2, output: 0 }, RetainedPair { input: 1, output: 2 }];

#[test]
fn state_of_a_foreign_container_is_found_by_name() {
    assert_eq!(retained_pairs(&container(&stateful(&[]), None)).unwrap(), PAIRS);
}

#[test]
fn state_of_our_programs_is_kept_only_with_the_option() {
    let plan = |rest: &str| {
        format!(r#"{{"version":2,"target":"cpu","inputs":[],"outputs":[],"initializers":[]{rest}}}"#)
    };
    let image = container(&stateful(&[]), Some(&plan("")));
    assert_eq!(retained_pairs(&image).unwrap(), []);
    let image = container(&stateful(&[]), Some(&plan(r#","retained_state":true"#)));
    assert_eq!(retained_pairs(&image).unwrap(), PAIRS);
}

#[test]
fn tensors_that_differ_in_type_or_shape_are_no_pair() {
    let mut other_type = stateful(&[]);
    other_type.outputs[0].io_transformed.dtype = ElementType::Int32Q;
    assert_eq!(retained_pairs(&container(&other_type, None)).unwrap(), PAIRS[1..]);

    let mut other_dims = stateful(&[]);
    other_dims.inputs[2].io_initial.dims = vec![1, 2];
    assert_eq!(retained_pairs(&container(&other_dims, None)).unwrap(), PAIRS[1..]);

    let entry = |v: &[i32]| {
        let two: (ElementType, &[i32]) = (Float32, &[2]);
        shapes(&[two, two, (Float32, v), two, two, two, two])
    };
    let image = container(&stateful(&[entry(&[2]), entry(&[2])]), None);
    assert_eq!(retained_pairs(&image).unwrap(), PAIRS);
    let image = container(&stateful(&[entry(&[2]), entry(&[1])]), None);
    assert_eq!(retained_pairs(&image).unwrap(), PAIRS[1..]);
}

#[test]
fn input_with_two_next_values_has_one_pair() {
    let mut network = stateful(&[]);
    network.outputs[2].name = "v_RetainedState".to_owned();
    assert_eq!(retained_pairs(&container(&network, None)).unwrap(), PAIRS[..1]);
}

/// A program on a separate `noop` device.
fn on_noop(network: &NetworkDesc) -> Arc<Program> {
    let context = noop(RegistryOptions::default());
    let placement = Placement::one(DeviceId(0));
    Program::new(&context, &container(network, None), &placement, &ProgramOptions::default()).unwrap()
}

fn input(bytes: &[u8]) -> InputBinding {
    InputBinding::Memory(Storage::of(bytes).unwrap().into())
}

fn output(bytes: usize) -> OutputBinding {
    OutputBinding::Memory(Storage::of(&vec![0xcc_u8; bytes]).unwrap().into())
}

/// Returns the contents of an output's memory.
fn result(exec: &ExecObj, index: usize) -> Vec<u8> {
    let bytes = exec.bind(|bindings| match &bindings.outputs[index] {
        OutputBinding::Memory(memory) => memory.as_slice().to_vec(),
        other => panic!("{other:?}"),
    });
    bytes.unwrap()
}

#[test]
fn exec_object_changes_between_variants() {
    // The device copies its 12 inbound bytes over its 20 outbound ones; `c` begins at byte 4 of them.
    let program = on_noop(&network(&two_entries()));
    let exec = ExecObj::new(&program, true).unwrap();
    let (full, small) = (f32_bytes(&[1.0, 2.0, 3.0, 4.0]), f32_bytes(&[1.0]));
    let half = |values: &[u8]| elements(ElementOp::F32ToF16, values);
    exec.bind(|bindings| {
        bindings.inputs = vec![input(&full), input(&[7, 8])];
        bindings.outputs = vec![output(16)];
    })
    .unwrap();
    exec.run(&mut WaitScope::default()).unwrap();
    let inbound: Vec<u8> = half(&full).into_iter().chain([7, 8, 0, 0]).collect();
    let outbound: Vec<u8> = inbound.iter().chain(&inbound).copied().collect();
    assert_eq!(result(&exec, 0), outbound[4..20]);

    exec.bind(|bindings| {
        bindings.shapes = Shapes::Variant(1);
        bindings.inputs = vec![input(&small), input(&[9, 9])];
        bindings.outputs = vec![output(16)];
    })
    .unwrap();
    exec.run(&mut WaitScope::default()).unwrap();
    let short = result(&exec, 0);
    let inbound: Vec<u8> =
        half(&small).into_iter().chain(inbound[2..8].to_vec()).chain([9, 9, 0, 0]).collect();
    assert_eq!(short[..12], [&inbound[4..], &inbound[..4]].concat());
    assert_eq!(short[12..], [0xcc; 4]);

    // The buffers of one variant do not fit the other one.
    exec.bind(|bindings| bindings.shapes = Shapes::Variant(0)).unwrap();
    assert_eq!(exec.run(&mut WaitScope::default()).unwrap_err().code(), "input.size");
}

#[test]
fn state_is_kept_between_variants() {
    // `ids` varies; `k` and `v` stay. The outbound bytes repeat the inbound ones: `v` becomes `ids`, then `out` is `k`.
    let row = |ids: &[i32]| {
        let two: (ElementType, &[i32]) = (Float32, &[2]);
        shapes(&[(Float32, ids), two, two, two, two, two, two])
    };
    let program = on_noop(&stateful(&[row(&[2]), row(&[1])]));
    assert_eq!(*program.retained, PAIRS);
    let exec = ExecObj::new(&program, true).unwrap();
    let run = |variant: usize, ids: &[u8]| {
        exec.bind(|bindings| {
            bindings.shapes = Shapes::Variant(variant);
            bindings.inputs = vec![input(ids), InputBinding::Retained, InputBinding::Retained];
            bindings.outputs =
                vec![OutputBinding::Dropped, output(8), OutputBinding::Dropped, OutputBinding::Dropped];
        })
        .unwrap();
        exec.run(&mut WaitScope::default()).unwrap();
        result(&exec, 1)
    };
    // In:  ids, k, v. Out: v' = ids, out = k, k' = v.
    assert_eq!(run(0, &[1; 8]), [0; 8]);
    assert_eq!(run(1, &[2; 4]), [0; 8]);
    assert_eq!(run(0, &[3; 8]), [1; 8]);
    // The shorter variant wrote half of the tensor; the rest comes from the longer one.
    assert_eq!(run(1, &[4; 4]), [2, 2, 2, 2, 1, 1, 1, 1]);
    assert_eq!(run(0, &[5; 8]), [3; 8]);
}

#[test]
fn inference_after_a_revoked_one_waits_for_its_turn() {
    // Out: v' = ids, out = k, k' = v: every inference returns the ids of the second to last one.
    let program = on_noop(&stateful(&[]));
    let control = Arc::clone(program.context.noop_control(DeviceId(0)).unwrap());
    let [first, second, third] = [(); 3].map(|()| ExecObj::new(&program, true).unwrap());
    let enqueue = |exec: &ExecObj, ids: &[u8]| {
        exec.bind(|bindings| {
            bindings.inputs = vec![input(ids), InputBinding::Retained, InputBinding::Retained];
            bindings.outputs =
                vec![OutputBinding::Dropped, output(8), OutputBinding::Dropped, OutputBinding::Dropped];
        })
        .unwrap();
        exec.enqueue(Detached::assume()).unwrap();
    };
    control.hold().unwrap();
    enqueue(&first, &[1; 8]);
    assert!(
        control.wait_executing(1, &mut WaitScope::until(Deadline::after(Duration::from_mins(1)))).unwrap()
    );
    enqueue(&second, &[2; 8]);
    enqueue(&third, &[3; 8]);
    assert!(second.revoke());
    assert_eq!(second.wait(&mut WaitScope::default()).unwrap_err().code(), "inference.cancelled");
    enqueue(&second, &[4; 8]);
    control.release().unwrap();
    let mut outs = Vec::new();
    for exec in [&first, &third, &second] {
        exec.wait(&mut WaitScope::default()).unwrap();
        outs.push(result(exec, 1)[0]);
    }
    enqueue(&first, &[5; 8]);
    first.wait(&mut WaitScope::default()).unwrap();
    outs.push(result(&first, 1)[0]);
    assert_eq!(outs, [0, 0, 1, 3]);
}
