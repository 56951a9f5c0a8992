//! Errors of cards that cannot be opened or reset. They contain the error text of the system, if there is
//! one.

use crate::tests::prelude::*;
use qaic_kmd::{MemoryErrors, PciAddress, PciInfo, SysKmd, SystemClock};
use qaic_runtime::device::Device;

/// A kernel whose only card answers every call with an error.
#[derive(Debug)]
struct Refusing {
    errno: Errno,
    has_node: bool,
    advice: Option<&'static str>,
}

impl Kmd for Refusing {
    fn name(&self) -> &'static str {
        "refusing"
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        let address = PciAddress { bus: 0xC1, ..PciAddress::default() };
        let pci = PciInfo { device_name: "AIC100".to_owned(), ..PciInfo::default() };
        let path = self.has_node.then(|| "/dev/accel/accel0".into());
        Ok(vec![NodeInfo { qid: 0, path, address, pci: Some(pci) }])
    }

    fn open(&self, _: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        Err(self.errno)
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        Err(self.errno)
    }

    fn telemetry(&self, _: &NodeInfo) -> Telemetry {
        Telemetry { board_power_microwatts: Some(7), ..Telemetry::default() }
    }

    fn reset(&self, _: &NodeInfo) -> Result<(), Errno> {
        Err(self.errno)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock::default())
    }

    fn memory_errors(&self, _: &NodeInfo) -> MemoryErrors {
        MemoryErrors { correctable: Some(3), ..MemoryErrors::default() }
    }

    fn explain(&self, _: &NodeInfo, errno: Errno) -> Option<String> {
        let expected = if self.has_node { self.errno } else { Errno::NOENT };
        assert_eq!(errno, expected);
        self.advice.map(str::to_owned)
    }
}

fn card(errno: Errno, has_node: bool, advice: Option<&'static str>) -> Arc<dyn Device> {
    let kmd: Arc<dyn Kmd> = Arc::new(Refusing { errno, has_node, advice });
    CardDevice::enumerate(&kmd).unwrap().remove(0)
}

fn not_opened(device: &Arc<dyn Device>) -> RuntimeError {
    device.facts().unwrap().firmware.unwrap_err()
}

#[test]
fn open_error_with_advice_of_the_system_has_it_first() {
    for (errno, has_node, code) in [
        (Errno::ACCESS, true, "device.permission"),
        (Errno::PERM, true, "device.permission"),
        (Errno::NOENT, true, "device.unavailable"),
        (Errno::NOENT, false, "device.unavailable"),
        (Errno::NODEV, true, "device.unavailable"),
        (Errno::NOTTY, true, "device.unavailable"),
    ] {
        let error = not_opened(&card(errno, has_node, Some("join group `render`")));
        assert_eq!(error.code(), code);
        assert!(error.to_string().ends_with("join group `render`"), "{error}");
        let error = not_opened(&card(errno, has_node, None));
        assert_eq!(error.code(), code);
        assert!(!error.to_string().contains("render`"), "{error}");
    }
}

#[test]
fn card_that_cannot_be_opened_is_listed_with_its_facts() {
    let device = card(Errno::ACCESS, true, Some("join group `render`"));
    assert_eq!((device.id().0, device.name()), (0, "AIC100 at 0000:c1:00.0".to_owned()));
    let DeviceStatus::Error { reason } = device.status() else { panic!("it cannot be used") };
    assert!(reason.contains("/dev/accel/accel0") && reason.contains("join group"), "{reason}");
    let facts = device.facts().unwrap();
    assert_eq!(facts.telemetry.board_power_microwatts, Some(7));
    assert_eq!(facts.memory_errors.correctable, Some(3));
}

#[test]
fn refused_reset_says_why() {
    let error = |errno| card(errno, true, None).reset().unwrap_err();
    assert_eq!(error(Errno::OPNOTSUPP).code(), "device.unsupported");
    let forbidden = error(Errno::ACCESS);
    assert_eq!(forbidden.code(), "device.driver");
    assert!(forbidden.to_string().contains("only root can request"), "{forbidden}");
    assert_eq!(error(Errno::IO).code(), "device.driver");
}

#[test]
fn card_without_a_driver_says_what_to_load() {
    let root = std::env::temp_dir().join(format!("openqaic-opening-{}", std::process::id()));
    let card = root.join("sys/bus/pci/devices/0000:c1:00.0");
    std::fs::create_dir_all(&card).unwrap();
    std::fs::write(card.join("vendor"), "0x17cb\n").unwrap();
    std::fs::write(card.join("device"), "0xa100\n").unwrap();
    let kmd: Arc<dyn Kmd> = Arc::new(SysKmd::at(&root));
    let devices = CardDevice::enumerate(&kmd).unwrap();
    let error = not_opened(&devices[0]);
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!(error.code(), "device.unavailable");
    assert!(
        error.to_string().contains("card 0000:c1:00.0") && error.to_string().contains("modprobe qaic"),
        "{error}"
    );
}
