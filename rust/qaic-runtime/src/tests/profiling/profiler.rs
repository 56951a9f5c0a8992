//! Profilers on a `noop` device and on a card: the sampled inferences, the contents of samples, and the objects that a
//! profiler keeps alive.

use crate::oracle::{view, view_mut};
use crate::tests::prelude::*;
use qaic_runtime::process::clock;
use qaic_runtime::profiling::Collected;

const LONG: Duration = Duration::from_mins(1);

pub(crate) fn run(set: &InferenceSet, count: usize) {
    let input = vec![0_u8; 4 * ELEMENTS as usize];
    for _ in 0..count {
        let mut output = input.clone();
        let lease = set.lease(&mut WaitScope::until(Deadline::after(LONG))).unwrap();
        let outputs = &mut [Some(view_mut(&mut output))];
        lease.run(&mut Lender::default(), &[view(&input)], outputs, &mut WaitScope::default()).unwrap();
    }
}

fn set(device: &dyn HeldDevice, set_size: u32, activations: u32) -> Arc<InferenceSet> {
    device.set(&image(ElementType::Float32), set_size, activations)
}

fn profiler(set: &InferenceSet, rule: SamplingRule) -> Arc<Profiler> {
    let profiler = Profiler::new(rule, Limits::default(), DeviceStats::Never);
    profiler.add(&set.programs[0].subscriptions).unwrap();
    assert!(profiler.start().unwrap());
    profiler
}

fn numbers(collected: &Collected) -> Vec<u64> {
    collected.samples.iter().map(|sample| sample.host.inference).collect()
}

#[test]
fn sample_of_an_inference_has_ascending_times_within_the_call() {
    for device in of_each_kind() {
        let set = set(&*device, 1, 1);
        let profiler = profiler(&set, SamplingRule::default());
        let before = clock::now_ns();
        run(&set, 3);
        let after = clock::now_ns();
        let collected = profiler.drain().unwrap();
        assert_eq!(numbers(&collected), [0, 1, 2]);
        for sample in &collected.samples {
            let host = sample.host;
            let times = [
                before,
                host.enqueued_ns,
                host.begun_ns,
                host.inputs_ready_ns,
                host.executed_ns,
                host.outputs_ready_ns,
                host.completed_ns,
                after,
            ];
            assert!(times.is_sorted(), "{times:?}");
            assert_eq!((host.queue_depth, host.in_queue, host.activation), (0, 1, 0));
            assert!(sample.stats.is_none());
        }
    }
}

#[test]
fn profiler_started_later_numbers_earlier_inferences_too() {
    for device in of_each_kind() {
        let set = set(&*device, 1, 1);
        run(&set, 5);
        let rule = SamplingRule { first: 2, count: Some(2), every: 2 };
        let profiler = profiler(&set, rule);
        run(&set, 9);
        assert!(profiler.wait(&mut WaitScope::default()).unwrap());
        assert_eq!(numbers(&profiler.drain().unwrap()), [7, 9]);
        // A second start behaves like the first.
        assert!(profiler.stop().unwrap());
        assert!(!profiler.stop().unwrap());
        run(&set, 4);
        assert!(profiler.start().unwrap());
        assert!(!profiler.start().unwrap());
        assert!(!profiler.wait(&mut WaitScope::until(Deadline::after(Duration::ZERO))).unwrap());
        run(&set, 5);
        assert_eq!(numbers(&profiler.drain().unwrap()), [20, 22]);
    }
}

#[test]
fn profilers_of_one_program_sample_the_same_inferences() {
    for device in of_each_kind() {
        let set = set(&*device, 1, 1);
        let (all, half) = (SamplingRule::default(), SamplingRule { every: 2, ..SamplingRule::default() });
        let profilers = [all, half, all, half].map(|rule| profiler(&set, rule));
        run(&set, 4);
        profilers[0].stop().unwrap();
        run(&set, 2);
        let found = profilers.map(|profiler| numbers(&profiler.drain().unwrap()));
        assert_eq!(found[0], [0, 1, 2, 3]);
        assert_eq!(found[1], [0, 2, 4]);
        assert_eq!(found[2], [0, 1, 2, 3, 4, 5]);
        assert_eq!(found[3], found[1]);
    }
}

