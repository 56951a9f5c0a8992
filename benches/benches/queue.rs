//! The queues of the runtime: the ring compared with crossbeam's queue while no thread sleeps, and an
//! inference that is submitted and collected.
//!
//! Waking a sleeping thread is not measured: it costs as much as the system's condition variable, 10 to 40
//! us.
#![allow(clippy::unwrap_used)] // a bench without its program must not run

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use qaic_benches::containers::{TENSOR_BYTES, network, program};
use qaic_mem::Storage;
use qaic_qpc::elf;
use qaic_runtime::binding::{InputBinding, OutputBinding, Shapes};
use qaic_runtime::device::{DeviceId, Placement, RegistryOptions};
use qaic_runtime::inference_set::{HandleId, InferenceSet};
use qaic_runtime::process::WaitScope;
use qaic_runtime::profiling::{DeviceStats, Limits, Profiler, SamplingRule};
use qaic_runtime::{Context, Detached, Image, ProgramOptions};
use qaic_sync::{EventCount, FreeList, ReadyList, Ring};

/// Numbers in flight in the benches with two threads.
const CAPACITY: u32 = 64;
/// Inferences of a batch.
const BATCH: u32 = 8;
/// Inferences after which their samples are fetched.
const FETCHED: usize = 4096;

fn settings<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(30);
    group
}

fn one_thread(criterion: &mut Criterion) {
    let mut group = settings(criterion, "queues, one thread");
    let ring = Ring::new(CAPACITY);
    group.bench_function("ring: push and pop", |b| {
        b.iter(|| {
            ring.push(black_box(7)).unwrap();
            ring.pop().unwrap()
        });
    });
    let theirs = ArrayQueue::new(CAPACITY as usize);
    group.bench_function("crossbeam ArrayQueue: push and pop", |b| {
        b.iter(|| {
            theirs.push(black_box(7_u32)).unwrap();
            theirs.pop().unwrap()
        });
    });
    let stack = FreeList::empty(CAPACITY);
    group.bench_function("free list: push and pop", |b| {
        b.iter(|| {
            stack.push(black_box(7));
            stack.pop().unwrap()
        });
    });
    let ready = ReadyList::fifo(CAPACITY);
    group.bench_function("ready list: push and take", |b| {
        b.iter(|| {
            ready.push(black_box(7));
            ready.take(|_| true).unwrap()
        });
    });
    let event = EventCount::default();
    group.bench_function("notify when no thread waits", |b| b.iter(|| black_box(&event).notify_one()));
    group.finish();
}

/// Time to pass `count` numbers from one thread to another; both spin.
fn handed_over(count: u64, push: impl Fn(u32) -> bool + Sync, pop: impl Fn() -> Option<u32>) -> Duration {
    thread::scope(|scope| {
        let started = Instant::now();
        scope.spawn(|| {
            for _ in 0..count {
                while !push(black_box(7)) {
                    spin_loop();
                }
            }
        });
        for _ in 0..count {
            while pop().is_none() {
                spin_loop();
            }
        }
        started.elapsed()
    })
}

fn two_threads(criterion: &mut Criterion) {
    let mut group = settings(criterion, "queues, between two threads, per item");
    let ring = Ring::new(CAPACITY);
    group.bench_function("ring", |b| {
        b.iter_custom(|count| handed_over(count, |value| ring.push(value).is_ok(), || ring.pop()));
    });
    let theirs = ArrayQueue::new(CAPACITY as usize);
    group.bench_function("crossbeam ArrayQueue", |b| {
        b.iter_custom(|count| handed_over(count, |value| theirs.push(value).is_ok(), || theirs.pop()));
    });
    group.finish();
}

/// An inference set on `noop` whose handles are bound once.
struct Bound {
    set: Arc<InferenceSet>,
}

