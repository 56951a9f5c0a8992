//! Control messages: the driver's checks, the work that the driver does itself, and the commands that it passes on.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use bytemuck::bytes_of;

use super::card::{CardState, SIGNAL_POLL};
use super::fault::{Action, Trigger, corrupt};
use super::file::EmuFile;
use super::firmware::{Transaction, TransactionReply};
use super::options::ExecutionMode;
use crate::data_path::worker::Worker;
use qaic_kmd::abi::{DBC_COUNT, MANAGE_MAX_BYTES, MANAGE_MAX_COUNT};
use qaic_kmd::protocol::{Dma, Header, NncStatus, SetUpChannel, TearDownChannel, TransactionKind, parse};
use qaic_kmd::wire::{self, Layout};
use qaic_kmd::{DbcState, Errno, ManageBuffer};

/// Error `ERESTARTSYS`: after a stop of the process has ended a call, the kernel repeats the call when the process
/// continues.
const AGAIN_AFTER_STOP: Errno = Errno::from_raw_os_error(512);

/// The contents of a message.
#[derive(Debug, Default)]
struct Message {
    transactions: Vec<Transaction>,
    /// Number of data bytes so far.
    transferred: usize,
    /// Number of ring elements for an activation.
    ring_size: Option<u32>,
    /// Channels to release; true if a transaction follows.
    given_up: Vec<(u32, bool)>,
}

/// The firmware's reply in the format for the caller.
#[derive(Debug, Default)]
struct Reply {
    bytes: Vec<u8>,
    count: u32,
}

impl EmuFile {
    /// Blocking: until the firmware has replied.
    pub(crate) fn manage(&self, buffer: &mut ManageBuffer<'_>) -> Result<(), Errno> {
        if buffer.is_reply() {
            return Err(Errno::INVAL);
        }
        let (reply, result) = loop {
            let mut reply = Reply::default();
            match self.answer(buffer.bytes(), buffer.count(), buffer.data(), &mut reply) {
                Err(AGAIN_AFTER_STOP) => {}
                result => break (reply, result),
            }
        };
        if matches!(result, Ok(()) | Err(Errno::CANCELED)) {
            buffer.set_reply(&reply.bytes, reply.count);
        }
        result
    }

    /// Answers a message of `count` transactions, whose dma transactions reference `data`.
    fn answer(&self, bytes: &[u8], count: u32, data: &[&[u8]], reply: &mut Reply) -> Result<(), Errno> {
        let fault = match self.card.fault_action(Trigger::Manage) {
            Some(Action::Fail(error)) if !comes_late(error) => return Err(error),
            fault => fault,
        };
        if bytes.len() > MANAGE_MAX_BYTES || count > MANAGE_MAX_COUNT || count == 0 || bytes.len() < 8 {
            return Err(Errno::INVAL);
        }
        drop(self.alive()?);
        let mut message = Message::default();
        if let Err(error) = take_apart(bytes, count, data, &mut message) {
            // Earlier parts have taken effect: the driver itself manages channels.
            self.give_up(&message)?;
            return Err(error);
        }
        let fault = fault.or_else(|| self.fault_of(&message));
        if let Some(Action::Fail(error)) = fault
            && !comes_late(error)
        {
            return Err(error);
        }
        let state = self.card.settled();
        let (resets, stops) = (state.resets, state.stops);
        drop(state);
        self.give_up(&message)?;
        match fault {
            Some(Action::Fail(Errno::INTR)) => return self.leave_reply(message.transactions, resets),
            Some(Action::Fail(error)) => return Err(error),
            _ => {}
        }
        if let Some(action @ (Action::Reset | Action::Dead | Action::Restart { .. })) = fault {
            self.card.perform(action, None);
        }
        if fault == Some(Action::Hang) {
            return self.await_reply(resets, stops, None);
        }
        let mut replies = self.exchange(message.transactions, fault, resets)?;
        if let Some(Action::Slow(time)) = fault
            && let Err(error) = self.await_reply(resets, stops, Some(time))
        {
            self.drop_reply(&replies)?;
            return Err(error);
        }
        if fault == Some(Action::Crc) {
            return Err(Errno::PIPE);
        }
        corrupt(&mut replies, fault);
        if wire_bytes(&replies) > MANAGE_MAX_BYTES {
            // The reply exceeds the driver's buffer and is dropped.
            return self.await_reply(resets, stops, None);
        }
        reply.count = u32::try_from(replies.len()).unwrap_or(u32::MAX);
        if let Some(Action::Count(count)) = fault {
            reply.count = count;
        }
        self.decode(replies, &mut message.ring_size, resets, &mut reply.bytes)
    }

