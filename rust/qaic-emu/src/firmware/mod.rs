//! The firmware of an emulated card: parses control messages, keeps the resource tables of the card, and answers like
//! a real card.

mod config;
mod constants;
mod message;
mod replies;
mod requests;
mod tables;
mod transaction;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::bytes_of;
use qaic_kmd::protocol::{
    Activate, ActivationState, ChannelReply, Deactivate, DeactivateReply, Features, LoadConstantsReply,
    LoadElfReply, NncStatus, Numbered, PerformanceInfoReply, UnloadConstantsReply, UnloadElfReply,
    WHOLE_DEVICE,
};

pub use config::{FirmwareConfig, Performance, Totals};

pub use super::resources::ResourceUsage;
use super::workload::{Images, NoCores, Workload};
use crate::data_path::channel::Channel;
use crate::data_path::device_memory::Budget;
use message::{Message, SetUp};
use replies::Activated;
pub use requests::data_wanted;
use requests::{Request, refusal};
use tables::{Released, ResourceTables};
use transaction::word_of;
pub use transaction::{Transaction, TransactionReply};

/// Bit of the status flags: data paths can be switched.
const SWITCHES_DATAPATHS: u64 = 1 << 1;

/// The firmware of one card.
#[derive(Debug)]
pub struct Firmware {
    config: FirmwareConfig,
    workload: Arc<dyn Workload>,
    budget: Budget,
    tables: Mutex<ResourceTables>,
}

impl Firmware {
    /// Creates the firmware of an unused card.
    pub fn new(config: FirmwareConfig, workload: Arc<dyn Workload>) -> Self {
        let budget = Budget::new(config.totals.ddr_bytes);
        let tables = Mutex::new(ResourceTables::new(config.totals, 1));
        Self { config, workload, budget, tables }
    }

    /// Answers a message of a user.
    ///
    /// Blocking: while an activation prepares its cores; other messages are answered meanwhile.
    pub fn handle(&self, user: u32, message: Vec<Transaction>) -> Vec<TransactionReply> {
        let mut message = Message::new(message);
        let mut replies = Vec::new();
        while let Some(command) = message.commands.pop_front() {
            self.answer(user, &command, &mut message, &mut replies);
        }
        // Transactions without a command in the message.
        for _ in message.set_ups {
            replies.push(TransactionReply::refused_channel(NncStatus::VC_SETUP));
        }
        for () in message.status_requests {
            replies.push(TransactionReply::Status(self.features()));
        }
        replies
    }

    /// Returns the reply to a message that is refused as a whole and changes nothing. With `both`, an activation's
    /// channel is also refused; otherwise the reply does not mention it. The channel of a deactivation is always
    /// refused, because this makes the driver take it back.
    pub fn refuse(
        &self,
        user: u32,
        message: Vec<Transaction>,
        status: NncStatus,
        both: bool,
    ) -> Vec<TransactionReply> {
        let message = Message::new(message);
        let commands = message.commands.iter().map(|command| {
            let number = requests::number_of(command).unwrap_or(0);
            self.passthrough(refusal(number, status))
        });
        let set_ups =
            message.set_ups.iter().filter(|_| both).map(|_| TransactionReply::refused_channel(status));
        let torn_down = message.commands.iter().filter_map(|command| {
            match requests::parse(command, self.config.is_strict) {
                Ok(Request::Deactivate(request)) => self.channel_to_tear_down(user, &request),
                _ => None,
            }
        });
        let tear_downs =
            torn_down.map(|dbc_id| TransactionReply::Deactivate { status: word_of(status), dbc_id });
        let features = Features { status: word_of(status), ..self.features() };
        let statuses = message.status_requests.iter().map(|()| TransactionReply::Status(features));
        commands.chain(set_ups).chain(tear_downs).chain(statuses).collect()
    }

    /// Frees all resources of a user.
    pub fn terminate(&self, user: u32) {
        let released = self.tables().terminate(user);
        stop(released);
    }

    /// Resets the firmware to its initial state.
    pub fn reset(&self) {
        let released = self.tables().reset();
        stop(released);
    }

    /// Reports that the cores of a channel have failed. Their activation is lost, and new ones get `TRY_AGAIN` until
    /// [`Self::end_restart`].
    pub(crate) fn begin_restart(&self, dbc_id: u32) {
        let released = self.tables().begin_restart(dbc_id);
        stop(released);
    }

    /// Reports that the failed cores have restarted.
    pub(crate) fn end_restart(&self) {
        self.tables().end_restart();
    }

    /// Returns the free resources and the loaded programs.
    pub fn resource_usage(&self) -> ResourceUsage {
        self.tables().resource_usage()
    }

    /// Returns the data path of an activation's channel.
    pub fn channel(&self, dbc_id: u32) -> Option<Arc<Channel>> {
        self.tables().data_path(dbc_id)
    }

    /// Returns a channel without cores.
    pub(crate) fn dead_channel(&self) -> Arc<Channel> {
        Arc::new(Channel::new(Box::new(NoCores), self.budget.clone()))
    }

