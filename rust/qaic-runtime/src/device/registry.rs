//! The devices of this process.

use std::path::PathBuf;
use std::sync::Arc;

use qaic_emu::fault::{FaultPlan, Target};
use qaic_kmd::Kmd;
use qaic_qpc::hardware::{FAMILIES, Family};

use super::card::CardDevice;
use super::kernel::{Kernel, KernelOptions};
use super::noop::{self, NoopDevice};
use super::virtual_card::shared_cores::SharedCores;
use super::{CORES, Device, DeviceId, DeviceKind, ResourceTracker, UserDirectory, find};
use crate::error::{DeviceError, InputError, RuntimeError};
use crate::process::log;

/// Maximum number of virtual cards of a process, which equals the maximum number of real cards of a host.
pub(crate) const MAX_VIRTUAL_CARDS: u32 = 64;

/// Options that select the devices of a process, as [`RegistryOptions::from_environment`] reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryOptions {
    /// `QAIC_DEVICE`: kind of all devices; by default cards, followed by virtual cards.
    pub kind: Option<String>,
    /// `QAIC_CPU_DEVICES`: number of virtual cards, and of emulated cards; 1 by default.
    pub virtual_cards: Option<u32>,
    /// `QAIC_CPU_FAMILY`: hardware family of the virtual and emulated cards, `ai100` or `ai200`; `ai100` by default.
    pub family: Option<String>,
    /// Possible paths of the engine's library, best first.
    pub engine_candidates: Vec<PathBuf>,
    /// `QAIC_NOOP_FAULTS`: faults that happen on every `noop` device, in the language of [`qaic_emu::fault`].
    pub noop_faults: Option<String>,
    /// `QAIC_CPU_SHARED`: directory in which the cores of virtual cards are counted for all processes of a user. By
    /// default, every process counts its own cores.
    pub shared_cores: Option<UserDirectory>,
    /// `QAIC_CPU_MEMORY`: limit of the private memory of a program on a virtual card; the free memory by default.
    pub memory: Option<String>,
    /// `QAIC_VISIBLE_DEVICES`: ids of the devices that a context shows; all by default. Contexts that show different
    /// devices share the same set of devices.
    pub visible_devices: Option<String>,
    /// Source of cards.
    pub kernel: KernelOptions,
}

impl RegistryOptions {
    /// Number of virtual cards, and of emulated cards.
    pub(super) fn cards(&self) -> Result<u32, RuntimeError> {
        let count = self.virtual_cards.unwrap_or(1);
        if (1..=MAX_VIRTUAL_CARDS).contains(&count) {
            return Ok(count);
        }
        Err(InputError::VirtualCards { found: count.to_string() }.into())
    }

    /// Hardware family of the virtual and emulated cards.
    pub(super) fn hardware(&self) -> Result<Family, RuntimeError> {
        let Some(name) = self.family.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(FAMILIES[0]);
        };
        Family::named(name).ok_or_else(|| {
            let names = FAMILIES.map(|family| family.name).join(" or ");
            RuntimeError::argument(format!("QAIC_CPU_FAMILY is {name:?}; {names} is expected"))
        })
    }
}

/// The devices, in order of id: cards first.
#[derive(Debug)]
pub(crate) struct Registry {
    /// All devices in order of id.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    // Controls of the noop devices, by id.
    controls: Vec<Arc<noop::Control>>,
    #[cfg(feature = "emu")]
    emulator: Option<Arc<qaic_emu::EmuKmd>>,
}

/// Kinds of devices that [`RegistryOptions::kind`] requests.
#[derive(Clone, Copy, Debug)]
struct RequestedKinds {
    // `Some` uses cards, and is true if a lack of cards is an error; `None` excludes them.
    cards: Option<bool>,
    virtual_kind: Option<DeviceKind>,
}

impl RequestedKinds {
    fn of(kind: Option<&str>) -> Result<Self, RuntimeError> {
        let (cards, virtual_kind) = match kind.unwrap_or_default() {
            "" => (Some(false), Some(DeviceKind::Cpu).filter(|_| cfg!(feature = "cpu"))),
            "cpu" if cfg!(feature = "cpu") => (None, Some(DeviceKind::Cpu)),
            "kmd" => (Some(true), None),
            "noop" => (None, Some(DeviceKind::Noop)),
            other => {
                return Err(DeviceError::Kind { kind: other.to_owned(), known: Registry::KINDS }.into());
            }
        };
        Ok(Self { cards, virtual_kind })
    }
}

impl Registry {
    /// Valid values of [`RegistryOptions::kind`].
    pub(crate) const KINDS: &'static str = "cpu, kmd, noop";

    /// Creates the devices. Loads nothing, and opens no card.
    pub(crate) fn new(options: &RegistryOptions) -> Result<Self, RuntimeError> {
        let requested = RequestedKinds::of(options.kind.as_deref())?;
        options.cards()?;
        options.hardware()?;
        let mut this = Self {
            devices: Vec::new(),
            controls: Vec::new(),
            #[cfg(feature = "emu")]
            emulator: None,
        };
        if let Some(are_needed) = requested.cards {
            this.add_cards(options, are_needed)?;
        }
        if let Some(kind) = requested.virtual_kind {
            this.add_virtual(options, kind)?;
        }
        this.devices.sort_by_key(|device| device.id());
        Ok(this)
    }

