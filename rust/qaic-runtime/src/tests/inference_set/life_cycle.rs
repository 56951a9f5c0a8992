//! The life cycles of a handle on a `noop` device and on a card: collected by id or in order, twice or never,
//! cancelled, lost.

use crate::tests::prelude::*;

fn bind_input(bindings: &mut Bindings) {
    bindings.inputs[0] =
        InputBinding::Memory(Storage::of(&f32_bytes(&[7.0; ELEMENTS as usize])).unwrap().into());
}

/// A set whose exec objects are all bound.
fn set(device: &dyn HeldDevice, set_size: u32, activations: u32) -> Arc<InferenceSet> {
    let set = device.set(&image(ElementType::Float32), set_size, activations);
    let handles: Vec<_> = std::iter::from_fn(|| set.try_acquire()).collect();
    assert_eq!(handles.len(), set.handle_count());
    for handle in handles {
        set.exec_obj(handle).unwrap().bind(bind_input).unwrap();
        set.put_completed(handle).unwrap();
    }
    set
}

#[test]
fn inferences_are_collected_by_id_and_in_order() {
    for device in of_each_kind() {
        let set = set(&*device, 2, 2);
        for id in 10..14 {
            let handle = set.try_acquire().unwrap();
            set.submit(handle, id, Detached::assume()).unwrap();
        }
        assert!(set.try_acquire().is_none());
        for id in [12, 10] {
            let handle = set.get_completed_id(id, &mut WaitScope::default()).unwrap();
            assert_eq!(set.id_of(handle), id);
            set.exec_obj(handle).unwrap().outcome().unwrap();
            set.put_completed(handle).unwrap();
        }
        let mut others: Vec<_> =
            (0..2).map(|_| set.id_of(set.get_completed(&mut WaitScope::default()).unwrap())).collect();
        others.sort_unstable();
        assert_eq!(others, [11, 13]);
        assert_eq!(set.get_completed(&mut WaitScope::default()).unwrap_err().code(), "inference.none");
        assert_eq!(
            set.get_completed_id(12, &mut WaitScope::default()).unwrap_err().code(),
            "inference.unknown"
        );
    }
}

#[test]
fn inference_is_collected_by_id_without_a_wait_once_it_has_ended() {
    for device in of_each_kind() {
        let set = set(&*device, 2, 1);
        let handles = [(); 2].map(|()| set.try_acquire().unwrap());
        device.hold();
        // Both inferences have the same id.
        for handle in handles {
            set.submit(handle, 5, Detached::assume()).unwrap();
        }
        assert_eq!(set.try_get_completed_id(5), None);
        device.release();
        set.wait_for_completion(&mut WaitScope::default()).unwrap();
        assert_eq!(set.try_get_completed_id(4), None);
        // Each handle is returned once, the oldest first.
        assert_eq!([(); 3].map(|()| set.try_get_completed_id(5)), [Some(handles[0]), Some(handles[1]), None]);
        assert_eq!(set.get_completed(&mut WaitScope::default()).unwrap_err().code(), "inference.none");
        for handle in handles {
            set.put_completed(handle).unwrap();
        }
    }
}

