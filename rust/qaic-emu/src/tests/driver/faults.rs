//! Effects of each row of the table of faults on the system calls.

use std::os::fd::AsFd;

use crate::tests::prelude::*;
use crate::tests::rig::{ELF, activate_message, load};

#[test]
fn fault_of_a_full_ring_applies_as_often_as_planned() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let output = rig.output(active);
    rig.plan("execute@1=EAGAIN*50");
    for _ in 0..50 {
        assert_eq!(rig.execute(active, &[output]), Err(Errno::AGAIN));
    }
    assert_eq!(rig.execute(active, &[output]), Ok(()));
}

#[test]
fn fault_of_a_timeout_applies_as_often_as_planned() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let output = rig.output(active);
    rig.plan("wait@1=ETIMEDOUT*2");
    rig.execute(active, &[output]).unwrap();
    assert_eq!(rig.wait(active, output), Err(Errno::TIMEDOUT));
    assert_eq!(rig.wait(active, output), Err(Errno::TIMEDOUT));
    assert_eq!(rig.kmd.clock().now().as_secs(), 10, "their time went by");
    assert_eq!(rig.wait(active, output), Ok(()));
}

#[test]
fn wait_after_a_signal_sees_the_completion() {
    let rig = Rig::of(Profile::Ssr);
    rig.plan("manage@1=EINTR*2; wait@1=EINTR");
    assert_eq!(load(rig.file()), Err(Errno::INTR));
    assert_eq!(load(rig.file()), Err(Errno::INTR));
    // The firmware has loaded the images; their ids were lost with the replies.
    assert_eq!(rig.control.resource_usage().elves, 2);
    let active = rig.activate(8);
    let output = rig.output(active);
    rig.execute(active, &[output]).unwrap();
    assert_eq!(rig.wait(active, output), Err(Errno::INTR));
    assert_eq!(rig.wait(active, output), Ok(()));
}

#[test]
fn signal_during_a_blocking_call_ends_it() {
    let options = EmuOptions { signaled: Some(|| true), ..EmuOptions::default() };
    let rig = Rig::new(options);
    let active = rig.activate(8);
    let output = rig.output(active);
    rig.plan("inference@1=hang; features@1=hang");
    rig.execute(active, &[output]).unwrap();
    assert_eq!(rig.wait(active, output), Err(Errno::INTR));
    assert_eq!(rig.file().manage(&mut message::status_features()), Err(Errno::INTR));
}

#[test]
fn lost_completion_leaves_the_buffer_queued() {
    for plan in ["inference@1=lost_completion", "inference@1=short_completion", "inference@1=hang"] {
        let rig = Rig::of(Profile::Ssr);
        let active = rig.activate(16);
        let handle = rig.file().create_bo(4096).unwrap();
        let entry = AttachSliceEntry { size: 16, dev_addr: active.ddr_base, ..AttachSliceEntry::default() };
        rig.file().attach_slices(active.dbc_id, handle, DIR_FROM_DEVICE, 4096, &[entry; 3]).unwrap();
        rig.plan(plan);
        rig.execute(active, &[handle]).unwrap();
        assert_eq!(rig.wait(active, handle), Err(Errno::TIMEDOUT), "{plan}");
        assert_eq!(rig.file().detach_slices(handle), Err(Errno::BUSY), "{plan}");
        assert_eq!(rig.execute(active, &[handle]), Err(Errno::INVAL), "{plan}");
        assert_eq!(rig.deactivate(active), Ok(()), "{plan}");
    }
}

#[test]
fn dma_errors_are_reported_by_no_call() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let output = rig.output(active);
    rig.plan("inference@2=dma_status(7)");
    for _ in 0..3 {
        rig.execute(active, &[output]).unwrap();
        assert_eq!(rig.wait(active, output), Ok(()));
    }
    assert_eq!(rig.control.dma_errors(), 1);
}

#[test]
fn fault_of_a_checksum_is_epipe_and_leaves_the_message() {
    let rig = Rig::of(Profile::Ssr);
    rig.plan("command(load_elf)@1=crc; features@2=crc");
    let mut message = message::load_elf(1, 0, ELF);
    let sent = message.bytes().to_vec();
    assert_eq!(rig.file().manage(&mut message), Err(Errno::PIPE));
    assert_eq!(message.bytes(), sent);
    assert_eq!(rig.file().manage(&mut message::status_features()), Ok(()));
    assert_eq!(rig.file().manage(&mut message::status_features()), Err(Errno::PIPE));
}

#[test]
fn refusals_of_commands_change_nothing() {
    for status in [-13, -12, -15, -14, -4, -5, -102] {
        let rig = Rig::of(Profile::Ssr);
        let elf_id = load(rig.file()).unwrap();
        let before = rig.control.resource_usage();
        rig.plan(&format!(
            "command(activate)@1=nack({status}); command(activate)@2=nack_both({status}); command(load_elf)@1=nack({status})"
        ));
        for expected in [Ok(()), Err(Errno::CANCELED)] {
            let mut message = activate_message(elf_id, 8);
            assert_eq!(rig.file().manage(&mut message), expected);
            // Both forms of the reply are present.
            assert_eq!(ActivateReply::with_channel(&message).unwrap().status.0, status);
        }
        let mut message = message::load_elf(1, 0, ELF);
        assert_eq!(rig.file().manage(&mut message), Ok(()));
        assert_eq!(LoadElfReply::of(&message).unwrap().status.0, status);
        assert_eq!(rig.control.resource_usage(), before);
        assert!(rig.try_activate(8).is_ok());
    }
}

