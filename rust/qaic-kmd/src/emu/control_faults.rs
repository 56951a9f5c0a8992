//! Replies of the firmware that are spoilt on their way.

use super::faults::Action;
use super::firmware::wire::WireReply;

/// Number of the reply to an activation (device-kmd §2.5).
const ACTIVATED: u32 = 10;
/// A number that no reply has.
const NO_REPLY: u32 = 50;

/// Spoils the replies of a firmware that did what it was told.
pub(crate) fn spoil(replies: &mut [WireReply], action: Option<Action>) {
    for reply in replies {
        match (reply, action) {
            (WireReply::Passthrough(bytes), Some(Action::WrongType)) if bytes.len() >= 4 => {
                bytes[..4].copy_from_slice(&NO_REPLY.to_le_bytes());
            }
            (WireReply::Passthrough(bytes), Some(Action::Truncated)) => bytes.truncate(4),
            (WireReply::Passthrough(bytes), Some(Action::ReplyChannel(dbc_id)))
                if kind(bytes) == Some(ACTIVATED) && bytes.len() >= 16 =>
            {
                bytes[12..16].copy_from_slice(&dbc_id.to_le_bytes());
            }
            (WireReply::Activate { dbc_id, .. }, Some(Action::ActivatedChannel(other))) => *dbc_id = other,
            _ => {}
        }
    }
}

fn kind(command: &[u8]) -> Option<u32> {
    command.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
