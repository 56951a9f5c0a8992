//! The firmware of an emulated card: takes control messages apart byte by byte, keeps the books of what a card has, and
//! answers as a card does (device-kmd §2.5, §2.6, §7.2).
//!
//! It shares nothing with the encoders and decoders of the runtime's side, so that each tests the other.

mod books;
mod config;
mod constants;
mod message;
mod replies;
mod requests;
pub(crate) mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use config::{FirmwareConfig, Performance, Totals};

use super::channel::Channel;
use super::device_memory::Budget;
pub use super::ledger::Ledger;
use super::ledger::Need;
use super::workload::{Images, Workload};
use books::{Books, Released};
use message::{Message, Setup};
use replies::{Activated, Reply};
use requests::{Activate, Request};
use wire::{Wire, WireReply};

const GENERAL: i32 = -1;
const DMA_CONFIGURATION: i32 = -2;
const PARAMETER: i32 = -6;
const VC_SETUP: i32 = -52;
const SWITCHING_DISABLED: i32 = -66;

/// Bit of the status flags: data paths can be switched (device-kmd §2.4).
const SWITCHES_DATAPATHS: u64 = 1 << 1;
/// Option of command 38.
const DEDICATED_CHANNELS: u32 = 1;

/// The firmware of one card.
#[derive(Debug)]
pub(crate) struct Firmware {
    config: FirmwareConfig,
    workload: Arc<dyn Workload>,
    budget: Budget,
    books: Mutex<Books>,
}

impl Firmware {
    pub(crate) fn new(config: FirmwareConfig, workload: Arc<dyn Workload>) -> Self {
        let budget = Budget::new(config.totals.ddr_bytes);
        let books = Mutex::new(Books::new(config.totals, 1));
        Self { config, workload, budget, books }
    }

    /// Answers a message of a user.
    ///
    /// Blocking: while an activation makes its cores ready; other messages are answered meanwhile.
    pub(crate) fn handle(&self, user: u32, message: Vec<Wire>) -> Vec<WireReply> {
        let mut message = Message::new(message);
        let mut replies = Vec::new();
        while let Some(command) = message.commands.pop_front() {
            self.answer(user, &command, &mut message, &mut replies);
        }
        // Transactions that no command of the message asked for.
        for _ in message.setups {
            replies.push(refused_setup(VC_SETUP));
        }
        for dbc_id in message.teardowns {
            let torn_down = self.books().tear_down(user, dbc_id);
            replies.push(WireReply::Deactivate { status: word_of(torn_down.err().unwrap_or(0)), dbc_id });
        }
        for () in message.status_requests {
            replies.push(self.status());
        }
        replies
    }

    /// The reply to a message that is refused as a whole, and changes nothing. An activation's channel is refused as well
    /// when `both`, and else not mentioned; that of a deactivation always is, because the driver takes it back by that.
    pub(crate) fn refuse(&self, message: Vec<Wire>, status: i32, both: bool) -> Vec<WireReply> {
        let message = Message::new(message);
        let commands = message.commands.iter().map(|command| {
            let id = requests::id_of(command).unwrap_or(0);
            self.passthrough(replies::status_only(id, status))
        });
        let setups = message.setups.iter().filter(|_| both).map(|_| refused_setup(status));
        let teardowns = message.teardowns.iter();
        let teardowns =
            teardowns.map(|dbc_id| WireReply::Deactivate { status: word_of(status), dbc_id: *dbc_id });
        let statuses = message.status_requests.iter().map(|()| match self.status() {
            WireReply::Status { major, minor, flags, .. } => {
                WireReply::Status { major, minor, status: word_of(status), flags }
            }
            other => other,
        });
        commands.chain(setups).chain(teardowns).chain(statuses).collect()
    }

    /// Frees all that a user has.
    pub(crate) fn terminate(&self, user: u32) {
        let released = self.books().terminate(user);
        stop(released);
    }

