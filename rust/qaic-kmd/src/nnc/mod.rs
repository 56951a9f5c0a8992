//! The control protocol: what the host tells a card's firmware, and what that answers (device-kmd §2.4-2.7).
//!
//! [`command`] has the bytes of each command, [`message`] whole messages as they are sent, [`reply`] reads what comes back.
//! A command travels in a transaction of type "passthrough", which the kernel copies as it is; some commands go with a
//! transaction that the kernel acts on: data that the card fetches, or the channel of an activation.

pub mod command;
mod device_status;
pub mod message;
pub mod reply;
mod status;

pub use device_status::{
    CardStatus, CoreVersion, PerformanceInfo, PerformanceInfoReply, ResourceInfo, ResourceInfoReply,
};
pub use status::NncStatus;

/// Major version of the commands (device-kmd §1.7): a card of another one is not driven.
pub const COMMAND_PROTOCOL_MAJOR: u16 = 17;
/// Version of the metadata that a card must take (device-kmd §1.7).
pub const METADATA_VERSION: (u16, u16) = (1, 0);

/// Types of the transactions that users send and see (device-kmd §2.4).
pub mod transaction {
    /// A command to the firmware.
    pub const PASSTHROUGH_FROM_USER: u32 = 1;
    /// A reply, in the headers only; no kernel uses it (device-kmd T6).
    pub const PASSTHROUGH_TO_USER: u32 = 2;
    /// A reply of the firmware.
    pub const PASSTHROUGH_FROM_DEVICE: u32 = 3;
    /// Memory that the card fetches.
    pub const DMA_FROM_USER: u32 = 5;
    /// A channel, for an activation.
    pub const ACTIVATE_FROM_USER: u32 = 7;
    /// The channel of an activation.
    pub const ACTIVATE_FROM_DEVICE: u32 = 8;
    /// Gives a channel back.
    pub const DEACTIVATE_FROM_USER: u32 = 10;
    /// Asks for the versions and features of the firmware.
    pub const STATUS_FROM_USER: u32 = 12;
    /// The versions and features.
    pub const STATUS_FROM_DEVICE: u32 = 14;
}

/// Numbers of the commands and of their replies (device-kmd §2.5).
pub mod id {
    /// Constants with their data in one message, an older form.
    pub const LOAD_CONSTANTS: u32 = 1;
    /// Reply to all three commands that load constants.
    pub const LOAD_CONSTANTS_REPLY: u32 = 2;
    /// A network image.
    pub const LOAD_ELF: u32 = 3;
    /// Reply.
    pub const LOAD_ELF_REPLY: u32 = 4;
    /// Frees constants.
    pub const UNLOAD_CONSTANTS: u32 = 5;
    /// Reply.
    pub const UNLOAD_CONSTANTS_REPLY: u32 = 6;
    /// Frees a network image.
    pub const UNLOAD_ELF: u32 = 7;
    /// Reply.
    pub const UNLOAD_ELF_REPLY: u32 = 8;
    /// Gives images cores and a channel.
    pub const ACTIVATE: u32 = 9;
    /// Reply.
    pub const ACTIVATE_REPLY: u32 = 10;
    /// Gives cores and the channel back.
    pub const DEACTIVATE: u32 = 11;
    /// Reply.
    pub const DEACTIVATE_REPLY: u32 = 12;
    /// Asks for everything about the card.
    pub const STATUS: u32 = 13;
    /// Reply.
    pub const STATUS_REPLY: u32 = 14;
    /// Announces constants.
    pub const LOAD_CONSTANTS_EX: u32 = 15;
    /// A part of announced constants.
    pub const LOAD_CONSTANTS_PAYLOAD: u32 = 16;
    /// Sets resources aside.
    pub const CREATE_RESOURCE_GROUP: u32 = 28;
    /// Reply.
    pub const CREATE_RESOURCE_GROUP_REPLY: u32 = 29;
    /// Gives them back.
    pub const RELEASE_RESOURCE_GROUP: u32 = 30;
    /// Reply.
    pub const RELEASE_RESOURCE_GROUP_REPLY: u32 = 31;
    /// Asks what is free.
    pub const RESOURCE_INFO: u32 = 32;
    /// Reply.
    pub const RESOURCE_INFO_REPLY: u32 = 33;
    /// Asks for frequencies.
    pub const PERFORMANCE_INFO: u32 = 34;
    /// Reply.
    pub const PERFORMANCE_INFO_REPLY: u32 = 35;
    /// Changes the states of activations.
    pub const ACTIVATION_STATE: u32 = 36;
    /// Reply.
    pub const ACTIVATION_STATE_REPLY: u32 = 37;
}
