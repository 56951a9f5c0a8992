//! Findings of validation, and their places.

use qaic_qpc::metadata::Metadata;
use qaic_qpc::writer::{self, SegmentData};
use qaic_qpc::{ConstantsDesc, Severity, elf, validate};

use super::sample::network;

fn program(segments: &[(&str, &[u8])]) -> Vec<u8> {
    let segments: Vec<SegmentData<'_>> =
        segments.iter().map(|&(name, payload)| SegmentData { name, offset: 0, payload }).collect();
    writer::build_in_memory(&segments, 64).unwrap()
}

fn errors(bytes: &[u8]) -> Vec<(&'static str, Option<String>)> {
    let findings = validate(bytes).into_iter().filter(|finding| finding.severity == Severity::Error);
    findings.map(|finding| (finding.code, finding.segment)).collect()
}

fn at(code: &'static str, segment: &str) -> (&'static str, Option<String>) {
    (code, Some(segment.to_owned()))
}

fn sound_elf(extra: &[(&str, &[u8])]) -> Vec<u8> {
    let metadata = Metadata {
        network_name: "defects".into(),
        num_nsps: 1,
        vtcm_size: 1,
        l2tcm_size: 1,
        ..Metadata::default()
    };
    let flat = metadata.encode_flatbuffer();
    let mut sections = vec![("metadata_fb", flat.as_slice())];
    sections.extend(extra);
    elf::build(&sections).unwrap()
}

#[test]
fn validation_accepts_a_sound_program() {
    let desc = ConstantsDesc::default().encode();
    let bytes = program(&[
        ("constantsdesc.bin", &desc),
        ("network.elf", &sound_elf(&[])),
        ("networkdesc.bin", &network().encode()),
    ]);
    assert_eq!(validate(&bytes), []);
}

#[test]
fn validation_reports_every_defect_at_its_segment() {
    let desc = ConstantsDesc { dynamic_constants_size: 3, ..ConstantsDesc::default() }.encode();
    let plan = br#"{"version":1,"target":"cpu",
        "inputs":[{"name":"x","dtype":"float32","dims":[4]}],"outputs":[{"name":"y","dtype":"float32","dims":[4]}],
        "initializers":[{"name":"w","dtype":"float32","dims":[2],"offset":64,"size":8}]}"#;
    let mut wrong = network();
    wrong.dma_buffers[0].size = 8;
    let bytes = program(&[
        ("constants.bin", b"four"),
        ("constants.bin.crc", b"crc?"),
        ("constantsdesc.bin", &desc),
        ("network.elf", &sound_elf(&[("openqaic_plan", plan)])),
        ("networkdesc.bin", &wrong.encode()),
    ]);
    let expected = [
        at("qpc.constants_size", "constants.bin"),
        at("qpc.crc_mismatch", "constants.bin.crc"),
        at("qpc.dma_out_of_bounds", "networkdesc.bin"),
        at("qpc.cpu_graph", "network.elf"),
        at("qpc.initializer_out_of_bounds", "constants.bin"),
    ];
    assert_eq!(errors(&bytes), expected);
}

#[test]
fn validation_reports_all_missing_segments() {
    let expected =
        ["constantsdesc.bin", "networkdesc.bin", "network.elf"].map(|name| at("qpc.missing_segment", name));
    assert_eq!(errors(&program(&[])), expected);
}

#[test]
fn validation_follows_inner_containers_to_a_bounded_depth() {
    let mut bytes = program(&[]);
    for _ in 0..5 {
        bytes = program(&[("slice", &bytes)]);
    }
    let findings = validate(&bytes);
    let nesting = findings.iter().find(|finding| finding.code == "qpc.nesting").unwrap();
    assert_eq!(nesting.segment.as_deref(), Some("slice/slice/slice"));
    assert_eq!(errors(&program(&[("slice", &program(&[]))])).len(), 3);
}
