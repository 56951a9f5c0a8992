//! What a card holds, and for whom: images, activations, channels, reservations. Each belongs to the user, an open file,
//! that made it, and nobody else can name it.

mod activations;
mod images;
mod reservations;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::Totals;
use super::constants::Constants;
use super::replies::{Loaded, Resources};
use crate::abi::DBC_COUNT;
use crate::emu::channel::Channel;
use crate::emu::ledger::{Ledger, Need, Stock};
use crate::emu::workload::Demand;

const PARAMETER: i32 = -6;
const IN_USE: i32 = -9;
const NOT_FOUND: i32 = -11;
const RESERVATIONS_EXHAUSTED: i32 = -18;
const UNKNOWN_ID: i32 = -19;
const IDS_EXHAUSTED: i32 = -20;
const DMA_CHANNEL: i32 = -2;
const RESTARTING: i32 = -36;
const SWITCH_STATE: i32 = -59;
const NO_RECORD: i32 = -63;

/// Most images of a kind, activations, and reservations: what the counts of the status reply can say.
const MAX_COUNT: usize = 255;
/// Reservation of those who have none.
const DEFAULT_RESERVATION: i32 = -1;
/// Channel reservation of those who want no channel.
const SKIP_CHANNEL: i32 = 0xFE;

/// Where things are taken from: the card, or a group or reservation.
type Source = Option<i32>;

/// A loaded program.
#[derive(Debug)]
pub(super) struct Elf {
    owner: u32,
    pub(super) data: Arc<[u8]>,
    demand: Demand,
    stock: Stock,
}

#[derive(Debug)]
struct Announced {
    owner: u32,
    constants: Arc<Constants>,
    stock: Stock,
}

/// A resource group, or a reservation for activations.
#[derive(Debug)]
struct Pool {
    owner: u32,
    is_group: bool,
    source: Source,
    total: Need,
    free: Stock,
}

#[derive(Debug)]
struct ChannelReservation {
    owner: u32,
    source: Source,
    stock: Stock,
    channel: u32,
}

#[derive(Debug)]
struct Activation {
    owner: u32,
    elf_id: u32,
    constants_id: u32,
    held: Vec<(Source, Stock)>,
    channel: Option<Seat>,
    /// `None` while the cores are being made ready.
    data_path: Option<Arc<Channel>>,
}

/// A channel that an activation sits on.
#[derive(Debug)]
struct Seat {
    channel: u32,
    /// Reserved before, so that it stays when the activation goes.
    is_reserved: bool,
    held: Option<(Source, Stock)>,
}

/// A channel whose activation is gone and that has not been torn down.
#[derive(Debug)]
struct Leftover {
    owner: u32,
    seat: Seat,
}

/// What an activation begins with.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) activation_id: u32,
    pub(super) elf: Arc<[u8]>,
    pub(super) constants: Option<Arc<Constants>>,
    pub(super) ddr_bytes: u64,
    pub(super) channel: Option<u32>,
    pub(super) cores: u64,
}

/// Data paths that are out of the books and have to be stopped, which may take long.
pub(super) type Released = Vec<Arc<Channel>>;

/// The books of a card.
#[derive(Debug)]
pub(super) struct Books {
    totals: Totals,
    card: Stock,
    /// Channels nobody has, a bit each.
    free_channels: u32,
    /// Ids count up and are never given again, so that those of before a reset are not found.
    next_id: u32,
    elves: BTreeMap<u32, Elf>,
    constants: BTreeMap<u32, Announced>,
    activations: BTreeMap<u32, Activation>,
    leftovers: BTreeMap<u32, Leftover>,
    pools: BTreeMap<i32, Pool>,
    channel_reservations: BTreeMap<u32, ChannelReservation>,
    /// Physical channels by user.
    dedicated: BTreeMap<u32, u32>,
    restarting: Option<u32>,
}

impl Books {
    pub(super) fn new(totals: Totals, first_id: u32) -> Self {
        let totals =
            Totals { channels: totals.channels.min(DBC_COUNT), cores: totals.cores.min(64), ..totals };
        Self {
            totals,
            card: Stock::of(&totals),
            free_channels: 1_u32.checked_shl(totals.channels).unwrap_or(0).wrapping_sub(1),
            next_id: first_id,
            elves: BTreeMap::new(),
            constants: BTreeMap::new(),
            activations: BTreeMap::new(),
            leftovers: BTreeMap::new(),
            pools: BTreeMap::new(),
            channel_reservations: BTreeMap::new(),
            dedicated: BTreeMap::new(),
            restarting: None,
        }
    }

