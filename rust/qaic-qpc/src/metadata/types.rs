//! The owned metadata and its parts. Field meanings are those of the format; codes are kept as numbers,
//! because the host passes most of them on without judging.
#![allow(missing_docs)] // The fields are the format's; a sentence each would only repeat their names.

use serde::{Deserialize, Serialize};

/// The metadata version this library reads and writes.
pub(super) const VERSION_MAJOR: u16 = 1;

/// Everything the metadata says. The JSON form uses the format's names; missing fields are zero or empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Metadata {
    pub version_major: u16,
    pub version_minor: u16,
    pub network_name: String,
    /// Paths of fields a reader must understand, see [`super::is_known_field`].
    pub required_fields: Vec<String>,
    /// Initial value per semaphore.
    pub semaphore_init_state: Vec<u32>,
    #[serde(rename = "L2TCMInitState")]
    pub l2tcm_init_state: Vec<u8>,
    pub dma_requests: Vec<DmaRequest>,
    /// One table per core.
    pub nsp_multicast_tables: Vec<NspMulticastTable>,
    pub host_multicast_table: HostMulticastTable,
    pub thread_descriptors: Vec<ThreadDescriptor>,
    pub constant_mappings: Vec<ConstantMapping>,
    #[serde(rename = "staticSharedDDRSize")]
    pub static_shared_ddr_size: u64,
    #[serde(rename = "dynamicSharedDDRSize")]
    pub dynamic_shared_ddr_size: u64,
    pub static_constants_size: u64,
    pub dynamic_constants_size: u64,
    /// All ones: none.
    pub exit_doorbell_offset: u64,
    #[serde(rename = "l2CachedDDRSize")]
    pub l2_cached_ddr_size: u32,
    #[serde(rename = "L2TCMInitSize")]
    pub l2tcm_init_size: u32,
    pub exec_context_major_version: u16,
    #[serde(rename = "numNSPs")]
    pub num_nsps: u16,
    pub num_semaphores: u16,
    pub hw_version_major: u8,
    pub hw_version_minor: u8,
    #[serde(rename = "staticSharedDDRECCEnabled")]
    pub static_shared_ddr_ecc_enabled: u8,
    #[serde(rename = "dynamicSharedDDRECCEnabled")]
    pub dynamic_shared_ddr_ecc_enabled: u8,
    #[serde(rename = "staticConstantsECCEnabled")]
    pub static_constants_ecc_enabled: u8,
    #[serde(rename = "dynamicConstantsECCEnabled")]
    pub dynamic_constants_ecc_enabled: u8,
    #[serde(rename = "singleVTCMPage")]
    pub single_vtcm_page: u8,
    #[serde(rename = "hasHvxFP")]
    pub has_hvx_fp: u8,
    #[serde(rename = "hasHmxFP")]
    pub has_hmx_fp: u8,
    #[serde(rename = "VTCMSize")]
    pub vtcm_size: u32,
    #[serde(rename = "L2TCMSize")]
    pub l2tcm_size: u32,
    pub network_heap_size: u64,
    #[serde(rename = "raw_struct_version_length")]
    pub raw_struct_version_length: u64,
    #[serde(rename = "QNNConfig", skip_serializing_if = "Option::is_none")]
    pub qnn_config: Option<QnnConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub port_table: Vec<PortEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exec_context: Vec<u8>,
    #[serde(rename = "L2TCMInitStateNonZeroRegions", skip_serializing_if = "Vec::is_empty")]
    pub l2tcm_init_state_non_zero_regions: Vec<NonZeroRegion>,
    #[serde(rename = "dynamicSharedDDRSupported")]
    pub dynamic_shared_ddr_supported: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_heap_behavior: Option<NetworkHeapBehavior>,
}

impl Default for Metadata {
    /// Empty, in the version this library writes.
    fn default() -> Self {
        Self { version_major: VERSION_MAJOR, ..Self::EMPTY }
    }
}

