//! What the firmware answers (device-kmd §2.4-2.6). It is not trusted: every length is checked before anything is read.
//!
//! Replies may be longer than their table says, and are read by the least size that they must have.

use super::{NncStatus, id, transaction};
use crate::abi::DBC_COUNT;
use crate::calls::ManageBuffer;

/// A reply that is not what the protocol allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: found {found}, expected {expected}")]
pub struct ReplyError {
    /// The part of the reply.
    pub what: &'static str,
    /// What is there.
    pub found: String,
    /// What the protocol has there.
    pub expected: String,
}

impl ReplyError {
    fn new(what: &'static str, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { what, found: found.into(), expected: expected.into() }
    }
}

/// A transaction of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transaction<'a> {
    /// Reply to a command, from its number on.
    Passthrough(&'a [u8]),
    /// The channel of an activation.
    Channel(ChannelReply),
    /// Versions and features of the firmware.
    Features(Features),
    /// One that says nothing to us.
    Other {
        /// Its type.
        kind: u32,
        /// What follows the header.
        body: &'a [u8],
    },
}

/// The kernel's part of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelReply {
    /// Not 0: there is no channel.
    pub status: u32,
    /// The channel.
    pub dbc_id: u32,
    /// Options.
    pub options: u64,
}

/// Versions and features of the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Version of the transactions.
    pub major: u16,
    /// Version of the transactions.
    pub minor: u16,
    /// Not 0: refused.
    pub status: u32,
    /// Bits of device-kmd §2.4, the first of which asks for checksums.
    pub flags: u64,
}

/// Transactions of a reply, in order; after an error come no more.
///
/// They are taken by length and never by count, because the kernel keeps some to itself and counts them.
pub fn transactions(bytes: &[u8]) -> impl Iterator<Item = Result<Transaction<'_>, ReplyError>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        Some(split(rest).and_then(|(kind, body, behind)| {
            rest = behind;
            transaction(kind, body)
        }))
        .inspect(|found| {
            if found.is_err() {
                rest = &[];
            }
        })
    })
}

fn split(rest: &[u8]) -> Result<(u32, &[u8], &[u8]), ReplyError> {
    const WHAT: &str = "header of a transaction";
    let Some((header, _)) = rest.split_first_chunk::<8>() else {
        return Err(ReplyError::new(WHAT, format!("{} bytes", rest.len()), "8 bytes"));
    };
    let header = Fields(header);
    let (kind, len) = (header.u32(0), header.u32(4) as usize);
    let (Some(body), Some(behind)) = (rest.get(8..len), rest.get(len..)) else {
        let expected = format!("8 to {}, which is what is left of the reply", rest.len());
        return Err(ReplyError::new(WHAT, format!("length {len}"), expected));
    };
    Ok((kind, body, behind))
}

fn transaction(kind: u32, body: &[u8]) -> Result<Transaction<'_>, ReplyError> {
    let fields = |what, bytes| Fields::at_least(what, body, bytes);
    Ok(match kind {
        transaction::PASSTHROUGH_TO_USER | transaction::PASSTHROUGH_FROM_DEVICE => {
            Transaction::Passthrough(body)
        }
        transaction::ACTIVATE_FROM_DEVICE => {
            let fields = fields("transaction of an activation", 16)?;
            Transaction::Channel(ChannelReply {
                status: fields.u32(0),
                dbc_id: fields.u32(4),
                options: fields.u64(8),
            })
        }
        transaction::STATUS_FROM_DEVICE => {
            let fields = fields("transaction with the firmware's features", 16)?;
            Transaction::Features(Features {
                major: fields.u16(0),
                minor: fields.u16(2),
                status: fields.u32(4),
                flags: fields.u64(8),
            })
        }
        kind => Transaction::Other { kind, body },
    })
}

/// Reply to a command.
pub trait Reply: Sized {
    /// What it is, for people.
    const WHAT: &'static str;
    /// Its number.
    const ID: u32;
    /// Bytes it has at least.
    const BYTES: usize;
    /// Transactions that its message must be said to have, where only one number will do.
    const COUNT: Option<u32> = None;

