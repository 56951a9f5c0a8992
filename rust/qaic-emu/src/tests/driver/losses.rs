//! Cards and channels that are lost: resets, restarts of cores, dead files.

use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::tests::prelude::*;
use crate::tests::rig::{Active, activate_message, events, load};

const LIMIT: Duration = Duration::from_mins(1);

/// Starts threads that wait for inferences that do not end, calls a function, and returns the results of the
/// waits.
fn lose_with_waiters(rig: &Rig, active: Active, count: usize, lose: impl FnOnce()) -> Vec<Result<(), Errno>> {
    let outputs: Vec<_> = (0..count).map(|_| rig.output(active)).collect();
    rig.plan("inference@1=hang");
    rig.execute(active, &outputs).unwrap();
    std::thread::scope(|scope| {
        let wait = |output: &u32| {
            let (file, output) = (Arc::clone(&rig.file), *output);
            scope.spawn(move || file.wait(active.dbc_id, output, 3_600_000))
        };
        let waits: Vec<_> = outputs.iter().map(wait).collect();
        assert!(rig.control.await_waiters(count, LIMIT));
        lose();
        waits.into_iter().map(|wait| wait.join().unwrap()).collect()
    })
}

#[test]
fn reset_fails_all_waits_and_files_of_new_kernels_work_again() {
    let rig = Rig::threaded();
    let active = rig.activate(16);
    let mut listener = rig.kmd.events().unwrap();
    let waits = lose_with_waiters(&rig, active, 5, || rig.control.reset());
    assert_eq!(waits, [Err(Errno::PERM); 5]);
    assert_eq!(rig.execute(active, &[1]), Err(Errno::NODEV));
    assert_eq!(rig.file().manage(&mut message::status_query()), Err(Errno::NODEV));
    assert_eq!(rig.file().create_bo(4096), Err(Errno::NODEV));
    assert_eq!(rig.open().unwrap_err(), Errno::NODEV);
    rig.control.hurry();
    let kinds: Vec<_> = events(&mut *listener).into_iter().map(|event| event.kind).collect();
    let idle = EventKind::Channel { dbc_id: active.dbc_id, state: DbcState::Idle };
    assert_eq!(kinds, [EventKind::Offline, idle, EventKind::Online]);
    // The same file works: its resources on the card are released, but its memory is kept.
    assert_eq!(rig.execute(active, &[1]), Err(Errno::PERM));
    let mut unload = message::unload_elf(active.elf_id);
    rig.file().manage(&mut unload).unwrap();
    assert!(!UnloadElfReply::of(&unload).unwrap().status.is_success());
    assert_eq!(rig.file().detach_slices(1), Err(Errno::INVAL));
    let active = rig.activate(16);
    let entry = [AttachSliceEntry { size: 4096, ..AttachSliceEntry::default() }];
    rig.file().attach_slices(active.dbc_id, 1, DIR_FROM_DEVICE, 4096, &entry).unwrap();
    rig.execute(active, &[1]).unwrap();
    rig.wait(active, 1).unwrap();
}

#[test]
fn reset_under_an_old_kernel_ends_its_files() {
    let rig = Rig::of(Profile::Old);
    let (active, output) = rig.active_with_output();
    let mut listener = rig.kmd.events().unwrap();
    rig.plan("inference@1=hang; time@1500ms=reset");
    rig.execute(active, &[output]).unwrap();
    assert_eq!(rig.wait(active, output), Err(Errno::PERM));
    assert_eq!(rig.kmd.clock().now(), Duration::from_millis(1500));
    assert_eq!(rig.kmd.enumerate().unwrap()[0].path, None);
    assert_eq!(rig.open().unwrap_err(), Errno::NOENT);
    rig.control.hurry();
    let kinds: Vec<_> = events(&mut *listener).into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Removed, EventKind::Added]);
    assert_eq!(rig.execute(active, &[output]), Err(Errno::NODEV));
    assert_eq!(rig.file().close_handle(output), Err(Errno::NODEV));
    assert_eq!(rig.file().manage(&mut message::status_query()), Err(Errno::NODEV));
    let again = rig.open().unwrap();
    assert!(load(&*again).is_ok());
}

