//! All structures of the protocol by number, for code that decodes bytes.

use super::Numbered;
use super::card_status::CardStatus;
use super::command::{
    Activate, Deactivate, GetPerformanceInfo, GetResourceInfo, GetStatus, LoadConstantsEx,
    LoadConstantsPayload, LoadElf, UnloadConstants, UnloadElf,
};
use super::reply::{
    ActivateReply, DeactivateReply, LoadConstantsReply, LoadElfReply, PerformanceInfoReply,
    ResourceInfoReply, UnloadConstantsReply, UnloadElfReply,
};
use super::transaction::{
    ACTIVATE_FROM_DEVICE, ACTIVATE_FROM_USER, ChannelReply, DEACTIVATE_FROM_USER, DMA_FROM_USER, Dma,
    Features, PASSTHROUGH_FROM_DEVICE, PASSTHROUGH_FROM_USER, PASSTHROUGH_TO_USER, STATUS_FROM_DEVICE,
    STATUS_FROM_USER, SetUpChannel, TearDownChannel,
};
use crate::wire::{Field, Layout};

/// A structure that a number identifies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StructureEntry {
    number: u32,
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [Field],
    /// Name and start of the data after the fields, which extends to the end.
    pub(crate) rest: Option<(&'static str, usize)>,
}

const fn numbered<T: Numbered>() -> StructureEntry {
    StructureEntry { number: T::NUMBER, name: T::NAME, fields: T::FIELDS, rest: None }
}

static COMMANDS: [StructureEntry; 19] = [
    numbered::<LoadConstantsReply>(),
    numbered::<LoadElf>(),
    numbered::<LoadElfReply>(),
    numbered::<UnloadConstants>(),
    numbered::<UnloadConstantsReply>(),
    numbered::<UnloadElf>(),
    numbered::<UnloadElfReply>(),
    numbered::<Activate>(),
    numbered::<ActivateReply>(),
    numbered::<Deactivate>(),
    numbered::<DeactivateReply>(),
    numbered::<GetStatus>(),
    numbered::<CardStatus>(),
    StructureEntry {
        rest: Some(("descriptor", size_of::<LoadConstantsEx>())),
        ..numbered::<LoadConstantsEx>()
    },
    numbered::<LoadConstantsPayload>(),
    numbered::<GetResourceInfo>(),
    numbered::<ResourceInfoReply>(),
    numbered::<GetPerformanceInfo>(),
    numbered::<PerformanceInfoReply>(),
];

const fn typed(number: u32, name: &'static str, fields: &'static [Field]) -> StructureEntry {
    StructureEntry { number, name, fields, rest: None }
}

static TRANSACTIONS: [StructureEntry; 9] = [
    typed(PASSTHROUGH_FROM_USER, "passthrough_from_user", &[]),
    typed(PASSTHROUGH_TO_USER, "passthrough_to_user", &[]),
    typed(PASSTHROUGH_FROM_DEVICE, "passthrough_from_device", &[]),
    typed(DMA_FROM_USER, "dma_from_user", Dma::FIELDS),
    typed(ACTIVATE_FROM_USER, "activate_from_user", SetUpChannel::FIELDS),
    typed(ACTIVATE_FROM_DEVICE, "activate_from_device", ChannelReply::FIELDS),
    typed(DEACTIVATE_FROM_USER, "deactivate_from_user", TearDownChannel::FIELDS),
    typed(STATUS_FROM_USER, "status_from_user", &[]),
    typed(STATUS_FROM_DEVICE, "status_from_device", Features::FIELDS),
];

/// Returns the command or reply with this number.
pub(crate) fn command_entry(number: u32) -> Option<&'static StructureEntry> {
    COMMANDS.iter().find(|entry| entry.number == number)
}

/// Returns the transaction of this type, without its header.
pub(crate) fn transaction_entry(kind: u32) -> Option<&'static StructureEntry> {
    TRANSACTIONS.iter().find(|entry| entry.number == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_every_number_of_the_protocol_once() {
        let numbers: Vec<u32> = COMMANDS.iter().map(|entry| entry.number).collect();
        let expected: Vec<u32> = (2..=16).chain(32..=35).collect();
        assert_eq!(numbers, expected);
        assert!(command_entry(17).is_none() && command_entry(21).is_none());
        assert_eq!(command_entry(9).map(|entry| entry.name), Some("activate"));
        assert_eq!(transaction_entry(14).map(|entry| entry.name), Some("status_from_device"));
        assert!(transaction_entry(4).is_none());
    }
}
