//! Plans of CPU programs: their decoding, and the contradictions to the rest of their container that are
//! refused.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use qaic_qpc::metadata::Metadata;
use qaic_qpc::plan::{
    CONTROL_BYTES, Control, Dtype, GRAPH_SECTION, Initializer, PLAN_SECTION, Plan, PlanError,
};
use qaic_qpc::writer::{self, SegmentData};
use qaic_qpc::{ConstantsDesc, ElementType, NetworkDesc, elf, validate};
use qaic_qpc::{Direction, DmaBuffer, IoShapes, Stats, TensorShape};
use serde_json::{Value, json};

use super::defects::sample::network;

const DTYPES: [(&str, Dtype, u64); 13] = [
    ("float32", Dtype::Float32, 4),
    ("float64", Dtype::Float64, 8),
    ("float16", Dtype::Float16, 2),
    ("bfloat16", Dtype::Bfloat16, 2),
    ("int8", Dtype::Int8, 1),
    ("uint8", Dtype::Uint8, 1),
    ("int16", Dtype::Int16, 2),
    ("uint16", Dtype::Uint16, 2),
    ("int32", Dtype::Int32, 4),
    ("uint32", Dtype::Uint32, 4),
    ("int64", Dtype::Int64, 8),
    ("uint64", Dtype::Uint64, 8),
    ("bool", Dtype::Bool, 1),
];

/// The plan of [`network`].
fn plan() -> Value {
    json!({
        "version": 1, "target": "cpu", "initializers": [],
        "inputs": [{"name": "x", "dtype": "float32", "dims": [4]}],
        "outputs": [{"name": "y", "dtype": "float32", "dims": [4]}],
    })
}

fn with(entries: &Value) -> Value {
    let mut plan = plan();
    plan.as_object_mut().unwrap().extend(entries.as_object().unwrap().clone());
    plan
}

fn decode(plan: &Value) -> Result<Plan, PlanError> {
    Plan::decode(&serde_json::to_vec(plan).unwrap())
}

fn weight(name: &str, dtype: &str, dims: &[i64], offset: u64, size: u64) -> Value {
    json!({"name": name, "dtype": dtype, "dims": dims, "offset": offset, "size": size})
}

/// Findings of a container with these parts, as code and segment.
fn findings(
    plan: &Value,
    network: &NetworkDesc,
    constants: &[u8],
    alignment: u64,
) -> Vec<(&'static str, String)> {
    let metadata = Metadata {
        network_name: network.network_name.clone(),
        num_nsps: 1,
        vtcm_size: 1,
        l2tcm_size: 1,
        ..Metadata::default()
    };
    let (flat, text) = (metadata.encode_flatbuffer(), serde_json::to_vec(plan).unwrap());
    let file =
        elf::build(&[("metadata_fb", &flat), (GRAPH_SECTION, b"graph"), (PLAN_SECTION, &text)]).unwrap();
    let size = constants.len() as u64;
    let descriptor = ConstantsDesc { static_constants_size: size, ..ConstantsDesc::default() }.encode();
    let network = network.encode();
    let segments = [
        SegmentData { name: "constants.bin", offset: size, payload: constants },
        SegmentData { name: "constantsdesc.bin", offset: 0, payload: &descriptor },
        SegmentData { name: "network.elf", offset: 0, payload: &file },
        SegmentData { name: "networkdesc.bin", offset: 0, payload: &network },
    ];
    let bytes = writer::build_in_memory(&segments, alignment).unwrap();
    let findings = validate(&bytes).into_iter();
    findings.map(|finding| (finding.code, finding.segment.unwrap_or_default())).collect()
}

