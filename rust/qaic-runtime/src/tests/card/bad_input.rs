//! Incompatible programs and cards are refused before anything is loaded.

use crate::tests::prelude::*;

/// Returns the error of a load that sends nothing to the card.
#[track_caller]
fn refused(options: EmuOptions, spec: &CardProgramSpec) -> RuntimeError {
    let rig = Rig::with(options, spec);
    let error = rig.load().unwrap_err();
    // The card received only a status query.
    assert!(rig.card.calls(Request::Manage) <= 2);
    error
}

fn firmware(change: impl FnOnce(&mut FirmwareConfig)) -> EmuOptions {
    let mut options = EmuOptions::default();
    change(&mut options.firmware);
    options
}

#[test]
fn firmware_of_another_version_is_refused() {
    let error = refused(firmware(|config| config.metadata_version = (1, 1)), &CardProgramSpec::default());
    assert!(error.to_string().contains("metadata version 1.1, expected 1.0"), "{error}");
    let error = refused(firmware(|config| config.nnc_version = (16, 0)), &CardProgramSpec::default());
    assert!(error.to_string().contains("command protocol version 16.0, expected 17"), "{error}");
    // Tools still show such a card.
    let rig = Rig::with(firmware(|config| config.nnc_version = (16, 0)), &CardProgramSpec::default());
    assert_eq!(rig.device.facts().unwrap().firmware.unwrap().status.command_protocol(), (16, 0));
    let newer = Rig::with(firmware(|config| config.nnc_version = (17, 9)), &CardProgramSpec::default());
    newer.load().unwrap();
}

#[test]
fn program_for_other_hardware_is_refused() {
    let mut spec = CardProgramSpec::default();
    spec.metadata.hw_version_major = 3;
    let error = refused(EmuOptions::default(), &spec);
    assert!(
        matches!(error.detail(), ErrorDetail::Device(DeviceError::HardwareFamily { built_for, family: "ai100", .. }) if built_for == "ai200")
    );
    let rig = Rig::with(EmuOptions::default(), &spec);
    rig.device.load(&rig.image, &LoadOptions { any_hardware: true, ..LoadOptions::default() }).unwrap();
    Rig::with(firmware(|config| config.hw_version = 0x0003_0000), &spec).load().unwrap();
}

#[test]
fn node_without_permission_or_of_another_driver_is_refused() {
    let rig = |plan: &str| {
        Rig::with(
            EmuOptions { faults: FaultPlan::parse(plan, Target::Card).unwrap(), ..EmuOptions::default() },
            &CardProgramSpec::default(),
        )
    };
    let denied = rig("open@1=EACCES*all");
    let error = denied.load().unwrap_err();
    assert!(matches!(error.detail(), ErrorDetail::Card(CardError::Permission { .. })));
    assert!(error.to_string().contains("usermod") && error.to_string().contains("accel0"), "{error}");
    let DeviceStatus::Error { reason } = denied.device.status() else { panic!("ready") };
    assert!(reason.contains("no permission"));
    let missing = rig("open@1=ENOENT*all");
    assert_eq!(missing.load().unwrap_err().code(), "device.unavailable");
    assert!(matches!(missing.device.status(), DeviceStatus::Error { .. }));
    let options = EmuOptions { driver_name: "habanalabs".to_owned(), ..EmuOptions::default() };
    let error = refused(options, &CardProgramSpec::default());
    assert!(error.to_string().contains("habanalabs"), "{error}");
    let options = EmuOptions { driver_version: (1, 0), ..EmuOptions::default() };
    let error = refused(options, &CardProgramSpec::default());
    assert!(
        error.to_string().contains("interface 1.0") && error.to_string().contains("Linux 6.4"),
        "{error}"
    );
    let foreign = rig("version@1=ENOTTY*all");
    assert_eq!(foreign.load().unwrap_err().code(), "device.unavailable");
}

#[test]
fn program_with_a_wrong_checksum_is_refused() {
    for name in ["metadata.crc", "constants.bin.crc"] {
        let extra = vec![(name.to_owned(), vec![1, 2, 3, 4])];
        let spec = CardProgramSpec { extra, ..CardProgramSpec::default() };
        let error = refused(EmuOptions::default(), &spec);
        assert!(error.to_string().contains(&format!("{name} contains the CRC 0x04030201")), "{error}");
    }
    let mut spec = CardProgramSpec::default();
    let crc = qaic_qpc::crc32(&spec.metadata.encode_flatbuffer());
    spec.extra = vec![("metadata.crc".to_owned(), crc.to_le_bytes().to_vec())];
    let rig = Rig::with(EmuOptions::default(), &spec);
    rig.load().unwrap();
}

#[test]
fn program_with_an_impossible_transfer_is_refused() {
    let mut outside = CardProgramSpec::default();
    outside.metadata.dma_requests[0].host_offset = 1;
    let error = refused(EmuOptions::default(), &outside);
    assert!(error.to_string().contains("DMA buffer 0, which has 64"), "{error}");
    let mut many = CardProgramSpec::default();
    let output = many.metadata.dma_requests.pop().unwrap();
    many.network.dma_buffers[0].size = 512;
    many.metadata.dma_requests = (0..511)
        .map(|at| qaic_qpc::metadata::DmaRequest {
            host_offset: at,
            size: 1,
            ..many.metadata.dma_requests[0].clone()
        })
        .collect();
    many.metadata.dma_requests.push(output);
    let error = refused(EmuOptions::default(), &many);
    assert!(error.to_string().contains("512 slices, but the ring has room for 511"), "{error}");
}

#[test]
fn constants_beyond_their_descriptor_are_refused() {
    let mut spec = CardProgramSpec::default();
    spec.desc.static_constants_size = 20;
    spec.desc.dynamic_constants_size = 20;
    let error = refused(EmuOptions::default(), &spec);
    assert_eq!(error.code(), "program.transfers");
}
