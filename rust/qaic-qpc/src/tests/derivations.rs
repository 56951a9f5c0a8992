//! Values derived from a descriptor and a program beyond those in the recorded containers.

use qaic_qpc::metadata::Metadata;
use qaic_qpc::transform::{Operation, TransferPlan};
use qaic_qpc::writer::{self, SegmentData};
use qaic_qpc::{
    Container, CrcSegment, IoBinding, IoDesc, Limits, NetworkDesc, QpcError, QpcInfo, Transform,
    TransformKind, crc32, elf, user_mappings,
};

use super::fixture;

fn network(name: &str) -> NetworkDesc {
    fixture::good().iter().find(|case| case.name == name).unwrap().network()
}

fn operations(steps: &[qaic_qpc::transform::Step]) -> Vec<Operation> {
    steps.iter().map(|step| step.operation.clone()).collect()
}

#[test]
fn conversions_become_steps() {
    let plan = TransferPlan::new(&network("s04_convert_f16")).unwrap();
    assert_eq!(operations(&plan.inputs[0].steps), [Operation::Convert, Operation::Copy]);
    assert_eq!(operations(&plan.inputs[1].steps), [Operation::Copy]);
    assert_eq!(operations(&plan.outputs[0].steps), [Operation::Copy, Operation::Convert]);
    assert_eq!(plan.inputs[0].user_bytes, 48);
    assert_eq!(plan.inputs[0].place.unwrap().bytes, 24);
}

#[test]
fn quantization_of_an_output_is_that_of_its_device_tensor() {
    let plan = TransferPlan::new(&network("s05_quant_i8")).unwrap();
    let quantize = Operation::Quantize { scale: 0.05, offset: -3 };
    assert_eq!(operations(&plan.inputs[0].steps), [quantize, Operation::Copy]);
    let dequantize = Operation::Dequantize { scale: 0.125, offset: 7 };
    assert_eq!(operations(&plan.outputs[0].steps), [Operation::Copy, dequantize]);
}

#[test]
fn transposes_carry_their_permutation() {
    let mut network = network("s01_simple_f32_file");
    let input = &mut network.inputs[0];
    let nhwc = vec![1, 8, 8, 3];
    let transpose = Transform {
        kind: TransformKind::Transpose,
        dims: nhwc.clone(),
        shuffle: vec![0, 2, 3, 1],
        ..Transform::default()
    };
    input.transformseq.insert(0, transpose);
    input.transformseq[1].dims.clone_from(&nhwc);
    input.io_transformed.dims = nhwc;
    let plan = TransferPlan::new(&network).unwrap();
    let transpose = Operation::Transpose { shuffle: vec![0, 2, 3, 1] };
    assert_eq!(operations(&plan.inputs[0].steps), [transpose, Operation::Copy]);
    let sets = IoDesc::from_network(&network).unwrap().io_sets;
    let names: Vec<&str> = sets.iter().map(|set| set.name.as_str()).collect();
    assert_eq!(names, ["default", "transpose", "dma"]);
    // The output has no such stage, so its default binding is invalid.
    assert_eq!(sets[1].bindings[0].dims, [1, 8, 8, 3]);
    assert!(sets[1].bindings[0].is_valid && !sets[1].bindings[1].is_valid);
}

/// The worked example of the format.
#[test]
fn zero_dims_count_in_mappings_and_not_in_copies() {
    let mut network = network("s01_simple_f32_file");
    let dims = vec![0, 4];
    let input = &mut network.inputs[0];
    input.io_initial.dims.clone_from(&dims);
    input.io_transformed.dims.clone_from(&dims);
    input.transformseq[0].dims = dims;
    assert_eq!(user_mappings(&network).unwrap()[0].size, 16);
    let io_desc = IoDesc::from_network(&network).unwrap();
    assert_eq!(
        (io_desc.io_sets[0].bindings[0].size, &io_desc.io_sets[0].bindings[0].dims[..]),
        (16, &[0, 4][..])
    );
    assert_eq!(TransferPlan::new(&network).unwrap().inputs[0].place.unwrap().bytes, 0);
}

#[test]
fn names_of_mappings_end_at_a_nul_and_are_never_empty() {
    let called = |name: &str| IoBinding { name: name.into(), ..IoBinding::default() };
    let network =
        NetworkDesc { inputs: vec![called("a\0b"), called(""), called("\0")], ..NetworkDesc::default() };
    let names = user_mappings(&network).unwrap().into_iter().map(|mapping| mapping.buffer_name);
    assert_eq!(names.collect::<Vec<_>>(), ["a", "noname", "noname"]);
}

