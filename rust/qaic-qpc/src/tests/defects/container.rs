//! Defects of the container.

use qaic_qpc::writer::{self, Layout, SegmentData, SegmentSpec};
use qaic_qpc::{ConstantsDesc, Container, CrcSegment, Limits, NameDefect, QpcError, Warning};

use super::code;

/// Position of a field of segment table entry `index`.
const fn entry(index: usize, field: usize) -> usize {
    40 + 32 * index + field
}

const SIZE: usize = 0;
const OFFSET: usize = 8;
const NAME: usize = 16;
const START: usize = 24;

fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// A valid container: constants (two static bytes of three) and two other segments.
fn sound() -> Vec<u8> {
    let segments = [
        SegmentData { name: "constants.bin", offset: 2, payload: b"abc" },
        SegmentData { name: "network.elf", offset: 0, payload: b"elf" },
        SegmentData { name: "other", offset: 0, payload: b"12345678" },
    ];
    writer::build_in_memory(&segments, 8).unwrap()
}

fn parse(bytes: &[u8]) -> Result<Container, QpcError> {
    Container::parse(bytes, &Limits::default())
}

/// Returns the error of a valid container after `damage`.
fn damaged(damage: impl FnOnce(&mut Vec<u8>)) -> QpcError {
    let mut bytes = sound();
    parse(&bytes).unwrap();
    damage(&mut bytes);
    parse(&bytes).unwrap_err()
}

#[test]
fn rejects_fewer_bytes_than_a_header() {
    for len in 0..40 {
        let error = parse(&sound()[..len]).unwrap_err();
        assert_eq!(code(&error), "qpc.too_short", "{len}");
    }
}

#[test]
fn rejects_each_damage_by_its_error() {
    type Damage = fn(&mut Vec<u8>);
    let declared = sound().len() as u64;
    let cases: [(QpcError, Damage); 8] = [
        (QpcError::BadMagic { found: 0x01a1_cd7c }, |bytes| bytes[3] = 1),
        (QpcError::SizeMismatch { declared, actual: declared - 1 }, |bytes| bytes.truncate(bytes.len() - 1)),
        (QpcError::SizeMismatch { declared, actual: declared + 1 }, |bytes| bytes.push(0)),
        (QpcError::CompressionType { found: 0 }, |bytes| bytes[6..8].fill(0)),
        (QpcError::CompressionType { found: 2 }, |bytes| bytes[6..8].copy_from_slice(&[2, 0])),
        (QpcError::CompressionType { found: 0xffff }, |bytes| bytes[6..8].fill(0xff)),
        (QpcError::ConstantsOffset { offset: 4, size: 3 }, |bytes| put(bytes, entry(0, OFFSET), 4)),
        (QpcError::DuplicateSegment { name: "network.elf".into() }, |bytes| {
            let name = get(bytes, entry(1, NAME));
            put(bytes, entry(2, NAME), name);
        }),
    ];
    for (expected, damage) in cases {
        assert_eq!(damaged(damage), expected);
    }
}

#[test]
fn rejects_a_table_out_of_place() {
    let error = damaged(|bytes| put(bytes, 16, 41));
    assert!(matches!(error, QpcError::TableOutOfBounds { pointer: 40, base: 41, count: 3, .. }), "{error}");
    let total = sound().len() as u64;
    // Tables inside the header, tables after the end, and more segments than fit.
    for (field, value) in [(32, 32), (32, total - 8), (32, total + 8), (32, u64::MAX), (24, 100)] {
        let error = damaged(|bytes| put(bytes, field, value));
        assert_eq!(code(&error), "qpc.table_out_of_bounds", "{field} {value}");
    }
}

#[test]
fn rejects_more_segments_than_the_limit() {
    for count in [4097, 1 << 59, u64::MAX] {
        let error = damaged(|bytes| put(bytes, 24, count));
        assert_eq!(error, QpcError::LimitExceeded { what: "segments", max: 4096 });
        assert_eq!(error.report().class, "QpcLimitError");
    }
}

#[test]
fn rejects_names_that_cannot_be_read() {
    let (pointer, total) = (entry(1, NAME), sound().len() as u64);
    let first = usize::try_from(get(&sound(), pointer)).unwrap();
    let rejects = |expected, damage: &dyn Fn(&mut Vec<u8>)| {
        assert_eq!(damaged(damage), QpcError::SegmentName { index: 1, defect: expected });
    };
    rejects(NameDefect::OutOfBounds, &|bytes| put(bytes, pointer, total));
    rejects(NameDefect::OutOfBounds, &|bytes| put(bytes, pointer, u64::MAX));
    rejects(NameDefect::OutOfBounds, &|bytes| {
        writer::rebase(bytes, 1000).unwrap();
        put(bytes, pointer, 999);
    });
    // The last eight bytes are a payload without zeros.
    rejects(NameDefect::Unterminated, &|bytes| put(bytes, pointer, total - 3));
    rejects(NameDefect::Empty, &|bytes| bytes[first] = 0);
    rejects(NameDefect::NotUtf8, &|bytes| bytes[first] = 0xff);
}

