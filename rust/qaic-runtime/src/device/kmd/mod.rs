//! Cards behind the kernel's driver, or behind anything that answers the same system calls.
//!
//! This device speaks to [`qaic_kmd::kmd::Kmd`] and nothing below it, so that it cannot tell a card from an emulated one
//! and makes the same calls to both (device-kmd §7.1). Where the open runtime and the upstream kernel disagree, it follows
//! the kernel (§0).
//!
//! **Who is who.** A `Card` is a card of this process; its `Line` is the open file, one for all programs, replaced when a
//! reset has left it dead. `Loaded`, `Active` and `KmdExec` are a program, its channel and the buffer objects of one
//! inference; each keeps the one before, so that things are given back in order, and none of them gives anything back
//! that went with an earlier *generation* of the card (`health`) or belongs to the process it was forked from.
//!
//! **What is lost when.** A reset of the card, or cores that do not come back, end a generation: everything fails with
//! [`RuntimeError::DeviceLost`] until the program is unloaded and loaded again. A restart of the cores of one channel ends
//! that activation alone: [`RuntimeError::ChannelLost`], until the program is deactivated and activated again. Errors of
//! calls and events of the kernel tell of either, whichever comes first.

mod activation;
mod bo;
mod card;
mod constants;
mod exec;
mod facts;
mod health;
mod host_waits;
mod line;
mod monitor;
mod program;
mod slices;
mod status;
mod wait;
#[cfg(all(feature = "cpu", feature = "emu"))]
pub mod workload;

use std::sync::Arc;

use qaic_kmd::kmd::Kmd;

use super::{Device, DeviceId, DeviceKind, DeviceStatus, Ledger, LoadOptions, LoadedProgram, Resources};
use crate::error::RuntimeError;
use crate::image::Image;
use crate::log;
use card::Card;
pub use facts::{CardFacts, FirmwareFacts};
use program::{HostPlan, KmdProgram};

/// A card.
#[derive(Debug)]
pub struct KmdDevice {
    card: Arc<Card>,
    name: String,
}

impl KmdDevice {
    /// The cards that a kernel has, by number. Opens none.
    pub fn enumerate(kmd: &Arc<dyn Kmd>) -> Result<Vec<Arc<dyn Device>>, RuntimeError> {
        let nodes = kmd.enumerate().map_err(|errno| RuntimeError::Argument {
            what: format!("the cards of `{}` could not be listed: {errno}", kmd.name()),
        })?;
        let device = |node: qaic_kmd::kmd::NodeInfo| {
            let model = node.pci.as_ref().map(|pci| pci.device_name.as_str()).filter(|name| !name.is_empty());
            let name = format!("{} at {}", model.unwrap_or("Cloud AI card"), node.address);
            Arc::new(Self { card: Card::new(Arc::clone(kmd), node), name }) as Arc<dyn Device>
        };
        Ok(nodes.into_iter().map(device).collect())
    }
}

impl Device for KmdDevice {
    fn id(&self) -> DeviceId {
        DeviceId(self.card.id)
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Kmd
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    /// Blocking: asks the card, a minute at most. All zeros when it does not answer.
    fn resources(&self) -> Resources {
        self.facts()
            .and_then(|facts| facts.firmware.ok())
            .map(|facts| facts.as_resources())
            .unwrap_or_default()
    }

    /// Blocking: opens the card and asks it, unless that was done and nothing has happened since.
    fn status(&self) -> DeviceStatus {
        let card = &self.card;
        if !card.origin.is_here() {
            return DeviceStatus::Error { reason: RuntimeError::Forked.to_string() };
        }
        card.settle();
        if card.health.is_ready() {
            return DeviceStatus::Ready;
        }
        match card.ready() {
            Ok(_) => DeviceStatus::Ready,
            Err(error) => {
                DeviceStatus::Error { reason: card.health.down().unwrap_or_else(|| error.to_string()) }
            }
        }
    }

    fn facts(&self) -> Option<CardFacts> {
        Some(self.card.facts())
    }

    fn reset(&self) -> Result<(), RuntimeError> {
        self.card.reset()
    }

    fn executes_on_host(&self) -> bool {
        false
    }

    /// Its waits have limits and answer who interrupts them; a short inference is best waited for by who wants it.
    fn may_stall(&self) -> bool {
        false
    }

    fn queues_on_device(&self) -> bool {
        true
    }

    fn ledger(&self) -> Option<&Arc<Ledger>> {
        None
    }

    fn partitions(&self, image: &Image) -> Result<Option<u32>, RuntimeError> {
        let needed = HostPlan::of(image)?.and_then(|plan| plan.devices).filter(|&devices| devices > 1);
        match needed {
            None => Ok(Some(1)),
            Some(devices) => Err(RuntimeError::WrongTarget {
                built_for: format!("{devices} devices"),
                device: self.card.id,
                kind: DeviceKind::Kmd.name(),
                reason: "cards run programs of one device only; how several work together is not public"
                    .to_owned(),
            }),
        }
    }

    fn load(
        &self,
        image: &Arc<Image>,
        options: &LoadOptions,
    ) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        self.card.origin.check()?;
        if let Some(group) = &options.share_group {
            log::global().warn(|| {
                format!(
                    "device {}: programs on cards share no cores; `{group}` takes cores of its own",
                    self.card.id
                )
            });
        }
        Ok(Arc::new(KmdProgram::load(&self.card, image, options)?))
    }
}
