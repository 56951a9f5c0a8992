//! Which devices this process has.

use std::path::PathBuf;
use std::sync::Arc;

use super::noop::{self, NoopDevice};
use super::shared_cores::SharedCores;
use super::{CORES, Device, DeviceId, DeviceKind, Ledger, UserDirectory};
use crate::error::RuntimeError;

/// Virtual cards a process may have at most; a host has at most that many real ones.
const MAX_VIRTUAL_CARDS: u32 = 64;

/// What decides the devices of a process. The caller reads the environment (python-api §0.3) and fills this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryOptions {
    /// `QAIC_DEVICE`: kind of device behind the ids; unset means `cpu`.
    pub kind: Option<String>,
    /// `QAIC_CPU_DEVICES`: number of virtual cards; unset means 1.
    pub virtual_cards: Option<u32>,
    /// `QAIC_CPU_FAMILY`: hardware family of the virtual cards, `ai100` or `ai200`; unset means `ai100`.
    pub family: Option<String>,
    /// Places where the engine's library may be, best first.
    pub engine_candidates: Vec<PathBuf>,
    /// `QAIC_NOOP_FAULTS`: what goes wrong on every `noop` device, as [`noop::FaultPlan`] reads it.
    pub noop_faults: Option<String>,
    /// `QAIC_CPU_SHARED`: where the cores of virtual cards are counted for all processes of a user; unset means that
    /// every process has cards of its own.
    pub shared_cores: Option<UserDirectory>,
}

/// The devices, ids 0..n.
#[derive(Debug)]
pub struct Registry {
    kind: DeviceKind,
    devices: Vec<Arc<dyn Device>>,
    // Of the noop devices, by id.
    controls: Vec<Arc<noop::Control>>,
}

impl Registry {
    /// Names [`RegistryOptions::kind`] may have.
    pub const KINDS: &'static str = "cpu, noop";

    /// Makes the devices. Loads nothing.
    pub fn new(options: &RegistryOptions) -> Result<Self, RuntimeError> {
        let kind = match options.kind.as_deref() {
            #[cfg(feature = "cpu")]
            None | Some("" | "cpu") => DeviceKind::Cpu,
            Some("noop") => DeviceKind::Noop,
            other => {
                return Err(RuntimeError::DeviceKind {
                    kind: other.unwrap_or("cpu").to_owned(),
                    known: Self::KINDS,
                });
            }
        };
        let count = options.virtual_cards.unwrap_or(1);
        if !(1..=MAX_VIRTUAL_CARDS).contains(&count) {
            return Err(RuntimeError::Argument {
                what: format!("QAIC_CPU_DEVICES is {count}; 1 to {MAX_VIRTUAL_CARDS} are possible"),
            });
        }
        #[cfg(feature = "cpu")]
        let family = hardware_family(options.family.as_deref())?;
        let faults = options.noop_faults.as_deref().unwrap_or_default();
        let faults: noop::FaultPlan = faults
            .parse()
            .map_err(|error| RuntimeError::Argument { what: format!("QAIC_NOOP_FAULTS: {error}") })?;
        let mut devices: Vec<Arc<dyn Device>> = Vec::new();
        let mut controls = Vec::new();
        for id in (0..count).map(DeviceId) {
            let shared = options.shared_cores.as_ref();
            let shared = shared.map(|place| SharedCores::new(place, kind, id, CORES)).transpose()?;
            let ledger = Ledger::new(id, CORES, shared);
            match kind {
                #[cfg(feature = "cpu")]
                DeviceKind::Cpu => {
                    devices.push(Arc::new(super::cpu::CpuDevice::new(
                        ledger,
                        options.engine_candidates.clone(),
                        family,
                    )));
                }
                _ => {
                    let device = NoopDevice::new(ledger, faults.clone());
                    controls.push(Arc::clone(device.control()));
                    devices.push(Arc::new(device));
                }
            }
        }
        Ok(Self { kind, devices, controls })
    }

    /// Kind of all devices.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// All devices in order of id.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The device with this id.
    pub fn device(&self, id: DeviceId) -> Result<&Arc<dyn Device>, RuntimeError> {
        self.devices.iter().find(|device| device.id() == id).ok_or_else(|| RuntimeError::DeviceNotFound {
            id: id.0,
            existing: self.devices.iter().map(|device| device.id().0).collect(),
        })
    }

    /// The hand on the `noop` device with this id.
    pub fn noop_control(&self, id: DeviceId) -> Result<&Arc<noop::Control>, RuntimeError> {
        self.device(id)?;
        self.controls.get(id.0 as usize).ok_or_else(|| RuntimeError::Argument {
            what: format!(
                "device {} is of kind `{}`; only `noop` devices can be controlled",
                id.0,
                self.kind.name()
            ),
        })
    }
}

/// The hardware family of this name.
#[cfg(feature = "cpu")]
fn hardware_family(name: Option<&str>) -> Result<&'static str, RuntimeError> {
    use super::cpu::plan::{FAMILIES, FAMILY};
    let name = name.filter(|name| !name.is_empty()).unwrap_or(FAMILY);
    FAMILIES.into_iter().find(|&family| family == name).ok_or_else(|| RuntimeError::Argument {
        what: format!("QAIC_CPU_FAMILY is {name:?}; {} are possible", FAMILIES.join(" and ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kind: &str, cards: u32) -> RegistryOptions {
        RegistryOptions { kind: Some(kind.to_owned()), virtual_cards: Some(cards), ..Default::default() }
    }

    #[test]
    fn makes_as_many_cards_as_asked() {
        let registry = Registry::new(&options("noop", 3)).unwrap();
        let ids: Vec<_> = registry.devices().iter().map(|device| device.id().0).collect();
        assert_eq!(ids, [0, 1, 2]);
        assert_eq!(registry.device(DeviceId(3)).unwrap_err().code(), "device.not_found");
    }

    #[test]
    fn refuses_unknown_kinds_and_counts() {
        assert_eq!(Registry::new(&options("gpu", 1)).unwrap_err().code(), "device.kind");
        assert_eq!(Registry::new(&options("noop", 0)).unwrap_err().code(), "call.argument");
        assert_eq!(Registry::new(&options("noop", 65)).unwrap_err().code(), "call.argument");
        let family = |name: &str| RegistryOptions { family: Some(name.to_owned()), ..options("cpu", 1) };
        assert!(Registry::new(&family("ai200")).is_ok());
        assert_eq!(Registry::new(&family("ai300")).unwrap_err().code(), "call.argument");
    }

    #[test]
    fn only_noop_devices_are_controlled() {
        let registry = Registry::new(&options("noop", 2)).unwrap();
        assert!(registry.noop_control(DeviceId(1)).is_ok());
        assert_eq!(registry.noop_control(DeviceId(2)).unwrap_err().code(), "device.not_found");
        let cpu = Registry::new(&options("cpu", 1)).unwrap();
        assert_eq!(cpu.noop_control(DeviceId(0)).unwrap_err().code(), "call.argument");
        let broken = RegistryOptions { noop_faults: Some("run".to_owned()), ..options("noop", 1) };
        assert_eq!(Registry::new(&broken).unwrap_err().code(), "call.argument");
    }
}
