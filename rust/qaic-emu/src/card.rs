//! An emulated card from the side of its driver: its open files, the owners of its channels, and the events
//! that change it.
//!
//! One lock protects the card's state. No slow work runs while this lock is held: cores compute and the firmware
//! answers without it. Objects that a loss releases ([`DeferredCleanup`]) are stopped after the lock is released. The
//! lock order is: a channel's drive lock, the card's lock, locks inside channels and firmware.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::events::EventBroadcast;
use super::fault::{Action, FaultCounter, FaultPlan, Trigger};
use super::firmware::Firmware;
use super::options::{EmuClock, EmuOptions, Profile};
use crate::data_path::bo::Bo;
use crate::data_path::channel::Channel;
use crate::data_path::worker::Worker;
use qaic_kmd::abi::{DBC_COUNT, Request};
use qaic_kmd::{DbcState, Errno, EventKind};

/// Interval in which a sleeping thread checks for signals.
pub(crate) const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// An emulated card.
#[derive(Debug)]
pub(crate) struct Card {
    /// Name of the card's node, such as `accel0`.
    pub(crate) node: String,
    pub(crate) options: Arc<EmuOptions>,
    pub(crate) firmware: Firmware,
    events: Arc<EventBroadcast>,
    state: Mutex<CardState>,
    /// True if the fault plan has any fault.
    has_faults: AtomicBool,
    /// Notified after a change that a blocked call may wait for.
    pub(crate) changed: Condvar,
}

/// The card's state, which the lock protects.
#[derive(Debug)]
pub(crate) struct CardState {
    /// True while the card can be used.
    pub(crate) is_online: bool,
    /// Number of resets so far.
    pub(crate) resets: u64,
    /// Number of times that the process was stopped and continued.
    pub(crate) stops: u64,
    pub(crate) users: BTreeMap<u32, User>,
    next_user: u32,
    pub(crate) bos: BTreeMap<u64, Bo>,
    pub(crate) next_bo: u64,
    pub(crate) dbcs: Vec<Dbc>,
    faults: FaultCounter,
    timeline: Vec<(Duration, TimedEvent)>,
    /// Number of resets whose firmware has not released everything yet.
    resetting: usize,
    /// Number of blocked calls.
    pub(crate) waiters: usize,
    /// Number of control messages that the firmware is processing.
    pub(crate) busy: usize,
    /// Number of calls so far, by request.
    pub(crate) calls: BTreeMap<Request, u64>,
    /// Number of elements that completed with a status other than 0, which the driver does not report.
    pub(crate) dma_errors: u64,
    pub(crate) next_serial: u64,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct User {
    /// Identity of the file for the firmware. A new one after each reset distinguishes earlier results of the
    /// firmware.
    pub(crate) wire_id: u32,
    pub(crate) handles: BTreeMap<u32, u64>,
    /// True if the card never works again.
    pub(crate) is_dead: bool,
}

/// A DMA-bridge channel.
#[derive(Debug, Default)]
pub(crate) struct Dbc {
    /// File that activated the channel and has not released it.
    pub(crate) owner: Option<u32>,
    /// Number of times that executions were lost.
    pub(crate) losses: u64,
    pub(crate) loss: Option<Errno>,
    /// Number of activations of the channel so far.
    pub(crate) activation: u64,
    pub(crate) state: Option<DbcState>,
    /// True while the card's cores restart.
    pub(crate) is_restarting: bool,
    pub(crate) ring_size: u32,
    pub(crate) channel: Option<Arc<Channel>>,
    /// Lock that is held during a step and the processing of its result.
    pub(crate) drive: Arc<Mutex<()>>,
    pub(crate) queued: VecDeque<QueuedElement>,
    pub(crate) next_element_id: u64,
    /// True if the card's cores no longer make progress.
    pub(crate) is_hung: bool,
    pub(crate) worker: Option<Worker>,
    pub(crate) attached: BTreeSet<u64>,
    /// Number of waits that have not ended.
    pub(crate) waits: usize,
}

/// A queued element that is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedElement {
    pub(crate) element_id: u64,
    pub(crate) bo_id: u64,
    pub(crate) serial: u64,
    pub(crate) ends_slice: bool,
    /// True if the completion of the request gets lost.
    pub(crate) is_lost: bool,
    /// Status of the completion, instead of success.
    pub(crate) dma_status: Option<u16>,
}

