//! Complete control messages for one operation each, in a byte format that firmware accepts.

use bytemuck::bytes_of;

use super::Numbered;
use super::command::{
    Activate, ActivationState, Deactivate, GetPerformanceInfo, GetResourceInfo, GetStatus, LoadConstantsEx,
    LoadConstantsPayload, LoadElf, UnloadConstants, UnloadElf, WHOLE_DEVICE, passthrough,
};
use super::transaction::{SetUpChannel, TearDownChannel, TransactionKind};
use crate::manage::ManageBuffer;
use crate::wire::{Text, Volatile};

/// Tag of the dma transaction with a network image.
pub const ELF_TAG: u32 = 100;
/// Tag of the dma transaction with constants.
pub const CONSTANTS_TAG: u32 = 300;
/// Name that images are loaded under.
pub(crate) const ELF_NAME: &str = "NetworkImage";
/// Name that constants are loaded under.
pub(crate) const CONSTANTS_NAME: &str = "ConstantsDescriptor";

/// Queries versions and features of the firmware: the answer is [`features`](super::parse::features).
pub fn status_features() -> ManageBuffer<'static> {
    build(&[&TransactionKind::StatusFromUser.transaction(&[])])
}

/// Queries the complete status of the card: the answer is a [`CardStatus`](super::CardStatus).
pub fn status_query() -> ManageBuffer<'static> {
    alone(&GetStatus::default())
}

/// Announces constants. Returns `None` if the container's descriptor exceeds the size of a message.
pub fn load_constants(process_id: u32, descriptor: &[u8]) -> Option<ManageBuffer<'static>> {
    let command = LoadConstantsEx {
        process_id: Volatile(process_id),
        name: Text::new(CONSTANTS_NAME),
        descriptor_len: u32::try_from(descriptor.len()).ok()?,
        ..LoadConstantsEx::default()
    };
    let mut message = ManageBuffer::default();
    message.push(&passthrough(&command, descriptor))?;
    Some(message)
}

/// Transfers a part of announced constants; the card fetches `data` during the call.
pub fn load_constants_payload(
    process_id: u32,
    constants_id: u32,
    offset: u64,
    data: &[u8],
) -> ManageBuffer<'_> {
    let command = LoadConstantsPayload {
        process_id: Volatile(process_id),
        tag: CONSTANTS_TAG,
        constants_id,
        data_length: data.len() as u64,
        offset,
        ..LoadConstantsPayload::default()
    };
    with_data(&command, CONSTANTS_TAG, data)
}

/// Loads a network image; `metadata_crc` is 0 if the container has none.
pub fn load_elf(process_id: u32, metadata_crc: u32, data: &[u8]) -> ManageBuffer<'_> {
    let command = LoadElf {
        tag: ELF_TAG,
        process_id: Volatile(process_id),
        metadata_crc,
        name: Text::new(ELF_NAME),
        data_length: data.len() as u64,
        ..LoadElf::default()
    };
    with_data(&command, ELF_TAG, data)
}

/// The program to activate, and its settings.
#[derive(Clone, Copy, Debug)]
pub struct ActivateRequest {
    /// Id of the image.
    pub elf_id: u32,
    /// Id of the constants; 0 for none.
    pub constants_id: u32,
    /// Initial state.
    pub initial_state: ActivationState,
    /// Number of elements of the channel's ring, which can hold one fewer.
    pub queue_size: u32,
}

/// Assigns cores and a channel to images.
pub fn activate(process_id: u32, request: ActivateRequest) -> ManageBuffer<'static> {
    let ActivateRequest { elf_id, constants_id, queue_size, .. } = request;
    let command = Activate {
        process_id: Volatile(process_id),
        constants_id,
        elf_id,
        resource_res_id: WHOLE_DEVICE,
        opt_vc_setup: 1,
        vc_res_id: WHOLE_DEVICE,
        initial_state: request.initial_state as i32,
        ..Activate::default()
    };
    let channel = SetUpChannel { queue_size, ..SetUpChannel::default() };
    let channel = TransactionKind::ActivateFromUser.transaction(bytes_of(&channel));
    build(&[&passthrough(&command, &[]), &channel])
}

