//! A session with a card: its open file, and the control messages to its firmware.

use std::collections::HashSet;
use std::mem;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use qaic_kmd::protocol::message::{self, ActivateRequest};
use qaic_kmd::protocol::parse::{self, ReplyError, Transaction};
use qaic_kmd::protocol::{
    ActivateReply, ActivationState, CardStatus, DeactivateReply, Features, LoadConstantsReply, LoadElfReply,
    NncStatus, PerformanceInfo, PerformanceInfoReply, Reply, ResourceInfo, ResourceInfoReply,
    UnloadConstantsReply, UnloadElfReply,
};
use qaic_kmd::{AccelFile, Clock, Errno, ManageBuffer};

use super::device_state::DeviceState;
use super::errno::{self, Control, MOST_BUSY, MOST_SIGNALS, uninterrupted};
use super::slices::RING_ELEMENTS;
use crate::error::{CardError, DeviceError, ErrorDetail, RuntimeError};
use crate::process::CancellationToken;
use crate::process::ForkGuard;
use crate::process::log;
use crate::sync::Mutex;
use qaic_sched::CHECK_PERIOD;

/// Number of attempts, and the pause between them, for messages that the firmware refuses while cores restart.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

const STATUS: &str = "report its status";
const LOAD_CONSTANTS: &str = "load constants";
const LOAD_ELF: &str = "load the program";
const ACTIVATE: &str = "activate the program";
const DEACTIVATE: &str = "deactivate the program";
const UNLOAD_ELF: &str = "unload the program";
const UNLOAD_CONSTANTS: &str = "unload constants";

/// An open card, which the driver treats as a separate user. Objects that were loaded, activated or allocated through
/// the session keep it open.
#[derive(Debug)]
pub(super) struct CardSession {
    pub(super) device: u32,
    pub(super) state: Arc<DeviceState>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) fork_guard: ForkGuard,
    file: Arc<dyn AccelFile>,
    // Handles of imported memory. The kernel returns the same handle for repeated imports of the same memory.
    imported: Mutex<HashSet<u32>>,
}

/// Resources of a new activation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activated {
    pub(super) activation_id: u32,
    pub(super) dbc_id: u32,
    pub(super) ddr_base: u64,
    pub(super) mcid_base: u64,
}

impl CardSession {
    pub(super) fn new(
        device: u32,
        state: &Arc<DeviceState>,
        clock: Arc<dyn Clock>,
        file: Arc<dyn AccelFile>,
    ) -> Self {
        let state = Arc::clone(state);
        Self { device, state, clock, fork_guard: ForkGuard::new(), file, imported: Mutex::default() }
    }

    pub(super) fn file(&self) -> &dyn AccelFile {
        &*self.file
    }

    /// Records the handle of imported memory. Returns false if the handle is already in use; the caller must not
    /// close it then.
    pub(super) fn note_import(&self, handle: u32) -> bool {
        self.imported.lock().insert(handle)
    }

    /// Removes the record of a handle before it is closed.
    pub(super) fn forget_import(&self, handle: u32) {
        self.imported.lock().remove(&handle);
    }

    /// Queries the status and then the features of the card. A failed query of the features is ignored.
    pub(super) fn status(&self) -> Result<(CardStatus, Option<Features>), RuntimeError> {
        let status = self.ask(STATUS, message::status_query, None)?;
        let mut message = message::status_features();
        let features = uninterrupted(|| self.file().manage(&mut message));
        let features = features.ok().and_then(|()| parse::features(&message).ok());
        Ok((status, features))
    }

    pub(super) fn resources(&self) -> Result<ResourceInfo, RuntimeError> {
        let message = || message::resource_info(process::id(), -1);
        let reply: ResourceInfoReply = self.ask("report its resources", message, None)?;
        Ok(reply.resources)
    }

    pub(super) fn performance(&self) -> Result<PerformanceInfo, RuntimeError> {
        let message = message::performance_info;
        let reply: PerformanceInfoReply = self.ask("report its performance", message, None)?;
        Ok(reply.performance)
    }

    /// Announces constants; returns their id.
    pub(super) fn load_constants(
        &self,
        descriptor: &[u8],
        token: &CancellationToken,
    ) -> Result<u32, RuntimeError> {
        let too_long = || {
            ErrorDetail::Card(CardError::Transfers {
                what: format!("its constants descriptor of {} bytes exceeds a message", descriptor.len()),
            })
        };
        // The size of the message depends only on the descriptor.
        message::load_constants(process::id(), descriptor).ok_or_else(too_long)?;
        let message = || message::load_constants(process::id(), descriptor).unwrap_or_default();
        let reply: LoadConstantsReply = self.ask(LOAD_CONSTANTS, message, Some(token))?;
        if reply.constants_id == 0 {
            return Err(
                self.protocol_error(LOAD_CONSTANTS, "the id 0, which means failure, with a success status")
            );
        }
        Ok(reply.constants_id)
    }

