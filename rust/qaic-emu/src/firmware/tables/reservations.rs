//! Resources that users reserve: resource groups, reservations for activations, channels.

use qaic_kmd::protocol::NncStatus;

use super::{ChannelReservation, Pool, ResourceTables, Source};
use crate::resources::Amounts;

impl ResourceTables {
    fn new_reservation_id(&mut self) -> Result<i32, NncStatus> {
        let count = self.pools.len() + self.channel_reservations.len();
        let id = self.new_id(count, NncStatus::RESERVATION_IDS)?;
        i32::try_from(id).map_err(|_| NncStatus::RESERVATION_IDS)
    }

    /// Makes a resource group, or a reservation for activations.
    pub(in crate::firmware) fn reserve(
        &mut self,
        owner: u32,
        source: i32,
        amounts: Amounts,
        is_group: bool,
    ) -> Result<i32, NncStatus> {
        let source = self.source(owner, source, Some(true))?;
        let id = self.new_reservation_id()?;
        let free = self.pool(source).take(amounts)?;
        self.pools.insert(id, Pool { owner, is_group, source, total: amounts, free });
        Ok(id)
    }

    pub(in crate::firmware) fn release_pool(
        &mut self,
        owner: u32,
        id: i32,
        is_group: bool,
    ) -> Result<(), NncStatus> {
        let source = self.source(owner, id, Some(is_group))?;
        self.check_unused(source)?;
        if let Some(pool) = self.pools.remove(&id) {
            self.give_back((pool.source, pool.free));
        }
        Ok(())
    }

    fn check_unused(&self, source: Source) -> Result<(), NncStatus> {
        let pool = source.and_then(|id| self.pools.get(&id)).ok_or(NncStatus::NOT_FOUND)?;
        // What draws on it draws from what it has, except pools without anything in them.
        let is_whole = pool.free.amount() == pool.total;
        let is_source = self.pools.values().any(|other| other.source == source);
        let is_used = self.activations.values().any(|one| one.held.iter().any(|held| held.0 == source));
        if is_whole && !is_source && !is_used { Ok(()) } else { Err(NncStatus::NOT_PERMITTED) }
    }

    /// Gives a reservation, which must not be in use, another number of cores.
    pub(in crate::firmware) fn update_reservation(
        &mut self,
        owner: u32,
        id: i32,
        cores: u32,
    ) -> Result<(), NncStatus> {
        let this = self.source(owner, id, Some(false))?;
        self.check_unused(this)?;
        let pool = self.pools.get_mut(&id).ok_or(NncStatus::NOT_FOUND)?;
        let (source, before) = (pool.source, pool.total.cores);
        let change = Amounts { cores: cores.abs_diff(before), ..Amounts::default() };
        if cores < before {
            let resources = pool.free.take(change)?;
            self.give_back((source, resources));
        } else {
            let resources = self.pool(source).take(change)?;
            self.give_back((this, resources));
        }
        if let Some(pool) = self.pools.get_mut(&id) {
            pool.total.cores = cores;
        }
        Ok(())
    }

    pub(in crate::firmware) fn reserve_channel(
        &mut self,
        owner: u32,
        source: i32,
        semaphores: u32,
    ) -> Result<(u32, u32), NncStatus> {
        let source = self.source(owner, source, Some(true))?;
        let id = self.new_reservation_id()?.cast_unsigned();
        let resources = self.pool(source).take(Amounts { semaphores, channels: 1, ..Amounts::default() })?;
        let channel = self.take_channel();
        self.channel_reservations.insert(id, ChannelReservation { owner, source, resources, channel });
        Ok((id, channel))
    }

    pub(in crate::firmware) fn release_channel(&mut self, owner: u32, id: u32) -> Result<(), NncStatus> {
        let reserved = self
            .channel_reservations
            .get(&id)
            .filter(|one| one.owner == owner)
            .ok_or(NncStatus::NOT_FOUND)?;
        if self.is_leased(reserved.channel) {
            return Err(NncStatus::NOT_PERMITTED);
        }
        if let Some(reserved) = self.channel_reservations.remove(&id) {
            self.free_channels |= 1 << reserved.channel;
            self.give_back((reserved.source, reserved.resources));
        }
        Ok(())
    }

    pub(in crate::firmware) fn dedicate(&mut self, owner: u32, channels: u32) -> Result<(), NncStatus> {
        let others =
            self.dedicated.iter().filter(|(user, _)| **user != owner).map(|(_, count)| count).sum::<u32>();
        if others.saturating_add(channels) > self.totals.physical_channels.into() {
            return Err(NncStatus::DMA_CONFIGURATION);
        }
        self.dedicated.insert(owner, channels);
        Ok(())
    }
}
