//! What a card says about itself (device-kmd §2.6): versions, resources, frequencies.

use super::reply::{Fields, Reply};
use super::{NncStatus, id};

/// Where the information begins in the reply to the status command, and where its parts begin in the information.
const INFO: usize = 8;
const DEVICE_PART: usize = 8;
const CORE_PART: usize = 328;

/// Reply to the status command: everything about a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardStatus {
    /// What the firmware thought of the question; unless it is success, nothing else means anything.
    pub status: NncStatus,
    /// Version of this very form.
    pub format_version: u8,
    /// Version of the firmware: major, minor, patch, build. A build of 255 is not shown.
    pub firmware_version: [u8; 4],
    /// Text of the firmware's image.
    pub qc_image_version: String,
    /// Text of the firmware's image.
    pub oem_image_version: String,
    /// Text of the firmware's image.
    pub image_variant: String,
    /// Version of the hardware; its family is in the upper half.
    pub hw_version: u32,
    /// Number of the chip.
    pub serial: String,
    /// Number of the board.
    pub board_serial: String,
    /// Version of the compiler.
    pub compiler_version: u32,
    /// What there is and what is left.
    pub resources: ResourceInfo,
    /// Frequencies and bandwidth.
    pub performance: PerformanceInfo,
    /// Constants that are loaded.
    pub loaded_constants: u32,
    /// Constants that activations use.
    pub constants_in_use: u32,
    /// Network images that are loaded.
    pub loaded_networks: u8,
    /// Network images that are activated.
    pub active_networks: u8,
    /// Version of the metadata that it takes: major, minor.
    pub metadata_version: (u16, u16),
    /// Version of the commands: major, minor.
    pub command_protocol: (u16, u16),
    /// Name of the second boot loader's image.
    pub sbl_image_name: String,
    /// Whether a reset would retire bad pages.
    pub needs_reset_to_retire_pages: bool,
    /// Version of another image.
    pub pvs_image_version: u32,
    /// Power groups of cores that are defective.
    pub nsp_power_group_mask: u64,
    /// Offset of the device's time.
    pub time_offset_us: u64,
    /// Pages that were retired.
    pub retired_pages: u32,
    /// What kind of board it is.
    pub sku_type: u8,
    /// Which complex of the chip.
    pub complex_id: u8,
    /// Software of the cores.
    pub cores: CoreVersion,
}

impl Reply for CardStatus {
    const WHAT: &'static str = "reply to status";
    const ID: u32 = id::STATUS_REPLY;
    const BYTES: usize = 504;

    fn read(fields: Fields<'_>) -> Self {
        let info = fields.from(INFO);
        let device = info.from(DEVICE_PART);
        Self {
            status: fields.status(4),
            format_version: info.u8(0),
            firmware_version: version(device),
            qc_image_version: device.text(4, 38),
            oem_image_version: device.text(42, 38),
            image_variant: device.text(80, 16),
            hw_version: device.u32(96),
            serial: device.text(100, 16),
            board_serial: device.text(116, 32),
            compiler_version: device.u32(148),
            resources: ResourceInfo::read(device.from(152)),
            performance: PerformanceInfo::read(device.from(192)),
            loaded_constants: device.u32(248),
            constants_in_use: device.u32(252),
            loaded_networks: device.u8(256),
            active_networks: device.u8(257),
            metadata_version: (device.u16(258), device.u16(260)),
            command_protocol: (device.u16(262), device.u16(264)),
            sbl_image_name: device.text(266, 24),
            needs_reset_to_retire_pages: device.u8(290) != 0,
            pvs_image_version: device.u32(292),
            nsp_power_group_mask: device.u64(296),
            time_offset_us: device.u64(304),
            retired_pages: device.u32(312),
            sku_type: device.u8(316),
            complex_id: device.u8(317),
            cores: CoreVersion::read(info.from(CORE_PART)),
        }
    }
}

fn version(fields: Fields<'_>) -> [u8; 4] {
    [fields.u8(0), fields.u8(1), fields.u8(2), fields.u8(3)]
}