    fn new_id(&mut self, count: usize, status: i32) -> Result<u32, i32> {
        if count >= MAX_COUNT || i32::try_from(self.next_id).is_err() {
            return Err(status);
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    fn pool(&mut self, source: Source) -> &mut Stock {
        match source.and_then(|id| self.pools.get_mut(&id)) {
            Some(pool) => &mut pool.free,
            None => &mut self.card,
        }
    }

    fn give_back(&mut self, (source, stock): (Source, Stock)) {
        self.pool(source).give_back(stock);
    }

    /// What an id of a group or reservation means; −1 is the card.
    fn source(&self, owner: u32, id: i32, is_group: Option<bool>) -> Result<Source, i32> {
        if id == DEFAULT_RESERVATION {
            return Ok(None);
        }
        let pool = self.pools.get(&id).filter(|pool| pool.owner == owner).ok_or(NOT_FOUND)?;
        if is_group.is_some_and(|is_group| is_group != pool.is_group) {
            return Err(NOT_FOUND);
        }
        Ok(Some(id))
    }

    /// Frees all that a user has.
    pub(super) fn terminate(&mut self, owner: u32) -> Released {
        let mut released = Vec::new();
        for activation in take_owned(&mut self.activations, |one| one.owner == owner) {
            released.extend(self.release(activation));
        }
        for leftover in take_owned(&mut self.leftovers, |one| one.owner == owner) {
            self.leave_seat(leftover.seat);
        }
        for reserved in take_owned(&mut self.channel_reservations, |one| one.owner == owner) {
            self.free_channels |= 1 << reserved.channel;
            self.give_back((reserved.source, reserved.stock));
        }
        // What was taken from one of them came from the card in the end.
        for pool in take_owned(&mut self.pools, |pool| pool.owner == owner) {
            self.card.give_back(pool.free);
        }
        for elf in take_owned(&mut self.elves, |one| one.owner == owner) {
            self.card.give_back(elf.stock);
        }
        for announced in take_owned(&mut self.constants, |one| one.owner == owner) {
            self.card.give_back(announced.stock);
        }
        self.dedicated.remove(&owner);
        released
    }

    /// Frees everything.
    pub(super) fn reset(&mut self) -> Released {
        let next_id = self.next_id;
        let before = std::mem::replace(self, Self::new(self.totals, next_id));
        before.activations.into_values().filter_map(|activation| activation.data_path).collect()
    }

    /// The cores behind a channel failed: its activation is lost, and there are no others until they have started again.
    pub(super) fn begin_restart(&mut self, channel: u32) -> Released {
        self.restarting = Some(channel);
        let seated = |one: &Activation| one.channel.as_ref().is_some_and(|seat| seat.channel == channel);
        let mut released = Vec::new();
        for activation in take_owned(&mut self.activations, seated) {
            released.extend(self.release(activation));
        }
        if let Some(leftover) = self.leftovers.remove(&channel) {
            self.leave_seat(leftover.seat);
        }
        released
    }

    pub(super) fn end_restart(&mut self) {
        self.restarting = None;
    }

    /// The data path of a channel.
    pub(super) fn data_path(&self, channel: u32) -> Option<Arc<Channel>> {
        let seated = |one: &&Activation| one.channel.as_ref().is_some_and(|seat| seat.channel == channel);
        self.activations.values().find(seated)?.data_path.clone()
    }

    /// Figures of the card, or of a group.
    pub(super) fn resources(&self, owner: u32, group: i32) -> Result<Resources, i32> {
        let Some(id) = self.source(owner, group, Some(true))? else {
            let dedicated = self.dedicated.values().sum::<u32>();
            return Ok(Resources {
                total: Stock::of(&self.totals).amount(),
                free: self.card.amount(),
                physical_channels: self.totals.physical_channels,
                dedicated_channels: u8::try_from(dedicated).unwrap_or(u8::MAX),
            });
        };
        let pool = self.pools.get(&id).ok_or(NOT_FOUND)?;
        Ok(Resources { total: pool.total, free: pool.free.amount(), ..Resources::default() })
    }

    /// Counts of what is loaded.
    pub(super) fn loaded(&self) -> Loaded {
        let is_used = |id: &&u32| self.activations.values().any(|one| one.constants_id == **id);
        Loaded {
            constants: self.constants.len(),
            constants_in_use: self.constants.keys().filter(is_used).count(),
            elves: self.elves.len(),
            activations: self.activations.len(),
        }
    }

    pub(super) fn ledger(&self) -> Ledger {
        let Need { cores, multicast_ids, semaphores, channels, ddr_bytes } = self.card.amount();
        let loaded = self.loaded();
        let dedicated = self.dedicated.values().sum::<u32>();
        let dedicated = u8::try_from(dedicated).unwrap_or(u8::MAX);
        Ledger {
            totals: self.totals,
            free: Totals {
                cores,
                multicast_ids,
                semaphores,
                channels,
                ddr_bytes,
                physical_channels: self.totals.physical_channels.saturating_sub(dedicated),
            },
            elves: loaded.elves,
            constants: loaded.constants,
            constants_in_use: loaded.constants_in_use,
            activations: loaded.activations,
            reservations: self.pools.len() + self.channel_reservations.len(),
            channels: (0..self.totals.channels).filter(|id| self.free_channels >> id & 1 == 0).collect(),
            restarting: self.restarting,
        }
    }
}

fn take_owned<K: Copy + Ord, V>(map: &mut BTreeMap<K, V>, is_wanted: impl Fn(&V) -> bool) -> Vec<V> {
    let keys: Vec<K> = map.iter().filter(|(_, value)| is_wanted(value)).map(|(key, _)| *key).collect();
    keys.into_iter().filter_map(|key| map.remove(&key)).collect()
}
