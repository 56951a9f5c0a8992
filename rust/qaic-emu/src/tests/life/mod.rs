//! Whole lives of programs on emulated cards: driver, firmware, data path and cores together, through the
//! calls and the control protocol of a runtime.

mod program;
mod slices;

use self::program::{
    Adders, Exec, LEN, activate, deactivate, expected, load, open, sample, unload_constants, unload_elf,
};
use crate::tests::prelude::*;
use qaic_emu::firmware::{Performance, Totals};
use qaic_kmd::protocol::{CardStatus, parse};

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
    let named = rig.control.calls_named("manage").unwrap();
    assert!(named > 0);
    assert_eq!(named, rig.control.calls(Request::Manage));
    assert!(rig.control.calls_by_name().any(|call| call == ("manage", named)));
    let refusal = rig.control.calls_named("mange").unwrap_err();
    assert!(
        refusal.starts_with("unknown system call \"mange\"; expected one of manage, create_bo,"),
        "{refusal}"
    );
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
        let active = activate(&*rig.file, loaded, 512).unwrap();
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
        let active = activate(&*rig.file, load(&*rig.file), 512).unwrap();
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
    let active: Vec<_> = (0..2).map(|_| activate(&*rig.file, loaded, 512).unwrap()).collect();
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
        let theirs = activate(&*other, load(&*other), 512).unwrap();
        let mine = activate(&*rig.file, load(&*rig.file), 512).unwrap();
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
fn exhaustion_is_reported_in_one_transaction_or_in_both() {
    for nacks_both in [true, false] {
        let firmware = |totals| FirmwareConfig { totals, nacks_both, ..FirmwareConfig::default() };
        for (totals, status) in [
            (Totals { cores: 11, ..Totals::default() }, NncStatus::NSP_ALLOC),
            (Totals { multicast_ids: 19, ..Totals::default() }, NncStatus::MCID_ALLOC),
            (Totals { semaphores: 3, ..Totals::default() }, NncStatus::SEMAPHORE_ALLOC),
            (Totals { channels: 1, ..Totals::default() }, NncStatus::VC_ALLOC),
            (Totals { ddr_bytes: 100 << 20, ..Totals::default() }, NncStatus::MEMORY_EXHAUSTED),
        ] {
            let rig = Rig::new(EmuOptions { firmware: firmware(totals), ..adders() });
            let loaded = load(&*rig.file);
            let active = activate(&*rig.file, loaded, 512).unwrap();
            let before = rig.control.resource_usage();
            let called = if nacks_both { Err(Errno::CANCELED) } else { Ok(()) };
            assert_eq!(activate(&*rig.file, loaded, 512).unwrap_err(), (called, status));
            assert_eq!(rig.control.resource_usage(), before);
            assert_eq!(deactivate(&*rig.file, &active), (Ok(()), NncStatus::SUCCESS));
            assert!(activate(&*rig.file, loaded, 512).is_ok());
        }
    }
}

#[test]
fn inference_that_finds_a_full_ring_runs_later() {
    // An inference has three elements, or five with fragments of a page: twelve places hold two inferences.
    let rig = Rig::new(EmuOptions { fragment_bytes: 4096, ..adders() });
    let active = activate(&*rig.file, load(&*rig.file), 12).unwrap();
    let execs = [(); 3].map(|()| Exec::new(&rig.file, &active));
    assert_eq!((execs[0].submit(&sample(0)), execs[1].submit(&sample(1))), (Ok(()), Ok(())));
    assert_eq!(execs[2].submit(&sample(2)), Err(Errno::AGAIN));
    for seed in 0..2 {
        assert_eq!(execs[usize::from(seed)].wait(0).unwrap(), expected(&sample(seed)));
    }
    assert_eq!(execs[2].run(&sample(2)).unwrap(), expected(&sample(2)));
}

#[test]
fn doorbells_reach_the_cores() {
    let workload = Arc::new(Adders::default());
    let rang = Arc::clone(&workload.rang);
    let rig = Rig::new(EmuOptions { workload, ..EmuOptions::default() });
    let active = activate(&*rig.file, load(&*rig.file), 512).unwrap();
    let exec = Exec::new(&rig.file, &active);
    exec.run(&sample(1)).unwrap();
    exec.run(&sample(1)).unwrap();
    assert_eq!(*rang.lock().unwrap(), [99, 99]);
}

#[test]
fn cores_that_crash_lose_their_channel_and_can_be_activated_again() {
    let workload = Arc::new(Adders::default());
    let crashes = Arc::clone(&workload.crashes);
    let rig = Rig::new(EmuOptions { workload, ..EmuOptions::default() });
    let loaded = load(&*rig.file);
    let (lost, other) =
        (activate(&*rig.file, loaded, 512).unwrap(), activate(&*rig.file, loaded, 512).unwrap());
    let (exec, untouched) = (Exec::new(&rig.file, &lost), Exec::new(&rig.file, &other));
    crashes.store(true, Ordering::Relaxed);
    assert_eq!(exec.run(&sample(1)), Err(Errno::PIPE));
    crashes.store(false, Ordering::Relaxed);
    assert_eq!(untouched.run(&sample(2)).unwrap(), expected(&sample(2)));
    assert_eq!(activate(&*rig.file, loaded, 512).unwrap_err().1, NncStatus::RESTARTING);
    rig.control.hurry();
    assert_eq!(exec.run(&sample(1)), Err(Errno::PERM));
    // The images are still loaded; only the activation must be created again.
    let again = activate(&*rig.file, loaded, 512).unwrap();
    let exec_again = Exec::new(&rig.file, &again);
    assert_eq!(exec_again.run(&sample(1)).unwrap(), expected(&sample(1)));
}