#[test]
fn plan_with_every_entry_is_read_as_written() {
    let plan = decode(&with(&json!({
        "version": 2, "hardware": "ai200", "loops": true, "producer": "for people", "devices": 3,
        "inputs": [{"name": "x", "dtype": "uint8", "dims": [2, 33], "mxint8": 32, "model": {}}],
        "initializers": [
            {"name": "w", "dtype": "float16", "dims": [2], "offset": 64, "size": 9, "encoding": "mxfp6_e2m3", "axis": 1}
        ],
        "variants": [{"name": "a", "symbols": {}, "inputs": [[1]], "outputs": [[2]]}],
        "custom_op_libraries": [{"name": "lib.so", "size": 5, "crc32": 7}],
        "retained_state": true, "split_retained_state_io": true, "io_crc": 0,
        "places": {"inputs": [[1, 64]], "outputs": [[2, 0]]}, "control_buffer": 3,
        "stats": {
            "level": 70, "op_level": 1, "batch_size": 2, "buffer": 4, "ddr": true, "pmu_events": [1],
            "fingerprint": "000102030405060708090a0b0c0d0eff", "capacity": {},
        },
    })))
    .unwrap();
    assert_eq!(
        (plan.version, plan.target.as_str(), plan.family(), plan.devices),
        (2, "cpu", "ai200", Some(3))
    );
    assert_eq!((plan.inputs[0].mxint8, plan.inputs[0].dims.as_slice()), (Some(32), &[2, 33][..]));
    assert_eq!(plan.initializers[0].encoding.as_deref(), Some("mxfp6_e2m3"));
    assert_eq!(
        (plan.variants[0].inputs.as_slice(), plan.variants[0].outputs.as_slice()),
        (&[vec![1]][..], &[vec![2]][..])
    );
    assert_eq!(plan.custom_op_libraries[0].crc32, 7);
    assert!(plan.loops && plan.retained_state && plan.split_retained_state_io);
    assert_eq!((plan.io_crc, plan.control_buffer), (Some(0), Some(3)));
    assert_eq!((plan.places.inputs, plan.places.outputs), (vec![(1, 64)], vec![(2, 0)]));
    let stats = plan.stats.unwrap();
    assert_eq!((stats.level, stats.op_level, stats.batch_size, stats.buffer), (70, 1, 2, 4));
    assert_eq!(stats.fingerprint(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
    assert!(stats.ddr && stats.pmu_events == [1]);
}

#[test]
fn plan_without_its_optional_entries_asks_for_nothing() {
    let plan = decode(&plan()).unwrap();
    assert_eq!((plan.family(), plan.devices, plan.control_buffer, &plan.stats), ("ai100", None, None, &None));
    assert!(!plan.loops && plan.variants.is_empty() && plan.io_crc.is_none());
}

#[test]
fn fingerprint_of_other_text_is_zeros() {
    for wrong in ["", "00", "+00102030405060708090a0b0c0d0eff", "zz0102030405060708090a0b0c0d0eff"] {
        let plan = decode(&with(&json!({"stats": {"fingerprint": wrong}}))).unwrap();
        assert_eq!(plan.stats.unwrap().fingerprint(), [0; 16], "{wrong}");
    }
}

#[test]
fn plan_of_another_version_is_refused_by_its_version_whatever_else_it_has() {
    for plan in [with(&json!({"version": 5})), json!({"version": 0, "inputs": "changed"})] {
        let error = decode(&plan).unwrap_err();
        assert_eq!(
            (error.code(), matches!(error, PlanError::Version { .. })),
            ("qpc.cpu_plan_version", true)
        );
    }
    for plan in [json!({"version": 1}), with(&json!({"target": 1})), json!([]), with(&json!({"version": -1}))]
    {
        assert_eq!(decode(&plan).unwrap_err().code(), "qpc.cpu_plan", "{plan}");
    }
    let unknown = with(&json!({"initializers": [weight("w", "float8", &[1], 0, 1)]}));
    assert!(decode(&unknown).unwrap_err().to_string().contains("float8"));
}

#[test]
fn plan_with_bytes_that_are_no_text_in_an_unknown_entry_is_refused() {
    let mut text = with(&json!({"unknown": "@"})).to_string().into_bytes();
    let at = text.iter().position(|&byte| byte == b'@').unwrap();
    assert!(Plan::decode(&text).is_ok());
    text[at] = 0xEE;
    assert!(matches!(Plan::decode(&text), Err(PlanError::Json { .. })));
}

#[test]
fn tensors_that_are_not_the_bindings_are_refused() {
    assert_eq!(decode(&plan()).unwrap().check_network(&network()), Ok(()));
    let tensor = |name: &str, dtype: &str, dims: &[i64]| json!({"name": name, "dtype": dtype, "dims": dims});
    for (entry, tensors) in [
        ("inputs", json!([])),
        ("inputs", json!([tensor("z", "float32", &[4])])),
        ("inputs", json!([tensor("x", "float16", &[4])])),
        ("outputs", json!([tensor("y", "float32", &[5])])),
        ("outputs", json!([tensor("y", "float32", &[4]), tensor("z", "float32", &[4])])),
    ] {
        let plan = with(&json!({entry: tensors}));
        assert_eq!(
            decode(&plan).unwrap().check_network(&network()).unwrap_err().code(),
            "qpc.cpu_plan_edges",
            "{plan}"
        );
        assert_eq!(findings(&plan, &network(), &[], 64), [("qpc.cpu_plan_edges", "network.elf".to_owned())]);
    }
    let mut partial = network();
    partial.inputs[0].is_partial_allowed = true;
    let error = decode(&plan()).unwrap().check_network(&partial).unwrap_err();
    assert_eq!(error.to_string(), "input `x` accepts partial data, which no graph supports");
}

#[test]
fn statistics_are_no_tensor_of_the_plan() {
    let mut network = network();
    let mut counts = network.outputs[0].clone();
    counts.name = "aiccyclecounts_0".to_owned();
    network.outputs.push(counts);
    assert_eq!(decode(&plan()).unwrap().check_network(&network).unwrap_err().code(), "qpc.cpu_plan_edges");
    network.stats = Some(Stats::default());
    assert_eq!(decode(&plan()).unwrap().check_network(&network), Ok(()));
    assert_eq!((network.stats_output(), network.computed_outputs().len()), (Some(1), 1));
}

#[test]
fn specializations_that_are_not_the_permitted_shapes_are_refused() {
    let mut network = network();
    let shape = |dim| TensorShape { dtype: ElementType::Float32, dims: vec![dim] };
    network.allowed_shapes =
        vec![IoShapes { shapes: vec![shape(4), shape(4)] }, IoShapes { shapes: vec![shape(2), shape(3)] }];
    let variants = |variants: &[(i64, i64)]| {
        let variants: Vec<_> = variants
            .iter()
            .map(|(input, output)| json!({"inputs": [[input]], "outputs": [[output]]}))
            .collect();
        with(&json!({"version": 2, "variants": variants}))
    };
    assert_eq!(decode(&variants(&[(4, 4), (2, 3)])).unwrap().check_network(&network), Ok(()));
    for wrong in [&[][..], &[(4, 4)], &[(4, 4), (3, 2)], &[(2, 3), (4, 4)]] {
        let error = decode(&variants(wrong)).unwrap().check_network(&network).unwrap_err();
        assert_eq!(error.code(), "qpc.cpu_plan_variants", "{wrong:?}");
    }
    let swapped = with(&json!({"version": 2, "variants": [
        {"inputs": [[4], [4]], "outputs": []}, {"inputs": [[2]], "outputs": [[3]]}
    ]}));
    assert_eq!(decode(&swapped).unwrap().check_network(&network), Err(PlanError::Variant { number: 0 }));
}

#[test]
fn rows_that_are_not_rows_of_their_state_are_refused() {
    let sized = |entries: &Value| {
        with(&json!({
            "version": 3, "retained_state": true,
            "inputs": [{"name": "x", "dtype": "float32", "dims": [2, 5, 3]}],
            "outputs": [{"name": "x_RetainedState", "dtype": "float32", "dims": [2, 5, 3]}],
            "state_rows": entries,
        }))
    };
    let tensors = |rows: &[i64], indices: &[i64]| {
        json!([
            {"name": "rows", "dtype": "float32", "dims": [rows]},
            {"name": "at", "dtype": "int64", "dims": [indices]},
        ])
    };
    let update = json!({"input": 0, "output": 0, "rows": 0, "indices": 1});
    let checked = |entries: &Value| decode(&sized(entries)).unwrap().check_state_rows();
    for (rows, indices) in [
        (&[4, 3][..], &[4, 2][..]),
        (&[2, 4, 3], &[2, 4, 2]),
        (&[4], &[4, 3]),
        (&[5, 3], &[1]),
        (&[4, 5, 3], &[4, 1]),
    ] {
        assert_eq!(checked(&json!({"tensors": tensors(rows, indices), "updates": [&update]})), Ok(()));
    }
    for (rows, indices) in [
        (&[4, 3][..], &[4, 1][..]),
        (&[4, 2], &[4, 2]),
        (&[3, 3], &[4, 2]),
        (&[4], &[4, 4]),
        (&[4, 3], &[4, 0]),
        (&[4, 3], &[4, -1]),
        (&[4, 3], &[]),
    ] {
        let error = checked(&json!({"tensors": tensors(rows, indices), "updates": [&update]})).unwrap_err();
        assert_eq!(error.code(), "qpc.cpu_plan_state_rows", "{rows:?} {indices:?}");
    }
    let good = tensors(&[4, 3], &[4, 2]);
    for updates in [
        json!([update, update]),
        json!([{"input": 1, "output": 0, "rows": 0, "indices": 1}]),
        json!([{"input": 0, "output": 1, "rows": 0, "indices": 1}]),
        json!([{"input": 0, "output": 0, "rows": 2, "indices": 1}]),
        json!([{"input": 0, "output": 0, "rows": 1, "indices": 1}]),
        json!([{"input": 0, "output": 0, "rows": 0, "indices": 0}]),
    ] {
        let error = checked(&json!({"tensors": good, "updates": updates})).unwrap_err();
        assert_eq!(error.code(), "qpc.cpu_plan_state_rows", "{updates}");
    }
    let twice = json!([{"name": "rows", "dtype": "float32", "dims": [[4, 3], [1, 3]]}]);
    assert!(checked(&json!({"tensors": twice, "updates": []})).is_err());
}

#[test]
fn rows_of_state_in_blocks_are_numbers() {
    let checked = |input: Value, rows: &[i64], indices: &[i64], reads_blocks: bool| {
        let mut output = input.clone();
        output["name"] = json!("x_RetainedState");
        let found = with(&json!({
            "version": 3, "retained_state": true, "inputs": [input], "outputs": [output],
            "state_rows": {
                "tensors": [
                    {"name": "rows", "dtype": "float32", "dims": [rows]},
                    {"name": "at", "dtype": "int64", "dims": [indices]},
                ],
                "updates": [{"input": 0, "output": 0, "rows": 0, "indices": 1, "reads_blocks": reads_blocks}],
            },
        }));
        decode(&found).unwrap().check_state_rows()
    };
    let blocks = json!({"name": "x", "dtype": "uint8", "dims": [2, 5, 66], "mxint8": 40});
    for reads_blocks in [false, true] {
        assert_eq!(checked(blocks.clone(), &[4, 40], &[4, 2], reads_blocks), Ok(()));
        assert_eq!(checked(blocks.clone(), &[4, 5, 40], &[4, 1], reads_blocks), Ok(()));
        assert!(checked(blocks.clone(), &[4, 66], &[4, 2], reads_blocks).is_err());
        assert!(checked(blocks.clone(), &[4], &[4, 3], reads_blocks).is_err());
    }
    let numbers = json!({"name": "x", "dtype": "float32", "dims": [2, 5, 40]});
    assert_eq!(checked(numbers.clone(), &[4, 40], &[4, 2], false), Ok(()));
    assert!(checked(numbers, &[4, 40], &[4, 2], true).is_err());
}

#[test]
fn control_buffer_that_cannot_carry_what_the_host_says_is_refused() {
    let mut network = network();
    let size = u32::try_from(CONTROL_BYTES).unwrap();
    for (size, dir) in [(size, Direction::In), (size - 1, Direction::In), (size, Direction::Out)] {
        network.dma_buffers.push(DmaBuffer { size, dir });
    }
    network.dma_buffers[0].size = size;
    let checked = |number: usize| {
        let plan = decode(&with(&json!({"control_buffer": number}))).unwrap();
        plan.check_control_buffer(&network).map_err(|error| error.to_string())
    };
    assert_eq!(checked(2), Ok(()));
    for (number, found) in [
        (0, "which contains a tensor"),
        (3, "which has 63 bytes"),
        (4, "which is an output"),
        (5, "which does not exist"),
        (usize::MAX, "which does not exist"),
    ] {
        assert!(checked(number).unwrap_err().contains(found), "{number}");
    }
}

#[test]
fn weights_at_an_odd_offset_are_refused() {
    let constants = [0; 256];
    let one = |offset| with(&json!({"initializers": [weight("w", "float32", &[2], offset, 8)]}));
    for (offset, code) in [
        (65, "qpc.initializer_alignment"),
        (72, "qpc.initializer_alignment"),
        (256, "qpc.initializer_out_of_bounds"),
    ] {
        assert_eq!(
            findings(&one(offset), &network(), &constants, 64),
            [(code, "constants.bin".to_owned())],
            "{offset}"
        );
    }
    assert_eq!(findings(&one(64), &network(), &constants, 8), []);
    let plan = decode(&one(64)).unwrap();
    let initializer = &plan.initializers[0];
    assert_eq!(initializer.range(256, 4096), Ok(64..72));
    assert_eq!(initializer.range(256, 4098).unwrap_err().code(), "qpc.constants_alignment");
    let encoding = Some("mxfp6_e2m3".to_owned());
    let stored = Initializer { encoding, size: 25, ..initializer.clone() };
    assert_eq!(stored.range(256, 4097), Ok(64..89), "blocks are decoded into memory of their own");
}

#[test]
fn weights_that_share_bytes_are_refused() {
    let constants = [0; 512];
    let two = |first: (u64, i64), second: (u64, i64)| {
        let of =
            |name, (offset, size): (u64, i64)| weight(name, "uint8", &[size], offset, size.unsigned_abs());
        with(&json!({"initializers": [of("a", first), of("b", second)]}))
    };
    for (first, second, is_refused) in [
        ((0, 64), (64, 64), false),
        ((128, 64), (0, 128), false),
        ((64, 0), (64, 64), false),
        ((0, 128), (64, 0), false),
        ((0, 65), (64, 64), true),
        ((64, 1), (0, 512), true),
        ((64, 8), (64, 8), true),
    ] {
        let plan = two(first, second);
        let found = findings(&plan, &network(), &constants, 64);
        let expected = is_refused.then(|| ("qpc.initializers_overlap", "constants.bin".to_owned()));
        assert_eq!(found, Vec::from_iter(expected), "{first:?} {second:?}");
        assert_eq!(decode(&plan).unwrap().check_initializers(512, 0).is_err(), is_refused);
    }
}

/// Number of bytes of 32 elements of each format.
const UNIT_BYTES: [(&str, i128); 7] = [
    ("float32", 128),
    ("float16", 64),
    ("bfloat16", 64),
    ("mxfp6_e2m3", 25),
    ("mxint8", 33),
    ("int8", 32),
    ("uint4", 16),
];

/// Dims and sizes of all magnitudes.
fn any_size() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -1..70_i64, 1 => (0..63_u32, -1..2_i64).prop_map(|(power, more)| (1 << power) + more)]
}

