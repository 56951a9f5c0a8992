//! The root of a process's use of devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use qaic_kmd::kmd::Kmd;
use qaic_qpc::crc::verify_checksums;

use crate::device::{
    Device, DeviceId, DeviceKind, LoadOptions, LoadedProgram, Placed, Placement, Registry, RegistryOptions,
    find, noop, virtual_card::leased_program, visible,
};
use crate::error::{DeviceError, RuntimeError};
use crate::image::Image;
use crate::process::ForkGuard;
use crate::process::fork::ForkLocal;
use crate::process::log::Logger;

/// Contexts of one process see the same devices, so that cores taken through one are missing in the others. A forked
/// process has devices of its own: what its parent runs on them goes on there.
static REGISTRIES: ForkLocal<Vec<SharedRegistry>> = ForkLocal::new();

/// The refusal of a context without devices.
const NO_DEVICE: DeviceError = DeviceError::NotFound { id: 0, existing: Vec::new() };

/// Number of the next context; they are never used again.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
struct SharedRegistry {
    options: RegistryOptions,
    registry: Arc<Registry>,
}

/// Holds the devices. Programs keep their context alive.
#[derive(Debug)]
pub struct Context {
    id: u32,
    fork_guard: ForkGuard,
    registry: Arc<Registry>,
    // Those it shows.
    devices: Vec<Arc<dyn Device>>,
    logger: Logger,
}

