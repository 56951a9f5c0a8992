//! The root of a process's use of devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use qaic_kmd::kmd::Kmd;
use qaic_qpc::crc::verify_checksums;

use crate::device::{
    Device, DeviceId, DeviceKind, LoadOptions, LoadedProgram, Placement, Registry, RegistryOptions, noop,
    placed,
};
use crate::error::RuntimeError;
use crate::fork::{Origin, PerProcess};
use crate::image::Image;
use crate::log::Logger;

/// Contexts of one process see the same devices, so that cores taken through one are missing in the others. A forked
/// process has devices of its own: what its parent runs on them goes on there.
static REGISTRIES: PerProcess<Vec<Entry>> = PerProcess::new();

/// Number of the next context; they are never used again.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
struct Entry {
    options: RegistryOptions,
    registry: Arc<Registry>,
}

/// Holds the devices. Programs keep their context alive.
#[derive(Debug)]
pub struct Context {
    id: u32,
    origin: Origin,
    registry: Arc<Registry>,
    logger: Logger,
}

impl Context {
    /// A context over the devices that `options` describe; equal options give the same devices.
    pub fn new(options: &RegistryOptions) -> Result<Arc<Self>, RuntimeError> {
        let registry = REGISTRIES.with(|registries| {
            if let Some(entry) = registries.iter().find(|entry| entry.options == *options) {
                return Ok(Arc::clone(&entry.registry));
            }
            let registry = Arc::new(Registry::new(options)?);
            registries.push(Entry { options: options.clone(), registry: Arc::clone(&registry) });
            Ok(registry)
        });
        registry.map(Self::over)
    }

    /// A context over devices of its own: their cores are nobody else's, and nobody else sees them.
    pub fn apart(options: &RegistryOptions) -> Result<Arc<Self>, RuntimeError> {
        Registry::new(options).map(|registry| Self::over(Arc::new(registry)))
    }

    /// A context over the cards of a kernel that the caller brings along.
    pub fn of_cards(kernel: &Arc<dyn Kmd>) -> Result<Arc<Self>, RuntimeError> {
        Registry::of_cards(kernel).map(|registry| Self::over(Arc::new(registry)))
    }

    fn over(registry: Arc<Registry>) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, origin: Origin::here(), registry, logger: Logger::new(id) })
    }

    /// Its number in this process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Where its objects say what happens.
    pub fn logger(&self) -> &Logger {
        &self.logger
    }

    /// Kind of the devices of `placement`; `None` when its first does not exist.
    pub fn kind_of(&self, placement: &Placement) -> Option<DeviceKind> {
        self.device(placement.first()?).ok().map(|device| device.kind())
    }

    /// All devices, in order of id.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        self.registry.devices()
    }

    /// The device with this id.
    pub fn device(&self, id: DeviceId) -> Result<&Arc<dyn Device>, RuntimeError> {
        self.registry.device(id)
    }

    /// The hand on the `noop` device with this id.
    pub fn noop_control(&self, id: DeviceId) -> Result<&Arc<noop::Control>, RuntimeError> {
        self.registry.noop_control(id)
    }

    /// The hand on the emulated card with this id.
    #[cfg(feature = "emu")]
    pub fn emu_control(&self, id: DeviceId) -> Result<qaic_kmd::emu::Control, RuntimeError> {
        self.registry.emu_control(id)
    }

    /// The hands on the emulated cards of all contexts that this process has had, whatever their options were.
    #[cfg(feature = "emu")]
    pub fn emulated_cards() -> Vec<qaic_kmd::emu::Control> {
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
        placed::load(&devices, placement, image, options)
    }

    /// Says "busy" before a costly load, with the cores of all activations together. Activation checks again.
    pub fn check_free_cores(
        &self,
        placement: &Placement,
        cores_per_activation: u32,
        activations: u32,
        share_group: Option<&str>,
    ) -> Result<(), RuntimeError> {
        let ledgers = self.placed_on(placement)?;
        for ledger in ledgers.iter().filter_map(|device| device.ledger()) {
            ledger.check_free(cores_per_activation.max(1), activations, share_group)?;
        }
        Ok(())
    }

    /// The devices of `placement`, in its order. Fails when one does not exist or is named twice, and in a forked
    /// process, which has a context of its own.
    pub fn placed_on(&self, placement: &Placement) -> Result<Vec<&Arc<dyn Device>>, RuntimeError> {
        self.origin.check()?;
        placement.check()?;
        placement.devices.iter().map(|id| self.device(*id)).collect()
    }
}
