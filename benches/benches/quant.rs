//! Speed of the compiler's arithmetic: tensors to integers, MX blocks, histograms and calibrations.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use qaic_quant::mx::{self, MxFormat};
use qaic_quant::{Channels, Histogram, Method, Precision, QuantParams, Schema, calibrate, quantize};

const ROW: usize = 1024;
const COUNT: usize = ROW * 256;

/// A bell-shaped distribution of numbers from a fixed recurrence.
fn values() -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as u16) / 65_536.0 - 0.5
    };
    (0..COUNT).map(|_| next() + next() + next()).collect()
}

fn rates(criterion: &mut Criterion) {
    let values = values();
    let mut group = criterion.benchmark_group("numbers, per byte of f32");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    group.throughput(Throughput::Bytes((COUNT * size_of::<f32>()) as u64));
    let params = QuantParams { scale: 0.0123, offset: -3 };
    #[allow(clippy::unwrap_used)] // a bench with wrong parameters must not run
    let (whole, channels) = (
        Channels::whole(params).unwrap(),
        Channels::along(1, &[COUNT / ROW, ROW], vec![params; ROW]).unwrap(),
    );
    let mut levels = vec![0_i8; COUNT];
    let mut back = vec![0.0_f32; COUNT];
    group.bench_function("quantize int8", |b| {
        b.iter(|| quantize(&whole, 0, black_box(&values), &mut levels));
    });
    group.bench_function("quantize int8, last axis", |b| {
        b.iter(|| quantize(&channels, 0, black_box(&values), &mut levels));
    });
    for format in MxFormat::ALL {
        let name = format.name();
        #[allow(clippy::unwrap_used)] // as above
        let mut stored = vec![0; format.stored_bytes(COUNT / ROW, ROW).unwrap()];
        group.bench_function(format!("encode {name}"), |b| {
            b.iter(|| mx::encode(format, ROW, black_box(&values), &mut stored));
        });
        group.bench_function(format!("decode {name}"), |b| {
            b.iter(|| mx::decode(format, ROW, black_box(&stored), &mut back));
        });
    }
    let mut histogram = Histogram::default();
    group.bench_function("histogram", |b| {
        #[allow(clippy::unwrap_used)] // finite numbers
        b.iter(|| histogram.add(black_box(&values)).unwrap());
    });
    group.finish();

    let mut group = criterion.benchmark_group("calibrate 512 bins");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    let counts = histogram.counts(512);
    let (low, high) = histogram.range();
    for name in Method::NAMES {
        #[allow(clippy::unwrap_used)] // as above
        let method = Method::from_name(name, 99.99).unwrap();
        for schema in [Schema::Symmetric, Schema::Asymmetric] {
            group.bench_function(format!("{name}, {}", schema.name()), |b| {
                b.iter(|| {
                    calibrate(black_box(&counts), low.into(), high.into(), method, schema, Precision::Int8)
                });
            });
        }
    }
    group.bench_function("counts of a histogram", |b| b.iter(|| black_box(&histogram).counts(512)));
    group.finish();
}

criterion_group!(benches, rates);
criterion_main!(benches);
