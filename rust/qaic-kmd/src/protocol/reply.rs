//! Replies of the firmware to commands.

use std::mem::offset_of;

use super::card_status::{CardStatus, PerformanceInfo, ResourceInfo};
use super::command::{
    Activate, Deactivate, GetPerformanceInfo, GetResourceInfo, GetStatus, LoadConstantsEx,
    LoadConstantsPayload, LoadElf, UnloadConstants, UnloadElf,
};
use super::parse::{ReplyError, Transaction, find};
use super::{NncStatus, Numbered};
use crate::abi::DBC_COUNT;
use crate::manage::ManageBuffer;
use crate::wire::{self, Reserved, UnalignedU32, wire};

/// Reply to a command. Replies are not trusted: length and number are checked before anything is read. A reply may be
/// longer than its structure, or shorter if it contains the used fields; the other fields are then zero.
pub trait Reply: Numbered {
    /// Name of the reply for messages.
    const WHAT: &'static str;
    /// Required number of transactions in the message, if only one number is valid.
    const COUNT: Option<u32> = None;

    /// Number of bytes up to the last used field.
    const LEAST_BYTES: usize;

    /// Status of the firmware; unless it is success, the other fields have no meaning.
    fn status(&self) -> NncStatus;

    /// Creates a reply that contains only this status.
    fn refused(status: NncStatus) -> Self;

    /// Decodes a reply, starting at its number.
    fn decode(command: &[u8]) -> Result<Self, ReplyError> {
        let few = |least| ReplyError::too_few(Self::WHAT, command, least);
        let number = command.first_chunk().copied().map(u32::from_le_bytes).ok_or_else(|| few(4))?;
        if number != Self::NUMBER {
            return Err(ReplyError::new(
                Self::WHAT,
                format!("command {number}"),
                format!("command {}", Self::NUMBER),
            ));
        }
        wire::read_at_least(command, Self::LEAST_BYTES).ok_or_else(|| few(Self::LEAST_BYTES))
    }

    /// Decodes the reply that replaced a message.
    fn of(message: &ManageBuffer<'_>) -> Result<Self, ReplyError> {
        match Self::COUNT {
            Some(count) if message.count() != count => Err(ReplyError::new(
                Self::WHAT,
                format!("{} transactions", message.count()),
                count.to_string(),
            )),
            _ => Self::decode(passthrough(message.bytes())?),
        }
    }
}

/// Returns the first reply to a command among the transactions of a reply.
fn passthrough(bytes: &[u8]) -> Result<&[u8], ReplyError> {
    find(bytes, "reply to a command", |transaction| match transaction {
        Transaction::Passthrough(command) => Some(command),
        _ => None,
    })
}

macro_rules! replies {
    ($($name:ident: $what:literal up to $last:ident: $type:ty $(, $count:literal transaction)?;)*) => {
        $(impl Reply for $name {
            const WHAT: &'static str = concat!("reply to ", $what);
            $(const COUNT: Option<u32> = Some($count);)?
            const LEAST_BYTES: usize = offset_of!(Self, $last) + size_of::<$type>();

            fn status(&self) -> NncStatus {
                self.status
            }

            fn refused(status: NncStatus) -> Self {
                Self { status, ..Self::default() }
            }
        })*
    };
}

replies! {
    LoadConstantsReply: "load constants" up to status: NncStatus, 1 transaction;
    LoadElfReply: "load ELF" up to status: NncStatus;
    UnloadConstantsReply: "unload constants" up to status: NncStatus;
    UnloadElfReply: "unload ELF" up to status: NncStatus;
    ActivateReply: "activate" up to mcid_base: u64;
    DeactivateReply: "deactivate" up to status: NncStatus;
    CardStatus: "status" up to nnc_minor: u16;
    ResourceInfoReply: "resource info" up to status: NncStatus;
    PerformanceInfoReply: "performance info" up to performance: PerformanceInfo;
}

/// A command to the firmware.
pub trait Command: Numbered {
    /// Type of the reply.
    type Reply: Reply;
}

macro_rules! commands {
    ($($command:ident: $reply:ident;)*) => {
        $(impl Command for $command {
            type Reply = $reply;
        })*
    };
}

commands! {
    LoadElf: LoadElfReply;
    UnloadConstants: UnloadConstantsReply;
    UnloadElf: UnloadElfReply;
    Activate: ActivateReply;
    Deactivate: DeactivateReply;
    GetStatus: CardStatus;
    LoadConstantsEx: LoadConstantsReply;
    LoadConstantsPayload: LoadConstantsReply;
    GetResourceInfo: ResourceInfoReply;
    GetPerformanceInfo: PerformanceInfoReply;
}