    /// Returns a registry that contains only the cards of the caller's `kernel`.
    pub(crate) fn of_cards(kernel: &Arc<dyn Kmd>) -> Result<Self, RuntimeError> {
        Ok(Self {
            devices: CardDevice::enumerate(kernel)?,
            controls: Vec::new(),
            #[cfg(feature = "emu")]
            emulator: None,
        })
    }

    /// Adds the cards, with the ids that the system assigns.
    fn add_cards(&mut self, options: &RegistryOptions, are_needed: bool) -> Result<(), RuntimeError> {
        let Some(kernel) = Kernel::open(options)? else {
            return if are_needed {
                Err(DeviceError::Unsupported {
                    what: "this library was built without support for cards".to_owned(),
                }
                .into())
            } else {
                Ok(())
            };
        };
        match CardDevice::enumerate(&kernel.kmd) {
            Ok(cards) => self.devices.extend(cards),
            Err(error) if are_needed => return Err(error),
            // A caller that did not request cards works without them.
            Err(error) => log::global().warn(|| format!("cards are skipped: {error}")),
        }
        #[cfg(feature = "emu")]
        {
            self.emulator = kernel.emulator;
        }
        Ok(())
    }

    /// Adds virtual cards or test devices, with the ids that follow those of the cards.
    fn add_virtual(&mut self, options: &RegistryOptions, kind: DeviceKind) -> Result<(), RuntimeError> {
        let faults = options.noop_faults.as_deref().unwrap_or_default();
        let faults = FaultPlan::parse(faults, Target::Noop)
            .map_err(|error| RuntimeError::argument(format!("QAIC_NOOP_FAULTS: {error}")))?;
        let taken: Vec<_> = self.devices.iter().map(|device| device.id()).collect();
        let free = (0..).map(DeviceId).filter(|id| !taken.contains(id));
        for id in free.take(options.cards()? as usize) {
            let shared = options.shared_cores.as_ref();
            let shared = shared.map(|place| SharedCores::new(place, kind, id, CORES)).transpose()?;
            let resource_tracker = ResourceTracker::new(id, CORES, shared);
            match kind {
                #[cfg(feature = "cpu")]
                DeviceKind::Cpu => {
                    let family = options.hardware()?.name;
                    let memory =
                        super::cpu::MemoryLimit::parse(options.memory.as_deref().unwrap_or_default())?;
                    let candidates = options.engine_candidates.clone();
                    self.devices.push(Arc::new(super::cpu::CpuDevice::new(
                        resource_tracker,
                        candidates,
                        family,
                        memory,
                    )));
                }
                _ => {
                    let device = NoopDevice::new(resource_tracker, faults.clone());
                    self.controls.push(Arc::clone(&device.control));
                    self.devices.push(Arc::new(device));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn device(&self, id: DeviceId) -> Result<&Arc<dyn Device>, RuntimeError> {
        find(&self.devices, id)
    }

    pub(crate) fn noop_control(&self, id: DeviceId) -> Result<&Arc<noop::Control>, RuntimeError> {
        let device = self.device(id)?;
        // A registry with test devices has no other devices.
        self.controls.get(id.0 as usize).ok_or_else(|| {
            RuntimeError::argument(format!(
                "device {} is of kind `{}`; only `noop` devices can be controlled",
                id.0,
                device.kind().name()
            ))
        })
    }

    #[cfg(feature = "emu")]
    pub(crate) fn emulated_cards(&self) -> impl Iterator<Item = qaic_emu::Control> {
        self.emulator.iter().flat_map(|emulator| (0..).map_while(|id| emulator.control(id)))
    }

    /// Controls of the emulated card with this id.
    #[cfg(feature = "emu")]
    pub(crate) fn emu_control(&self, id: DeviceId) -> Result<qaic_emu::Control, RuntimeError> {
        let device = self.device(id)?;
        let control = self.emulator.as_ref().and_then(|emulator| emulator.control(id.0));
        control.ok_or_else(|| {
            RuntimeError::argument(format!(
                "device {} is of kind `{}` and not emulated; set QAIC_KMD=emu for emulated cards",
                id.0,
                device.kind().name()
            ))
        })
    }
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
        let ids: Vec<_> = registry.devices.iter().map(|device| device.id().0).collect();
        assert_eq!(ids, [0, 1, 2]);
        assert_eq!(registry.device(DeviceId(3)).unwrap_err().code(), "device.not_found");
    }

    #[test]
    fn refuses_unknown_kinds_and_counts() {
        assert_eq!(Registry::new(&options("gpu", 1)).unwrap_err().code(), "device.kind");
        assert_eq!(Registry::new(&options("noop", 0)).unwrap_err().code(), "option.cpu_devices");
        assert_eq!(Registry::new(&options("noop", 65)).unwrap_err().code(), "option.cpu_devices");
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