    fn tables(&self) -> MutexGuard<'_, ResourceTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a reply, followed by the configured number of zeros.
    fn passthrough(&self, mut reply: Vec<u8>) -> TransactionReply {
        reply.resize(reply.len() + self.config.reply_tail_bytes, 0);
        TransactionReply::Passthrough(reply)
    }

    fn features(&self) -> Features {
        let (major, minor) = self.config.transport_version;
        Features { major, minor, status: 0, status_flags: self.config.status_flags }
    }

    /// Answers a command together with its transactions.
    fn answer(&self, user: u32, bytes: &[u8], message: &mut Message, replies: &mut Vec<TransactionReply>) {
        let number = requests::number_of(bytes).unwrap_or(0);
        match requests::parse(bytes, self.config.is_strict) {
            Ok(Request::Activate(request)) => self.answer_activate(user, &request, message, replies),
            Ok(Request::Deactivate(request)) => self.answer_deactivate(user, &request, replies),
            Ok(request) => {
                let reply = self.answer_plain(user, request, message);
                replies.push(self.passthrough(reply.unwrap_or_else(|status| refusal(number, status))));
            }
            Err(status) => {
                replies.push(self.passthrough(refusal(number, status)));
                self.refuse_rest(number, status, message, replies);
            }
        }
    }

    /// Refuses the transactions of a command that cannot be decoded.
    fn refuse_rest(
        &self,
        number: u32,
        status: NncStatus,
        message: &mut Message,
        replies: &mut Vec<TransactionReply>,
    ) {
        if number == Activate::NUMBER && message.set_ups.pop_front().is_some() && self.config.nacks_both {
            replies.push(TransactionReply::refused_channel(status));
        }
    }

    /// Returns the channel that is released with an activation: the activation's own, because the driver does not
    /// specify it.
    fn channel_to_tear_down(&self, user: u32, request: &Deactivate) -> Option<u32> {
        let is_wanted = request.opt_vc_teardown != 0;
        is_wanted.then(|| self.tables().channel_of(user, request.activation_id)).flatten()
    }

    fn answer_deactivate(&self, user: u32, request: &Deactivate, replies: &mut Vec<TransactionReply>) {
        let channel = self.channel_to_tear_down(user, request);
        let tears_down = request.opt_vc_teardown != 0;
        let done = self.tables().deactivate(user, request.activation_id, tears_down).map(stop);
        let status = done.err().unwrap_or_default();
        replies.push(self.passthrough(bytes(&DeactivateReply { status, ..DeactivateReply::default() })));
        if let Some(dbc_id) = channel {
            replies.push(TransactionReply::Deactivate { status: word_of(status), dbc_id });
        }
    }

    fn answer_activate(
        &self,
        user: u32,
        request: &Activate,
        message: &mut Message,
        replies: &mut Vec<TransactionReply>,
    ) {
        let set_up = if request.opt_vc_setup == 0 { None } else { message.set_ups.pop_front() };
        let activated = self.activate(user, request, set_up);
        let reply = match &activated {
            Ok(activated) => bytes(&replies::activated(activated)),
            Err(status) => refusal(Activate::NUMBER, *status),
        };
        replies.push(self.passthrough(reply));
        match (set_up, activated) {
            (Some(set_up), Ok(Activated { channel: Some(dbc_id), .. })) => {
                let options = set_up.options.into();
                replies.push(TransactionReply::Activate(ChannelReply { status: 0, dbc_id, options }));
            }
            (Some(_), Ok(_)) => replies.push(TransactionReply::refused_channel(NncStatus::VC_SETUP)),
            (Some(_), Err(status)) if self.config.nacks_both => {
                replies.push(TransactionReply::refused_channel(status));
            }
            _ => (),
        }
    }

    fn activate(&self, user: u32, request: &Activate, set_up: Option<SetUp>) -> Result<Activated, NncStatus> {
        const STATES: [i32; 2] = [ActivationState::Standby as i32, ActivationState::Ready as i32];
        if request.opt_vc_setup != 0 && set_up.is_none_or(|set_up| set_up.queue_size == 0) {
            return Err(NncStatus::VC_SETUP);
        }
        if request.reservation_type != 0 || !STATES.contains(&request.initial_state) {
            return Err(NncStatus::PARAMETER);
        }
        if request.dma_type != 0 {
            return Err(NncStatus::DMA_CONFIGURATION);
        }
        let switches = request.opt_support_datapath_switching != 0;
        if switches && self.config.status_flags & SWITCHES_DATAPATHS == 0 {
            return Err(NncStatus::SWITCHING_DISABLED);
        }
        let pending = self.tables().begin_activation(user, request)?;
        let id = pending.activation_id;
        let guard = ActivationGuard { firmware: self, activation_id: id };
        let layout = ActivationLayout::of(id, pending.ddr_bytes);
        let constants = pending.constants.map(|constants| constants.whole()).transpose()?;
        let running = self.workload.activate(&Images {
            elf: pending.elf,
            elf_id: request.elf_id,
            constants: constants.unwrap_or_default(),
            constants_id: request.constants_id,
            ddr_base: layout.ddr,
            mcid_base: layout.mcids,
        })?;
        let data_path = Arc::new(Channel::new(running, self.budget.clone()));
        // The user or the card may no longer exist.
        if !self.tables().complete_activation(id, &data_path) {
            return Err(NncStatus::GENERAL);
        }
        std::mem::forget(guard);
        Ok(Activated {
            activation_id: id,
            channel: pending.channel,
            ddr_base: layout.ddr,
            dynamic_ddr_base: layout.dynamic_ddr,
            mcid_base: layout.mcids,
            physical_channels: pending.channel.map_or(0, |channel| 1 << (channel % u32::BITS)),
            cores: pending.cores,
        })
    }