    /// Returns the fault of a message's commands, and counts all commands.
    fn fault_of(&self, message: &Message) -> Option<Action> {
        let triggers = message.transactions.iter().filter_map(|wire| match wire {
            Transaction::Passthrough(command) => {
                let number = command.first_chunk().copied().map(u32::from_le_bytes);
                Some(Trigger::Command(number?))
            }
            Transaction::Status => Some(Trigger::Features),
            _ => None,
        });
        let mut state = self.card.settled();
        let faults: Vec<_> = triggers.map(|trigger| state.fault_action(trigger)).collect();
        faults.into_iter().flatten().next()
    }

    /// Makes the firmware execute a message whose reply arrives after a signal has ended the wait.
    fn leave_reply(&self, transactions: Vec<Transaction>, resets: u64) -> Result<(), Errno> {
        self.drop_reply(&self.exchange(transactions, None, resets)?)?;
        Err(Errno::INTR)
    }

    /// Discards a reply that no caller waits for; the driver only reads the freed channels in it.
    fn drop_reply(&self, replies: &[TransactionReply]) -> Result<(), Errno> {
        for reply in replies {
            if let TransactionReply::Deactivate { dbc_id, .. } = reply {
                self.deactivated(0, *dbc_id)?;
            }
        }
        Ok(())
    }

    /// Ends the ownership of channels before the message is sent, and waits for the end of their waits. The message
    /// is refused if a channel does not belong to the file, or if a transaction is unknown.
    ///
    /// Blocking: until the time limits of the waits have passed, if their inferences do not end.
    fn give_up(&self, message: &Message) -> Result<(), Errno> {
        for &(dbc_id, is_last) in &message.given_up {
            let mut state = self.alive()?;
            let dbc = &mut state.dbcs[dbc_id as usize];
            if dbc.owner != Some(self.user) {
                return Err(if is_last { Errno::PERM } else { Errno::INVAL });
            }
            dbc.owner = None;
            // Signals do not end this wait.
            while state.dbcs[dbc_id as usize].waits > 0 {
                let changed = self.card.changed.wait_timeout(state, SIGNAL_POLL);
                drop(changed.unwrap_or_else(PoisonError::into_inner));
                state = self.card.settled();
            }
        }
        Ok(())
    }

    /// Waits for a reply that arrives after this time, or never.
    fn await_reply(&self, resets: u64, stops: u64, after: Option<Duration>) -> Result<(), Errno> {
        let now = self.card.options.clock.now();
        let deadline = now + self.card.options.control_timeout;
        let state = self.card.lock();
        let _waiting = self.card.count(state, |state| &mut state.waiters);
        let mut state = self.card.settled();
        loop {
            if state.resets != resets || !state.can_use(self.user) {
                return Err(Errno::IO);
            }
            let now_at = self.card.options.clock.now();
            let comes_at = after.and_then(|after| now.checked_add(after)).filter(|at| *at < deadline);
            if comes_at.is_some_and(|at| now_at >= at) {
                return Ok(());
            }
            if state.stops != stops {
                return Err(AGAIN_AFTER_STOP);
            }
            if now_at >= deadline {
                return Err(Errno::TIMEDOUT);
            }
            state = self.card.wait_for_change(state, comes_at.unwrap_or(deadline), false)?;
        }
    }

