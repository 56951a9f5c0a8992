//! The open layout: the published header, the directory, writing and reading back.

use qaic_stats::decode::descriptor::fingerprint;
use qaic_stats::decode::oqstats::{self, Header};
use qaic_stats::decode::{Core, DecodeOptions, Kind, Op, OpPmu, Thread, decode};
use qaic_stats::{DeviceKind, Run, RunFlags, StatsModel};

const HEADER: &str = "4f51535441545331 01000000 8000fffe 8002000000000000 8002000000000000
    04000000 20000000 8000000000000000 e3b0c44298fc1c149afbf4c8996fb924
    01000000 46000100 01000200 01000000 00ca9a3b00000000 a5f7653a6ffbe918
    0300000000000000 00000000 00000000 00000000 01000000 b8a7cbb4 00000000";
/// The first entry of the directory of the same buffer.
const ENTRY: &str = "01000000 00000000 0001000000000000 40000000 01000000 01000000 00000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16).unwrap()).unwrap();
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn run() -> Run {
    Run {
        stats_level: 70,
        op_stats_level: 1,
        cores: 1,
        threads_per_core: 2,
        batch_size: 1,
        ucycle_hz: 1_000_000_000,
        epoch_utc_ns: u64::from_le_bytes(bytes("a5f7653a6ffbe918").try_into().unwrap()),
        inference: 3,
        device: DeviceKind::Cpu,
        ..Run::default()
    }
}

fn model(ops: u32) -> StatsModel<'static> {
    let mut model = StatsModel::new(run());
    model.set_records([Core { end_u: 100, ..Core::default() }]);
    let half = ops / 2;
    model.set_records([
        Thread { end_u: 1000, op_count: half, ..Thread::default() },
        Thread { thread: 1, end_u: 1000, first_op: half, op_count: ops - half, ..Thread::default() },
    ]);
    model.set_records((0..ops).map(|oc| Op {
        oc,
        thread: u8::from(oc >= half),
        start_u: u64::from(oc),
        dur_u: 1,
        ..Op::default()
    }));
    model
}

#[test]
fn writes_and_reads_the_published_header() {
    let header = Header::new(run(), fingerprint(b""), 4, 640, 640);
    assert_eq!(header.write().to_vec(), bytes(HEADER));
    let mut buffer = bytes(HEADER);
    buffer.resize(640, 0);
    assert_eq!(Header::read(&buffer).unwrap(), header);
}

#[test]
fn writes_the_published_directory_entry() {
    let mut model = model(2);
    model.set(Kind::Meta, b"{}".as_slice(), 1);
    let buffer = oqstats::encode_to_vec(&model, fingerprint(b"")).unwrap();
    // The written entry has the CRC that the sample lacks.
    assert_eq!(buffer[128..156], bytes(ENTRY)[..28]);
    assert_eq!(buffer.len(), 640);
    assert_eq!(buffer[156..160], crc32fast::hash(&buffer[256..320]).to_le_bytes());
}

#[test]
fn reading_borrows_the_records() {
    let buffer = oqstats::encode_to_vec(&model(10), fingerprint(b"")).unwrap();
    let read = decode(&buffer, None, None, DecodeOptions::default()).unwrap();
    let (ops, stride) = read.section(Kind::Op).unwrap();
    assert_eq!(stride, 48);
    assert!(buffer.as_ptr_range().contains(&ops.as_ptr()));
    assert_eq!(read.records::<Op>().get(9).unwrap().oc, 9);
    assert!(read.warnings.is_empty(), "{:?}", read.warnings);
}

#[test]
fn operations_that_do_not_fit_are_cut_with_their_threads() {
    let mut model = model(20);
    model.run.flags = RunFlags::COMPLETE;
    model.set_records((0..20).map(|op| OpPmu { op, value: [u64::from(op); 8], ..OpPmu::default() }));
    let whole = oqstats::encode_to_vec(&model, fingerprint(b"")).unwrap();
    for size in (0..=whole.len()).rev() {
        let mut buffer = vec![0; size];
        let Ok(used) = oqstats::encode(&model, fingerprint(b""), &mut buffer) else {
            let needed = oqstats::capacity_bytes(&[
                (Kind::Core, 1),
                (Kind::Thread, 2),
                (Kind::Op, 0),
                (Kind::OpPmu, 0),
            ]);
            assert!(u64::try_from(size).unwrap() < needed.unwrap());
            break;
        };
        assert!(used <= u64::try_from(size).unwrap());
        let read = decode(&buffer, None, None, DecodeOptions::default()).unwrap();
        let ops = read.records::<Op>().len();
        let complete = ops == 20;
        assert_eq!(read.run.flags.contains(RunFlags::COMPLETE), complete);
        assert_eq!(!read.run.flags.contains(RunFlags::OPS_TRUNCATED), complete);
        assert_eq!(read.records::<OpPmu>().len(), ops);
        assert!(
            read.records::<Op>()
                .iter()
                .zip(model.records::<Op>().iter())
                .all(|(read, written)| read == written)
        );
        // One more record does not fit.
        if !complete {
            let counts = [(Kind::Core, 1), (Kind::Thread, 2), (Kind::Op, ops + 1), (Kind::OpPmu, ops + 1)];
            assert!(oqstats::capacity_bytes(&counts).unwrap() > u64::try_from(size).unwrap());
        }
    }
}

#[test]
fn nothing_of_an_earlier_inference_stays() {
    let fresh = |model: &StatsModel<'_>| {
        let mut buffer = vec![0; 4096];
        oqstats::encode(model, fingerprint(b""), &mut buffer).unwrap();
        buffer
    };
    let mut used = fresh(&model(60));
    oqstats::encode(&model(3), fingerprint(b""), &mut used).unwrap();
    assert_eq!(used, fresh(&model(3)));
    let mut foreign = vec![0xA5; 4096];
    oqstats::encode(&model(3), fingerprint(b""), &mut foreign).unwrap();
    assert_eq!(foreign, fresh(&model(3)));
}
