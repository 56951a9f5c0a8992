//! The open file of a card, and conversations with its firmware over it.

use std::collections::HashSet;
use std::mem;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use qaic_kmd::Errno;
use qaic_kmd::calls::{self, ManageBuffer};
use qaic_kmd::clock::{Alarm, Clock};
use qaic_kmd::kmd::AccelFile;
use qaic_kmd::nnc::command::ActivationState;
use qaic_kmd::nnc::message::{self, ActivateRequest};
use qaic_kmd::nnc::reply::{
    self, ActivateReply, DeactivateReply, Features, LoadConstantsReply, LoadElfReply, Reply, ReplyError,
    Transaction, UnloadConstantsReply, UnloadElfReply,
};
use qaic_kmd::nnc::{
    CardStatus, NncStatus, PerformanceInfo, PerformanceInfoReply, ResourceInfo, ResourceInfoReply,
};

use super::health::Health;
use super::slices::RING_ELEMENTS;
use super::status::{self, Control, MOST_SIGNALS, uninterrupted};
use crate::device::LoadToken;
use crate::error::RuntimeError;
use crate::fork::Origin;
use crate::interrupts::{self, LOOK_PERIOD};
use crate::log;
use crate::sync::Mutex;

/// Tries of what the firmware refuses because cores restart, and the time between them (device-kmd §4.5).
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

const STATUS: &str = "tell its status";
const LOAD_CONSTANTS: &str = "load constants";
const LOAD_ELF: &str = "load the program";
const ACTIVATE: &str = "activate the program";
const DEACTIVATE: &str = "deactivate the program";
const UNLOAD_ELF: &str = "unload the program";
const UNLOAD_CONSTANTS: &str = "unload constants";

/// An open card: a user of its own to the driver. Everything that was loaded, activated or allocated through it keeps it
/// open.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) device: u32,
    pub(super) health: Arc<Health>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) origin: Origin,
    file: Arc<dyn AccelFile>,
    // Handles of imported memory. The kernel gives one handle for one memory, however often it is imported.
    imported: Mutex<HashSet<u32>>,
}

/// What an activation got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activated {
    pub(super) activation_id: u32,
    pub(super) dbc_id: u32,
    pub(super) ddr_base: u64,
    pub(super) mcid_base: u64,
}

impl Line {
    pub(super) fn new(
        device: u32,
        health: &Arc<Health>,
        clock: Arc<dyn Clock>,
        file: Arc<dyn AccelFile>,
    ) -> Self {
        let health = Arc::clone(health);
        Self { device, health, clock, origin: Origin::here(), file, imported: Mutex::default() }
    }

    pub(super) fn file(&self) -> &dyn AccelFile {
        &*self.file
    }

    /// Notes the handle of imported memory; false when it is in use already, and not the caller's to close.
    pub(super) fn note_import(&self, handle: u32) -> bool {
        self.imported.lock().insert(handle)
    }

    /// Forgets a handle before it is closed.
    pub(super) fn forget_import(&self, handle: u32) {
        self.imported.lock().remove(&handle);
    }

    /// Everything that the firmware says of the card; then its features, whose failure does not matter (device-kmd §4.1).
    pub(super) fn status(&self) -> Result<(CardStatus, Option<Features>), RuntimeError> {
        let status = self.ask(STATUS, message::status_query, CardStatus::of, |reply| reply.status, None)?;
        let mut message = message::status_features();
        let features = uninterrupted(|| calls::manage(self.file(), &mut message));
        let features = features.ok().and_then(|()| reply::features(&message).ok());
        Ok((status, features))
    }

    pub(super) fn resources(&self) -> Result<ResourceInfo, RuntimeError> {
        let message = || message::resource_info(process::id(), -1);
        let reply =
            self.ask("tell its resources", message, ResourceInfoReply::of, |reply| reply.status, None)?;
        Ok(reply.resources)
    }

    pub(super) fn performance(&self) -> Result<PerformanceInfo, RuntimeError> {
        let read = PerformanceInfoReply::of;
        let reply =
            self.ask("tell its performance", message::performance_info, read, |reply| reply.status, None)?;
        Ok(reply.performance)
    }

    /// Announces constants; answers their id.
    pub(super) fn load_constants(&self, descriptor: &[u8], token: &LoadToken) -> Result<u32, RuntimeError> {
        let too_long = || RuntimeError::Transfers {
            what: format!("its constants descriptor has {} bytes, more than a message", descriptor.len()),
        };
        // Whether it fits does not depend on anything else.
        message::load_constants(process::id(), descriptor).ok_or_else(too_long)?;
        let message = || message::load_constants(process::id(), descriptor).unwrap_or_default();
        let reply =
            self.ask(LOAD_CONSTANTS, message, LoadConstantsReply::of, |reply| reply.status, Some(token))?;
        if reply.constants_id == 0 {
            return Err(self.confused(LOAD_CONSTANTS, "the id 0, which says that it failed, with success"));
        }
        Ok(reply.constants_id)
    }

