//! Every rule of the layout, violated one at a time: its code, and the precedence of earlier rules.

use std::sync::Arc;

use qaic_stats::decode::descriptor::{CoreOps, Fingerprint, OpDesc, OpsDescriptor, fingerprint};
use qaic_stats::decode::oqstats::encode_to_vec;
use qaic_stats::decode::{
    Core, DecodeOptions, Kind, Op, OpFlags, OpPmu, Pmu, Port, ProgramOperations, Record, Ring, Thread, decode,
};
use qaic_stats::{Run, StatsModel};

/// Two threads of one core, with two operations each from the descriptor.
fn model() -> StatsModel<'static> {
    let mut model = StatsModel::new(Run {
        cores: 1,
        threads_per_core: 2,
        batch_size: 1,
        ucycle_hz: 19_200_000,
        ..Run::default()
    });
    model.set_records([Core { start_u: 100, end_u: 200, ..Core::default() }]);
    model.set_records([0_u8, 1].map(|thread| Thread {
        thread,
        start_u: 100,
        end_u: 200,
        first_op: u32::from(thread) * 2,
        op_count: 2,
        ..Thread::default()
    }));
    model.set_records([Port { port: 100, ..Port::default() }]);
    model.set_records([Ring::default()]);
    model.set_records([Pmu { valid_count: 8, ..Pmu::default() }]);
    model.set_records((0..4_u8).map(|index| Op {
        oc: u32::from(index % 2) * 2 + u32::from(index / 2),
        thread: index / 2,
        start_u: 110 + u64::from(index % 2) * 20,
        dur_u: 10,
        sync_u: 5,
        ..Op::default()
    }));
    model.set_records((0..4).map(|op| OpPmu { op, ..OpPmu::default() }));
    model.set(Kind::Meta, br#"{"producer":"test"}"#.as_slice(), 1);
    model
}

/// Operations 0 and 2 are of group 0, 1 and 3 of group 1.
fn descriptor() -> OpsDescriptor {
    let ops = (0..4_u32).map(|oc| OpDesc { group: oc % 2, ..OpDesc::default() }).collect();
    OpsDescriptor {
        groups: vec!["A".to_owned(), "B".to_owned()],
        thread_groups: vec![0, 1],
        cores: vec![CoreOps { slice: 0, ops }],
        ..OpsDescriptor::default()
    }
}

const HASH: Fingerprint = [7; 16];

fn bytes() -> Vec<u8> {
    encode_to_vec(&model(), HASH).unwrap()
}

/// Returns the reader's verdict: the code of the error, or the warnings.
fn judge(bytes: &[u8]) -> Result<Vec<String>, &'static str> {
    let program = ProgramOperations { ops: descriptor().into(), fingerprint: HASH };
    let read = decode(bytes, Some(&program), None, DecodeOptions::default());
    read.map(|model| model.warnings).map_err(|error| error.code())
}

