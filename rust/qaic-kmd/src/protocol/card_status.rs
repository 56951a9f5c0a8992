//! Status of a card: versions, resources, frequencies.

use super::NncStatus;
use crate::wire::{Reserved, Text, wire};

/// Complete image name of an emulated card's firmware, which no vendor image has. The cores of the card run programs
/// compiled for a host.
///
/// The suffix `.EMU` of a variant does not identify emulated cards: vendors use it for platforms that emulate a chip
/// before it exists.
pub const EMULATED_IMAGE: &str = "OPENQAIC.EMU";

impl CardStatus {
    /// Returns true if the card reports that it is emulated.
    pub fn is_emulated(&self) -> bool {
        self.qc_image_version.to_string() == EMULATED_IMAGE
    }
}

wire! {
    /// Reply to the status command: everything about a card.
    pub struct CardStatus: 504 = 14 "status_reply" {
        /// Status of the firmware; unless it is success, the other fields have no meaning.
        status: NncStatus,
        /// Version of this structure.
        format_version: u8,
        reserved_0: Reserved<7>,
        fw_major: u8,
        fw_minor: u8,
        fw_patch: u8,
        /// Version of the firmware; 255 is not displayed.
        fw_build: u8,
        qc_image_version: Text<38>,
        oem_image_version: Text<38>,
        image_variant: Text<16>,
        /// Version of the hardware; its family is in the upper half.
        hw_version: u32,
        /// Number of the chip.
        serial: Text<16>,
        board_serial: Text<32>,
        compiler_version: u32,
        resources: ResourceInfo,
        performance: PerformanceInfo,
        num_loaded_consts: u32,
        num_consts_in_use: u32,
        /// Network images that are loaded.
        num_loaded_nws: u8,
        num_active_nws: u8,
        /// Metadata version that the card accepts.
        meta_ver_maj: u16,
        meta_ver_min: u16,
        /// Version of the commands.
        nnc_major: u16,
        nnc_minor: u16,
        /// Name of the second boot loader's image.
        sbl_image_name: Text<24>,
        /// 1 if a reset would retire bad pages.
        need_reset_to_retire_pages: u8,
        reserved_1: Reserved<1>,
        pvs_image_version: u32,
        /// Power groups of cores that are defective.
        nsp_pgmask: u64,
        /// Offset of the device's time.
        qts_time_offset_us: u64,
        num_retired_pages: u32,
        /// Kind of the board.
        sku_type: u8,
        complex_id: u8,
        reserved_2: Reserved<2>,
        nsp_fw_major: u8,
        nsp_fw_minor: u8,
        nsp_fw_patch: u8,
        /// Version of the cores' software; 255 is not displayed.
        nsp_fw_build: u8,
        reserved_3: Reserved<4>,
        nsp_qc_image_version: Text<64>,
        nsp_oem_image_version: Text<48>,
        nsp_image_variant: Text<48>,
    }

    /// Total and free resources of a card or a resource group.
    pub struct ResourceInfo: 40 {
        dram_total_mb: u32,
        dram_free_mb: u32,
        /// Fragmentation of the free memory, on an unknown scale.
        fragmentation: u32,
        /// Virtual channels.
        vc_total: u8,
        vc_free: u8,
        /// Cores.
        nsp_total: u8,
        nsp_free: u8,
        /// Multicast ids.
        mcid_total: u32,
        mcid_free: u32,
        sem_total: u32,
        sem_free: u32,
        /// Physical channels.
        pc_total: u8,
        pc_reserved: u8,
        reserved: Reserved<6>,
    }

    /// Frequencies and bandwidth.
    pub struct PerformanceInfo: 56 {
        nsp_hz: u32,
        ddr_hz: u32,
        /// Clock of the network between the cores.
        compnoc_hz: u32,
        /// Clock of the network to the memory.
        memnoc_hz: u32,
        /// Clock of the system's network.
        sysnoc_hz: u32,
        reserved_0: Reserved<4>,
        /// Peak 8-bit operations per second.
        peak_compute: u64,
        /// Bandwidth, averaged over about the last 100 ms.
        dram_bw_kb_per_s: u64,
        reserved_1: Reserved<16>,
    }
}

impl CardStatus {
    /// Version of the firmware: major, minor, patch, build.
    pub fn firmware_version(&self) -> [u8; 4] {
        [self.fw_major, self.fw_minor, self.fw_patch, self.fw_build]
    }

    /// Version of the cores' software: major, minor, patch, build.
    pub fn nsp_version(&self) -> [u8; 4] {
        [self.nsp_fw_major, self.nsp_fw_minor, self.nsp_fw_patch, self.nsp_fw_build]
    }

    /// Metadata version that the card accepts: major, minor.
    pub fn metadata_version(&self) -> (u16, u16) {
        (self.meta_ver_maj, self.meta_ver_min)
    }

    /// Version of the commands: major, minor.
    pub fn command_protocol(&self) -> (u16, u16) {
        (self.nnc_major, self.nnc_minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_firmware_of_the_emulator_is_emulated() {
        let of = |image: &str, variant: &str| CardStatus {
            qc_image_version: Text::new(image),
            image_variant: Text::new(variant),
            ..CardStatus::default()
        };
        assert!(of(EMULATED_IMAGE, "AIC100.EMU").is_emulated() && of(EMULATED_IMAGE, "").is_emulated());
        for image in ["AIC.1.20.EMU", "", "QC.OPENQAIC.EMU", "OPENQAIC.EMU.1"] {
            assert!(!of(image, "AIC100.EMU").is_emulated(), "{image}");
        }
    }
}
