//! A container on a device, through the states unloaded, loaded and activated.

use std::sync::Arc;

use crate::context::Context;
use crate::device::{Activation, DeviceId, LoadOptions, LoadedProgram};
use crate::error::RuntimeError;
use crate::exec_obj::ExecObj;
use crate::image::Image;
use crate::sync::Mutex;
use crate::transfer::TransferPlan;

/// One instance of a container on one device. Activating it takes the program's cores; deactivating or dropping it
/// (and its exec objects) gives them back.
#[derive(Debug)]
pub struct Program {
    context: Arc<Context>,
    device: DeviceId,
    options: LoadOptions,
    image: Arc<Image>,
    transfers: Arc<TransferPlan>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    loaded: Option<Arc<dyn LoadedProgram>>,
    activation: Option<Arc<dyn Activation>>,
}

impl Program {
    /// A program that is not yet loaded. Fails when the device does not exist or a binding's transform sequence is not
    /// valid.
    pub fn new(
        context: &Arc<Context>,
        image: &Arc<Image>,
        device: DeviceId,
        options: LoadOptions,
    ) -> Result<Self, RuntimeError> {
        context.device(device)?;
        let transfers = Arc::new(TransferPlan::new(image.network())?);
        Ok(Self {
            context: Arc::clone(context),
            device,
            options,
            image: Arc::clone(image),
            transfers,
            state: Mutex::new(State::default()),
        })
    }

    /// Another instance of the same container on the same device, sharing what was loaded.
    #[must_use]
    pub fn share(&self) -> Self {
        let loaded = self.state.lock().loaded.clone();
        Self {
            context: Arc::clone(&self.context),
            device: self.device,
            options: self.options.clone(),
            image: Arc::clone(&self.image),
            transfers: Arc::clone(&self.transfers),
            state: Mutex::new(State { loaded, activation: None }),
        }
    }

    /// The container.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Prepares the program on its device. A no-op when it is loaded.
    ///
    /// Blocking: reads and prepares the weights.
    pub fn load(&self) -> Result<(), RuntimeError> {
        self.loaded().map(drop)
    }

    fn loaded(&self) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        let mut state = self.state.lock();
        if let Some(loaded) = &state.loaded {
            return Ok(Arc::clone(loaded));
        }
        let loaded = self.context.load(&self.image, &self.device.into(), &self.options)?;
        state.loaded = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    /// Takes the cores, loading first if needed. A no-op when it is activated.
    pub fn activate(&self) -> Result<(), RuntimeError> {
        let loaded = self.loaded()?;
        let mut state = self.state.lock();
        if state.activation.is_none() {
            state.activation = Some(loaded.activate()?);
        }
        Ok(())
    }

    /// An exec object of the activated program.
    pub fn create_exec_obj(&self) -> Result<ExecObj, RuntimeError> {
        let activation = self.state.lock().activation.clone().ok_or_else(|| RuntimeError::State {
            what: "the program is not activated; activate it before making exec objects".to_owned(),
        })?;
        ExecObj::new(&activation, &self.transfers)
    }
}
