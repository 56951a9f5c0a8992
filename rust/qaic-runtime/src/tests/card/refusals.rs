//! Refusals of the firmware, and malformed answers.

use crate::tests::prelude::*;
use std::collections::BTreeSet;

/// Returns the error of loading and activating a program under a fault plan. Nothing remains on the card, and
/// a later attempt succeeds.
#[track_caller]
fn refused(plan: &str) -> RuntimeError {
    let rig = Rig::faulty(plan);
    let outcome = rig.load().and_then(|program| program.activate().map(|_| ()));
    let error = outcome.expect_err(plan);
    rig.plan("");
    let activation = rig.activation();
    run(&mut *activation.create_exec().unwrap(), 1).unwrap();
    error
}

#[test]
fn refusals_of_the_firmware_have_their_errors_and_take_nothing() {
    let mut seen = BTreeSet::new();
    for status in [-13, -12, -15, -14, -4, -5, -102] {
        let mut both = Vec::new();
        // The refusal is in the passthrough alone, or also in the channel's transaction, which makes the call
        // fail.
        for form in ["nack", "nack_both"] {
            let error = refused(&format!("command(activate)@1={form}({status})"));
            assert!(
                matches!(error.detail(), ErrorDetail::Card(CardError::Firmware { status: found, .. }) if *found == status),
                "{error}"
            );
            both.push(error.to_string());
        }
        assert_eq!(both[0], both[1]);
        seen.insert(both.remove(0));
    }
    assert_eq!(seen.len(), 7);
}

#[test]
fn card_without_free_cores_reports_their_count() {
    let mut options = EmuOptions::default();
    options.firmware.totals.cores = 2;
    let rig = Rig::with(options, &CardProgramSpec::default());
    let program = rig.load().unwrap();
    let held: Vec<_> = (0..2).map(|_| program.activate().unwrap()).collect();
    let error = program.activate().unwrap_err();
    assert!(
        matches!(error.detail(), ErrorDetail::Device(DeviceError::Busy { needed: 1, free: 0, total: 2, .. })),
        "{error}"
    );
    drop(held);
    program.activate().unwrap();
}

#[test]
fn load_refused_at_any_step_frees_all() {
    for command in ["load_constants_ex", "load_constants_payload", "load_elf", "status"] {
        for number in [1, 2] {
            if number == 2 && command != "load_constants_payload" {
                continue;
            }
            let error = refused(&format!("command({command})@{number}=nack(-4)"));
            assert_eq!(error.code(), "device.firmware", "{command}");
        }
    }
}

#[test]
fn activation_while_cores_restart_is_tried_five_times() {
    let rig = Rig::faulty("command(activate)@1=nack(-36)*4");
    let program = rig.load().unwrap();
    let (began, asked) = (rig.now(), rig.card.calls(Request::Manage));
    let _activation = program.activate().unwrap();
    assert_eq!(rig.now().checked_sub(began).unwrap().as_secs(), 4);
    assert_eq!(rig.card.calls(Request::Manage) - asked, 5);
    let error = refused("command(activate)@1=nack(-36)*5");
    assert!(matches!(error.detail(), ErrorDetail::Card(CardError::Firmware { status: -36, .. })));
}

#[test]
fn deactivation_refused_once_is_repeated() {
    for form in ["nack(-1)", "nack_both(-1)", "nack_both(-36)"] {
        let rig = Rig::faulty(&format!("command(deactivate)@1={form}"));
        drop(rig.activation());
    }
}

#[test]
fn deactivation_always_refused_hangs_no_thread() {
    let rig = Rig::faulty("command(deactivate)@1=nack_both(-1)*all");
    let program = rig.load().unwrap();
    drop(program.activate().unwrap());
    drop(program);
    rig.plan("");
    // The next program opens the card again, so that closing the old file frees everything.
    let again = rig.activation();
    run(&mut *again.create_exec().unwrap(), 1).unwrap();
}

