//! The context through which a process uses devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use qaic_kmd::Kmd;
use qaic_qpc::verify_checksums;
use serde::Serialize;
use serde_json::Value;

use crate::device::{
    Device, DeviceDescription, DeviceId, DeviceKind, LoadOptions, LoadedProgram, Placed, Placement, Registry,
    RegistryOptions, find, noop, virtual_card::leased_program, visible,
};
use crate::error::{DeviceError, RuntimeError};
use crate::image::Image;
use crate::process::ForkGuard;
use crate::process::fork::ForkLocal;
use crate::process::log::Logger;

/// Device registries of the process. All contexts of a process share them, so cores taken through one context are
/// unavailable in the others. A forked process gets its own registries: inferences of the parent continue in the
/// parent.
static REGISTRIES: ForkLocal<Vec<SharedRegistry>> = ForkLocal::new();

/// Error of a context that has no devices.
const NO_DEVICE: DeviceError = DeviceError::NotFound { id: 0, existing: Vec::new() };

/// Number of the next context. Numbers are never reused.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
struct SharedRegistry {
    options: RegistryOptions,
    registry: Arc<Registry>,
}

/// Holds the devices. Each program keeps its context alive.
#[derive(Debug)]
pub struct Context {
    /// Number of the context in this process.
    pub id: u32,
    fork_guard: ForkGuard,
    registry: Arc<Registry>,
    /// Visible devices of the context, in order of id.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    /// The log of this context and its objects.
    pub logger: Logger,
}

impl Context {
    /// Returns a context over the devices that `options` describe. Equal options select the same devices, regardless of
    /// which devices are visible.
    pub fn new(options: &RegistryOptions) -> Result<Arc<Self>, RuntimeError> {
        let shown = options.visible_devices.as_deref();
        let options = &RegistryOptions { visible_devices: None, ..options.clone() };
        let registry = REGISTRIES.with(|registries| -> Result<_, RuntimeError> {
            if let Some(entry) = registries.iter().find(|entry| entry.options == *options) {
                return Ok(Arc::clone(&entry.registry));
            }
            let registry = Arc::new(Registry::new(options)?);
            registries.push(SharedRegistry { options: options.clone(), registry: Arc::clone(&registry) });
            Ok(registry)
        })?;
        let devices = visible(&registry.devices, shown)?;
        Ok(Self::with_registry(registry, devices))
    }

    /// Returns a context over its own devices: no other context uses them or takes their cores.
    pub fn isolated(options: &RegistryOptions) -> Result<Arc<Self>, RuntimeError> {
        let registry = Arc::new(Registry::new(options)?);
        let devices = visible(&registry.devices, options.visible_devices.as_deref())?;
        Ok(Self::with_registry(registry, devices))
    }

    /// Returns a context over the cards of the `kernel` that the caller provides.
    pub fn of_cards(kernel: &Arc<dyn Kmd>) -> Result<Arc<Self>, RuntimeError> {
        let registry = Arc::new(Registry::of_cards(kernel)?);
        let devices = registry.devices.clone();
        Ok(Self::with_registry(registry, devices))
    }

