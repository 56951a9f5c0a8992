//! Speed of the conversions between the caller's arrays and DMA buffers, compared with a plain copy.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use qaic_mem::convert::{ElementOp, Isa, Pipeline, QuantParams, QuantType, Step};
use qaic_mem::{HostSlice, HostSliceMut};

const SIZES: [(&str, usize); 3] = [("64 KiB", 1 << 16), ("1 MiB", 1 << 20), ("64 MiB", 1 << 26)];

/// Memory for both sides of a pass; small finite numbers if the source contains floating-point elements.
struct Sides {
    source: Vec<u8>,
    result: Vec<u8>,
}

impl Sides {
    fn new(source_bytes: usize, result_bytes: usize) -> Self {
        let values = (0..1000_u16).flat_map(|i| (f32::from(i) * 0.0123 - 6.0).to_le_bytes()).cycle();
        Self { source: values.take(source_bytes).collect(), result: vec![0; result_bytes] }
    }

    fn views(&mut self) -> (HostSlice<'_>, HostSliceMut<'_>) {
        (HostSlice::of(&self.source), HostSliceMut::of(&mut self.result))
    }
}

/// Measures `steps` on tensors whose larger side has each of the sizes.
fn measure(
    criterion: &mut Criterion,
    name: &str,
    families: &[Isa],
    element: usize,
    largest: usize,
    make: impl Fn(usize) -> Vec<Step>,
) {
    let mut group = criterion.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    for (label, bytes) in SIZES {
        let count = bytes / largest;
        let steps = make(count);
        #[allow(clippy::unwrap_used)] // a bench with a wrong sequence must not run
        let pipeline = Pipeline::new(count, element, &steps).unwrap();
        let mut sides = Sides::new(pipeline.source_bytes(), pipeline.result_bytes());
        let (source, mut result) = sides.views();
        group.throughput(Throughput::Bytes(bytes as u64));
        for &isa in families {
            let id = BenchmarkId::new(format!("{isa:?}").to_lowercase(), label);
            group.bench_function(id, |bencher| {
                bencher.iter(|| pipeline.run(isa, black_box(source), black_box(result.reborrow())));
            });
        }
    }
    group.finish();
}

fn elements(criterion: &mut Criterion) {
    let p = QuantParams { scale: 0.05, offset: -3 };
    let cases = [
        ("float32 to float16", ElementOp::F32ToF16),
        ("float16 to float32", ElementOp::F16ToF32),
        ("quantize int8", ElementOp::Quantize(QuantType::I8, p)),
        ("quantize uint8", ElementOp::Quantize(QuantType::U8, p)),
        ("quantize int16", ElementOp::Quantize(QuantType::I16, p)),
        ("quantize int32", ElementOp::Quantize(QuantType::I32, p)),
        ("dequantize int8", ElementOp::Dequantize(QuantType::I8, p)),
        ("dequantize uint8", ElementOp::Dequantize(QuantType::U8, p)),
        ("dequantize int16", ElementOp::Dequantize(QuantType::I16, p)),
        ("dequantize int32", ElementOp::Dequantize(QuantType::I32, p)),
    ];
    for (name, op) in cases {
        let largest = op.source_size().max(op.result_size());
        measure(criterion, name, &Isa::available(), op.source_size(), largest, |_| vec![Step::Element(op)]);
    }
}

/// Returns the step that converts an image batch of `count` elements from NCHW to NHWC order.
fn channels_last(count: usize) -> Step {
    Step::Transpose { dims: vec![count / 4096 / 4, 4, 64, 64], shuffle: vec![0, 2, 3, 1] }
}

fn orders(criterion: &mut Criterion) {
    let best = [Isa::best()];
    for (name, size) in [("transpose 1-byte", 1), ("transpose 2-byte", 2), ("transpose 4-byte", 4)] {
        measure(criterion, &format!("{name} matrix"), &best, size, size, |count| {
            let rows = 1 << (count.ilog2() / 2);
            vec![Step::Transpose { dims: vec![rows, count / rows], shuffle: vec![1, 0] }]
        });
        measure(criterion, &format!("{name} NCHW to NHWC"), &best, size, size, |count| {
            vec![channels_last(count)]
        });
    }
    measure(criterion, "fused transpose and float32 to float16", &best, 4, 4, |count| {
        vec![channels_last(count), Step::Element(ElementOp::F32ToF16)]
    });
    measure(criterion, "fused float16 to float32 and quantize int8", &best, 2, 2, |_| {
        let quantize = ElementOp::Quantize(QuantType::I8, QuantParams { scale: 0.05, offset: -3 });
        vec![Step::Element(ElementOp::F16ToF32), Step::Element(quantize)]
    });
    measure(criterion, "copy", &best, 1, 1, |_| Vec::new());
}

criterion_group!(benches, elements, orders);
criterion_main!(benches);
