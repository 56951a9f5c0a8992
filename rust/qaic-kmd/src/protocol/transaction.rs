//! Transactions, the parts of a control message, as users send and see them.

use crate::wire::{Descriptor, HostAddress, wire};

/// A command to the firmware.
pub const PASSTHROUGH_FROM_USER: u32 = 1;
/// A reply, in the headers only; no kernel uses it.
pub(crate) const PASSTHROUGH_TO_USER: u32 = 2;
/// A reply of the firmware.
pub const PASSTHROUGH_FROM_DEVICE: u32 = 3;
/// Memory that the card fetches: [`Dma`].
pub const DMA_FROM_USER: u32 = 5;
/// A channel, for an activation: [`SetUpChannel`].
pub const ACTIVATE_FROM_USER: u32 = 7;
/// The channel of an activation: [`ChannelReply`].
pub const ACTIVATE_FROM_DEVICE: u32 = 8;
/// Gives a channel back: [`TearDownChannel`].
pub const DEACTIVATE_FROM_USER: u32 = 10;
/// Asks for the versions and features of the firmware.
pub const STATUS_FROM_USER: u32 = 12;
/// The versions and features: [`Features`].
pub const STATUS_FROM_DEVICE: u32 = 14;

/// Bytes of a transaction's type and length, with which it begins.
pub const HEADER_BYTES: usize = 8;

wire! {
    /// Type and length of a transaction.
    pub struct Header: 8 {
        /// Its type.
        kind: u32,
        /// Bytes of all of it, with this header.
        len: u32,
    }

    /// Memory that the card fetches for the command with the same tag.
    pub struct Dma: 24 {
        /// Tag.
        tag: u32,
        /// Padding that the kernel does not read; the open runtime counts in it.
        pad: u32,
        /// Address of the memory.
        addr: HostAddress,
        /// Bytes of it.
        size: u64,
    }

    /// A channel for the activation in the same message.
    pub struct SetUpChannel: 16 {
        /// Elements of its ring.
        queue_size: u32,
        /// A descriptor that no kernel looks at.
        eventfd: Descriptor,
        /// Options, which no kernel defines.
        options: u32,
        /// Zero.
        pad: u32,
    }

    /// Gives a channel back, with the deactivation in the same message.
    pub struct TearDownChannel: 8 {
        /// The channel.
        dbc_id: u32,
        /// Zero.
        pad: u32,
    }

    /// The kernel's part of an activation.
    pub struct ChannelReply: 16 {
        /// Not 0: there is no channel.
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
        /// Not 0: refused.
        status: u32,
        /// Bits, the first of which asks for checksums.
        status_flags: u64,
    }
}
