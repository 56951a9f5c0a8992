//! Whether a card, and what runs on it, is still there: what its events and the errors of its calls say together
//! (device-kmd §1.6, §4.7).
//!
//! A *generation* of a card lasts until everything on it is lost. Programs and activations remember theirs.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use qaic_kmd::abi::DBC_COUNT;
use qaic_kmd::clock::Alarm;
use qaic_kmd::kmd::{DbcState, EventKind};

use crate::error::RuntimeError;
use crate::sync::Mutex;

/// Cores that fail are back within this time, or the card counts as lost (device-kmd §4.5).
const RESTART_LIMIT: Duration = Duration::from_secs(15);

const CHANNELS: usize = DBC_COUNT as usize;

/// The channel of an activation.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) device: u32,
    pub(super) dbc_id: u32,
    /// Rings whenever an inference of the activation has ended, or the channel is lost: a full ring may have room.
    pub(super) ended: Alarm,
    lost: OnceLock<RuntimeError>,
}

impl Channel {
    pub(super) fn new(device: u32, dbc_id: u32) -> Arc<Self> {
        Arc::new(Self { device, dbc_id, ended: Alarm::default(), lost: OnceLock::new() })
    }

    /// Why it is lost, if it is.
    pub(super) fn lost(&self) -> Option<&RuntimeError> {
        self.lost.get()
    }

    /// Whether the card is there and only the channel is not.
    pub(super) fn is_lost_alone(&self) -> bool {
        matches!(self.lost(), Some(RuntimeError::ChannelLost { .. }))
    }

    /// Marks it as lost. The first reason counts, and is the answer.
    pub(super) fn lose(&self, reason: &str) -> RuntimeError {
        let (device, channel) = (self.device, self.dbc_id);
        let error = RuntimeError::ChannelLost { device, channel, reason: reason.to_owned() };
        self.lose_with(error)
    }

    fn lose_with(&self, error: RuntimeError) -> RuntimeError {
        let error = self.lost.get_or_init(|| error).clone();
        self.ended.ring();
        error
    }
}

/// What is known of a card.
#[derive(Debug)]
pub(super) struct Health {
    device: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    generation: u64,
    // Whether the card has answered a question for its status, in this generation and with this file.
    has_answered: bool,
    // Why the card cannot be used, until it says or shows otherwise.
    down: Option<String>,
    // Whether the open file is of no use any more.
    needs_reopening: bool,
    channels: [Weak<Channel>; CHANNELS],
    // When the cores of a channel are to be back.
    restarts: [Option<Duration>; CHANNELS],
    // Why the last generation ended.
    ended: String,
}

impl Health {
    pub(super) fn new(device: u32) -> Self {
        Self { device, state: Mutex::default() }
    }

    pub(super) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Refuses what is of an earlier generation.
    pub(super) fn check(&self, generation: u64) -> Result<(), RuntimeError> {
        let state = self.state.lock();
        if state.generation == generation { Ok(()) } else { Err(self.lost(&state.ended)) }
    }

    /// Why the card cannot be used.
    pub(super) fn down(&self) -> Option<String> {
        self.state.lock().down.clone()
    }

    /// Whether the open file has to be replaced before it is used for anything new.
    pub(super) fn needs_reopening(&self) -> bool {
        self.state.lock().needs_reopening
    }

    /// The firmware may hold something for the open file that nobody can name; only closing the file frees it.
    pub(super) fn ask_for_reopening(&self) {
        self.state.lock().needs_reopening = true;
    }

    /// A file was opened.
    pub(super) fn opened(&self) {
        self.state.lock().needs_reopening = false;
    }

    /// The card has answered.
    pub(super) fn answered(&self) {
        let mut state = self.state.lock();
        (state.down, state.has_answered) = (None, true);
    }

    /// Whether it has answered, and nothing has happened since.
    pub(super) fn is_ready(&self) -> bool {
        let state = self.state.lock();
        state.has_answered && state.down.is_none() && !state.needs_reopening
    }

    /// An activation has got a channel. Lost at once if the generation is over.
    pub(super) fn enter(&self, channel: &Arc<Channel>, generation: u64) {
        let mut state = self.state.lock();
        if state.generation != generation {
            let error = self.lost(&state.ended);
            drop(state);
            channel.lose_with(error);
        } else if let Some(slot) = state.channels.get_mut(channel.dbc_id as usize) {
            *slot = Arc::downgrade(channel);
        }
    }

    /// Everything on the card that is of `generation` is lost, as the error of a call says and no event did: should the card
    /// have kept something, closing the file frees it. Said again of a generation that is over, it says nothing.
    pub(super) fn lose(&self, generation: u64, reason: &str) -> RuntimeError {
        let mut state = self.state.lock();
        if state.generation == generation {
            state.needs_reopening = true;
            self.end_generation(&mut state, reason);
        }
        self.lost(&state.ended)
    }