#[test]
fn misused_handle_is_refused_and_unchanged() {
    for device in of_each_kind() {
        let set = set(&*device, 1, 1);
        let handle = set.try_acquire().unwrap();
        device.hold();
        set.submit(handle, 1, Detached::assume()).unwrap();
        assert_eq!(set.submit(handle, 2, Detached::assume()).unwrap_err().code(), "inference.in_flight");
        assert_eq!(set.put_completed(handle).unwrap_err().code(), "inference.in_flight");
        let exec = set.exec_obj(handle).unwrap();
        assert_eq!(exec.bind(|_| ()).unwrap_err().code(), "inference.in_flight");
        assert_eq!(exec.enqueue(Detached::assume()).unwrap_err().code(), "inference.in_flight");
        assert_eq!(set.get_completed(&mut soon()).unwrap_err().code(), "device.timeout");
        assert_interrupted(|scope| set.get_completed_id(1, scope));
        assert_interrupted(|scope| set.wait_for_completion(scope));
        device.release();
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
}

#[test]
fn inference_without_its_input_is_refused_at_submission() {
    for device in of_each_kind() {
        let set = device.set(&image(ElementType::Float32), 1, 1);
        let handle = set.try_acquire().unwrap();
        assert_eq!(set.submit(handle, 1, Detached::assume()).unwrap_err().code(), "input.state_required");
        assert_eq!(
            set.get_completed_id(1, &mut WaitScope::default()).unwrap_err().code(),
            "inference.unknown"
        );
        set.exec_obj(handle).unwrap().bind(bind_input).unwrap();
        set.submit(handle, 1, Detached::assume()).unwrap();
        assert_eq!(set.get_completed_id(1, &mut WaitScope::default()).unwrap(), handle);
    }
}

#[test]
fn lost_device_fails_all_inferences_and_a_new_load_works() {
    for device in of_each_kind() {
        let first = set(&*device, 4, 1);
        device.hold();
        for id in 0..4 {
            first.submit(first.try_acquire().unwrap(), id, Detached::assume()).unwrap();
        }
        device.lose();
        for id in 0..4 {
            let handle = first.get_completed_id(id, &mut WaitScope::default()).unwrap();
            assert_eq!(first.exec_obj(handle).unwrap().outcome().unwrap_err().code(), "device.lost");
            first.put_completed(handle).unwrap();
        }
        device.recover();
        device.release();
        let handle = first.try_acquire().unwrap();
        first.submit(handle, 9, Detached::assume()).unwrap();
        first.get_completed_id(9, &mut WaitScope::default()).unwrap();
        assert_eq!(first.exec_obj(handle).unwrap().outcome().unwrap_err().code(), "device.lost");
        drop(first);
        let second = set(&*device, 1, 1);
        let handle = second.try_acquire().unwrap();
        second.submit(handle, 1, Detached::assume()).unwrap();
        second.get_completed_id(1, &mut WaitScope::default()).unwrap();
        second.exec_obj(handle).unwrap().outcome().unwrap();
    }
}

#[test]
fn set_dropped_with_inferences_ends_them_and_frees_the_cores() {
    for device in of_each_kind() {
        let free = || device.context().device(DeviceId(0)).unwrap().resources().nsp_free;
        let before = free();
        let set = set(&*device, 2, 2);
        assert!(free() < before);
        device.hold();
        for id in 0..4 {
            set.submit(set.try_acquire().unwrap(), id, Detached::assume()).unwrap();
        }
        drop(set);
        assert_eq!(free(), before);
        device.release();
    }
}

#[test]
fn exec_object_of_a_dropped_set_stays_valid() {
    for device in of_each_kind() {
        let set = set(&*device, 1, 1);
        let exec = Arc::clone(set.exec_obj(set.try_acquire().unwrap()).unwrap());
        drop(set);
        exec.run(&mut WaitScope::default()).unwrap();
    }
}

#[test]
fn cancelled_inference_ends_with_its_error() {
    for device in of_each_kind() {
        let program = Program::new(
            device.context(),
            &image(ElementType::Float32),
            &Placement::one(DeviceId(0)),
            &device.options(1),
        )
        .unwrap();
        let exec = ExecObj::new(&program, true).unwrap();
        exec.bind(bind_input).unwrap();
        exec.wait(&mut WaitScope::default()).unwrap();
        device.hold();
        exec.enqueue(Detached::assume()).unwrap();
        assert_interrupted(|scope| exec.wait(scope));
        assert!(exec.is_in_flight());
        exec.cancel();
        assert_eq!(exec.wait(&mut WaitScope::default()).unwrap_err().code(), "inference.cancelled");
        // An interrupted run is cancelled, and the inference ends before the call does.
        assert_interrupted(|scope| exec.run(scope));
        assert!(!exec.is_in_flight());
        device.release();
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
}

#[test]
fn inferences_collected_by_many_threads_reach_their_callers() {
    const THREADS: u64 = 64;
    for device in of_each_kind() {
        let set = set(&*device, 16, 2);
        device.hold();
        thread::scope(|scope| {
            for id in 0..THREADS {
                let set = &set;
                scope.spawn(move || {
                    let handle = set.acquire(&mut WaitScope::default()).unwrap();
                    set.submit(handle, id, Detached::assume()).unwrap();
                    let found = set.get_completed_id(id, &mut WaitScope::default()).unwrap();
                    assert_eq!((found, set.id_of(found)), (handle, id));
                    set.exec_obj(found).unwrap().outcome().unwrap();
                    set.put_completed(found).unwrap();
                });
            }
            device.await_executing(8);
            device.release();
        });
        assert_eq!(std::iter::from_fn(|| set.try_acquire()).count(), 32);
        let total: u64 = set.programs.iter().map(|program| program.completed.total()).sum();
        assert_eq!(total, THREADS);
    }
}