/// An ELF file with two loadable segments, `b"abcd"` followed by four zeros in memory, and `b"xy"`.
fn loadable_elf() -> Vec<u8> {
    let mut file = elf::build(&[("text", b"abcdxy")]).unwrap();
    let text = elf::section(&file, "text").unwrap().unwrap().start;
    let table = file.len();
    for (start, in_file, in_memory) in [(text, 4, 8_u32), (text + 4, 2, 2)] {
        // type, offset, addresses, sizes, flags, alignment
        let start = u32::try_from(start).unwrap();
        for word in [1, start, 0, 0, in_file, in_memory, 5, 1] {
            file.extend(word.to_le_bytes());
        }
    }
    file[28..32].copy_from_slice(&u32::try_from(table).unwrap().to_le_bytes());
    file[42..46].copy_from_slice(&[32, 0, 2, 0]);
    file
}

#[test]
fn image_crc_covers_segments_as_they_stand_in_memory() {
    assert_eq!(elf::load_image_crc(&loadable_elf()).unwrap(), crc32(b"abcd\0\0\0\0xy"));
    let mut shrinking = loadable_elf();
    let table = shrinking.len() - 64;
    shrinking[table + 20] = 3;
    assert_eq!(elf::load_image_crc(&shrinking).unwrap_err().code(), "qpc.elf");
}

#[test]
fn huge_zero_filled_segments_cost_nothing() {
    let mut file = loadable_elf();
    let table = file.len() - 64;
    file[table + 20..table + 24].copy_from_slice(&u32::MAX.to_le_bytes());
    elf::load_image_crc(&file).unwrap();
}

#[test]
fn rejects_more_loadable_segments_than_any_program_has() {
    let mut file = loadable_elf();
    let segment = file[file.len() - 32..].to_vec();
    let mut empty = segment;
    empty[16..24].fill(0);
    for _ in 0..300 {
        file.extend(&empty);
    }
    file[44..46].copy_from_slice(&302_u16.to_le_bytes());
    assert_eq!(
        elf::load_image_crc(&file).unwrap_err(),
        QpcError::LimitExceeded { what: "loadable segments", max: 256 }
    );
}

#[test]
fn every_crc_segment_is_computed_over_what_it_covers() {
    let file = loadable_elf();
    let sections = elf::build(&[("metadata", b"meta"), ("metadata_fb", b"flat")]).unwrap();
    let stored = 7_u32.to_le_bytes();
    let crcs = |elf: &[u8]| {
        let segments = [
            SegmentData { name: "constants.bin", offset: 1, payload: b"const" },
            SegmentData { name: "metadata.crc", offset: 0, payload: &stored },
            SegmentData { name: "network.elf", offset: 0, payload: elf },
        ];
        let bytes = writer::build_in_memory(&segments, 8).unwrap();
        let container = Container::parse(&bytes, &Limits::default()).unwrap();
        assert_eq!(CrcSegment::Metadata.stored(&container, &bytes), Ok(Some(7)));
        assert_eq!(CrcSegment::Constants.stored(&container, &bytes), Ok(None));
        CrcSegment::ALL.map(|crc| crc.compute(&container, &bytes).unwrap())
    };
    let [constants, metadata, metadata_fb, image] = crcs(&sections);
    assert_eq!(constants, Some(crc32(b"const")));
    assert_eq!((metadata, metadata_fb), (Some(crc32(b"meta")), Some(crc32(b"flat"))));
    assert_eq!(image, Some(0));
    assert_eq!(crcs(&file), [constants, None, None, Some(crc32(b"abcd\0\0\0\0xy"))]);
}

#[test]
fn program_info_adds_up_memory_and_counts_dynamic_constants_once() {
    let metadata = Metadata {
        network_name: "info".into(),
        num_nsps: 3,
        num_semaphores: 5,
        network_heap_size: 100,
        static_shared_ddr_size: 1,
        dynamic_shared_ddr_size: 2,
        static_constants_size: 4,
        dynamic_constants_size: 8,
        ..Metadata::default()
    };
    let file = elf::build(&[("metadata_fb", &metadata.encode_flatbuffer())]).unwrap();
    let segments = [
        SegmentData { name: "constants.bin", offset: 0, payload: b"dynamic" },
        SegmentData { name: "constantsdesc.bin", offset: 0, payload: &[0; 24] },
        SegmentData { name: "network.elf", offset: 0, payload: &file },
    ];
    let bytes = writer::build_in_memory(&segments, 64).unwrap();
    let container = Container::parse(&bytes, &Limits::default()).unwrap();
    let info = QpcInfo::new(&container, &bytes, &NetworkDesc::default()).unwrap();
    assert_eq!(info.programs[0].total_required_memory, 1 + 2 + 4 + 8 + 3 * 100);
    assert_eq!(info.programs[0].num_semaphores, 5);
    assert_eq!(info.constants[0].size, 7);
}