#[test]
fn weights_in_forms_that_no_kernel_reads_are_refused_with_the_form() {
    let stored = weight("w", "float32", &[4, 32], 0, 512);
    for (entries, found) in [
        (json!({"layout": "piles"}), "found the layout `piles`, which this release does not support"),
        (json!({"layout": "rows", "dtype": "uint8"}), "found the form `uint8`, which no kernel reads"),
        (json!({"layout": "rows", "encoding": "zip"}), "found the form `zip`, which no kernel reads"),
        (
            json!({"layout": "tiles", "dims": [128]}),
            "found stored rows of dims [128]; rows and their length are expected",
        ),
        (json!({"layout": "tiles", "dims": [-4, 32]}), "found stored rows of dims [-4, 32]; rows and"),
        (
            json!({"layout": "rows", "encoding": "uint4", "group": 48}),
            "found groups of 48 elements; a power of two of",
        ),
        (json!({"encoding": "zip"}), "found the encoding `zip`, which this release does not support"),
        (json!({"encoding": "mxint8", "axis": 2}), "found blocks along dimension 2 of dims [4, 32]"),
    ] {
        let mut entry = stored.clone();
        entry.as_object_mut().unwrap().extend(entries.as_object().unwrap().clone());
        let plan = with(&json!({"version": 4, "initializers": [entry]}));
        assert_eq!(
            findings(&plan, &network(), &[0; 512], 64),
            [("qpc.initializer_form", "constants.bin".to_owned())]
        );
        let error = decode(&plan).unwrap().check_initializers(512, 0).unwrap_err().to_string();
        assert!(error.starts_with(&format!("initializer `w`: {found}")), "{error}");
    }
}