    /// Sends the message to the firmware. Fails with `EIO` if the card was reset in the meantime.
    fn exchange(
        &self,
        transactions: Vec<Transaction>,
        fault: Option<Action>,
        resets: u64,
    ) -> Result<Vec<TransactionReply>, Errno> {
        let state = self.card.settled();
        let wire_id = state.users.get(&self.user).ok_or(Errno::NODEV)?.wire_id;
        if state.resets != resets {
            return Err(Errno::IO);
        }
        if let Some(Action::Nack { status, both }) = fault {
            drop(state);
            return Ok(self.card.firmware.refuse(wire_id, transactions, NncStatus(status), both));
        }
        let busy = self.card.count(state, |state| &mut state.busy);
        let replies = self.card.firmware.handle(wire_id, transactions);
        drop(busy);
        let state = self.card.settled();
        let is_same = state.resets == resets && state.can_use(self.user);
        drop(state);
        if is_same {
            return Ok(replies);
        }
        // The reset ended the firmware's work for its earlier users.
        self.card.firmware.terminate(wire_id);
        Err(Errno::IO)
    }

    /// Builds the reply, and does the driver's part of it.
    fn decode(
        &self,
        replies: Vec<TransactionReply>,
        ring_size: &mut Option<u32>,
        resets: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        for reply in replies {
            let (kind, body) = match &reply {
                TransactionReply::Passthrough(body) => (TransactionKind::PassthroughFromDevice, &body[..]),
                TransactionReply::Activate(channel) => {
                    (TransactionKind::ActivateFromDevice, bytes_of(channel))
                }
                // The driver does not pass this reply on.
                TransactionReply::Deactivate { status, dbc_id } => {
                    self.deactivated(*status, *dbc_id)?;
                    continue;
                }
                TransactionReply::Status(features) => (TransactionKind::StatusFromDevice, bytes_of(features)),
            };
            let transaction = kind.transaction(body);
            if bytes.len() + transaction.len() > MANAGE_MAX_BYTES {
                return Err(Errno::NOSPC);
            }
            bytes.extend(transaction);
            match reply {
                TransactionReply::Activate(channel) => {
                    self.activated(channel.status, channel.dbc_id, ring_size, resets)?
                }
                TransactionReply::Status(features) if features.status != 0 => return Err(Errno::CANCELED),
                _ => {}
            }
        }
        Ok(())
    }

    /// Assigns a channel to the file; the last requested ring of the message becomes the channel's.
    ///
    /// Blocking: while the driver keeps the channel for an earlier activation.
    fn activated(
        &self,
        status: u32,
        dbc_id: u32,
        ring_size: &mut Option<u32>,
        resets: u64,
    ) -> Result<(), Errno> {
        let elements = ring_size.ok_or(Errno::INVAL)?;
        if dbc_id >= DBC_COUNT {
            return Err(Errno::NODEV);
        }
        if status != 0 {
            return Err(Errno::CANCELED);
        }
        *ring_size = None;
        let card = &self.card;
        let mut state = self.await_release(dbc_id, resets)?;
        // The driver accepts any channel number; a missing channel has no effect.
        let found = card.firmware.channel(dbc_id);
        let dbc = &mut state.dbcs[dbc_id as usize];
        dbc.is_hung = found.is_none();
        let channel = found.unwrap_or_else(|| card.firmware.dead_channel());
        dbc.owner = Some(self.user);
        dbc.ring_size = elements;
        let before = dbc.channel.replace(channel);
        dbc.activation += 1;
        dbc.drive = Arc::default();
        let worker = dbc.worker.take();
        if card.options.execution_mode == ExecutionMode::Threads {
            dbc.worker = Worker::start(card, dbc_id, dbc.activation);
        }
        card.set_dbc_state(&mut state, dbc_id, DbcState::Assigned);
        drop(state);
        if let Some(before) = before {
            before.stop();
        }
        if let Some(worker) = worker {
            worker.wake();
            worker.end();
        }
        Ok(())
    }

