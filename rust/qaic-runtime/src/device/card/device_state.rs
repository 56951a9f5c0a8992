//! State of a card and of its activations, derived from its events and from the errors of its calls.
//!
//! A *generation* of a card lasts until everything on the card is lost. Programs and activations record their
//! generation.

use std::sync::{Arc, Weak};
use std::time::Duration;

use qaic_kmd::abi::DBC_COUNT;
use qaic_kmd::{DbcState, EventKind};

use super::channel::Channel;
use crate::error::{DeviceError, RuntimeError};
use crate::sync::Mutex;

/// Time limit for failed cores to return; after it, the card counts as lost.
const RESTART_LIMIT: Duration = Duration::from_secs(15);

const CHANNELS: usize = DBC_COUNT as usize;

/// Known state of a card.
#[derive(Debug)]
pub(super) struct DeviceState {
    device: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    generation: u64,
    // True if the card has answered a status query in this generation and with this file.
    has_answered: bool,
    // Reason why the card cannot be used, until it reports or shows that it can.
    down: Option<String>,
    // True if the open file must be replaced.
    needs_reopen: bool,
    channels: [Weak<Channel>; CHANNELS],
    // Time limits for the restart of the cores of each channel.
    restarts: [Option<Duration>; CHANNELS],
    // Reason for the end of the last generation.
    ended: String,
}

impl DeviceState {
    pub(super) fn new(device: u32) -> Self {
        Self { device, inner: Mutex::default() }
    }

    pub(super) fn generation(&self) -> u64 {
        self.inner.lock().generation
    }

    /// Fails for objects of an earlier generation.
    pub(super) fn check(&self, generation: u64) -> Result<(), RuntimeError> {
        let inner = self.inner.lock();
        if inner.generation == generation { Ok(()) } else { Err(self.lost(&inner.ended)) }
    }

    /// Reason why the card cannot be used.
    pub(super) fn down(&self) -> Option<String> {
        self.inner.lock().down.clone()
    }

    /// Returns true if the open file must be replaced before any new use.
    pub(super) fn needs_reopen(&self) -> bool {
        self.inner.lock().needs_reopen
    }

    /// Requests that the open file is replaced, because the firmware may hold an object whose id is unknown. Only
    /// closing the file frees the object.
    pub(super) fn request_reopen(&self) {
        self.inner.lock().needs_reopen = true;
    }

    /// Records that a file was opened.
    pub(super) fn mark_opened(&self) {
        self.inner.lock().needs_reopen = false;
    }

    /// Records that the card has answered.
    pub(super) fn mark_ready(&self) {
        let mut inner = self.inner.lock();
        (inner.down, inner.has_answered) = (None, true);
    }

    /// Returns true if the card has answered and no event has followed.
    pub(super) fn is_ready(&self) -> bool {
        let inner = self.inner.lock();
        inner.has_answered && inner.down.is_none() && !inner.needs_reopen
    }

    /// Registers the channel of a new activation. The channel is lost at once if its generation has ended.
    pub(super) fn register(&self, channel: &Arc<Channel>, generation: u64) {
        let mut inner = self.inner.lock();
        if inner.generation != generation {
            let error = self.lost(&inner.ended);
            drop(inner);
            channel.mark_lost_with(error);
        } else if let Some(slot) = inner.channels.get_mut(channel.dbc_id as usize) {
            *slot = Arc::downgrade(channel);
        }
    }

    /// Records the loss of all objects of `generation` because of the error of a call. Objects that the card has kept
    /// are freed by closing the file. Has no effect if the generation has ended before.
    pub(super) fn mark_lost(&self, generation: u64, reason: &str) -> RuntimeError {
        let mut inner = self.inner.lock();
        if inner.generation == generation {
            inner.needs_reopen = true;
            self.end_generation(&mut inner, reason);
        }
        self.lost(&inner.ended)
    }

    /// Processes an event.
    pub(super) fn event(&self, kind: EventKind, now: Duration) {
        let mut inner = self.inner.lock();
        match kind {
            EventKind::Offline | EventKind::Removed => {
                let reason = match kind {
                    EventKind::Removed => "its node was removed",
                    _ => "it was reset",
                };
                inner.needs_reopen |= kind == EventKind::Removed;
                self.end_generation(&mut inner, reason);
                inner.down = Some(format!("{reason}, and is not available yet"));
            }
            EventKind::Online | EventKind::Added => {
                inner.down = None;
                inner.restarts = [None; CHANNELS];
            }
            EventKind::Channel { dbc_id, state: dbc_state } => {
                let index = dbc_id as usize;
                let (Some(channel), Some(restart)) =
                    (inner.channels.get(index).map(Weak::upgrade), inner.restarts.get_mut(index))
                else {
                    return;
                };
                match dbc_state {
                    DbcState::BeforeShutdown => {
                        *restart = Some(now.saturating_add(RESTART_LIMIT));
                        if let Some(channel) = channel {
                            channel.mark_lost("its cores failed and are restarted");
                        }
                    }
                    DbcState::AfterPowerUp | DbcState::Idle | DbcState::Assigned => *restart = None,
                    DbcState::AfterShutdown | DbcState::BeforePowerUp => {}
                }
            }
        }
    }