/// A scheduled change.
#[derive(Clone, Copy, Debug)]
enum TimedEvent {
    Fault(Action),
    Online,
    CoresStart { dbc_id: u32, powers_up: bool },
}

/// Work that runs after the lock is released.
#[derive(Debug, Default)]
#[must_use = "channels go on until they are stopped"]
pub(crate) struct DeferredCleanup {
    channels: Vec<Arc<Channel>>,
    workers: Vec<Worker>,
    restarted: Vec<u32>,
    is_reset: bool,
}

impl DeferredCleanup {
    fn is_empty(&self) -> bool {
        self.channels.is_empty() && self.workers.is_empty() && self.restarted.is_empty() && !self.is_reset
    }

    fn add(&mut self, other: Self) {
        self.channels.extend(other.channels);
        self.workers.extend(other.workers);
        self.restarted.extend(other.restarted);
        self.is_reset |= other.is_reset;
    }

    /// Stops the released objects. Must be called without the card's lock.
    ///
    /// Blocking: at most a few seconds, until the threads of channels have ended.
    pub(crate) fn finish(self, card: &Card) {
        for channel in &self.channels {
            channel.stop();
        }
        for dbc_id in self.restarted {
            card.firmware.begin_restart(dbc_id);
        }
        if self.is_reset {
            card.firmware.reset();
            card.lock().resetting -= 1;
            card.events.rescheduled();
        }
        for worker in self.workers {
            worker.end();
        }
    }
}

/// A counted call, until this object is dropped.
#[must_use = "it is counted until this is dropped"]
pub(crate) struct Counted<'a> {
    card: &'a Card,
    of: fn(&mut CardState) -> &mut usize,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        *(self.of)(&mut self.card.lock()) -= 1;
        self.card.changed.notify_all();
    }
}

impl Card {
    pub(crate) fn new(index: u32, options: &Arc<EmuOptions>, events: &Arc<EventBroadcast>) -> Self {
        let (major, minor) = options.firmware.transport_version;
        let state = CardState {
            // The kernel accepts only cards of this protocol.
            is_online: major == 5 && minor == 0,
            resets: 0,
            stops: 0,
            users: BTreeMap::new(),
            next_user: 1,
            bos: BTreeMap::new(),
            next_bo: 1,
            dbcs: (0..DBC_COUNT).map(|_| Dbc::default()).collect(),
            faults: FaultCounter::default(),
            timeline: Vec::new(),
            resetting: 0,
            waiters: 0,
            busy: 0,
            calls: BTreeMap::new(),
            dma_errors: 0,
            next_serial: 1,
        };
        let card = Self {
            node: format!("accel{index}"),
            firmware: Firmware::new(options.firmware.clone().of_card(index), Arc::clone(&options.workload)),
            options: Arc::clone(options),
            events: Arc::clone(events),
            state: Mutex::new(state),
            has_faults: AtomicBool::new(false),
            changed: Condvar::new(),
        };
        card.set_faults(options.faults.clone());
        card
    }