    /// Returns the card's state when a channel is no longer in use. A signal only ends the wait, so that the channel
    /// is taken over.
    fn await_release(&self, dbc_id: u32, resets: u64) -> Result<MutexGuard<'_, CardState>, Errno> {
        let mut state = self.card.settled();
        let stops = state.stops;
        loop {
            if state.resets != resets || !state.can_use(self.user) {
                return Err(Errno::IO);
            }
            let is_signaled = || self.card.options.signaled.is_some_and(|signaled| signaled());
            let is_ended = state.stops != stops || is_signaled();
            if state.dbcs[dbc_id as usize].channel.is_none() || is_ended {
                return Ok(state);
            }
            let waiting = self.card.count(state, |state| &mut state.waiters);
            let state_again = self.card.lock();
            let changed = self.card.changed.wait_timeout(state_again, SIGNAL_POLL);
            drop(changed.unwrap_or_else(PoisonError::into_inner));
            drop(waiting);
            state = self.card.settled();
        }
    }

    /// Frees a channel that the firmware reports as free, or takes the channel back if the firmware refuses.
    fn deactivated(&self, status: u32, dbc_id: u32) -> Result<(), Errno> {
        if dbc_id >= DBC_COUNT {
            return Err(Errno::NODEV);
        }
        let mut state = self.card.settled();
        let dbc = &mut state.dbcs[dbc_id as usize];
        if status != 0 {
            dbc.owner = Some(self.user);
            return Err(Errno::CANCELED);
        }
        if dbc.channel.is_none() {
            return Ok(());
        }
        let cleanup = self.card.release(&mut state, dbc_id, Errno::PERM);
        drop(state);
        cleanup.finish(&self.card);
        Ok(())
    }
}

/// Parses a message up to a refused transaction.
fn take_apart(bytes: &[u8], count: u32, data: &[&[u8]], message: &mut Message) -> Result<(), Errno> {
    let mut data = data.iter().copied();
    let mut rest = bytes;
    for _ in 0..count {
        let (kind, body, behind) = parse::split(rest).map_err(|_| Errno::INVAL)?;
        rest = behind;
        take_apart_transaction(kind, body, &mut data, message, rest.is_empty()).map_err(|_| Errno::INVAL)?;
    }
    if rest.is_empty() { Ok(()) } else { Err(Errno::INVAL) }
}

fn take_apart_transaction<'data>(
    kind: u32,
    body: &[u8],
    data: &mut impl Iterator<Item = &'data [u8]>,
    message: &mut Message,
    is_last: bool,
) -> Result<(), Errno> {
    match TransactionKind::of(kind) {
        Some(TransactionKind::PassthroughFromUser) => {
            if !body.len().is_multiple_of(8) {
                return Err(Errno::INVAL);
            }
            message.transactions.push(Transaction::Passthrough(body.to_vec()));
        }
        Some(TransactionKind::DmaFromUser) => {
            let Dma { tag, size, .. } = read(body)?;
            let data = data.next().filter(|data| data.len() as u64 == size).ok_or(Errno::INVAL)?;
            // The driver treats data after other data as the rest of one transfer.
            let rest = data.get(message.transferred..).filter(|rest| !rest.is_empty());
            let data = fetch(rest.ok_or(Errno::INVAL)?)?;
            message.transferred += data.len();
            message.transactions.push(Transaction::Dma { tag, data });
        }
        Some(TransactionKind::ActivateFromUser) => {
            let SetUpChannel { queue_size, options, pad, .. } = read(body)?;
            // One buffer with a 32-bit size contains the rings.
            let ring_bytes = queue_size.checked_mul(68).and_then(|bytes| bytes.checked_add(256 + 4095));
            if queue_size == 0 || pad != 0 || ring_bytes.is_none() {
                return Err(Errno::INVAL);
            }
            message.ring_size = Some(queue_size);
            message.transactions.push(Transaction::Activate { queue_size, options });
        }
        // The driver sends nothing of this transaction to the firmware.
        Some(TransactionKind::DeactivateFromUser) => {
            let TearDownChannel { dbc_id, pad } = read(body)?;
            if dbc_id >= DBC_COUNT || pad != 0 {
                return Err(Errno::INVAL);
            }
            message.given_up.push((dbc_id, is_last));
        }
        Some(TransactionKind::StatusFromUser) => message.transactions.push(Transaction::Status),
        _ => return Err(Errno::INVAL),
    }
    Ok(())
}

