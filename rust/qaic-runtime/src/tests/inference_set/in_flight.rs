//! Inferences that are on a card while the host prepares others. The card records the inputs that it reads, so an
//! input that changes too early is read twice.

use std::collections::HashSet;
use std::sync::mpsc;
use std::time::Instant;

use super::regressions::CompletionSender;
use crate::echo::{planned, retaining};
use crate::oracle::Array;
use crate::tests::prelude::*;
use proptest::prelude::*;
use qaic_runtime::inference_set::Help;
use qaic_runtime::process::clock;
use qaic_sync::EventCount;

/// Longer than any test takes.
const LONG: Duration = Duration::from_mins(1);

/// A set on a card of its own, with memory for each of its exec objects.
struct Bench {
    // The set is dropped before the memory and the card.
    set: Arc<InferenceSet>,
    inputs: Vec<Array>,
    outputs: Vec<Array>,
    card: EchoCard,
}

impl Bench {
    fn new(set_size: u32, threads: u32) -> Self {
        Self::with(&image(ElementType::Float32), set_size, 1, threads)
    }

    fn with(image: &Arc<Image>, set_size: u32, activations: u32, threads: u32) -> Self {
        let card = EchoCard::default();
        let options = card.options(threads);
        Self::on(card, image, set_size, activations, options)
    }

    fn on(
        card: EchoCard,
        image: &Arc<Image>,
        set_size: u32,
        activations: u32,
        options: ProgramOptions,
    ) -> Self {
        let set = try_set(card.context(), image, set_size, activations, options).unwrap();
        let count = set.handle_count();
        let zeros = || (0..count).map(|_| Array::of(&[0; 4 * ELEMENTS as usize])).collect();
        Self { set, inputs: zeros(), outputs: zeros(), card }
    }

    fn exec(&self, handle: HandleId) -> &Arc<ExecObj> {
        self.set.exec_obj(handle).unwrap()
    }

    /// Binds a handle to its own memory; the input identifies the inference.
    fn bind(&mut self, handle: HandleId, value: u16) {
        let number = handle.0 as usize;
        self.inputs[number].write(&f32_bytes(&vec![f32::from(value); ELEMENTS as usize]));
        self.outputs[number].write(&[0xcc; 4 * ELEMENTS as usize]);
        let (input, output) = (self.inputs[number].memory(), self.outputs[number].memory_mut());
        let bound = self.exec(handle).bind(|bindings| {
            bindings.inputs[0] = InputBinding::Memory(input);
            bindings.outputs[0] = OutputBinding::Memory(output);
        });
        bound.unwrap();
    }

    fn holds(&self, handle: HandleId, value: u16) -> bool {
        self.outputs[handle.0 as usize].bytes() == f32_bytes(&vec![f32::from(value); ELEMENTS as usize])
    }

    /// Acquires and binds all handles, and submits each under its own number.
    fn submit_all(&mut self) -> Vec<HandleId> {
        self.submit_each(|set| set.scheduler.watch_device())
    }

    /// Submits as [`Bench::submit_all`], and calls `then` after each submission.
    fn submit_each(&mut self, then: impl Fn(&InferenceSet)) -> Vec<HandleId> {
        let handles: Vec<_> = std::iter::from_fn(|| self.set.try_acquire()).collect();
        for &handle in &handles {
            self.bind(handle, handle.0.try_into().unwrap());
        }
        for &handle in &handles {
            self.set.submit(handle, handle.0.into(), Detached::assume()).unwrap();
            then(&self.set);
        }
        handles
    }

    /// Closes the barrier, and submits all inferences, of which `count` reach the device.
    fn hold_all(&mut self, count: u32) -> Vec<HandleId> {
        self.card.hold();
        let handles = self.submit_all();
        self.card.await_executing(count);
        handles
    }

    /// Opens the barrier, and waits for all inferences.
    fn release_all(&self) {
        self.card.release();
        self.wait_for_all();
    }