/// Releases cores and, if given, the channel `dbc_id`.
pub fn deactivate(activation_id: u32, dbc_id: Option<u32>) -> ManageBuffer<'static> {
    let command =
        Deactivate { activation_id, opt_vc_teardown: dbc_id.is_some().into(), ..Deactivate::default() };
    let command = passthrough(&command, &[]);
    match dbc_id {
        None => build(&[&command]),
        Some(dbc_id) => {
            let channel = TearDownChannel { dbc_id, pad: 0 };
            build(&[&command, &TransactionKind::DeactivateFromUser.transaction(bytes_of(&channel))])
        }
    }
}

/// Releases cores and a channel that no longer belongs to this file in the driver. The firmware receives the same
/// command as from [`deactivate`].
pub fn deactivate_given_up(activation_id: u32) -> ManageBuffer<'static> {
    alone(&Deactivate { activation_id, opt_vc_teardown: 1, ..Deactivate::default() })
}

/// Frees a network image.
pub fn unload_elf(elf_id: u32) -> ManageBuffer<'static> {
    alone(&UnloadElf { elf_id, ..UnloadElf::default() })
}

/// Frees constants.
pub fn unload_constants(constants_id: u32) -> ManageBuffer<'static> {
    alone(&UnloadConstants { constants_id, ..UnloadConstants::default() })
}

/// Builds a request for the total and free resources of a group or of [the device](WHOLE_DEVICE).
pub fn resource_info(process_id: u32, group_id: i32) -> ManageBuffer<'static> {
    let process_id = Volatile(process_id);
    alone(&GetResourceInfo { process_id, res_grp_id: group_id, ..GetResourceInfo::default() })
}

/// Builds a request for the frequencies and the bandwidth.
pub fn performance_info() -> ManageBuffer<'static> {
    alone(&GetPerformanceInfo::default())
}

fn alone(command: &impl Numbered) -> ManageBuffer<'static> {
    build(&[&passthrough(command, &[])])
}

fn with_data<'data>(command: &impl Numbered, tag: u32, data: &'data [u8]) -> ManageBuffer<'data> {
    let mut message = build(&[&passthrough(command, &[])]);
    let fits = message.push_dma(tag, data);
    debug_assert!(fits.is_some());
    message
}