impl Metadata {
    /// Meaning of a `FlatBuffer` without any field.
    pub(super) const EMPTY: Self = Self {
        version_major: 0,
        version_minor: 0,
        network_name: String::new(),
        required_fields: Vec::new(),
        semaphore_init_state: Vec::new(),
        l2tcm_init_state: Vec::new(),
        dma_requests: Vec::new(),
        nsp_multicast_tables: Vec::new(),
        host_multicast_table: HostMulticastTable { multicast_entries: Vec::new() },
        thread_descriptors: Vec::new(),
        constant_mappings: Vec::new(),
        static_shared_ddr_size: 0,
        dynamic_shared_ddr_size: 0,
        static_constants_size: 0,
        dynamic_constants_size: 0,
        exit_doorbell_offset: 0,
        l2_cached_ddr_size: 0,
        l2tcm_init_size: 0,
        exec_context_major_version: 0,
        num_nsps: 0,
        num_semaphores: 0,
        hw_version_major: 0,
        hw_version_minor: 0,
        static_shared_ddr_ecc_enabled: 0,
        dynamic_shared_ddr_ecc_enabled: 0,
        static_constants_ecc_enabled: 0,
        dynamic_constants_ecc_enabled: 0,
        single_vtcm_page: 0,
        has_hvx_fp: 0,
        has_hmx_fp: 0,
        vtcm_size: 0,
        l2tcm_size: 0,
        network_heap_size: 0,
        raw_struct_version_length: 0,
        qnn_config: None,
        port_table: Vec::new(),
        exec_context: Vec::new(),
        l2tcm_init_state_non_zero_regions: Vec::new(),
        dynamic_shared_ddr_supported: 0,
        network_heap_behavior: None,
    };

    /// Number of multicast ids of the program: the entries of the first core.
    pub fn num_mc_id(&self) -> usize {
        self.nsp_multicast_tables.first().map_or(0, |table| table.multicast_entries.len())
    }
}

/// Semaphore operation of a DMA request. `semOp`: 0 nop, 1 init, 2 inc, 3 dec, 4 wait equal, 5 wait greater or equal,
/// 6 P.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SemaphoreOp {
    pub sem_num: u16,
    pub sem_value: u16,
    pub sem_op: u8,
    /// 0 after, 1 before the transfer.
    pub pre_or_post: u8,
    pub in_sync_fence: u8,
    pub out_sync_fence: u8,
}

/// Doorbell a DMA request rings. `size`: 0, 1, 2 for 8, 16, 32 bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DoorbellOp {
    pub offset: u64,
    pub data: u32,
    pub mc_id: u16,
    pub size: u8,
}

/// One transfer between a DMA buffer and the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DmaRequest {
    pub semaphore_ops: Vec<SemaphoreOp>,
    pub doorbell_ops: Vec<DoorbellOp>,
    /// Start of the slice of DMA buffer `num`.
    pub host_offset: u64,
    pub dev_offset: u64,
    /// Bytes; 0 is a request for synchronization alone.
    pub size: u32,
    /// DMA buffer number.
    pub num: u16,
    pub mc_id: u16,
    /// 0 multicast, 1 DDR, 2 dynamic shared DDR.
    pub dev_addr_space: u8,
    /// 0 in, 1 out.
    pub in_out: u8,
    /// 100 host input, 101 host output.
    pub port_id: u16,
    /// Only in newer files; all ones: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction_id: Option<u32>,
}

/// Multicast window of a core. `addrSpace`: 0 L2TCM, 1 VTCM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NspMulticastEntry {
    pub base_addr_offset: u64,
    pub mask: u32,
    pub size: u32,
    pub addr_space: u8,
    pub dynamic: u8,
}

/// All multicast windows of one core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NspMulticastTable {
    pub multicast_entries: Vec<NspMulticastEntry>,
}

/// Multicast window of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HostMulticastEntry {
    pub mask: u32,
    pub size: u32,
}

/// All multicast windows of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HostMulticastTable {
    pub multicast_entries: Vec<HostMulticastEntry>,
}

/// A thread of every core. `typeMask`: bit 0 HMX, bit 1 HVX.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ThreadDescriptor {
    pub entry_point: u64,
    pub type_mask: u8,
}

/// Constants that cores see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ConstantMapping {
    pub constant_data_base_offset: u64,
    pub core_mask: u32,
    pub size: u32,
}

/// `Constants`: 1 cache disabled, 2 enabled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QnnConfig {
    #[serde(rename = "Constants")]
    pub constants: i8,
}

impl Default for QnnConfig {
    fn default() -> Self {
        Self { constants: 1 }
    }
}

/// A port. `portType`: 0 user IO, 1 peer to peer, 2 multi-device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PortEntry {
    pub port_id: u16,
    pub port_type: i8,
}

/// Part of `L2TCMInitState` that is not zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NonZeroRegion {
    pub start: u64,
    pub end: u64,
    pub size: u64,
}

/// `onNetworkDeactivate`: 1 free the heap, 2 keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NetworkHeapBehavior {
    pub on_network_deactivate: i8,
}

impl Default for NetworkHeapBehavior {
    fn default() -> Self {
        Self { on_network_deactivate: 1 }
    }
}