    fn with_registry(registry: Arc<Registry>, devices: Vec<Arc<dyn Device>>) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, fork_guard: ForkGuard::new(), registry, devices, logger: Logger::new(id) })
    }

    /// Kind of the devices of `placement`; `None` if its first device does not exist.
    pub(crate) fn kind_of(&self, placement: &Placement) -> Option<DeviceKind> {
        self.device(placement.first()?).ok().map(|device| device.kind())
    }

    /// The device with this id.
    pub(crate) fn device(&self, id: DeviceId) -> Result<&Arc<dyn Device>, RuntimeError> {
        find(&self.devices, id)
    }

    /// Ids of the visible devices, in ascending order.
    pub fn device_ids(&self) -> Vec<DeviceId> {
        self.devices.iter().map(|device| device.id()).collect()
    }

    /// Kind of the device with this id.
    pub fn device_kind(&self, id: DeviceId) -> Result<DeviceKind, RuntimeError> {
        Ok(self.device(id)?.kind())
    }

    /// Returns kind, resources and state of a device, for device lists.
    ///
    /// Blocking: at most a minute, while a card answers.
    pub fn describe_device(&self, id: DeviceId) -> Result<impl Serialize + use<>, RuntimeError> {
        self.device(id).map(|device| DeviceDescription::of(&**device))
    }

    /// Returns the facts that a card reports by name; `None` for a device that is not a card.
    ///
    /// Blocking: at most a minute, while the card answers.
    pub fn card_facts(&self, id: DeviceId) -> Result<Option<Value>, RuntimeError> {
        Ok(self.device(id)?.facts().map(|facts| facts.record()))
    }

    /// Resets a device for all processes. All loaded programs are lost.
    ///
    /// Blocking: until the reset has begun.
    pub fn reset_device(&self, id: DeviceId) -> Result<(), RuntimeError> {
        self.device(id)?.reset()
    }

    /// Returns true if there is a device with this id that the context does not show.
    pub(crate) fn hides(&self, id: DeviceId) -> bool {
        self.device(id).is_err() && self.registry.device(id).is_ok()
    }

    /// Chooses devices among `candidates` for a program whose user names none: one device, or as many as the program
    /// was partitioned for. Devices with enough free cores for an activation come first. If too few devices have free
    /// cores, the activation fails later. This call takes no cores.
    ///
    /// Blocking: queries the devices for their free cores if there is a choice.
    pub fn choose(&self, candidates: &[DeviceId], image: &Image) -> Result<Placement, RuntimeError> {
        let candidates = candidates.iter().map(|id| self.device(*id)).collect::<Result<Vec<_>, _>>()?;
        for (at, first) in candidates.iter().enumerate() {
            // Cards cannot run a program of several devices; virtual cards may follow in the list.
            if let Ok(partitions) = first.partitions(image) {
                let needed = partitions.unwrap_or(1).max(1);
                return self.choose_free(needed, first.kind(), &candidates[at..], image);
            }
        }
        // The load reports the reason.
        let first = candidates.first().map(|device| Placement::one(device.id()));
        Ok(first.ok_or(NO_DEVICE)?)
    }

    /// Returns the devices that a client lists, each once, in the order of the list. Without a list, or with an empty
    /// one, returns all devices. Fails if a listed device does not exist, or if the context has no devices.
    pub fn select<E: From<RuntimeError>>(
        &self,
        listed: impl IntoIterator<Item = Result<DeviceId, E>>,
    ) -> Result<Vec<DeviceId>, E> {
        let mut chosen = Vec::new();
        for id in listed {
            let id = id?;
            self.device(id)?;
            if !chosen.contains(&id) {
                chosen.push(id);
            }
        }
        if chosen.is_empty() {
            chosen = self.device_ids();
        }
        if chosen.is_empty() {
            return Err(RuntimeError::from(NO_DEVICE).into());
        }
        Ok(chosen)
    }

    /// Returns the devices of a program: `device` out of `candidates`, or the devices of `mapping`. If the user names
    /// neither, [`Self::choose`] selects the devices.
    ///
    /// Blocking: as [`Self::choose`] in that case.
    pub fn place(
        &self,
        candidates: &[DeviceId],
        device: Option<DeviceId>,
        mapping: &str,
        image: &Image,
    ) -> Result<Placed, RuntimeError> {
        let is_chosen = device.is_none() && mapping.is_empty();
        let placement = if is_chosen {
            self.choose(candidates, image)?
        } else {
            Placement::named(candidates, device, mapping)?
        };
        Ok(Placed { placement, is_chosen })
    }

    /// Returns as many devices as a program was partitioned for, as [`Self::choose`] does. A program for one device
    /// gets the first device, because clients that name no device expect it there.
    ///
    /// Blocking: as [`Self::choose`].
    pub fn choose_in_order(&self, image: &Image) -> Result<Placement, RuntimeError> {
        let all = self.device_ids();
        let chosen = self.choose(&all, image)?;
        Ok(if chosen.devices.len() > 1 {
            chosen
        } else {
            all.first().copied().map_or(chosen, Placement::one)
        })
    }

    /// Finds the first of `candidates` with enough free cores and memory for one activation of a program. This call
    /// takes no cores.
    ///
    /// Blocking: queries the devices for their free resources.
    pub fn find_free(&self, candidates: &[DeviceId], image: &Image) -> Result<DeviceId, RuntimeError> {
        let info = image.program_info()?;
        let program = info.programs.first();
        let needed = program.map_or(0, |program| program.num_cores);
        let memory_mb = program.map_or(0, |program| program.total_required_memory.div_ceil(1 << 20));
        let mut refusal = None;
        for &id in candidates {
            let Some(device) = self.placed_on(&Placement::one(id))?.pop() else { continue };
            let resources = device.resources();
            if resources.nsp_free < needed {
                let (free, total) = (resources.nsp_free, resources.nsp_total);
                refusal.get_or_insert(DeviceError::Busy { id: id.0, needed, free, total });
            } else if resources.dram_free_mb < memory_mb {
                let bytes = memory_mb << 20;
                refusal.get_or_insert(DeviceError::OutOfMemory { bytes, what: "the program on a device" });
            } else {
                return Ok(id);
            }
        }
        Err(refusal.unwrap_or(NO_DEVICE).into())
    }

    /// Returns as many devices of a kind as are needed: devices with free cores first, the others in the order of
    /// `candidates`.
    fn choose_free(
        &self,
        needed: u32,
        kind: DeviceKind,
        candidates: &[&Arc<dyn Device>],
        image: &Image,
    ) -> Result<Placement, RuntimeError> {
        let usable: Vec<_> = candidates.iter().filter(|device| device.kind() == kind).collect();
        let needed_count = needed as usize;
        if usable.len() < needed_count {
            let all = self.registry.devices.iter();
            let hidden = all.filter(|device| device.kind() == kind && self.hides(device.id())).count();
            return Err(DeviceError::TooFew {
                needed,
                kind: kind.name(),
                existing: usable.iter().map(|device| device.id().0).collect(),
                hidden,
            }
            .into());
        }
        let cores = image.network.num_cores.max(1);
        let is_choice = usable.len() > needed_count;
        let (mut free, mut busy) = (Vec::with_capacity(needed_count), Vec::new());
        for device in usable {
            if free.len() == needed_count {
                break;
            }
            // A query of a card sends a message to its firmware.
            let has_room = !is_choice || device.resources().nsp_free >= cores;
            if has_room { &mut free } else { &mut busy }.push(device.id());
        }
        free.append(&mut busy);
        free.truncate(needed_count);
        Ok(Placement { devices: free })
    }

    /// Controls of the `noop` device with this id.
    pub fn noop_control(&self, id: DeviceId) -> Result<&Arc<noop::Control>, RuntimeError> {
        self.registry.noop_control(id)
    }

    /// Controls of the emulated card with this id.
    #[cfg(feature = "emu")]
    pub fn emu_control(&self, id: DeviceId) -> Result<qaic_emu::Control, RuntimeError> {
        self.registry.emu_control(id)
    }

    /// Controls of the emulated cards of all contexts that this process has created, whatever their options.
    #[cfg(feature = "emu")]
    pub fn emulated_cards() -> Vec<qaic_emu::Control> {
        REGISTRIES
            .with(|registries| registries.iter().flat_map(|entry| entry.registry.emulated_cards()).collect())
    }

    /// Loads a container on the devices of `placement`, where it executes as one program. Loading takes no cores;
    /// each activation takes cores on all of the devices or on none. If the container has checksums, its contents are
    /// verified.
    ///
    /// Blocking: reads and prepares the weights.
    pub(crate) fn load(
        &self,
        image: &Arc<Image>,
        placement: &Placement,
        options: &LoadOptions,
    ) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        let devices = self.placed_on(placement)?;
        let name =
            image.path.as_ref().map_or_else(|| "the container".to_owned(), |path| path.display().to_string());
        verify_checksums(&image.container, image.bytes(), &name)?;
        leased_program::load(&devices, placement, image, options)
    }

    /// Returns a "busy" error before a costly load if the devices lack free cores for all activations together.
    /// Activation checks again.
    pub(crate) fn check_free_cores(
        &self,
        placement: &Placement,
        cores_per_activation: u32,
        activations: u32,
        share_group: Option<&str>,
    ) -> Result<(), RuntimeError> {
        let devices = self.placed_on(placement)?;
        for tracker in devices.iter().filter_map(|device| device.resource_tracker()) {
            tracker.check_free(cores_per_activation.max(1), activations, share_group)?;
        }
        Ok(())
    }

    /// Returns the devices of `placement`, in the same order. Fails if a device does not exist or is named twice.
    /// Also fails in a forked process, which must create its own context.
    pub(crate) fn placed_on(&self, placement: &Placement) -> Result<Vec<&Arc<dyn Device>>, RuntimeError> {
        self.fork_guard.check()?;
        placement.check()?;
        placement.devices.iter().map(|id| self.device(*id)).collect()
    }
}
