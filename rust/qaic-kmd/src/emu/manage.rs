//! Control messages: what the driver checks, what it does itself, and what it passes on (device-kmd §2.3, §2.4).

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use super::card::{Aftermath, Card};
use super::control_faults::spoil;
use super::faults::{Action, Trigger};
use super::file::EmuFile;
use super::firmware::wire::{Wire, WireReply};
use super::options::Pace;
use super::worker::Worker;
use crate::Errno;
use crate::abi::{DBC_COUNT, MANAGE_MAX_BYTES, MANAGE_MAX_COUNT, ManageMsg};
use crate::kmd::DbcState;
use crate::user_memory::{copy_in, copy_out};

/// Most bytes that a message has the card fetch at once, as much as no card has memory.
const MAX_DMA_BYTES: u64 = 64 << 30;

/// What a message wants.
#[derive(Debug, Default)]
struct Message {
    wires: Vec<Wire>,
    /// Elements of the ring for an activation.
    ring_size: Option<u32>,
    /// Channels that are to be given up.
    given_up: BTreeSet<u32>,
}

/// What came back, as the caller sees it.
#[derive(Debug, Default)]
struct Reply {
    bytes: Vec<u8>,
    count: u32,
}

impl EmuFile {
    /// Blocking: until the firmware has replied.
    pub(crate) fn manage(&self, arg: &mut ManageMsg) -> Result<(), Errno> {
        let fault = match self.card.happens(Trigger::Manage) {
            Some(Action::Fail(error)) => return Err(error),
            fault => fault,
        };
        let bytes = self.message(arg)?;
        let message = self.take_apart(&bytes, arg.count)?;
        let fault = fault.or_else(|| self.fault_of(&message));
        if let Some(Action::Fail(error)) = fault {
            return Err(error);
        }
        let resets = self.card.settled().resets;
        self.give_up(&message)?;
        if let Some(action @ (Action::Reset | Action::Dead | Action::Restart { .. })) = fault {
            self.card.perform(action, None);
        }
        if fault == Some(Action::Hang) {
            return self.await_no_reply(resets);
        }
        let mut replies = self.exchange(message.wires, fault, resets)?;
        if fault == Some(Action::Crc) {
            return Err(Errno::PIPE);
        }
        spoil(&mut replies, fault);
        let mut reply = Reply { bytes: Vec::new(), count: u32::try_from(replies.len()).unwrap_or(u32::MAX) };
        if let Some(Action::Count(count)) = fault {
            reply.count = count;
        }
        let result = self.decode(replies, message.ring_size, resets, &mut reply.bytes);
        if matches!(result, Ok(()) | Err(Errno::CANCELED)) {
            copy_out(arg.data, &reply.bytes)?;
            arg.len = u32::try_from(reply.bytes.len()).map_err(|_| Errno::NOSPC)?;
            arg.count = reply.count;
        }
        result
    }

    /// The bytes of a message whose frame is right.
    fn message(&self, arg: &ManageMsg) -> Result<Vec<u8>, Errno> {
        let len = arg.len as usize;
        if len > MANAGE_MAX_BYTES || arg.count > MANAGE_MAX_COUNT || arg.count == 0 || len < 8 {
            return Err(Errno::INVAL);
        }
        drop(self.alive()?);
        let mut bytes = vec![0; len];
        copy_in(arg.data, &mut bytes)?;
        Ok(bytes)
    }

    fn take_apart(&self, bytes: &[u8], count: u32) -> Result<Message, Errno> {
        let mut message = Message::default();
        let mut rest = bytes;
        for _ in 0..count {
            let len = word(rest, 4)? as usize;
            let transaction = rest.get(..len).filter(|_| len >= 8).ok_or(Errno::INVAL)?;
            rest = &rest[len..];
            self.take_apart_transaction(transaction, &mut message)?;
        }
        if rest.is_empty() { Ok(message) } else { Err(Errno::INVAL) }
    }

