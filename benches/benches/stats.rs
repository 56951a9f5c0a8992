//! Speed of reading stats buffers: opening one, checking every record, and columns, compared with a copy of
//! the same memory.
#![allow(clippy::unwrap_used)] // a bench without its buffer must not run

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use qaic_benches::stats_buffers::{REAL_OPS, buffer, descriptor};
use qaic_stats::decode::descriptor::fingerprint;
use qaic_stats::decode::{DecodeOptions, Kind, Op, ProgramOperations, columns, decode, oqstats};

const CORES: u32 = 16;
const OPS_A_CORE: u32 = 12_000;

fn read(criterion: &mut Criterion) {
    let descriptor = descriptor(CORES, OPS_A_CORE);
    let bytes = buffer(&descriptor, fingerprint(b"bench"), REAL_OPS).unwrap();
    let program = ProgramOperations { ops: descriptor.into(), fingerprint: fingerprint(b"bench") };
    let mut group = criterion.benchmark_group("stats");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2)).sample_size(20);
    let open = DecodeOptions { records: false, ..DecodeOptions::default() };
    group.bench_function("open", |b| {
        b.iter(|| decode(black_box(&bytes), Some(&program), None, open).unwrap().records::<Op>().len());
    });
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("check every record", |b| {
        b.iter(|| {
            let options = DecodeOptions::default();
            decode(black_box(&bytes), Some(&program), None, options).unwrap().warnings.len()
        });
    });
    let model = decode(&bytes, Some(&program), None, open).unwrap();
    let (ops, stride) = model.section(Kind::Op).unwrap();
    let names: Vec<&str> = Kind::Op.fields().iter().map(|field| field.name).collect();
    group.throughput(Throughput::Bytes(ops.len() as u64));
    group.bench_function("all columns of the operations", |b| {
        b.iter(|| columns(Kind::Op, black_box(ops), stride, &names, 0..usize::MAX).unwrap());
    });
    group.bench_function("copy the operations", |b| b.iter(|| black_box(ops).to_vec()));
    let mut target = vec![0; bytes.len()];
    group.bench_function("write a buffer", |b| {
        b.iter(|| oqstats::encode(black_box(&model), program.fingerprint, &mut target).unwrap());
    });
    group.bench_function("copy a buffer to the same place", |b| {
        b.iter(|| target.copy_from_slice(black_box(&bytes)));
    });
    group.finish();
}

criterion_group!(benches, read);
criterion_main!(benches);