    /// Forgets everything.
    pub(crate) fn reset(&self) {
        let released = self.books().reset();
        stop(released);
    }

    /// The cores behind a channel fail. Their activation is lost, and new ones are told to try again until
    /// [`Self::end_restart`].
    pub(crate) fn begin_restart(&self, dbc_id: u32) {
        let released = self.books().begin_restart(dbc_id);
        stop(released);
    }

    /// The cores that failed have started again.
    pub(crate) fn end_restart(&self) {
        self.books().end_restart();
    }

    /// What is free and what is loaded.
    pub(crate) fn ledger(&self) -> Ledger {
        self.books().ledger()
    }

    /// The cores' side of a channel that an activation sits on.
    pub(crate) fn channel(&self, dbc_id: u32) -> Option<Arc<Channel>> {
        self.books().data_path(dbc_id)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passthrough(&self, reply: Reply) -> WireReply {
        WireReply::Passthrough(reply.into_bytes(self.config.reply_tail_bytes))
    }

    fn status(&self) -> WireReply {
        let (major, minor) = self.config.transport_version;
        WireReply::Status { major, minor, status: 0, flags: self.config.status_flags }
    }

    /// Answers a command with the transactions that belong to it.
    fn answer(&self, user: u32, bytes: &[u8], message: &mut Message, replies: &mut Vec<WireReply>) {
        let request = match requests::parse(bytes, self.config.is_strict) {
            Ok(request) => request,
            Err((command, status)) => {
                replies.push(self.passthrough(replies::status_only(command, status)));
                return self.refuse_rest(command, status, message, replies);
            }
        };
        match request {
            Request::Activate(request) => self.answer_activate(user, &request, message, replies),
            Request::Deactivate { activation_id, tears_channel_down } => {
                let channel = if tears_channel_down { message.teardowns.pop_front() } else { None };
                let done = if tears_channel_down && channel.is_none() {
                    Err(PARAMETER)
                } else {
                    let released = self.books().deactivate(user, activation_id, channel);
                    released.map(stop)
                };
                let status = done.err().unwrap_or(0);
                replies.push(self.passthrough(replies::status_only(11, status)));
                if let Some(dbc_id) = channel {
                    replies.push(WireReply::Deactivate { status: word_of(status), dbc_id });
                }
            }
            request => {
                let (command, reply) = self.answer_plain(user, request, message);
                let reply = reply.unwrap_or_else(|status| replies::status_only(command, status));
                replies.push(self.passthrough(reply));
            }
        }
    }

    /// Refuses the transactions that would have belonged to a command that cannot be read.
    fn refuse_rest(&self, command: u32, status: i32, message: &mut Message, replies: &mut Vec<WireReply>) {
        if command == 9 && message.setups.pop_front().is_some() && self.config.nacks_both {
            replies.push(refused_setup(status));
        }
        if command == 11
            && let Some(dbc_id) = message.teardowns.pop_front()
        {
            replies.push(WireReply::Deactivate { status: word_of(status), dbc_id });
        }
    }

    fn answer_activate(
        &self,
        user: u32,
        request: &Activate,
        message: &mut Message,
        replies: &mut Vec<WireReply>,
    ) {
        let setup = if request.sets_channel_up { message.setups.pop_front() } else { None };
        let activated = self.activate(user, request, setup);
        let reply = match activated {
            Ok(activated) => replies::activated(&activated),
            Err(status) => replies::status_only(9, status),
        };
        replies.push(self.passthrough(reply));
        match (setup, activated) {
            (Some(setup), Ok(Activated { channel: Some(dbc_id), .. })) => {
                replies.push(WireReply::Activate { status: 0, dbc_id, options: setup.options.into() });
            }
            (Some(_), Ok(_)) => replies.push(refused_setup(VC_SETUP)),
            (Some(_), Err(status)) if self.config.nacks_both => replies.push(refused_setup(status)),
            _ => (),
        }
    }

    fn activate(&self, user: u32, request: &Activate, setup: Option<Setup>) -> Result<Activated, i32> {
        if request.sets_channel_up && setup.is_none_or(|setup| setup.queue_size == 0) {
            return Err(VC_SETUP);
        }
        if request.reservation_type != 0 || !(0..=1).contains(&request.initial_state) {
            return Err(PARAMETER);
        }
        if request.dma_type != 0 {
            return Err(DMA_CONFIGURATION);
        }
        if request.switches_datapath && self.config.status_flags & SWITCHES_DATAPATHS == 0 {
            return Err(SWITCHING_DISABLED);
        }
        let beginning = self.books().begin_activation(user, request)?;
        let id = beginning.activation_id;
        let unfinished = Unfinished { firmware: self, activation_id: id };
        let place = Place::of(id, beginning.ddr_bytes);
        let constants = beginning.constants.map(|constants| constants.whole()).transpose()?;
        let running = self.workload.activate(&Images {
            elf: beginning.elf,
            elf_id: request.elf_id,
            constants: constants.unwrap_or_default(),
            constants_id: request.constants_id,
            ddr_base: place.ddr,
            mcid_base: place.mcids,
        })?;
        let data_path = Arc::new(Channel::new(running, self.budget.clone()));
        // The user or the card may be gone by now.
        if !self.books().complete_activation(id, &data_path) {
            return Err(GENERAL);
        }
        std::mem::forget(unfinished);
        Ok(Activated {
            activation_id: id,
            channel: beginning.channel,
            ddr_base: place.ddr,
            dynamic_ddr_base: place.dynamic_ddr,
            mcid_base: place.mcids,
            physical_channels: beginning.channel.map_or(0, |channel| 1 << (channel % u32::BITS)),
            cores: beginning.cores,
        })
    }

    /// Commands that are answered by one reply. Their number, for a refusal, and the reply.
    fn answer_plain(&self, user: u32, request: Request, message: &mut Message) -> (u32, Result<Reply, i32>) {
        let done =
            |command, done: Result<(), i32>| (command, done.map(|()| replies::status_only(command, 0)));
        match request {
            Request::LoadConstants { tag, data_length } => {
                (1, self.load_constants(user, message.data(tag, data_length)).map(replies::constants))
            }
            Request::LoadElf { tag, data_length } => {
                (3, self.load_elf(user, message.data(tag, data_length)).map(replies::elf))
            }
            Request::UnloadConstants { constants_id } => {
                done(5, self.books().unload_constants(user, constants_id))
            }
            Request::UnloadElf { elf_id } => done(7, self.books().unload_elf(user, elf_id)),
            Request::AnnounceConstants { static_bytes, dynamic_bytes } => {
                let announced = self.books().announce_constants(user, static_bytes, dynamic_bytes);
                (15, announced.map(replies::constants))
            }
            Request::LoadPayload { tag, constants_id, data_length, offset } => {
                let loaded = self.load_payload(user, constants_id, offset, message.data(tag, data_length));
                (16, loaded.map(|()| replies::constants(constants_id)))
            }
            Request::ReserveChannel { semaphores, source } => {
                let reserved = self.books().reserve_channel(user, source, semaphores);
                (19, reserved.map(|(id, channel)| replies::channel_reservation(id, channel)))
            }
            Request::ReleaseChannel { reservation } => {
                done(22, self.books().release_channel(user, reservation))
            }
            Request::Reserve { source, ddr_bytes, cores, multicast_ids } => {
                let need = Need { cores, multicast_ids, ddr_bytes, ..Need::default() };
                let reserved = self.books().reserve(user, source, need, false);
                (24, reserved.map(|id| replies::reservation(24, id)))
            }
            Request::ReleaseReservation { reservation } => {
                done(26, self.books().release_pool(user, reservation, false))
            }
            Request::CreateGroup { source, cores, multicast_ids, semaphores, channels, ddr_bytes } => {
                let need = Need { cores, multicast_ids, semaphores, channels, ddr_bytes };
                let created = self.books().reserve(user, source, need, true);
                (28, created.map(|id| replies::reservation(28, id)))
            }
            Request::ReleaseGroup { group } => done(30, self.books().release_pool(user, group, true)),
            Request::ResourceInfo { group } => {
                let resources = self.books().resources(user, group);
                (32, resources.map(|resources| replies::resource_info(group, &resources)))
            }
            Request::PerformanceInfo => (34, Ok(replies::performance_info(&self.config))),
            Request::ActivationStates { changes } => done(36, self.books().change_states(user, &changes)),
            Request::DeviceConfig { option: DEDICATED_CHANNELS, physical_channels } => {
                done(38, self.books().dedicate(user, physical_channels))
            }
            Request::DeviceConfig { .. } => (38, Err(PARAMETER)),
            Request::UpdateReservation { reservation, cores } => {
                done(44, self.books().update_reservation(user, reservation, cores))
            }
            Request::Status => {
                let books = self.books();
                let status = books
                    .resources(user, -1)
                    .map(|resources| replies::status(&self.config, &resources, &books.loaded()));
                (13, status)
            }
            // Answered with the transactions that belong to them.
            Request::Activate(_) => (9, Err(GENERAL)),
            Request::Deactivate { .. } => (11, Err(GENERAL)),
        }
    }

    fn load_elf(&self, user: u32, data: Result<Arc<[u8]>, i32>) -> Result<u32, i32> {
        let data = data?;
        let demand = self.workload.demand(&data)?;
        self.books().load_elf(user, data, demand)
    }

    fn load_constants(&self, user: u32, data: Result<Arc<[u8]>, i32>) -> Result<u32, i32> {
        let data = data?;
        let mut books = self.books();
        let id = books.announce_constants(user, data.len() as u64, 0)?;
        books.constants(user, id)?.load(0, &data)?;
        Ok(id)
    }

    /// A part that cannot be loaded frees the constants it is for (device-kmd §4.1).
    fn load_payload(
        &self,
        user: u32,
        constants_id: u32,
        offset: u64,
        data: Result<Arc<[u8]>, i32>,
    ) -> Result<(), i32> {
        let mut books = self.books();
        let constants = Arc::clone(books.constants(user, constants_id)?);
        let loaded = data.and_then(|data| constants.load(offset, &data));
        if loaded.is_err() {
            // Constants in use stay; their activations have what they need.
            let _ = books.unload_constants(user, constants_id);
        }
        loaded
    }
}

/// Gives back what an activation took, whatever kept its cores from being made ready: a refusal, or a panic.
struct Unfinished<'a> {
    firmware: &'a Firmware,
    activation_id: u32,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.firmware.books().abort_activation(self.activation_id);
    }
}

/// Where the parts of an activation begin in the device: never where the one before it was.
#[derive(Clone, Copy, Debug)]
struct Place {
    ddr: u64,
    dynamic_ddr: u64,
    mcids: u64,
}

impl Place {
    fn of(activation_id: u32, ddr_bytes: u64) -> Self {
        let turn = u64::from(activation_id % 240);
        let ddr = 0x1_0000_0000 + (turn << 27);
        Self {
            ddr,
            dynamic_ddr: ddr.saturating_add(ddr_bytes.next_multiple_of(64)),
            // Room for 3072 windows of 8 MiB.
            mcids: 0x20_0000_0000 + turn * 0x6_0000_0000,
        }
    }
}

/// An NNC status in a transaction's word.
fn word_of(status: i32) -> u32 {
    status.cast_unsigned()
}

fn refused_setup(status: i32) -> WireReply {
    WireReply::Activate { status: word_of(status), dbc_id: 0, options: 0 }
}

/// Stops data paths; that of cores may take long, so it is done without the books' lock.
fn stop(released: Released) {
    for data_path in released {
        data_path.stop();
    }
}

#[cfg(test)]
mod tests;