    fn wait_for_all(&self) {
        self.set.wait_for_completion(&mut WaitScope::default()).unwrap();
    }

    /// Returns true if the output of an inference under its own number is its input.
    fn holds_own(&self, handle: HandleId) -> bool {
        self.holds(handle, handle.0.try_into().unwrap())
    }

    /// Runs a few inferences, so that the runtime knows that they are short.
    fn warm_up(&mut self) {
        let handle = self.set.try_acquire().unwrap();
        self.bind(handle, 1);
        for _ in 0..64 {
            self.exec(handle).run(&mut WaitScope::default()).unwrap();
        }
        self.set.put_completed(handle).unwrap();
    }

    fn code(&self, handle: HandleId) -> &'static str {
        self.exec(handle).outcome().map_or_else(|error| error.code(), |()| "")
    }

    /// Asserts that the card has read the inputs of these inferences, each once.
    #[track_caller]
    fn assert_read(&self, values: impl IntoIterator<Item = u16>) {
        let mut inputs = self.card.inputs();
        inputs.sort_by(f32::total_cmp);
        assert_eq!(inputs, values.into_iter().map(f32::from).collect::<Vec<_>>());
    }
}

#[test]
fn as_many_are_in_flight_as_there_are_exec_objects() {
    for (threads, set_size, activations) in [(1, 64, 1), (2, 64, 1), (3, 64, 1), (4, 64, 1), (1, 16, 4)] {
        let image = image(ElementType::Float32);
        let mut bench = Bench::with(&image, set_size, activations, threads);
        bench.card.hold();
        let handles = bench.submit_all();
        assert_eq!(handles.len(), 64);
        bench.card.await_executing(64);
        assert!(
            handles.iter().all(|&handle| bench.exec(handle).is_running() && !bench.exec(handle).revoke())
        );
        bench.release_all();
        for &handle in &handles {
            assert_eq!(bench.code(handle), "");
            assert!(bench.holds_own(handle));
        }
        bench.assert_read(0..64);
        assert_eq!(bench.set.programs.iter().map(|program| program.completed.total()).sum::<u64>(), 64);
    }
}

#[test]
fn a_thread_leaves_no_more_to_the_device_than_it_can_watch_and_they_end_in_order() {
    let mut bench = Bench::new(100, 1);
    let handles = bench.hold_all(64);
    for handle in &handles[..36] {
        bench.card.let_through(1);
        assert_eq!(bench.set.get_completed(&mut long()).unwrap(), *handle);
        assert_eq!(bench.set.id_of(*handle), u64::from(handle.0));
        bench.card.await_executing(64);
        assert_eq!(bench.card.executing(), 64);
    }
    bench.release_all();
    assert_eq!(bench.card.inputs(), (0..100_u8).map(f32::from).collect::<Vec<_>>());
    assert!(handles.iter().all(|&handle| bench.holds_own(handle)));
}

#[test]
fn one_that_fails_in_the_middle_fails_alone() {
    let mut bench = Bench::new(16, 2);
    bench.card.plan("execute@5=EFAULT");
    let handles = bench.submit_all();
    bench.wait_for_all();
    let failed: Vec<_> = handles.iter().filter(|&&handle| bench.code(handle) == "device.driver").collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(bench.set.check_completed().unwrap_err().code(), "device.driver");
    // A handle that was put back is not queried again.
    bench.set.put_completed(*failed[0]).unwrap();
    bench.set.check_completed().unwrap();
    let good = |&&handle: &&HandleId| bench.holds_own(handle);
    assert_eq!(handles.iter().filter(good).count(), 15);
}

