//! Speed of products with stored weights, from memory and from a core's cache, compared with reading the same bytes.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use qaic_mem::convert::Isa;
use qaic_mem::stored::{Form, Layout, Product, Rounding, StoredRows, TILE_ROWS};

const FORMS: [(&str, Form); 8] = [
    ("float32", Form::Float32),
    ("float16", Form::Float16),
    ("MXFP6", Form::Mxfp6),
    ("int8, a scale a row", Form::Int8 { group: 0 }),
    ("int8, groups of 32", Form::Int8 { group: 32 }),
    ("four bits, a scale a row", Form::Uint4 { group: 0 }),
    ("four bits, groups of 32", Form::Uint4 { group: 32 }),
    ("four bits, groups of 128", Form::Uint4 { group: 128 }),
];
/// Lengths of rows. A row of activations of the second length does not stay in the nearest cache.
const LENGTHS: [usize; 2] = [2048, 5632];
const SIZES: [(&str, usize); 2] = [("512 KiB", 1 << 19), ("512 MiB", 1 << 29)];

/// Measures products with one row of activations on one thread.
fn products(criterion: &mut Criterion) {
    for (label, size) in SIZES {
        // Numbers of every form and scale are normal, because some processors compute slowly with subnormal numbers.
        let memory: Vec<u8> = (32..=63).cycle().take(size).collect();
        let mut group = criterion.benchmark_group(format!("stored weights, {label}"));
        group
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(1))
            .sample_size(10);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function("read", |bencher| {
            let (words, _) = memory.as_chunks::<8>();
            bencher.iter(|| black_box(words).iter().fold(0, |sum, word| sum | u64::from_le_bytes(*word)));
        });
        for (name, form) in FORMS {
            for len in LENGTHS {
                #[allow(clippy::unwrap_used)] // a bench with a wrong matrix must not run
                let tile_bytes = form.bytes(Layout::Tiles, TILE_ROWS, len).unwrap();
                let tiles = size / tile_bytes;
                let bytes = &memory[..tiles * tile_bytes];
                #[allow(clippy::unwrap_used)] // as above
                let weights = StoredRows::new(form, Layout::Tiles, tiles * TILE_ROWS, len, bytes).unwrap();
                let activations = vec![0.5; len];
                #[allow(clippy::unwrap_used)] // as above
                let product = Product::new(weights, &activations, &[], Rounding::Float32).unwrap();
                group.throughput(Throughput::Bytes(bytes.len() as u64));
                group.bench_function(BenchmarkId::new(name, len), |bencher| {
                    bencher.iter(|| {
                        for block in 0..product.blocks() {
                            product.block(Isa::best(), block, |_, _, numbers| {
                                black_box(numbers);
                            });
                        }
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
