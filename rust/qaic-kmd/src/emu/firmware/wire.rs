//! What driver and firmware exchange: transactions without their headers (device-kmd §2.4).

use std::sync::Arc;

/// A transaction to the firmware.
#[derive(Clone, Debug)]
pub(crate) enum Wire {
    /// A command: what comes behind the transaction's header, to its end.
    Passthrough(Vec<u8>),
    /// Data that the firmware fetched for the command with this tag in the same message.
    Dma { tag: u32, data: Arc<[u8]> },
    /// A channel for the activation in the same message.
    Activate { queue_size: u32, options: u32 },
    /// The channel goes.
    Deactivate { dbc_id: u32 },
    /// What the firmware can do.
    Status,
}

/// A transaction from the firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WireReply {
    /// The reply of a command: what comes behind the transaction's header.
    Passthrough(Vec<u8>),
    /// To [`Wire::Activate`]; a status that is not 0 refuses it.
    Activate { status: u32, dbc_id: u32, options: u64 },
    /// To [`Wire::Deactivate`]; a status that is not 0 refuses it.
    Deactivate { status: u32, dbc_id: u32 },
    /// To [`Wire::Status`].
    Status { major: u16, minor: u16, status: u32, flags: u64 },
}
