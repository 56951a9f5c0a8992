//! The root of a process's use of devices.

use std::sync::Arc;

use crate::device::{Device, DeviceId, Registry, RegistryOptions};
use crate::error::RuntimeError;
use crate::sync::Mutex;

/// Contexts of one process see the same devices, so that cores taken through one are missing in the others.
static REGISTRIES: Mutex<Vec<(RegistryOptions, Arc<Registry>)>> = Mutex::new(Vec::new());

/// Holds the devices. Programs keep their context alive.
#[derive(Debug)]
pub struct Context {
    registry: Arc<Registry>,
}

impl Context {
    /// A context over the devices that `options` describe; equal options give the same devices.
    pub fn new(options: &RegistryOptions) -> Result<Arc<Self>, RuntimeError> {
        let mut registries = REGISTRIES.lock();
        if let Some((_, registry)) = registries.iter().find(|(made_for, _)| made_for == options) {
            return Ok(Arc::new(Self { registry: Arc::clone(registry) }));
        }
        let registry = Arc::new(Registry::new(options)?);
        registries.push((options.clone(), Arc::clone(&registry)));
        Ok(Arc::new(Self { registry }))
    }

    /// All devices, in order of id.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        self.registry.devices()
    }

    /// The device with this id.
    pub fn device(&self, id: DeviceId) -> Result<&Arc<dyn Device>, RuntimeError> {
        self.registry.device(id)
    }
}
