//! Transactions between driver and firmware, without their headers.

use std::sync::Arc;

use qaic_kmd::protocol::{ChannelReply, Features, NncStatus};

/// A transaction to the firmware.
#[derive(Clone, Debug)]
pub enum Transaction {
    /// A command: the data after the transaction's header.
    Passthrough(Vec<u8>),
    /// Data that the firmware fetched for the command with this tag in the same message.
    Dma {
        /// Tag in the command.
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
    /// Query of the firmware's features.
    Status,
}

/// A transaction from the firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionReply {
    /// Reply to a command: the data after the transaction's header.
    Passthrough(Vec<u8>),
    /// Reply to [`Transaction::Activate`]; a status other than 0 refuses it.
    Activate(ChannelReply),
    /// Reply to a command that releases an activation with its channel; a status other than 0 refuses it.
    Deactivate {
        /// Status; 0 if the channel is free.
        status: u32,
        /// Number of the channel.
        dbc_id: u32,
    },
    /// Reply to [`Transaction::Status`].
    Status(Features),
}

impl TransactionReply {
    pub(super) fn refused_channel(status: NncStatus) -> Self {
        Self::Activate(ChannelReply { status: word_of(status), ..ChannelReply::default() })
    }
}

/// Encodes a status in a transaction's word.
pub(super) fn word_of(status: NncStatus) -> u32 {
    status.0.cast_unsigned()
}