impl Bound {
    fn new(activations: u32, set_size: u32) -> Self {
        let options = RegistryOptions { kind: Some("noop".into()), ..RegistryOptions::default() };
        let context = Context::new(&options).unwrap();
        let image = Image::from_bytes(program(&network(1), &elf::build(&[]).unwrap()).unwrap()).unwrap();
        let place = Placement::one(DeviceId(0));
        let set =
            InferenceSet::new(&context, &image, &place, set_size, activations, ProgramOptions::default())
                .unwrap();
        let tensor = || Storage::new(TENSOR_BYTES).unwrap();
        let handles: Vec<_> = std::iter::from_fn(|| set.try_acquire()).collect();
        for &handle in &handles {
            let binding = set.exec_obj(handle).unwrap().bind(|bindings| {
                bindings.shapes = Shapes::Variant(0);
                bindings.inputs[0] = InputBinding::Memory(tensor().into());
                bindings.outputs[0] = OutputBinding::Memory(tensor().into());
            });
            binding.unwrap();
        }
        for handle in handles {
            set.put_completed(handle).unwrap();
        }
        Self { set }
    }

    /// Submits `count` inferences and collects them with `collect`.
    fn batch(&self, count: u32, collect: impl Fn(&InferenceSet, u64) -> HandleId) {
        for id in 0..u64::from(count) {
            self.set.submit(self.set.try_acquire().unwrap(), id, Detached::assume()).unwrap();
        }
        for id in 0..u64::from(count) {
            self.set.put_completed(collect(&self.set, id)).unwrap();
        }
    }
}

fn in_order(set: &InferenceSet, _: u64) -> HandleId {
    set.get_completed(&mut WaitScope::default()).unwrap()
}

fn by_id(set: &InferenceSet, id: u64) -> HandleId {
    set.get_completed_id(id, &mut WaitScope::default()).unwrap()
}

fn inferences(criterion: &mut Criterion) {
    let mut group = settings(criterion, "submit and collect on noop");
    for side in [1, 4, 16] {
        let bound = Bound::new(side, side);
        let shape = format!("{side} x {side}");
        group.bench_function(BenchmarkId::new("one at a time", &shape), |b| {
            b.iter(|| bound.batch(1, in_order));
        });
        group.bench_function(BenchmarkId::new("one at a time, by id", &shape), |b| {
            b.iter(|| bound.batch(1, by_id));
        });
    }
    let bound = Bound::new(1, BATCH);
    group.bench_function("a batch of 8, each", |b| {
        b.iter_custom(|count| {
            let started = Instant::now();
            for _ in 0..count.div_ceil(BATCH.into()) {
                bound.batch(BATCH, in_order);
            }
            started.elapsed()
        });
    });
    group.finish();
}

/// Measures the cost of a latency profile for an inference, compared with the same inference without a
/// profile.
fn profiled(criterion: &mut Criterion) {
    let mut group = settings(criterion, "an inference on noop, profiled");
    let bound = Bound::new(1, 1);
    group.bench_function("not at all", |b| b.iter(|| bound.batch(1, in_order)));
    for (name, every) in [("latency", 1), ("latency, one in 16", 16)] {
        let profiler = Profiler::new(
            SamplingRule { every, ..SamplingRule::default() },
            Limits::default(),
            DeviceStats::Never,
        );
        profiler.add(&bound.set.programs[0].subscriptions).unwrap();
        profiler.start().unwrap();
        group.bench_function(name, |b| {
            b.iter_custom(|count| {
                let mut elapsed = Duration::ZERO;
                for begin in (0..count).step_by(FETCHED) {
                    drop(profiler.drain().unwrap());
                    let started = Instant::now();
                    for _ in begin..count.min(begin + FETCHED as u64) {
                        bound.batch(1, in_order);
                    }
                    elapsed += started.elapsed();
                }
                elapsed
            });
        });
        profiler.stop().unwrap();
    }
    group.finish();
}

criterion_group!(benches, one_thread, two_threads, inferences, profiled);
criterion_main!(benches);