    /// Takes the fields out of [`Self::BYTES`] bytes or more.
    fn read(fields: Fields<'_>) -> Self;

    /// Reads a reply from its number on.
    fn decode(command: &[u8]) -> Result<Self, ReplyError> {
        let number = Fields::at_least(Self::WHAT, command, 4)?.u32(0);
        if number != Self::ID {
            return Err(ReplyError::new(
                Self::WHAT,
                format!("command {number}"),
                format!("command {}", Self::ID),
            ));
        }
        Ok(Self::read(Fields::at_least(Self::WHAT, command, Self::BYTES)?))
    }

    /// Reads the reply that came in place of a message.
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

/// The first reply to a command among the transactions of a reply.
fn passthrough(bytes: &[u8]) -> Result<&[u8], ReplyError> {
    find(bytes, "reply to a command", |transaction| match transaction {
        Transaction::Passthrough(command) => Some(command),
        _ => None,
    })
}

fn find<'a, T>(
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
    find(message.bytes(), "transaction with the firmware's features", |transaction| match transaction {
        Transaction::Features(features) => Some(features),
        _ => None,
    })
}

/// Reply to commands that load constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadConstantsReply {
    /// The constants; 0 when that failed.
    pub constants_id: u32,
    /// What the firmware thought of it.
    pub status: NncStatus,
}

impl Reply for LoadConstantsReply {
    const WHAT: &'static str = "reply to load constants";
    const ID: u32 = id::LOAD_CONSTANTS_REPLY;
    const BYTES: usize = 16;
    const COUNT: Option<u32> = Some(1);

    fn read(fields: Fields<'_>) -> Self {
        Self { constants_id: fields.u32(4), status: fields.status(8) }
    }
}

/// Reply to the command that loads a network image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadElfReply {
    /// The image.
    pub elf_id: u32,
    /// What the firmware thought of it.
    pub status: NncStatus,
}

impl Reply for LoadElfReply {
    const WHAT: &'static str = "reply to load ELF";
    const ID: u32 = id::LOAD_ELF_REPLY;
    const BYTES: usize = 16;

    fn read(fields: Fields<'_>) -> Self {
        Self { elf_id: fields.u32(4), status: fields.status(8) }
    }
}

/// Reply to the command that activates. [`Reply::of`] checks no more than the command; [`ActivateReply::with_channel`]
/// does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivateReply {
    /// What the firmware thought of it; unless it is success, nothing else means anything.
    pub status: NncStatus,
    /// The activation.
    pub activation_id: u32,
    /// The channel, which is the kernel's DBC.
    pub virtual_channel_id: u32,
    /// Where the activation's memory begins in the device.
    pub ddr_base: u64,
    /// Where its memory of changing size begins.
    pub dynamic_ddr_base: u64,
    /// Where its multicast windows begin.
    pub mcid_base: u64,
    /// The same for DMA commands.
    pub mcid_base_dma_command: u64,
    /// Kind of DMA.
    pub dma_type: u32,
    /// Physical channels.
    pub physical_channel_mask: u32,
    /// Where the cores poll for commands.
    pub command_polling_address: u64,
    /// Bytes there.
    pub command_polling_bytes: u32,
    /// What is polled for.
    pub command_polling_data: u32,
    /// Doorbell for commands.
    pub command_doorbell_address: u64,
    /// Code of its size: 0 32 bits, 1 16 bits, 2 8 bits.
    pub command_doorbell_length: u8,
    /// Whether there is one.
    pub command_doorbell_is_valid: bool,
    /// Cores.
    pub nsp_mask: u32,
}

impl Reply for ActivateReply {
    const WHAT: &'static str = "reply to activate";
    const ID: u32 = id::ACTIVATE_REPLY;
    const BYTES: usize = 88;