fn judge_model(change: impl FnOnce(&mut StatsModel<'_>)) -> Result<Vec<String>, &'static str> {
    let mut model = model();
    change(&mut model);
    judge(&encode_to_vec(&model, HASH).unwrap())
}

/// Changes record `index` of a section.
fn judge_record<R: Record>(index: usize, change: impl FnOnce(&mut R)) -> Result<Vec<String>, &'static str> {
    judge_model(|model| {
        let mut records: Vec<R> = model.records::<R>().iter().collect();
        change(&mut records[index]);
        model.set_records(records);
    })
}

/// The bytes with a header changed and sealed again.
fn header(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = bytes();
    change(&mut bytes);
    seal(&mut bytes);
    bytes
}

fn seal(bytes: &mut [u8]) {
    let crc = crc32fast::hash(&bytes[..120]);
    put(bytes, 120, crc);
}

fn put<T: qaic_stats::decode::Field>(bytes: &mut [u8], offset: usize, value: T) {
    value.put(bytes, offset);
}

/// Returns the offset of the directory entry of a section.
fn entry(bytes: &[u8], kind: Kind) -> usize {
    (128..).step_by(32).find(|at| bytes[*at..at + 4] == kind.code().to_le_bytes()).unwrap()
}

fn directory(kind: Kind, field: usize, value: u32) -> Vec<u8> {
    let mut bytes = bytes();
    let at = entry(&bytes, kind) + field;
    put(&mut bytes, at, value);
    bytes
}

const OFFSET: usize = 8;
const RECORD: usize = 16;
const CAPACITY: usize = 20;
const COUNT: usize = 24;

#[test]
fn a_sound_buffer_has_no_warnings() {
    assert_eq!(judge(&bytes()), Ok(vec![]));
}

#[test]
fn the_header_is_judged_in_order() {
    let mut bytes = bytes();
    // Adds the defects to the same bytes from the last rule to the first, because the earliest violated rule must be
    // reported.
    let mut rows = Vec::new();
    let mut step = |bytes: &mut Vec<u8>, code, sealed: bool, change: &dyn Fn(&mut [u8])| {
        change(bytes);
        if sealed {
            seal(bytes);
        }
        rows.push((judge(bytes).unwrap_err(), code));
    };
    step(&mut bytes, "stats.clock_rate", true, &|b| put(b, 80, 0_u64));
    step(&mut bytes, "stats.truncated", true, &|b| put(b, 16, 1_u64 << 40));
    step(&mut bytes, "stats.used_size", true, &|b| put(b, 24, (1_u64 << 40) + 1));
    step(&mut bytes, "stats.directory", true, &|b| put(b, 40, 64_u64));
    step(&mut bytes, "stats.entry_size", true, &|b| put(b, 36, 31_u32));
    step(&mut bytes, "stats.header_size", true, &|b| put(b, 12, 127_u16));
    step(&mut bytes, "stats.header_crc", false, &|b| put(b, 120, 1_u32));
    step(&mut bytes, "stats.version", false, &|b| put(b, 8, 2_u16));
    step(&mut bytes, "stats.byte_order", false, &|b| put(b, 14, 0xFFFE_u16));
    step(&mut bytes, "stats.unknown_layout", false, &|b| put(b, 7, b'2'));
    for (found, expected) in rows {
        assert_eq!(found, expected);
    }
}

#[test]
fn directory_beyond_the_used_bytes_is_refused() {
    let reject =
        |change: &dyn Fn(&mut [u8])| assert_eq!(judge(&header(|b| change(b))), Err("stats.directory"));
    reject(&|b| put(b, 32, u32::MAX));
    reject(&|b| put(b, 40, u64::MAX - 100));
    reject(&|b| put(b, 24, 150_u64));
    reject(&|b| put(b, 36, u32::MAX));
}

#[test]
fn cut_files_are_truncated() {
    let bytes = bytes();
    for len in 8..bytes.len() {
        assert_eq!(judge(&bytes[..len]), Err("stats.truncated"), "{len}");
    }
    for len in 1..8 {
        assert_eq!(judge(&bytes[..len]), Err("stats.unknown_layout"), "{len}");
    }
    assert_eq!(judge(&[]), Err("stats.empty"));
    assert_eq!(judge(&[0; 1000]), Err("stats.empty"));
}

#[test]
fn section_out_of_place_is_refused() {
    assert_eq!(judge(&directory(Kind::Op, OFFSET, 24)), Err("stats.section_offset"));
    assert_eq!(judge(&directory(Kind::Op, RECORD, 47)), Err("stats.record_size"));
    assert_eq!(judge(&directory(Kind::Op, RECORD, 0)), Err("stats.record_size"));
    assert_eq!(judge(&directory(Kind::Meta, RECORD, 2)), Err("stats.record_size"));
    assert_eq!(judge(&directory(Kind::Op, COUNT, 5)), Err("stats.section_count"));
    assert_eq!(judge(&directory(Kind::Op, CAPACITY, 100)), Err("stats.section_overlap"));
    assert_eq!(judge(&directory(Kind::Op, OFFSET, 0)), Err("stats.section_overlap"));
    assert_eq!(judge(&directory(Kind::Op, OFFSET, 128)), Err("stats.section_overlap"));
    assert_eq!(judge(&directory(Kind::OpPmu, 0, Kind::Op.code())), Err("stats.duplicate_section"));
    let mut behind = bytes();
    let at = entry(&behind, Kind::Meta);
    put(&mut behind, at + CAPACITY, 1000_u32);
    put(&mut behind, at + COUNT, 1000_u32);
    assert_eq!(judge(&behind), Err("stats.section_end"));
    // A product of two 32-bit numbers that wraps 32 bits, and an end that wraps 64.
    let at = entry(&behind, Kind::Op);
    put(&mut behind, at + OFFSET, u64::MAX - 63);
    put(&mut behind, at + RECORD, u32::MAX);
    assert_ne!(judge(&behind), Ok(vec![]));
}

#[test]
fn order_between_the_later_rules() {
    // CRC (6) before the program (7) before the threads (8).
    let mut bytes = header(|b| put(b, 74, 3_u16));
    assert_eq!(judge(&bytes), Err("stats.thread_count"));
    put(&mut bytes, 48, 0_u64);
    seal(&mut bytes);
    assert_eq!(judge(&bytes), Err("stats.other_program"));
    let at = entry(&bytes, Kind::Ring) + 28;
    put(&mut bytes, at, 1_u32);
    assert_eq!(judge(&bytes), Err("stats.section_crc"));
}

#[test]
fn a_crc_of_zero_was_not_computed() {
    let mut bytes = bytes();
    let at = entry(&bytes, Kind::Meta);
    let start = usize::try_from(u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap())).unwrap();
    bytes[start + 2] ^= 1;
    assert_eq!(judge(&bytes), Err("stats.section_crc"));
    put(&mut bytes, at + 28, 0_u32);
    assert_eq!(judge(&bytes), Ok(vec![]));
}