    /// Moves a part of announced constants.
    pub(super) fn load_constants_payload(
        &self,
        id: u32,
        offset: u64,
        data: &[u8],
        token: &LoadToken,
    ) -> Result<(), RuntimeError> {
        let message = || message::load_constants_payload(process::id(), id, offset, data);
        let status = |reply: &LoadConstantsReply| reply.status;
        self.ask(LOAD_CONSTANTS, message, LoadConstantsReply::of, status, Some(token)).map(drop)
    }

    /// Loads a network image; answers its id.
    pub(super) fn load_elf(
        &self,
        metadata_crc: u32,
        data: &[u8],
        token: &LoadToken,
    ) -> Result<u32, RuntimeError> {
        let message = || message::load_elf(process::id(), metadata_crc, data);
        let reply = self.ask(LOAD_ELF, message, LoadElfReply::of, |reply| reply.status, Some(token))?;
        Ok(reply.elf_id)
    }

    pub(super) fn unload_elf(&self, id: u32) -> Result<(), RuntimeError> {
        let status = |reply: &UnloadElfReply| reply.status;
        self.ask(UNLOAD_ELF, || message::unload_elf(id), UnloadElfReply::of, status, None).map(drop)
    }

    pub(super) fn unload_constants(&self, id: u32) -> Result<(), RuntimeError> {
        let status = |reply: &UnloadConstantsReply| reply.status;
        let read = UnloadConstantsReply::of;
        self.ask(UNLOAD_CONSTANTS, || message::unload_constants(id), read, status, None).map(drop)
    }

    /// Takes cores and a channel. While the cores of an earlier activation restart, it is tried again.
    pub(super) fn activate(&self, elf_id: u32, constants_id: u32) -> Result<Activated, RuntimeError> {
        let request = ActivateRequest {
            elf_id,
            constants_id,
            initial_state: ActivationState::Ready,
            queue_size: RING_ELEMENTS,
            channel_options: 0,
            resource_group_id: -1,
        };
        for attempt in 1.. {
            match self.try_activate(request) {
                Err(RuntimeError::Firmware { status, .. })
                    if status == NncStatus::RESTARTING.0 && attempt < TRIES =>
                {
                    self.pause(BETWEEN_TRIES);
                    if interrupts::was_interrupted() {
                        return Err(RuntimeError::Interrupted);
                    }
                }
                other => return other,
            }
        }
        Err(RuntimeError::Internal { what: "tries of an activation ran out".to_owned() })
    }

    fn try_activate(&self, request: ActivateRequest) -> Result<Activated, RuntimeError> {
        let mut message = message::activate(process::id(), request);
        let was_refused = match self.send(&mut message, None, true) {
            Ok(was_refused) => was_refused,
            Err(Unsent::Lost(generation)) => {
                // Also said of a channel that the kernel does not know (device-kmd §2.8); then the card still answers.
                return Err(
                    match self.ask(STATUS, message::status_query, CardStatus::of, |reply| reply.status, None)
                    {
                        Ok(_) => {
                            self.health.ask_for_reopening();
                            self.confused(ACTIVATE, "a channel that the kernel does not know")
                        }
                        Err(_) => self.health.lose(generation, GONE),
                    },
                );
            }
            Err(unsent) => {
                self.health.ask_for_reopening();
                return Err(self.unsent(unsent));
            }
        };
        let reply = ActivateReply::with_channel(&message);
        let activated = self.judge(ACTIVATE, was_refused, reply, |reply| reply.status);
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

    /// Gives back what a reply that cannot be used says was given.
    fn undo_activation(&self, message: &ManageBuffer<'_>) {
        let Ok(reply) = ActivateReply::of(message) else {
            return self.health.ask_for_reopening();
        };
        if !reply.status.is_success() {
            return;
        }
        let channel = reply::transactions(message.bytes()).find_map(|transaction| match transaction {
            Ok(Transaction::Channel(channel)) if channel.status == 0 => Some(channel.dbc_id),
            _ => None,
        });
        if self.deactivate(reply.activation_id, channel).is_err() {
            self.health.ask_for_reopening();
        }
    }

    /// Gives cores and channel back. A device that refuses is asked again (device-kmd §7.3).
    pub(super) fn deactivate(&self, activation_id: u32, dbc_id: Option<u32>) -> Result<(), RuntimeError> {
        self.try_deactivate(activation_id, dbc_id, TRIES)
    }

    /// Tells the firmware that an activation is over whose channel is lost. It may know.
    pub(super) fn forget_activation(&self, activation_id: u32) {
        let _ = self.try_deactivate(activation_id, None, 1);
    }

    fn try_deactivate(
        &self,
        activation_id: u32,
        dbc_id: Option<u32>,
        tries: u32,
    ) -> Result<(), RuntimeError> {
        let message = || message::deactivate(activation_id, dbc_id);
        let status = |reply: &DeactivateReply| reply.status;
        for attempt in 1.. {
            match self.ask(DEACTIVATE, message, DeactivateReply::of, status, None) {
                Err(RuntimeError::Firmware { status, .. }) if attempt < tries => {
                    if status == NncStatus::RESTARTING.0 {
                        self.pause(BETWEEN_TRIES);
                    }
                }
                other => return other.map(drop),
            }
        }
        Ok(())
    }

    /// Waits, until the work that the thread is in is told to end.
    fn pause(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() && !interrupts::was_interrupted() {
            let nap = left.min(LOOK_PERIOD);
            self.clock.wait(nap, &Alarm::default(), 0);
            left -= nap;
        }
    }

    /// Sends a message and reads the reply; a status that is not success is an error. With a `token` it is one that loads
    /// something: where the reply cannot be had, that may be on the card, and only closing the file frees it.
    fn ask<'data, R>(
        &self,
        what: &'static str,
        message: impl Fn() -> ManageBuffer<'data>,
        read: impl Fn(&ManageBuffer<'data>) -> Result<R, ReplyError>,
        status: impl Fn(&R) -> NncStatus,
        token: Option<&LoadToken>,
    ) -> Result<R, RuntimeError> {
        let mut message = message();
        // What is given back is given back all the same.
        let may_end = !matches!(what, DEACTIVATE | UNLOAD_ELF | UNLOAD_CONSTANTS);
        let sent = self.send(&mut message, token, may_end).map_err(|unsent| self.unsent(unsent));
        let outcome = sent.and_then(|was_refused| self.judge(what, was_refused, read(&message), status));
        if token.is_some() && outcome.as_ref().is_err_and(leaves_doubt) {
            self.health.ask_for_reopening();
        }
        outcome
    }

    fn judge<R>(
        &self,
        what: &'static str,
        was_refused: bool,
        reply: Result<R, ReplyError>,
        status: impl Fn(&R) -> NncStatus,
    ) -> Result<R, RuntimeError> {
        match reply {
            Ok(reply) if !status(&reply).is_success() => {
                let status = status(&reply);
                Err(RuntimeError::Firmware { id: self.device, what, status: status.0, name: status.name() })
            }
            Ok(_) if was_refused => {
                Err(self.confused(what, "success, while the kernel was told of a refusal"))
            }
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.confused(what, &error.to_string())),
        }
    }

