//! Transactions, the parts of a control message, in the format for users of the driver.

use crate::wire::{Volatile, wire};

/// A command to the firmware.
pub const PASSTHROUGH_FROM_USER: u32 = 1;
/// A reply, defined only in the headers; no kernel uses it.
pub(crate) const PASSTHROUGH_TO_USER: u32 = 2;
/// A reply of the firmware.
pub const PASSTHROUGH_FROM_DEVICE: u32 = 3;
/// Memory that the card fetches: [`Dma`].
pub const DMA_FROM_USER: u32 = 5;
/// A channel, for an activation: [`SetUpChannel`].
pub const ACTIVATE_FROM_USER: u32 = 7;
/// The channel of an activation: [`ChannelReply`].
pub const ACTIVATE_FROM_DEVICE: u32 = 8;
/// Releases a channel: [`TearDownChannel`].
pub const DEACTIVATE_FROM_USER: u32 = 10;
/// Queries the versions and features of the firmware.
pub const STATUS_FROM_USER: u32 = 12;
/// The versions and features: [`Features`].
pub const STATUS_FROM_DEVICE: u32 = 14;

wire! {
    /// Type and length of a transaction.
    pub struct Header: 8 {
        /// Type of the transaction.
        kind: u32,
        /// Bytes of the transaction, including this header.
        len: u32,
    }

    /// Memory that the card fetches for the command with the same tag.
    pub struct Dma: 24 {
        /// Tag.
        tag: u32,
        /// Padding that the kernel does not read; the open runtime uses it as a counter.
        pad: u32,
        /// Address of the memory.
        addr: Volatile<u64>,
        /// Size of the memory in bytes.
        size: u64,
    }

    /// A channel for the activation in the same message.
    pub struct SetUpChannel: 16 {
        /// Number of elements of the channel's ring.
        queue_size: u32,
        /// A descriptor that no kernel reads.
        eventfd: Volatile<i32>,
        /// Options, which no kernel defines.
        options: u32,
        /// Zero.
        pad: u32,
    }

    /// Releases a channel, together with the deactivation in the same message.
    pub struct TearDownChannel: 8 {
        /// The channel.
        dbc_id: u32,
        /// Zero.
        pad: u32,
    }

    /// The kernel's part of an activation.
    pub struct ChannelReply: 16 {
        /// Status; if it is not 0, there is no channel.
        status: u32,
        /// The channel.
        dbc_id: u32,
        /// Options.
        options: u64,
    }

    /// Versions and features of the firmware.
    pub struct Features: 16 {
        /// Version of the transactions.
        major: u16,
        /// Version of the transactions.
        minor: u16,
        /// Status; if it is not 0, the query was refused.
        status: u32,
        /// Feature bits, the first of which requires checksums.
        status_flags: u64,
    }
}
