//! The text, byte by byte, from the figures of the published sample.

use proptest::prelude::*;

use super::*;
use crate::decode::descriptor::{CoreOps, OpDesc};
use crate::decode::record::{
    Core, CoreFlags, Op, OpFlags, OpKindFlags, Pmu, PmuEvents, Port, Thread, ThreadFlags,
};
use crate::model::{DeviceKind, Run};

const START: u64 = 3_380_167_107_636;

fn text(model: &StatsModel<'_>, descriptor: &OpsDescriptor) -> String {
    text_with(model, descriptor, &SummaryOptions::default())
}

fn text_with(model: &StatsModel<'_>, descriptor: &OpsDescriptor, options: &SummaryOptions<'_>) -> String {
    let mut out = Vec::new();
    write_summary(&mut out, model, descriptor, options).unwrap();
    String::from_utf8(out).unwrap()
}

fn desc(kind: &str, group: u32, memory: &str, types: &str, output_bytes: u64) -> OpDesc {
    OpDesc {
        name: format!("/{kind}/__0"),
        kind: kind.into(),
        group,
        memory: memory.into(),
        types: types.into(),
        output_bytes,
        ..OpDesc::default()
    }
}

fn card(cores: Vec<Vec<OpDesc>>) -> OpsDescriptor {
    OpsDescriptor {
        network: "QAicGraph".into(),
        batch_size: 8,
        ucycles_per_ms: 19_200,
        groups: vec!["HVX".into(), "HMX".into(), "DMAIssue".into()],
        thread_groups: vec![0, 0, 0, 0, 1, 2],
        cores: cores.into_iter().map(|ops| CoreOps { slice: 0, ops }).collect(),
        ..OpsDescriptor::default()
    }
}

fn run() -> Run {
    Run {
        stats_level: 70,
        op_stats_level: 70,
        cores: 2,
        threads_per_core: 6,
        batch_size: 8,
        ucycle_hz: 19_200_000,
        device: DeviceKind::Ai100,
        ..Run::default()
    }
}

fn thread(core: u16, number: u8, start: u64, ticks: u64, pcycles: u64, ops: (u32, u32)) -> Thread {
    Thread {
        core,
        thread: number,
        engine: number.saturating_sub(3),
        flags: ThreadFlags::PCYCLES | ThreadFlags::ACTIVATION,
        start_u: start,
        end_u: start + ticks,
        pcycles,
        act_start_u: 100,
        act_end_u: 100 + 5000 + u64::from(number),
        first_op: ops.0,
        op_count: ops.1,
        ..Thread::default()
    }
}

fn op(core: u16, thread: u8, oc: u32, dur_u: u32, pcycles: u64) -> Op {
    Op {
        oc,
        core,
        thread,
        kflags: OpKindFlags::EXECUTED,
        start_u: START + u64::from(oc) * 1000,
        dur_u,
        flags: OpFlags::PCYCLES,
        pcycles,
        ..Op::default()
    }
}