#[test]
fn refused_status_is_ecanceled_with_its_reply() {
    let rig = Rig::of(Profile::Ssr);
    rig.plan("features@1=nack(-8)");
    let mut message = message::status_features();
    assert_eq!(rig.file().manage(&mut message), Err(Errno::CANCELED));
    assert!(features(&message).is_ok());
}

#[test]
fn refused_deactivation_keeps_the_channel() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let output = rig.output(active);
    rig.execute(active, &[output]).unwrap();
    rig.plan("command(deactivate)@1=nack_both(-36)");
    let mut message = message::deactivate(active.activation_id, Some(active.dbc_id));
    assert_eq!(rig.file().manage(&mut message), Err(Errno::CANCELED));
    assert_eq!(DeactivateReply::of(&message).unwrap().status.0, -36);
    // Queued requests are lost; the channel and its attached memory are kept.
    assert_eq!(rig.wait(active, output), Ok(()));
    rig.execute(active, &[output]).unwrap();
    assert_eq!(rig.wait(active, output), Ok(()));
    assert_eq!(rig.deactivate(active), Ok(()));
}

#[test]
fn deactivation_whose_reply_is_lost_leaves_a_channel_without_an_owner() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let output = rig.output(active);
    rig.plan("command(deactivate)@1=hang");
    assert_eq!(rig.deactivate(active), Err(Errno::TIMEDOUT));
    assert_eq!(rig.kmd.clock().now().as_secs(), 60);
    assert_eq!(rig.execute(active, &[output]), Err(Errno::PERM));
    assert_eq!(rig.deactivate(active), Err(Errno::PERM));
    rig.close_with_given_up_channels();
}

#[test]
fn fault_of_no_memory_refuses_allocations() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    rig.plan("create_bo@2=ENOMEM; mmap_bo@1=ENOMEM; mmap@1=ENOMEM; attach@1=ENOMEM; attach@2=ENOSPC; import@1=ENOMEM");
    let handle = rig.file().create_bo(4096).unwrap();
    assert_eq!(rig.file().create_bo(4096), Err(Errno::NOMEM));
    assert_eq!(rig.file().mmap_offset(handle), Err(Errno::NOMEM));
    let offset = rig.file().mmap_offset(handle).unwrap();
    assert_eq!(rig.file.map(offset, 4096).unwrap_err(), Errno::NOMEM);
    assert!(rig.file.map(offset, 4096).is_ok());
    let entry = [AttachSliceEntry { size: 4096, ..AttachSliceEntry::default() }];
    let attach = || rig.file().attach_slices(active.dbc_id, handle, DIR_FROM_DEVICE, 4096, &entry);
    assert_eq!([attach(), attach(), attach()], [Err(Errno::NOMEM), Err(Errno::NOSPC), Ok(())]);
    assert_eq!(rig.file().import_dma_buf(std::io::stdin().as_fd()), Err(Errno::NOMEM));
}

#[test]
fn faults_of_replies_reach_the_caller() {
    let rig = Rig::of(Profile::Ssr);
    let elf_id = load(rig.file()).unwrap();
    for (action, expected, reads) in [
        ("wrong_type", Ok(()), false),
        ("truncated", Ok(()), false),
        ("count(5)", Ok(()), false),
        ("channel(16)", Ok(()), false),
        ("dbc(16)", Err(Errno::NODEV), false),
    ] {
        rig.plan(&format!("command(activate)@1={action}"));
        let mut message = activate_message(elf_id, 8);
        assert_eq!(rig.file().manage(&mut message), expected, "{action}");
        if expected.is_ok() {
            assert_eq!(ActivateReply::with_channel(&message).is_ok(), reads, "{action}");
        }
    }
    // The firmware's resources for the lost reply are released with the file.
    assert_eq!(rig.control.resource_usage().activations, 5);
}

#[test]
fn cards_of_another_protocol_never_come_online() {
    for transport_version in [(4, 0), (6, 0), (5, 1)] {
        let firmware = FirmwareConfig { transport_version, ..FirmwareConfig::default() };
        let kmd = qaic_emu::EmuKmd::new(EmuOptions { firmware, ..EmuOptions::default() }).unwrap();
        let node = kmd.enumerate().unwrap().remove(0);
        assert_eq!(kmd.open(&node).unwrap_err(), Errno::NODEV);
        kmd.control(0).unwrap().hurry();
        assert_eq!(kmd.open(&node).unwrap_err(), Errno::NODEV);
    }
}

#[test]
fn fault_of_an_open_is_its_errno() {
    let rig = Rig::of(Profile::Ssr);
    rig.plan("open@1=EACCES; open@2=ENOENT");
    assert_eq!(rig.open().unwrap_err(), Errno::ACCESS);
    assert_eq!(rig.open().unwrap_err(), Errno::NOENT);
    assert!(rig.open().is_ok());
    let missing = qaic_kmd::NodeInfo { path: None, ..rig.node.clone() };
    assert_eq!(rig.kmd.open(&missing).unwrap_err(), Errno::NOENT);
}
