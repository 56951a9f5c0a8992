//! Objects of the parent make no system calls in a forked process, because the card belongs to the parent.

use std::process::Command;
use std::sync::Barrier;
use std::{env, mem};

use crate::tests::prelude::*;
use qaic_emu::Control;
use qaic_kmd::{PciAddress, VirtualClock};
use qaic_runtime::process::fork;

/// A kernel whose card opens when the test permits it.
#[derive(Debug)]
struct Slow(Barrier);

impl Kmd for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        let path = Some("/dev/accel/accel0".into());
        Ok(vec![NodeInfo { qid: 0, path, address: PciAddress::default(), pci: None }])
    }

    fn open(&self, _: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        self.0.wait();
        self.0.wait();
        Err(Errno::NODEV)
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(VirtualClock::default())
    }
}

/// The fork happens while another thread of the parent opens the card and holds its locks.
fn a_child_touches_no_lock() {
    let slow = Arc::new(Slow(Barrier::new(2)));
    let device = CardDevice::enumerate(&(Arc::clone(&slow) as Arc<dyn Kmd>)).unwrap().remove(0);
    thread::scope(|scope| {
        scope.spawn(|| device.status());
        slow.0.wait();
        fork::forked();
        assert_eq!(device.facts().unwrap().firmware.unwrap_err().code(), "call.forked");
        assert_eq!(device.resources(), qaic_runtime::device::Resources::default());
        assert!(matches!(device.status(), DeviceStatus::Error { .. }));
        assert_eq!(device.reset().unwrap_err().code(), "call.forked");
        slow.0.wait();
    });
}

/// The test runs in a separate process, because an announced fork applies to the whole process.
#[test]
fn forked_child_makes_no_call_to_the_card() {
    const IS_CHILD: &str = "OPENQAIC_TEST_IS_FORKED";
    if env::var_os(IS_CHILD).is_none() {
        let (_, module) = module_path!().split_once("::").unwrap();
        let name = format!("{module}::forked_child_makes_no_call_to_the_card");
        let child =
            Command::new(env::current_exe().unwrap()).args(["--exact", &name]).env(IS_CHILD, "1").output();
        let said = String::from_utf8(child.unwrap().stdout).unwrap();
        assert!(said.contains("1 passed"), "{said}");
        return;
    }
    let rig = Rig::faulty("");
    let program = rig.load().unwrap();
    let activation = program.activate().unwrap();
    let mut exec = activation.create_exec().unwrap();
    let mut queued = activation.create_exec().unwrap();
    run(&mut *exec, 1).unwrap();
    queued.submit().unwrap();
    let made = |card: &Control| {
        let calls = [
            Request::Manage,
            Request::CreateBo,
            Request::ExecuteBo,
            Request::WaitBo,
            Request::DetachSliceBo,
            Request::GemClose,
            Request::Version,
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
    // The card still belongs to the parent.
    assert!(card.invariants().iter().any(|found| found.contains("channel 0 is owned")));
    mem::forget(card);
    a_child_touches_no_lock();
}