/// Two cores of six threads with the totals that the sample prints.
fn sample() -> (StatsModel<'static>, OpsDescriptor) {
    let first = vec![
        desc("aicconvolutiond32", 1, "TCM", "i8, float16", 525_124 * 1024),
        desc("aicmulsplat ", 0, "TCM", "float16", 1024),
        desc("aicaddsplat ", 0, "DDR", "", 0),
        desc("aicmulsplat ", 0, "TCM", "float16, float16", 1024),
        desc("aicendcyclestats", 2, "DDR", "ui8", 885_384),
    ];
    let descriptor = card(vec![first, vec![]]);
    let mut ops = Vec::new();
    // The four HVX threads; the second one is the slowest in each operation.
    for number in 0..4_u8 {
        let less = if number == 1 { 0 } else { u32::from(number) + 1 };
        for (oc, dur, pcycles) in [(1_u32, 600, 531_u64), (2, 50, 44), (3, 400, 9)] {
            let mut one = op(0, number, oc, dur - less, pcycles - u64::from(less));
            one.flags |= OpFlags::BARRIER;
            one.barrier_u = less;
            ops.push(one);
        }
    }
    let mut gemm = op(0, 4, 0, 424_682, 15_612_581);
    (gemm.flags, gemm.sync_u) = (gemm.flags | OpFlags::SYNC, 244);
    ops.extend([gemm, op(0, 5, 4, 11, 799)]);
    let mut threads = Vec::new();
    for number in 0..6_u8 {
        let span = if number == 2 { 444_672 } else { 444_600 + u64::from(number) };
        let pcycles = if number == 2 { 28_559_104 } else { 28_554_498 + u64::from(number) };
        let place = if number < 4 { (u32::from(number) * 3, 3) } else { (8 + u32::from(number), 1) };
        threads.push(thread(0, number, START, span, pcycles, place));
    }
    for number in 0..6_u8 {
        threads.push(thread(1, number, START + 263, 444_414, 28_793_600, (14, 0)));
    }
    let mut model = StatsModel::new(run());
    let core = |core, start_u, ticks, pcycles| Core {
        core,
        flags: CoreFlags::PCYCLES,
        start_u,
        end_u: start_u + ticks,
        pcycles,
        ..Core::default()
    };
    model.set_records([core(0, START, 444_673, 28_559_169), core(1, START + 263, 444_414, 28_793_705)]);
    model.set_records(threads);
    model.set_records(ops);
    let port = |core, thread, port, direction, wait_u| Port {
        core,
        thread,
        direction,
        port,
        wait_u,
        ..Port::default()
    };
    model.set_records([
        port(0, 0, 101, Port::OUT, 12),
        port(0, 1, 100, Port::IN, 77),
        port(0, 0, 100, Port::IN, 345),
    ]);
    (model, descriptor)
}

#[test]
fn summary_of_the_sample_is_the_sample_text() {
    let (model, descriptor) = sample();
    let expected = "\
core  ucycles  ucycles(%)     pcycles  pcycles(%)  count      out KB  ucycles/KB  pcycles/KB  stddev(pc/KB)  opdetails
c0     424682      95.50%    15612581      54.67%      1   525124.00        0.81       29.73           0.00  aicconvolutiond32 HMX TCM (float16, i8)
c0       1000       0.22%         540       0.00%      2        2.00      500.00      270.00         261.00  aicmulsplat  HVX TCM (float16)
c0        244       0.05%         N/A         N/A      1         N/A         N/A         N/A            N/A  sync HMX
c0         50       0.01%          44       0.00%      1        0.00         N/A         N/A            N/A  aicaddsplat  HVX DDR 
c0         12       0.00%         N/A         N/A      3         N/A         N/A         N/A            N/A  barrier HVX
c0         11       0.00%         799       0.00%      1      864.63        0.01        0.92           0.00  aicendcyclestats DMAIssue DDR (ui8)

c0 total:          444672 ucycles        28559104 pcycles (thread max)
c0    t0 HVX               444600 ucycles [3380167107636, 3380167552236]        28554498 pcycles   0.00% utilization
c0    t1 HVX               444601 ucycles [3380167107636, 3380167552237]        28554499 pcycles   0.00% utilization
c0    t2 HVX               444672 ucycles [3380167107636, 3380167552308]        28559104 pcycles   0.00% utilization
c0    t3 HVX               444603 ucycles [3380167107636, 3380167552239]        28554501 pcycles   0.00% utilization
c0    t4 HMX               444604 ucycles [3380167107636, 3380167552240]        28554502 pcycles  54.68% utilization
c0    t5 DMAIssue          444605 ucycles [3380167107636, 3380167552241]        28554503 pcycles   0.00% utilization


c00t0 batch ucycles:           444600 [3380167107636,3380167552236]    pcycles:        28554498 
c00t1 batch ucycles:           444601 [3380167107636,3380167552237]    pcycles:        28554499 
c00t2 batch ucycles:           444672 [3380167107636,3380167552308]    pcycles:        28559104 
c00t3 batch ucycles:           444603 [3380167107636,3380167552239]    pcycles:        28554501 
c00t4 batch ucycles:           444604 [3380167107636,3380167552240]    pcycles:        28554502 
c00t5 batch ucycles:           444605 [3380167107636,3380167552241]    pcycles:        28554503 
c0: Total inference pcycle is 28559169
c0: Effective frequency is 1233.12MHz
c00t0p100 Host_IO_Port ucycles:              345
c00t1p100 Host_IO_Port ucycles:               77
c00t0p101 Host_IO_Port ucycles:               12
c00t0 activate ucycles:              5000
c00t1 activate ucycles:              5001
c00t2 activate ucycles:              5002
c00t3 activate ucycles:              5003
c00t4 activate ucycles:              5004
c00t5 activate ucycles:              5005

core  ucycles  ucycles(%)     pcycles  pcycles(%)  count      out KB  ucycles/KB  pcycles/KB  stddev(pc/KB)  opdetails

c1 total:          444414 ucycles        28793600 pcycles (thread max)
";
    let found = text(&model, &descriptor);
    assert!(found.starts_with(expected), "{found}");
    let tail = "\
c1: Total inference pcycle is 28793705
c1: Effective frequency is 1243.97MHz
";
    assert!(found.contains(tail), "{found}");
    let last = "\
c01t5 activate ucycles:              5005
total batch ucycles:           444677 [3380167107636, 3380167552313]
[QAicGraph] Device instance batch/s: (1/0.0231603): 43.1774
[QAicGraph] Device instance inf/s: (8/0.0231603): 345.419
max input wait ucycles:               345
max output wait ucycles:               12
";
    assert!(found.ends_with(last), "{found}");
}