/// Builds a message from transactions that always fit: commands without parts of variable length.
fn build<'data>(transactions: &[&[u8]]) -> ManageBuffer<'data> {
    let mut message = ManageBuffer::default();
    for transaction in transactions {
        let fits = message.push(transaction);
        debug_assert!(fits.is_some());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<const N: usize>(values: [u32; N]) -> Vec<u8> {
        values.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// Type, length and body of each transaction.
    fn taken_apart(message: &ManageBuffer<'_>) -> Vec<(u32, Vec<u8>)> {
        let mut rest = message.bytes();
        let mut found = Vec::new();
        while !rest.is_empty() {
            let kind = u32::from_le_bytes(rest[0..4].try_into().unwrap());
            let len = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
            found.push((kind, rest[8..len].to_vec()));
            rest = &rest[len..];
        }
        assert_eq!(found.len(), message.count() as usize);
        found
    }

    /// Asserts the `len` and `count` of the table, and that a command with this number comes first, followed by 8
    /// zero bytes; returns the transactions.
    fn row(message: &ManageBuffer<'_>, len: usize, count: u32, id: u32) -> Vec<(u32, Vec<u8>)> {
        assert_eq!((message.bytes().len(), message.count()), (len, count));
        let transactions = taken_apart(message);
        let (kind, command) = &transactions[0];
        assert_eq!((*kind, &command[..4]), (1, &id.to_le_bytes()[..]));
        assert_eq!(command[command.len() - 8..], [0; 8]);
        transactions
    }

    fn assert_dma(transaction: &(u32, Vec<u8>), tag: u32, data: &[u8]) {
        let (kind, body) = transaction;
        assert_eq!(*kind, 5);
        assert_eq!(body[0..4], tag.to_le_bytes());
        assert_eq!(body[4..8], [1, 0, 0, 0]);
        assert_eq!(body[8..16], (data.as_ptr().addr() as u64).to_le_bytes());
        assert_eq!(body[16..24], (data.len() as u64).to_le_bytes());
    }

    #[test]
    fn features_query_has_its_bytes() {
        let message = status_features();
        assert_eq!((message.bytes(), message.count()), (&[12, 0, 0, 0, 8, 0, 0, 0][..], 1));
    }

    #[test]
    fn status_query_has_its_bytes() {
        row(&status_query(), 24, 1, 13);
    }

    #[test]
    fn constants_announcement_has_its_bytes() {
        let message = load_constants(77, &[0xAB; 24]).unwrap();
        let command = &row(&message, 120, 1, 15)[0].1;
        assert_eq!(command[4..8], [77, 0, 0, 0]);
        assert_eq!(command[8..28], *b"ConstantsDescriptor\0");
        assert_eq!(command[72..76], [24, 0, 0, 0]);
        assert_eq!(command[80..104], [0xAB; 24]);
        assert!(load_constants(1, &[0; 4096]).is_none());
        // Lengths of transactions are multiples of 8; the length in the descriptor is not rounded.
        let odd = load_constants(1, &[9; 5]).unwrap();
        assert_eq!((odd.bytes().len(), odd.bytes()[80]), (104, 5));
    }

    #[test]
    fn constants_part_has_its_bytes() {
        let data = [1, 2, 3];
        let message = load_constants_payload(5, 6, 7, &data);
        let transactions = row(&message, 80, 2, 16);
        let expected: Vec<u8> =
            [16_u32, 5, 300, 6, 3, 0, 7, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(transactions[0].1, expected);
        assert_dma(&transactions[1], 300, &data);
    }

    #[test]
    fn elf_message_has_its_bytes() {
        let data = [1; 1000];
        let message = load_elf(5, 6, &data);
        let transactions = row(&message, 144, 2, 3);
        let command = &transactions[0].1;
        assert_eq!(command[4..16], [100, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(command[16..29], *b"NetworkImage\0");
        assert_eq!(command[80..92], [0xE8, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_dma(&transactions[1], 100, &data);
    }

    #[test]
    fn activation_message_has_its_bytes() {
        let request = ActivateRequest {
            elf_id: 3,
            constants_id: 2,
            initial_state: ActivationState::Ready,
            queue_size: 512,
        };
        let message = activate(1, request);
        let transactions = row(&message, 88, 2, 9);
        let minus_one = u32::MAX;
        let command = [9, 1, 2, 3, 0, minus_one, 1, minus_one, 1, 0, 0, 0, 0, 0];
        assert_eq!(transactions[0].1, words(command));
        assert_eq!(transactions[1], (7, words([512, 0, 0, 0])));
    }

    #[test]
    fn deactivation_message_has_its_bytes() {
        let transactions = row(&deactivate(4, Some(11)), 48, 2, 11);
        assert_eq!(transactions[0].1, words([11, 4, 1, 0, 0, 0]));
        assert_eq!(transactions[1], (10, words([11, 0])));
        let transactions = row(&deactivate(4, None), 32, 1, 11);
        assert_eq!(transactions[0].1, words([11, 4, 0, 0, 0, 0]));
    }

    #[test]
    fn unloads_have_each_field_in_its_place() {
        assert_eq!(row(&unload_elf(8), 24, 1, 7)[0].1, words([7, 8, 0, 0]));
        assert_eq!(row(&unload_constants(9), 24, 1, 5)[0].1, words([5, 9, 0, 0]));
    }

    #[test]
    fn queries_have_each_field_in_its_place() {
        assert_eq!(row(&resource_info(3, -1), 32, 1, 32)[0].1, words([32, 3, u32::MAX, 0, 0, 0]));
        assert_eq!(row(&performance_info(), 24, 1, 34)[0].1, words([34, 0, 0, 0]));
    }
}