#[test]
fn reset_ends_the_waits_for_the_firmware() {
    let rig = Rig::threaded();
    rig.plan("manage@1=hang");
    let file = Arc::clone(&rig.file);
    let call = std::thread::spawn(move || file.manage(&mut message::status_query()));
    assert!(rig.control.await_waiters(1, LIMIT));
    rig.control.reset();
    assert_eq!(call.join().unwrap(), Err(Errno::IO));
}

#[test]
fn reset_planned_at_a_call_fails_it() {
    for (plan, execute, wait) in [
        ("execute@1=reset", Err(Errno::NODEV), Err(Errno::NODEV)),
        ("inference@1=reset", Ok(()), Err(Errno::NODEV)),
        ("wait@1=reset", Ok(()), Err(Errno::PERM)),
    ] {
        let rig = Rig::of(Profile::New);
        let (active, output) = rig.active_with_output();
        rig.plan(plan);
        assert_eq!(rig.execute(active, &[output]), execute, "{plan}");
        assert_eq!(rig.wait(active, output), wait, "{plan}");
    }
    let rig = Rig::of(Profile::New);
    rig.plan("command(load_elf)@1=reset");
    assert_eq!(load(rig.file()), Err(Errno::IO));
    assert_eq!(load(rig.file()), Err(Errno::NODEV));
    rig.control.hurry();
    assert!(load(rig.file()).is_ok());
}

#[test]
fn file_of_an_old_kernel_after_its_card_died_stays_dead() {
    let rig = Rig::of(Profile::Old);
    let (active, output) = rig.active_with_output();
    rig.plan("wait@1=dead");
    rig.execute(active, &[output]).unwrap();
    assert_eq!(rig.wait(active, output), Err(Errno::PERM));
    assert_eq!(rig.wait(active, output), Err(Errno::NODEV));
    rig.control.hurry();
    assert_eq!(rig.file().create_bo(4096), Err(Errno::NODEV));
    let again = rig.open().unwrap();
    assert!(load(&*again).is_ok());
}

#[test]
fn restart_of_cores_loses_one_channel_only() {
    let rig = Rig::threaded();
    let (lost, kept) = (rig.activate(16), rig.activate(16));
    let kept_output = rig.output(kept);
    let mut listener = rig.kmd.events().unwrap();
    let waits = lose_with_waiters(&rig, lost, 3, || rig.control.restart_cores(lost.dbc_id, true));
    assert_eq!(waits, [Err(Errno::PIPE); 3]);
    assert_eq!(rig.execute(lost, &[1]), Err(Errno::PERM));
    assert_eq!(rig.wait(lost, kept_output), Err(Errno::PERM));
    let entry = [AttachSliceEntry { size: 4096, ..AttachSliceEntry::default() }];
    let attached = rig.file().attach_slices(lost.dbc_id, 2, DIR_FROM_DEVICE, 4096, &entry);
    assert_eq!(attached, Err(Errno::INVAL));
    rig.execute(kept, &[kept_output]).unwrap();
    rig.wait(kept, kept_output).unwrap();
    // Images can be loaded; activations must wait.
    let mut message = activate_message(lost.elf_id, 16);
    let answer = rig.file().manage(&mut message);
    assert!(matches!(answer, Ok(()) | Err(Errno::CANCELED)), "{answer:?}");
    assert_eq!(ActivateReply::of(&message).unwrap().status.0, -36);
    rig.control.hurry();
    let mut message = activate_message(lost.elf_id, 16);
    rig.file().manage(&mut message).unwrap();
    assert!(ActivateReply::with_channel(&message).unwrap().status.is_success());
    let dbc_id = lost.dbc_id;
    let walked = events(&mut *listener).into_iter().filter_map(|event| match event.kind {
        EventKind::Channel { dbc_id, state } if dbc_id == lost.dbc_id => Some(state as u32),
        _ => None,
    });
    assert_eq!(walked.collect::<Vec<_>>(), [2, 3, 4, 5, 0, 1], "of channel {dbc_id}");
}

