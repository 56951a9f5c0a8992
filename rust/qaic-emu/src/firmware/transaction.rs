//! Transactions between driver and firmware, without their headers.

use std::sync::Arc;

use qaic_kmd::protocol::NncStatus;
use qaic_kmd::protocol::transaction::{ChannelReply, Features};

/// A transaction to the firmware.
#[derive(Clone, Debug)]
pub enum Transaction {
    /// A command: what comes behind the transaction's header, to its end.
    Passthrough(Vec<u8>),
    /// Data that the firmware fetched for the command with this tag in the same message.
    Dma {
        /// The tag that the command names.
        tag: u32,
        /// The data.
        data: Arc<[u8]>,
    },
    /// A channel for the activation in the same message.
    Activate {
        /// Number of elements of the ring.
        queue_size: u32,
        /// Options that the firmware repeats in its reply.
        options: u32,
    },
    /// Asks for the firmware's abilities.
    Status,
}

/// A transaction from the firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionReply {
    /// The reply of a command: what comes behind the transaction's header.
    Passthrough(Vec<u8>),
    /// To [`Transaction::Activate`]; a status that is not 0 refuses it.
    Activate(ChannelReply),
    /// To a command that gives up an activation with its channel; a status that is not 0 refuses it.
    Deactivate {
        /// 0 if the channel is free.
        status: u32,
        /// Number of the channel.
        dbc_id: u32,
    },
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
