//! Cost of opening a container, which must not depend on the size of the file, and only a little on the
//! number of bindings.
//!
//! It is compared with the system calls for the same file (`open`, `fstat`, `mmap`, first page, `munmap`),
//! and with reading the file.
#![allow(clippy::unwrap_used)] // a bench without its files must not run

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, process};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use qaic_benches::containers::{network, program, write_sparse};
use qaic_mem::FileBytes;
use qaic_qpc::{Container, Limits, NetworkDesc, dma_mappings, elf, names, user_mappings};
use qaic_runtime::Image;
use qaic_runtime::binding::TransferPlan;

const LARGE: u64 = 1 << 30;
const BINDINGS: [u32; 5] = [2, 4, 16, 64, 256];

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = env::temp_dir().join(format!("openqaic-bench-open-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A container of `bindings` bindings with a GiB of constants.
    fn large(&self, bindings: u32) -> PathBuf {
        let path = self.0.join(format!("large-{bindings}.bin"));
        write_sparse(&path, &network(bindings - 1), LARGE).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A failure means that another process removed the folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Does what a host does before its first inference: reads the descriptors and all buffer mappings.
fn open_with_mappings(path: &Path) -> (usize, usize) {
    let image = Image::open(path, true).unwrap();
    let user = user_mappings(&image.network).unwrap();
    (user.len(), dma_mappings(&image.network).len())
}

fn open(criterion: &mut Criterion) {
    let folder = Folder::new();
    let mut group = criterion.benchmark_group("open");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2)).sample_size(30);

    let small = folder.0.join("small.bin");
    fs::write(&small, program(&network(1), &elf::build(&[]).unwrap()).unwrap()).unwrap();
    group.bench_function("small file, 2 bindings", |b| b.iter(|| open_with_mappings(black_box(&small))));
    group.bench_function("read the small file", |b| b.iter(|| fs::read(black_box(&small)).unwrap()));

    for bindings in BINDINGS {
        let path = folder.large(bindings);
        group.bench_function(BenchmarkId::new("1 GiB file, bindings", bindings), |b| {
            b.iter(|| open_with_mappings(black_box(&path)));
        });
    }

    let large = folder.large(2);
    group.bench_function("map the 1 GiB file, touch 1 byte", |b| {
        b.iter(|| FileBytes::open(black_box(&large), true).unwrap()[0]);
    });
    // A second is too short for ten reads of a GiB.
    group.sample_size(10).measurement_time(Duration::from_secs(6));
    group.bench_function("read the 1 GiB file", |b| b.iter(|| fs::read(black_box(&large)).unwrap()));
    group.finish();
}

fn parts(criterion: &mut Criterion) {
    let limits = Limits::default();
    let mut group = criterion.benchmark_group("open, in memory");
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(30);
    for bindings in BINDINGS {
        let network = network(bindings - 1);
        let bytes = program(&network, &elf::build(&[]).unwrap()).unwrap();
        group.bench_function(BenchmarkId::new("container and descriptor", bindings), |b| {
            b.iter(|| {
                let container = Container::parse(black_box(&bytes), &limits).unwrap();
                let descriptor = container.required(names::NETWORK_DESC).unwrap().payload(&bytes);
                NetworkDesc::decode(descriptor, &limits).unwrap()
            });
        });
        group.bench_function(BenchmarkId::new("transfer plan", bindings), |b| {
            b.iter(|| TransferPlan::new(black_box(&network)).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, open, parts);
criterion_main!(benches);
