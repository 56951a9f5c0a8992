//! Field ids of the `FlatBuffer` form, read and written.

use super::flat_read::Table;
use super::flat_write::{self, Value};
use super::types::{
    ConstantMapping, DmaRequest, DoorbellOp, HostMulticastEntry, HostMulticastTable, Metadata,
    NetworkHeapBehavior, NonZeroRegion, NspMulticastEntry, NspMulticastTable, PortEntry, QnnConfig,
    SemaphoreOp, ThreadDescriptor, VERSION_MAJOR,
};
use crate::bytes::{u8_at, u16_at};
use crate::error::QpcError;
use crate::limits::{Budget, Limits};

/// Name of an unnamed program in the file.
const UNNAMED: &str = "unnamed";
/// `transactionId` that means none.
pub(super) const NO_TRANSACTION: u32 = u32::MAX;

type Read<T> = Result<T, QpcError>;

/// Reads the `FlatBuffer` form: structure first, then version and required fields, as the reference does.
pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Read<Metadata> {
    let metadata = decode_unchecked(bytes, limits)?;
    if metadata.version_major != VERSION_MAJOR {
        return Err(QpcError::MetadataVersion { found: metadata.version_major, supported: VERSION_MAJOR });
    }
    match metadata.required_fields.iter().find(|field| !super::is_known_field(field)) {
        Some(field) => Err(QpcError::UnknownRequiredField { field: field.clone() }),
        None => Ok(metadata),
    }
}

fn decode_unchecked(bytes: &[u8], limits: &Limits) -> Read<Metadata> {
    let budget = &mut Budget::new(limits);
    let root = Table::root(bytes, "Metadata")?;
    Ok(Metadata {
        version_major: root.u16(0)?,
        version_minor: root.u16(1)?,
        network_name: root.text(2, budget)?,
        required_fields: root.texts(3, budget)?,
        semaphore_init_state: root.words(4, budget)?,
        l2tcm_init_state: root.bytes(5, budget)?,
        dma_requests: root.tables(6, "DMARequest", budget, read_dma_request)?,
        nsp_multicast_tables: root.tables(7, "NSPTable", budget, read_nsp_table)?,
        host_multicast_table: match root.table(8, "HostTable")? {
            Some(table) => read_host_table(&table, budget)?,
            None => HostMulticastTable::default(),
        },
        thread_descriptors: root.tables(9, "ThreadDescriptor", budget, |table, _| {
            Ok(ThreadDescriptor { entry_point: table.u64(0)?, type_mask: table.u8(1)? })
        })?,
        constant_mappings: root.tables(10, "ConstantMapping", budget, |table, _| {
            Ok(ConstantMapping {
                constant_data_base_offset: table.u64(0)?,
                core_mask: table.u32(1)?,
                size: table.u32(2)?,
            })
        })?,
        static_shared_ddr_size: root.u64(11)?,
        dynamic_shared_ddr_size: root.u64(12)?,
        static_constants_size: root.u64(13)?,
        dynamic_constants_size: root.u64(14)?,
        exit_doorbell_offset: root.u64(15)?,
        l2_cached_ddr_size: root.u32(16)?,
        l2tcm_init_size: root.u32(17)?,
        exec_context_major_version: root.u16(18)?,
        num_nsps: root.u16(19)?,
        num_semaphores: root.u16(20)?,
        hw_version_major: root.u8(21)?,
        hw_version_minor: root.u8(22)?,
        static_shared_ddr_ecc_enabled: root.u8(23)?,
        dynamic_shared_ddr_ecc_enabled: root.u8(24)?,
        static_constants_ecc_enabled: root.u8(25)?,
        dynamic_constants_ecc_enabled: root.u8(26)?,
        single_vtcm_page: root.u8(27)?,
        has_hvx_fp: root.u8(28)?,
        has_hmx_fp: root.u8(29)?,
        vtcm_size: root.u32(30)?,
        l2tcm_size: root.u32(31)?,
        network_heap_size: root.u64(32)?,
        raw_struct_version_length: root.u64(33)?,
        qnn_config: match root.table(34, "QNNConfigDef")? {
            Some(table) => Some(QnnConfig { constants: table.i8(0, 1)? }),
            None => None,
        },
        port_table: root.structs(35, budget, read_port)?,
        exec_context: root.bytes(36, budget)?,
        l2tcm_init_state_non_zero_regions: root.tables(37, "NonZeroRegion", budget, |table, _| {
            Ok(NonZeroRegion { start: table.u64(0)?, end: table.u64(1)?, size: table.u64(2)? })
        })?,
        dynamic_shared_ddr_supported: root.u8(38)?,
        network_heap_behavior: match root.table(39, "networkHeapBehaviorDef")? {
            Some(table) => Some(NetworkHeapBehavior { on_network_deactivate: table.i8(0, 1)? }),
            None => None,
        },
    })
}

