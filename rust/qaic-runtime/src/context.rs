//! The root of a process's use of devices.

use std::sync::Arc;

use crate::device::{Device, DeviceId, Registry, RegistryOptions};
use crate::error::RuntimeError;
use crate::fork::PerProcess;

/// Contexts of one process see the same devices, so that cores taken through one are missing in the others. A forked
/// process has devices of its own: what its parent runs on them goes on there.
static REGISTRIES: PerProcess<Vec<Entry>> = PerProcess::new();

#[derive(Debug)]
struct Entry {
    options: RegistryOptions,
    registry: Arc<Registry>,
}

/// Holds the devices. Programs keep their context alive.
#[derive(Debug)]
pub struct Context {
    registry: Arc<Registry>,
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
        registry.map(|registry| Arc::new(Self { registry }))
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
