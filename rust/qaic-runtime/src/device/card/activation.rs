//! A program that holds cores and a channel of a card.

use std::sync::Arc;

use qaic_kmd::Errno;
use qaic_kmd::protocol::NncStatus;

use super::channel::Channel;
use super::errno::{self, DataPath, uninterrupted};
use super::exec::CardExec;
use super::program::ProgramShared;
use super::slices::Bases;
use super::submit_queue::SubmitQueue;
use crate::device::{Activation, Exec};
use crate::error::{DeviceError, RuntimeError};
use crate::sync::Mutex;

#[derive(Debug)]
pub(super) struct CardActivation(Arc<ActivationShared>);

/// State that an activation shares with its execs, which keep it alive.
#[derive(Debug)]
pub(super) struct ActivationShared {
    pub(super) program: Arc<ProgramShared>,
    pub(super) channel: Arc<Channel>,
    pub(super) bases: Bases,
    pub(super) submit_queue: SubmitQueue,
    /// Handles that could not be closed because the card was still using them.
    unclosed_handles: Mutex<Vec<u32>>,
    activation_id: u32,
}

impl CardActivation {
    /// Takes cores. Blocking: as long as the firmware takes.
    pub(super) fn new(program: &Arc<ProgramShared>) -> Result<Self, RuntimeError> {
        let (session, card) = (&program.session, &program.card);
        session.fork_guard.check()?;
        card.drain_events();
        session.state.check(program.generation)?;
        let activated = session
            .activate(program.elf_id, program.constants_id())
            .map_err(|error| no_cores(program, error))?;
        // Events for an earlier user of the channel do not concern this activation.
        card.drain_events();
        let channel = Channel::new(card.id, activated.dbc_id);
        session.state.register(&channel, program.generation);
        Ok(Self(Arc::new(ActivationShared {
            program: Arc::clone(program),
            channel,
            bases: Bases { ddr: activated.ddr_base, mcid: activated.mcid_base },
            submit_queue: SubmitQueue::new(activated.dbc_id),
            unclosed_handles: Mutex::default(),
            activation_id: activated.activation_id,
        })))
    }
}

/// Converts a refusal because of missing cores to the error of virtual cards, with the numbers of cores.
fn no_cores(program: &ProgramShared, error: RuntimeError) -> RuntimeError {
    if error.firmware_status() != Some(NncStatus::NSP_ALLOC.0) {
        return error;
    }
    let needed = program.image.network.num_cores.max(1);
    match program.session.resources() {
        Ok(resources) if u32::from(resources.nsp_free) < needed => DeviceError::Busy {
            id: program.card.id,
            needed,
            free: resources.nsp_free.into(),
            total: resources.nsp_total.into(),
        }
        .into(),
        _ => error,
    }
}

impl Activation for CardActivation {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        self.0.check()?;
        Ok(Box::new(CardExec::new(&self.0)?))
    }

    fn updates_state(&self, _output: usize) -> bool {
        false
    }
}

impl ActivationShared {
    /// Fails if the channel is lost, and in a forked process.
    pub(super) fn check(&self) -> Result<(), RuntimeError> {
        self.program.session.fork_guard.check()?;
        match self.channel.lost() {
            Some(lost) => Err(lost.clone()),
            None => Ok(()),
        }
    }

    /// Returns the error of a call of the data path. If the call failed because of a loss, returns the error of the
    /// loss.
    pub(super) fn failed(&self, call: &'static str, errno: Errno, bytes: u64) -> RuntimeError {
        let ProgramShared { session, card, generation, .. } = &*self.program;
        let is_certain = match DataPath::of(errno) {
            DataPath::DeviceLost => return self.device_lost("it is offline, or was reset"),
            DataPath::ChannelLost => return self.channel_lost(),
            DataPath::Lost => true,
            DataPath::Invalid => false,
            _ => return errno::failed_on(session.file(), card.id, call, errno, bytes),
        };
        // Events report all other losses.
        card.drain_events();
        if let Some(lost) = self.channel.lost() {
            return lost.clone();
        }
        if let Err(lost) = session.state.check(*generation) {
            return lost;
        }
        if is_certain {
            return self.device_lost("it was reset");
        }
        errno::failed_on(session.file(), card.id, call, errno, bytes)
    }

    fn channel_lost(&self) -> RuntimeError {
        self.program.card.drain_events();
        if self.channel.lost().is_none() {
            // No event has reported it. If the card has kept the channel, closing the file frees it.
            self.program.session.state.request_reopen();
        }
        self.channel.mark_lost("its cores failed and are restarted")
    }

    fn device_lost(&self, reason: &str) -> RuntimeError {
        // The recorded state is updated first.
        self.program.card.drain_events();
        let lost = self.program.session.state.mark_lost(self.program.generation, reason);
        self.channel.lost().cloned().unwrap_or(lost)
    }

    /// Schedules a handle to be closed with the activation, because the card uses it until then.
    pub(super) fn close_later(&self, handle: u32) {
        self.unclosed_handles.lock().push(handle);
    }
}

impl Drop for ActivationShared {
    fn drop(&mut self) {
        let ProgramShared { session, generation, .. } = &*self.program;
        if !session.fork_guard.is_current() {
            return;
        }
        if self.channel.is_lost_alone() {
            session.forget_activation(self.activation_id);
        } else if session.state.check(*generation).is_ok() {
            let outcome = session.deactivate(self.activation_id, Some(self.channel.dbc_id));
            if outcome.is_err() {
                // Closing the file frees resources that the firmware does not release.
                session.state.request_reopen();
            }
            session.log_failure("an activation was not given back", outcome);
        }
        for handle in std::mem::take(&mut *self.unclosed_handles.lock()) {
            let _ = uninterrupted(|| session.file().close_handle(handle));
        }
    }
}