fn read_dma_request(table: &Table<'_>, budget: &mut Budget) -> Read<DmaRequest> {
    Ok(DmaRequest {
        semaphore_ops: table.tables(0, "SemaphoreOp", budget, |table, _| {
            Ok(SemaphoreOp {
                sem_num: table.u16(0)?,
                sem_value: table.u16(1)?,
                sem_op: table.u8(2)?,
                pre_or_post: table.u8(3)?,
                in_sync_fence: table.u8(4)?,
                out_sync_fence: table.u8(5)?,
            })
        })?,
        doorbell_ops: table.tables(1, "DoorbellOp", budget, |table, _| {
            Ok(DoorbellOp {
                offset: table.u64(0)?,
                data: table.u32(1)?,
                mc_id: table.u16(2)?,
                size: table.u8(3)?,
            })
        })?,
        host_offset: table.u64(2)?,
        dev_offset: table.u64(3)?,
        size: table.u32(4)?,
        num: table.u16(5)?,
        mc_id: table.u16(6)?,
        dev_addr_space: table.u8(7)?,
        in_out: table.u8(8)?,
        port_id: table.u16(9)?,
        transaction_id: table.optional_u32(10)?.filter(|&id| id != NO_TRANSACTION),
    })
}

fn read_nsp_table(table: &Table<'_>, budget: &mut Budget) -> Read<NspMulticastTable> {
    let multicast_entries = table.tables(0, "NSPEntry", budget, |table, _| {
        Ok(NspMulticastEntry {
            base_addr_offset: table.u64(0)?,
            mask: table.u32(1)?,
            size: table.u32(2)?,
            addr_space: table.u8(3)?,
            dynamic: table.u8(4)?,
        })
    })?;
    Ok(NspMulticastTable { multicast_entries })
}

fn read_host_table(table: &Table<'_>, budget: &mut Budget) -> Read<HostMulticastTable> {
    let multicast_entries = table.tables(0, "HostEntry", budget, |table, _| {
        Ok(HostMulticastEntry { mask: table.u32(0)?, size: table.u32(1)? })
    })?;
    Ok(HostMulticastTable { multicast_entries })
}

fn read_port(bytes: &[u8], slot: u64) -> PortEntry {
    PortEntry {
        port_id: u16_at(bytes, slot).unwrap_or_default(),
        port_type: u8_at(bytes, slot.saturating_add(2)).unwrap_or_default().cast_signed(),
    }
}

impl Metadata {
    /// Reads the bare `FlatBuffer` form; [`Metadata::from_elf`] finds it and knows the others.
    pub fn decode_flatbuffer(bytes: &[u8], limits: &Limits) -> Result<Self, QpcError> {
        decode(bytes, limits)
    }

    /// The `FlatBuffer` form, for ELF section `metadata_fb`. An empty name is written as `unnamed`; every vector of the
    /// first version is present, as a reader of that version may count on.
    pub fn encode_flatbuffer(&self) -> Vec<u8> {
        let name = if self.network_name.is_empty() { UNNAMED } else { &self.network_name };
        let mut root = vec![
            (0, Value::U16(self.version_major)),
            (1, Value::U16(self.version_minor)),
            (2, Value::Text(name.to_owned())),
            (3, Value::Texts(self.required_fields.clone())),
            (4, Value::Words(self.semaphore_init_state.clone())),
            (5, Value::Bytes(self.l2tcm_init_state.clone())),
            (6, Value::Tables(self.dma_requests.iter().map(write_dma_request).collect())),
            (7, Value::Tables(self.nsp_multicast_tables.iter().map(write_nsp_table).collect())),
            (8, Value::Table(write_host_table(&self.host_multicast_table))),
            (9, Value::Tables(self.thread_descriptors.iter().map(write_thread).collect())),
            (10, Value::Tables(self.constant_mappings.iter().map(write_constant_mapping).collect())),
        ];
        root.extend(self.scalar_fields());
        root.extend(self.newer_fields());
        flat_write::finish(&root)
    }

    fn scalar_fields(&self) -> [(u16, Value); 23] {
        [
            (11, Value::U64(self.static_shared_ddr_size)),
            (12, Value::U64(self.dynamic_shared_ddr_size)),
            (13, Value::U64(self.static_constants_size)),
            (14, Value::U64(self.dynamic_constants_size)),
            (15, Value::U64(self.exit_doorbell_offset)),
            (16, Value::U32(self.l2_cached_ddr_size)),
            (17, Value::U32(self.l2tcm_init_size)),
            (18, Value::U16(self.exec_context_major_version)),
            (19, Value::U16(self.num_nsps)),
            (20, Value::U16(self.num_semaphores)),
            (21, Value::U8(self.hw_version_major)),
            (22, Value::U8(self.hw_version_minor)),
            (23, Value::U8(self.static_shared_ddr_ecc_enabled)),
            (24, Value::U8(self.dynamic_shared_ddr_ecc_enabled)),
            (25, Value::U8(self.static_constants_ecc_enabled)),
            (26, Value::U8(self.dynamic_constants_ecc_enabled)),
            (27, Value::U8(self.single_vtcm_page)),
            (28, Value::U8(self.has_hvx_fp)),
            (29, Value::U8(self.has_hmx_fp)),
            (30, Value::U32(self.vtcm_size)),
            (31, Value::U32(self.l2tcm_size)),
            (32, Value::U64(self.network_heap_size)),
            (33, Value::U64(self.raw_struct_version_length)),
        ]
    }

