//! What users set aside: resource groups, reservations for activations, channels.

use super::{
    Books, ChannelReservation, DMA_CHANNEL, IN_USE, NOT_FOUND, Pool, RESERVATIONS_EXHAUSTED, Source,
};
use crate::emu::ledger::Need;

impl Books {
    fn new_reservation_id(&mut self) -> Result<i32, i32> {
        let count = self.pools.len() + self.channel_reservations.len();
        let id = self.new_id(count, RESERVATIONS_EXHAUSTED)?;
        i32::try_from(id).map_err(|_| RESERVATIONS_EXHAUSTED)
    }

    /// Makes a resource group, or a reservation for activations.
    pub(in crate::emu::firmware) fn reserve(
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

    pub(in crate::emu::firmware) fn release_pool(
        &mut self,
        owner: u32,
        id: i32,
        is_group: bool,
    ) -> Result<(), i32> {
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
    pub(in crate::emu::firmware) fn update_reservation(
        &mut self,
        owner: u32,
        id: i32,
        cores: u32,
    ) -> Result<(), i32> {
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

    pub(in crate::emu::firmware) fn reserve_channel(
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

    pub(in crate::emu::firmware) fn release_channel(&mut self, owner: u32, id: u32) -> Result<(), i32> {
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

    pub(in crate::emu::firmware) fn dedicate(&mut self, owner: u32, channels: u32) -> Result<(), i32> {
        let others =
            self.dedicated.iter().filter(|(user, _)| **user != owner).map(|(_, count)| count).sum::<u32>();
        if others.saturating_add(channels) > self.totals.physical_channels.into() {
            return Err(DMA_CHANNEL);
        }
        self.dedicated.insert(owner, channels);
        Ok(())
    }
}
