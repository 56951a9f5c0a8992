//! The kernel of emulated cards.

use std::sync::Arc;

use super::card::Card;
use super::control::Control;
use super::events::EventBroadcast;
use super::fault::Action;
use super::file::EmuFile;
use super::firmware::ResourceUsage;
use super::options::{EmuOptions, Profile};
use qaic_kmd::{AccelFile, Clock, Errno, EventSource, Kmd, NodeInfo, PciAddress, PciInfo, Telemetry};

/// An emulated kernel.
#[derive(Debug)]
pub struct EmuKmd {
    options: Arc<EmuOptions>,
    cards: Vec<Arc<Card>>,
    fresh: Vec<ResourceUsage>,
    events: Arc<EventBroadcast>,
}

impl EmuKmd {
    /// Creates a kernel with unused cards. An error describes the invalid options.
    pub fn new(options: EmuOptions) -> Result<Arc<Self>, String> {
        if options.cards > 255 {
            return Err(format!("{} emulated cards: expected at most 255", options.cards));
        }
        let (options, events) = (Arc::new(options), Arc::<EventBroadcast>::default());
        let cards: Vec<_> =
            (0..options.cards).map(|index| Arc::new(Card::new(index, &options, &events))).collect();
        let fresh = cards.iter().map(|card| card.firmware.resource_usage()).collect();
        Ok(Arc::new(Self { options, cards, fresh, events }))
    }

    /// Returns the handle through which tests control a card; `None` if there is no such card.
    pub fn control(&self, card: u32) -> Option<Control> {
        let index = usize::try_from(card).ok()?;
        Some(Control::new(Arc::clone(self.cards.get(index)?), self.fresh.get(index)?.clone()))
    }

    fn card(&self, node: &NodeInfo) -> Result<&Arc<Card>, Errno> {
        let name = node.path.as_ref().and_then(|path| path.file_name()).ok_or(Errno::NOENT)?;
        self.cards.iter().find(|card| name == card.node.as_str()).ok_or(Errno::NOENT)
    }
}

impl Kmd for EmuKmd {
    fn name(&self) -> &'static str {
        "emu"
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        let is_old = self.options.profile == Profile::Old;
        let is_200 = self.options.firmware.hw_version >> 16 == 3;
        let (device_id, device_name) =
            if is_200 { (0xA110, "Cloud AI 200 (emulated)") } else { (0xA100, "Cloud AI 100 (emulated)") };
        let node = |(qid, card): (u32, &Arc<Card>)| {
            // Old kernels have no node until the card has started.
            let is_there = !is_old || card.settled().is_online;
            NodeInfo {
                qid,
                path: is_there.then(|| format!("/dev/accel/{}", card.node).into()),
                address: PciAddress {
                    bus: u8::try_from(qid + 1).unwrap_or(u8::MAX),
                    ..PciAddress::default()
                },
                pci: Some(PciInfo {
                    vendor_id: 0x17CB,
                    device_id,
                    class_name: "Processing accelerators".into(),
                    vendor_name: "Qualcomm".into(),
                    device_name: device_name.into(),
                    max_link_speed: 4,
                    max_link_width: 8,
                    current_link_speed: 4,
                    current_link_width: 8,
                    bar2_address: 0xF000_0000 + u64::from(qid) * 0x20_0000,
                    bar4_address: 0,
                }),
            }
        };
        Ok((0_u32..).zip(&self.cards).map(node).collect())
    }

    fn open(&self, node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        let card = self.card(node)?;
        let user = card.open()?;
        Ok(Arc::new(EmuFile { card: Arc::clone(card), user }))
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        Ok(Box::new(self.events.subscribe(&self.cards, &self.options.clock)))
    }

    fn telemetry(&self, _node: &NodeInfo) -> Telemetry {
        self.options.telemetry
    }

    fn reset(&self, node: &NodeInfo) -> Result<(), Errno> {
        self.card(node)?.perform(Action::Reset, None);
        Ok(())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.options.clock.shared()
    }
}
