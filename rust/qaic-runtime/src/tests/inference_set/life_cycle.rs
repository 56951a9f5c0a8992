//! The life cycles of a handle on the `noop` device: collected by id or in order, twice or never, cancelled,
//! late, lost.

use crate::tests::prelude::*;

static INPUT: [u8; 768] = [7; 768];

/// Contexts with equal options share devices, so every test uses different options.
fn context() -> Arc<Context> {
    let context = noop(RegistryOptions::default());
    if module_path!().ends_with("queueing") {
        control(&context).queue();
    }
    context
}

fn bind_input(bindings: &mut Bindings) {
    bindings.inputs[0] = InputBinding::Memory(Storage::of(&INPUT).unwrap().into());
}

/// A set whose exec objects are all bound.
fn set(
    context: &Arc<Context>,
    set_size: u32,
    activations: u32,
    options: ProgramOptions,
) -> Arc<InferenceSet> {
    let set = try_set(context, &recorded(), set_size, activations, options).unwrap();
    let handles: Vec<_> = std::iter::from_fn(|| set.try_acquire()).collect();
    assert_eq!(handles.len(), set.handle_count());
    for handle in handles {
        set.exec_obj(handle).unwrap().bind(bind_input).unwrap();
        set.put_completed(handle).unwrap();
    }
    set
}

fn limits(try_ms: u32, retries: u32) -> ProgramOptions {
    ProgramOptions {
        wait: WaitLimits { try_ms, retries, ..WaitLimits::default() },
        ..ProgramOptions::default()
    }
}

#[test]
fn inferences_are_collected_by_id_and_in_order() {
    let context = context();
    let set = set(&context, 2, 2, ProgramOptions::default());
    for id in 10..14 {
        let handle = set.try_acquire().unwrap();
        set.submit(handle, id, Detached::assume()).unwrap();
    }
    assert!(set.try_acquire().is_none());
    for id in [12, 10] {
        let handle = set.get_completed_id(id, &mut WaitScope::default()).unwrap();
        assert_eq!(set.id_of(handle), id);
        set.outcome(handle).unwrap();
        set.put_completed(handle).unwrap();
    }
    let mut others: Vec<_> =
        (0..2).map(|_| set.id_of(set.get_completed(&mut WaitScope::default()).unwrap())).collect();
    others.sort_unstable();
    assert_eq!(others, [11, 13]);
    assert_eq!(set.get_completed(&mut WaitScope::default()).unwrap_err().code(), "inference.none");
    assert_eq!(set.get_completed_id(12, &mut WaitScope::default()).unwrap_err().code(), "inference.unknown");
}

#[test]
fn inference_is_collected_by_id_without_a_wait_once_it_has_ended() {
    let context = context();
    let control = control(&context);
    let set = set(&context, 2, 1, ProgramOptions::default());
    let handles = [(); 2].map(|()| set.try_acquire().unwrap());
    control.hold().unwrap();
    // Both inferences have the same id.
    for handle in handles {
        set.submit(handle, 5, Detached::assume()).unwrap();
    }
    assert_eq!(set.try_get_completed_id(5), None);
    control.release().unwrap();
    set.wait_for_completion(&mut WaitScope::default()).unwrap();
    assert_eq!(set.try_get_completed_id(4), None);
    // Each handle is returned once, the oldest first.
    assert_eq!([(); 3].map(|()| set.try_get_completed_id(5)), [Some(handles[0]), Some(handles[1]), None]);
    assert_eq!(set.get_completed(&mut WaitScope::default()).unwrap_err().code(), "inference.none");
    for handle in handles {
        set.put_completed(handle).unwrap();
    }
}

