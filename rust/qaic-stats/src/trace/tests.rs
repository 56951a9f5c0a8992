//! Properties that readers of traces rely on, one test for each, with captures that this file creates. A JSON
//! parser reads the traces, and a protobuf decoder reads Perfetto's.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // times in tests are small

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::decode::descriptor::{CoreOps, Dependency, OpDesc, Transfer};
use crate::decode::record::{Core, Op, OpFlags, OpKindFlags, Thread};
use crate::model::{DeviceKind, Run};

const START: u64 = 9_803_252_406_782;

pub(super) fn text(parts: &[Part<'_>], trace: Option<&HostTrace<'_>>, options: &TraceOptions<'_>) -> String {
    let mut out = Vec::new();
    write_trace(&mut out, parts, &HostSide { trace, ..HostSide::default() }, options).unwrap();
    String::from_utf8(out).unwrap()
}

pub(super) fn events(text: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).unwrap();
    file["traceEvents"].as_array().unwrap().clone()
}

pub(super) fn part<'a>(capture: &'a (StatsModel<'static>, OpsDescriptor), slice: Option<u16>) -> Part<'a> {
    Part { model: &capture.0, descriptor: &capture.1, network: "QAicGraph", slice }
}

/// Two cores; HVX with two threads, HMX with one. On each core three operations: a copy, a convolution that needs it, and
/// an element-wise operation by both HVX threads that needs the convolution.
pub(super) fn capture() -> (StatsModel<'static>, OpsDescriptor) {
    let op = |name: &str, kind: &str, group, deps: &[(u32, bool)], core| OpDesc {
        name: format!("{name}/__{group}"),
        kind: kind.into(),
        group,
        memory: "TCM".into(),
        types: "float16".into(),
        output_bytes: 79_872,
        operands: vec!["in [TCM] Dest x float16 <1 x 2> 1KB".into()],
        attributes: "{Kernels: [1, 1]}".into(),
        deps: deps.iter().map(|&(oc, data)| Dependency { core, oc, data }).collect(),
        ..OpDesc::default()
    };
    let core = |core| CoreOps {
        slice: 0,
        ops: vec![
            op("/copy", "aiccopytovtcm", 0, &[], core),
            op("/l0/MatMul", "aicconvolutiond32", 1, &[(0, true)], core),
            op("/l0/Add \"x\"", "elementadd ", 0, &[(1, true), (0, false)], core),
        ],
    };
    let descriptor = OpsDescriptor {
        network: "QAicGraph".into(),
        groups: vec!["HVX".into(), "HMX".into()],
        thread_groups: vec![0, 0, 1],
        cores: vec![core(0), core(1)],
        ..OpsDescriptor::default()
    };
    let mut model = StatsModel::new(Run {
        cores: 2,
        threads_per_core: 3,
        ucycle_hz: 19_200_000,
        device: DeviceKind::Ai100,
        ..Run::default()
    });
    let (mut cores, mut threads, mut ops) = (Vec::new(), Vec::new(), Vec::new());
    for core in 0..2_u16 {
        let start = START + u64::from(core) * 7;
        cores.push(Core { core, start_u: start, end_u: start + 5000, ..Core::default() });
        let one = |thread, oc, at, dur_u, sync_u, flags| Op {
            oc,
            core,
            thread,
            kflags: OpKindFlags::EXECUTED,
            start_u: start + at,
            dur_u,
            sync_u,
            barrier_u: 5,
            flags: OpFlags::PCYCLES | flags,
            pcycles: u64::from(dur_u) * 70,
            ..Op::default()
        };
        let barrier = OpFlags::BARRIER;
        let of_threads = [
            vec![
                one(0, 0, 0, 100, 0, barrier),
                Op {
                    kflags: OpKindFlags::EXECUTED | OpKindFlags::ASYNC_TRANSFER,
                    dur_u: 300,
                    ..one(0, 0, 20, 300, 0, OpFlags::empty())
                },
                one(0, 2, 2900, 50, 40, barrier | OpFlags::SYNC),
            ],
            vec![one(1, 0, 0, 90, 0, barrier), one(1, 2, 2901, 55, 41, barrier | OpFlags::SYNC)],
            vec![one(2, 1, 200, 2606, 48, OpFlags::SYNC)],
        ];
        for (number, records) in (0_u8..).zip(of_threads) {
            threads.push(Thread {
                core,
                thread: number,
                engine: number / 2,
                start_u: start,
                end_u: start + 5000,
                first_op: u32::try_from(ops.len()).unwrap(),
                op_count: u32::try_from(records.len()).unwrap(),
                ..Thread::default()
            });
            ops.extend(records);
        }
    }
    model.set_records(cores);
    model.set_records(threads);
    model.set_records(ops);
    (model, descriptor)
}

pub(super) fn everything() -> TraceOptions<'static> {
    TraceOptions { flow_events: true, barrier_events: true, ..TraceOptions::default() }
}

