//! Contents of replies about a card, built from its settings and its resource tables.

use qaic_kmd::protocol::{
    ActivateReply, CardStatus, PerformanceInfo, ResourceInfo, ResourceInfoReply, WHOLE_DEVICE,
};
use qaic_kmd::wire::Text;

use super::config::FirmwareConfig;
use crate::resources::Amounts;

/// Resources of a new activation.
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

/// Channel number of an activation without a channel.
const NO_CHANNEL: u32 = u32::MAX;
/// Length code of a missing doorbell.
const NO_DOORBELL: u8 = 3;

pub(super) fn activated(got: &Activated) -> ActivateReply {
    // The mask has 32 bits.
    #[allow(clippy::cast_possible_truncation)]
    let nsp_mask = got.cores as u32;
    ActivateReply {
        activation_id: got.activation_id,
        virtual_channel_id: got.channel.unwrap_or(NO_CHANNEL),
        ddr_base: got.ddr_base,
        dynamic_ddr_base: got.dynamic_ddr_base,
        mcid_base: got.mcid_base,
        mcid_base_dma_cmd: got.mcid_base,
        pc_mask: got.physical_channels,
        cmd_doorbell_length: NO_DOORBELL,
        nsp_mask: nsp_mask.into(),
        ..ActivateReply::default()
    }
}

/// Resources of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResourceSummary {
    pub(super) total: Amounts,
    pub(super) free: Amounts,
    pub(super) physical_channels: u8,
}

pub(super) fn resource_info_reply(summary: &ResourceSummary) -> ResourceInfoReply {
    ResourceInfoReply {
        res_grp_id: WHOLE_DEVICE,
        resources: resource_info(summary),
        ..ResourceInfoReply::default()
    }
}

fn resource_info(summary: &ResourceSummary) -> ResourceInfo {
    let ResourceSummary { total, free, physical_channels } = *summary;
    let megabytes = |bytes: u64| u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
    let small = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
    ResourceInfo {
        dram_total_mb: megabytes(total.ddr_bytes),
        dram_free_mb: megabytes(free.ddr_bytes),
        vc_total: small(total.channels),
        vc_free: small(free.channels),
        nsp_total: small(total.cores),
        nsp_free: small(free.cores),
        mcid_total: total.multicast_ids,
        mcid_free: free.multicast_ids,
        sem_total: total.semaphores,
        sem_free: free.semaphores,
        pc_total: physical_channels,
        ..ResourceInfo::default()
    }
}

pub(super) fn performance_info(config: &FirmwareConfig) -> PerformanceInfo {
    let performance = &config.performance;
    PerformanceInfo {
        nsp_hz: performance.nsp_hz,
        ddr_hz: performance.ddr_hz,
        compnoc_hz: performance.compute_noc_hz,
        memnoc_hz: performance.memory_noc_hz,
        sysnoc_hz: performance.system_noc_hz,
        peak_compute: performance.peak_operations_per_second,
        dram_bw_kb_per_s: performance.ddr_kilobytes_per_second,
        ..PerformanceInfo::default()
    }
}

/// A loaded image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Loaded {
    pub(super) constants: usize,
    pub(super) constants_in_use: usize,
    pub(super) elves: usize,
    pub(super) activations: usize,
}

pub(super) fn card_status(config: &FirmwareConfig, summary: &ResourceSummary, loaded: &Loaded) -> CardStatus {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let small = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
    let [fw_major, fw_minor, fw_patch, fw_build] = config.fw_version;
    let [nsp_fw_major, nsp_fw_minor, nsp_fw_patch, nsp_fw_build] = config.nsp_version;
    CardStatus {
        format_version: config.format_version,
        fw_major,
        fw_minor,
        fw_patch,
        fw_build,
        qc_image_version: Text::new(&config.qc_image),
        oem_image_version: Text::new(&config.oem_image),
        image_variant: Text::new(&config.image_variant),
        hw_version: config.hw_version,
        serial: Text::new(&config.serial),
        board_serial: Text::new(&config.board_serial),
        resources: resource_info(summary),
        performance: performance_info(config),
        num_loaded_consts: count(loaded.constants),
        num_consts_in_use: count(loaded.constants_in_use),
        num_loaded_nws: small(loaded.elves),
        num_active_nws: small(loaded.activations),
        meta_ver_maj: config.metadata_version.0,
        meta_ver_min: config.metadata_version.1,
        nnc_major: config.nnc_version.0,
        nnc_minor: config.nnc_version.1,
        sbl_image_name: Text::new(&config.sbl_image),
        pvs_image_version: config.pvs_image_version,
        nsp_pgmask: config.nsp_defects,
        sku_type: config.sku_type,
        nsp_fw_major,
        nsp_fw_minor,
        nsp_fw_patch,
        nsp_fw_build,
        nsp_qc_image_version: Text::new(&config.qc_image),
        nsp_oem_image_version: Text::new(&config.oem_image),
        nsp_image_variant: Text::new(&config.image_variant),
        ..CardStatus::default()
    }
}
