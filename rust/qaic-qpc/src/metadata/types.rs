//! The owned metadata and its parts, as tables of the schema. Field meanings are those of the format. Codes remain
//! numbers, because the host passes most of them on unchecked.
#![allow(missing_docs)] // The format defines the fields; their docs would repeat their names.

use serde::{Deserialize, Serialize};

use super::table::tables;

/// The metadata version this library reads and writes.
pub(super) const VERSION_MAJOR: u16 = 1;

tables! {
    /// The contents of the metadata. The JSON form uses the format's names; missing fields are zero or empty.
    Metadata "Metadata" {
        0 "versionMajor" => [version_major: u16 = VERSION_MAJOR],
        1 "versionMinor" => [version_minor: u16],
        2 "networkName" => [network_name: String],
        /// Paths of fields that a reader must support.
        3 "requiredFields" => [required_fields: Vec<String>],
        /// Initial value per semaphore.
        4 "semaphoreInitState" => [semaphore_init_state: Vec<u32>],
        5 "L2TCMInitState" => [l2tcm_init_state: Vec<u8>],
        6 "dmaRequests" => [dma_requests: Vec<DmaRequest>],
        /// One table per core.
        7 "nspMulticastTables" => [nsp_multicast_tables: Vec<NspMulticastTable>],
        8 "hostMulticastTable" => [host_multicast_table: HostMulticastTable],
        9 "threadDescriptors" => [thread_descriptors: Vec<ThreadDescriptor>],
        10 "constantMappings" => [constant_mappings: Vec<ConstantMapping>],
        11 "staticSharedDDRSize" => [static_shared_ddr_size: u64],
        12 "dynamicSharedDDRSize" => [dynamic_shared_ddr_size: u64],
        13 "staticConstantsSize" => [static_constants_size: u64],
        14 "dynamicConstantsSize" => [dynamic_constants_size: u64],
        /// Offset of the exit doorbell; all ones means none.
        15 "exitDoorbellOffset" => [exit_doorbell_offset: u64],
        16 "l2CachedDDRSize" => [l2_cached_ddr_size: u32],
        17 "L2TCMInitSize" => [l2tcm_init_size: u32],
        18 "execContextMajorVersion" => [exec_context_major_version: u16],
        19 "numNSPs" => [num_nsps: u16],
        20 "numSemaphores" => [num_semaphores: u16],
        21 "hwVersionMajor" => [hw_version_major: u8],
        22 "hwVersionMinor" => [hw_version_minor: u8],
        23 "staticSharedDDRECCEnabled" => [static_shared_ddr_ecc_enabled: u8],
        24 "dynamicSharedDDRECCEnabled" => [dynamic_shared_ddr_ecc_enabled: u8],
        25 "staticConstantsECCEnabled" => [static_constants_ecc_enabled: u8],
        26 "dynamicConstantsECCEnabled" => [dynamic_constants_ecc_enabled: u8],
        27 "singleVTCMPage" => [single_vtcm_page: u8],
        28 "hasHvxFP" => [has_hvx_fp: u8],
        29 "hasHmxFP" => [has_hmx_fp: u8],
        30 "VTCMSize" => [vtcm_size: u32],
        31 "L2TCMSize" => [l2tcm_size: u32],
        32 "networkHeapSize" => [network_heap_size: u64],
        33 "raw_struct_version_length" => [raw_struct_version_length: u64],
        #[serde(skip_serializing_if = "Option::is_none")]
        34 "QNNConfig" => newer [qnn_config: Option<QnnConfig>],
        #[serde(skip_serializing_if = "Vec::is_empty")]
        35 "portTable" => newer [port_table: Vec<PortEntry>],
        #[serde(skip_serializing_if = "Vec::is_empty")]
        36 "execContext" => newer [exec_context: Vec<u8>],
        #[serde(skip_serializing_if = "Vec::is_empty")]
        37 "L2TCMInitStateNonZeroRegions" => newer [l2tcm_init_state_non_zero_regions: Vec<NonZeroRegion>],
        38 "dynamicSharedDDRSupported" => newer [dynamic_shared_ddr_supported: u8],
        #[serde(skip_serializing_if = "Option::is_none")]
        39 "networkHeapBehavior" => newer [network_heap_behavior: Option<NetworkHeapBehavior>],
    }

    /// Semaphore operation of a DMA request. `semOp`: 0 nop, 1 init, 2 inc, 3 dec, 4 wait equal, 5 wait greater or equal,
    /// 6 P.
    SemaphoreOp "SemaphoreOp" {
        0 "semNum" => [sem_num: u16],
        1 "semValue" => [sem_value: u16],
        2 "semOp" => [sem_op: u8],
        /// Position of the operation: 0 after, 1 before the transfer.
        3 "preOrPost" => [pre_or_post: u8],
        4 "inSyncFence" => [in_sync_fence: u8],
        5 "outSyncFence" => [out_sync_fence: u8],
    }

    /// Doorbell a DMA request rings. `size`: 0, 1, 2 for 8, 16, 32 bits.
    DoorbellOp "DoorbellOp" {
        0 "offset" => [offset: u64],
        1 "data" => [data: u32],
        2 "mcId" => [mc_id: u16],
        3 "size" => [size: u8],
    }

    /// One transfer between a DMA buffer and the device.
    DmaRequest "DMARequest" {
        0 "semaphoreOps" => [semaphore_ops: Vec<SemaphoreOp>],
        1 "doorbellOps" => [doorbell_ops: Vec<DoorbellOp>],
        /// Start of the slice of DMA buffer `num`.
        2 "hostOffset" => [host_offset: u64],
        3 "devOffset" => [dev_offset: u64],
        /// Number of bytes; 0 is a request that only synchronizes.
        4 "size" => [size: u32],
        /// DMA buffer number.
        5 "num" => [num: u16],
        6 "mcId" => [mc_id: u16],
        /// Address space: 0 multicast, 1 DDR, 2 dynamic shared DDR.
        7 "devAddrSpace" => [dev_addr_space: u8],
        /// Direction: 0 in, 1 out.
        8 "inOut" => [in_out: u8],
        /// Port: 100 host input, 101 host output.
        9 "portId" => [port_id: u16],
        /// Transaction id, only in newer files; all ones means none.
        #[serde(skip_serializing_if = "Option::is_none")]
        10 "transactionId" => [transaction_id: Option<u32>],
    }

    /// Multicast window of a core. `addrSpace`: 0 L2TCM, 1 VTCM.
    NspMulticastEntry "NSPEntry" {
        0 "baseAddrOffset" => [base_addr_offset: u64],
        1 "mask" => [mask: u32],
        2 "size" => [size: u32],
        3 "addrSpace" => [addr_space: u8],
        4 "dynamic" => [dynamic: u8],
    }

    /// All multicast windows of one core.
    NspMulticastTable "NSPTable" {
        0 "multicastEntries" => [multicast_entries: Vec<NspMulticastEntry>],
    }

    /// Multicast window of the host.
    HostMulticastEntry "HostEntry" {
        0 "mask" => [mask: u32],
        1 "size" => [size: u32],
    }

    /// All multicast windows of the host.
    HostMulticastTable "HostTable" {
        0 "multicastEntries" => [multicast_entries: Vec<HostMulticastEntry>],
    }

    /// A thread of every core. `typeMask`: bit 0 HMX, bit 1 HVX.
    ThreadDescriptor "ThreadDescriptor" {
        0 "entryPoint" => [entry_point: u64],
        1 "typeMask" => [type_mask: u8],
    }

    /// Constants that are visible to cores.
    ConstantMapping "ConstantMapping" {
        0 "constantDataBaseOffset" => [constant_data_base_offset: u64],
        1 "coreMask" => [core_mask: u32],
        2 "size" => [size: u32],
    }

    /// `Constants`: 1 cache disabled, 2 enabled.
    QnnConfig "QNNConfigDef" {
        0 "Constants" => [constants: i8 = 1],
    }

    /// A non-zero part of `L2TCMInitState`.
    NonZeroRegion "NonZeroRegion" {
        0 "start" => [start: u64],
        1 "end" => [end: u64],
        2 "size" => [size: u64],
    }

    /// `onNetworkDeactivate`: 1 free the heap, 2 keep it.
    NetworkHeapBehavior "networkHeapBehaviorDef" {
        0 "onNetworkDeactivate" => [on_network_deactivate: i8 = 1],
    }
}

/// A port, a struct of four bytes. `portType`: 0 user IO, 1 peer to peer, 2 multi-device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PortEntry {
    pub port_id: u16,
    pub port_type: i8,
}

impl Metadata {
    /// Number of multicast ids of the program, which equals the entries of the first core.
    pub fn num_mc_id(&self) -> usize {
        self.nsp_multicast_tables.first().map_or(0, |table| table.multicast_entries.len())
    }
}
