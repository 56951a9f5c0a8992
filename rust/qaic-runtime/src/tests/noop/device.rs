//! Everything around a device, on the `noop` device: loading, cores, exec objects, the inference set.

use crate::oracle::view;
use crate::tests::prelude::*;
use qaic_runtime::inference_set::{BenchmarkOutcome, BenchmarkProgress, Lease};

/// Contexts with equal options share devices, so every test uses different options.
fn context() -> Arc<Context> {
    noop(RegistryOptions { virtual_cards: Some(2), ..RegistryOptions::default() })
}

fn run(
    lease: &Lease<'_>,
    inputs: &[HostSlice<'_>],
    outputs: &mut [Option<HostSliceMut<'_>>],
) -> Result<(), RuntimeError> {
    lease.run(&mut Lender::default(), inputs, outputs, &mut WaitScope::default())
}

fn free_cores(context: &Context, device: u32) -> u32 {
    context.device(DeviceId(device)).unwrap().resources().nsp_free
}

#[test]
fn wrong_buffer_is_refused_before_the_device_runs() {
    let context = context();
    let set = set(&context, &recorded(), 1, 1);
    let handle = set.try_lease().unwrap();
    assert_eq!(run(&handle, &[], &mut [None]).unwrap_err().code(), "call.argument");
    assert_eq!(run(&handle, &[view(&[0; 767])], &mut [None]).unwrap_err().code(), "input.size");
    run(&handle, &[view(&[0; 768])], &mut [None]).unwrap();
}

#[test]
fn activation_takes_cores_and_its_drop_frees_them() {
    let context = context();
    let image = recorded();
    let needed = image.network.num_cores.max(1);
    let program =
        Program::new(&context, &image, &Placement::one(DeviceId(1)), &ProgramOptions::default()).unwrap();
    assert_eq!(ExecObj::new(&program, false).unwrap_err().code(), "call.state");
    program.load().unwrap();
    assert_eq!(free_cores(&context, 1), 16);
    program.activate().unwrap();
    program.activate().unwrap();
    assert_eq!(free_cores(&context, 1), 16 - needed);
    assert_eq!(free_cores(&context, 0), 16);
    let exec = ExecObj::new(&program, false).unwrap();
    drop(program);
    drop(exec);
    assert_eq!(free_cores(&context, 1), 16);
}

#[test]
fn set_too_large_for_the_device_is_refused_with_the_counts() {
    let context = context();
    let image = recorded();
    let cores = image.network.num_cores.max(1);
    let too_many = 16 / cores + 1;
    match try_set(&context, &image, 1, too_many, ProgramOptions::default()).unwrap_err().into_detail() {
        ErrorDetail::Device(DeviceError::Busy { id: 0, needed, free: 16, total: 16 }) => {
            assert_eq!(needed, cores * too_many)
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(free_cores(&context, 0), 16);
}

#[test]
fn missing_device_or_empty_set_is_refused() {
    let context = context();
    let image = recorded();
    let refused = |device, set_size, count| {
        let (place, options) = (Placement::one(DeviceId(device)), ProgramOptions::default());
        InferenceSet::new(&context, &image, &place, set_size, count, options).unwrap_err().code()
    };
    assert_eq!(refused(2, 1, 1), "device.not_found");
    assert_eq!(refused(0, 0, 1), "call.argument");
    assert_eq!(refused(0, 1, 0), "call.argument");
}

#[test]
fn wait_for_an_exec_object_ends_by_deadline_interrupt_or_return() {
    let context = context();
    let set = set(&context, &recorded(), 1, 1);
    let held = set.try_lease().unwrap();
    assert!(set.try_acquire().is_none());
    assert_eq!(set.acquire(&mut soon()).unwrap_err().code(), "device.timeout");
    assert_interrupted(|scope| set.acquire(scope));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| set.lease(&mut WaitScope::default()).map(drop));
        drop(held);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn benchmark_with_a_count_runs_exactly_that_many() {
    let context = context();
    let set = set(&context, &recorded(), 4, 2);
    let input = [0; 768];
    let outcome = benchmark(&set, &input, Some(1000), None).unwrap();
    assert_eq!(outcome.completed, 1000);
    let nothing = Some(Duration::ZERO);
    // A time limit alone permits the first inference.
    assert_eq!(benchmark(&set, &input, None, nothing).unwrap().completed, 1);
    let short = Duration::from_millis(3);
    assert!(benchmark(&set, &input, None, Some(short)).unwrap().elapsed >= short);
    assert_eq!(benchmark(&set, &[0; 3], Some(5), None).unwrap_err().code(), "input.size");
    assert!(set.try_acquire().is_some());
}

#[test]
fn benchmark_that_is_to_go_no_further_ends_and_gives_its_handles_back() {
    let set = set(&context(), &recorded(), 4, 2);
    let progress = BenchmarkProgress::new(&set);
    // Each run counts from zero.
    for last in [3, 1] {
        let mut ended = 0;
        let mut bind = |_, bindings: &mut Bindings| {
            bindings.inputs[0] = InputBinding::Memory(Storage::of(&[0; 768]).unwrap().into());
        };
        let go_on = |_| {
            ended += 1;
            ended < last
        };
        let outcome = set.benchmark(None, None, &progress, &mut bind, go_on, &mut WaitScope::default());
        assert_eq!(outcome.unwrap_err().code(), "call.interrupted");
        assert_eq!((ended, progress.completed().sum::<u64>()), (last, last));
    }
    assert_eq!(std::iter::from_fn(|| set.try_acquire()).count(), 8);
}

fn benchmark(
    set: &InferenceSet,
    input: &[u8],
    count: Option<u64>,
    limit: Option<Duration>,
) -> Result<BenchmarkOutcome, RuntimeError> {
    let progress = BenchmarkProgress::new(set);
    let outcome = set.benchmark(
        count,
        limit,
        &progress,
        |_, bindings| bindings.inputs[0] = InputBinding::Memory(Storage::of(input).unwrap().into()),
        |_| true,
        &mut WaitScope::default(),
    )?;
    assert_eq!(progress.completed().sum::<u64>(), outcome.completed);
    Ok(outcome)
}

#[test]
fn container_for_a_card_is_refused_by_the_cpu_device() {
    let options = RegistryOptions { kind: Some("cpu".to_owned()), ..RegistryOptions::default() };
    let context = Context::new(&options).unwrap();
    let program =
        Program::new(&context, &recorded(), &Placement::one(DeviceId(0)), &ProgramOptions::default())
            .unwrap();
    match program.load().unwrap_err().into_detail() {
        ErrorDetail::Device(DeviceError::WrongTarget { built_for, kind: "cpu", .. }) => {
            assert_eq!(built_for, "a card")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn stuck_inference_times_out_and_the_set_works_on() {
    let context = context();
    control(&context).plan("execute@1=stuck").unwrap();
    // 20 ms, and 20 ms more for each of the two retries.
    let wait = WaitLimits { try_ms: 20, retries: 2, ..WaitLimits::default() };
    let set =
        try_set(&context, &recorded(), 1, 1, ProgramOptions { wait, ..ProgramOptions::default() }).unwrap();
    let handle = set.try_acquire().unwrap();
    let exec = set.exec_obj(handle).unwrap();
    let input = Storage::new(768).unwrap();
    exec.bind(|bindings| bindings.inputs[0] = InputBinding::Memory(input.into())).unwrap();
    set.submit(handle, 1, Detached::assume()).unwrap();
    assert_eq!(set.get_completed_id(1, &mut WaitScope::default()).unwrap(), handle);
    let error = set.exec_obj(handle).unwrap().outcome().unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("60 ms")), ("device.timeout", true), "{error}");
    // A busy machine may also delay the next inference beyond its limit.
    assert!((0..1_000).any(|_| exec.run(&mut WaitScope::default()).is_ok()));
    set.exec_obj(handle).unwrap().outcome().unwrap();
}

#[test]
fn wait_limits_multiply_time_and_tries() {
    use qaic_runtime::device::DeviceKind::{Cpu, Noop};
    let total = |try_ms, retries, kind| WaitLimits { try_ms, retries, ..WaitLimits::default() }.total(kind);
    assert_eq!(total(0, 5, Noop), Some(Duration::from_secs(30)));
    assert_eq!(total(0, 5, Cpu), None);
    assert_eq!(total(60_000, 0, Cpu), Some(Duration::from_mins(1)));
    assert_eq!(total(u32::MAX, u32::MAX, Noop).map(|limit| limit > Duration::from_hours(1)), Some(true));
}