    /// Transfers a part of announced constants.
    pub(super) fn load_constants_payload(
        &self,
        id: u32,
        offset: u64,
        data: &[u8],
        token: &CancellationToken,
    ) -> Result<(), RuntimeError> {
        let message = || message::load_constants_payload(process::id(), id, offset, data);
        self.ask::<LoadConstantsReply>(LOAD_CONSTANTS, message, Some(token)).map(drop)
    }

    /// Loads a network image; returns its id.
    pub(super) fn load_elf(
        &self,
        metadata_crc: u32,
        data: &[u8],
        token: &CancellationToken,
    ) -> Result<u32, RuntimeError> {
        let message = || message::load_elf(process::id(), metadata_crc, data);
        let reply: LoadElfReply = self.ask(LOAD_ELF, message, Some(token))?;
        Ok(reply.elf_id)
    }

    pub(super) fn unload_elf(&self, id: u32) -> Result<(), RuntimeError> {
        self.ask::<UnloadElfReply>(UNLOAD_ELF, || message::unload_elf(id), None).map(drop)
    }

    pub(super) fn unload_constants(&self, id: u32) -> Result<(), RuntimeError> {
        let message = || message::unload_constants(id);
        self.ask::<UnloadConstantsReply>(UNLOAD_CONSTANTS, message, None).map(drop)
    }

    /// Takes cores and a channel. Retries while the cores of an earlier activation restart.
    pub(super) fn activate(&self, elf_id: u32, constants_id: u32) -> Result<Activated, RuntimeError> {
        let request = ActivateRequest {
            elf_id,
            constants_id,
            initial_state: ActivationState::Ready,
            queue_size: RING_ELEMENTS,
        };
        for attempt in 1.. {
            match self.try_activate(request) {
                Err(error) if error.firmware_status() == Some(NncStatus::RESTARTING.0) && attempt < TRIES => {
                    self.pause(BETWEEN_TRIES);
                    if CancellationToken::is_current_cancelled() {
                        return Err(ErrorDetail::Interrupted.into());
                    }
                }
                other => return other,
            }
        }
        Err(RuntimeError::internal("all attempts to activate failed"))
    }

    fn try_activate(&self, request: ActivateRequest) -> Result<Activated, RuntimeError> {
        let mut message = message::activate(process::id(), request);
        let was_refused = match self.send(ACTIVATE, &mut message, None) {
            Ok(was_refused) => was_refused,
            Err(SendError::Lost(generation)) => {
                // The driver returns the same error for an unknown channel; in that case the card still answers.
                return Err(match self.ask::<CardStatus>(STATUS, message::status_query, None) {
                    Ok(_) => {
                        self.state.request_reopen();
                        self.protocol_error(ACTIVATE, "a channel that the kernel does not know")
                    }
                    Err(_) => self.state.mark_lost(generation, GONE),
                });
            }
            Err(error) => {
                self.state.request_reopen();
                return Err(self.send_failed(error));
            }
        };
        let reply = ActivateReply::with_channel(&message);
        let activated = self.check_reply(ACTIVATE, was_refused, reply);
        match activated {
            Ok(reply) => Ok(Activated {
                activation_id: reply.activation_id,
                dbc_id: reply.virtual_channel_id,
                ddr_base: reply.ddr_base,
                mcid_base: reply.mcid_base,
            }),
            Err(error) => {
                self.undo_activation(&message);
                Err(error)
            }
        }
    }

    /// Releases the resources of an activation whose reply cannot be used.
    fn undo_activation(&self, message: &ManageBuffer<'_>) {
        let Ok(reply) = ActivateReply::of(message) else {
            return self.state.request_reopen();
        };
        if !reply.status.is_success() {
            return;
        }
        let channel = parse::transactions(message.bytes()).find_map(|transaction| match transaction {
            Ok(Transaction::Channel(channel)) if channel.status == 0 => Some(channel.dbc_id),
            _ => None,
        });
        if self.deactivate(reply.activation_id, channel).is_err() {
            self.state.request_reopen();
        }
    }

    /// Releases cores and channel. Retries if the device refuses.
    pub(super) fn deactivate(&self, activation_id: u32, dbc_id: Option<u32>) -> Result<(), RuntimeError> {
        self.try_deactivate(activation_id, dbc_id, TRIES)
    }

    /// Ends an activation in the firmware after its channel was lost. The firmware may have ended it already.
    pub(super) fn forget_activation(&self, activation_id: u32) {
        let _ = self.try_deactivate(activation_id, None, 1);
    }