    /// Locks the state without applying changes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, CardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, after applying the changes that are due.
    pub(crate) fn settled(&self) -> MutexGuard<'_, CardState> {
        loop {
            let mut state = self.lock();
            let cleanup = self.settle(&mut state, self.options.clock.now());
            if cleanup.is_empty() {
                return state;
            }
            drop(state);
            cleanup.finish(self);
        }
    }

    /// Applies the changes that are due. Returns the time of the next one that needs no other thread.
    pub(crate) fn catch_up(&self) -> Option<Duration> {
        let state = self.settled();
        let is_waited_for = |due: &TimedEvent| state.resetting > 0 && matches!(due, TimedEvent::Online);
        let times = state.timeline.iter().filter(|(_, due)| !is_waited_for(due)).map(|(time, _)| *time);
        times.min()
    }

    /// Replaces the fault plan, and resets times and counts.
    pub(crate) fn set_faults(&self, plan: FaultPlan) {
        let now = self.options.clock.now();
        let mut state = self.lock();
        state.timeline.retain(|(_, due)| !matches!(due, TimedEvent::Fault(_)));
        let timed: Vec<_> = plan.timed().collect();
        state
            .timeline
            .extend(timed.into_iter().map(|(after, action)| (now + after, TimedEvent::Fault(action))));
        self.has_faults.store(plan != FaultPlan::default(), Ordering::Release);
        state.faults = FaultCounter::new(plan);
        drop(state);
        self.events.rescheduled();
    }

    /// Simulates a stop and continuation of the process: a waiting control message is sent again.
    pub(crate) fn stop_and_continue(&self) {
        self.lock().stops += 1;
        self.changed.notify_all();
    }

    /// Applies later changes at once, such as the restart of the card or of cores.
    pub(crate) fn hurry(&self) {
        loop {
            let Some(due) = self.settled().next_due() else { return };
            let mut state = self.lock();
            let cleanup = self.settle(&mut state, due);
            drop(state);
            cleanup.finish(self);
        }
    }

    /// Adds a user.
    pub(crate) fn open(&self) -> Result<u32, Errno> {
        if let Some(Action::Fail(error)) = self.fault_action(Trigger::Open) {
            return Err(error);
        }
        let mut state = self.settled();
        if !state.is_online {
            // Old kernels have no node until the card has started.
            let is_old = self.options.profile == Profile::Old;
            return Err(if is_old { Errno::NOENT } else { Errno::NODEV });
        }
        let id = state.next_user();
        let wire_id = state.next_user();
        state.users.insert(id, User { wire_id, handles: BTreeMap::new(), is_dead: false });
        Ok(id)
    }

    /// Frees all resources of a user.
    pub(crate) fn close(&self, user: u32) {
        let mut state = self.lock();
        let mut cleanup = DeferredCleanup::default();
        for dbc_id in 0..DBC_COUNT {
            // The driver leaves a channel in use after it was given up, because it finds no owner.
            if state.dbcs[dbc_id as usize].owner == Some(user) {
                // The state of the channel does not change, and no event reports that it is free.
                cleanup.add(self.release_but_state(&mut state, dbc_id, Errno::PERM));
            }
        }
        let Some(closed) = state.users.remove(&user) else { return };
        for bo_id in closed.handles.values() {
            state.bos.remove(bo_id);
        }
        drop(state);
        cleanup.finish(self);
        self.firmware.terminate(closed.wire_id);
    }

    /// Counts a trigger, and returns its action in the fault plan.
    pub(crate) fn fault_action(&self, trigger: Trigger) -> Option<Action> {
        if !self.has_faults.load(Ordering::Acquire) {
            return None;
        }
        self.settled().faults.next_action(trigger)
    }

    /// Applies a fault to the card, or to the channel of a call.
    pub(crate) fn perform(&self, action: Action, dbc_id: Option<u32>) {
        let mut state = self.lock();
        let cleanup = self.apply(&mut state, action, dbc_id);
        drop(state);
        cleanup.finish(self);
    }

    fn apply(&self, state: &mut CardState, action: Action, about: Option<u32>) -> DeferredCleanup {
        match action {
            Action::Reset => self.begin_reset(state),
            Action::Dead => {
                for user in state.users.values_mut() {
                    user.is_dead = true;
                }
                self.release_all(state)
            }
            Action::Restart { dbc_id, powers_up } => match dbc_id.or(about) {
                Some(dbc_id) if dbc_id < DBC_COUNT => self.restart_cores(state, dbc_id, powers_up),
                _ => DeferredCleanup::default(),
            },
            _ => DeferredCleanup::default(),
        }
    }

    fn settle(&self, state: &mut CardState, now: Duration) -> DeferredCleanup {
        while let Some(at) = state.first_due(now) {
            let (time, due) = state.timeline.remove(at);
            match due {
                TimedEvent::Fault(action) => {
                    let cleanup = self.apply(state, action, None);
                    if !cleanup.is_empty() {
                        return cleanup;
                    }
                }
                TimedEvent::Online if state.resetting > 0 => {
                    // Wait until another thread has reset the firmware.
                    state.timeline.push((time, due));
                    break;
                }
                TimedEvent::Online => {
                    state.is_online = true;
                    self.publish(self.if_old(EventKind::Added, EventKind::Online));
                }
                TimedEvent::CoresStart { dbc_id, powers_up } => {
                    self.set_dbc_state(state, dbc_id, DbcState::BeforePowerUp);
                    if powers_up {
                        self.set_dbc_state(state, dbc_id, DbcState::AfterPowerUp);
                        self.set_dbc_state(state, dbc_id, DbcState::Idle);
                        state.dbcs[dbc_id as usize].is_restarting = false;
                        self.firmware.end_restart();
                    }
                }
            }
            self.changed.notify_all();
        }
        DeferredCleanup::default()
    }

    fn begin_reset(&self, state: &mut CardState) -> DeferredCleanup {
        if !state.is_online {
            return DeferredCleanup::default();
        }
        state.is_online = false;
        state.resets += 1;
        state.resetting += 1;
        self.publish(self.if_old(EventKind::Removed, EventKind::Offline));
        state.timeline.retain(|(_, due)| matches!(due, TimedEvent::Fault(_)));
        state.timeline.push((self.options.clock.now() + self.options.boot, TimedEvent::Online));
        let mut cleanup = self.release_all(state);
        cleanup.is_reset = true;
        for user in state.users.keys().copied().collect::<Vec<_>>() {
            let wire_id = state.next_user();
            if let Some(user) = state.users.get_mut(&user) {
                user.wire_id = wire_id;
                user.is_dead |= self.options.profile == Profile::Old;
            }
        }
        cleanup
    }

    fn release_all(&self, state: &mut CardState) -> DeferredCleanup {
        let mut cleanup = DeferredCleanup::default();
        for dbc_id in 0..DBC_COUNT {
            cleanup.add(self.release(state, dbc_id, Errno::PERM));
            state.dbcs[dbc_id as usize].is_restarting = false;
        }
        cleanup
    }

    /// Makes the cores of a channel fail, and schedules their restart. Kernels without core restarts see cores that
    /// make no progress.
    fn restart_cores(&self, state: &mut CardState, dbc_id: u32, powers_up: bool) -> DeferredCleanup {
        let dbc = &mut state.dbcs[dbc_id as usize];
        if dbc.owner.is_none() {
            return DeferredCleanup::default();
        }
        if self.options.profile != Profile::Ssr {
            dbc.is_hung = true;
            return DeferredCleanup::default();
        }
        dbc.is_restarting = true;
        self.set_dbc_state(state, dbc_id, DbcState::BeforeShutdown);
        let mut cleanup = self.release_but_state(state, dbc_id, Errno::PIPE);
        cleanup.restarted.push(dbc_id);
        self.set_dbc_state(state, dbc_id, DbcState::AfterShutdown);
        let time = self.options.clock.now() + self.options.core_restart;
        state.timeline.push((time, TimedEvent::CoresStart { dbc_id, powers_up }));
        cleanup
    }

    /// Takes a channel from its owner. Queued executions are lost, and slices are detached.
    pub(crate) fn release(&self, state: &mut CardState, dbc_id: u32, loss: Errno) -> DeferredCleanup {
        let cleanup = self.release_but_state(state, dbc_id, loss);
        self.set_dbc_state(state, dbc_id, DbcState::Idle);
        cleanup
    }

    fn release_but_state(&self, state: &mut CardState, dbc_id: u32, loss: Errno) -> DeferredCleanup {
        self.fail_executions(state, dbc_id, loss);
        let dbc = &mut state.dbcs[dbc_id as usize];
        dbc.owner = None;
        dbc.is_hung = false;
        dbc.activation += 1;
        let worker = dbc.worker.take();
        if let Some(worker) = &worker {
            worker.wake();
        }
        let channels = dbc.channel.take().into_iter().collect();
        for bo_id in std::mem::take(&mut dbc.attached) {
            if let Some(bo) = state.bos.get_mut(&bo_id) {
                (bo.attachment, bo.withdrawn) = (None, None);
            }
            state.drop_unused(bo_id);
        }
        DeferredCleanup { channels, workers: worker.into_iter().collect(), ..DeferredCleanup::default() }
    }

    /// Removes the queued executions of a channel, and ends their waits with the reason.
    fn fail_executions(&self, state: &mut CardState, dbc_id: u32, loss: Errno) {
        let CardState { dbcs, bos, .. } = state;
        let dbc = &mut dbcs[dbc_id as usize];
        dbc.losses += 1;
        dbc.loss = Some(loss);
        dbc.queued.clear();
        for bo_id in &dbc.attached {
            if let Some(bo) = bos.get_mut(bo_id) {
                bo.execution = None;
            }
        }
        self.changed.notify_all();
    }

    /// Sets the state of a channel. Kernels with the attribute publish each change of it.
    pub(crate) fn set_dbc_state(&self, state: &mut CardState, dbc_id: u32, to: DbcState) {
        let known = state.dbcs[dbc_id as usize].state.replace(to).unwrap_or(DbcState::Idle);
        if known != to && self.options.profile == Profile::Ssr {
            self.publish(EventKind::Channel { dbc_id, state: to });
        }
    }

    fn if_old(&self, old: EventKind, new: EventKind) -> EventKind {
        if self.options.profile == Profile::Old { old } else { new }
    }

    fn publish(&self, kind: EventKind) {
        self.events.publish(&self.node, kind);
    }

    /// Counts a call that blocks, or that the firmware is processing, until the result is dropped, also after a panic
    /// of cores on the caller's thread. Releases the lock.
    pub(crate) fn count<'a>(
        &'a self,
        mut state: MutexGuard<'a, CardState>,
        of: fn(&mut CardState) -> &mut usize,
    ) -> Counted<'a> {
        *of(&mut state) += 1;
        drop(state);
        self.changed.notify_all();
        Counted { card: self, of }
    }

    /// Sleeps until the state changes or the next change is due. Virtual time advances to that time if no other
    /// thread works. Fails with `EINTR` if there is a signal.
    ///
    /// `is_moving` is true if the cores of the awaited channel make progress without this thread.
    pub(crate) fn wait_for_change<'a>(
        &'a self,
        state: MutexGuard<'a, CardState>,
        deadline: Duration,
        is_moving: bool,
    ) -> Result<MutexGuard<'a, CardState>, Errno> {
        if self.options.signaled.is_some_and(|signaled| signaled()) {
            return Err(Errno::INTR);
        }
        let until = state.next_due().map_or(deadline, |due| due.min(deadline));
        let limit = match &self.options.clock {
            EmuClock::Virtual(clock) if !is_moving && state.busy == 0 => {
                drop(state);
                clock.advance_to(until);
                return Ok(self.settled());
            }
            EmuClock::Virtual(_) => SIGNAL_POLL,
            EmuClock::System(clock) => {
                let left = until.saturating_sub(qaic_kmd::Clock::now(clock));
                if self.options.signaled.is_some() { left.min(SIGNAL_POLL) } else { left }
            }
        };
        drop(self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner));
        Ok(self.settled())
    }
}

impl CardState {
    fn next_user(&mut self) -> u32 {
        self.next_user += 1;
        self.next_user - 1
    }

    fn next_due(&self) -> Option<Duration> {
        self.timeline.iter().map(|(time, _)| *time).min()
    }

    /// Returns the index of the first change that is due.
    fn first_due(&self, now: Duration) -> Option<usize> {
        let due = self.timeline.iter().enumerate().filter(|(_, (time, _))| *time <= now);
        due.min_by_key(|(_, (time, _))| *time).map(|(at, _)| at)
    }

    /// Returns true if the user's file is still usable, which it is not if the card was lost after it was opened.
    pub(crate) fn can_use(&self, user: u32) -> bool {
        self.users.get(&user).is_some_and(|user| !user.is_dead)
    }

    /// Counts a trigger and returns its action, while the lock is held.
    pub(crate) fn fault_action(&mut self, trigger: Trigger) -> Option<Action> {
        self.faults.next_action(trigger)
    }
}
