//! Parses replies of the firmware. Replies are not trusted: every length is checked before anything is read.

use std::mem::offset_of;

use super::transaction::{ChannelReply, Features, Header, TransactionKind};
use crate::manage::ManageBuffer;
use crate::wire::{self, Layout};

const FEATURES: &str = "transaction with the firmware's features";

/// A reply that violates the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: found {found}, expected {expected}")]
pub struct ReplyError {
    /// The part of the reply.
    pub what: &'static str,
    /// The value found.
    pub found: String,
    /// The value that the protocol requires.
    pub expected: String,
}

impl ReplyError {
    pub(super) fn new(what: &'static str, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { what, found: found.into(), expected: expected.into() }
    }

    pub(super) fn too_few(what: &'static str, bytes: &[u8], least: usize) -> Self {
        Self::new(what, format!("{} bytes", bytes.len()), format!("at least {least}"))
    }
}

/// A transaction of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transaction<'a> {
    /// Reply to a command, starting at its number.
    Passthrough(&'a [u8]),
    /// The channel of an activation.
    Channel(ChannelReply),
    /// Versions and features of the firmware.
    Features(Features),
    /// An unknown transaction, which is ignored.
    Other {
        /// Type of the transaction.
        kind: u32,
        /// The bytes after the header.
        body: &'a [u8],
    },
}

/// Iterates over the transactions of a reply, in order; ends after an error.
///
/// The lengths delimit the transactions. The count is not used, because it includes transactions that the kernel does
/// not pass on.
pub fn transactions(bytes: &[u8]) -> impl Iterator<Item = Result<Transaction<'_>, ReplyError>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let whole = split(rest);
        rest = whole.as_ref().map_or(&[], |(.., behind)| behind);
        let found = whole.and_then(|(kind, body, _)| transaction(kind, body));
        if found.is_err() {
            rest = &[];
        }
        Some(found)
    })
}

/// Returns type and body of the first transaction, and the remaining bytes.
pub fn split(rest: &[u8]) -> Result<(u32, &[u8], &[u8]), ReplyError> {
    const WHAT: &str = "header of a transaction";
    let Some(Header { kind, len }) = wire::read(rest) else {
        return Err(ReplyError::new(WHAT, format!("{} bytes", rest.len()), "8 bytes"));
    };
    let end = len as usize;
    let (Some(body), Some(behind)) = (rest.get(size_of::<Header>()..end), rest.get(end..)) else {
        let expected = format!("8 to {}, the rest of the reply", rest.len());
        return Err(ReplyError::new(WHAT, format!("length {len}"), expected));
    };
    Ok((kind, body, behind))
}

fn transaction(kind: u32, body: &[u8]) -> Result<Transaction<'_>, ReplyError> {
    Ok(match TransactionKind::of(kind) {
        Some(TransactionKind::PassthroughToUser | TransactionKind::PassthroughFromDevice) => {
            Transaction::Passthrough(body)
        }
        // The last field, which the kernel passes on, is unused.
        Some(TransactionKind::ActivateFromDevice) => {
            let least = offset_of!(ChannelReply, dbc_id) + size_of::<u32>();
            Transaction::Channel(read("transaction of an activation", body, least)?)
        }
        Some(TransactionKind::StatusFromDevice) => {
            Transaction::Features(read(FEATURES, body, size_of::<Features>())?)
        }
        _ => Transaction::Other { kind, body },
    })
}

fn read<T: Layout>(what: &'static str, body: &[u8], least: usize) -> Result<T, ReplyError> {
    wire::read_at_least(body, least).ok_or_else(|| ReplyError::too_few(what, body, least))
}

pub(super) fn find<'a, T>(
    bytes: &'a [u8],
    what: &'static str,
    wanted: impl Fn(Transaction<'a>) -> Option<T>,
) -> Result<T, ReplyError> {
    for transaction in transactions(bytes) {
        if let Some(found) = wanted(transaction?) {
            return Ok(found);
        }
    }
    Err(ReplyError::new(what, format!("none in {} bytes", bytes.len()), "one"))
}

/// Reads the answer to [`status_features`](super::message::status_features).
pub fn features(message: &ManageBuffer<'_>) -> Result<Features, ReplyError> {
    find(message.bytes(), FEATURES, |transaction| match transaction {
        Transaction::Features(features) => Some(features),
        _ => None,
    })
}