#[test]
fn quotients_have_two_decimals() {
    let descriptor = card(vec![vec![desc("aicgather", 1, "DDR", "", 525_124 * 1024)]]);
    let mut model = StatsModel::new(run());
    model.set_records([Core { end_u: 1, ..Core::default() }]);
    model.set_records([thread(0, 4, START, 444_672, 28_559_104, (0, 1))]);
    model.set_records([op(0, 4, 0, 244_552, 244_552)]);
    let row = "c0     244552      55.00%      244552       0.86%      1   525124.00        0.47        0.47           0.00  aicgather HMX DDR \n";
    assert!(text(&model, &descriptor).contains(row));
}

#[test]
fn summary_of_a_cpu_buffer_has_measured_figures_only() {
    let descriptor = OpsDescriptor {
        network: "main".into(),
        groups: vec!["CPU".into()],
        thread_groups: vec![0],
        cores: vec![CoreOps { slice: 0, ops: vec![desc("FusedGemm", 0, "HOST", "float", 4096)] }],
        ..OpsDescriptor::default()
    };
    let mut model =
        StatsModel::new(Run { device: DeviceKind::Cpu, batch_size: 1, ucycle_hz: 19_200_000, ..run() });
    model.set_records([Core { start_u: 1000, end_u: 20_200, ..Core::default() }]);
    model.set_records([Thread {
        engine: 16,
        start_u: 1000,
        end_u: 20_200,
        op_count: 1,
        ..Thread::default()
    }]);
    model.set_records([Op { flags: OpFlags::empty(), start_u: 1000, ..op(0, 0, 0, 9600, 7) }]);
    model.set(
        crate::decode::record::Kind::Meta,
        br#"{"producer": "openqaic", "notes": ["x"], "nodes": 1}"#.as_slice(),
        1,
    );
    let expected = "\
device: CPU
nodes: 1
producer: openqaic

core  ucycles  ucycles(%)     pcycles  pcycles(%)  count      out KB  ucycles/KB  pcycles/KB  stddev(pc/KB)  opdetails
c0       9600      50.00%         N/A         N/A      1        4.00     2400.00         N/A            N/A  FusedGemm CPU HOST (float)

c0 total:           19200 ucycles             N/A pcycles (thread max)
c0    t0 CPU                19200 ucycles [1000, 20200]             N/A pcycles     N/A utilization


c00t0 batch ucycles:            19200 [1000,20200]    pcycles:             N/A 
c0: Total inference pcycle is N/A
c0: Effective frequency is N/A
c00t0 activate ucycles:               N/A
total batch ucycles:            19200 [1000, 20200]
[main] Device instance batch/s: (1/0.001): 1000
[main] Device instance inf/s: (1/0.001): 1000
max input wait ucycles:               N/A
max output wait ucycles:              N/A
";
    assert_eq!(text(&model, &descriptor), expected);
}