#[test]
fn core_or_thread_number_out_of_range_is_refused() {
    assert_eq!(judge(&header(|b| put(b, 72, 2_u16))), Err("stats.core_count"));
    assert_eq!(judge(&header(|b| put(b, 74, 1_u16))), Err("stats.thread_count"));
    assert_eq!(judge_record(0, |core: &mut Core| core.core = 1), Err("stats.core_number"));
    assert_eq!(judge_record(0, |thread: &mut Thread| thread.thread = 2), Err("stats.core_number"));
    assert_eq!(judge_record(0, |thread: &mut Thread| thread.thread = 1), Err("stats.core_number"));
    assert_eq!(judge_record(0, |thread: &mut Thread| thread.core = 1), Err("stats.core_number"));
    assert_eq!(judge_record(0, |port: &mut Port| port.thread = 2), Err("stats.core_number"));
    assert_eq!(judge_record(0, |ring: &mut Ring| ring.core = 1), Err("stats.core_number"));
    assert_eq!(judge_record(0, |pmu: &mut Pmu| pmu.core = 1), Err("stats.core_number"));
    assert_eq!(judge_record(0, |pmu: &mut Pmu| pmu.valid_count = 9), Err("stats.pmu_count"));
}

#[test]
fn operation_range_out_of_bounds_is_refused() {
    assert_eq!(judge_record(1, |thread: &mut Thread| thread.first_op = 1), Err("stats.op_ranges"));
    assert_eq!(judge_record(1, |thread: &mut Thread| thread.first_op = 3), Err("stats.op_ranges"));
    assert_eq!(judge_record(1, |thread: &mut Thread| thread.op_count = 3), Err("stats.op_ranges"));
    assert_eq!(judge_record(1, |thread: &mut Thread| thread.op_count = u32::MAX), Err("stats.op_ranges"));
    assert_eq!(judge_record(1, |thread: &mut Thread| thread.op_count = 1), Err("stats.ops_unclaimed"));
    assert_eq!(judge_record(1, |op: &mut Op| op.thread = 1), Err("stats.op_thread"));
}

#[test]
fn operation_outside_the_descriptor_is_refused() {
    assert_eq!(judge_record(1, |op: &mut Op| op.oc = 4), Err("stats.unknown_op"));
    assert_eq!(judge_record(1, |op: &mut Op| op.oc = 1), Err("stats.op_group"));
    assert_eq!(judge_record(0, |values: &mut OpPmu| values.op = 4), Err("stats.op_index"));
    // The records cannot be compared with the operations of another program.
    let bytes = encode_to_vec(&model(), [8; 16]).unwrap();
    assert_eq!(judge(&bytes), Err("stats.other_program"));
    let program = ProgramOperations { ops: Arc::default(), fingerprint: fingerprint(b"") };
    let options = DecodeOptions { any_program: true, ..DecodeOptions::default() };
    assert!(decode(&bytes, Some(&program), None, options).is_ok());
}