    /// Whether the device refused. The reply is in the message.
    ///
    /// `may_end`: not made again after a signal, when the work that the thread is in was told to end.
    fn send(
        &self,
        message: &mut ManageBuffer<'_>,
        token: Option<&LoadToken>,
        may_end: bool,
    ) -> Result<bool, Unsent> {
        let generation = self.health.generation();
        for _ in 0..MOST_SIGNALS {
            if token.is_some_and(LoadToken::was_cancelled) {
                return Err(Unsent::Cancelled);
            }
            let Err(errno) = calls::manage(self.file(), message) else { return Ok(false) };
            match Control::of(errno) {
                Control::Interrupted if may_end && interrupts::was_interrupted() => {
                    return Err(Unsent::Cancelled);
                }
                // It may have gone out, and what it took the first time is then nobody's: only closing the file frees it.
                Control::Interrupted => self.health.ask_for_reopening(),
                Control::Refused => return Ok(true),
                Control::DeviceLost => return Err(Unsent::Lost(generation)),
                Control::Other => {
                    return Err(Unsent::Failed(status::failed_on(
                        self.file(),
                        self.device,
                        "MANAGE",
                        errno,
                        0,
                    )));
                }
            }
        }
        Err(Unsent::Failed(status::failed(self.device, "MANAGE", Errno::INTR, 0)))
    }

    fn unsent(&self, unsent: Unsent) -> RuntimeError {
        match unsent {
            Unsent::Cancelled => RuntimeError::Interrupted,
            Unsent::Lost(generation) => self.health.lose(generation, GONE),
            Unsent::Failed(error) => error,
        }
    }

    fn confused(&self, what: &'static str, reason: &str) -> RuntimeError {
        RuntimeError::FirmwareProtocol { id: self.device, what, reason: reason.to_owned() }
    }

    /// For what is undone where nobody can be told.
    pub(super) fn note(&self, what: &str, outcome: Result<(), RuntimeError>) {
        if let Err(error) = outcome {
            log::global().warn(|| format!("device {}: {what}: {error}", self.device));
        }
    }
}

/// Whether the firmware may have done what it was asked for all the same.
fn leaves_doubt(error: &RuntimeError) -> bool {
    !matches!(error, RuntimeError::Firmware { .. } | RuntimeError::DeviceLost { .. })
}

const GONE: &str = "it is offline, or was reset";

/// Why a message has no reply.
enum Unsent {
    Cancelled,
    // The generation in which it was sent.
    Lost(u64),
    Failed(RuntimeError),
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // Not closed: it is the parent's, and what is behind it may be locked for good.
            mem::forget(Arc::clone(&self.file));
        }
    }
}
