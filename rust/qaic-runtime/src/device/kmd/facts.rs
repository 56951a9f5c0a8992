//! What a card says of itself, for the tools that list devices (device-kmd §2.6, §5.4).

use qaic_kmd::kmd::{MemoryErrors, NodeInfo, Telemetry};
use qaic_kmd::nnc::{CardStatus, PerformanceInfo, ResourceInfo};

use crate::device::Resources;
use crate::error::RuntimeError;

/// A card as the system and its firmware know it at one moment.
#[derive(Clone, Debug)]
pub struct CardFacts {
    /// Number, node, place on the bus, names and link.
    pub node: NodeInfo,
    /// Temperature and power.
    pub telemetry: Telemetry,
    /// Memory errors that it has reported.
    pub memory_errors: MemoryErrors,
    /// What its firmware says; why it could not be asked, which makes the card's state "Error".
    pub firmware: Result<FirmwareFacts, RuntimeError>,
}

/// What a status query answers. Version numbers are major, minor, patch, build; a build of 255 is not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirmwareFacts {
    /// Version of the answer.
    pub format_version: u8,
    /// Version of the firmware.
    pub version: [u8; 4],
    /// Bits of the firmware's features (device-kmd §2.4), 0 when they could not be had. Bit 0: CRC required.
    pub features: u64,
    /// `QC_IMAGE_VERSION` of the firmware.
    pub qc_version: String,
    /// `OEM_IMAGE_VERSION` of the firmware.
    pub oem_version: String,
    /// `IMAGE_VARIANT` of the firmware.
    pub variant: String,
    /// Version of the hardware; the upper 16 bits are its family.
    pub hw_version: u32,
    /// Serial number of the chip.
    pub serial: String,
    /// Serial number of the board.
    pub board_serial: String,
    /// What the card has and what of it is free.
    pub resources: ResourceFacts,
    /// Frequencies and throughput.
    pub performance: PerformanceFacts,
    /// Constants that are loaded.
    pub constants_loaded: u32,
    /// Those of them that an activation uses.
    pub constants_in_use: u32,
    /// Programs that are loaded.
    pub networks_loaded: u8,
    /// Activations.
    pub networks_active: u8,
    /// Version of the metadata that the firmware reads: major, minor.
    pub metadata_version: (u16, u16),
    /// Version of the commands that it understands: major, minor.
    pub command_version: (u16, u16),
    /// Name of the second boot loader.
    pub sbl_image: String,
    /// Version of the PVS image.
    pub pvs_image_version: u32,
    /// Cores that are defective, one bit each.
    pub nsp_defective_mask: u64,
    /// Memory pages that were retired.
    pub retired_pages: u32,
    /// Whether a reset would retire more of them.
    pub needs_reset_to_retire_pages: bool,
    /// Kind of board (device-kmd §2.6).
    pub sku_type: u8,
    /// Version of the cores' firmware.
    pub nsp_version: [u8; 4],
    /// `QC_IMAGE_VERSION` of the cores' firmware.
    pub nsp_qc_version: String,
    /// `OEM_IMAGE_VERSION` of the cores' firmware.
    pub nsp_oem_version: String,
    /// `IMAGE_VARIANT` of the cores' firmware.
    pub nsp_variant: String,
}

/// What a card has and what of it is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceFacts {
    /// Memory in MB.
    pub dram_total_mb: u32,
    /// Free memory in MB.
    pub dram_free_mb: u32,
    /// How scattered the free memory is, 0 to 100.
    pub fragmentation: u32,
    /// Virtual channels.
    pub vc_total: u8,
    /// Free virtual channels.
    pub vc_free: u8,
    /// Cores.
    pub nsp_total: u8,
    /// Free cores.
    pub nsp_free: u8,
    /// Multicast ids.
    pub mcid_total: u32,
    /// Free multicast ids.
    pub mcid_free: u32,
    /// Semaphores.
    pub semaphore_total: u32,
    /// Free semaphores.
    pub semaphore_free: u32,
    /// Physical DMA channels.
    pub pc_total: u8,
    /// Those of them that are reserved.
    pub pc_reserved: u8,
}

