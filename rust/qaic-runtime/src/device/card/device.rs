//! A card as a device of the runtime.

use std::sync::Arc;

use qaic_kmd::{Kmd, NodeInfo};
use qaic_sched::Executor;

use super::connection::Connection;
use super::facts::CardFacts;
use super::program::{CardProgram, plan_of};
use crate::device::{
    Device, DeviceId, DeviceKind, DeviceStatus, LoadOptions, LoadedProgram, ResourceTracker, Resources,
};
use crate::error::{DeviceError, ErrorDetail, RuntimeError, StateError};
use crate::image::Image;
use crate::process::log;

/// A card.
#[derive(Debug)]
pub(crate) struct CardDevice {
    card: Arc<Connection>,
    name: String,
}

impl CardDevice {
    /// Returns the cards of a kernel, by number. Opens no card.
    pub(crate) fn enumerate(kmd: &Arc<dyn Kmd>) -> Result<Vec<Arc<dyn Device>>, RuntimeError> {
        let nodes = kmd.enumerate().map_err(|errno| {
            RuntimeError::argument(format!("cannot list the cards of `{}`: {errno}", kmd.name()))
        })?;
        let device = |node: NodeInfo| {
            let model = node.pci.as_ref().map(|pci| pci.device_name.as_str()).filter(|name| !name.is_empty());
            let name = format!("{} at {}", model.unwrap_or("Cloud AI card"), node.address);
            Arc::new(Self { card: Connection::new(Arc::clone(kmd), node), name }) as Arc<dyn Device>
        };
        Ok(nodes.into_iter().map(device).collect())
    }
}

impl Executor for CardDevice {
    fn executes_on_host(&self) -> bool {
        false
    }

    fn queues_on_device(&self) -> bool {
        true
    }
}

impl Device for CardDevice {
    fn id(&self) -> DeviceId {
        DeviceId(self.card.id)
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Card
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    /// Blocking: at most a minute, while the card answers. All zeros if it does not respond.
    fn resources(&self) -> Resources {
        self.facts()
            .and_then(|facts| facts.firmware.ok())
            .map(|facts| facts.as_resources())
            .unwrap_or_default()
    }

    /// Blocking: opens and queries the card, unless the last query is still valid.
    fn status(&self) -> DeviceStatus {
        let card = &self.card;
        if !card.fork_guard.is_current() {
            return DeviceStatus::Error { reason: ErrorDetail::State(StateError::Forked).to_string() };
        }
        card.drain_events();
        if card.state.is_ready() {
            return DeviceStatus::Ready;
        }
        match card.ready() {
            Ok(_) => DeviceStatus::Ready,
            Err(error) => {
                DeviceStatus::Error { reason: card.state.down().unwrap_or_else(|| error.to_string()) }
            }
        }
    }

    fn facts(&self) -> Option<CardFacts> {
        Some(self.card.facts())
    }

    fn reset(&self) -> Result<(), RuntimeError> {
        self.card.reset()
    }

    fn resource_tracker(&self) -> Option<&Arc<ResourceTracker>> {
        None
    }

    fn partitions(&self, image: &Image) -> Result<Option<u32>, RuntimeError> {
        let needed = plan_of(image)?.and_then(|plan| plan.devices).filter(|&devices| devices > 1);
        match needed {
            None => Ok(Some(1)),
            Some(devices) => Err(DeviceError::WrongTarget {
                built_for: format!("{devices} devices"),
                device: self.card.id,
                kind: DeviceKind::Card.name(),
                reason: "cards only run programs for one device, because the protocol between devices is not public"
                    .to_owned(),
            }
            .into()),
        }
    }

    fn load(
        &self,
        image: &Arc<Image>,
        options: &LoadOptions,
    ) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        self.card.fork_guard.check()?;
        if let Some(group) = &options.share_group {
            log::global().warn(|| {
                format!(
                    "device {}: programs on cards cannot share cores; `{group}` gets its own cores",
                    self.card.id
                )
            });
        }
        Ok(Arc::new(CardProgram::load(&self.card, image, options)?))
    }
}
