//! The data path in the driver: adds elements to a ring, and receives completions.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use crate::card::{Card, CardState, QueuedElement};
use crate::data_path::bo::{Bo, Execution, ExecutionTimes, fits_one_copy};
use crate::data_path::channel::{Element, Step};
use crate::data_path::slices::Fragment;
use crate::fault::{Action, Trigger};
use crate::file::EmuFile;
use crate::options::{EmuClock, Profile};
use qaic_kmd::Errno;
use qaic_kmd::abi::{DBC_COUNT, PerfStatsEntry, Wait};

/// Pattern that fills memory from the device between an execute call and the completion.
const POISON: u8 = 0xDB;

/// The outcome of one step of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriveOutcome {
    /// The step made progress.
    Progressed,
    /// No progress is possible before the next call.
    Blocked,
    /// The activation has ended.
    Deactivated,
}

impl Card {
    /// Does one step of a channel, or of one of its activations if given.
    ///
    /// Blocking: while its cores compute.
    pub(crate) fn drive(&self, dbc_id: u32, activation: Option<u64>) -> DriveOutcome {
        let state = self.lock();
        let dbc = &state.dbcs[dbc_id as usize];
        let Some(channel) = dbc.channel.clone() else { return DriveOutcome::Deactivated };
        if activation.is_some_and(|activation| activation != dbc.activation) {
            return DriveOutcome::Deactivated;
        }
        if dbc.is_hung {
            return DriveOutcome::Blocked;
        }
        let (drive, activation) = (Arc::clone(&dbc.drive), dbc.activation);
        drop(state);
        let driving = drive.lock().unwrap_or_else(PoisonError::into_inner);
        match channel.step() {
            Step::Completed { element_id, dma_status } => {
                self.complete(dbc_id, activation, element_id, dma_status);
                DriveOutcome::Progressed
            }
            Step::Worked => DriveOutcome::Progressed,
            Step::Blocked | Step::Idle => DriveOutcome::Blocked,
            Step::Crashed => {
                drop(driving);
                if self.lock().dbcs[dbc_id as usize].activation != activation {
                    return DriveOutcome::Deactivated;
                }
                self.perform(Action::Restart { dbc_id: Some(dbc_id), powers_up: true }, None);
                DriveOutcome::Progressed
            }
        }
    }

    fn complete(&self, dbc_id: u32, activation: u64, element_id: u64, dma_status: u16) {
        let now = self.options.clock.now();
        let mut state = self.lock();
        let CardState { dbcs, bos, dma_errors, .. } = &mut *state;
        let dbc = &mut dbcs[dbc_id as usize];
        if dbc.activation != activation {
            return;
        }
        while let Some(queued) = dbc.queued.front().copied().filter(|queued| queued.element_id <= element_id)
        {
            dbc.queued.pop_front();
            if queued.element_id != element_id {
                continue;
            }
            *dma_errors += u64::from(queued.dma_status.unwrap_or(dma_status) != 0);
            let Some(bo) = bos.get_mut(&queued.bo_id) else { continue };
            let Some(execution) = &mut bo.execution else { continue };
            if execution.serial != queued.serial || !queued.ends_slice || queued.is_lost {
                continue;
            }
            execution.slices_left -= 1;
            if execution.slices_left == 0 {
                bo.last_execution.device_us = microseconds(now.saturating_sub(execution.submitted));
                if execution.is_awaited {
                    self.changed.notify_all();
                }
                bo.execution = None;
            }
        }
    }
}

/// An entry of either execute call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecuteRequest {
    pub(crate) handle: u32,
    /// Number of bytes to transfer; `None` means all.
    pub(crate) resize: Option<u64>,
}