#[test]
fn malformed_reply_is_refused() {
    for command in ["load_constants_ex", "load_elf", "activate", "status"] {
        for fault in ["wrong_type", "truncated"] {
            let error = refused(&format!("command({command})@1={fault}"));
            assert_eq!(error.code(), "device.firmware_protocol", "{command} {fault}: {error}");
        }
    }
    for plan in [
        "command(load_constants_ex)@1=count(5)",
        "command(activate)@1=count(5)",
        "command(activate)@1=channel(16)",
        "command(activate)@1=dbc(16)",
    ] {
        let error = refused(plan);
        assert_eq!(error.code(), "device.firmware_protocol", "{plan}: {error}");
    }
}

/// The firmware has loaded the object and its id is lost, so only closing the file frees it.
#[test]
fn remains_of_a_load_without_a_reply_go_with_the_next() {
    for command in ["load_constants_ex", "load_elf"] {
        for fault in ["truncated", "wrong_type", "crc"] {
            let rig = Rig::faulty(&format!("command({command})@1={fault}"));
            rig.load().unwrap_err();
            let left = rig.card.resource_usage();
            assert_eq!(left.elves + left.constants, 1, "{command} {fault}");
            let _program = rig.load().unwrap();
            let found = rig.card.resource_usage();
            assert_eq!((found.elves, found.constants), (1, 1), "{command} {fault}");
        }
    }
}

#[test]
fn wrong_checksum_is_reported_as_one() {
    for command in ["load_constants_ex", "load_elf", "activate", "status"] {
        let error = refused(&format!("command({command})@1=crc"));
        let ErrorDetail::Card(CardError::Driver { call: "MANAGE", source, .. }) = error.detail() else {
            panic!("{error}")
        };
        // 32 is EPIPE.
        assert_eq!(source.raw_os_error(), Some(32));
        assert!(error.to_string().contains("the checksum of the firmware's reply is wrong"), "{error}");
    }
}

#[test]
fn bad_pointer_and_missing_reply_have_errors_of_their_own() {
    // EFAULT, ETIMEDOUT, EAGAIN
    for (fault, errno) in [("EFAULT", 14), ("ETIMEDOUT", 110), ("EAGAIN*all", 11), ("hang", 110)] {
        let error = refused(&format!("command(load_elf)@1={fault}"));
        let ErrorDetail::Card(CardError::Driver { source, .. }) = error.detail() else { panic!("{error}") };
        assert_eq!(source.raw_os_error(), Some(errno), "{fault}");
        let is_silent = error.to_string().contains("the firmware did not reply in time");
        assert_eq!(is_silent, errno == 110, "{error}");
    }
}

/// The driver has not sent the message. A deactivation has nevertheless released the channel, so only its
/// command is sent again.
#[test]
fn control_message_without_room_is_sent_again() {
    for command in ["status", "load_constants_ex", "load_constants_payload", "load_elf", "activate"] {
        let rig = Rig::faulty(&format!("command({command})@1=EAGAIN*4"));
        run(&mut *rig.exec(), 1).unwrap();
    }
    // The deactivation, its command alone, and the unloads of image and constants.
    assert_eq!(messages_of_a_teardown("command(deactivate)@1=EAGAIN"), 4);
}

/// Returns the number of control messages of an activation's teardown with these faults.
fn messages_of_a_teardown(plan: &str) -> u64 {
    let rig = Rig::new();
    let activation = rig.activation();
    rig.plan(plan);
    let asked = rig.card.calls(Request::Manage);
    drop(activation);
    assert_eq!(rig.card.resource_usage().activations, 0);
    rig.card.calls(Request::Manage) - asked
}

/// The firmware has executed the command when the signal ends the wait for its reply.
#[test]
fn deactivation_that_a_signal_interrupts_is_over() {
    // The deactivation, its repetition that the driver refuses, and the unloads.
    assert_eq!(messages_of_a_teardown("command(deactivate)@1=EINTR"), 4);
}

#[test]
fn call_that_is_always_interrupted_fails_with_that_reason() {
    for command in ["load_elf", "activate"] {
        let error = refused(&format!("command({command})@1=EINTR*all"));
        let ErrorDetail::Card(CardError::Driver { call: "MANAGE", source, .. }) = error.detail() else {
            panic!("{error}")
        };
        assert_eq!(source.kind(), std::io::ErrorKind::Interrupted);
    }
}