pub(super) fn arg<'v>(event: &'v Value, key: &str) -> &'v str {
    event["args"][key].as_str().unwrap_or_else(|| panic!("{key} of {event}"))
}

pub(super) fn track_names(events: &[Value]) -> HashMap<(u64, u64), String> {
    let named = events.iter().filter(|event| event["ph"] == "M" && event["name"] == "thread_name");
    named.map(|event| (track(event), arg(event, "name").to_owned())).collect()
}

pub(super) fn track(event: &Value) -> (u64, u64) {
    (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())
}

pub(super) fn is_op(event: &Value) -> bool {
    event["ph"] == "X" && event["args"].get("opName").is_some()
}

/// A time of the trace in nanoseconds; the text has exactly three decimals.
pub(super) fn ns(value: &Value) -> i64 {
    (value.as_f64().unwrap() * 1000.0).round() as i64
}

#[test]
fn json_of_the_documented_events_has_the_documented_lines() {
    let capture = capture();
    let found = text(&[part(&capture, None)], None, &everything());
    for line in [
        r#"{"name": "thread_name", "ph": "M", "pid": 1, "tid": 2, "args": {"name": "QAicGraph_Core_0"}},"#,
        r#"{"name": "Core-0-Execution", "cat": "aic", "ph": "X", "ts": 0.000, "dur": 260.416, "pid": 1, "tid": 2, "args": {}},"#,
        r#"{"name": "sync HMX", "cat": "aic", "ph": "X", "ts": 7.916, "dur": 0, "pid": 1, "tid": 6, "args": {"oc" : "1", "opSyncDurUs" : "2.500"}},"#,
        r#"{"name": "aicconvolutiond32", "cat": "aic", "ph": "X", "ts": 10.416, "dur": 135.729, "pid": 1, "tid": 6, "args": {"opName" : "/l0/MatMul/__1", "opKind" : "aicconvolutiond32", "opMemory" : "TCM", "oc" : "1", "opUCycle" : "2606", "opPCycle" : "182420", "opOutputSize" : "79872", "PCyclesPerKB" : "2338.72", "UCyclesPerKB" : "33.41", "effectiveFreq" : "1344.000", "opAttributes" : "{Kernels: [1, 1]}", "opOperand0" : "in [TCM] Dest x float16 <1 x 2> 1KB"}},"#,
        r#"{"name": "dep", "cat": "true", "ph": "f", "bp": "e", "id": 1, "ts": 10.416, "pid": 1, "tid": 6, "args": {"oc" : "1"}},"#,
    ] {
        assert!(found.lines().any(|known| known == line), "{line}\nis not in\n{found}");
    }
}

#[test]
fn json_has_one_event_a_line() {
    let capture = capture();
    let found = text(&[part(&capture, None)], None, &everything());
    let lines: Vec<&str> = found.lines().collect();
    assert!(lines[0].ends_with("\"traceEvents\": [") && !lines[0].contains("\"ph\""));
    let of_events = &lines[1..lines.len() - 1];
    for (place, line) in of_events.iter().enumerate() {
        assert!(line.starts_with('{') && line.contains("\"ph\""), "{line}");
        assert_eq!(line.ends_with(','), place + 1 < of_events.len());
        assert!(serde_json::from_str::<Value>(line.trim_end_matches(',')).unwrap().is_object());
    }
    assert_eq!(events(&found).len(), of_events.len());
}