#[test]
fn cores_without_power_stay_down_until_a_reset() {
    let rig = Rig::of(Profile::Ssr);
    let (active, output) = rig.active_with_output();
    let mut listener = rig.kmd.events().unwrap();
    rig.plan("inference@1=ssr_without_power_up");
    rig.execute(active, &[output]).unwrap();
    assert_eq!(rig.wait(active, output), Err(Errno::PERM));
    rig.control.hurry();
    let last = events(&mut *listener).pop().unwrap();
    assert_eq!(last.kind, EventKind::Channel { dbc_id: active.dbc_id, state: DbcState::BeforePowerUp });
    let mut message = activate_message(active.elf_id, 16);
    let _ = rig.file().manage(&mut message);
    assert_eq!(ActivateReply::of(&message).unwrap().status.0, -36);
    rig.control.reset();
    rig.control.hurry();
    rig.activate(16);
}

#[test]
fn restart_of_cores_under_older_kernels_is_a_hang() {
    for profile in [Profile::Old, Profile::New] {
        let rig = Rig::of(profile);
        let (active, output) = rig.active_with_output();
        let mut listener = rig.kmd.events().unwrap();
        rig.plan("inference@1=ssr");
        rig.execute(active, &[output]).unwrap();
        assert_eq!(rig.wait(active, output), Err(Errno::TIMEDOUT));
        assert!(events(&mut *listener).is_empty());
        assert_eq!(rig.deactivate(active), Ok(()));
    }
}

#[test]
fn timed_events_come_at_their_time() {
    let rig = Rig::of(Profile::Ssr);
    let mut listener = rig.kmd.events().unwrap();
    rig.control.reset();
    let kinds = |events: Vec<qaic_kmd::Event>| events.into_iter().map(|event| event.kind).collect::<Vec<_>>();
    assert_eq!(kinds(events(&mut *listener)), [EventKind::Offline]);
    let clock = rig.kmd.clock();
    clock.sleep(Duration::from_millis(1999));
    assert_eq!(kinds(events(&mut *listener)), []);
    clock.sleep(Duration::from_millis(1));
    assert_eq!(kinds(events(&mut *listener)), [EventKind::Online]);
}

#[test]
fn losses_under_many_threads_end_every_call() {
    let rig = Rig::threaded();
    let (stop, began) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let work = || {
            let mut completed = 0;
            while !stop.load(Ordering::Relaxed) {
                let Ok(active) = rig.try_activate(64) else { continue };
                let entry = [AttachSliceEntry { size: 4096, ..AttachSliceEntry::default() }];
                let Ok(handle) = rig.file().create_bo(4096) else { continue };
                began.fetch_add(1, Ordering::Relaxed);
                let lost = (|| {
                    rig.file().attach_slices(active.dbc_id, handle, DIR_FROM_DEVICE, 4096, &entry)?;
                    while !stop.load(Ordering::Relaxed) {
                        rig.execute(active, &[handle])?;
                        rig.wait(active, handle)?;
                        completed += 1;
                    }
                    rig.deactivate(active)
                })();
                let known = [Errno::PERM, Errno::PIPE, Errno::NODEV, Errno::INVAL, Errno::IO];
                assert!(lost.is_ok() || lost.is_err_and(|error| known.contains(&error)), "{lost:?}");
                let _ = rig.file().close_handle(handle);
                let _ = rig.file().manage(&mut message::unload_elf(active.elf_id));
            }
            completed
        };
        let workers: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        for round in 0..60 {
            // Each loss affects at least one active channel.
            while began.swap(0, Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            if round % 3 == 0 {
                rig.control.reset();
            } else {
                (0..16).for_each(|dbc_id| rig.control.restart_cores(dbc_id, true));
            }
            rig.control.hurry();
        }
        stop.store(true, Ordering::Relaxed);
        let completed: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert!(completed > 0);
    });
}
