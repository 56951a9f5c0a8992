//! Activations, and the channels that they sit on.

use std::sync::Arc;

use super::{
    Activation, Beginning, Books, IDS_EXHAUSTED, IN_USE, Leftover, NO_RECORD, NOT_FOUND, PARAMETER,
    RESTARTING, Released, SKIP_CHANNEL, SWITCH_STATE, Seat, Source,
};
use crate::emu::channel::Channel;
use crate::emu::firmware::requests::Activate;
use crate::emu::ledger::{Need, used_up};
use crate::emu::workload::Demand;

impl Books {
    /// Takes what an activation needs, all of it or nothing.
    pub(in crate::emu::firmware) fn begin_activation(
        &mut self,
        owner: u32,
        request: &Activate,
    ) -> Result<Beginning, i32> {
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
                return Err(used_up::SEMAPHORES);
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
    pub(super) fn take_channel(&mut self) -> u32 {
        let channel = self.free_channels.trailing_zeros();
        debug_assert!(channel < u32::BITS, "a channel that is counted exists");
        self.free_channels &= !(1_u32.checked_shl(channel).unwrap_or(0));
        channel
    }

    pub(super) fn is_seated(&self, channel: u32) -> bool {
        let seats = self.activations.values().filter_map(|activation| activation.channel.as_ref());
        seats
            .chain(self.leftovers.values().map(|leftover| &leftover.seat))
            .any(|seat| seat.channel == channel)
    }

    /// The cores are ready: whether the activation is still wanted.
    pub(in crate::emu::firmware) fn complete_activation(
        &mut self,
        activation_id: u32,
        data_path: &Arc<Channel>,
    ) -> bool {
        let Some(activation) = self.activations.get_mut(&activation_id) else { return false };
        activation.data_path = Some(Arc::clone(data_path));
        true
    }

    /// Gives back what an activation took whose cores could not be made ready.
    pub(in crate::emu::firmware) fn abort_activation(&mut self, activation_id: u32) {
        if let Some(activation) = self.activations.remove(&activation_id) {
            self.release(activation);
        }
    }

    /// Ends an activation. With a channel, tears that down, too; it must be the activation's.
    pub(in crate::emu::firmware) fn deactivate(
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
    pub(in crate::emu::firmware) fn tear_down(&mut self, owner: u32, channel: u32) -> Result<(), i32> {
        if self.leftovers.get(&channel).is_none_or(|leftover| leftover.owner != owner) {
            return Err(if self.is_seated(channel) { IN_USE } else { NOT_FOUND });
        }
        if let Some(leftover) = self.leftovers.remove(&channel) {
            self.leave_seat(leftover.seat);
        }
        Ok(())
    }

    pub(super) fn release(&mut self, activation: Activation) -> Released {
        activation.held.into_iter().for_each(|held| self.give_back(held));
        if let Some(seat) = activation.channel {
            self.leave_seat(seat);
        }
        activation.data_path.into_iter().collect()
    }

    pub(super) fn leave_seat(&mut self, seat: Seat) {
        if !seat.is_reserved {
            self.free_channels |= 1 << seat.channel;
        }
        if let Some(held) = seat.held {
            self.give_back(held);
        }
    }

    /// Checks a change of states, which has no other effect: an activation works in all of them.
    pub(in crate::emu::firmware) fn change_states(
        &self,
        owner: u32,
        changes: &[(u32, i32)],
    ) -> Result<(), i32> {
        for (activation_id, state) in changes {
            self.activations.get(activation_id).filter(|one| one.owner == owner).ok_or(NO_RECORD)?;
            if !(0..=1).contains(state) {
                return Err(SWITCH_STATE);
            }
        }
        Ok(())
    }
}