#[test]
fn rejects_names_over_255_bytes() {
    let name = "n".repeat(255);
    let segments = [SegmentData { name: &name, offset: 0, payload: b"" }];
    let mut bytes = writer::build_in_memory(&segments, 8).unwrap();
    assert_eq!(parse(&bytes).unwrap().segments[0].name, name);
    // The NUL is overwritten and moved into a tail of the same file.
    let end = bytes.len() - 1;
    bytes[end] = b'n';
    bytes.extend([0; 8]);
    let len = bytes.len() as u64;
    put(&mut bytes, 8, len);
    let expected = QpcError::SegmentName { index: 0, defect: NameDefect::TooLong };
    assert_eq!(parse(&bytes).unwrap_err(), expected);
}

#[test]
fn rejects_payloads_outside() {
    let total = sound().len() as u64;
    let cases = [(total + 1, 0, 0), (total - 4, 5, 0), (u64::MAX, 1, 0), (0, u64::MAX, 0), (0, 8, 1000)];
    for (start, size, base) in cases {
        let error = damaged(|bytes| {
            writer::rebase(bytes, base).unwrap();
            put(bytes, entry(2, START), start);
            put(bytes, entry(2, SIZE), size);
        });
        assert_eq!(code(&error), "qpc.payload_out_of_bounds", "{start} {size}");
    }
}

fn overlap(start: u64, size: u64) -> (String, String) {
    let error = damaged(|bytes| {
        put(bytes, entry(2, START), start);
        put(bytes, entry(2, SIZE), size);
    });
    match error {
        QpcError::SegmentOverlap { first, second, .. } => (first, second),
        other => panic!("{other}"),
    }
}

#[test]
fn rejects_payloads_over_other_parts() {
    let bytes = sound();
    assert_eq!(overlap(32, 4), ("header".into(), "other".into()));
    assert_eq!(overlap(48, 4), ("segment table".into(), "other".into()));
    assert_eq!(overlap(get(&bytes, entry(0, NAME)) + 1, 2).1, "other");
    let start = get(&bytes, entry(0, START));
    assert_eq!(overlap(start + 1, 1), ("constants.bin".into(), "other".into()));
    // A large region contains a later one completely.
    let error = damaged(|bytes| put(bytes, entry(0, SIZE), 24));
    assert_eq!(code(&error), "qpc.segment_overlap");
}

#[test]
fn keeps_empty_payloads_that_share_a_start() {
    let segments = [("a", &b""[..]), ("b", b""), ("c", b"x"), ("d", b"")]
        .map(|(name, payload)| SegmentData { name, offset: 0, payload });
    let bytes = writer::build_in_memory(&segments, 8).unwrap();
    let container = parse(&bytes).unwrap();
    assert_eq!(container.segments[0].range, container.segments[1].range);
}

#[test]
fn rejects_short_constants_descriptors() {
    for len in 0..24 {
        assert_eq!(code(&ConstantsDesc::decode(&vec![0; len]).unwrap_err()), "qpc.segment_too_short");
    }
    assert!(ConstantsDesc::decode(&[0; 30]).is_ok());
}

#[test]
fn rejects_short_crc_segments() {
    let segments = [SegmentData { name: "constants.bin.crc", offset: 0, payload: b"abc" }];
    let bytes = writer::build_in_memory(&segments, 8).unwrap();
    let error = CrcSegment::Constants.stored(&parse(&bytes).unwrap(), &bytes).unwrap_err();
    assert_eq!(code(&error), "qpc.segment_too_short");
}

#[test]
fn warns_of_versions_offsets_and_alignment() {
    let mut bytes = sound();
    bytes[4] = 3;
    put(&mut bytes, entry(1, OFFSET), 9);
    let warnings = parse(&bytes).unwrap().warnings;
    let expected =
        [Warning::Version { major: 3 }, Warning::UnusedOffset { segment: "network.elf".into(), offset: 9 }];
    assert_eq!(warnings, expected);

    // The table of an empty container may be at any position; here it follows one unused byte.
    let mut empty = writer::build_in_memory(&[], 8).unwrap();
    empty.push(0);
    put(&mut empty, 8, 41);
    put(&mut empty, 32, 41);
    assert_eq!(parse(&empty).unwrap().warnings, [Warning::TableAlignment { offset: 41 }]);
}

#[test]
fn rejects_what_cannot_be_written() {
    let spec = |name: &str, size, offset| SegmentSpec { name: name.to_owned(), size, offset };
    let error = |segments: &[SegmentSpec], alignment| Layout::in_memory(segments, alignment).unwrap_err();
    assert_eq!(code(&error(&[spec("", 1, 0)], 8)), "qpc.invalid_name");
    assert_eq!(code(&error(&[spec("a\0b", 1, 0)], 8)), "qpc.invalid_name");
    assert_eq!(code(&error(&[spec(&"n".repeat(256), 1, 0)], 8)), "qpc.invalid_name");
    assert_eq!(code(&error(&[spec("a", 1, 0), spec("a", 2, 0)], 8)), "qpc.duplicate_segment");
    assert_eq!(code(&error(&[spec("constants.bin", 1, 2)], 8)), "qpc.constants_offset");
    assert_eq!(code(&error(&[spec("a", u64::MAX, 0)], 8)), "qpc.too_large");
    for alignment in [0, 1, 4, 12, 65] {
        let error = error(&[spec("a", 1, 0)], alignment);
        assert_eq!(error, QpcError::InvalidAlignment { found: alignment });
        assert_eq!(error.report().class, "QpcError");
    }
    assert_eq!(Layout::file(&[]).unwrap_err(), QpcError::EmptyContainer);
    assert_eq!(code(&Layout::file(&[spec("a", 1, 0)]).unwrap_err()), "qpc.missing_segment");
}