    fn read(fields: Fields<'_>) -> Self {
        Self {
            status: fields.status(4),
            activation_id: fields.u32(8),
            virtual_channel_id: fields.u32(12),
            ddr_base: fields.u64(16),
            dynamic_ddr_base: fields.u64(24),
            mcid_base: fields.u64(32),
            mcid_base_dma_command: fields.u64(40),
            dma_type: fields.u32(48),
            physical_channel_mask: fields.u32(52),
            command_polling_address: fields.u64(56),
            command_polling_bytes: fields.u32(64),
            command_polling_data: fields.u32(68),
            command_doorbell_address: fields.u64(72),
            command_doorbell_length: fields.u8(80),
            command_doorbell_is_valid: fields.u8(81) != 0,
            nsp_mask: fields.u32(82),
        }
    }
}

impl ActivateReply {
    /// Reads the answer to [`activate`](super::message::activate). Unless its status is success, it is only that; else the
    /// channel is there and the kernel says the same of it.
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
            return error(format!("status {} of the channel", channel.status), "0, as of the command");
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

/// Reply that has nothing but a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusOnly<const ID: u32> {
    /// What the firmware thought of it.
    pub status: NncStatus,
}

/// Reply to the command that frees constants.
pub type UnloadConstantsReply = StatusOnly<{ id::UNLOAD_CONSTANTS_REPLY }>;
/// Reply to the command that frees a network image.
pub type UnloadElfReply = StatusOnly<{ id::UNLOAD_ELF_REPLY }>;
/// Reply to the command that deactivates. The kernel keeps its own part of it to itself.
pub type DeactivateReply = StatusOnly<{ id::DEACTIVATE_REPLY }>;
/// Reply to the command that changes states.
pub type ActivationStateReply = StatusOnly<{ id::ACTIVATION_STATE_REPLY }>;
/// Reply to the command that gives the resources of a group back.
pub type ReleaseResourceGroupReply = StatusOnly<{ id::RELEASE_RESOURCE_GROUP_REPLY }>;

impl<const ID: u32> Reply for StatusOnly<ID> {
    const WHAT: &'static str = match ID {
        id::UNLOAD_CONSTANTS_REPLY => "reply to unload constants",
        id::UNLOAD_ELF_REPLY => "reply to unload ELF",
        id::DEACTIVATE_REPLY => "reply to deactivate",
        id::ACTIVATION_STATE_REPLY => "reply to activation state",
        id::RELEASE_RESOURCE_GROUP_REPLY => "reply to release resource group",
        _ => "reply",
    };
    const ID: u32 = ID;
    const BYTES: usize = 8;

    fn read(fields: Fields<'_>) -> Self {
        Self { status: fields.status(4) }
    }
}

/// Reply to the command that sets resources aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateResourceGroupReply {
    /// What the firmware thought of it.
    pub status: NncStatus,
    /// The group.
    pub group_id: i32,
}

impl Reply for CreateResourceGroupReply {
    const WHAT: &'static str = "reply to create resource group";
    const ID: u32 = id::CREATE_RESOURCE_GROUP_REPLY;
    const BYTES: usize = 16;

    fn read(fields: Fields<'_>) -> Self {
        Self { status: fields.status(4), group_id: fields.i32(8) }
    }
}

/// Little-endian fields of bytes whose length was checked. Beyond their end all is 0.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn at_least(what: &'static str, bytes: &'a [u8], least: usize) -> Result<Self, ReplyError> {
        if bytes.len() < least {
            return Err(ReplyError::new(what, format!("{} bytes", bytes.len()), format!("at least {least}")));
        }
        Ok(Self(bytes))
    }

    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
    }

    pub(super) fn u8(self, at: usize) -> u8 {
        u8::from_le_bytes(self.array(at))
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(super) fn i32(self, at: usize) -> i32 {
        i32::from_le_bytes(self.array(at))
    }

    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    pub(super) fn status(self, at: usize) -> NncStatus {
        NncStatus(self.i32(at))
    }

    /// Text in `len` bytes up to the first 0, or all of them when there is none.
    pub(super) fn text(self, at: usize, len: usize) -> String {
        let bytes = self.0.get(at..).unwrap_or_default();
        let bytes = &bytes[..len.min(bytes.len())];
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    pub(super) fn from(self, at: usize) -> Self {
        Self(self.0.get(at..).unwrap_or_default())
    }
}