    /// Fields that older readers do not know: only written when they say something.
    fn newer_fields(&self) -> Vec<(u16, Value)> {
        let mut fields = Vec::new();
        if let Some(config) = &self.qnn_config {
            fields.push((34, Value::Table(vec![(0, Value::I8(config.constants))])));
        }
        if !self.port_table.is_empty() {
            fields.push((35, Value::Structs(self.port_table.iter().map(write_port).collect())));
        }
        if !self.exec_context.is_empty() {
            fields.push((36, Value::Bytes(self.exec_context.clone())));
        }
        if !self.l2tcm_init_state_non_zero_regions.is_empty() {
            let regions = self.l2tcm_init_state_non_zero_regions.iter().map(write_region);
            fields.push((37, Value::Tables(regions.collect())));
        }
        if self.dynamic_shared_ddr_supported != 0 {
            fields.push((38, Value::U8(self.dynamic_shared_ddr_supported)));
        }
        if let Some(behavior) = &self.network_heap_behavior {
            fields.push((39, Value::Table(vec![(0, Value::I8(behavior.on_network_deactivate))])));
        }
        fields
    }
}

fn write_dma_request(request: &DmaRequest) -> flat_write::Table {
    let semaphore_op = |op: &SemaphoreOp| {
        vec![
            (0, Value::U16(op.sem_num)),
            (1, Value::U16(op.sem_value)),
            (2, Value::U8(op.sem_op)),
            (3, Value::U8(op.pre_or_post)),
            (4, Value::U8(op.in_sync_fence)),
            (5, Value::U8(op.out_sync_fence)),
        ]
    };
    let doorbell_op = |op: &DoorbellOp| {
        vec![
            (0, Value::U64(op.offset)),
            (1, Value::U32(op.data)),
            (2, Value::U16(op.mc_id)),
            (3, Value::U8(op.size)),
        ]
    };
    let mut table = vec![
        (0, Value::Tables(request.semaphore_ops.iter().map(semaphore_op).collect())),
        (1, Value::Tables(request.doorbell_ops.iter().map(doorbell_op).collect())),
        (2, Value::U64(request.host_offset)),
        (3, Value::U64(request.dev_offset)),
        (4, Value::U32(request.size)),
        (5, Value::U16(request.num)),
        (6, Value::U16(request.mc_id)),
        (7, Value::U8(request.dev_addr_space)),
        (8, Value::U8(request.in_out)),
        (9, Value::U16(request.port_id)),
    ];
    table.extend(request.transaction_id.map(|id| (10, Value::U32(id))));
    table
}

fn write_nsp_table(table: &NspMulticastTable) -> flat_write::Table {
    let entry = |entry: &NspMulticastEntry| {
        vec![
            (0, Value::U64(entry.base_addr_offset)),
            (1, Value::U32(entry.mask)),
            (2, Value::U32(entry.size)),
            (3, Value::U8(entry.addr_space)),
            (4, Value::U8(entry.dynamic)),
        ]
    };
    vec![(0, Value::Tables(table.multicast_entries.iter().map(entry).collect()))]
}

fn write_host_table(table: &HostMulticastTable) -> flat_write::Table {
    let entry = |entry: &HostMulticastEntry| vec![(0, Value::U32(entry.mask)), (1, Value::U32(entry.size))];
    vec![(0, Value::Tables(table.multicast_entries.iter().map(entry).collect()))]
}

fn write_thread(thread: &ThreadDescriptor) -> flat_write::Table {
    vec![(0, Value::U64(thread.entry_point)), (1, Value::U8(thread.type_mask))]
}

fn write_constant_mapping(mapping: &ConstantMapping) -> flat_write::Table {
    vec![
        (0, Value::U64(mapping.constant_data_base_offset)),
        (1, Value::U32(mapping.core_mask)),
        (2, Value::U32(mapping.size)),
    ]
}

fn write_region(region: &NonZeroRegion) -> flat_write::Table {
    vec![(0, Value::U64(region.start)), (1, Value::U64(region.end)), (2, Value::U64(region.size))]
}

fn write_port(port: &PortEntry) -> [u8; 4] {
    let [low, high] = port.port_id.to_le_bytes();
    [low, high, port.port_type.cast_unsigned(), 0]
}
