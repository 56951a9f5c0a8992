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
use crate::wire::Field;

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

/// Returns the command or reply with this number.
pub(crate) fn command_entry(number: u32) -> Option<&'static StructureEntry> {
    COMMANDS.iter().find(|entry| entry.number == number)
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
    }
}
