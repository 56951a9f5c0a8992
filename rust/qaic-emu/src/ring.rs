//! The data path as the driver does it: elements go into a ring, completions come back.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::bo::{Figures, Flight, fits_one_copy};
use super::card::{Card, State, Ticket};
use super::channel::{Element, Step};
use super::fault::{Action, Trigger};
use super::file::EmuFile;
use super::options::{EmuClock, Profile};
use super::slices::Fragment;
use qaic_kmd::Errno;
use qaic_kmd::abi::{DBC_COUNT, PerfStatsEntry, Wait};

/// What memory from the device holds between an execute call and the completion.
const POISON: u8 = 0xDB;

/// What an attempt to get on with a channel came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drive {
    /// Something happened.
    Moved,
    /// Nothing is left to do before the next call.
    Stuck,
    /// The activation is over.
    Gone,
}

impl Card {
    /// Gets a step on with a channel; with an activation of it, where one is named.
    ///
    /// Blocking: while its cores compute.
    pub(crate) fn drive(&self, dbc_id: u32, activation: Option<u64>) -> Drive {
        let state = self.lock();
        let dbc = &state.dbcs[dbc_id as usize];
        let Some(channel) = dbc.channel.clone() else { return Drive::Gone };
        if activation.is_some_and(|activation| activation != dbc.activation) {
            return Drive::Gone;
        }
        if dbc.is_hung {
            return Drive::Stuck;
        }
        let (drive, activation) = (Arc::clone(&dbc.drive), dbc.activation);
        drop(state);
        let driving = drive.lock().unwrap_or_else(PoisonError::into_inner);
        match channel.step() {
            Step::Completed { ticket, dma_status } => {
                self.complete(dbc_id, activation, ticket, dma_status);
                Drive::Moved
            }
            Step::Worked => Drive::Moved,
            Step::Blocked | Step::Idle => Drive::Stuck,
            Step::Crashed => {
                drop(driving);
                if self.lock().dbcs[dbc_id as usize].activation != activation {
                    return Drive::Gone;
                }
                self.perform(Action::Restart { dbc_id: Some(dbc_id), powers_up: true }, None);
                Drive::Moved
            }
        }
    }

    fn complete(&self, dbc_id: u32, activation: u64, number: u64, dma_status: u16) {
        let now = self.options.clock.now();
        let mut state = self.lock();
        let State { dbcs, bos, dma_errors, .. } = &mut *state;
        let dbc = &mut dbcs[dbc_id as usize];
        if dbc.activation != activation {
            return;
        }
        while let Some(ticket) = dbc.tickets.front().copied().filter(|ticket| ticket.number <= number) {
            dbc.tickets.pop_front();
            if ticket.number != number {
                continue;
            }
            *dma_errors += u64::from(ticket.dma_status.unwrap_or(dma_status) != 0);
            let Some(bo) = bos.get_mut(&ticket.bo_id) else { continue };
            let Some(flight) = &mut bo.flight else { continue };
            if flight.serial != ticket.serial || !ticket.ends_slice || ticket.is_lost {
                continue;
            }
            flight.slices_left -= 1;
            if flight.slices_left == 0 {
                bo.figures.device_us = microseconds(now.saturating_sub(flight.submitted));
                if flight.is_awaited {
                    self.changed.notify_all();
                }
                bo.flight = None;
            }
        }
    }
}

/// An entry of either execute call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) handle: u32,
    /// Bytes that move; `None`: all.
    pub(crate) resize: Option<u64>,
}