#[test]
fn misused_handle_is_refused_and_unchanged() {
    let context = context();
    let control = control(&context);
    let set = set(&context, 1, 1, ProgramOptions::default());
    let handle = set.try_acquire().unwrap();
    control.hold().unwrap();
    set.submit(handle, 1, Detached::assume()).unwrap();
    assert_eq!(set.submit(handle, 2, Detached::assume()).unwrap_err().code(), "inference.in_flight");
    assert_eq!(set.put_completed(handle).unwrap_err().code(), "inference.in_flight");
    let exec = set.exec_obj(handle).unwrap();
    assert_eq!(exec.bind(|_| ()).unwrap_err().code(), "inference.in_flight");
    assert_eq!(exec.enqueue(Detached::assume()).unwrap_err().code(), "inference.in_flight");
    assert_eq!(set.get_completed(&mut soon()).unwrap_err().code(), "device.timeout");
    assert_interrupted(|scope| set.get_completed_id(1, scope));
    assert_interrupted(|scope| set.wait_for_completion(scope));
    control.release().unwrap();
    set.wait_for_completion(&mut WaitScope::default()).unwrap();
    // The handle is put back without a collection, which a wait for all does not require.
    set.put_completed(handle).unwrap();
    assert_eq!(set.put_completed(handle).unwrap_err().code(), "call.state");
    // A handle that was put back is submitted again, and leaves the list of free handles.
    set.submit(handle, 3, Detached::assume()).unwrap();
    assert!(set.try_acquire().is_none());
    assert_eq!(set.get_completed_id(3, &mut WaitScope::default()).unwrap(), handle);
    // Collects the inference, and submits the handle again at once.
    set.submit(handle, 3, Detached::assume()).unwrap();
    assert_eq!(set.get_completed(&mut WaitScope::default()).unwrap(), handle);
    set.put_completed(handle).unwrap();
    assert_eq!(set.try_acquire(), Some(handle));
    assert!(set.try_acquire().is_none());
}

#[test]
fn inference_without_its_input_is_refused_at_submission() {
    let context = context();
    let set = try_set(&context, &recorded(), 1, 1, ProgramOptions::default()).unwrap();
    let handle = set.try_acquire().unwrap();
    assert_eq!(set.submit(handle, 1, Detached::assume()).unwrap_err().code(), "input.state_required");
    assert_eq!(set.get_completed_id(1, &mut WaitScope::default()).unwrap_err().code(), "inference.unknown");
    set.exec_obj(handle).unwrap().bind(bind_input).unwrap();
    set.submit(handle, 1, Detached::assume()).unwrap();
    assert_eq!(set.get_completed_id(1, &mut WaitScope::default()).unwrap(), handle);
}

#[test]
fn stuck_inference_times_out_and_the_set_works_on() {
    let context = context();
    control(&context).plan("execute@1=stuck").unwrap();
    // 20 ms, and 20 ms more for each of the two retries.
    let set = set(&context, 1, 1, limits(20, 2));
    let handle = set.try_acquire().unwrap();
    set.submit(handle, 1, Detached::assume()).unwrap();
    assert_eq!(set.get_completed_id(1, &mut WaitScope::default()).unwrap(), handle);
    let error = set.outcome(handle).unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("60 ms")), ("device.timeout", true), "{error}");
    // A busy machine may delay the next inference beyond its limit, too.
    let exec = set.exec_obj(handle).unwrap();
    assert!((0..1_000).any(|_| exec.run(&mut WaitScope::default()).is_ok()));
    set.outcome(handle).unwrap();
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

#[test]
fn lost_device_fails_all_inferences_and_a_new_load_works() {
    let context = context();
    let control = control(&context);
    let first = set(&context, 4, 1, ProgramOptions::default());
    control.hold().unwrap();
    for id in 0..4 {
        first.submit(first.try_acquire().unwrap(), id, Detached::assume()).unwrap();
    }
    control.lose().unwrap();
    for id in 0..4 {
        let handle = first.get_completed_id(id, &mut WaitScope::default()).unwrap();
        assert_eq!(first.outcome(handle).unwrap_err().code(), "device.lost");
        first.put_completed(handle).unwrap();
    }
    control.recover().unwrap();
    control.release().unwrap();
    let handle = first.try_acquire().unwrap();
    first.submit(handle, 9, Detached::assume()).unwrap();
    first.get_completed_id(9, &mut WaitScope::default()).unwrap();
    assert_eq!(first.outcome(handle).unwrap_err().code(), "device.lost");
    drop(first);
    let second = set(&context, 1, 1, ProgramOptions::default());
    let handle = second.try_acquire().unwrap();
    second.submit(handle, 1, Detached::assume()).unwrap();
    second.get_completed_id(1, &mut WaitScope::default()).unwrap();
    second.outcome(handle).unwrap();
}

