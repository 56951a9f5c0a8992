//! Cost of an inference on a card for the host, in addition to the two system calls, on an emulated card.
//!
//! The emulator works on the calling thread and returns the input. Each run is compared with a loop that
//! makes only the same two calls, for the same buffer objects, through the same file, and with the same
//! number in flight. The difference is the cost of this library.
#![allow(clippy::unwrap_used)] // a bench without its program must not run

mod tapped;

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use qaic_benches::containers::{TENSOR_BYTES, card_program};
use qaic_emu::{EmuKmd, EmuOptions};
use qaic_kmd::Kmd;
use qaic_kmd::abi::Request;
use qaic_mem::{Lender, Storage};
use qaic_runtime::binding::{InputBinding, OutputBinding, Shapes};
use qaic_runtime::device::{DeviceId, Placement};
use qaic_runtime::inference_set::InferenceSet;
use qaic_runtime::process::WaitScope;
use qaic_runtime::{Context, Detached, Image, ProgramOptions};
use tapped::Tap;

/// Number of inferences in flight, for benches with several.
const IN_FLIGHT: u32 = 64;

/// A program of `inputs` inputs on an emulated card whose calls are recorded.
struct Card {
    emulator: Arc<EmuKmd>,
    tap: Arc<Tap>,
    set: Arc<InferenceSet>,
    inputs: Vec<Storage>,
    output: Storage,
}

impl Card {
    fn new(inputs: u32, set_size: u32) -> Self {
        let emulator = EmuKmd::new(EmuOptions::default()).unwrap();
        let tap = Tap::new(Arc::clone(&emulator) as Arc<dyn Kmd>);
        let context = Context::of_cards(&(Arc::clone(&tap) as Arc<dyn Kmd>)).unwrap();
        let image = Image::from_bytes(card_program(inputs).unwrap()).unwrap();
        let place = Placement::one(DeviceId(0));
        let set =
            InferenceSet::new(&context, &image, &place, set_size, 1, ProgramOptions::default()).unwrap();
        let storage = || Storage::new(TENSOR_BYTES).unwrap();
        Self { emulator, tap, set, inputs: (0..inputs).map(|_| storage()).collect(), output: storage() }
    }

    fn run(&mut self) {
        let given: Vec<_> = self.inputs.iter().map(Storage::memory).collect();
        let outputs = &mut [Some(self.output.memory_mut())];
        let lease = self.set.try_lease().unwrap();
        lease.run(&mut Lender::default(), &given, outputs, &mut WaitScope::default()).unwrap();
    }

    /// Number of system calls of one inference.
    fn calls_of_a_run(&mut self) -> u64 {
        let before = self.tap.calls();
        self.run();
        self.tap.calls() - before
    }
}

fn one(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("run on kmd");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(30);
    for inputs in [1, 4, 16] {
        let mut card = Card::new(inputs, 1);
        card.inputs[0].memory_mut().fill(7);
        (0..64).for_each(|_| card.run());
        assert_eq!(card.output.memory().to_vec(), [7; TENSOR_BYTES]);
        assert_eq!(card.calls_of_a_run(), 2, "an execute call and a wait");
        let Card { set, tap, inputs: storages, output, .. } = &mut card;
        let given: Vec<_> = storages.iter().map(Storage::memory).collect();
        let mut lender = Lender::default();
        group.bench_function(BenchmarkId::new("inputs", inputs), |b| {
            b.iter(|| {
                let outputs = &mut [Some(output.memory_mut())];
                set.try_lease()
                    .unwrap()
                    .run(&mut lender, &given, outputs, &mut WaitScope::default())
                    .unwrap();
            });
        });
        group.bench_function(BenchmarkId::new("bare calls", inputs), |b| b.iter(|| tap.again(0)));
    }
    group.finish();
}

fn many(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("run on kmd, in flight");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(30);
    let card = Card::new(1, IN_FLIGHT);
    let ids = || 0..u64::from(IN_FLIGHT);
    let tensor = || Some(Storage::new(TENSOR_BYTES).unwrap());
    let mut tensors: Vec<_> = ids().map(|_| [tensor(), tensor()]).collect();
    let mut batch = || {
        for id in ids() {
            let handle = card.set.try_acquire().unwrap();
            card.set
                .exec_obj(handle)
                .unwrap()
                .bind(|bindings| {
                    bindings.shapes = Shapes::Variant(0);
                    let [input, output] = &mut tensors[handle.0 as usize];
                    *output = bindings.take_storage(0).or(output.take());
                    if let InputBinding::Memory(memory) = std::mem::take(&mut bindings.inputs[0]) {
                        *input = memory.into_storage();
                    }
                    bindings.inputs[0] = InputBinding::Memory(input.take().unwrap().into());
                    bindings.outputs[0] = OutputBinding::Memory(output.take().unwrap().into());
                })
                .unwrap();
            card.set.submit(handle, id, Detached::assume()).unwrap();
        }
        for _ in ids() {
            let handle = card.set.get_completed(&mut WaitScope::default()).unwrap();
            card.set.put_completed(handle).unwrap();
        }
    };
    (0..8).for_each(|_| batch());
    group.throughput(criterion::Throughput::Elements(IN_FLIGHT.into()));
    group.bench_function(BenchmarkId::new("submit and collect", IN_FLIGHT), |b| b.iter(&mut batch));
    group.bench_function(BenchmarkId::new("bare calls", IN_FLIGHT), |b| {
        b.iter(|| {
            (0..IN_FLIGHT as usize).for_each(|which| card.tap.execute(which));
            (0..IN_FLIGHT as usize).for_each(|which| card.tap.wait(which));
        });
    });
    let control = card.emulator.control(0).unwrap();
    let counts = [Request::ExecuteBo, Request::WaitBo].map(|request| control.calls(request));
    assert_eq!(counts[0], counts[1]);
    group.finish();
}

criterion_group!(benches, one, many);
criterion_main!(benches);