/// Number of bytes of a reply to the driver.
fn wire_bytes(replies: &[TransactionReply]) -> usize {
    const MESSAGE_HEADER_BYTES: usize = 32;
    let bytes = |reply: &TransactionReply| match reply {
        TransactionReply::Passthrough(body) => size_of::<Header>() + body.len(),
        TransactionReply::Activate(channel) => size_of::<Header>() + size_of_val(channel),
        TransactionReply::Deactivate { .. } => 2 * size_of::<Header>(),
        TransactionReply::Status(features) => size_of::<Header>() + size_of_val(features),
    };
    MESSAGE_HEADER_BYTES + replies.iter().map(bytes).sum::<usize>()
}

/// Returns true if a control call fails with this error after the driver has begun. Channels are then released, and
/// the message may have been sent.
fn comes_late(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::AGAIN)
}

/// Copies the data that the card fetches. Fails with `ENOMEM` if the memory is insufficient.
fn fetch(from: &[u8]) -> Result<Arc<[u8]>, Errno> {
    Vec::<u8>::new().try_reserve_exact(from.len()).map_err(|_| Errno::NOMEM)?;
    Ok(from.into())
}

/// Reads the body of a transaction.
fn read<T: Layout>(body: &[u8]) -> Result<T, Errno> {
    wire::read(body).ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::card::Card;
    use super::super::events::EventBroadcast;
    use super::super::options::EmuOptions;
    use super::*;

    fn file() -> EmuFile {
        let card =
            Arc::new(Card::new(0, &Arc::new(EmuOptions::default()), &Arc::<EventBroadcast>::default()));
        let user = card.open().unwrap();
        EmuFile { card, user }
    }

    fn answered(file: &EmuFile, words: &[u32], count: u32, data: &[&[u8]]) -> Result<(), Errno> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.answer(&bytes, count, data, &mut Reply::default())
    }

    #[test]
    fn message_whose_frame_is_wrong_is_refused() {
        let file = file();
        assert_eq!(answered(&file, &[12, 8], 1, &[]), Ok(()));
        let long = [[12, 8]; 513].concat();
        for (words, count) in [
            (&long[..], 1),
            (&[12, 8], 513),
            (&[12, 8], 0),
            (&[12], 1),
            (&[12, 8, 12, 8], 1),
            (&[12, 8], 2),
            (&[12, 7], 1),
            (&[12, 16], 1),
            (&[5, 24, 100, 1, 8, 0], 1),
        ] {
            assert_eq!(answered(&file, words, count, &[b"12345678"]), Err(Errno::INVAL), "{words:?} {count}");
        }
    }

    #[test]
    fn transaction_that_names_memory_without_it_is_refused() {
        let file = file();
        let dma = |size| [5, 32, 100, 1, 4096, 0, size, 0];
        assert_eq!(answered(&file, &dma(3), 1, &[b"abc"]), Ok(()));
        assert_eq!(answered(&file, &dma(3), 1, &[]), Err(Errno::INVAL));
        assert_eq!(answered(&file, &dma(4), 1, &[b"abc"]), Err(Errno::INVAL));
        assert_eq!(answered(&file, &dma(0), 1, &[b""]), Err(Errno::INVAL));
    }

    proptest! {
        /// Any bytes cause neither a panic nor an answer beyond the buffer, and leave no resources in use.
        #[test]
        fn message_of_any_bytes_is_answered_within_the_buffer(
            bytes in vec(prop::sample::select(vec![0_u8, 1, 3, 5, 7, 8, 9, 10, 12, 16, 24, 32, 255]), 0..200),
            count in 0..5_u32,
            data in vec(any::<u8>(), 0..9),
        ) {
            let file = file();
            let mut reply = Reply::default();
            let _ = file.answer(&bytes, count, &[&data], &mut reply);
            prop_assert!(reply.bytes.len() <= MANAGE_MAX_BYTES);
        }
    }
}