#[test]
fn weights_of_one_name_are_refused() {
    let plan = with(&json!({"initializers": [
        weight("w", "uint8", &[64], 0, 64), weight("v", "uint8", &[64], 64, 64), weight("w", "uint8", &[64], 128, 64),
    ]}));
    assert_eq!(
        findings(&plan, &network(), &[0; 192], 64),
        [("qpc.duplicate_initializer", "constants.bin".to_owned())]
    );
    let error = decode(&plan).unwrap().check_initializers(192, 0).unwrap_err().to_string();
    assert_eq!(error, "initializer `w` occurs twice; compile the model again");
}

proptest! {
    #[test]
    fn stored_weight_is_used_only_if_it_has_the_size_of_its_form(
        (name, unit_bytes) in select(UNIT_BYTES.to_vec()), layout in select(vec![None, Some("rows"), Some("tiles")]),
        dims in vec(any_size(), 2..4), axis in 0..2_usize, group in select(vec![0_u32, 32, 64, 128, 1 << 31]),
        size in prop_oneof![Just(None), any_size().prop_map(Some)], more in prop_oneof![8 => Just(0_i128), 1 => -1..2_i128],
    ) {
        let is_dense = unit_bytes > 60;
        let is_quantized = ["int8", "uint4"].contains(&name);
        // Other formats are blocks of a tensor, or need a layout.
        prop_assume!(layout.is_some() || name.starts_with("mx"));
        prop_assume!(layout.is_none() || dims.len() == 2 && dims.iter().all(|&dim| dim >= 0));
        // A product that overflows before a zero is refused too.
        prop_assume!(!dims.contains(&0) || dims.iter().all(|&dim| dim < 70));
        let along = if layout.is_some() { 1 } else { axis };
        let mut numbers: Vec<_> = dims.iter().map(|&dim| i128::from(dim)).collect();
        let is_possible = numbers.iter().all(|&number| number >= 0);
        let len = numbers.remove(along);
        let rows = numbers.into_iter().fold(1, i128::saturating_mul);
        let held = if layout == Some("tiles") { rows.saturating_add(3) / 4 * 4 } else { rows };
        let units = (len + 31) / 32;
        let groups = match group {
            _ if !is_quantized => 0,
            0 => units.min(1),
            group => (units * 32 + i128::from(group) - 1) / i128::from(group),
        };
        let exact = (units * unit_bytes + 5 * groups).saturating_mul(held);
        let size = u64::try_from(size.map_or(exact, i128::from).saturating_add(more)).unwrap_or(0);
        let initializer = Initializer {
            name: "w".to_owned(),
            dtype: DTYPES.iter().find(|(text, ..)| is_dense && *text == name).map_or(Dtype::Float32, |found| found.1),
            dims,
            offset: 0,
            size,
            encoding: (!is_dense).then(|| name.to_owned()),
            axis,
            layout: layout.map(str::to_owned),
            group: usize::try_from(group).unwrap(),
        };
        let found = initializer.range(usize::MAX, 0);
        if is_possible && i128::from(size) == exact {
            prop_assert_eq!(found, Ok(0..usize::try_from(size).unwrap()));
        } else {
            prop_assert_eq!(found.unwrap_err().code(), "qpc.initializer_size");
        }
    }

    #[test]
    fn initializer_is_used_only_where_its_elements_may_begin(
        at in 0..DTYPES.len(), dims in vec(-1..6_i64, 0..4), offset in 0..700_u64, size_error in -1..2_i64,
        len in 0..1000_usize, start in 0..16_u64,
    ) {
        let (_, dtype, element) = DTYPES[at];
        let product: i64 = dims.iter().product();
        let dense = i64::try_from(element).unwrap() * product;
        let size = u64::try_from(dense + size_error).unwrap_or(0);
        let is_negative = dims.iter().any(|dim| *dim < 0);
        let initializer =
            Initializer { name: "w".to_owned(), dtype, dims, offset, size, encoding: None, axis: 0, layout: None, group: 0 };
        let is_sized = !is_negative && i128::from(size) == i128::from(dense);
        let is_inside = offset + size <= len as u64;
        match initializer.range(len, start) {
            Ok(range) => {
                prop_assert!(is_sized && is_inside && offset % 64 == 0 && (start + offset) % element == 0);
                prop_assert_eq!((range.start as u64, range.len() as u64), (offset, size));
            }
            Err(error) => {
                let expected = if !is_inside {
                    "qpc.initializer_out_of_bounds"
                } else if !is_sized {
                    "qpc.initializer_size"
                } else if offset % 64 != 0 {
                    "qpc.initializer_alignment"
                } else {
                    "qpc.constants_alignment"
                };
                prop_assert_eq!(error.code(), expected);
            }
        }
    }

    #[test]
    fn tensor_and_initializer_of_every_type_are_read_as_written(
        at in 0..DTYPES.len(), dims in vec(any::<i64>(), 0..4), name in "\\PC{0,8}", offset in any::<u64>(), size in any::<u64>(),
    ) {
        let (text, dtype, element) = DTYPES[at];
        let plan = decode(&with(&json!({
            "inputs": [{"name": name, "dtype": text, "dims": dims}],
            "initializers": [weight(&name, text, &dims, offset, size)],
        }))).unwrap();
        prop_assert_eq!(dtype.size_bytes(), element);
        prop_assert_eq!((&plan.inputs[0].name, plan.inputs[0].dtype, &plan.inputs[0].dims), (&name, dtype, &dims));
        let initializer = &plan.initializers[0];
        prop_assert_eq!((initializer.offset, initializer.size, initializer.dtype), (offset, size, dtype));
        let exact = dims.iter().map(|dim| i128::from(*dim)).try_fold(i128::from(element), i128::checked_mul);
        let expected = exact.filter(|_| dims.iter().all(|dim| *dim >= 0)).and_then(|bytes| u64::try_from(bytes).ok());
        // A product that overflows before a zero is refused too.
        if !dims.contains(&0) {
            prop_assert_eq!(dtype.dense_bytes(&dims), expected);
        }
    }

    #[test]
    fn control_buffer_is_read_as_written(
        variant in any::<u32>(), is_measured in any::<bool>(), program in any::<u32>(), activation in any::<u32>(),
        inference in any::<u64>(),
    ) {
        let control = Control { variant, is_measured, program, activation, inference };
        prop_assert_eq!(Control::decode(&control.encode()), Some(control));
    }

    #[test]
    fn plan_of_any_bytes_does_not_panic(bytes in vec(any::<u8>(), 0..200), text in "[\\[{\"a-z0-9:,}\\]]{0,80}") {
        let _ = (Plan::decode(&bytes), Plan::decode(text.as_bytes()), Plan::of_elf(&bytes), Control::decode(&bytes));
    }
}
