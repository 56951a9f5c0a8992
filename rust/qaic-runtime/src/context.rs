//! The root of a process's use of devices.

use std::process;
use std::sync::Arc;

use crate::device::{Device, DeviceId, Registry, RegistryOptions};
use crate::error::RuntimeError;
use crate::sync::Mutex;

/// Contexts of one process see the same devices, so that cores taken through one are missing in the others. A forked
/// process has devices of its own: what its parent runs on them goes on there.
static REGISTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Entry {
    process: u32,
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
        let process = process::id();
        let mut registries = REGISTRIES.lock();
        let same = |entry: &&Entry| entry.process == process && entry.options == *options;
        if let Some(entry) = registries.iter().find(same) {
            return Ok(Arc::new(Self { registry: Arc::clone(&entry.registry) }));
        }
        let registry = Arc::new(Registry::new(options)?);
        registries.push(Entry { process, options: options.clone(), registry: Arc::clone(&registry) });
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
