//! Opens any bytes as a stats buffer, creates every report and trace of it, then writes it again. Finds
//! panics, hangs, unbounded allocation, traces that are not JSON, and records that change.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_stats::decode::descriptor::{CoreOps, Dependency, OpDesc, OpsDescriptor};
use qaic_stats::decode::oqstats::{self, Header};
use qaic_stats::decode::{DecodeOptions, Kind, Op, ProgramOperations, Thread, columns, decode};
use qaic_stats::report::{SummaryOptions, write_summary};
use qaic_stats::{HostSide, Part, StatsModel, TraceFormat, TraceOptions, write_trace};

fuzz_target!(|bytes: &[u8]| {
    // A mutated byte must not hide the bytes after the CRCs.
    let mut fixed = bytes.to_vec();
    seal(&mut fixed);
    for bytes in [bytes, &fixed] {
        read(bytes);
    }
    let _ = ProgramOperations::from_json(bytes);
});

/// Corrects the header's CRC, and marks the CRCs of the sections as not computed.
fn seal(bytes: &mut [u8]) {
    if bytes.len() < 128 {
        return;
    }
    bytes[..8].copy_from_slice(&oqstats::MAGIC);
    let crc = crc32fast::hash(&bytes[..120]);
    bytes[120..124].copy_from_slice(&crc.to_le_bytes());
    let Ok(header) = Header::read(bytes) else { return };
    for entry in 0..u64::from(header.sections) {
        let at = (header.directory + entry * u64::from(header.entry_bytes)) as usize;
        bytes[at + 28..at + 32].fill(0);
    }
}

fn read(bytes: &[u8]) {
    let after = |oc| OpDesc { deps: vec![Dependency { core: 0, oc, data: true }], ..OpDesc::default() };
    let ops = (0..8_u32).map(|oc| after(oc.saturating_sub(1))).collect();
    let descriptor = OpsDescriptor {
        groups: vec!["A".to_owned()],
        thread_groups: vec![0],
        cores: vec![CoreOps { slice: 0, ops }],
        ..OpsDescriptor::default()
    };
    let fingerprint = oqstats::fingerprint_of(bytes).unwrap_or_default();
    let program = ProgramOperations { ops: descriptor.clone().into(), fingerprint };
    for records in [false, true] {
        for program in [None, Some(&program)] {
            let options = DecodeOptions { records, ..DecodeOptions::default() };
            if let Ok(model) = decode(bytes, program, None, options) {
                walk(&model, bytes);
                show(&model, &descriptor);
            }
        }
    }
}

/// Creates the reports and traces in every format.
fn show(model: &StatsModel<'_>, descriptor: &OpsDescriptor) {
    let mut out = Vec::new();
    write_summary(&mut out, model, descriptor, &SummaryOptions::default()).expect("memory takes everything");
    std::str::from_utf8(&out).expect("a summary is text");
    for format in [TraceFormat::Json, TraceFormat::Perfetto] {
        for merge_thread_groups in [true, false] {
            out.clear();
            let options = TraceOptions {
                format,
                merge_thread_groups,
                flow_events: true,
                barrier_events: true,
                ..TraceOptions::default()
            };
            let part = Part { model, descriptor, network: "net", slice: None };
            write_trace(&mut out, &[part], &HostSide::default(), &options).expect("memory takes everything");
            if format == TraceFormat::Json {
                serde_json::from_slice::<serde::de::IgnoredAny>(&out).expect("a trace is JSON");
            }
        }
    }
}

fn walk(model: &StatsModel<'_>, bytes: &[u8]) {
    let mut claimed = 0;
    for thread in model.records::<Thread>().iter() {
        let first = thread.first_op as usize;
        let ops = model.records::<Op>().slice(first..first + thread.op_count as usize);
        assert_eq!(ops.len(), thread.op_count as usize);
        claimed += ops.len();
    }
    assert_eq!(claimed, model.records::<Op>().len());
    let _ = (model.meta(), model.pmu_events());
    for kind in Kind::ALL {
        let Some((section, stride)) = model.section(kind) else { continue };
        assert!(section.is_empty() || bytes.as_ptr_range().contains(&section.as_ptr()));
        let names: Vec<&str> = kind.fields().iter().map(|field| field.name).collect();
        columns(kind, section, stride, &names, 0..64).expect("these are the names");
    }
    let written = oqstats::encode_to_vec(model, [0; 16]).expect("what was read can be written");
    let options = DecodeOptions { records: false, ..DecodeOptions::default() };
    let again = decode(&written, None, None, options).expect("what was written can be read");
    assert_eq!(again.run, model.run);
    assert!(again.records::<Op>().iter().eq(model.records::<Op>().iter()));
    assert!(again.records::<Thread>().iter().eq(model.records::<Thread>().iter()));
    // Half of the room: the buffer is too small, or whole operations are omitted.
    let mut half = vec![0; written.len() / 2];
    if oqstats::encode(model, [0; 16], &mut half).is_ok() {
        let cut = decode(&half, None, None, options).expect("what was cut can be read");
        assert!(
            cut.records::<Op>().iter().eq(model.records::<Op>().slice(0..cut.records::<Op>().len()).iter())
        );
    }
}
