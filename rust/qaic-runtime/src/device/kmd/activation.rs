//! A program that holds cores and a channel of a card.

use std::sync::Arc;

use qaic_kmd::nnc::NncStatus;
use qaic_kmd::{Errno, calls};

use super::exec::KmdExec;
use super::health::Channel;
use super::program::Loaded;
use super::slices::Bases;
use super::status::{self, DataPath, uninterrupted};
use crate::device::{Activation, Exec};
use crate::error::RuntimeError;
use crate::sync::Mutex;

/// An activation.
#[derive(Debug)]
pub(super) struct KmdActivation(Arc<Active>);

/// What an activation shares with its execs, which keep it.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) program: Arc<Loaded>,
    pub(super) channel: Arc<Channel>,
    pub(super) bases: Bases,
    /// Held for the execute call alone: the kernel does not take two at a time for one channel (device-kmd §4.8).
    pub(super) execute: Mutex<()>,
    /// Handles that could not be closed, because the card had them still.
    leftovers: Mutex<Vec<u32>>,
    activation_id: u32,
}

impl KmdActivation {
    /// Takes cores. Blocking: as long as the firmware takes.
    pub(super) fn new(program: &Arc<Loaded>) -> Result<Self, RuntimeError> {
        let (line, card) = (&program.line, &program.card);
        line.origin.check()?;
        card.settle();
        line.health.check(program.generation)?;
        let activated = line
            .activate(program.elf_id, program.constants_id())
            .map_err(|error| no_cores(program, error))?;
        // Events of an earlier user of the channel are not about this one.
        card.settle();
        let channel = Channel::new(card.id, activated.dbc_id);
        line.health.enter(&channel, program.generation);
        Ok(Self(Arc::new(Active {
            program: Arc::clone(program),
            channel,
            bases: Bases { ddr: activated.ddr_base, mcid: activated.mcid_base },
            execute: Mutex::default(),
            leftovers: Mutex::default(),
            activation_id: activated.activation_id,
        })))
    }
}

/// A refusal for want of cores with their numbers, as virtual cards give them.
fn no_cores(program: &Loaded, error: RuntimeError) -> RuntimeError {
    if !matches!(error, RuntimeError::Firmware { status, .. } if status == NncStatus::NSP_ALLOC.0) {
        return error;
    }
    let needed = program.image.network().num_cores.max(1);
    match program.line.resources() {
        Ok(resources) if u32::from(resources.nsp_free) < needed => RuntimeError::DeviceBusy {
            id: program.card.id,
            needed,
            free: resources.nsp_free.into(),
            total: resources.nsp_total.into(),
        },
        _ => error,
    }
}

impl Activation for KmdActivation {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        self.0.check()?;
        Ok(Box::new(KmdExec::new(&self.0)?))
    }
}

impl Active {
    /// Refuses once the channel is lost, and in a forked process.
    pub(super) fn check(&self) -> Result<(), RuntimeError> {
        self.program.line.origin.check()?;
        match self.channel.lost() {
            Some(lost) => Err(lost.clone()),
            None => Ok(()),
        }
    }

    /// The error of a call of the data path: what was lost, where the call failed because of that.
    pub(super) fn failed(&self, call: &'static str, errno: Errno, bytes: u64) -> RuntimeError {
        let Loaded { line, card, generation, .. } = &*self.program;
        let is_certain = match DataPath::of(errno) {
            DataPath::DeviceLost => return self.device_lost("it is offline, or was reset"),
            DataPath::ChannelLost => return self.channel_lost(),
            DataPath::Lost => true,
            DataPath::Invalid => false,
            _ => return status::failed_on(line.file(), card.id, call, errno, bytes),
        };
        // The events tell who else has lost what.
        card.settle();
        if let Some(lost) = self.channel.lost() {
            return lost.clone();
        }
        if let Err(lost) = line.health.check(*generation) {
            return lost;
        }
        if is_certain {
            return self.device_lost("it was reset");
        }
        status::failed_on(line.file(), card.id, call, errno, bytes)
    }

    fn channel_lost(&self) -> RuntimeError {
        self.program.card.settle();
        if self.channel.lost().is_none() {
            // No event has said so. Should the card have kept the channel, closing the file frees it.
            self.program.line.health.ask_for_reopening();
        }
        self.channel.lose("its cores failed and are restarted")
    }

    fn device_lost(&self, reason: &str) -> RuntimeError {
        // First what is known already.
        self.program.card.settle();
        let lost = self.program.line.health.lose(self.program.generation, reason);
        self.channel.lost().cloned().unwrap_or(lost)
    }

    /// Closes a handle after the activation, which the card uses until then.
    pub(super) fn close_later(&self, handle: u32) {
        self.leftovers.lock().push(handle);
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let Loaded { line, generation, .. } = &*self.program;
        if !line.origin.is_here() {
            return;
        }
        if self.channel.is_lost_alone() {
            line.forget_activation(self.activation_id);
        } else if line.health.check(*generation).is_ok() {
            let outcome = line.deactivate(self.activation_id, Some(self.channel.dbc_id));
            if outcome.is_err() {
                // Closing the file frees what the firmware would not.
                line.health.ask_for_reopening();
            }
            line.note("an activation was not given back", outcome);
        }
        for handle in std::mem::take(&mut *self.leftovers.lock()) {
            let _ = uninterrupted(|| calls::close_handle(line.file(), handle));
        }
    }
}