#[test]
fn any_can_be_cancelled_and_its_exec_object_is_used_again() {
    for threads in [1, 3] {
        for victim in [0, 7, 15] {
            let mut bench = Bench::new(16, threads);
            let handles = bench.hold_all(16);
            let cancelled = handles[victim];
            bench.exec(cancelled).cancel();
            // The others are held, and a thread may wait for the oldest of them; neither blocks this inference.
            let id = cancelled.0.into();
            assert_eq!(bench.set.get_completed_id(id, &mut long()).unwrap(), cancelled);
            assert_eq!(bench.code(cancelled), "inference.cancelled");
            assert!(handles.iter().all(|&handle| handle == cancelled || bench.exec(handle).is_in_flight()));
            // The device still has the buffers, and would read this value twice.
            bench.bind(cancelled, 100);
            bench.set.submit(cancelled, 100, Detached::assume()).unwrap();
            bench.set.scheduler.watch_device();
            bench.release_all();
            assert!(bench.holds(cancelled, 100));
            for &handle in &handles {
                assert_eq!(bench.code(handle), "");
                assert!(handle == cancelled || bench.holds_own(handle));
            }
            bench.assert_read((0..16).chain([100]));
        }
    }
}

#[test]
fn lost_inference_times_out_and_the_others_end() {
    // A busy machine may also delay other inferences beyond a short limit.
    let run = |try_ms| {
        let card = EchoCard::default();
        card.plan("inference@3=lost_completion");
        let wait = WaitLimits { try_ms, retries: 1, ..WaitLimits::default() };
        let options = ProgramOptions { wait, ..card.options(1) };
        let mut bench = Bench::on(card, &image(ElementType::Float32), 8, 1, options);
        let handles = bench.submit_all();
        bench.wait_for_all();
        // The later inferences had ended, but no worker was free to collect them.
        let (lost, others): (Vec<_>, _) =
            handles.into_iter().partition(|&handle| bench.code(handle) == "device.timeout");
        (lost.len() == 1).then_some((bench, lost[0], others))
    };
    let (mut bench, lost, others) = [20, 1_000, 20_000].into_iter().find_map(run).unwrap();
    for &handle in others.iter().chain([&lost]) {
        assert_eq!(bench.set.get_completed_id(handle.0.into(), &mut WaitScope::default()).unwrap(), handle);
        bench.bind(handle, 9);
    }
    for handle in others {
        assert!((0..1_000).any(|_| bench.exec(handle).run(&mut WaitScope::default()).is_ok()));
        assert!(bench.holds(handle, 9));
    }
    // The card does not return the buffers of the lost inference.
    assert_eq!(bench.exec(lost).run(&mut WaitScope::default()).unwrap_err().code(), "device.timeout");
}

#[test]
fn a_caller_runs_beside_what_is_on_the_device() {
    let mut bench = Bench::new(9, 1);
    bench.warm_up();
    bench.card.hold();
    let handles = bench.submit_all();
    let (&own, others) = handles.split_last().unwrap();
    bench.card.await_executing(9);
    bench.exec(own).cancel();
    assert_eq!(bench.exec(own).wait(&mut WaitScope::default()).unwrap_err().code(), "inference.cancelled");
    assert_eq!(bench.set.get_completed_id(own.0.into(), &mut WaitScope::default()).unwrap(), own);
    bench.bind(own, 77);
    let exec = Arc::clone(bench.exec(own));
    thread::scope(|scope| {
        // The inference first gets its buffers back, which the device releases after the eight before.
        let runner = scope.spawn(|| exec.run(&mut WaitScope::default()));
        bench.card.let_through(9);
        bench.card.await_executing(1);
        assert!(!runner.is_finished());
        bench.card.release();
        runner.join().unwrap().unwrap();
    });
    bench.wait_for_all();
    assert!(bench.holds(own, 77));
    assert!(others.iter().all(|&handle| bench.holds_own(handle)));
}

