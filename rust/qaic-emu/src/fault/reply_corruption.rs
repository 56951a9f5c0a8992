//! Corruption of replies from the firmware.

use std::mem::offset_of;

use qaic_kmd::protocol::{ActivateReply, Numbered};

use super::Action;
use crate::firmware::TransactionReply;

/// A number that belongs to no reply.
const NO_REPLY: u32 = 50;
/// Size of a reply's number in bytes.
const NUMBER_BYTES: usize = 4;

/// Corrupts the replies of a firmware that has executed its commands.
pub fn corrupt(replies: &mut [TransactionReply], action: Option<Action>) {
    for reply in replies {
        match (reply, action) {
            (TransactionReply::Passthrough(bytes), Some(Action::WrongType)) => put(bytes, 0, NO_REPLY),
            (TransactionReply::Passthrough(bytes), Some(Action::Truncated)) => bytes.truncate(NUMBER_BYTES),
            (TransactionReply::Passthrough(bytes), Some(Action::ReplyChannel(dbc_id)))
                if bytes.starts_with(&ActivateReply::NUMBER.to_le_bytes()) =>
            {
                put(bytes, offset_of!(ActivateReply, virtual_channel_id), dbc_id);
            }
            (TransactionReply::Activate(channel), Some(Action::ActivatedChannel(other))) => {
                channel.dbc_id = other;
            }
            _ => {}
        }
    }
}

fn put(bytes: &mut [u8], offset: usize, value: u32) {
    if let Some(place) = bytes.get_mut(offset..offset + NUMBER_BYTES) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}