    /// Takes note of an event.
    pub(super) fn event(&self, kind: EventKind, now: Duration) {
        let mut state = self.state.lock();
        match kind {
            EventKind::Offline | EventKind::Removed => {
                let reason = match kind {
                    EventKind::Removed => "its node was removed",
                    _ => "it was reset",
                };
                state.needs_reopening |= kind == EventKind::Removed;
                self.end_generation(&mut state, reason);
                state.down = Some(format!("{reason}, and it is not back yet"));
            }
            EventKind::Online | EventKind::Added => {
                state.down = None;
                state.restarts = [None; CHANNELS];
            }
            EventKind::Channel { dbc_id, state: dbc_state } => {
                let index = dbc_id as usize;
                let (Some(channel), Some(restart)) =
                    (state.channels.get(index).map(Weak::upgrade), state.restarts.get_mut(index))
                else {
                    return;
                };
                match dbc_state {
                    DbcState::BeforeShutdown => {
                        *restart = Some(now.saturating_add(RESTART_LIMIT));
                        if let Some(channel) = channel {
                            channel.lose("its cores failed and are restarted");
                        }
                    }
                    DbcState::AfterPowerUp | DbcState::Idle | DbcState::Assigned => *restart = None,
                    DbcState::AfterShutdown | DbcState::BeforePowerUp => {}
                }
            }
        }
    }

    /// Events were lost. The card is asked before it is called ready again; cores that were to come back may have.
    pub(super) fn missed_events(&self) {
        let mut state = self.state.lock();
        state.has_answered = false;
        state.restarts = [None; CHANNELS];
    }

    /// Ends the generation where cores have not come back in time.
    pub(super) fn look_at_clock(&self, now: Duration) {
        let mut state = self.state.lock();
        let late = state.restarts.iter().position(|limit| limit.is_some_and(|limit| limit <= now));
        let Some(late) = late else { return };
        let seconds = RESTART_LIMIT.as_secs();
        let reason = format!("the cores of channel {late} failed and did not come back within {seconds} s");
        state.restarts = [None; CHANNELS];
        state.needs_reopening = true;
        self.end_generation(&mut state, &reason);
        state.down = Some(reason);
    }

    fn end_generation(&self, state: &mut State, reason: &str) {
        state.generation += 1;
        state.has_answered = false;
        reason.clone_into(&mut state.ended);
        for slot in &mut state.channels {
            if let Some(channel) = std::mem::take(slot).upgrade() {
                channel.lose_with(self.lost(reason));
            }
        }
    }

    fn lost(&self, reason: &str) -> RuntimeError {
        RuntimeError::DeviceLost { id: self.device, reason: reason.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn entered(health: &Health, dbc_id: u32) -> Arc<Channel> {
        let channel = Channel::new(4, dbc_id);
        health.enter(&channel, health.generation());
        channel
    }

    fn channel_event(dbc_id: u32, state: DbcState) -> EventKind {
        EventKind::Channel { dbc_id, state }
    }

    #[test]
    fn a_reset_ends_everything_once() {
        let health = Health::new(4);
        let (first, second) = (entered(&health, 0), entered(&health, 15));
        assert_eq!(health.lose(0, "it was reset").code(), "device.lost");
        assert_eq!(health.lose(0, "another reason").to_string(), "device 4 is lost: it was reset");
        assert!(health.needs_reopening());
        assert_eq!(health.generation(), 1);
        assert_eq!(health.check(0).unwrap_err().code(), "device.lost");
        for channel in [first, second] {
            assert_eq!(channel.lost().unwrap().to_string(), "device 4 is lost: it was reset");
            assert_eq!(channel.ended.rung(), 1);
        }
        // Of an activation that was just under way.
        let late = Channel::new(4, 3);
        health.enter(&late, 0);
        assert!(late.lost().is_some());
    }

    #[test]
    fn events_say_whether_the_card_is_there() {
        let health = Health::new(0);
        health.event(EventKind::Offline, NOW);
        assert!(health.down().is_some() && !health.needs_reopening());
        health.event(EventKind::Online, NOW);
        assert_eq!(health.down(), None);
        health.event(EventKind::Removed, NOW);
        assert!(health.needs_reopening());
        health.answered();
        assert_eq!((health.down(), health.generation()), (None, 2));
    }

    #[test]
    fn a_restart_costs_one_channel() {
        let health = Health::new(0);
        let (hit, other) = (entered(&health, 3), entered(&health, 4));
        health.event(channel_event(3, DbcState::BeforeShutdown), NOW);
        assert!(hit.is_lost_alone() && other.lost().is_none());
        health.event(channel_event(3, DbcState::AfterPowerUp), NOW);
        health.look_at_clock(NOW + Duration::from_hours(1));
        assert_eq!((health.generation(), health.down()), (0, None));
        health.event(channel_event(99, DbcState::BeforeShutdown), NOW);
        health.look_at_clock(NOW + Duration::from_hours(1));
        assert_eq!(health.generation(), 0);
    }

    #[test]
    fn lost_events_cost_nothing_and_prove_nothing() {
        let health = Health::new(0);
        let other = entered(&health, 4);
        health.event(channel_event(3, DbcState::BeforeShutdown), NOW);
        health.answered();
        health.missed_events();
        assert!(!health.is_ready());
        health.look_at_clock(NOW + Duration::from_hours(1));
        assert_eq!((health.generation(), other.lost().is_none()), (0, true));
    }

    #[test]
    fn cores_that_do_not_come_back_cost_the_card() {
        let health = Health::new(0);
        let (hit, other) = (entered(&health, 3), entered(&health, 4));
        health.event(channel_event(3, DbcState::BeforeShutdown), NOW);
        health.event(channel_event(3, DbcState::BeforePowerUp), NOW);
        health.look_at_clock(RESTART_LIMIT);
        assert!(other.lost().is_none());
        health.look_at_clock(NOW + RESTART_LIMIT);
        assert_eq!(other.lost().unwrap().code(), "device.lost");
        assert_eq!(hit.lost().unwrap().code(), "device.channel_lost");
        assert!(health.needs_reopening());
        assert!(health.down().unwrap().contains("channel 3"));
    }
}