#[test]
fn counters_have_lines_after_the_activations() {
    let descriptor = card(vec![vec![]]);
    let mut model = StatsModel::new(run());
    let flags = CoreFlags::DDR | CoreFlags::MULTICAST;
    model.set_records([Core {
        flags,
        ddr_read_bytes: 5,
        ddr_write_bytes: 6,
        mc_read_bytes: 7,
        ..Core::default()
    }]);
    model.set_records([thread(0, 0, 1, 1, 1, (0, 0))]);
    model.set_records([PmuEvents { event: [0x3f, 0x200, 0x100, 0, 0, 0, 0, 0] }]);
    let pmu = |thread, valid_count, flags, value| Pmu { thread, valid_count, flags, value, ..Pmu::default() };
    model.set_records([pmu(0, 2, 0, [1, 10, 0, 0, 0, 0, 0, 0]), pmu(1, 2, 2, [2, 20, 0, 0, 0, 0, 0, 0])]);
    let lines = "\
c00t0 activate ucycles:              5000
c0: PMU 3F 3
c0: PMU 200 30 (wrapped)
c0: PMU 100 N/A
c0: DDR read bytes: 5 write bytes: 6
c0: Multicast read bytes: 7 write bytes: 0
total batch";
    let found = text(&model, &descriptor);
    assert!(found.contains(lines), "{found}");
    assert!(!found.contains("opdetails"), "no table where no operations were recorded");
}

#[test]
fn an_operation_is_counted_without_those_inside_it() {
    let descriptor = card(vec![vec![
        desc("Loop", 1, "HOST", "", 0),
        desc("Add", 1, "HOST", "", 0),
        desc("Relu", 1, "HOST", "", 0),
    ]]);
    let mut model = StatsModel::new(run());
    model.set_records([Core { end_u: 1, ..Core::default() }]);
    model.set_records([thread(0, 4, 0, 1000, 1000, (0, 4))]);
    let nested = OpKindFlags::EXECUTED | OpKindFlags::NESTED;
    model.set_records([
        Op { start_u: 0, ..op(0, 4, 0, 100, 100) },
        Op { start_u: 0, kflags: nested, ..op(0, 4, 1, 30, 20) },
        Op { start_u: 30, kflags: nested, iteration: 1, ..op(0, 4, 1, 30, 20) },
        Op { start_u: 100, ..op(0, 4, 2, 5, 5) },
    ]);
    let found = text(&model, &descriptor);
    let rows: Vec<String> = found
        .lines()
        .filter(|line| line.starts_with("c0   ") && line.contains("HOST"))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        rows,
        [
            "c0 60 6.00% 40 4.00% 2 0.00 N/A N/A N/A Add HMX HOST",
            "c0 40 4.00% 60 6.00% 1 0.00 N/A N/A N/A Loop HMX HOST",
            "c0 5 0.50% 5 0.50% 1 0.00 N/A N/A N/A Relu HMX HOST",
        ]
    );
    assert!(found.contains("10.50% utilization"), "{found}");
}

#[test]
fn transfers_are_no_work_of_their_thread() {
    let descriptor = card(vec![vec![desc("aiccopytovtcm", 1, "TCM", "", 0)]]);
    let mut model = StatsModel::new(run());
    model.set_records([Core { end_u: 1, ..Core::default() }]);
    model.set_records([thread(0, 4, 0, 1000, 1000, (0, 2))]);
    let kflags = OpKindFlags::EXECUTED | OpKindFlags::ASYNC_TRANSFER;
    model.set_records([op(0, 4, 0, 100, 100), Op { kflags, ..op(0, 4, 0, 900, 900) }]);
    let found = text(&model, &descriptor);
    assert!(found.contains("c0        100      10.00%         100      10.00%      1 "), "{found}");
    assert!(found.contains("  10.00% utilization"), "{found}");
}

#[test]
fn cores_may_have_their_threads_in_any_order() {
    let (mut model, descriptor) = sample();
    let expected = text(&model, &descriptor);
    let mut threads: Vec<Thread> = model.records::<Thread>().iter().collect();
    // The last six threads belong to the second core.
    threads.rotate_left(6);
    model.set_records(threads);
    assert_eq!(text(&model, &descriptor), expected);
}