#[test]
fn a_run_on_the_caller_s_thread_answers_signals_and_deadlines() {
    let mut bench = Bench::new(1, 1);
    bench.warm_up();
    let handle = bench.set.try_acquire().unwrap();
    for round in 0..2 {
        bench.card.hold();
        bench.bind(handle, 5);
        let exec = bench.exec(handle);
        if round == 0 {
            assert_interrupted(|scope| exec.run(scope));
        } else {
            assert_eq!(exec.run(&mut soon()).unwrap_err().code(), "device.timeout");
        }
        assert!(!exec.is_in_flight());
        // A deadline can also pass before the inference reaches the card.
        let ends = [&["inference.cancelled"][..], &["device.timeout", "inference.cancelled"]][round];
        assert!(ends.contains(&exec.outcome().unwrap_err().code()));
        bench.card.release();
        bench.bind(handle, 6);
        bench.exec(handle).run(&mut WaitScope::default()).unwrap();
        assert!(bench.holds(handle, 6));
    }
}

#[test]
fn an_interrupted_wait_leaves_the_inference_to_the_device() {
    let mut bench = Bench::new(2, 1);
    bench.warm_up();
    let handles = bench.hold_all(2);
    for handle in &handles {
        assert_interrupted(|scope| bench.exec(*handle).wait(scope));
        assert_eq!(bench.exec(*handle).wait(&mut soon()).unwrap_err().code(), "device.timeout");
        assert_eq!(bench.set.get_completed(&mut soon()).unwrap_err().code(), "device.timeout");
        assert_interrupted(|scope| bench.set.wait_for_completion(scope));
        assert!(bench.exec(*handle).is_in_flight());
    }
    bench.card.release();
    for handle in handles {
        bench.exec(handle).wait(&mut WaitScope::default()).unwrap();
        assert!(bench.holds_own(handle));
    }
}

#[test]
fn a_wait_for_a_program_with_state_answers_signals() {
    let mut bench = Bench::with(&retaining(), 1, 1, 1);
    bench.warm_up();
    bench.card.hold();
    let handle = bench.set.try_acquire().unwrap();
    bench.bind(handle, 5);
    bench.set.submit(handle, 0, Detached::assume()).unwrap();
    // The inferences are short, and a caller that ran this one could not handle a signal.
    assert_interrupted(|scope| bench.exec(handle).wait(scope));
    bench.card.release();
    bench.exec(handle).wait(&mut WaitScope::default()).unwrap();
    assert!(bench.holds(handle, 5));
}

#[test]
fn stages_are_those_of_the_device() {
    let mut bench = Bench::new(8, 2);
    let profiler = Profiler::new(SamplingRule::default(), Limits::default(), DeviceStats::Never);
    profiler.add(&bench.set.programs[0].subscriptions).unwrap();
    profiler.start().unwrap();
    bench.hold_all(8);
    let released_ns = clock::now_ns();
    bench.release_all();
    let samples = profiler.drain().unwrap().samples;
    assert_eq!(samples.len(), 8);
    for sample in samples {
        let host = sample.host;
        let order = [
            host.enqueued_ns,
            host.begun_ns,
            host.inputs_ready_ns,
            released_ns,
            host.executed_ns,
            host.outputs_ready_ns,
            host.completed_ns,
        ];
        assert!(order.is_sorted(), "{order:?}");
    }
}

#[test]
fn inference_on_the_caller_s_thread_begins_when_it_comes() {
    let mut bench = Bench::new(1, 1);
    let profiler = Profiler::new(SamplingRule::default(), Limits::default(), DeviceStats::Never);
    profiler.add(&bench.set.programs[0].subscriptions).unwrap();
    profiler.start().unwrap();
    let handle = bench.set.try_acquire().unwrap();
    bench.bind(handle, 1);
    for _ in 0..8 {
        bench.exec(handle).run(&mut WaitScope::default()).unwrap();
    }
    let samples = profiler.drain().unwrap().samples;
    assert_eq!(samples.len(), 8);
    for host in samples.iter().map(|sample| &sample.host) {
        assert_eq!(host.begun_ns, host.enqueued_ns);
        assert!(host.begun_ns != 0 && host.begun_ns <= host.inputs_ready_ns);
    }
}