    fn try_deactivate(
        &self,
        activation_id: u32,
        dbc_id: Option<u32>,
        tries: u32,
    ) -> Result<(), RuntimeError> {
        let (mut attempt, mut busy, mut is_given_up) = (0, 0, false);
        loop {
            attempt += 1;
            let mut message = match dbc_id {
                Some(_) if is_given_up => message::deactivate_given_up(activation_id),
                _ => message::deactivate(activation_id, dbc_id),
            };
            let sent = match self.send(DEACTIVATE, &mut message, None) {
                Err(SendError::Deactivated) => return Ok(()),
                // The driver has given up the channel even if the message was not sent or not answered. The reply to
                // the command frees the channel. Until then the driver keeps it in use, even after the file is
                // closed, and the next activation that gets it waits forever.
                Err(SendError::NotSent(_)) if busy + 1 < MOST_BUSY => {
                    (busy, is_given_up) = (busy + 1, true);
                    continue;
                }
                Err(SendError::NotAnswered(_)) if dbc_id.is_some() && !is_given_up => {
                    is_given_up = true;
                    continue;
                }
                sent => sent.map_err(|error| self.send_failed(error)),
            };
            let reply =
                |was_refused| self.check_reply(DEACTIVATE, was_refused, DeactivateReply::of(&message));
            match sent.and_then(reply) {
                Err(error) if error.firmware_status().is_some() && attempt < tries => {
                    if error.firmware_status() == Some(NncStatus::RESTARTING.0) {
                        self.pause(BETWEEN_TRIES);
                    }
                }
                other => return other.map(drop),
            }
        }
    }

    /// Waits until `time` has passed, or until the work of the calling thread is cancelled.
    fn pause(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() && !CancellationToken::is_current_cancelled() {
            let nap = left.min(CHECK_PERIOD);
            self.clock.sleep(nap);
            left -= nap;
        }
    }

    /// Sends a message and reads the reply; a status other than success is an error. A message with a `token` loads
    /// an object. If its reply is lost, the object may exist on the card, and only closing the file frees it.
    fn ask<'data, R: Reply>(
        &self,
        what: &'static str,
        message: impl FnOnce() -> ManageBuffer<'data>,
        token: Option<&CancellationToken>,
    ) -> Result<R, RuntimeError> {
        let mut message = message();
        let sent = self.send(what, &mut message, token).map_err(|error| self.send_failed(error));
        let outcome = sent.and_then(|was_refused| self.check_reply(what, was_refused, R::of(&message)));
        if token.is_some() && outcome.as_ref().is_err_and(is_outcome_unknown) {
            self.state.request_reopen();
        }
        outcome
    }

    fn check_reply<R: Reply>(
        &self,
        what: &'static str,
        was_refused: bool,
        reply: Result<R, ReplyError>,
    ) -> Result<R, RuntimeError> {
        match reply {
            Ok(reply) if !reply.status().is_success() => {
                let status = reply.status();
                Err(CardError::Firmware { id: self.device, what, status: status.0, name: status.name() }
                    .into())
            }
            Ok(_) if was_refused => Err(self.protocol_error(what, "success, but the kernel saw a refusal")),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.protocol_error(what, &error.to_string())),
        }
    }

    /// Sends a message; an error means that the device refused. The message buffer then contains the reply.
    fn send(
        &self,
        what: &'static str,
        message: &mut ManageBuffer<'_>,
        token: Option<&CancellationToken>,
    ) -> Result<bool, SendError> {
        let generation = self.state.generation();
        // Resources are released even if the current work of the thread is cancelled.
        let may_end = !matches!(what, DEACTIVATE | UNLOAD_ELF | UNLOAD_CONSTANTS);
        let (mut was_interrupted, mut busy) = (false, 0);
        for _ in 0..MOST_SIGNALS {
            if token.is_some_and(CancellationToken::is_cancelled) {
                return Err(SendError::Cancelled);
            }
            let Err(errno) = self.file().manage(message) else { return Ok(false) };
            match Control::of(errno) {
                Control::Interrupted if may_end && CancellationToken::is_current_cancelled() => {
                    return Err(SendError::Cancelled);
                }
                // The message may have been sent. Its resources then have no owner, and only closing the file frees
                // them.
                Control::Interrupted => {
                    was_interrupted = true;
                    self.state.request_reopen();
                }
                // The driver released the channel before it sent the message that a signal interrupted.
                Control::NotOurs if was_interrupted && what == DEACTIVATE => {
                    return Err(SendError::Deactivated);
                }
                // The message was not sent. The driver has nevertheless given up the channel of a deactivation, so it
                // would refuse the same message.
                Control::Busy if what != DEACTIVATE && busy + 1 < MOST_BUSY => busy += 1,
                Control::Busy if what == DEACTIVATE => {
                    let error = errno::failed_on(self.file(), self.device, "MANAGE", errno, 0);
                    return Err(SendError::NotSent(error));
                }
                Control::Refused => return Ok(true),
                Control::DeviceLost => return Err(SendError::Lost(generation)),
                other => {
                    let error = errno::failed_on(self.file(), self.device, "MANAGE", errno, 0);
                    let is_unanswered = matches!(other, Control::Other) && what == DEACTIVATE;
                    return Err(if is_unanswered {
                        SendError::NotAnswered(error)
                    } else {
                        SendError::Failed(error)
                    });
                }
            }
        }
        Err(SendError::Failed(errno::failed(self.device, "MANAGE", Errno::INTR, 0)))
    }

    fn send_failed(&self, error: SendError) -> RuntimeError {
        match error {
            SendError::Cancelled => ErrorDetail::Interrupted.into(),
            SendError::Lost(generation) => self.state.mark_lost(generation, GONE),
            SendError::Failed(error) | SendError::NotSent(error) | SendError::NotAnswered(error) => error,
            SendError::Deactivated => RuntimeError::internal("a channel that another message released"),
        }
    }

    fn protocol_error(&self, what: &'static str, reason: &str) -> RuntimeError {
        CardError::FirmwareProtocol { id: self.device, what, reason: reason.to_owned() }.into()
    }

    /// Logs a failed cleanup whose error no caller can receive.
    pub(super) fn log_failure(&self, what: &str, outcome: Result<(), RuntimeError>) {
        if let Err(error) = outcome {
            log::global().warn(|| format!("device {}: {what}: {error}", self.device));
        }
    }
}