/// What a card or a resource group has and has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceInfo {
    /// Memory, in MB.
    pub dram_total_mb: u32,
    /// Memory, in MB.
    pub dram_free_mb: u32,
    /// How scattered the free memory is; the scale is not known.
    pub fragmentation: u32,
    /// Virtual channels.
    pub vc_total: u8,
    /// Virtual channels.
    pub vc_free: u8,
    /// Cores.
    pub nsp_total: u8,
    /// Cores.
    pub nsp_free: u8,
    /// Multicast ids.
    pub mcid_total: u32,
    /// Multicast ids.
    pub mcid_free: u32,
    /// Semaphores.
    pub sem_total: u32,
    /// Semaphores.
    pub sem_free: u32,
    /// Physical channels.
    pub pc_total: u8,
    /// Physical channels that are set aside.
    pub pc_reserved: u8,
}

impl ResourceInfo {
    fn read(fields: Fields<'_>) -> Self {
        Self {
            dram_total_mb: fields.u32(0),
            dram_free_mb: fields.u32(4),
            fragmentation: fields.u32(8),
            vc_total: fields.u8(12),
            vc_free: fields.u8(13),
            nsp_total: fields.u8(14),
            nsp_free: fields.u8(15),
            mcid_total: fields.u32(16),
            mcid_free: fields.u32(20),
            sem_total: fields.u32(24),
            sem_free: fields.u32(28),
            pc_total: fields.u8(32),
            pc_reserved: fields.u8(33),
        }
    }
}

/// Frequencies and bandwidth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerformanceInfo {
    /// Of the cores.
    pub nsp_frequency_hz: u32,
    /// Of the memory.
    pub ddr_frequency_hz: u32,
    /// Of the network between the cores.
    pub compnoc_frequency_hz: u32,
    /// Of the network to the memory.
    pub memnoc_frequency_hz: u32,
    /// Of the system's network.
    pub sysnoc_frequency_hz: u32,
    /// 8-bit operations per second at best.
    pub peak_compute_ops_per_s: u64,
    /// Mean of about the last 100 ms.
    pub dram_bandwidth_kb_per_s: u64,
}

impl PerformanceInfo {
    fn read(fields: Fields<'_>) -> Self {
        Self {
            nsp_frequency_hz: fields.u32(0),
            ddr_frequency_hz: fields.u32(4),
            compnoc_frequency_hz: fields.u32(8),
            memnoc_frequency_hz: fields.u32(12),
            sysnoc_frequency_hz: fields.u32(16),
            peak_compute_ops_per_s: fields.u64(24),
            dram_bandwidth_kb_per_s: fields.u64(32),
        }
    }
}

/// Software of the cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreVersion {
    /// Major, minor, patch, build. A build of 255 is not shown.
    pub version: [u8; 4],
    /// Text of the image.
    pub qc_image_version: String,
    /// Text of the image.
    pub oem_image_version: String,
    /// Text of the image.
    pub image_variant: String,
}

impl CoreVersion {
    fn read(fields: Fields<'_>) -> Self {
        Self {
            version: version(fields),
            qc_image_version: fields.text(8, 64),
            oem_image_version: fields.text(72, 48),
            image_variant: fields.text(120, 48),
        }
    }
}

/// Reply to the question for resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceInfoReply {
    /// Resource group; -1 for the device.
    pub group_id: i32,
    /// What it has.
    pub resources: ResourceInfo,
    /// What the firmware thought of the question.
    pub status: NncStatus,
}

impl Reply for ResourceInfoReply {
    const WHAT: &'static str = "reply to resource info";
    const ID: u32 = id::RESOURCE_INFO_REPLY;
    const BYTES: usize = 56;

    fn read(fields: Fields<'_>) -> Self {
        Self {
            group_id: fields.i32(4),
            resources: ResourceInfo::read(fields.from(8)),
            status: fields.status(48),
        }
    }
}

/// Reply to the question for frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerformanceInfoReply {
    /// What the firmware thought of the question.
    pub status: NncStatus,
    /// The frequencies.
    pub performance: PerformanceInfo,
}

impl Reply for PerformanceInfoReply {
    const WHAT: &'static str = "reply to performance info";
    const ID: u32 = id::PERFORMANCE_INFO_REPLY;
    const BYTES: usize = 64;

    fn read(fields: Fields<'_>) -> Self {
        Self { status: fields.status(4), performance: PerformanceInfo::read(fields.from(8)) }
    }
}
