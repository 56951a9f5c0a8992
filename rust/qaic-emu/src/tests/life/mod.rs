//! Whole lives of programs on emulated cards: driver, firmware, data path and cores together, through the
//! calls and the control protocol of a runtime.

mod program;
mod slices;

use self::program::{
    Adders, Exec, activate, deactivate, expected, load, open, sample, unload_constants, unload_elf,
};
use crate::tests::prelude::*;
use qaic_kmd::protocol::CardStatus;

fn adders() -> EmuOptions {
    EmuOptions { workload: Arc::new(Adders::default()), ..EmuOptions::default() }
}

fn every_way() -> impl Iterator<Item = EmuOptions> {
    let execution_modes = [ExecutionMode::Inline, ExecutionMode::Threads];
    let profiles = [Profile::Old, Profile::New, Profile::Ssr];
    execution_modes
        .into_iter()
        .flat_map(move |execution_mode| profiles.map(|profile| (execution_mode, profile)))
        .map(|(execution_mode, profile)| {
            let clock = match execution_mode {
                ExecutionMode::Inline => EmuClock::default(),
                ExecutionMode::Threads => EmuClock::System(SystemClock::default()),
            };
            // Small fragments, so that buffers consist of several slices.
            EmuOptions { execution_mode, profile, clock, fragment_bytes: 4096, ..adders() }
        })
}

#[test]
fn calls_are_counted_by_the_names_that_fault_plans_use() {
    let rig = Rig::new(adders());
    load(&*rig.file);
    let made = rig.control.calls(Request::Manage);
    assert!(made > 0);
    assert!(rig.control.calls_by_name().any(|call| call == ("manage", made)));
}

#[test]
fn waiting_for_blocked_calls_ends_when_it_is_given_up_or_late() {
    let control = Rig::new(adders()).control;
    let mut asked = 0;
    let should_stop = || {
        asked += 1;
        asked == 2
    };
    assert_eq!(control.await_waiters_unless(1, Duration::from_mins(1), should_stop), None);
    assert_eq!(asked, 2);
    assert_eq!(control.await_waiters_unless(1, Duration::ZERO, || true), Some(false));
    assert_eq!(control.await_waiters_unless(0, Duration::from_mins(1), || true), Some(true));
}

#[test]
fn program_loaded_run_and_unloaded_leaves_nothing() {
    for options in every_way() {
        let rig = Rig::new(options);
        let loaded = load(&*rig.file);
        let active = activate(&*rig.file, loaded);
        let exec = Exec::new(&rig.file, &active);
        let before = rig.control.calls(Request::Manage);
        for seed in 0..5 {
            assert_eq!(exec.run(&sample(seed)).unwrap(), expected(&sample(seed)));
        }
        // A run consists of an execute call and a wait.
        assert_eq!(rig.control.calls(Request::ExecuteBo), 5);
        assert_eq!(rig.control.calls(Request::WaitBo), 5);
        assert_eq!(rig.control.calls(Request::Manage), before);
        // The image is in use, so it stays.
        assert_eq!(unload_elf(&*rig.file, loaded), NncStatus::NOT_PERMITTED);
        assert_eq!(unload_constants(&*rig.file, loaded), NncStatus::NOT_PERMITTED);
        assert_eq!(exec.release(), [Ok(()), Ok(())]);
        assert_eq!(deactivate(&*rig.file, &active), (Ok(()), NncStatus::SUCCESS));
        assert_eq!(unload_elf(&*rig.file, loaded), NncStatus::SUCCESS);
        assert_eq!(unload_constants(&*rig.file, loaded), NncStatus::SUCCESS);
        assert!(rig.control.resource_usage().is_untouched());
        assert_eq!(rig.control.dma_errors(), 0);
    }
}

#[test]
fn inferences_in_flight_do_not_mix() {
    for options in every_way() {
        let rig = Rig::new(options);
        let active = activate(&*rig.file, load(&*rig.file));
        let execs: Vec<_> = (0..20).map(|_| Exec::new(&rig.file, &active)).collect();
        for round in 0..3 {
            for (seed, exec) in (0..).zip(&execs) {
                assert_eq!(exec.submit(&sample(seed + round)), Ok(()));
            }
            // Wait in the reverse of the order of submission.
            for (seed, exec) in (0..20).zip(&execs).rev() {
                assert_eq!(exec.wait(0).unwrap(), expected(&sample(seed + round)));
            }
        }
    }
}

#[test]
fn activations_of_one_program_have_memory_of_their_own() {
    let rig = Rig::new(adders());
    let loaded = load(&*rig.file);
    let active: Vec<_> = (0..2).map(|_| activate(&*rig.file, loaded)).collect();
    assert_ne!(active[0].ddr_base, active[1].ddr_base);
    assert_ne!(active[0].virtual_channel_id, active[1].virtual_channel_id);
    assert_eq!((active[0].nsp_mask.get(), active[1].nsp_mask.get()), (0x3F, 0xFC0));
    let execs = [Exec::new(&rig.file, &active[0]), Exec::new(&rig.file, &active[1])];
    assert_eq!(execs[0].submit(&sample(1)), Ok(()));
    assert_eq!(execs[1].run(&sample(2)).unwrap(), expected(&sample(2)));
    assert_eq!(execs[0].wait(0).unwrap(), expected(&sample(1)));
}

#[test]
fn closed_file_leaves_nothing_and_others_go_on() {
    for options in every_way() {
        let rig = Rig::new(options);
        let other = open(&rig.kmd);
        let theirs = activate(&*other, load(&*other));
        let mine = activate(&*rig.file, load(&*rig.file));
        let exec = Exec::new(&rig.file, &mine);
        let left_behind = Exec::new(&other, &theirs);
        assert_eq!(left_behind.submit(&sample(3)), Ok(()));
        // Ids are valid only for the file that created them.
        assert_eq!(deactivate(&*rig.file, &mine).0, Ok(()));
        assert_eq!(rig.control.resource_usage().activations, 1);
        drop((left_behind, other));
        assert_eq!(rig.control.resource_usage().activations, 0);
        assert_eq!(exec.run(&sample(1)), Err(Errno::PERM));
    }
}

#[test]
fn doorbells_reach_the_cores() {
    let workload = Arc::new(Adders::default());
    let rang = Arc::clone(&workload.rang);
    let rig = Rig::new(EmuOptions { workload, ..EmuOptions::default() });
    let active = activate(&*rig.file, load(&*rig.file));
    let exec = Exec::new(&rig.file, &active);
    exec.run(&sample(1)).unwrap();
    exec.run(&sample(1)).unwrap();
    assert_eq!(*rang.lock().unwrap(), [99, 99]);
}

#[test]
fn cards_of_one_kind_differ_by_their_serial_numbers() {
    let rig = Rig::new(EmuOptions { cards: 3, ..adders() });
    let serials: Vec<_> = rig
        .kmd
        .enumerate()
        .unwrap()
        .iter()
        .map(|node| {
            let mut status = message::status_query();
            rig.kmd.open(node).unwrap().manage(&mut status).unwrap();
            let status = CardStatus::of(&status).unwrap();
            (status.serial.to_string(), status.board_serial.to_string())
        })
        .collect();
    let expected =
        ["0000", "0001", "0002"].map(|number| (format!("EMU-{number}"), format!("EMU-BOARD-{number}")));
    assert_eq!(serials, expected);
}
