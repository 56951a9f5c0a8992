//! Commands that clients send. Firmware supports further commands, for groups, reservations and states of
//! activations.

use super::Numbered;
use super::transaction::TransactionKind;
use crate::wire::{Reserved, Text, Volatile, wire};

/// Number of zero bytes after a command. Firmware checks the lengths of commands, and accepts this form.
const TRAILING_BYTES: usize = 8;
/// Id of the whole device, instead of a resource group or a reservation.
pub const WHOLE_DEVICE: i32 = -1;
/// Reservation of a channel for an activation without a channel.
pub const SKIP_CHANNEL: i32 = 0xFE;

/// Returns a transaction with a command, and the data that follows the command's fixed part.
pub fn passthrough<C: Numbered>(command: &C, rest: &[u8]) -> Vec<u8> {
    let command = bytemuck::bytes_of(command);
    let mut body = [command, rest].concat();
    // The kernel accepts only lengths that are multiples of 8.
    body.resize(body.len().next_multiple_of(8) + TRAILING_BYTES, 0);
    TransactionKind::PassthroughFromUser.transaction(&body)
}

wire! {
    /// Loads a network image, which is in a dma transaction of the same message. The order of tag and process differs
    /// from [`LoadConstantsPayload`].
    pub struct LoadElf: 96 = 3 "load_elf" {
        /// Tag of the dma transaction.
        tag: u32,
        process_id: Volatile<u32>,
        /// Checksum of the metadata; 0 if there is none.
        metadata_crc: u32,
        name: Text<64>,
        /// Bytes of the image.
        data_length: u64,
        /// Checksum of the metadata in the second form, sent as 0.
        metadata_flatbuffer_crc: u32,
        reserved: Reserved<4>,
    }

    /// Frees constants.
    pub struct UnloadConstants: 8 = 5 "unload_constants" {
        constants_id: u32,
    }

    /// Frees a network image.
    pub struct UnloadElf: 8 = 7 "unload_elf" {
        elf_id: u32,
    }

    /// Assigns cores to images and, with an activate transaction in the same message, a channel.
    pub struct Activate: 48 = 9 "activate" {
        process_id: Volatile<u32>,
        /// Id of the constants; 0 for none.
        constants_id: u32,
        elf_id: u32,
        /// Type of reservation: 0.
        reservation_type: u32,
        /// Resource group or reservation that provides the resources; [`WHOLE_DEVICE`] for none.
        resource_res_id: i32,
        /// 1: an activate transaction follows.
        opt_vc_setup: u32,
        /// Reservation of a channel; [`WHOLE_DEVICE`] for none.
        vc_res_id: i32,
        /// Initial [`ActivationState`].
        initial_state: i32,
        /// Kind of DMA: 0.
        dma_type: u32,
        /// 1: the data path can be switched.
        opt_support_datapath_switching: u8,
        reserved: Reserved<7>,
    }

    /// Releases cores and, with a deactivate transaction in the same message, the channel.
    pub struct Deactivate: 16 = 11 "deactivate" {
        activation_id: u32,
        /// 1: a deactivate transaction follows.
        opt_vc_teardown: u32,
        reserved: Reserved<4>,
    }

    /// Queries the complete status of the card.
    pub struct GetStatus: 8 = 13 "status" {
        /// Requested information; 0 means all.
        info_type: u8,
        reserved: Reserved<3>,
    }

    /// Announces constants and their sizes. A descriptor of the constants follows; [`LoadConstantsPayload`] commands
    /// transfer their data.
    pub struct LoadConstantsEx: 80 = 15 "load_constants_ex" {
        process_id: Volatile<u32>,
        name: Text<64>,
        descriptor_len: u32,
        reserved: Reserved<4>,
    }

    /// Start of a constants descriptor.
    pub struct ConstantsDescriptor: 16 {
        static_size: u64,
        dynamic_size: u64,
    }

    /// A part of announced constants, in a dma transaction of the same message.
    pub struct LoadConstantsPayload: 32 = 16 "load_constants_payload" {
        process_id: Volatile<u32>,
        /// Tag of the dma transaction.
        tag: u32,
        /// Id in the reply to the announcement.
        constants_id: u32,
        /// Bytes of the part.
        data_length: u64,
        /// Offset of the destination.
        offset: u64,
    }

    /// Queries the total and free resources of a group or of the device.
    pub struct GetResourceInfo: 16 = 32 "resource_info" {
        process_id: Volatile<u32>,
        /// Resource group; [`WHOLE_DEVICE`] for the whole device.
        res_grp_id: i32,
        reserved: Reserved<4>,
    }

    /// Queries frequencies and bandwidth.
    pub struct GetPerformanceInfo: 8 = 34 "performance_info" {
        reserved: Reserved<4>,
    }
}

/// States of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum ActivationState {
    /// The activation holds its resources without running.
    Standby = 0,
    /// The activation runs.
    Ready = 1,
}

#[cfg(test)]
mod tests;
