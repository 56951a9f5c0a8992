//! Resources of a card by user: images, activations, channels. Each belongs to the user (an open file) that created
//! it; other users cannot reference it. Resource groups and reservations do not exist, because no client creates
//! them.

mod activations;
mod images;

use std::collections::BTreeMap;
use std::sync::Arc;

use qaic_kmd::abi::DBC_COUNT;
use qaic_kmd::protocol::NncStatus;

use super::config::Totals;
use super::constants::Constants;
use super::replies::{Loaded, ResourceSummary};
use crate::data_path::channel::Channel;
use crate::resources::{Amounts, ResourceUsage, Resources};
use crate::workload::Requirements;

/// Maximum number of images of a kind, and of activations: the maximum of the status reply.
const MAX_COUNT: usize = 255;

/// A loaded program.
#[derive(Debug)]
pub(super) struct Elf {
    owner: u32,
    pub(super) data: Arc<[u8]>,
    requirements: Requirements,
    resources: Resources,
}

#[derive(Debug)]
struct AnnouncedConstants {
    owner: u32,
    constants: Arc<Constants>,
    resources: Resources,
}

#[derive(Debug)]
struct Activation {
    owner: u32,
    elf_id: u32,
    constants_id: u32,
    held: Resources,
    channel: Option<ChannelLease>,
    /// Data path; `None` while the cores are being prepared.
    data_path: Option<Arc<Channel>>,
}

/// A channel that belongs to an activation.
#[derive(Debug)]
struct ChannelLease {
    channel: u32,
    held: Resources,
}

/// A channel whose activation has ended, but that was not released.
#[derive(Debug)]
struct ZombieChannel {
    owner: u32,
    lease: ChannelLease,
}

/// The first part of an activation.
#[derive(Debug)]
pub(super) struct PendingActivation {
    pub(super) activation_id: u32,
    pub(super) elf: Arc<[u8]>,
    pub(super) constants: Option<Arc<Constants>>,
    pub(super) ddr_bytes: u64,
    pub(super) channel: Option<u32>,
    pub(super) cores: u64,
}

/// Data paths that were removed from the tables and must be stopped, which may take long.
pub(super) type Released = Vec<Arc<Channel>>;

/// The resource tables of a card.
#[derive(Debug)]
pub(super) struct ResourceTables {
    totals: Totals,
    card: Resources,
    /// Free channels, as a bit mask.
    free_channels: u32,
    /// Next id. Ids are never reused, so that ids from before a reset are unknown.
    next_id: u32,
    elves: BTreeMap<u32, Elf>,
    constants: BTreeMap<u32, AnnouncedConstants>,
    activations: BTreeMap<u32, Activation>,
    zombies: BTreeMap<u32, ZombieChannel>,
    restarting: Option<u32>,
}

impl ResourceTables {
    pub(super) fn new(totals: Totals, first_id: u32) -> Self {
        let totals =
            Totals { channels: totals.channels.min(DBC_COUNT), cores: totals.cores.min(64), ..totals };
        Self {
            totals,
            card: Resources::of(&totals),
            free_channels: 1_u32.checked_shl(totals.channels).unwrap_or(0).wrapping_sub(1),
            next_id: first_id,
            elves: BTreeMap::new(),
            constants: BTreeMap::new(),
            activations: BTreeMap::new(),
            zombies: BTreeMap::new(),
            restarting: None,
        }
    }

    fn new_id(&mut self, count: usize, status: NncStatus) -> Result<u32, NncStatus> {
        if count >= MAX_COUNT || i32::try_from(self.next_id).is_err() {
            return Err(status);
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    /// Frees all resources of a user.
    pub(super) fn terminate(&mut self, owner: u32) -> Released {
        let mut released = Vec::new();
        for activation in take_owned(&mut self.activations, |one| one.owner == owner) {
            released.extend(self.release(activation));
        }
        for zombie in take_owned(&mut self.zombies, |one| one.owner == owner) {
            self.end_lease(zombie.lease);
        }
        for elf in take_owned(&mut self.elves, |one| one.owner == owner) {
            self.card.give_back(elf.resources);
        }
        for announced in take_owned(&mut self.constants, |one| one.owner == owner) {
            self.card.give_back(announced.resources);
        }
        released
    }

    /// Frees everything.
    pub(super) fn reset(&mut self) -> Released {
        let next_id = self.next_id;
        let before = std::mem::replace(self, Self::new(self.totals, next_id));
        before.activations.into_values().filter_map(|activation| activation.data_path).collect()
    }

    /// Ends the activation of a channel whose cores have failed, and refuses new ones until the cores have restarted.
    pub(super) fn begin_restart(&mut self, channel: u32) -> Released {
        self.restarting = Some(channel);
        let leased = |one: &Activation| one.channel.as_ref().is_some_and(|lease| lease.channel == channel);
        let mut released = Vec::new();
        for activation in take_owned(&mut self.activations, leased) {
            released.extend(self.release(activation));
        }
        if let Some(zombie) = self.zombies.remove(&channel) {
            self.end_lease(zombie.lease);
        }
        released
    }

    pub(super) fn end_restart(&mut self) {
        self.restarting = None;
    }

    pub(super) fn data_path(&self, channel: u32) -> Option<Arc<Channel>> {
        let leased = |one: &&Activation| one.channel.as_ref().is_some_and(|lease| lease.channel == channel);
        self.activations.values().find(leased)?.data_path.clone()
    }

    /// Returns the resources of the card.
    pub(super) fn summary(&self) -> ResourceSummary {
        ResourceSummary {
            total: Resources::of(&self.totals).amount(),
            free: self.card.amount(),
            physical_channels: self.totals.physical_channels,
        }
    }

    /// Returns the counts of loaded images.
    pub(super) fn loaded(&self) -> Loaded {
        let is_used = |id: &&u32| self.activations.values().any(|one| one.constants_id == **id);
        Loaded {
            constants: self.constants.len(),
            constants_in_use: self.constants.keys().filter(is_used).count(),
            elves: self.elves.len(),
            activations: self.activations.len(),
        }
    }

    pub(super) fn resource_usage(&self) -> ResourceUsage {
        let Amounts { cores, multicast_ids, semaphores, channels, ddr_bytes } = self.card.amount();
        let loaded = self.loaded();
        ResourceUsage {
            totals: self.totals,
            free: Totals {
                cores,
                multicast_ids,
                semaphores,
                channels,
                ddr_bytes,
                physical_channels: self.totals.physical_channels,
            },
            elves: loaded.elves,
            constants: loaded.constants,
            constants_in_use: loaded.constants_in_use,
            activations: loaded.activations,
            channels: (0..self.totals.channels).filter(|id| self.free_channels >> id & 1 == 0).collect(),
            restarting: self.restarting,
        }
    }
}

fn take_owned<K: Copy + Ord, V>(map: &mut BTreeMap<K, V>, is_wanted: impl Fn(&V) -> bool) -> Vec<V> {
    let keys: Vec<K> = map.iter().filter(|(_, value)| is_wanted(value)).map(|(key, _)| *key).collect();
    keys.into_iter().filter_map(|key| map.remove(&key)).collect()
}
