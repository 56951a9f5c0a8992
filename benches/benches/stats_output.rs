//! Speed of the outputs of a stats buffer: the summary, and traces to memory and to a file, compared with a
//! copy of the same bytes.
#![allow(clippy::unwrap_used)] // a bench without its buffer must not run

use std::fs::File;
use std::hint::black_box;
use std::time::Duration;
use std::{env, fs, process};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use qaic_benches::stats_buffers::{REAL_OPS, descriptor, model};
use qaic_stats::decode::descriptor::OpsDescriptor;
use qaic_stats::report::{SummaryOptions, write_summary};
use qaic_stats::{HostSide, Part, StatsModel, TraceFormat, TraceOptions, push_trace, write_trace};

const CORES: u32 = 16;
const OPS_A_CORE: u32 = 12_000;
/// A tenth of the operations of a real buffer, and all of them, which shows the costs that grow with their
/// number.
const SIZES: [usize; 2] = [REAL_OPS / 10, REAL_OPS];

fn part<'a>(model: &'a StatsModel<'a>, descriptor: &'a OpsDescriptor) -> Part<'a> {
    Part { model, descriptor, network: "QAicGraph", slice: None }
}

fn summary(criterion: &mut Criterion) {
    let descriptor = descriptor(CORES, OPS_A_CORE);
    let mut group = criterion.benchmark_group("stats summary");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(3)).sample_size(20);
    for ops in SIZES {
        let model = model(&descriptor, ops);
        group.bench_function(BenchmarkId::new("summary, operations", ops), |b| {
            let mut text = Vec::new();
            b.iter(|| {
                text.clear();
                write_summary(&mut text, black_box(&model), &descriptor, &SummaryOptions::default()).unwrap();
            });
        });
    }
    group.finish();
}

fn trace(criterion: &mut Criterion) {
    let descriptor = descriptor(CORES, OPS_A_CORE);
    let mut group = criterion.benchmark_group("stats trace");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(4)).sample_size(10);
    let path = env::temp_dir().join(format!("openqaic-bench-trace-{}", process::id()));
    let whole = TraceOptions { merge_thread_groups: false, ..TraceOptions::default() };
    let kinds = [
        ("JSON", TraceOptions::default()),
        ("JSON with thread tracks", whole),
        ("Perfetto", TraceOptions { format: TraceFormat::Perfetto, ..TraceOptions::default() }),
    ];
    for ops in SIZES {
        let model = model(&descriptor, ops);
        for (name, options) in &kinds {
            let mut bytes = Vec::new();
            let write = |bytes: &mut Vec<u8>| {
                bytes.clear();
                push_trace(bytes, &[part(&model, &descriptor)], &HostSide::default(), options).unwrap();
            };
            write(&mut bytes);
            group.throughput(Throughput::Bytes(bytes.len() as u64));
            group.bench_function(BenchmarkId::new(format!("{name} to memory, operations"), ops), |b| {
                b.iter(|| write(&mut bytes));
            });
            if ops != REAL_OPS || *name != "JSON" {
                continue;
            }
            group.bench_function(BenchmarkId::new(format!("{name} to a file, operations"), ops), |b| {
                b.iter(|| {
                    let file = File::create(&path).unwrap();
                    write_trace(file, &[part(&model, &descriptor)], &HostSide::default(), options).unwrap();
                });
            });
            let mut copy = bytes.clone();
            group.bench_function(BenchmarkId::new("copy the JSON, operations", ops), |b| {
                b.iter(|| copy.copy_from_slice(black_box(&bytes)));
            });
        }
    }
    group.finish();
    // A failure means that another process removed the file.
    let _ = fs::remove_file(path);
}

criterion_group!(benches, summary, trace);
criterion_main!(benches);
