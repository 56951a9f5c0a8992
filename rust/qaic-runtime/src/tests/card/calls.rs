//! The system calls of the runtime.

use crate::tests::prelude::*;

#[test]
fn inference_on_a_card_is_one_execute_and_one_wait() {
    let rig = Rig::new();
    let mut exec = rig.exec();
    let before: Vec<_> = rig.card.calls_by_name().collect();
    for value in 1..=10 {
        run(&mut *exec, value).unwrap();
    }
    for ((name, before), (_, after)) in before.into_iter().zip(rig.card.calls_by_name()) {
        let is_of_run = matches!(name, "execute" | "wait");
        assert_eq!(after - before, if is_of_run { 10 } else { 0 }, "{name}");
    }
}

#[test]
fn requests_after_the_last_output_end_before_the_next_inference() {
    let mut spec = CardProgramSpec::default();
    spec.metadata.dma_requests.push(DmaRequest::default());
    let rig = Rig::with(EmuOptions::default(), &spec);
    let mut exec = rig.exec();
    for value in 1..=3 {
        run(&mut *exec, value).unwrap();
    }
    // Waits for outputs, and for the requests after them if the card is not ready for the next inference.
    assert_eq!([Request::ExecuteBo, Request::WaitBo].map(|request| rig.card.calls(request)), [5, 5]);
}

#[test]
fn program_loaded_run_and_dropped_makes_the_documented_calls() {
    let rig = Rig::new();
    assert_eq!(rig.card.calls(Request::Manage), 0);
    let program = rig.load().unwrap();
    // Status and features; constants and their two parts; the ELF.
    assert_eq!(rig.card.calls(Request::Manage), 6);
    let activation = program.activate().unwrap();
    let exec = activation.create_exec().unwrap();
    assert_eq!(rig.card.calls(Request::CreateBo), 2);
    drop(exec);
    assert_eq!([Request::DetachSliceBo, Request::GemClose].map(|request| rig.card.calls(request)), [2, 2]);
    // The slices are detached first, so the channel, which still exists, pins nothing.
    let kept = rig.card.invariants();
    assert!(!kept.iter().any(|found| found.contains("buffer objects")), "{kept:?}");
    // The same container is loaded again; its constants are still on the card.
    let second = rig.load().unwrap();
    assert_eq!(rig.card.calls(Request::Manage), 10);
    drop((activation, program));
    // The activation and its ELF.
    assert_eq!(rig.card.calls(Request::Manage), 12);
    drop(second);
    // The other ELF is unloaded, and the constants, which are now unused.
    assert_eq!(rig.card.calls(Request::Manage), 14);
}

#[test]
fn program_without_constants_loads_none() {
    let spec = CardProgramSpec { desc: ConstantsDesc::default(), ..CardProgramSpec::default() };
    let rig = Rig::with(EmuOptions::default(), &spec);
    let _program = rig.load().unwrap();
    assert_eq!(rig.card.calls(Request::Manage), 3);
}

#[test]
fn partial_program_sends_all_sizes_every_time() {
    for profile in [Profile::Old, Profile::New, Profile::Ssr] {
        let mut spec = CardProgramSpec::default();
        spec.network.inputs = vec![IoBinding { is_partial_allowed: true, ..IoBinding::default() }];
        let rig = Rig::with(EmuOptions { profile, ..EmuOptions::default() }, &spec);
        let mut exec = rig.exec();
        run(&mut *exec, 1).unwrap();
        exec.dma_buffer(0).unwrap().fill(2);
        exec.set_transfer_bytes(&[16, 0]);
        exec.execute().unwrap();
        let found = exec.dma_buffer(1).unwrap().as_const().to_vec();
        assert_eq!((&found[..16], &found[16..]), (&[2; 16][..], &[1; 48][..]), "{profile:?}");
        // Nothing remains for the next inference.
        run(&mut *exec, 3).unwrap();
        assert_eq!(rig.card.calls(Request::PartialExecuteBo), 3);
    }
}

/// The bits are in the reply's buffer, which the open runtime does not read.
#[test]
fn features_of_a_card_are_those_of_the_firmware() {
    let mut options = EmuOptions::default();
    options.firmware.status_flags = 0x1_0000_0012;
    let rig = Rig::with(options, &CardProgramSpec::default());
    assert_eq!(rig.device.facts().unwrap().firmware.unwrap().features, 0x1_0000_0012);
    // A card that does not report the bits also works.
    rig.plan("features@1=EIO");
    assert_eq!(rig.device.facts().unwrap().firmware.unwrap().features, 0);
}

#[test]
fn card_is_opened_by_its_first_query() {
    let rig = Rig::new();
    assert_eq!(rig.card.calls(Request::Version), 0);
    assert_eq!(rig.device.status(), DeviceStatus::Ready);
    let asked = rig.card.calls(Request::Manage);
    assert_eq!(rig.device.status(), DeviceStatus::Ready);
    assert_eq!(rig.card.calls(Request::Manage), asked);
    let facts = rig.device.facts().unwrap();
    let firmware = facts.firmware.unwrap();
    assert_eq!((firmware.status.metadata_version(), firmware.status.nnc_major), ((1, 0), 17));
    assert_eq!(firmware.status.hw_version >> 16, 2);
    assert!(firmware.status.resources.nsp_total > 0 && firmware.status.performance.nsp_hz > 0);
    assert_eq!(rig.device.resources().nsp_total, u32::from(firmware.status.resources.nsp_total));
    assert!(facts.telemetry.board_power_microwatts.is_some());
    let program = rig.load().unwrap();
    let _activation = program.activate().unwrap();
    let resources = rig.device.resources();
    assert_eq!((resources.programs_loaded, resources.programs_active), (1, 1));
    assert_eq!((resources.constants_loaded, resources.constants_in_use), (1, 1));
    assert_eq!(resources.nsp_free + 1, resources.nsp_total);
    assert_eq!(rig.card.calls(Request::Version), 1);
}