/// Returns true if the firmware may have carried out the command despite the error.
fn is_outcome_unknown(error: &RuntimeError) -> bool {
    !matches!(
        error.detail(),
        ErrorDetail::Card(CardError::Firmware { .. }) | ErrorDetail::Device(DeviceError::Lost { .. })
    )
}

const GONE: &str = "it is offline, or was reset";

/// Reason why a message has no reply.
enum SendError {
    Cancelled,
    // Generation in which the message was sent.
    Lost(u64),
    Failed(RuntimeError),
    // The driver had no room for a deactivation.
    NotSent(RuntimeError),
    // A deactivation was sent, and its reply was lost.
    NotAnswered(RuntimeError),
    // The driver has already released the channel.
    Deactivated,
}

impl Drop for CardSession {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            // The file stays open: the parent owns it, and its locks may be held forever.
            mem::forget(Arc::clone(&self.file));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use qaic_kmd::{Ioctl, VirtualClock};
    use qaic_mem::Mapping;

    use super::*;

    /// A card that answers its calls with these errors, in this order, and records the number of transactions of the
    /// last call.
    #[derive(Debug)]
    struct Answers(Mutex<Vec<Errno>>, AtomicU32);

    impl AccelFile for Answers {
        fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
            if let Ioctl::Manage(message) = call {
                self.1.store(message.count(), Ordering::Relaxed);
            }
            Err(self.0.lock().remove(0))
        }

        fn map(&self, _: u64, _: usize) -> Result<Mapping, Errno> {
            Err(Errno::NOSYS)
        }
    }

    /// Returns two flags: the deactivation with these answers is over, and its last message named the
    /// channel to the driver.
    fn outcome_of(answers: &[Errno]) -> (bool, bool) {
        let file = Arc::new(Answers(Mutex::new(answers.to_vec()), AtomicU32::new(0)));
        let state = Arc::new(DeviceState::new(0));
        let session = CardSession::new(0, &state, Arc::new(VirtualClock::default()), file.clone());
        let is_over = session.deactivate(1, Some(3)).is_ok();
        assert!(file.0.lock().is_empty());
        (is_over, file.1.load(Ordering::Relaxed) == 2)
    }

    #[test]
    fn deactivation_refused_after_a_signal_is_over_and_otherwise_not() {
        assert_eq!(outcome_of(&[Errno::INTR, Errno::PERM]), (true, true));
        assert_eq!(outcome_of(&[Errno::PERM]), (false, true));
    }

    /// `encode_deactivate` of `qaic_control.c` gives up the channel before `msg_xfer` finds no room; after that,
    /// closing the file does not free the channel.
    #[test]
    fn deactivation_that_was_not_sent_is_sent_again_without_the_channel() {
        assert_eq!(outcome_of(&[Errno::AGAIN, Errno::TIMEDOUT]), (false, false));
        assert_eq!(outcome_of(&[Errno::TIMEDOUT, Errno::TIMEDOUT]), (false, false));
        assert_eq!(outcome_of(&[Errno::PIPE, Errno::AGAIN, Errno::PIPE]), (false, false));
        assert_eq!(outcome_of(&[Errno::AGAIN; MOST_BUSY as usize]), (false, false));
    }
}
