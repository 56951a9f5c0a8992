//! Transactions between driver and firmware, without their headers.

use std::sync::Arc;

use qaic_kmd::protocol::NncStatus;
use qaic_kmd::protocol::transaction::{ChannelReply, Features};

/// A transaction to the firmware.
#[derive(Clone, Debug)]
pub(crate) enum Transaction {
    /// A command: what comes behind the transaction's header, to its end.
    Passthrough(Vec<u8>),
    /// Data that the firmware fetched for the command with this tag in the same message.
    Dma { tag: u32, data: Arc<[u8]> },
    /// A channel for the activation in the same message.
    Activate { queue_size: u32, options: u32 },
    /// Asks for the firmware's abilities.
    Status,
}

/// A transaction from the firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransactionReply {
    /// The reply of a command: what comes behind the transaction's header.
    Passthrough(Vec<u8>),
    /// To [`Transaction::Activate`]; a status that is not 0 refuses it.
    Activate(ChannelReply),
    /// To a command that gives up an activation with its channel; a status that is not 0 refuses it.
    Deactivate { status: u32, dbc_id: u32 },
    /// To [`Transaction::Status`].
    Status(Features),
}

impl TransactionReply {
    pub(super) fn refused_channel(status: NncStatus) -> Self {
        Self::Activate(ChannelReply { status: word_of(status), ..ChannelReply::default() })
    }
}

/// A status in a transaction's word.
pub(super) fn word_of(status: NncStatus) -> u32 {
    status.0.cast_unsigned()
}
