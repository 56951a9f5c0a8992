//! Activations and their channels.

use std::sync::Arc;

use qaic_kmd::protocol::{Activate, NncStatus, SKIP_CHANNEL, WHOLE_DEVICE};

use super::{Activation, ChannelLease, PendingActivation, Released, ResourceTables, ZombieChannel};
use crate::data_path::channel::Channel;
use crate::resources::Amounts;
use crate::workload::Requirements;

impl ResourceTables {
    /// Takes all resources of an activation, or none.
    pub(in crate::firmware) fn begin_activation(
        &mut self,
        owner: u32,
        request: &Activate,
    ) -> Result<PendingActivation, NncStatus> {
        if self.restarting.is_some() {
            return Err(NncStatus::RESTARTING);
        }
        let elf = self.elf(owner, request.elf_id)?;
        let (requirements, elf) = (elf.requirements, Arc::clone(&elf.data));
        let constants = match request.constants_id {
            0 => None,
            id => Some(Arc::clone(self.constants(owner, id)?)),
        };
        if request.resource_res_id != WHOLE_DEVICE {
            return Err(NncStatus::NOT_FOUND);
        }
        let activation_id = self.new_id(self.activations.len(), NncStatus::IDS_EXHAUSTED)?;
        let Requirements { cores, multicast_ids, semaphores, ddr_bytes, .. } = requirements;
        let main = Amounts { cores, multicast_ids, ddr_bytes, ..Amounts::default() };
        let resources = self.card.take(main)?;
        let cores = resources.cores;
        let lease = match self.lease_channel(request, semaphores) {
            Ok(lease) => lease,
            Err(status) => {
                self.card.give_back(resources);
                return Err(status);
            }
        };
        let channel = lease.as_ref().map(|lease| lease.channel);
        let activation = Activation {
            owner,
            elf_id: request.elf_id,
            constants_id: request.constants_id,
            held: resources,
            channel: lease,
            data_path: None,
        };
        self.activations.insert(activation_id, activation);
        Ok(PendingActivation { activation_id, elf, constants, ddr_bytes, channel, cores })
    }

    /// Takes a channel and its semaphores.
    fn lease_channel(
        &mut self,
        request: &Activate,
        semaphores: u32,
    ) -> Result<Option<ChannelLease>, NncStatus> {
        if request.vc_res_id >= 0 && request.vc_res_id != SKIP_CHANNEL {
            return Err(NncStatus::NOT_FOUND);
        }
        if request.vc_res_id == SKIP_CHANNEL || request.opt_vc_setup == 0 {
            return Ok(None);
        }
        let held = self.card.take(Amounts { semaphores, channels: 1, ..Amounts::default() })?;
        // The lowest free channel; there is one, because it is part of the reserved resources.
        let channel = self.free_channels.trailing_zeros();
        debug_assert!(channel < u32::BITS, "a channel that is counted exists");
        self.free_channels &= !(1_u32.checked_shl(channel).unwrap_or(0));
        Ok(Some(ChannelLease { channel, held }))
    }

    /// Completes an activation after its cores are ready. Returns true if the activation still exists.
    pub(in crate::firmware) fn complete_activation(
        &mut self,
        activation_id: u32,
        data_path: &Arc<Channel>,
    ) -> bool {
        let Some(activation) = self.activations.get_mut(&activation_id) else { return false };
        activation.data_path = Some(Arc::clone(data_path));
        true
    }

    /// Returns the resources of an activation whose cores could not be prepared.
    pub(in crate::firmware) fn abort_activation(&mut self, activation_id: u32) {
        if let Some(activation) = self.activations.remove(&activation_id) {
            self.release(activation);
        }
    }

    /// Ends an activation. Its channel must exist and is also released, or remains until the user's end.
    pub(in crate::firmware) fn deactivate(
        &mut self,
        owner: u32,
        activation_id: u32,
        tears_down: bool,
    ) -> Result<Released, NncStatus> {
        let activation = self.activations.get(&activation_id).filter(|one| one.owner == owner);
        if tears_down && activation.ok_or(NncStatus::NOT_FOUND)?.channel.is_none() {
            return Err(NncStatus::PARAMETER);
        }
        let mut activation = self.activations.remove(&activation_id).ok_or(NncStatus::NOT_FOUND)?;
        if !tears_down && let Some(lease) = activation.channel.take() {
            self.zombies.insert(lease.channel, ZombieChannel { owner, lease });
        }
        Ok(self.release(activation))
    }

    pub(in crate::firmware) fn channel_of(&self, owner: u32, activation_id: u32) -> Option<u32> {
        let activation = self.activations.get(&activation_id).filter(|one| one.owner == owner)?;
        activation.channel.as_ref().map(|lease| lease.channel)
    }

    pub(super) fn release(&mut self, activation: Activation) -> Released {
        self.card.give_back(activation.held);
        if let Some(lease) = activation.channel {
            self.end_lease(lease);
        }
        activation.data_path.into_iter().collect()
    }

    pub(super) fn end_lease(&mut self, lease: ChannelLease) {
        self.free_channels |= 1 << lease.channel;
        self.card.give_back(lease.held);
    }
}
