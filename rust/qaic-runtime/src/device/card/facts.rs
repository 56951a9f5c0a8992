//! Facts that a card reports, for the tools that list devices.

use qaic_kmd::protocol::CardStatus;
use qaic_kmd::{MemoryErrors, NodeInfo, Telemetry};
use serde_json::{Value, json};

use crate::device::Resources;
use crate::error::RuntimeError;

/// State of a card at one moment, as reported by the system and the firmware.
#[derive(Clone, Debug)]
pub(crate) struct CardFacts {
    /// Number, node, bus address, names and link.
    pub(crate) node: NodeInfo,
    /// Temperature and power.
    pub(crate) telemetry: Telemetry,
    /// Memory errors that the card has reported.
    pub(crate) memory_errors: MemoryErrors,
    /// Facts from the firmware, or the reason why it did not answer, which makes the card's state "Error".
    pub(crate) firmware: Result<FirmwareFacts, RuntimeError>,
}

/// The firmware's answers about its status and its features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FirmwareFacts {
    /// The card's status, with its current resources and performance.
    pub(crate) status: CardStatus,
    /// Feature bits of the firmware; 0 if they are unavailable. Bit 0: CRC required.
    pub(crate) features: u64,
}

impl CardFacts {
    /// Returns the facts by name, for tools. If the firmware does not answer, `reason` contains the error.
    pub(crate) fn record(&self) -> Value {
        let Self { node, telemetry, memory_errors, firmware } = self;
        let address = node.address;
        json!({
            "node": node.path,
            "address": (address.domain, address.bus, address.device, address.function),
            "pci": node.pci,
            "soc_temperature_millicelsius": telemetry.soc_temperature_millicelsius,
            "board_power_microwatts": telemetry.board_power_microwatts,
            "tdp_cap_microwatts": telemetry.tdp_cap_microwatts,
            "memory_errors_correctable": memory_errors.correctable,
            "memory_errors_uncorrectable": memory_errors.uncorrectable,
            "memory_errors_uncorrectable_nonfatal": memory_errors.uncorrectable_nonfatal,
            "firmware": firmware.as_ref().ok().map(FirmwareFacts::record),
            "reason": firmware.as_ref().err().map(ToString::to_string),
        })
    }
}

impl FirmwareFacts {
    fn record(&self) -> Value {
        let (status, resources, performance) =
            (&self.status, &self.status.resources, &self.status.performance);
        json!({
            "format_version": status.format_version,
            "version": status.firmware_version(),
            "features": self.features,
            "qc_version": status.qc_image_version.to_string(),
            "oem_version": status.oem_image_version.to_string(),
            "variant": status.image_variant.to_string(),
            "hw_version": status.hw_version,
            "serial": status.serial.to_string(),
            "board_serial": status.board_serial.to_string(),
            "resources": {
                "dram_total_mb": resources.dram_total_mb,
                "dram_free_mb": resources.dram_free_mb,
                "fragmentation": resources.fragmentation,
                "vc_total": resources.vc_total,
                "vc_free": resources.vc_free,
                "nsp_total": resources.nsp_total,
                "nsp_free": resources.nsp_free,
                "mcid_total": resources.mcid_total,
                "mcid_free": resources.mcid_free,
                "semaphore_total": resources.sem_total,
                "semaphore_free": resources.sem_free,
                "pc_total": resources.pc_total,
                "pc_reserved": resources.pc_reserved,
            },
            "performance": {
                "nsp_hz": performance.nsp_hz,
                "ddr_hz": performance.ddr_hz,
                "compnoc_hz": performance.compnoc_hz,
                "memnoc_hz": performance.memnoc_hz,
                "sysnoc_hz": performance.sysnoc_hz,
                "peak_compute_ops": performance.peak_compute,
                "dram_kb_per_s": performance.dram_bw_kb_per_s,
            },
            "constants_loaded": status.num_loaded_consts,
            "constants_in_use": status.num_consts_in_use,
            "networks_loaded": status.num_loaded_nws,
            "networks_active": status.num_active_nws,
            "metadata_version": status.metadata_version(),
            "command_version": status.command_protocol(),
            "sbl_image": status.sbl_image_name.to_string(),
            "pvs_image_version": status.pvs_image_version,
            "nsp_defective_mask": status.nsp_pgmask,
            "retired_pages": status.num_retired_pages,
            "needs_reset_to_retire_pages": status.need_reset_to_retire_pages != 0,
            "sku_type": status.sku_type,
            "nsp_version": status.nsp_version(),
            "nsp_qc_version": status.nsp_qc_image_version.to_string(),
            "nsp_oem_version": status.nsp_oem_image_version.to_string(),
            "nsp_variant": status.nsp_image_variant.to_string(),
        })
    }

    /// Converts the facts to the resource description of all devices.
    pub(super) fn as_resources(&self) -> Resources {
        let (status, info) = (&self.status, &self.status.resources);
        Resources {
            dram_total_mb: info.dram_total_mb.into(),
            dram_free_mb: info.dram_free_mb.into(),
            nsp_total: info.nsp_total.into(),
            nsp_free: info.nsp_free.into(),
            vc_total: info.vc_total.into(),
            vc_free: info.vc_free.into(),
            mcid_total: info.mcid_total,
            mcid_free: info.mcid_free,
            semaphore_total: info.sem_total,
            semaphore_free: info.sem_free,
            programs_loaded: status.num_loaded_nws.into(),
            programs_active: status.num_active_nws.into(),
            constants_loaded: status.num_loaded_consts,
            constants_in_use: status.num_consts_in_use,
        }
    }
}