    /// Answers a command with a single reply.
    fn answer_plain(&self, user: u32, request: Request, message: &mut Message) -> Result<Vec<u8>, NncStatus> {
        let constants =
            |constants_id| bytes(&LoadConstantsReply { constants_id, ..LoadConstantsReply::default() });
        Ok(match request {
            Request::LoadElf(request) => {
                let elf_id = self.load_elf(user, message.data(request.tag, request.data_length))?;
                bytes(&LoadElfReply { elf_id, ..LoadElfReply::default() })
            }
            Request::UnloadConstants(request) => {
                self.tables().unload_constants(user, request.constants_id)?;
                bytes(&UnloadConstantsReply::default())
            }
            Request::UnloadElf(request) => {
                self.tables().unload_elf(user, request.elf_id)?;
                bytes(&UnloadElfReply::default())
            }
            Request::LoadConstantsEx(sizes) => {
                constants(self.tables().announce_constants(user, sizes.static_size, sizes.dynamic_size)?)
            }
            Request::LoadConstantsPayload(request) => {
                let data = message.data(request.tag, request.data_length);
                self.load_payload(user, request.constants_id, request.offset, data)?;
                constants(request.constants_id)
            }
            Request::GetResourceInfo(request) => {
                if request.res_grp_id != WHOLE_DEVICE {
                    return Err(NncStatus::NOT_FOUND);
                }
                bytes(&replies::resource_info_reply(&self.tables().summary()))
            }
            Request::GetPerformanceInfo(_) => {
                let performance = replies::performance_info(&self.config);
                bytes(&PerformanceInfoReply { performance, ..PerformanceInfoReply::default() })
            }
            Request::GetStatus(_) => {
                let tables = self.tables();
                bytes(&replies::card_status(&self.config, &tables.summary(), &tables.loaded()))
            }
            // These commands are answered with their transactions.
            Request::Activate(_) | Request::Deactivate(_) => return Err(NncStatus::GENERAL),
        })
    }

    fn load_elf(&self, user: u32, data: Result<Arc<[u8]>, NncStatus>) -> Result<u32, NncStatus> {
        let data = data?;
        let requirements = self.workload.requirements(&data)?;
        self.tables().load_elf(user, data, requirements)
    }

    /// Loads a part of constants. If a part cannot be loaded, its constants are freed.
    fn load_payload(
        &self,
        user: u32,
        constants_id: u32,
        offset: u64,
        data: Result<Arc<[u8]>, NncStatus>,
    ) -> Result<(), NncStatus> {
        let mut tables = self.tables();
        let constants = Arc::clone(tables.constants(user, constants_id)?);
        let loaded = data.and_then(|data| constants.load(offset, &data));
        if loaded.is_err() {
            // Constants in use stay, because their activations need them.
            let _ = tables.unload_constants(user, constants_id);
        }
        loaded
    }
}

/// Returns the resources of an activation whose cores could not be prepared, because of a refusal or a panic.
struct ActivationGuard<'a> {
    firmware: &'a Firmware,
    activation_id: u32,
}

impl Drop for ActivationGuard<'_> {
    fn drop(&mut self) {
        self.firmware.tables().abort_activation(self.activation_id);
    }
}

/// Device addresses of an activation's memory. Each activation gets new addresses.
#[derive(Clone, Copy, Debug)]
struct ActivationLayout {
    ddr: u64,
    dynamic_ddr: u64,
    mcids: u64,
}

impl ActivationLayout {
    fn of(activation_id: u32, ddr_bytes: u64) -> Self {
        let slot = u64::from(activation_id % 240);
        let ddr = 0x1_0000_0000 + (slot << 27);
        Self {
            ddr,
            dynamic_ddr: ddr.saturating_add(ddr_bytes.next_multiple_of(64)),
            // Room for 3072 windows of 8 MiB.
            mcids: 0x20_0000_0000 + slot * 0x6_0000_0000,
        }
    }
}

/// Encodes a reply.
fn bytes(reply: &impl Numbered) -> Vec<u8> {
    bytes_of(reply).to_vec()
}

/// Stops data paths. Stopping cores may take long, so this runs without the tables' lock.
fn stop(released: Released) {
    for data_path in released {
        data_path.stop();
    }
}

#[cfg(test)]
mod tests;