#[test]
fn counter_that_decreases_is_refused() {
    const CODE: Result<Vec<String>, &str> = Err("stats.counter_order");
    assert_eq!(judge_record(0, |core: &mut Core| core.end_u = 99), CODE);
    assert_eq!(judge_record(1, |thread: &mut Thread| thread.end_u = 99), CODE);
    assert_eq!(judge_record(1, |thread: &mut Thread| thread.act_start_u = 1), CODE);
    assert_eq!(judge_record(0, |port: &mut Port| port.first_ring_u = 1), CODE);
    assert_eq!(judge_record(1, |op: &mut Op| op.start_u = u64::MAX - 5), CODE);
    assert_eq!(judge_record(1, |op: &mut Op| op.start_u = 4), CODE);
}

#[test]
fn unusual_records_give_warnings() {
    let warns = |result: Result<Vec<String>, &'static str>, words: &str| {
        let warnings = result.unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(words), "{warnings:?}");
    };
    warns(judge_record(1, |op: &mut Op| op.start_u = 192), "outside");
    // One tick is rounding.
    assert_eq!(judge_record(1, |op: &mut Op| op.start_u = 191), Ok(vec![]));
    assert_eq!(judge_record(0, |op: &mut Op| op.start_u = 99), Ok(vec![]));
    warns(judge_record(0, |op: &mut Op| op.start_u = 98), "outside");
    warns(judge_record(0, |op: &mut Op| op.start_u = 131), "start before");
    warns(judge_record(0, |op: &mut Op| op.barrier_u = u32::MAX), "saturated");
    let flagged = judge_record(0, |op: &mut Op| {
        op.barrier_u = u32::MAX;
        op.flags = OpFlags::BARRIER_SATURATED;
    });
    assert_eq!(flagged, Ok(vec![]));
    warns(judge_record(0, |pmu: &mut Pmu| pmu.reserved = 1), "reserved");
    warns(judge_record(0, |values: &mut OpPmu| values.reserved = 1), "reserved");
    warns(judge_record(0, |port: &mut Port| port.flags = 1), "reserved");
    warns(judge(&directory(Kind::Op, 4, 1)), "flags");
    warns(judge_model(|model| model.run.batch_size = 0), "batch size");
    warns(judge_model(|model| model.set(Kind::Meta, b"\xff".as_slice(), 1)), "META");
    warns(judge(&[bytes(), vec![0]].concat()), "not read");
}

#[test]
fn records_are_read_only_when_asked() {
    let mut model = model();
    model.set_records([Op { oc: 99, thread: 1, ..Op::default() }; 4]);
    let bytes = encode_to_vec(&model, HASH).unwrap();
    let options = DecodeOptions { records: false, ..DecodeOptions::default() };
    assert_eq!(decode(&bytes, None, None, options).unwrap().records::<Op>().len(), 4);
    assert_eq!(judge(&bytes), Err("stats.unknown_op"));
}

#[test]
fn unknown_layout_name_is_refused_with_the_known_one() {
    let named = |name| {
        decode(&bytes(), None, Some(name), DecodeOptions::default()).map(|model| model.records::<Op>().len())
    };
    assert_eq!(named("oqstats"), Ok(4));
    let error = named("card").unwrap_err();
    assert_eq!(error.to_string(), "unknown layout \"card\"; known: oqstats");
    let other = decode(&[1; 200], None, Some("oqstats"), DecodeOptions::default()).unwrap_err();
    assert_eq!(other.code(), "stats.bad_magic");
}

/// The files of `tests/data/hostile/stats`: each is refused with its code in the list of the folder.
#[test]
fn hostile_files_are_refused_for_their_reason() {
    let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/hostile/stats");
    let list = std::fs::read_to_string(folder.join("expected.txt")).unwrap();
    for (file, code) in list.lines().map(|line| line.split_once(' ').unwrap()) {
        let bytes = std::fs::read(folder.join(file)).unwrap();
        let read = decode(&bytes, None, None, DecodeOptions::default());
        assert_eq!(read.map_err(|error| error.code()).err(), Some(code), "{file}");
    }
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let buffers = files.filter(|path| path.extension().is_some_and(|extension| extension == "bin")).count();
    assert_eq!(buffers, list.lines().count(), "a file is not listed, or listed twice");
}
