//! Transactions, the parts of a control message, in the format for users of the driver.

use bytemuck::bytes_of;

use crate::wire::{Field, Layout, Volatile, wire};

/// Declares the types of transactions, each with its number, its name in transcripts, and the fields of its body.
macro_rules! kinds {
    ($($(#[$meta:meta])* $kind:ident = $number:literal $name:literal $fields:expr;)*) => {
        /// Types of transactions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum TransactionKind {
            $($(#[$meta])* $kind = $number,)*
        }

        impl TransactionKind {
            /// Returns the type with this number; `None` if it is unknown.
            pub fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$kind),)*
                    _ => None,
                }
            }

            /// Name and fields in transcripts.
            pub(crate) fn entry(self) -> (&'static str, &'static [Field]) {
                match self {
                    $(Self::$kind => ($name, $fields),)*
                }
            }
        }
    };
}

kinds! {
    /// A command to the firmware.
    PassthroughFromUser = 1 "passthrough_from_user" &[];
    /// A reply, defined only in the headers; no kernel uses it.
    PassthroughToUser = 2 "passthrough_to_user" &[];
    /// A reply of the firmware.
    PassthroughFromDevice = 3 "passthrough_from_device" &[];
    /// Memory that the card fetches: [`Dma`].
    DmaFromUser = 5 "dma_from_user" Dma::FIELDS;
    /// A channel, for an activation: [`SetUpChannel`].
    ActivateFromUser = 7 "activate_from_user" SetUpChannel::FIELDS;
    /// The channel of an activation: [`ChannelReply`].
    ActivateFromDevice = 8 "activate_from_device" ChannelReply::FIELDS;
    /// Releases a channel: [`TearDownChannel`].
    DeactivateFromUser = 10 "deactivate_from_user" TearDownChannel::FIELDS;
    /// Queries the versions and features of the firmware.
    StatusFromUser = 12 "status_from_user" &[];
    /// The versions and features: [`Features`].
    StatusFromDevice = 14 "status_from_device" Features::FIELDS;
}

impl TransactionKind {
    /// Returns a transaction of this type: its header and `body`.
    pub fn transaction(self, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(size_of::<Header>() + body.len()).unwrap_or(u32::MAX);
        [bytes_of(&Header { kind: self as u32, len }), body].concat()
    }
}

wire! {
    /// Type and length of a transaction.
    pub struct Header: 8 {
        kind: u32,
        /// Bytes of the transaction, including this header.
        len: u32,
    }

    /// Memory that the card fetches for the command with the same tag.
    pub struct Dma: 24 {
        tag: u32,
        /// Padding that the kernel does not read; the open runtime uses it as a counter.
        pad: u32,
        addr: Volatile<u64>,
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
        pad: u32,
    }

    /// Releases a channel, together with the deactivation in the same message.
    pub struct TearDownChannel: 8 {
        dbc_id: u32,
        pad: u32,
    }

    /// The kernel's part of an activation.
    pub struct ChannelReply: 16 {
        /// Status; if it is not 0, there is no channel.
        status: u32,
        dbc_id: u32,
        options: u64,
    }

    /// Versions and features of the firmware.
    pub struct Features: 16 {
        /// Version of the transactions.
        major: u16,
        minor: u16,
        /// Status; if it is not 0, the query was refused.
        status: u32,
        /// Feature bits, the first of which requires checksums.
        status_flags: u64,
    }
}