impl EmuFile {
    pub(crate) fn execute(
        &self,
        dbc_id: u32,
        entries: impl ExactSizeIterator<Item = ExecuteRequest>,
    ) -> Result<(), Errno> {
        self.inject_fault(Trigger::Execute, Some(dbc_id))?;
        if entries.len() == 0 {
            return Err(Errno::INVAL);
        }
        let entries: Vec<_> = entries.collect();
        if !fits_one_copy(&entries) {
            return Err(Errno::NOMEM);
        }
        let began = self.card.options.clock.now();
        let mut state = self.alive()?;
        let result = self.submit(&mut state, dbc_id, &entries, began);
        match result {
            Ok(fault) => {
                drop(state);
                if let Some(fault) = fault {
                    self.card.perform(fault, Some(dbc_id));
                }
                Ok(())
            }
            Err(Errno::AGAIN) if state.dbcs[dbc_id as usize].worker.is_none() => {
                // A real card works concurrently with its host; this one works here, before the next attempt.
                drop(state);
                self.card.drain(dbc_id);
                Err(Errno::AGAIN)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds all entries to the ring, or none. Returns the fault of the card that follows.
    fn submit(
        &self,
        state: &mut MutexGuard<'_, CardState>,
        dbc_id: u32,
        entries: &[ExecuteRequest],
        began: Duration,
    ) -> Result<Option<Action>, Errno> {
        if dbc_id >= DBC_COUNT {
            return Err(Errno::INVAL);
        }
        let dbc = &state.dbcs[dbc_id as usize];
        if dbc.owner != Some(self.user) {
            return Err(Errno::PERM);
        }
        if dbc.is_restarting {
            return Err(Errno::PIPE);
        }
        let channel = dbc.channel.clone().ok_or(Errno::PERM)?;
        let (level, capacity) = (channel.occupancy(), (dbc.ring_size - 1) as usize);
        let mut queued = Vec::with_capacity(entries.len());
        let mut fragments = Vec::new();
        if let Err(error) =
            self.queue(state, dbc_id, entries, capacity.saturating_sub(level), &mut queued, &mut fragments)
        {
            for (bo_id, _) in queued {
                if let Some(bo) = state.bos.get_mut(&bo_id) {
                    bo.withdrawn = bo.execution.take().map(|execution| execution.serial);
                }
            }
            return Err(error);
        }
        let fault = state.fault_action(Trigger::Inference);
        let now = self.card.options.clock.now();
        let poisons = self.card.options.poisons_outputs;
        let CardState { bos, dbcs, .. } = &mut **state;
        let dbc = &mut dbcs[dbc_id as usize];
        let dma_status = match fault {
            Some(Action::DmaStatus(status)) => Some(status),
            _ => None,
        };
        let (count, mut first) = (fragments.len(), 0);
        let first_end = fragments.iter().position(|fragment: &Fragment| fragment.ends_slice).unwrap_or(0);
        for (bo_id, end) in queued {
            let Some(bo) = bos.get_mut(&bo_id) else { continue };
            let to_device = bo.attachment.as_ref().is_some_and(|attachment| attachment.slices.to_device);
            if let Some(execution) = &mut bo.execution {
                execution.submitted = now;
            }
            bo.last_execution = ExecutionTimes {
                level_before: u32::try_from(level + first).unwrap_or(u32::MAX),
                submit_us: microseconds(now.saturating_sub(began)),
                device_us: 0,
            };
            let serial = bo.execution.map_or(0, |execution| execution.serial);
            for (index, part) in fragments.iter().enumerate().take(end).skip(first) {
                if poisons && !to_device {
                    bo.pages.fill(part.host_offset, u64::from(part.len), POISON);
                }
                let is_lost = match fault {
                    Some(Action::LostCompletion) => index + 1 == count,
                    Some(Action::ShortCompletion) => index == first_end,
                    _ => false,
                };
                let element_id = dbc.next_element_id;
                dbc.next_element_id += 1;
                let ends_slice = part.ends_slice;
                dbc.queued.push_back(QueuedElement {
                    element_id,
                    bo_id,
                    serial,
                    ends_slice,
                    is_lost,
                    dma_status,
                });
                channel.push(Element {
                    pages: Arc::clone(&bo.pages),
                    host_offset: part.host_offset,
                    dev_addr: part.dev_addr,
                    len: part.len,
                    to_device,
                    sems: part.sems,
                    doorbell: part.doorbell,
                    id: element_id,
                    is_late: fault == Some(Action::LateDma),
                });
            }
            first = end;
        }
        dbc.is_hung |= fault == Some(Action::Hang);
        if let Some(worker) = &dbc.worker {
            worker.wake();
        }
        if state.waiters > 0 {
            // The fault may have blocked a channel on which another thread waits.
            self.card.changed.notify_all();
        }
        Ok(fault)
    }

    /// Marks the buffer objects as queued and collects their elements. `queued` returns the last element of each,
    /// also after an error.
    fn queue(
        &self,
        state: &mut CardState,
        dbc_id: u32,
        entries: &[ExecuteRequest],
        room: usize,
        queued: &mut Vec<(u64, usize)>,
        fragments: &mut Vec<Fragment>,
    ) -> Result<(), Errno> {
        let profile = self.card.options.profile;
        for entry in entries {
            let bo_id = state.bo_id(self.user, entry.handle)?;
            let serial = state.next_serial;
            let bo = state.bos.get_mut(&bo_id).ok_or(Errno::NOENT)?;
            let attachment = bo.attachment.as_ref().filter(|attachment| attachment.dbc_id == dbc_id);
            let slices = &attachment.ok_or(Errno::INVAL)?.slices;
            if entry.resize.is_some_and(|resize| resize > bo.pages.bytes()) || bo.execution.is_some() {
                return Err(Errno::INVAL);
            }
            slices.add_fragments(entry.resize, profile, fragments);
            if fragments.len() > room {
                return Err(Errno::AGAIN);
            }
            bo.withdrawn = None;
            bo.execution = Some(Execution {
                serial,
                slices_left: slices.count(),
                submitted: Duration::ZERO,
                is_awaited: false,
            });
            state.next_serial += 1;
            queued.push((bo_id, fragments.len()));
        }
        Ok(())
    }

    /// Blocking: until the buffer object is idle, or until the time limit.
    pub(crate) fn wait(&self, arg: Wait) -> Result<(), Errno> {
        let options = &self.card.options;
        let limit = match arg.timeout {
            0 => options.wait_timeout,
            timeout => Duration::from_millis(u64::from(timeout)),
        };
        let fault = self.card.fault_action(Trigger::Wait);
        if let Some(Action::Fail(error)) = fault {
            if let (Errno::TIMEDOUT, EmuClock::Virtual(clock)) = (error, &options.clock) {
                clock.advance_to(options.clock.now() + limit);
            }
            return Err(error);
        }
        if arg.pad != 0 {
            return Err(Errno::INVAL);
        }
        let mut state = self.alive()?;
        if arg.dbc_id >= DBC_COUNT {
            return Err(Errno::INVAL);
        }
        let dbc = &state.dbcs[arg.dbc_id as usize];
        if dbc.owner != Some(self.user) {
            return Err(Errno::PERM);
        }
        if dbc.is_restarting {
            return Err(Errno::PIPE);
        }
        let losses = dbc.losses;
        let bo_id = state.bo_id(self.user, arg.handle)?;
        let serial = state.bos.get(&bo_id).and_then(Bo::awaited);
        state.dbcs[arg.dbc_id as usize].waits += 1;
        let _waiting = self.card.count(state, |state| &mut state.waiters);
        let _wait = ChannelWait { card: &self.card, dbc_id: arg.dbc_id };
        if let Some(fault) = fault {
            // Simulates a fault during the wait.
            self.card.perform(fault, Some(arg.dbc_id));
        }
        let awaited = PendingWait { dbc_id: arg.dbc_id, losses, bo_id, serial };
        let outcome = self.card.wait_until_idle(&awaited, options.clock.now() + limit);
        // A deactivation waits for the end of this wait, which reports the deactivation unless its time is over.
        let is_given_up = self.card.lock().dbcs[arg.dbc_id as usize].owner.is_none();
        match outcome {
            Ok(()) | Err(Errno::INTR) if is_given_up => Err(Errno::PERM),
            outcome => outcome,
        }
    }

    pub(crate) fn perf_stats(&self, dbc_id: u32, entries: &mut [PerfStatsEntry]) -> Result<(), Errno> {
        self.inject_fault(Trigger::PerfStats, Some(dbc_id))?;
        let state = self.alive()?;
        if dbc_id >= DBC_COUNT {
            return Err(Errno::INVAL);
        }
        // The kernel answers all entries or none.
        let mut answers = entries.to_vec();
        for entry in &mut answers {
            let bo_id = state.bo_id(self.user, entry.handle)?;
            let bo = state.bos.get(&bo_id).ok_or(Errno::NOENT)?;
            let is_here = bo.attachment.as_ref().is_some_and(|attachment| attachment.dbc_id == dbc_id);
            if self.card.options.profile == Profile::Ssr && !is_here {
                return Err(Errno::INVAL);
            }
            entry.queue_level_before = bo.last_execution.level_before;
            // Known since the attachment, independent of executions.
            entry.num_queue_element =
                bo.attachment.as_ref().map_or(0, |attachment| attachment.slices.elements());
            entry.submit_latency_us = bo.last_execution.submit_us;
            entry.device_latency_us = if bo.execution.is_some() { 0 } else { bo.last_execution.device_us };
        }
        entries.copy_from_slice(&answers);
        Ok(())
    }
}

/// A wait for a channel, counted until this is dropped.
struct ChannelWait<'a> {
    card: &'a Card,
    dbc_id: u32,
}

impl Drop for ChannelWait<'_> {
    fn drop(&mut self) {
        self.card.lock().dbcs[self.dbc_id as usize].waits -= 1;
        self.card.changed.notify_all();
    }
}

/// The executions that a wait is for.
struct PendingWait {
    dbc_id: u32,
    losses: u64,
    bo_id: u64,
    serial: Option<u64>,
}

impl PendingWait {
    /// The outcome of the wait, once there is one.
    fn outcome(&self, state: &CardState) -> Option<Result<(), Errno>> {
        let dbc = &state.dbcs[self.dbc_id as usize];
        if dbc.losses != self.losses {
            return Some(Err(dbc.loss.unwrap_or(Errno::PERM)));
        }
        let serial = state.bos.get(&self.bo_id).and_then(Bo::awaited);
        (self.serial.is_none() || serial != self.serial).then_some(Ok(()))
    }
}

impl Card {
    fn wait_until_idle(&self, awaited: &PendingWait, deadline: Duration) -> Result<(), Errno> {
        let mut state = self.settled();
        loop {
            if let Some(outcome) = awaited.outcome(&state) {
                return outcome;
            }
            if state.dbcs[awaited.dbc_id as usize].worker.is_none() {
                drop(state);
                let drove = self.drive(awaited.dbc_id, None);
                state = self.settled();
                if drove == DriveOutcome::Progressed && self.options.clock.now() < deadline {
                    continue;
                }
                if let Some(outcome) = awaited.outcome(&state) {
                    return outcome;
                }
            }
            if self.options.clock.now() >= deadline {
                return Err(Errno::TIMEDOUT);
            }
            if let Some(execution) = state.bos.get_mut(&awaited.bo_id).and_then(|bo| bo.execution.as_mut()) {
                execution.is_awaited = true;
            }
            let worker = state.dbcs[awaited.dbc_id as usize].worker.as_ref();
            let is_moving = worker.is_some_and(|worker| !worker.is_idle());
            state = self.wait_for_change(state, deadline, is_moving)?;
        }
    }

    /// Makes as much progress on a channel as possible.
    fn drain(&self, dbc_id: u32) {
        while self.drive(dbc_id, None) == DriveOutcome::Progressed {}
    }
}

/// Converts a time to microseconds; at least one, because every event takes time.
fn microseconds(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1)
}