#[test]
fn sums_of_buffers_hold_while_they_are_in_flight() {
    let plan = r#"{"version": 1, "target": "cpu", "io_crc": 0, "initializers": [],
        "inputs": [{"name": "x", "dtype": "float32", "dims": [1, 64]}],
        "outputs": [{"name": "y", "dtype": "float32", "dims": [1, 64]}]}"#;
    let mut bench = Bench::with(&planned(plan), 4, 1, 1);
    let handles = bench.hold_all(4);
    bench.release_all();
    for handle in &handles {
        assert_eq!(bench.code(*handle), "");
        let crcs = bench.exec(*handle).io_crcs().unwrap();
        assert_eq!(crcs.inputs, crcs.outputs);
    }
    // The memory changes between the end and the collection.
    bench.set.get_completed_id(0, &mut WaitScope::default()).unwrap();
    bench.set.submit(HandleId(0), 0, Detached::assume()).unwrap();
    bench.set.scheduler.watch_device();
    bench.wait_for_all();
    let mut bytes = bench.outputs[0].bytes();
    bytes[3] ^= 1;
    bench.outputs[0].write(&bytes);
    assert_eq!(bench.code(HandleId(0)), "inference.io_crc");
}

/// A queued inference has not begun, so its inputs are summed again when the device gets it.
#[test]
fn input_that_is_written_to_before_its_inference_begins_is_found() {
    let plan =
        r#"{"version": 1, "target": "cpu", "io_crc": 0, "initializers": [], "inputs": [], "outputs": []}"#;
    let mut bench = Bench::with(&planned(plan), 65, 1, 1);
    let handles = bench.hold_all(64);
    let input = &mut bench.inputs[handles[64].0 as usize];
    let mut bytes = input.bytes();
    bytes[3] ^= 1;
    input.write(&bytes);
    bench.release_all();
    let codes: Vec<_> = handles.iter().map(|handle| bench.code(*handle)).collect();
    assert_eq!(codes[64], "inference.io_crc");
    assert!(codes[..64].iter().all(|code| code.is_empty()), "{codes:?}");
}