/// The maximum number of the layout: quadratic work would exceed the time limit of the test.
#[test]
fn many_cores_cost_what_their_lines_cost() {
    let mut model = StatsModel::new(run());
    model.set_records((0..u16::MAX).map(|core| Core { core, end_u: 1, ..Core::default() }));
    model.set_records((0..u16::MAX).map(|core| thread(core, 0, 0, 1, 1, (0, 0))));
    let found = text(&model, &OpsDescriptor::default());
    assert_eq!(found.matches(" activate ucycles:").count(), usize::from(u16::MAX));
}

#[test]
fn chosen_cores_are_shown_alone() {
    let (model, descriptor) = sample();
    let options = SummaryOptions { cores: Some(vec![1]), observer: None };
    let found = text_with(&model, &descriptor, &options);
    assert!(!found.contains("c0 total") && found.contains("c1 total"));
    assert!(found.contains("total batch ucycles:           444677"));
}

#[derive(Debug)]
struct Stop;

impl ProgressObserver for Stop {
    fn passed(&self, _: &[u8]) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Interrupted))
    }
}

#[test]
fn summary_whose_observer_fails_ends() {
    let (model, descriptor) = sample();
    let options = SummaryOptions { cores: None, observer: Some(&Stop) };
    let error = write_summary(&mut Vec::new(), &model, &descriptor, &options).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
}

/// Executions by a group of `threads`: each runs its own operations, or all run the same with a few omitted.
fn executions(threads: usize) -> impl Strategy<Value = Vec<Vec<(u32, u16, u32)>>> {
    let one = || prop::collection::vec((0_u32..12, 0_u16..3, 0_u32..1000), 0..80);
    let left_out = prop::collection::vec((0..threads, 0_usize..80), 0..4);
    let alike = (one(), left_out).prop_map(move |(shared, left_out)| {
        let mut of_threads: Vec<Vec<_>> = (0..threads)
            .map(|thread| {
                let slower = u32::try_from(thread).unwrap() * 7 % 5;
                shared.iter().map(|&(oc, iteration, dur_u)| (oc, iteration, dur_u + slower)).collect()
            })
            .collect();
        for (thread, place) in left_out {
            if place < of_threads[thread].len() {
                of_threads[thread].remove(place);
            }
        }
        of_threads
    });
    prop_oneof![prop::collection::vec(one(), threads), alike]
}

proptest! {
    #[test]
    fn rows_add_up_to_the_longest_threads(of_threads in executions(4)) {
        // Nine operations are in the descriptor, three are not.
        let ops: Vec<OpDesc> = (0..9).map(|kind| desc(&format!("kind{kind}"), 0, "TCM", "", 1024)).collect();
        let descriptor = card(vec![ops]);
        let (mut records, mut threads, mut expected) = (Vec::new(), Vec::new(), std::collections::BTreeMap::new());
        for (number, executions) in (0_u8..).zip(&of_threads) {
            let first = u32::try_from(records.len()).unwrap();
            let mut seen = std::collections::HashMap::new();
            for (place, &(oc, iteration, dur_u)) in executions.iter().enumerate() {
                let start_u = place as u64 * 1000;
                records.push(Op { start_u, iteration, ..op(0, number, oc, dur_u, 1) });
                let again = seen.entry((oc, iteration)).or_insert(0_u32);
                let longest = expected.entry((oc, iteration, *again)).or_insert(0_u32);
                *longest = dur_u.max(*longest);
                *again += 1;
            }
            threads.push(thread(0, number, 0, 80_000, 0, (first, u32::try_from(executions.len()).unwrap())));
        }
        let mut model = StatsModel::new(run());
        model.set_records([Core { end_u: 1, ..Core::default() }]);
        model.set_records(threads);
        model.set_records(records);
        let found = text(&model, &descriptor);
        let rows: Vec<(u64, u64)> = found
            .lines()
            .take_while(|line| !line.is_empty())
            .filter(|line| !line.starts_with("core"))
            .map(|line| {
                let cells: Vec<&str> = line.split_whitespace().collect();
                (cells[1].parse().unwrap(), cells[5].parse().unwrap())
            })
            .collect();
        prop_assert_eq!(rows.iter().map(|row| row.0).sum::<u64>(), expected.values().map(|&dur| u64::from(dur)).sum::<u64>());
        prop_assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), expected.len() as u64);
        prop_assert!(rows.is_sorted_by(|a, b| a.0 >= b.0));
    }
}
