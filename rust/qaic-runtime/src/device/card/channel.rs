//! The channel of an activation, and its loss.

use std::sync::{Arc, OnceLock};

use qaic_kmd::EventCounter;

use crate::error::{CardError, ErrorDetail, RuntimeError};

/// The channel of an activation.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) device: u32,
    pub(super) dbc_id: u32,
    /// Counts the ended inferences of the activation and the loss of the channel. After each of them, a full ring may
    /// have room.
    pub(super) ended: EventCounter,
    lost: OnceLock<RuntimeError>,
}

impl Channel {
    pub(super) fn new(device: u32, dbc_id: u32) -> Arc<Self> {
        Arc::new(Self { device, dbc_id, ended: EventCounter::default(), lost: OnceLock::new() })
    }

    /// Error that describes the loss, if the channel is lost.
    pub(super) fn lost(&self) -> Option<&RuntimeError> {
        self.lost.get()
    }

    /// Returns true if the channel is lost but the card is not.
    pub(super) fn is_lost_alone(&self) -> bool {
        matches!(
            self.lost().map(RuntimeError::detail),
            Some(ErrorDetail::Card(CardError::ChannelLost { .. }))
        )
    }

    /// Marks the channel as lost, and returns the error. The first reason counts.
    pub(super) fn mark_lost(&self, reason: &str) -> RuntimeError {
        let (device, channel) = (self.device, self.dbc_id);
        self.mark_lost_with(CardError::ChannelLost { device, channel, reason: reason.to_owned() }.into())
    }

    /// Marks the channel as lost as [`Self::mark_lost`] does, together with its card.
    pub(super) fn mark_lost_with(&self, error: RuntimeError) -> RuntimeError {
        let error = self.lost.get_or_init(|| error).clone();
        self.ended.notify();
        error
    }
}