/// Next step of a schedule; numbers choose among the possible ones.
#[derive(Clone, Debug)]
enum Step {
    Submit { watched: bool },
    Cancel(usize),
    LetThrough(u32),
    Collect,
    Wait(usize),
    Hold,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<bool>().prop_map(|watched| Step::Submit { watched }),
        2 => any::<usize>().prop_map(Step::Cancel),
        2 => (1_u32..4).prop_map(Step::LetThrough),
        2 => Just(Step::Collect),
        1 => any::<usize>().prop_map(Step::Wait),
        1 => Just(Step::Hold),
        1 => Just(Step::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Every inference ends once, with its own result or for a valid reason.
    #[test]
    fn any_schedule_ends_every_inference_as_it_should(
        steps in prop::collection::vec(step(), 1..80),
        (threads, set_size, activations) in (1_u32..5, 1_u32..9, 1_u32..3),
        failing in 1_u64..40,
    ) {
        let image = image(ElementType::Float32);
        let mut bench = Bench::with(&image, set_size, activations, threads);
        bench.card.plan(&format!("execute@{failing}=EFAULT"));
        // Handle of each submitted inference, and true if it was cancelled.
        let mut flying: Vec<(HandleId, u16, bool)> = Vec::new();
        let mut failures = 0;
        let mut begun = 0_u16;
        let mut end = |bench: &Bench, (handle, value, was_cancelled): (HandleId, u16, bool)| {
            match bench.code(handle) {
                "" => prop_assert!(bench.holds(handle, value)),
                "inference.cancelled" => prop_assert!(was_cancelled),
                "device.driver" => failures += 1,
                other => prop_assert!(false, "{other}"),
            }
            bench.set.put_completed(handle).unwrap();
            Ok(())
        };
        for step in steps {
            match step {
                Step::Submit { watched } => {
                    let Some(handle) = bench.set.try_acquire() else { continue };
                    begun += 1;
                    bench.bind(handle, begun);
                    bench.set.submit(handle, begun.into(), Detached::assume()).unwrap();
                    if watched {
                        bench.set.scheduler.watch_device();
                    }
                    flying.push((handle, begun, false));
                }
                Step::Cancel(which) => {
                    let count = flying.len().max(1);
                    if let Some(one) = flying.get_mut(which % count) {
                        bench.exec(one.0).cancel();
                        one.2 = true;
                    }
                }
                Step::LetThrough(count) => bench.card.let_through(count),
                Step::Collect => {
                    let Ok(handle) = bench.set.get_completed(&mut soon()) else { continue };
                    let at = flying.iter().position(|one| one.0 == handle);
                    prop_assert!(at.is_some(), "an inference ended twice");
                    end(&bench, flying.remove(at.unwrap()))?;
                }
                Step::Wait(which) => {
                    let Some(one) = flying.get(which % flying.len().max(1)) else { continue };
                    let code = bench.exec(one.0).wait(&mut soon()).map_or_else(|e| e.code(), |()| "");
                    prop_assert!(["", "device.timeout", "device.driver", "inference.cancelled"].contains(&code));
                }
                Step::Hold => bench.card.hold(),
                Step::Release => bench.card.release(),
            }
        }
        bench.card.release();
        for one in std::mem::take(&mut flying) {
            let found = bench.set.get_completed_id(one.1.into(), &mut long());
            prop_assert_eq!(found.unwrap(), one.0);
            end(&bench, one)?;
        }
        prop_assert!(failures <= 1);
        let read: Vec<_> = bench.card.inputs();
        let distinct: HashSet<_> = read.iter().map(|value| value.to_bits()).collect();
        prop_assert_eq!(distinct.len(), read.len(), "an input changed while the card had it: {:?}", read);
    }
}

/// Callers run their own inferences while workers sleep. The next inference without a waiting caller wakes one.
#[test]
fn inference_without_a_waiter_after_busy_callers_wakes_a_worker() {
    for threads in [1, 4] {
        let mut bench = Bench::new(8, threads);
        bench.warm_up();
        let (sender, receiver) = mpsc::channel();
        for _ in 0..10 {
            for _ in 0..50 {
                for _ in bench.submit_each(|_| ()) {
                    let handle = bench.set.get_completed(&mut WaitScope::default()).unwrap();
                    bench.set.put_completed(handle).unwrap();
                }
            }
            let handle = bench.set.try_acquire().unwrap();
            bench.bind(handle, 9);
            let completion = Arc::new(CompletionSender(sender.clone()));
            bench.exec(handle).submit(None, Some(completion), Detached::assume()).unwrap();
            assert_eq!(receiver.recv_timeout(LONG).unwrap(), handle);
            assert!(bench.holds(handle, 9));
            bench.set.put_completed(handle).unwrap();
        }
    }
}

/// A caller that sleeps for another event should collect from the device; a worker does so instead.
#[test]
fn inference_without_a_waiter_ends_while_another_caller_sleeps() {
    let mut bench = Bench::new(1, 1);
    bench.warm_up();
    let handle = bench.set.try_acquire().unwrap();
    let (woken, looks, is_over) = (EventCount::default(), AtomicU32::new(0), AtomicBool::new(false));
    let set = Arc::clone(&bench.set);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut scope = long();
            set.wait_for(&woken, "the end of a test", Help::Nothing, &mut scope, || {
                looks.fetch_add(1, Ordering::AcqRel);
                is_over.load(Ordering::Acquire).then_some(Ok(()))
            })
        });
        // The second check is inside the wait.
        while looks.load(Ordering::Acquire) < 2 {
            thread::yield_now();
        }
        let began = Instant::now();
        for id in 0..100 {
            bench.bind(handle, 3);
            set.submit(handle, id, Detached::assume()).unwrap();
            // Checks without waiting.
            while set.try_get_completed_id(id).is_none() && began.elapsed() < LONG {
                thread::yield_now();
            }
            assert!(bench.holds(handle, 3), "inference {id} was left to the device");
        }
        is_over.store(true, Ordering::Release);
        woken.notify_all();
    });
}
