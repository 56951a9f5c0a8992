//! What a card holds, and for whom: images, activations, channels, reservations. Each belongs to the user, an open file,
//! that made it, and nobody else can name it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::Totals;
use super::constants::Constants;
use super::replies::{Loaded, Resources};
use super::requests::Activate;
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

    /// The id that the next thing gets.
    pub(super) fn next_id(&self) -> u32 {
        self.next_id
    }

    fn new_id(&mut self, count: usize, status: i32) -> Result<u32, i32> {
        if count >= MAX_COUNT || i32::try_from(self.next_id).is_err() {
            return Err(status);
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    fn new_reservation_id(&mut self) -> Result<i32, i32> {
        let count = self.pools.len() + self.channel_reservations.len();
        let id = self.new_id(count, RESERVATIONS_EXHAUSTED)?;
        i32::try_from(id).map_err(|_| RESERVATIONS_EXHAUSTED)
    }

    pub(super) fn load_elf(&mut self, owner: u32, data: Arc<[u8]>, demand: Demand) -> Result<u32, i32> {
        let elf_id = self.new_id(self.elves.len(), IDS_EXHAUSTED)?;
        let stock = self.card.take(Need { ddr_bytes: demand.image_bytes, ..Need::default() })?;
        self.elves.insert(elf_id, Elf { owner, data, demand, stock });
        Ok(elf_id)
    }

    pub(super) fn unload_elf(&mut self, owner: u32, elf_id: u32) -> Result<(), i32> {
        self.elf(owner, elf_id)?;
        if self.activations.values().any(|activation| activation.elf_id == elf_id) {
            return Err(IN_USE);
        }
        let elf = self.elves.remove(&elf_id).ok_or(UNKNOWN_ID)?;
        self.card.give_back(elf.stock);
        Ok(())
    }

    fn elf(&self, owner: u32, elf_id: u32) -> Result<&Elf, i32> {
        self.elves.get(&elf_id).filter(|elf| elf.owner == owner).ok_or(UNKNOWN_ID)
    }

    pub(super) fn announce_constants(
        &mut self,
        owner: u32,
        static_bytes: u64,
        dynamic_bytes: u64,
    ) -> Result<u32, i32> {
        let ddr_bytes = static_bytes.checked_add(dynamic_bytes).ok_or(PARAMETER)?;
        let constants_id = self.new_id(self.constants.len(), IDS_EXHAUSTED)?;
        let stock = self.card.take(Need { ddr_bytes, ..Need::default() })?;
        let constants = Arc::new(Constants::new(static_bytes, dynamic_bytes));
        self.constants.insert(constants_id, Announced { owner, constants, stock });
        Ok(constants_id)
    }

    pub(super) fn constants(&self, owner: u32, constants_id: u32) -> Result<&Arc<Constants>, i32> {
        let announced = self.constants.get(&constants_id).filter(|announced| announced.owner == owner);
        announced.map(|announced| &announced.constants).ok_or(UNKNOWN_ID)
    }

    pub(super) fn unload_constants(&mut self, owner: u32, constants_id: u32) -> Result<(), i32> {
        self.constants(owner, constants_id)?;
        if self.activations.values().any(|activation| activation.constants_id == constants_id) {
            return Err(IN_USE);
        }
        let announced = self.constants.remove(&constants_id).ok_or(UNKNOWN_ID)?;
        self.card.give_back(announced.stock);
        Ok(())
    }

    /// Takes what an activation needs, all of it or nothing.
    pub(super) fn begin_activation(&mut self, owner: u32, request: &Activate) -> Result<Beginning, i32> {
        if self.restarting.is_some() {
            return Err(RESTARTING);
        }
        let elf = self.elf(owner, request.elf_id)?;
        let (demand, elf) = (elf.demand, Arc::clone(&elf.data));
        let constants = match request.constants_id {
            0 => None,
            id => Some(Arc::clone(self.constants(owner, id)?)),
        };
        let source = self.source(owner, request.resource_reservation, None)?;
        let activation_id = self.new_id(self.activations.len(), IDS_EXHAUSTED)?;
        let Demand { cores, multicast_ids, semaphores, ddr_bytes, .. } = demand;
        let main = Need { cores, multicast_ids, ddr_bytes, ..Need::default() };
        let stock = self.pool(source).take(main)?;
        let cores = stock.cores();
        let seat = match self.take_seat(owner, request, source, semaphores) {
            Ok(seat) => seat,
            Err(status) => {
                self.give_back((source, stock));
                return Err(status);
            }
        };
        let channel = seat.as_ref().map(|seat| seat.channel);
        let activation = Activation {
            owner,
            elf_id: request.elf_id,
            constants_id: request.constants_id,
            held: vec![(source, stock)],
            channel: seat,
            data_path: None,
        };
        self.activations.insert(activation_id, activation);
        Ok(Beginning { activation_id, elf, constants, ddr_bytes, channel, cores })
    }

    /// A channel and its semaphores.
    fn take_seat(
        &mut self,
        owner: u32,
        request: &Activate,
        source: Source,
        semaphores: u32,
    ) -> Result<Option<Seat>, i32> {
        if let Ok(id) = u32::try_from(request.channel_reservation)
            && request.channel_reservation != SKIP_CHANNEL
        {
            let reserved =
                self.channel_reservations.get(&id).filter(|one| one.owner == owner).ok_or(NOT_FOUND)?;
            if self.is_seated(reserved.channel) {
                return Err(IN_USE);
            }
            if reserved.stock.amount().semaphores < semaphores {
                return Err(crate::emu::ledger::used_up::SEMAPHORES);
            }
            return Ok(Some(Seat { channel: reserved.channel, is_reserved: true, held: None }));
        }
        if request.channel_reservation == SKIP_CHANNEL || !request.sets_channel_up {
            return Ok(None);
        }
        // Reservations have no semaphores and channels of their own; groups have.
        let source = source.filter(|id| self.pools.get(id).is_some_and(|pool| pool.is_group));
        let stock = self.pool(source).take(Need { semaphores, channels: 1, ..Need::default() })?;
        let channel = self.take_channel();
        Ok(Some(Seat { channel, is_reserved: false, held: Some((source, stock)) }))
    }

    /// The lowest channel; the stock that was taken before says that there is one.
    fn take_channel(&mut self) -> u32 {
        let channel = self.free_channels.trailing_zeros();
        debug_assert!(channel < u32::BITS, "a channel that is counted exists");
        self.free_channels &= !(1_u32.checked_shl(channel).unwrap_or(0));
        channel
    }

    fn is_seated(&self, channel: u32) -> bool {
        let seats = self.activations.values().filter_map(|activation| activation.channel.as_ref());
        seats
            .chain(self.leftovers.values().map(|leftover| &leftover.seat))
            .any(|seat| seat.channel == channel)
    }

    /// The cores are ready: whether the activation is still wanted.
    pub(super) fn complete_activation(&mut self, activation_id: u32, data_path: &Arc<Channel>) -> bool {
        let Some(activation) = self.activations.get_mut(&activation_id) else { return false };
        activation.data_path = Some(Arc::clone(data_path));
        true
    }

    /// Gives back what an activation took whose cores could not be made ready.
    pub(super) fn abort_activation(&mut self, activation_id: u32) {
        if let Some(activation) = self.activations.remove(&activation_id) {
            self.release(activation);
        }
    }

    /// Ends an activation. With a channel, tears that down, too; it must be the activation's.
    pub(super) fn deactivate(
        &mut self,
        owner: u32,
        activation_id: u32,
        channel: Option<u32>,
    ) -> Result<Released, i32> {
        let activation = self.activations.get(&activation_id).filter(|one| one.owner == owner);
        let seat = activation.ok_or(NOT_FOUND)?.channel.as_ref().map(|seat| seat.channel);
        if channel.is_some() && channel != seat {
            return Err(PARAMETER);
        }
        let mut activation = self.activations.remove(&activation_id).ok_or(NOT_FOUND)?;
        if channel.is_none()
            && let Some(seat) = activation.channel.take()
        {
            self.leftovers.insert(seat.channel, Leftover { owner, seat });
        }
        Ok(self.release(activation))
    }

    /// Tears down a channel whose activation has ended before.
    pub(super) fn tear_down(&mut self, owner: u32, channel: u32) -> Result<(), i32> {
        if self.leftovers.get(&channel).is_none_or(|leftover| leftover.owner != owner) {
            return Err(if self.is_seated(channel) { IN_USE } else { NOT_FOUND });
        }
        if let Some(leftover) = self.leftovers.remove(&channel) {
            self.leave_seat(leftover.seat);
        }
        Ok(())
    }

    fn release(&mut self, activation: Activation) -> Released {
        activation.held.into_iter().for_each(|held| self.give_back(held));
        if let Some(seat) = activation.channel {
            self.leave_seat(seat);
        }
        activation.data_path.into_iter().collect()
    }

    fn leave_seat(&mut self, seat: Seat) {
        if !seat.is_reserved {
            self.free_channels |= 1 << seat.channel;
        }
        if let Some(held) = seat.held {
            self.give_back(held);
        }
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

    /// Makes a resource group, or a reservation for activations.
    pub(super) fn reserve(
        &mut self,
        owner: u32,
        source: i32,
        need: Need,
        is_group: bool,
    ) -> Result<i32, i32> {
        let source = self.source(owner, source, Some(true))?;
        let id = self.new_reservation_id()?;
        let free = self.pool(source).take(need)?;
        self.pools.insert(id, Pool { owner, is_group, source, total: need, free });
        Ok(id)
    }

    pub(super) fn release_pool(&mut self, owner: u32, id: i32, is_group: bool) -> Result<(), i32> {
        let source = self.source(owner, id, Some(is_group))?;
        self.check_unused(source)?;
        if let Some(pool) = self.pools.remove(&id) {
            self.give_back((pool.source, pool.free));
        }
        Ok(())
    }

    fn check_unused(&self, source: Source) -> Result<(), i32> {
        let pool = source.and_then(|id| self.pools.get(&id)).ok_or(NOT_FOUND)?;
        // What draws on it draws from what it has, except pools without anything in them.
        let is_whole = pool.free.amount() == pool.total;
        let is_source = self.pools.values().any(|other| other.source == source);
        let is_used = self.activations.values().any(|one| one.held.iter().any(|held| held.0 == source));
        if is_whole && !is_source && !is_used { Ok(()) } else { Err(IN_USE) }
    }

    /// Gives a reservation, which must not be in use, another number of cores.
    pub(super) fn update_reservation(&mut self, owner: u32, id: i32, cores: u32) -> Result<(), i32> {
        let this = self.source(owner, id, Some(false))?;
        self.check_unused(this)?;
        let pool = self.pools.get_mut(&id).ok_or(NOT_FOUND)?;
        let (source, before) = (pool.source, pool.total.cores);
        let change = Need { cores: cores.abs_diff(before), ..Need::default() };
        if cores < before {
            let stock = pool.free.take(change)?;
            self.give_back((source, stock));
        } else {
            let stock = self.pool(source).take(change)?;
            self.give_back((this, stock));
        }
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.total.cores = cores;
        }
        Ok(())
    }

    pub(super) fn reserve_channel(
        &mut self,
        owner: u32,
        source: i32,
        semaphores: u32,
    ) -> Result<(u32, u32), i32> {
        let source = self.source(owner, source, Some(true))?;
        let id = self.new_reservation_id()?.cast_unsigned();
        let stock = self.pool(source).take(Need { semaphores, channels: 1, ..Need::default() })?;
        let channel = self.take_channel();
        self.channel_reservations.insert(id, ChannelReservation { owner, source, stock, channel });
        Ok((id, channel))
    }

    pub(super) fn release_channel(&mut self, owner: u32, id: u32) -> Result<(), i32> {
        let reserved =
            self.channel_reservations.get(&id).filter(|one| one.owner == owner).ok_or(NOT_FOUND)?;
        if self.is_seated(reserved.channel) {
            return Err(IN_USE);
        }
        if let Some(reserved) = self.channel_reservations.remove(&id) {
            self.free_channels |= 1 << reserved.channel;
            self.give_back((reserved.source, reserved.stock));
        }
        Ok(())
    }

    /// Checks a change of states, which has no other effect: an activation works in all of them.
    pub(super) fn change_states(&self, owner: u32, changes: &[(u32, i32)]) -> Result<(), i32> {
        for (activation_id, state) in changes {
            self.activations.get(activation_id).filter(|one| one.owner == owner).ok_or(NO_RECORD)?;
            if !(0..=1).contains(state) {
                return Err(SWITCH_STATE);
            }
        }
        Ok(())
    }

    pub(super) fn dedicate(&mut self, owner: u32, channels: u32) -> Result<(), i32> {
        let others =
            self.dedicated.iter().filter(|(user, _)| **user != owner).map(|(_, count)| count).sum::<u32>();
        if others.saturating_add(channels) > self.totals.physical_channels.into() {
            return Err(DMA_CHANNEL);
        }
        self.dedicated.insert(owner, channels);
        Ok(())
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
        // Later ones may have been taken from earlier ones.
        while let Some(id) = self.pools.iter().rfind(|(_, pool)| pool.owner == owner).map(|(id, _)| *id) {
            if let Some(pool) = self.pools.remove(&id) {
                self.give_back((pool.source, pool.free));
            }
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