impl EmuFile {
    pub(crate) fn execute(
        &self,
        dbc_id: u32,
        entries: impl ExactSizeIterator<Item = Entry>,
    ) -> Result<(), Errno> {
        self.trip(Trigger::Execute, Some(dbc_id))?;
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
                // A card gets on while its host does something else; here it does so now, for the next attempt.
                drop(state);
                self.card.drain(dbc_id);
                Err(Errno::AGAIN)
            }
            Err(error) => Err(error),
        }
    }

    /// Puts all entries into the ring or none. Answers what then goes wrong with the card.
    fn submit(
        &self,
        state: &mut MutexGuard<'_, State>,
        dbc_id: u32,
        entries: &[Entry],
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
                    bo.flight = None;
                }
            }
            return Err(error);
        }
        let fault = state.happens(Trigger::Inference);
        let now = self.card.options.clock.now();
        let poisons = self.card.options.poisons_outputs;
        let State { bos, dbcs, .. } = &mut **state;
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
            if let Some(flight) = &mut bo.flight {
                flight.submitted = now;
            }
            bo.figures = Figures {
                level_before: u32::try_from(level + first).unwrap_or(u32::MAX),
                elements: u32::try_from(end - first).unwrap_or(u32::MAX),
                submit_us: microseconds(now.saturating_sub(began)),
                device_us: 0,
            };
            let serial = bo.flight.map_or(0, |flight| flight.serial);
            for (index, part) in fragments.iter().enumerate().take(end).skip(first) {
                if poisons && !to_device {
                    bo.pages.fill(part.host_offset, u64::from(part.len), POISON);
                }
                let is_lost = match fault {
                    Some(Action::LostCompletion) => index + 1 == count,
                    Some(Action::ShortCompletion) => index == first_end,
                    _ => false,
                };
                let number = dbc.next_ticket;
                dbc.next_ticket += 1;
                let ends_slice = part.ends_slice;
                dbc.tickets.push_back(Ticket { number, bo_id, serial, ends_slice, is_lost, dma_status });
                channel.push(Element {
                    pages: Arc::clone(&bo.pages),
                    host_offset: part.host_offset,
                    dev_addr: part.dev_addr,
                    len: part.len,
                    to_device,
                    sems: part.sems,
                    doorbell: part.doorbell,
                    ticket: number,
                });
            }
            first = end;
        }
        dbc.is_hung |= fault == Some(Action::Hang);
        if let Some(worker) = &dbc.worker {
            worker.wake();
        }
        if state.waiters > 0 {
            // It may be what the channel of another thread's wait was blocked on.
            self.card.changed.notify_all();
        }
        Ok(fault)
    }

    /// Marks the buffer objects as queued and collects their elements; `queued` says up to which element each has them,
    /// also after an error.
    fn queue(
        &self,
        state: &mut State,
        dbc_id: u32,
        entries: &[Entry],
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
            if entry.resize.is_some_and(|resize| resize > bo.pages.len()) || bo.flight.is_some() {
                return Err(Errno::INVAL);
            }
            slices.add_fragments(entry.resize, profile, fragments);
            if fragments.len() > room {
                return Err(Errno::AGAIN);
            }
            bo.flight = Some(Flight {
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

    /// Blocking: until the buffer object is idle, the time limit at most.
    pub(crate) fn wait(&self, arg: Wait) -> Result<(), Errno> {
        let options = &self.card.options;
        let limit = match arg.timeout {
            0 => options.wait_timeout,
            timeout => Duration::from_millis(u64::from(timeout)),
        };
        let fault = self.card.happens(Trigger::Wait);
        if let Some(Action::Fail(error)) = fault {
            if let (Errno::TIMEDOUT, EmuClock::Virtual(clock)) = (error, &options.clock) {
                clock.advance_to(options.clock.now() + limit);
            }
            return Err(error);
        }
        if arg.pad != 0 {
            return Err(Errno::INVAL);
        }
        let state = self.alive()?;
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
        let flight = state.bos.get(&bo_id).and_then(|bo| bo.flight);
        let _waiting = self.card.count(state, |state| &mut state.waiters);
        if let Some(fault) = fault {
            // As if it happened while the call waits.
            self.card.perform(fault, Some(arg.dbc_id));
        }
        let awaited =
            Awaited { dbc_id: arg.dbc_id, losses, bo_id, serial: flight.map(|flight| flight.serial) };
        self.card.await_idle(&awaited, options.clock.now() + limit)
    }

    pub(crate) fn perf_stats(&self, dbc_id: u32, entries: &mut [PerfStatsEntry]) -> Result<(), Errno> {
        self.trip(Trigger::PerfStats, Some(dbc_id))?;
        let state = self.alive()?;
        if dbc_id >= DBC_COUNT {
            return Err(Errno::INVAL);
        }
        // The kernel answers all or none.
        let mut answers = entries.to_vec();
        for entry in &mut answers {
            let bo_id = state.bo_id(self.user, entry.handle)?;
            let bo = state.bos.get(&bo_id).ok_or(Errno::NOENT)?;
            let is_here = bo.attachment.as_ref().is_some_and(|attachment| attachment.dbc_id == dbc_id);
            if self.card.options.profile == Profile::Ssr && !is_here {
                return Err(Errno::INVAL);
            }
            entry.queue_level_before = bo.figures.level_before;
            entry.num_queue_element = bo.figures.elements;
            entry.submit_latency_us = bo.figures.submit_us;
            entry.device_latency_us = if bo.flight.is_some() { 0 } else { bo.figures.device_us };
        }
        entries.copy_from_slice(&answers);
        Ok(())
    }
}

/// What a wait is for.
struct Awaited {
    dbc_id: u32,
    losses: u64,
    bo_id: u64,
    serial: Option<u64>,
}

impl Awaited {
    /// What the wait came to, once it came to something.
    fn outcome(&self, state: &State) -> Option<Result<(), Errno>> {
        let dbc = &state.dbcs[self.dbc_id as usize];
        if dbc.losses != self.losses {
            return Some(Err(dbc.loss.unwrap_or(Errno::PERM)));
        }
        let flight = state.bos.get(&self.bo_id).and_then(|bo| bo.flight);
        (self.serial.is_none() || flight.map(|flight| flight.serial) != self.serial).then_some(Ok(()))
    }
}

impl Card {
    fn await_idle(&self, awaited: &Awaited, deadline: Duration) -> Result<(), Errno> {
        let mut state = self.settled();
        loop {
            if let Some(outcome) = awaited.outcome(&state) {
                return outcome;
            }
            if state.dbcs[awaited.dbc_id as usize].worker.is_none() {
                drop(state);
                let drove = self.drive(awaited.dbc_id, None);
                state = self.settled();
                if drove == Drive::Moved && self.options.clock.now() < deadline {
                    continue;
                }
                if let Some(outcome) = awaited.outcome(&state) {
                    return outcome;
                }
            }
            if self.options.clock.now() >= deadline {
                return Err(Errno::TIMEDOUT);
            }
            if let Some(flight) = state.bos.get_mut(&awaited.bo_id).and_then(|bo| bo.flight.as_mut()) {
                flight.is_awaited = true;
            }
            let worker = state.dbcs[awaited.dbc_id as usize].worker.as_ref();
            let is_moving = worker.is_some_and(|worker| !worker.is_idle());
            state = self.nap(state, deadline, is_moving)?;
        }
    }

    /// Gets on with a channel as far as that goes.
    fn drain(&self, dbc_id: u32) {
        while self.drive(dbc_id, None) == Drive::Moved {}
    }
}

/// At least one, for what has happened has taken time.
fn microseconds(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1)
}
