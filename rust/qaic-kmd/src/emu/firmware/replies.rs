//! Replies as bytes, at the offsets of device-kmd §2.5 and §2.6.

use super::config::FirmwareConfig;
use crate::emu::ledger::Need;

/// A reply of fixed size that is zero where nothing was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply(Vec<u8>);

impl Reply {
    fn new(id: u32, size: usize) -> Self {
        Self(vec![0; size]).word(0, id)
    }

    fn bytes(mut self, offset: usize, bytes: &[u8]) -> Self {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn half(self, offset: usize, value: u16) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }

    fn word(self, offset: usize, value: u32) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }

    fn number(self, offset: usize, value: i32) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }

    fn long(self, offset: usize, value: u64) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }

    /// Text in a field of `size` bytes, the last of which is 0.
    fn text(self, offset: usize, size: usize, text: &str) -> Self {
        let text = text.as_bytes();
        self.bytes(offset, &text[..text.len().min(size - 1)])
    }

    /// Its bytes, with zeros behind them.
    pub(super) fn into_bytes(self, tail_bytes: usize) -> Vec<u8> {
        let mut bytes = self.0;
        bytes.resize(bytes.len() + tail_bytes, 0);
        bytes
    }
}

/// The reply of a command with nothing in it but the status.
pub(super) fn status_only(command: u32, status: i32) -> Reply {
    let (id, size, offset) = match command {
        1 | 15 | 16 => (2, 16, 8),
        3 => (4, 16, 8),
        5 => (6, 8, 4),
        7 => (8, 8, 4),
        9 => (10, 88, 4),
        11 => (12, 8, 4),
        13 => (14, 504, 4),
        19 => (20, 40, 4),
        22 => (23, 8, 4),
        24 => (25, 16, 4),
        26 => (27, 8, 4),
        28 => (29, 16, 4),
        30 => (31, 8, 4),
        32 => (33, 56, 48),
        34 => (35, 64, 4),
        36 => (37, 8, 4),
        38 => (39, 8, 4),
        44 => (45, 8, 4),
        // What a command that does not exist is answered with is not known; replies to others have the next number.
        other => (other.wrapping_add(1), 8, 4),
    };
    Reply::new(id, size).number(offset, status)
}

pub(super) fn constants(constants_id: u32) -> Reply {
    status_only(1, 0).word(4, constants_id)
}

pub(super) fn elf(elf_id: u32) -> Reply {
    status_only(3, 0).word(4, elf_id)
}

/// What an activation got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Activated {
    pub(super) activation_id: u32,
    pub(super) channel: Option<u32>,
    pub(super) ddr_base: u64,
    pub(super) dynamic_ddr_base: u64,
    pub(super) mcid_base: u64,
    pub(super) physical_channels: u32,
    pub(super) cores: u64,
}

/// Channel of an activation that has none.
const NO_CHANNEL: u32 = u32::MAX;
/// Length code of a doorbell that there is not.
const NO_DOORBELL: u8 = 3;

pub(super) fn activated(got: &Activated) -> Reply {
    // The mask has 32 bits.
    #[allow(clippy::cast_possible_truncation)]
    let nsp_mask = got.cores as u32;
    status_only(9, 0)
        .word(8, got.activation_id)
        .word(12, got.channel.unwrap_or(NO_CHANNEL))
        .long(16, got.ddr_base)
        .long(24, got.dynamic_ddr_base)
        .long(32, got.mcid_base)
        .long(40, got.mcid_base)
        .word(52, got.physical_channels)
        .bytes(80, &[NO_DOORBELL])
        .word(82, nsp_mask)
}

pub(super) fn channel_reservation(reservation: u32, channel: u32) -> Reply {
    status_only(19, 0).word(8, reservation).word(12, channel)
}

/// Replies 25 and 29.
pub(super) fn reservation(command: u32, id: i32) -> Reply {
    status_only(command, 0).number(8, id)
}

/// Figures of a card or of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) total: Need,
    pub(super) free: Need,
    pub(super) physical_channels: u8,
    pub(super) dedicated_channels: u8,
}

pub(super) fn resource_info(group: i32, resources: &Resources) -> Reply {
    with_resources(status_only(32, 0).number(4, group), 8, resources)
}

fn with_resources(reply: Reply, at: usize, resources: &Resources) -> Reply {
    let Resources { total, free, .. } = resources;
    let megabytes = |bytes: u64| u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
    let small = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
    reply
        .word(at, megabytes(total.ddr_bytes))
        .word(at + 4, megabytes(free.ddr_bytes))
        .bytes(at + 12, &[small(total.channels), small(free.channels), small(total.cores), small(free.cores)])
        .word(at + 16, total.multicast_ids)
        .word(at + 20, free.multicast_ids)
        .word(at + 24, total.semaphores)
        .word(at + 28, free.semaphores)
        .bytes(at + 32, &[resources.physical_channels, resources.dedicated_channels])
}

pub(super) fn performance_info(config: &FirmwareConfig) -> Reply {
    with_performance(status_only(34, 0), 8, config)
}

fn with_performance(reply: Reply, at: usize, config: &FirmwareConfig) -> Reply {
    let performance = &config.performance;
    reply
        .word(at, performance.nsp_hz)
        .word(at + 4, performance.ddr_hz)
        .word(at + 8, performance.compute_noc_hz)
        .word(at + 12, performance.memory_noc_hz)
        .word(at + 16, performance.system_noc_hz)
        .long(at + 24, performance.peak_operations_per_second)
        .long(at + 32, performance.ddr_kilobytes_per_second)
}

/// What is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Loaded {
    pub(super) constants: usize,
    pub(super) constants_in_use: usize,
    pub(super) elves: usize,
    pub(super) activations: usize,
}

/// Where the device's part of the status begins: behind type, status and the format's version.
const DEVICE: usize = 16;
/// Where that of the cores begins.
const CORES: usize = 8 + 328;

pub(super) fn status(config: &FirmwareConfig, resources: &Resources, loaded: &Loaded) -> Reply {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let small = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
    let reply = status_only(13, 0)
        .bytes(8, &[config.format_version])
        .bytes(DEVICE, &config.fw_version)
        .text(DEVICE + 4, 38, &config.qc_image)
        .text(DEVICE + 42, 38, &config.oem_image)
        .text(DEVICE + 80, 16, &config.image_variant)
        .word(DEVICE + 96, config.hw_version)
        .text(DEVICE + 100, 16, &config.serial)
        .text(DEVICE + 116, 32, &config.board_serial);
    let reply = with_performance(with_resources(reply, DEVICE + 152, resources), DEVICE + 192, config);
    reply
        .word(DEVICE + 248, count(loaded.constants))
        .word(DEVICE + 252, count(loaded.constants_in_use))
        .bytes(DEVICE + 256, &[small(loaded.elves), small(loaded.activations)])
        .half(DEVICE + 258, config.metadata_version.0)
        .half(DEVICE + 260, config.metadata_version.1)
        .half(DEVICE + 262, config.nnc_version.0)
        .half(DEVICE + 264, config.nnc_version.1)
        .text(DEVICE + 266, 24, &config.sbl_image)
        .word(DEVICE + 292, config.pvs_image_version)
        .long(DEVICE + 296, config.nsp_defects)
        .bytes(DEVICE + 316, &[config.sku_type])
        .bytes(CORES, &config.nsp_version)
        .text(CORES + 8, 64, &config.qc_image)
        .text(CORES + 72, 48, &config.oem_image)
        .text(CORES + 120, 48, &config.image_variant)
}