#[test]
fn json_has_the_substrings_that_tools_search() {
    let capture = capture();
    let found = text(&[part(&capture, None)], None, &everything());
    let parsed = events(&found);
    let count = |pattern: &str| found.lines().filter(|line| line.contains(pattern)).count();
    let of = |test: &dyn Fn(&Value) -> bool| parsed.iter().filter(|event| test(event)).count();
    assert_eq!(count(r#""ph": "X""#), of(&|event| event["ph"] == "X"));
    let named = |what: &'static str| move |event: &Value| event["name"].as_str().unwrap().starts_with(what);
    assert_eq!((count(r#""name": "sync "#), 4), (of(&named("sync ")), 4));
    assert_eq!((count(r#""name": "barrier "#), 4), (of(&named("barrier ")), 4));
    for key in ["opName", "opOutputSize", "opUCycle"] {
        assert_eq!(count(&format!("\"{key}\" : \"")), of(&is_op));
    }
    let quoted = |event: &Value| event["args"].as_object().unwrap().values().all(Value::is_string);
    assert!(parsed.iter().all(quoted));
}

#[test]
fn json_has_numbers_for_times() {
    let capture = capture();
    let found = text(&[part(&capture, None)], None, &everything());
    for line in found.lines().filter(|line| line.contains("\"ph\"")) {
        assert_eq!(line.matches("\"tid\": ").count(), 1, "{line}");
    }
    for event in events(&found) {
        assert!(event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        assert_eq!(event["ph"] != "M", event["ts"].is_number(), "{event}");
        assert_eq!(event["ph"] == "X", event["dur"].is_number(), "{event}");
    }
}

#[test]
fn json_names_every_track() {
    let capture = capture();
    let found = events(&text(&[part(&capture, Some(2))], None, &everything()));
    let names = track_names(&found);
    assert!(found.iter().all(|event| names.contains_key(&track(event))));
    let all: HashSet<&str> = names.values().map(String::as_str).collect();
    let mut expected = vec!["QAicGraph_slice02_Device".to_owned()];
    for core in 0..2 {
        for suffix in ["", "_HVX", "_HVX_DMA", "_HVX_Barrier", "_HMX"] {
            expected.push(format!("QAicGraph_slice02_Core_{core}{suffix}"));
        }
    }
    assert_eq!(all, expected.iter().map(String::as_str).collect());
    for core in 0..2 {
        let on_track = found.iter().filter(|event| {
            event["ph"] == "X" && names[&track(event)] == format!("QAicGraph_slice02_Core_{core}")
        });
        let spans: Vec<&Value> = on_track.collect();
        assert_eq!(spans.len(), 1);
        assert_eq!(spans[0]["name"], format!("Core-{core}-Execution"));
    }
}

#[test]
fn json_wait_ends_where_its_operation_begins() {
    let capture = capture();
    let found = events(&text(&[part(&capture, None)], None, &everything()));
    let ops: HashMap<_, _> = found
        .iter()
        .filter(|event| is_op(event))
        .map(|event| ((track(event), arg(event, "oc")), event))
        .collect();
    assert_eq!(ops.len(), found.iter().filter(|event| is_op(event)).count(), "an oc is unique on its track");
    let mut last_end: HashMap<(u64, u64), i64> = HashMap::new();
    for sync in found.iter().filter(|event| event["name"].as_str().unwrap().starts_with("sync ")) {
        assert_eq!(ns(&sync["dur"]), 0);
        let length: f64 = arg(sync, "opSyncDurUs").parse().unwrap();
        let end = ns(&sync["ts"]) + (length * 1000.0).round() as i64;
        let op = ops[&(track(sync), arg(sync, "oc"))];
        assert_eq!(end, ns(&op["ts"]));
        let before = last_end.insert(track(sync), end);
        assert!(before.is_none_or(|before| before <= ns(&sync["ts"])));
    }
    assert_eq!(last_end.len(), 4);
}

#[test]
fn json_flow_begins_before_it_ends() {
    let capture = capture();
    let captures = [part(&capture, Some(0)), part(&capture, Some(1))];
    let found = events(&text(&captures, None, &everything()));
    let names = track_names(&found);
    let mut open: HashMap<u64, &Value> = HashMap::new();
    let mut pairs = BTreeMap::new();
    for event in found.iter().filter(|event| event["name"] == "dep") {
        let id = event["id"].as_u64().unwrap();
        if event["ph"] == "s" {
            assert!(open.insert(id, event).is_none(), "an open number is used again");
        } else {
            let begin = open.remove(&id).expect("a flow begins before it ends");
            assert!(ns(&begin["ts"]) <= ns(&event["ts"]));
            assert!(names.contains_key(&track(begin)) && names.contains_key(&track(event)));
            let key = (arg(begin, "oc").to_owned(), arg(event, "oc").to_owned(), event["cat"].to_string());
            *pairs.entry(key).or_insert(0) += 1;
        }
    }
    assert!(open.is_empty());
    let pair = |from: &str, to: &str, cat: &str| ((from.to_owned(), to.to_owned(), format!("{cat:?}")), 4);
    let expected = [pair("0", "1", "true"), pair("0", "2", "false"), pair("1", "2", "true")];
    assert_eq!(pairs, expected.into());
}

#[test]
fn json_transfer_has_its_port() {
    let (model, mut descriptor) = capture();
    descriptor.cores[0].ops[0].transfer = Some(Transfer {
        port_type: "P2P".into(),
        port_description: "0->1,2".into(),
        transaction: "17".into(),
    });
    let found = text(&[part(&(model, descriptor), None)], None, &TraceOptions::default());
    assert!(found.contains(r#""PortDescription" : "0->1,2", "TransactionId" : "17""#));
}

#[test]
fn tracks_of_threads_are_named_after_them() {
    let capture = capture();
    let options = TraceOptions { merge_thread_groups: false, cores: Some(vec![1]), ..everything() };
    let found = events(&text(&[part(&capture, None)], None, &options));
    let names: HashSet<String> = track_names(&found).into_values().collect();
    let expected = [
        "_Device",
        "_Core_1",
        "_Core_1_HVX_0",
        "_Core_1_HVX_DMA_0",
        "_Core_1_HVX_Barrier_0",
        "_Core_1_HVX_1",
        "_Core_1_HVX_Barrier_1",
        "_Core_1_HMX_2",
    ];
    assert_eq!(names, expected.iter().map(|name| format!("QAicGraph{name}")).collect());
    assert_eq!(found.iter().filter(|event| is_op(event)).count(), 6);
}

#[test]
fn without_operations_there_are_cores_and_threads() {
    let (mut model, descriptor) = capture();
    let mut bare = StatsModel::new(model.run);
    bare.set_records(model.records::<Core>().iter());
    bare.set_records(model.records::<Thread>().iter());
    model = bare;
    let found = events(&text(&[part(&(model, descriptor), None)], None, &TraceOptions::default()));
    let spans: Vec<&str> = found
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| event["name"].as_str().unwrap())
        .collect();
    assert_eq!(spans.iter().filter(|name| name.starts_with("Thread-")).count(), 6);
}

#[test]
fn figures_that_were_not_measured_have_no_key() {
    let (mut model, mut descriptor) = capture();
    let records: Vec<Op> =
        model.records::<Op>().iter().map(|op| Op { flags: OpFlags::empty(), iteration: 3, ..op }).collect();
    model.set_records(records);
    descriptor.cores[0].ops[1].output_bytes = 0;
    let found = text(&[part(&(model, descriptor), None)], None, &everything());
    for key in ["opPCycle", "PCyclesPerKB", "effectiveFreq", "sync ", "barrier "] {
        assert!(!found.contains(key), "{key}");
    }
    assert!(found.contains(r#""opUCycle" : "2606", "opOutputSize" : "0", "iteration" : "3""#));
}

#[test]
fn a_dependency_of_a_loop_leads_from_the_pass_before() {
    let (_, mut descriptor) = capture();
    descriptor.cores.truncate(1);
    let mut model = StatsModel::new(Run { ucycle_hz: 1_000_000_000, ..Run::default() });
    model.set_records([Core { end_u: 10_000, ..Core::default() }]);
    model.set_records([Thread { engine: 1, end_u: 10_000, op_count: 6, ..Thread::default() }]);
    let ops = (0..6_u32).map(|place| Op {
        oc: place % 2,
        kflags: OpKindFlags::EXECUTED,
        start_u: u64::from(place) * 100,
        dur_u: 100,
        iteration: u16::try_from(place / 2).unwrap(),
        ..Op::default()
    });
    model.set_records(ops);
    let found = events(&text(&[part(&(model, descriptor), None)], None, &everything()));
    let at = |phase: &str| -> Vec<i64> {
        found.iter().filter(|event| event["ph"] == phase).map(|event| ns(&event["ts"])).collect()
    };
    assert_eq!((at("s"), at("f")), (vec![99, 299, 499], vec![100, 300, 500]));
}

/// A consumer that began while its producer was still running.
#[test]
fn json_flow_never_leads_back_in_time() {
    let (_, mut descriptor) = capture();
    descriptor.cores.truncate(1);
    let mut model = StatsModel::new(Run { ucycle_hz: 1_000_000_000, ..Run::default() });
    model.set_records([Core { end_u: 10_000, ..Core::default() }]);
    model.set_records([Thread { engine: 1, end_u: 10_000, op_count: 2, ..Thread::default() }]);
    model.set_records([(0, 0_u64, 500_u32), (1, 100, 50)].map(|(oc, start_u, dur_u)| Op {
        oc,
        kflags: OpKindFlags::EXECUTED,
        start_u,
        dur_u,
        ..Op::default()
    }));
    let found = events(&text(&[part(&(model, descriptor), None)], None, &everything()));
    let ends = found.iter().filter(|event| event["name"] == "dep").map(|event| ns(&event["ts"]));
    assert_eq!(ends.collect::<Vec<_>>(), [100, 100]);
}

#[test]
fn a_host_trace_lies_beside_the_device_on_the_wall_clock() {
    let (mut model, descriptor) = capture();
    model.run.epoch_utc_ns = 1_700_000_000_000_000_000;
    let capture = (model, descriptor);
    let device_start = 1_700_000_000_000_000_000 + i128::from(START) * 625 / 12;
    let host = format!(
        r#"{{"otherData": {{"epoch_utc_ns": {}}}, "traceEvents": [
        {{"ph": "M", "name": "thread_name", "pid": 1, "tid": 9, "args": {{"name": "HOST"}}}},
        {{"ph": "X", "name": "say \"run\"", "pid": 1, "tid": 9, "ts": 100.5, "dur": 20, "args": {{"n": [1, "a"]}}}},
        {{"ph": "i", "name": "note", "pid": "main", "tid": "worker", "ts": 300, "s": "t"}},
        {{"name": "nothing"}}, 7, {{"ph": "X", "ts": "soon"}}]}}"#,
        device_start - 200_000
    );
    let host = HostTrace::open(host.as_bytes()).unwrap();
    let found = text(&[part(&capture, None)], Some(&host), &TraceOptions::default());
    let line = r#"{"name": "say \"run\"", "ph": "X", "ts": 0.000, "pid": 1000001, "tid": 9, "dur": 20, "args": {"n" : [1, "a"]}},"#;
    assert!(found.contains(line), "{found}");
    let parsed = events(&found);
    let start = parsed.iter().find(|event| event["name"] == "Core-0-Execution").unwrap();
    assert_eq!(ns(&start["ts"]), 99_500);
    let note = parsed.iter().find(|event| event["name"] == "note").unwrap();
    assert_eq!(ns(&note["ts"]), 199_500);
    let names = track_names(&parsed);
    assert!(parsed.iter().all(|event| names.contains_key(&track(event))));
    assert_eq!(names[&(1_000_001, 9)], "HOST");
    let origin =
        serde_json::from_str::<Value>(&found).unwrap()["otherData"]["epoch_utc_ns"].as_i64().unwrap();
    assert_eq!(i128::from(origin), device_start - 99_500);
}

#[test]
fn samples_of_the_host_lie_beside_the_device() {
    let (mut model, descriptor) = capture();
    let epoch = 1_700_000_000_000_000_000;
    model.run.epoch_utc_ns = epoch;
    let start_ns = START * 625 / 12;
    let sample = HostSample {
        inference: 3,
        enqueued_ns: start_ns - 4000,
        begun_ns: start_ns - 3000,
        inputs_ready_ns: start_ns,
        executed_ns: start_ns + 300_000,
        outputs_ready_ns: start_ns + 301_000,
        completed_ns: start_ns + 302_000,
        ..HostSample::default()
    };
    let host = HostSide { samples: &[sample], epoch_utc_ns: epoch, trace: None };
    let mut out = Vec::new();
    write_trace(&mut out, &[part(&(model, descriptor), None)], &host, &TraceOptions::default()).unwrap();
    let found = events(std::str::from_utf8(&out).unwrap());
    let names = track_names(&found);
    let on_host: Vec<(&str, i64, i64)> = found
        .iter()
        .filter(|event| event["ph"] == "X" && names[&track(event)].starts_with("Program 0"))
        .map(|event| (event["name"].as_str().unwrap(), ns(&event["ts"]), ns(&event["dur"])))
        .collect();
    let expected = [
        ("total", 0, 306_000),
        ("enqueue", 0, 1000),
        ("preProcess", 1000, 3000),
        ("device", 4000, 300_000),
        ("postProcess", 304_000, 1000),
    ];
    assert_eq!(on_host, expected);
    let core = found.iter().find(|event| event["name"] == "Core-0-Execution").unwrap();
    assert_eq!(ns(&core["ts"]), 4000);
}

#[test]
fn a_host_trace_that_was_cut_off_is_shown_as_far_as_it_goes() {
    let host = br#"[{"ph": "X", "name": "a", "pid": 4, "tid": 5, "ts": 7, "dur": 1}, {"ph": "X", "na"#;
    let host = HostTrace::open(host).unwrap();
    let found = events(&text(&[], Some(&host), &TraceOptions::default()));
    assert_eq!(found.len(), 2);
    assert_eq!((&found[0]["name"], &found[0]["ts"], &found[0]["pid"]), (&"a".into(), &0.0.into(), &4.into()));
}

#[test]
fn rejects_what_is_no_host_trace() {
    let deep = "[".repeat(100_000);
    for bytes in [&b""[..], b"hello", b"{}", b"{\"traceEvents\": 3}", b"[", deep.as_bytes(), b"\xff\xfe"] {
        let error = HostTrace::open(bytes).unwrap_err();
        assert_eq!(error.code(), "stats.host_trace");
    }
}

#[derive(Debug)]
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn trace_to_a_full_disk_fails() {
    let capture = capture();
    for format in [TraceFormat::Json, TraceFormat::Perfetto] {
        let options = TraceOptions { format, ..everything() };
        let error = write_trace(Full, &[part(&capture, None)], &HostSide::default(), &options).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}

/// One thread whose operations follow each other, some inside others.
fn sequences() -> impl Strategy<Value = Vec<(u32, u32, u32, u32)>> {
    prop::collection::vec((0_u32..3, 0_u32..400, 1_u32..500, 0_u32..200), 0..60)
}

proptest! {
    #[test]
    fn events_are_the_records(records in sequences(), hz in prop::sample::select(vec![19_200_000_u64, 1_000_000_000, 3_333_333])) {
        let (_, descriptor) = capture();
        let mut at = START;
        let mut ops = Vec::new();
        for (oc, gap, dur_u, sync_u) in records {
            let start_u = at + u64::from(gap);
            at = start_u + u64::from(dur_u);
            ops.push(Op {
                oc,
                thread: 2,
                kflags: OpKindFlags::EXECUTED,
                start_u,
                dur_u,
                sync_u: sync_u.min(gap),
                flags: OpFlags::SYNC | OpFlags::PCYCLES,
                pcycles: u64::from(dur_u) * 3,
                ..Op::default()
            });
        }
        let mut model = StatsModel::new(Run { ucycle_hz: hz, ..Run::default() });
        model.set_records([Core { start_u: START, end_u: at, ..Core::default() }]);
        let op_count = u32::try_from(ops.len()).unwrap();
        model.set_records([Thread { thread: 2, engine: 1, start_u: START, end_u: at, op_count, ..Thread::default() }]);
        model.set_records(ops.clone());
        let found = events(&text(&[part(&(model, descriptor), None)], None, &TraceOptions::default()));
        let shown: Vec<&Value> = found.iter().filter(|event| is_op(event)).collect();
        prop_assert_eq!(shown.len(), ops.len());
        let mut last_end = 0;
        for (event, op) in shown.iter().zip(&ops) {
            prop_assert_eq!(arg(event, "oc"), op.oc.to_string());
            prop_assert_eq!(arg(event, "opUCycle"), op.dur_u.to_string());
            let exact_us = (op.start_u - START) as f64 * 1e6 / hz as f64;
            prop_assert!((event["ts"].as_f64().unwrap() - exact_us).abs() < 0.0011);
            prop_assert!((event["dur"].as_f64().unwrap() - f64::from(op.dur_u) * 1e6 / hz as f64).abs() < 0.0011);
            prop_assert!(ns(&event["ts"]) >= last_end, "events of a thread do not overlap");
            last_end = ns(&event["ts"]) + ns(&event["dur"]);
        }
        let core = found.iter().find(|event| event["name"] == "Core-0-Execution").unwrap();
        prop_assert!(last_end <= ns(&core["ts"]) + ns(&core["dur"]), "and lie inside their core");
    }

    #[test]
    fn host_trace_of_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(host) = HostTrace::open(&bytes) {
            events(&text(&[], Some(&host), &TraceOptions::default()));
        }
    }
}

#[test]
fn a_format_is_named_as_users_call_it() {
    assert_eq!(TraceFormat::from_name("json"), Some(TraceFormat::Json));
    assert_eq!(TraceFormat::from_name("perfetto"), Some(TraceFormat::Perfetto));
    assert_eq!(TraceFormat::from_name("JSON"), None);
}
