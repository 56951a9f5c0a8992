//! Cost of an inference in addition to the device's work.
//!
//! On `noop`, the whole cost is that of this library: taking a free exec object, moving the tensors, returning
//! the exec object. On `cpu`, the engine also works, so a bare call of the engine with bound memory is measured
//! for comparison. `cpu` needs the engine: set `QAIC_ONNXRUNTIME_LIB` to its library
//! (`python -c 'from qaic import _core; print(_core.engine_info()[0])'`).
#![allow(clippy::unwrap_used)] // a bench without its program must not run

mod bare_engine;

use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bare_engine::BareAdd;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use qaic_benches::containers::{TENSOR_BYTES, add_program, network, program};
use qaic_mem::{Lender, Storage};
use qaic_qpc::elf;
use qaic_runtime::device::{DeviceId, Placement, RegistryOptions};
use qaic_runtime::inference_set::InferenceSet;
use qaic_runtime::process::WaitScope;
use qaic_runtime::{Context, Image, ProgramOptions};

fn set(options: &RegistryOptions, image: &Arc<Image>, activations: u32, set_size: u32) -> Arc<InferenceSet> {
    let context = Context::new(options).unwrap();
    let place = Placement::one(DeviceId(0));
    InferenceSet::new(&context, image, &place, set_size, activations, ProgramOptions::default()).unwrap()
}

fn settings<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(30);
    group
}

/// Tensors of [`TENSOR_BYTES`] each.
fn tensors(count: u32) -> Vec<Storage> {
    (0..count).map(|_| Storage::new(TENSOR_BYTES).unwrap()).collect()
}

fn noop(criterion: &mut Criterion) {
    let options = RegistryOptions { kind: Some("noop".into()), ..RegistryOptions::default() };
    let mut group = settings(criterion, "run on noop");
    let mut output = tensors(1);
    let mut lender = Lender::default();
    for inputs in [1, 4, 16, 64, 256] {
        let image = Image::from_bytes(program(&network(inputs), &elf::build(&[]).unwrap()).unwrap()).unwrap();
        let set = set(&options, &image, 1, 1);
        let storages = tensors(inputs);
        let given: Vec<_> = storages.iter().map(Storage::memory).collect();
        group.bench_function(BenchmarkId::new("inputs", inputs), |b| {
            b.iter(|| {
                let outputs = &mut [Some(output[0].memory_mut())];
                set.try_lease()
                    .unwrap()
                    .run(&mut lender, &given, outputs, &mut WaitScope::default())
                    .unwrap();
            });
        });
    }
    let image = Image::from_bytes(program(&network(1), &elf::build(&[]).unwrap()).unwrap()).unwrap();
    let input = tensors(1);
    for side in [1, 4, 16] {
        let set = set(&options, &image, side, side);
        let shape = format!("{side} x {side}");
        group.bench_function(BenchmarkId::new("activations x set_size", &shape), |b| {
            b.iter(|| {
                let handle = set.try_lease().unwrap();
                let outputs = &mut [Some(output[0].memory_mut())];
                handle.run(&mut lender, &[input[0].memory()], outputs, &mut WaitScope::default()).unwrap();
            });
        });
        group.bench_function(BenchmarkId::new("take and return a handle", &shape), |b| {
            b.iter(|| drop(set.try_lease().unwrap()));
        });
    }
    group.finish();
}

fn cpu(criterion: &mut Criterion) {
    let Some(library) = env::var_os("QAIC_ONNXRUNTIME_LIB").map(PathBuf::from) else { return };
    let options = RegistryOptions {
        kind: Some("cpu".into()),
        engine_candidates: vec![library.clone()],
        ..RegistryOptions::default()
    };
    let image = Image::from_bytes(add_program().unwrap()).unwrap();
    let set = set(&options, &image, 1, 1);
    let inputs = tensors(2);
    let mut outputs = tensors(2);
    let given = [inputs[0].memory(), inputs[1].memory()];
    let mut lender = Lender::default();
    let mut bare = BareAdd::new(&library);

    let mut group = settings(criterion, "run on cpu, Add of two [1,16]");
    group.bench_function("same arrays every time", |b| {
        b.iter(|| {
            let outputs = &mut [Some(outputs[0].memory_mut())];
            set.try_lease().unwrap().run(&mut lender, &given, outputs, &mut WaitScope::default()).unwrap();
        });
    });
    let mut turn = 0;
    group.bench_function("another output array every time", |b| {
        b.iter(|| {
            turn ^= 1;
            let outputs = &mut [Some(outputs[turn].memory_mut())];
            set.try_lease().unwrap().run(&mut lender, &given, outputs, &mut WaitScope::default()).unwrap();
        });
    });
    group.bench_function("bare engine call, pre-bound", |b| b.iter(|| bare.run()));
    group.finish();
}

criterion_group!(benches, noop, cpu);
criterion_main!(benches);