impl Context {
    /// A context over the devices that `options` describe; equal options give the same devices, whichever of them are
    /// shown.
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
        let devices = visible(registry.devices(), shown)?;
        Ok(Self::with_registry(registry, devices))
    }

    /// A context over devices of its own: no other context sees them or takes their cores.
    pub fn isolated(options: &RegistryOptions) -> Result<Arc<Self>, RuntimeError> {
        let registry = Arc::new(Registry::new(options)?);
        let devices = visible(registry.devices(), options.visible_devices.as_deref())?;
        Ok(Self::with_registry(registry, devices))
    }

    /// A context over the cards of a kernel that the caller brings along.
    pub fn of_cards(kernel: &Arc<dyn Kmd>) -> Result<Arc<Self>, RuntimeError> {
        let registry = Arc::new(Registry::of_cards(kernel)?);
        let devices = registry.devices().to_vec();
        Ok(Self::with_registry(registry, devices))
    }

    fn with_registry(registry: Arc<Registry>, devices: Vec<Arc<dyn Device>>) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, fork_guard: ForkGuard::new(), registry, devices, logger: Logger::new(id) })
    }

    /// Its number in this process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The log of this context and its objects.
    pub fn logger(&self) -> &Logger {
        &self.logger
    }

    /// Kind of the devices of `placement`; `None` when its first does not exist.
    pub(crate) fn kind_of(&self, placement: &Placement) -> Option<DeviceKind> {
        self.device(placement.first()?).ok().map(|device| device.kind())
    }

    /// The devices it shows, in order of id.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The device with this id.
    pub fn device(&self, id: DeviceId) -> Result<&Arc<dyn Device>, RuntimeError> {
        find(&self.devices, id)
    }

    /// Returns whether there is a device with this id that the context does not show.
    pub(crate) fn hides(&self, id: DeviceId) -> bool {
        self.device(id).is_err() && self.registry.device(id).is_ok()
    }

    /// Devices for a program whose user names none, out of `candidates`: one, or as many as the program was partitioned for.
    /// Those come first that have the cores for an activation free; where fewer have, the activation will say so. Takes
    /// nothing.
    ///
    /// Blocking: devices are asked what is free, if there is a choice.
    pub fn choose(&self, candidates: &[DeviceId], image: &Image) -> Result<Placement, RuntimeError> {
        let candidates = candidates.iter().map(|id| self.device(*id)).collect::<Result<Vec<_>, _>>()?;
        for (at, first) in candidates.iter().enumerate() {
            // Cards take no program of several devices; virtual cards may come after them.
            if let Ok(partitions) = first.partitions(image) {
                let needed = partitions.unwrap_or(1).max(1);
                return self.choose_free(needed, first.kind(), &candidates[at..], image);
            }
        }
        // The load says why not.
        let first = candidates.first().map(|device| Placement::one(device.id()));
        Ok(first.ok_or(NO_DEVICE)?)
    }

    /// The devices that a client lists, each once and in its order; all without a list, or with an empty one. Fails when one
    /// does not exist, and where there are none.
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
            chosen.extend(self.devices.iter().map(|device| device.id()));
        }
        if chosen.is_empty() {
            return Err(RuntimeError::from(NO_DEVICE).into());
        }
        Ok(chosen)
    }

    /// Devices of a program: `device` out of `candidates`, else those of a `mapping`; where its user names neither, those of
    /// [`Self::choose`].
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

    /// As many devices as a program was partitioned for, as [`Self::choose`]; the first one for a program of one device, which
    /// is where clients that name none expect it.
    ///
    /// Blocking: as [`Self::choose`].
    pub fn choose_in_order(&self, image: &Image) -> Result<Placement, RuntimeError> {
        let all: Vec<_> = self.devices.iter().map(|device| device.id()).collect();
        let chosen = self.choose(&all, image)?;
        Ok(if chosen.devices.len() > 1 {
            chosen
        } else {
            all.first().copied().map_or(chosen, Placement::one)
        })
    }

    /// The first of `candidates` with enough free cores and memory for one activation of a program. Takes nothing.
    ///
    /// Blocking: devices are asked what is free.
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

    /// As many devices of a kind as are needed, those with free cores first, otherwise in the order of `candidates`.
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
            let all = self.registry.devices().iter();
            let hidden = all.filter(|device| device.kind() == kind && self.hides(device.id())).count();
            return Err(DeviceError::TooFew {
                needed,
                kind: kind.name(),
                existing: usable.iter().map(|device| device.id().0).collect(),
                hidden,
            }
            .into());
        }
        let cores = image.network().num_cores.max(1);
        let is_choice = usable.len() > needed_count;
        let (mut free, mut busy) = (Vec::with_capacity(needed_count), Vec::new());
        for device in usable {
            if free.len() == needed_count {
                break;
            }
            // Asking a card takes a message to its firmware.
            let has_room = !is_choice || device.resources().nsp_free >= cores;
            if has_room { &mut free } else { &mut busy }.push(device.id());
        }
        free.append(&mut busy);
        free.truncate(needed_count);
        Ok(Placement { devices: free })
    }

    /// The hand on the `noop` device with this id.
    pub fn noop_control(&self, id: DeviceId) -> Result<&Arc<noop::Control>, RuntimeError> {
        self.registry.noop_control(id)
    }

    /// The hand on the emulated card with this id.
    #[cfg(feature = "emu")]
    pub fn emu_control(&self, id: DeviceId) -> Result<qaic_emu::Control, RuntimeError> {
        self.registry.emu_control(id)
    }

    /// The hands on the emulated cards of all contexts that this process has had, whatever their options were.
    #[cfg(feature = "emu")]
    pub fn emulated_cards() -> Vec<qaic_emu::Control> {
        REGISTRIES
            .with(|registries| registries.iter().flat_map(|entry| entry.registry.emulated_cards()).collect())
    }

    /// Loads a container on the devices of `placement`, where it executes as one program. Takes no cores; every
    /// activation takes them on all of the devices or on none. A container that has checksums is compared with them.
    ///
    /// Blocking: reads and prepares the weights.
    pub fn load(
        &self,
        image: &Arc<Image>,
        placement: &Placement,
        options: &LoadOptions,
    ) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        let devices = self.placed_on(placement)?;
        verify_checksums(image.container(), image.bytes())?;
        leased_program::load(&devices, placement, image, options)
    }

    /// Returns a "busy" error before a costly load if the cores of all activations together are not free.
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

    /// The devices of `placement`, in its order. Fails when one does not exist or is named twice, and in a forked
    /// process, which has a context of its own.
    pub(crate) fn placed_on(&self, placement: &Placement) -> Result<Vec<&Arc<dyn Device>>, RuntimeError> {
        self.fork_guard.check()?;
        placement.check()?;
        placement.devices.iter().map(|id| self.device(*id)).collect()
    }
}