#[test]
fn set_dropped_with_inferences_ends_them_and_frees_the_cores() {
    let context = context();
    let control = control(&context);
    let free = || context.device(DeviceId(0)).unwrap().resources().nsp_free;
    let before = free();
    let set = set(&context, 8, 2, ProgramOptions::default());
    assert!(free() < before);
    control.hold().unwrap();
    for id in 0..16 {
        set.submit(set.try_acquire().unwrap(), id, Detached::assume()).unwrap();
    }
    drop(set);
    assert_eq!((free(), control.executing().unwrap()), (before, 0));
    control.release().unwrap();
}

#[test]
fn exec_object_of_a_dropped_set_stays_valid() {
    let context = context();
    let set = set(&context, 1, 1, ProgramOptions::default());
    let exec = Arc::clone(set.exec_obj(set.try_acquire().unwrap()).unwrap());
    drop(set);
    exec.run(&mut WaitScope::default()).unwrap();
}

#[test]
fn cancelled_inference_ends_with_its_error() {
    let context = context();
    let control = control(&context);
    let program =
        Program::new(&context, &recorded(), &Placement::one(DeviceId(0)), &ProgramOptions::default())
            .unwrap();
    let exec = ExecObj::new(&program, true).unwrap();
    exec.bind(bind_input).unwrap();
    exec.wait(&mut WaitScope::default()).unwrap();
    control.hold().unwrap();
    exec.enqueue(Detached::assume()).unwrap();
    assert_interrupted(|scope| exec.wait(scope));
    assert!(exec.is_in_flight());
    exec.cancel();
    assert_eq!(exec.wait(&mut WaitScope::default()).unwrap_err().code(), "inference.cancelled");
    // An interrupted run is cancelled, and the inference ends before the call does.
    assert_interrupted(|scope| exec.run(scope));
    assert!(!exec.is_in_flight());
    control.release().unwrap();
    exec.run(&mut WaitScope::default()).unwrap();
    assert_eq!(program.completed.total(), 1);
    assert_eq!(program.unload().unwrap_err().code(), "program.live_exec_objs");
    program.deactivate().unwrap();
    assert!(program.is_activated());
    assert_eq!(ExecObj::new(&program, false).unwrap_err().code(), "call.state");
    drop(exec);
    assert!(!program.is_activated());
    program.activate().unwrap();
    program.deactivate().unwrap();
    program.unload().unwrap();
    assert!(!program.is_loaded());
}

#[test]
fn inferences_collected_by_many_threads_reach_their_callers() {
    const THREADS: u64 = 64;
    let context = context();
    let set = set(&context, 16, 2, ProgramOptions::default());
    let control = control(&context);
    control.hold().unwrap();
    thread::scope(|scope| {
        for id in 0..THREADS {
            let set = &set;
            scope.spawn(move || {
                let handle = set.acquire(&mut WaitScope::default()).unwrap();
                set.submit(handle, id, Detached::assume()).unwrap();
                let found = set.get_completed_id(id, &mut WaitScope::default()).unwrap();
                assert_eq!((found, set.id_of(found)), (handle, id));
                set.outcome(found).unwrap();
                set.put_completed(found).unwrap();
            });
        }
        await_executing(&control, 8);
        control.release().unwrap();
    });
    assert_eq!(std::iter::from_fn(|| set.try_acquire()).count(), 32);
    let total: u64 = set.programs.iter().map(|program| program.completed.total()).sum();
    assert_eq!(total, THREADS);
}