macro_rules! status_only {
    ($($(#[$meta:meta])* $name:ident = $number:literal $label:literal;)*) => {
        $(wire! {
            $(#[$meta])*
            pub struct $name: 8 = $number $label {
                status: NncStatus,
            }
        })*
    };
}

status_only! {
    /// Reply to the command that frees constants.
    UnloadConstantsReply = 6 "unload_constants_reply";
    /// Reply to the command that frees a network image.
    UnloadElfReply = 8 "unload_elf_reply";
    /// Reply to the command that deactivates. The kernel does not pass on its own part of the reply.
    DeactivateReply = 12 "deactivate_reply";
}

wire! {
    /// Reply to commands that load constants.
    pub struct LoadConstantsReply: 16 = 2 "load_constants_reply" {
        /// Id of the constants; 0 if loading failed.
        constants_id: u32,
        status: NncStatus,
        reserved: Reserved<4>,
    }

    /// Reply to the command that loads a network image.
    pub struct LoadElfReply: 16 = 4 "load_elf_reply" {
        elf_id: u32,
        status: NncStatus,
        reserved: Reserved<4>,
    }

    /// Reply to the command that activates. [`Reply::of`] checks only the command's reply;
    /// [`ActivateReply::with_channel`] also checks the channel.
    pub struct ActivateReply: 88 = 10 "activate_reply" {
        status: NncStatus,
        activation_id: u32,
        /// Channel, which is the kernel's DBC.
        virtual_channel_id: u32,
        /// Address of the activation's memory in the device.
        ddr_base: u64,
        /// Address of the activation's memory of variable size.
        dynamic_ddr_base: u64,
        /// Address of the activation's multicast windows.
        mcid_base: u64,
        /// Address of the multicast windows for DMA commands.
        mcid_base_dma_cmd: u64,
        dma_type: u32,
        /// Physical channels.
        pc_mask: u32,
        /// Address that the cores poll for commands.
        cmd_nsp_base_polling_addr: u64,
        /// Number of bytes at that address.
        cmd_nsp_polling_info_size: u32,
        /// Value that the cores poll for.
        cmd_nsp_polling_data: u32,
        cmd_doorbell_addr: u64,
        /// Code of the doorbell's size: 0 is 32 bits, 1 is 16 bits, 2 is 8 bits, 3 means no doorbell.
        cmd_doorbell_length: u8,
        /// 1 if there is a doorbell.
        cmd_doorbell_valid: u8,
        nsp_mask: UnalignedU32,
        reserved: Reserved<2>,
    }

    /// Reply to the query for resources.
    pub struct ResourceInfoReply: 56 = 33 "resource_info_reply" {
        /// Resource group; -1 for the device.
        res_grp_id: i32,
        resources: ResourceInfo,
        status: NncStatus,
        reserved: Reserved<4>,
    }

    /// Reply to the query for frequencies.
    pub struct PerformanceInfoReply: 64 = 35 "performance_info_reply" {
        status: NncStatus,
        performance: PerformanceInfo,
    }
}

impl ActivateReply {
    /// Decodes the answer to [`activate`](super::message::activate). If its status is not success, only the status is
    /// valid. Otherwise the channel exists, and is the same as in the kernel's part.
    pub fn with_channel(message: &ManageBuffer<'_>) -> Result<Self, ReplyError> {
        let reply = Self::of(message)?;
        if !reply.status.is_success() {
            return Ok(reply);
        }
        let error = |found: String, expected: &str| Err(ReplyError::new(Self::WHAT, found, expected));
        if reply.virtual_channel_id >= DBC_COUNT {
            return error(format!("virtual channel {}", reply.virtual_channel_id), "0 to 15");
        }
        if message.count() != 2 {
            return error(format!("{} transactions", message.count()), "2");
        }
        let channel = find(message.bytes(), "channel of an activation", |transaction| match transaction {
            Transaction::Channel(channel) => Some(channel),
            _ => None,
        })?;
        if channel.status != 0 {
            return error(format!("status {} of the channel", channel.status), "0, as in the command");
        }
        if channel.dbc_id != reply.virtual_channel_id {
            return error(
                format!("channel {} and virtual channel {}", channel.dbc_id, reply.virtual_channel_id),
                "the same",
            );
        }
        Ok(reply)
    }
}