#[test]
fn status_of_a_card_has_every_fact() {
    let config = FirmwareConfig {
        transport_version: (5, 0),
        status_flags: 0x12,
        format_version: 14,
        metadata_version: (1, 9),
        nnc_version: (17, 8),
        hw_version: 0x0003_0007,
        sku_type: 6,
        fw_version: [1, 2, 3, 4],
        qc_image: "q".repeat(37),
        oem_image: "oem".into(),
        image_variant: "v".repeat(15),
        sbl_image: "s".repeat(23),
        pvs_image_version: 5,
        nsp_version: [6, 7, 8, 9],
        serial: "x".repeat(15),
        board_serial: "b".repeat(31),
        nsp_defects: 1 << 40 | 3,
        totals: Totals { cores: 14, ..Totals::default() },
        performance: Performance { ddr_kilobytes_per_second: 1 << 40, ..Performance::default() },
        reply_tail_bytes: 8,
        ..FirmwareConfig::default()
    };
    let rig = Rig::new(EmuOptions { firmware: config.clone(), ..adders() });
    let active = activate(&*rig.file, load(&*rig.file), 512).unwrap();
    let mut status = message::status_query();
    calls::manage(&*rig.file, &mut status).unwrap();
    let status = CardStatus::of(&status).unwrap();
    assert_eq!(status.status, NncStatus::SUCCESS);
    assert_eq!((status.format_version, status.firmware_version()), (14, [1, 2, 3, 4]));
    for (found, expected) in [
        (status.qc_image_version.to_string(), &config.qc_image),
        (status.nsp_qc_image_version.to_string(), &config.qc_image),
        (status.oem_image_version.to_string(), &config.oem_image),
        (status.image_variant.to_string(), &config.image_variant),
        (status.sbl_image_name.to_string(), &config.sbl_image),
        (status.serial.to_string(), &config.serial),
        (status.board_serial.to_string(), &config.board_serial),
    ] {
        assert_eq!(&found, expected);
    }
    assert_eq!((status.hw_version, status.sku_type, status.pvs_image_version), (0x0003_0007, 6, 5));
    assert_eq!((status.metadata_version(), status.command_protocol()), ((1, 9), (17, 8)));
    assert_eq!(status.nsp_pgmask, config.nsp_defects);
    assert_eq!((status.num_loaded_consts, status.num_consts_in_use), (1, 1));
    assert_eq!((status.num_loaded_nws, status.num_active_nws), (1, 1));
    assert_eq!(status.nsp_version(), [6, 7, 8, 9]);
    let resources = status.resources;
    assert_eq!((resources.dram_total_mb, resources.dram_free_mb), (32_692, 32_692 - 65));
    assert_eq!((resources.vc_total, resources.vc_free), (16, 15));
    assert_eq!((resources.nsp_total, resources.nsp_free), (14, 8));
    assert_eq!((resources.mcid_total, resources.mcid_free), (3072, 3062));
    assert_eq!((resources.sem_total, resources.sem_free), (32, 30));
    assert_eq!((resources.pc_total, resources.pc_reserved), (16, 0));

    let mut info = message::resource_info(1, WHOLE_DEVICE);
    calls::manage(&*rig.file, &mut info).unwrap();
    let info = ResourceInfoReply::of(&info).unwrap();
    assert_eq!((info.res_grp_id, info.status, info.resources), (WHOLE_DEVICE, NncStatus::SUCCESS, resources));
    let mut info = message::resource_info(1, 77);
    calls::manage(&*rig.file, &mut info).unwrap();
    assert_eq!(ResourceInfoReply::of(&info).unwrap().status, NncStatus::NOT_FOUND);

    let mut performance = message::performance_info();
    calls::manage(&*rig.file, &mut performance).unwrap();
    let performance = PerformanceInfoReply::of(&performance).unwrap().performance;
    assert_eq!(performance, status.performance);
    assert_eq!(performance.nsp_hz, config.performance.nsp_hz);
    assert_eq!(performance.ddr_hz, config.performance.ddr_hz);
    assert_eq!(performance.compnoc_hz, config.performance.compute_noc_hz);
    assert_eq!(performance.memnoc_hz, config.performance.memory_noc_hz);
    assert_eq!(performance.sysnoc_hz, config.performance.system_noc_hz);
    assert_eq!(performance.peak_compute, config.performance.peak_operations_per_second);
    assert_eq!(performance.dram_bw_kb_per_s, 1 << 40);

    let mut features = message::status_features();
    calls::manage(&*rig.file, &mut features).unwrap();
    let features = parse::features(&features).unwrap();
    assert_eq!((features.major, features.minor, features.status, features.status_flags), (5, 0, 0, 0x12));
    assert_eq!(deactivate(&*rig.file, &active), (Ok(()), NncStatus::SUCCESS));
    assert_eq!(LEN, 5000);
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
            calls::manage(&*rig.kmd.open(node).unwrap(), &mut status).unwrap();
            let status = CardStatus::of(&status).unwrap();
            (status.serial.to_string(), status.board_serial.to_string())
        })
        .collect();
    let expected =
        ["0000", "0001", "0002"].map(|number| (format!("EMU-{number}"), format!("EMU-BOARD-{number}")));
    assert_eq!(serials, expected);
}