/// Frequencies in Hz, and throughput.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerformanceFacts {
    /// Of the cores.
    pub nsp_hz: u32,
    /// Of the memory.
    pub ddr_hz: u32,
    /// Of the network between cores.
    pub compnoc_hz: u32,
    /// Of the network to the memory.
    pub memnoc_hz: u32,
    /// Of the system's network.
    pub sysnoc_hz: u32,
    /// Operations per second at most, on 8-bit integers.
    pub peak_compute_ops: u64,
    /// Memory traffic of the last 100 ms, in KB per second.
    pub dram_kb_per_s: u64,
}

impl FirmwareFacts {
    pub(super) fn new(status: CardStatus, features: u64) -> Self {
        Self {
            format_version: status.format_version,
            version: status.firmware_version,
            features,
            qc_version: status.qc_image_version,
            oem_version: status.oem_image_version,
            variant: status.image_variant,
            hw_version: status.hw_version,
            serial: status.serial,
            board_serial: status.board_serial,
            resources: status.resources.into(),
            performance: status.performance.into(),
            constants_loaded: status.loaded_constants,
            constants_in_use: status.constants_in_use,
            networks_loaded: status.loaded_networks,
            networks_active: status.active_networks,
            metadata_version: status.metadata_version,
            command_version: status.command_protocol,
            sbl_image: status.sbl_image_name,
            pvs_image_version: status.pvs_image_version,
            nsp_defective_mask: status.nsp_power_group_mask,
            retired_pages: status.retired_pages,
            needs_reset_to_retire_pages: status.needs_reset_to_retire_pages,
            sku_type: status.sku_type,
            nsp_version: status.cores.version,
            nsp_qc_version: status.cores.qc_image_version,
            nsp_oem_version: status.cores.oem_image_version,
            nsp_variant: status.cores.image_variant,
        }
    }
}

impl FirmwareFacts {
    /// In the words of all devices.
    pub(super) fn as_resources(&self) -> Resources {
        let facts = &self.resources;
        Resources {
            dram_total_mb: facts.dram_total_mb.into(),
            dram_free_mb: facts.dram_free_mb.into(),
            nsp_total: facts.nsp_total.into(),
            nsp_free: facts.nsp_free.into(),
            vc_total: facts.vc_total.into(),
            vc_free: facts.vc_free.into(),
            mcid_total: facts.mcid_total,
            mcid_free: facts.mcid_free,
            semaphore_total: facts.semaphore_total,
            semaphore_free: facts.semaphore_free,
            programs_loaded: self.networks_loaded.into(),
            programs_active: self.networks_active.into(),
            constants_loaded: self.constants_loaded,
            constants_in_use: self.constants_in_use,
        }
    }
}

impl From<ResourceInfo> for ResourceFacts {
    fn from(info: ResourceInfo) -> Self {
        Self {
            dram_total_mb: info.dram_total_mb,
            dram_free_mb: info.dram_free_mb,
            fragmentation: info.fragmentation,
            vc_total: info.vc_total,
            vc_free: info.vc_free,
            nsp_total: info.nsp_total,
            nsp_free: info.nsp_free,
            mcid_total: info.mcid_total,
            mcid_free: info.mcid_free,
            semaphore_total: info.sem_total,
            semaphore_free: info.sem_free,
            pc_total: info.pc_total,
            pc_reserved: info.pc_reserved,
        }
    }
}

impl From<PerformanceInfo> for PerformanceFacts {
    fn from(info: PerformanceInfo) -> Self {
        Self {
            nsp_hz: info.nsp_frequency_hz,
            ddr_hz: info.ddr_frequency_hz,
            compnoc_hz: info.compnoc_frequency_hz,
            memnoc_hz: info.memnoc_frequency_hz,
            sysnoc_hz: info.sysnoc_frequency_hz,
            peak_compute_ops: info.peak_compute_ops_per_s,
            dram_kb_per_s: info.dram_bandwidth_kb_per_s,
        }
    }
}