    fn take_apart_transaction(&self, bytes: &[u8], message: &mut Message) -> Result<(), Errno> {
        match word(bytes, 0)? {
            1 => {
                if !bytes.len().is_multiple_of(8) {
                    return Err(Errno::INVAL);
                }
                message.wires.push(Wire::Passthrough(bytes[8..].to_vec()));
            }
            5 => {
                let (tag, address, size) =
                    (word(bytes, 8)?, double_word(bytes, 16)?, double_word(bytes, 24)?);
                message.wires.push(Wire::Dma { tag, data: fetch(address, size)? });
            }
            7 => {
                let (queue_size, options, pad) = (word(bytes, 8)?, word(bytes, 16)?, word(bytes, 20)?);
                // The rings lie in one buffer whose size has 32 bits.
                let ring_bytes = queue_size.checked_mul(68).and_then(|bytes| bytes.checked_add(256 + 4095));
                if queue_size == 0 || pad != 0 || ring_bytes.is_none() {
                    return Err(Errno::INVAL);
                }
                message.ring_size = Some(queue_size);
                message.wires.push(Wire::Activate { queue_size, options });
            }
            10 => {
                let (dbc_id, pad) = (word(bytes, 8)?, word(bytes, 12)?);
                if dbc_id >= DBC_COUNT || pad != 0 {
                    return Err(Errno::INVAL);
                }
                let state = self.alive()?;
                let is_owner = state.dbcs[dbc_id as usize].owner == Some(self.user);
                if !is_owner || !message.given_up.insert(dbc_id) {
                    return Err(Errno::PERM);
                }
                message.wires.push(Wire::Deactivate { dbc_id });
            }
            12 => message.wires.push(Wire::Status),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    /// What goes wrong with the commands of a message; all are counted.
    fn fault_of(&self, message: &Message) -> Option<Action> {
        let triggers = message.wires.iter().filter_map(|wire| match wire {
            Wire::Passthrough(command) => Some(Trigger::Command(word(command, 0).ok()?)),
            Wire::Status => Some(Trigger::Features),
            _ => None,
        });
        let mut state = self.card.settled();
        let faults: Vec<_> = triggers.map(|trigger| state.happens(trigger)).collect();
        faults.into_iter().flatten().next()
    }

    /// Ends the ownership of channels before the message goes out; what was queued on them is lost.
    fn give_up(&self, message: &Message) -> Result<(), Errno> {
        let mut state = self.alive()?;
        for &dbc_id in &message.given_up {
            let dbc = &mut state.dbcs[dbc_id as usize];
            if dbc.owner != Some(self.user) {
                return Err(Errno::PERM);
            }
            (dbc.owner, dbc.former_owner) = (None, Some(self.user));
            self.card.lose_flights(&mut state, dbc_id, Errno::PERM);
        }
        Ok(())
    }

    /// Waits for a reply that does not come.
    fn await_no_reply(&self, resets: u64) -> Result<(), Errno> {
        let deadline = self.card.options.clock.now() + self.card.options.control_timeout;
        let state = self.card.lock();
        let _waiting = self.card.count(state, |state| &mut state.waiters);
        Err(self.card.await_reset(self.user, resets, deadline))
    }

    /// Has the firmware answer. `EIO`: the card was reset meanwhile.
    fn exchange(
        &self,
        wires: Vec<Wire>,
        fault: Option<Action>,
        resets: u64,
    ) -> Result<Vec<WireReply>, Errno> {
        let state = self.card.settled();
        let wire_id = state.users.get(&self.user).ok_or(Errno::NODEV)?.wire_id;
        if state.resets != resets {
            return Err(Errno::IO);
        }
        if let Some(Action::Nack { status, both }) = fault {
            drop(state);
            return Ok(self.card.firmware.refuse(wires, status, both));
        }
        let busy = self.card.count(state, |state| &mut state.busy);
        let replies = self.card.firmware.handle(wire_id, wires);
        drop(busy);
        let state = self.card.settled();
        let is_same = state.resets == resets && state.can_use(self.user);
        drop(state);
        if is_same {
            return Ok(replies);
        }
        // What the firmware did for a user of before the reset is nobody's.
        self.card.firmware.terminate(wire_id);
        Err(Errno::IO)
    }

    /// Puts the reply together, and does what the driver has to do with it.
    fn decode(
        &self,
        replies: Vec<WireReply>,
        ring_size: Option<u32>,
        resets: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        for reply in replies {
            let (kind, body) = match &reply {
                WireReply::Passthrough(body) => (3_u32, body.clone()),
                WireReply::Activate { status, dbc_id, options } => {
                    (8, [&status.to_le_bytes()[..], &dbc_id.to_le_bytes(), &options.to_le_bytes()].concat())
                }
                // The driver keeps it to itself.
                WireReply::Deactivate { status, dbc_id } => {
                    self.deactivated(*status, *dbc_id)?;
                    continue;
                }
                WireReply::Status { major, minor, status, flags } => {
                    let version = [major.to_le_bytes(), minor.to_le_bytes()].concat();
                    (14, [&version[..], &status.to_le_bytes(), &flags.to_le_bytes()].concat())
                }
            };
            let len = 8 + body.len();
            if bytes.len() + len > MANAGE_MAX_BYTES {
                return Err(Errno::NOSPC);
            }
            bytes.extend(kind.to_le_bytes());
            bytes.extend(u32::try_from(len).map_err(|_| Errno::NOSPC)?.to_le_bytes());
            bytes.extend(body);
            match reply {
                WireReply::Activate { status, dbc_id, .. } => {
                    self.activated(status, dbc_id, ring_size, resets)?
                }
                WireReply::Status { status, .. } if status != 0 => return Err(Errno::CANCELED),
                _ => {}
            }
        }
        Ok(())
    }

    fn activated(&self, status: u32, dbc_id: u32, ring_size: Option<u32>, resets: u64) -> Result<(), Errno> {
        let ring_size = ring_size.ok_or(Errno::INVAL)?;
        if dbc_id >= DBC_COUNT {
            return Err(Errno::NODEV);
        }
        if status != 0 {
            return Err(Errno::CANCELED);
        }
        let card = &self.card;
        let mut state = self.alive().map_err(|_| Errno::IO)?;
        if state.resets != resets {
            return Err(Errno::IO);
        }
        let channel = card.firmware.channel(dbc_id).ok_or(Errno::NODEV)?;
        let before = if state.dbcs[dbc_id as usize].channel.is_some() {
            // The firmware gave it back without the driver's being told.
            card.release(&mut state, dbc_id, Errno::PERM)
        } else {
            Aftermath::default()
        };
        let dbc = &mut state.dbcs[dbc_id as usize];
        dbc.owner = Some(self.user);
        dbc.former_owner = None;
        dbc.ring_size = ring_size;
        dbc.channel = Some(channel);
        dbc.activation += 1;
        dbc.drive = Arc::default();
        if card.options.pace == Pace::Threads {
            dbc.worker = Worker::start(card, dbc_id, dbc.activation);
        }
        card.set_dbc_state(&mut state, dbc_id, DbcState::Assigned);
        drop(state);
        before.finish(card);
        Ok(())
    }

    fn deactivated(&self, status: u32, dbc_id: u32) -> Result<(), Errno> {
        if dbc_id >= DBC_COUNT {
            return Err(Errno::NODEV);
        }
        let mut state = self.card.settled();
        let dbc = &mut state.dbcs[dbc_id as usize];
        if dbc.former_owner != Some(self.user) {
            return Ok(());
        }
        if status != 0 {
            (dbc.owner, dbc.former_owner) = (dbc.former_owner, None);
            return Err(Errno::CANCELED);
        }
        let aftermath = self.card.release(&mut state, dbc_id, Errno::PERM);
        drop(state);
        aftermath.finish(&self.card);
        Ok(())
    }
}

impl Card {
    /// Waits for a reset, or for the time limit: why it ended.
    fn await_reset(&self, user: u32, resets: u64, deadline: Duration) -> Errno {
        let mut state = self.settled();
        loop {
            let is_dead = state.users.get(&user).is_none_or(|user| user.is_dead);
            if state.resets != resets || is_dead {
                return Errno::IO;
            }
            if self.options.clock.now() >= deadline {
                return Errno::TIMEDOUT;
            }
            state = match self.nap(state, deadline, false) {
                Ok(state) => state,
                Err(error) => return error,
            };
        }
    }
}

/// Copies what the card is to fetch. `ENOMEM`: more than there is memory for.
fn fetch(address: u64, size: u64) -> Result<Arc<[u8]>, Errno> {
    if size == 0 || address.checked_add(size).is_none() {
        return Err(Errno::INVAL);
    }
    let len = usize::try_from(size).ok().filter(|_| size <= MAX_DMA_BYTES).ok_or(Errno::NOMEM)?;
    // Before memory is taken for it.
    copy_in(address, &mut [0])?;
    copy_in(address + size - 1, &mut [0])?;
    Vec::<u8>::new().try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    let mut data: Arc<[u8]> = iter::repeat_n(0, len).collect();
    copy_in(address, Arc::get_mut(&mut data).ok_or(Errno::NOMEM)?)?;
    Ok(data)
}

fn word(bytes: &[u8], offset: usize) -> Result<u32, Errno> {
    let bytes = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    bytes.map(|bytes| u32::from_le_bytes(*bytes)).ok_or(Errno::INVAL)
}

fn double_word(bytes: &[u8], offset: usize) -> Result<u64, Errno> {
    let bytes = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    bytes.map(|bytes| u64::from_le_bytes(*bytes)).ok_or(Errno::INVAL)
}
