//! Everything around a device, on the `noop` device: loading, cores, exec objects, the inference set.

use std::path::Path;
use std::sync::atomic::AtomicUsize;

use crate::oracle::{view, view_mut};
use crate::tests::prelude::*;
use qaic_runtime::inference_set::{BenchmarkOutcome, BenchmarkProgress, Lease};

/// Contexts with equal options share devices, so every test uses different options.
fn context() -> Arc<Context> {
    noop(RegistryOptions { virtual_cards: Some(2), ..RegistryOptions::default() })
}

fn fixture(name: &str) -> Arc<Image> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/qpc").join(name);
    Image::open(&path, true).unwrap()
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
fn plain_tensors_pass_through() {
    // f32[1,3,8,8] in, f32[1,10] out: the output is the first bytes of the input.
    let context = context();
    let set = set(&context, &recorded(), 1, 1);
    let input: Vec<u8> = (0..768_u32).map(|k| k.to_le_bytes()[0]).collect();
    let mut output = vec![0xcc; 40];
    let mut views = [Some(view_mut(&mut output))];
    run(&set.try_lease().unwrap(), &[view(&input)], &mut views).unwrap();
    assert_eq!(output, input[..40]);
}

#[test]
fn converted_tensors_pass_through_their_device_form() {
    // Inputs: f32 -> i8 with 0.05, -3; outputs: i8 -> f32 with 0.125, 7.
    let context = context();
    let set = set(&context, &fixture("s05_quant_i8.qpc"), 1, 1);
    let input: Vec<u8> = [1.0_f32; 48].iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut output = vec![0; 160];
    let mut views = [Some(view_mut(&mut output))];
    run(&set.try_lease().unwrap(), &[view(&input)], &mut views).unwrap();
    let expected: Vec<u8> =
        [0.125_f32 * (17.0 - 7.0); 40].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(output, expected);
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
        InferenceSet::new(
            &context,
            &image,
            &Placement::one(DeviceId(device)),
            set_size,
            count,
            ProgramOptions::default(),
        )
        .unwrap_err()
        .code()
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
    let soon = Deadline::after(Duration::from_millis(1));
    assert_eq!(set.acquire(&mut WaitScope::until(soon)).unwrap_err().code(), "device.timeout");
    assert_eq!(
        set.acquire(&mut WaitScope::default().checked_by(&mut || true)).unwrap_err().code(),
        "call.interrupted"
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| set.lease(&mut WaitScope::default()).map(drop));
        drop(held);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn exec_objects_shared_by_many_threads_give_each_its_result() {
    let context = context();
    let set = set(&context, &recorded(), 2, 1);
    assert_eq!(set.handle_count(), 2);
    let in_flight = AtomicUsize::new(0);
    thread::scope(|scope| {
        for seed in 0..16_u8 {
            let (set, in_flight) = (&set, &in_flight);
            scope.spawn(move || {
                let input = [seed; 768];
                for _ in 0..50 {
                    let handle = set.lease(&mut WaitScope::default()).unwrap();
                    assert!(in_flight.fetch_add(1, Ordering::SeqCst) < 2);
                    let mut output = [0; 40];
                    run(&handle, &[view(&input)], &mut [Some(view_mut(&mut output))]).unwrap();
                    assert_eq!(output, [seed; 40]);
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
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
    // Counted again by each run.
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