#[test]
fn profiler_that_runs_takes_programs_added_until_their_removal() {
    for device in of_each_kind() {
        let (first, second) = (set(&*device, 1, 1), set(&*device, 1, 1));
        let profiler = profiler(&first, SamplingRule::default());
        run(&second, 1);
        assert_eq!(profiler.add(&second.programs[0].subscriptions).unwrap(), 1);
        assert_eq!(profiler.add(&second.programs[0].subscriptions).unwrap(), 1);
        run(&first, 1);
        run(&second, 1);
        assert!(profiler.remove(&first.programs[0].subscriptions).unwrap());
        assert!(!profiler.remove(&first.programs[0].subscriptions).unwrap());
        run(&first, 1);
        run(&second, 1);
        let collected = profiler.drain().unwrap();
        let seen: Vec<_> =
            collected.samples.iter().map(|sample| (sample.host.program, sample.host.inference)).collect();
        assert_eq!(seen, [(0, 0), (1, 1), (1, 2)]);
    }
}

#[test]
fn profiler_with_a_failed_inference_records_the_next_instead() {
    for device in of_each_kind() {
        let set = set(&*device, 1, 1);
        let profiler = profiler(&set, SamplingRule { count: Some(1), ..SamplingRule::default() });
        device.fail_next();
        let input = vec![0_u8; 4 * ELEMENTS as usize];
        set.try_lease()
            .unwrap()
            .run(&mut Lender::default(), &[view(&input)], &mut [None], &mut WaitScope::default())
            .unwrap_err();
        assert!(profiler.drain().unwrap().samples.is_empty());
        run(&set, 1);
        assert!(profiler.wait(&mut WaitScope::default()).unwrap());
        assert_eq!(numbers(&profiler.drain().unwrap()), [1]);
    }
}

#[test]
fn profiler_started_after_a_submission_skips_that_inference() {
    for device in of_each_kind() {
        let set = set(&*device, 2, 1);
        device.hold();
        let handles = [set.try_acquire().unwrap(), set.try_acquire().unwrap()];
        let submit = |index: usize| {
            let exec = set.exec_obj(handles[index]).unwrap();
            let memory = InputBinding::Memory(Storage::new(4 * ELEMENTS as usize).unwrap().into());
            exec.bind(|bindings| bindings.inputs[0] = memory).unwrap();
            set.submit(handles[index], 0, Detached::assume()).unwrap();
            set.scheduler.watch_device();
        };
        submit(0);
        let profiler = profiler(&set, SamplingRule::default());
        submit(1);
        device.release();
        set.wait_for_completion(&mut WaitScope::default()).unwrap();
        assert_eq!(profiler.drain().unwrap().samples.len(), 1);
        for handle in handles {
            set.put_completed(handle).unwrap();
        }
    }
}

#[test]
fn profiler_with_a_count_takes_it_from_each_activation() {
    for device in of_each_kind() {
        let set = set(&*device, 2, 3);
        let profiler = profiler(&set, SamplingRule { count: Some(20), ..SamplingRule::default() });
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !profiler.wait(&mut WaitScope::until(Deadline::after(Duration::ZERO))).unwrap() {
                        run(&set, 6);
                    }
                });
            }
        });
        let collected = profiler.drain().unwrap();
        let mut seen = [0; 3];
        let mut all = numbers(&collected);
        for sample in &collected.samples {
            seen[sample.host.activation as usize] += 1;
        }
        assert_eq!(seen, [20; 3]);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 60, "a number was given twice");
    }
}

#[test]
fn profilers_started_and_removed_under_load_sample_until_removal() {
    for device in of_each_kind() {
        let set = set(&*device, 2, 2);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let work = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    run(&set, 1);
                }
            });
            thread::scope(|inner| {
                for _ in 0..2 {
                    inner.spawn(|| {
                        for _ in 0..50 {
                            let profiler = profiler(&set, SamplingRule::default());
                            while profiler.drain().unwrap().samples.is_empty() {
                                thread::yield_now();
                            }
                            profiler.remove(&set.programs[0].subscriptions).unwrap();
                            profiler.drain().unwrap();
                            assert!(profiler.drain().unwrap().samples.is_empty());
                        }
                    });
                }
            });
            stop.store(true, Ordering::Relaxed);
            work.join().unwrap();
        });
    }
}

#[test]
fn profiler_that_outlives_a_program_keeps_only_its_samples() {
    for device in of_each_kind() {
        let set = set(&*device, 1, 1);
        let free = || device.context().device(DeviceId(0)).unwrap().resources().nsp_free;
        let profiler = profiler(&set, SamplingRule::default());
        run(&set, 2);
        let held = free();
        drop(set);
        assert!(free() > held);
        assert_eq!(profiler.drain().unwrap().samples.len(), 2);
        assert!(profiler.stop().unwrap());
    }
}
