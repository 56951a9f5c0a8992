//! In a forked process the objects of the parent make no system calls: the card is the parent's.
//!
//! A program of its own, because what it says about the process holds for all of it.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

#[allow(dead_code)] // it holds what other tests need
#[path = "kmd/rig.rs"]
mod rig;

use qaic_kmd::abi::request;
use qaic_kmd::emu::Control;
use qaic_runtime::device::DeviceStatus;
use qaic_runtime::fork;

use rig::{Rig, run};

#[test]
fn a_child_leaves_the_card_alone() {
    let rig = Rig::faulty("");
    let program = rig.load().unwrap();
    let activation = program.activate().unwrap();
    let mut exec = activation.create_exec().unwrap();
    let mut queued = activation.create_exec().unwrap();
    run(&mut *exec, 1).unwrap();
    queued.submit().unwrap();
    let made = |card: &Control| {
        let calls = [
            request::MANAGE,
            request::CREATE_BO,
            request::EXECUTE_BO,
            request::WAIT_BO,
            request::DETACH_SLICE_BO,
            request::GEM_CLOSE,
            request::VERSION,
        ];
        calls.map(|call| card.calls(call))
    };
    let before = made(&rig.card);
    rig.plan("");
    fork::forked();
    assert_eq!(exec.execute().unwrap_err().code(), "call.forked");
    assert_eq!(queued.execute().unwrap_err().code(), "call.forked");
    assert_eq!(queued.reclaim(&mut || false).unwrap_err().code(), "call.forked");
    assert_eq!(activation.create_exec().unwrap_err().code(), "call.forked");
    assert_eq!(program.activate().unwrap_err().code(), "call.forked");
    assert_eq!(rig.load().unwrap_err().code(), "call.forked");
    assert_eq!(rig.device.facts().unwrap().firmware.unwrap_err().code(), "call.forked");
    assert!(matches!(rig.device.status(), DeviceStatus::Error { .. }));
    let (card, device) = (rig.card, rig.device);
    drop((exec, queued, activation, program, device));
    assert_eq!(made(&card), before);
    // It is still the parent's.
    assert!(card.invariants().iter().any(|found| found.contains("channel 0 is owned")));
}
