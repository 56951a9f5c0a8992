//! Reads a container and writes it again in both layouts; the segments must be the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_qpc::writer::{self, SegmentData};
use qaic_qpc::{Container, Limits, Segment};

fn contents<'a>(container: &'a Container, bytes: &'a [u8]) -> Vec<(&'a str, u64, &'a [u8])> {
    let content = |segment: &'a Segment| (segment.name.as_str(), segment.offset, segment.payload(bytes));
    container.segments.iter().map(content).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(container) = Container::parse(bytes, &Limits::default()) else { return };
    let before = contents(&container, bytes);
    let segments: Vec<SegmentData<'_>> =
        before.iter().map(|&(name, offset, payload)| SegmentData { name, offset, payload }).collect();
    let check = |built: &[u8]| {
        let again = Container::parse(built, &Limits::default()).expect("a written container must open");
        assert_eq!(contents(&again, built), before);
    };
    for alignment in [8, 64] {
        let mut built = writer::build_in_memory(&segments, alignment).expect("what was read can be written");
        check(&built);
        writer::rebase(&mut built, container.header.base & 0xffff_ffff_ffff).expect("the base fits");
        check(&built);
    }
    if let Ok(built) = writer::build_file(&segments) {
        check(&built);
    }
});