    /// Records that events were lost. The card must answer before it counts as ready again, because restarting cores
    /// may have returned.
    pub(super) fn missed_events(&self) {
        let mut inner = self.inner.lock();
        inner.has_answered = false;
        inner.restarts = [None; CHANNELS];
    }

    /// Earliest time limit of restarting cores; `None` if none are restarting.
    pub(super) fn next_restart_limit(&self) -> Option<Duration> {
        self.inner.lock().restarts.iter().flatten().min().copied()
    }

    /// Ends the generation if cores have not returned in time.
    pub(super) fn check_restart_limits(&self, now: Duration) {
        let mut inner = self.inner.lock();
        let late = inner.restarts.iter().position(|limit| limit.is_some_and(|limit| limit <= now));
        let Some(late) = late else { return };
        let seconds = RESTART_LIMIT.as_secs();
        let reason = format!("the cores of channel {late} failed and did not restart within {seconds} s");
        inner.restarts = [None; CHANNELS];
        inner.needs_reopen = true;
        self.end_generation(&mut inner, &reason);
        inner.down = Some(reason);
    }

    fn end_generation(&self, inner: &mut Inner, reason: &str) {
        inner.generation += 1;
        inner.has_answered = false;
        reason.clone_into(&mut inner.ended);
        for slot in &mut inner.channels {
            if let Some(channel) = std::mem::take(slot).upgrade() {
                channel.mark_lost_with(self.lost(reason));
            }
        }
    }

    fn lost(&self, reason: &str) -> RuntimeError {
        DeviceError::Lost { id: self.device, reason: reason.to_owned() }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn entered(state: &DeviceState, dbc_id: u32) -> Arc<Channel> {
        let channel = Channel::new(4, dbc_id);
        state.register(&channel, state.generation());
        channel
    }

    fn channel_event(dbc_id: u32, state: DbcState) -> EventKind {
        EventKind::Channel { dbc_id, state }
    }

    #[test]
    fn a_reset_ends_everything_once() {
        let state = DeviceState::new(4);
        let (first, second) = (entered(&state, 0), entered(&state, 15));
        assert_eq!(state.mark_lost(0, "it was reset").code(), "device.lost");
        assert_eq!(state.mark_lost(0, "another reason").to_string(), "device 4 is lost: it was reset");
        assert!(state.needs_reopen());
        assert_eq!(state.generation(), 1);
        assert_eq!(state.check(0).unwrap_err().code(), "device.lost");
        for channel in [first, second] {
            assert_eq!(channel.lost().unwrap().to_string(), "device 4 is lost: it was reset");
            assert!(!channel.is_lost_alone());
        }
        // The activation had just begun.
        let late = Channel::new(4, 3);
        state.register(&late, 0);
        assert!(late.lost().is_some());
    }

    #[test]
    fn events_say_whether_the_card_is_there() {
        let state = DeviceState::new(0);
        state.event(EventKind::Offline, NOW);
        assert!(state.down().is_some() && !state.needs_reopen());
        state.event(EventKind::Online, NOW);
        assert_eq!(state.down(), None);
        state.event(EventKind::Removed, NOW);
        assert!(state.needs_reopen());
        state.mark_ready();
        assert_eq!((state.down(), state.generation()), (None, 2));
    }

    #[test]
    fn a_restart_costs_one_channel() {
        let state = DeviceState::new(0);
        let (hit, other) = (entered(&state, 3), entered(&state, 4));
        state.event(channel_event(3, DbcState::BeforeShutdown), NOW);
        assert!(hit.is_lost_alone() && other.lost().is_none());
        state.event(channel_event(3, DbcState::AfterPowerUp), NOW);
        state.check_restart_limits(NOW + Duration::from_hours(1));
        assert_eq!((state.generation(), state.down()), (0, None));
        state.event(channel_event(99, DbcState::BeforeShutdown), NOW);
        state.check_restart_limits(NOW + Duration::from_hours(1));
        assert_eq!(state.generation(), 0);
    }

    #[test]
    fn lost_events_cost_nothing_and_prove_nothing() {
        let state = DeviceState::new(0);
        let other = entered(&state, 4);
        state.event(channel_event(3, DbcState::BeforeShutdown), NOW);
        state.mark_ready();
        state.missed_events();
        assert!(!state.is_ready());
        state.check_restart_limits(NOW + Duration::from_hours(1));
        assert_eq!((state.generation(), other.lost().is_none()), (0, true));
    }

    #[test]
    fn cores_that_do_not_come_back_cost_the_card() {
        let state = DeviceState::new(0);
        let (hit, other) = (entered(&state, 3), entered(&state, 4));
        state.event(channel_event(3, DbcState::BeforeShutdown), NOW);
        state.event(channel_event(3, DbcState::BeforePowerUp), NOW);
        state.check_restart_limits(RESTART_LIMIT);
        assert!(other.lost().is_none());
        state.check_restart_limits(NOW + RESTART_LIMIT);
        assert_eq!(other.lost().unwrap().code(), "device.lost");
        assert_eq!(hit.lost().unwrap().code(), "device.channel_lost");
        assert!(state.needs_reopen());
        assert!(state.down().unwrap().contains("channel 3"));
    }
}
