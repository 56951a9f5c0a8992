//! The legacy struct, with fixed offsets and with lists elsewhere in the section. This library only reads it.

use super::types::{
    ConstantMapping, DmaRequest, DoorbellOp, HostMulticastEntry, HostMulticastTable, Metadata,
    NspMulticastEntry, NspMulticastTable, SemaphoreOp, ThreadDescriptor, VERSION_MAJOR,
};
use crate::bytes::{range_within, to_u64, u8_at, u16_at, u32_at, u64_at};
use crate::error::QpcError;
use crate::limits::{Budget, Limits};

const STRUCT_BYTES: u64 = 160;

/// Reads the struct, and checks every offset and count against the section.
pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Metadata, QpcError> {
    let section = Section { bytes };
    let head = section.record("struct", 0, STRUCT_BYTES)?;
    let budget = &mut Budget::new(limits);
    let version = head.u16(0);
    if version != VERSION_MAJOR {
        return Err(QpcError::MetadataVersion { found: version, supported: VERSION_MAJOR });
    }
    let l2tcm_init_size = head.u32(116);
    let l2tcm = section.list("L2TCMInitState", head.u64(24), u64::from(l2tcm_init_size), 1)?;
    budget.charge(l2tcm.len())?;
    Ok(Metadata {
        version_major: version,
        version_minor: head.u16(2),
        network_name: section.text("networkName", head.u64(8), budget)?,
        semaphore_init_state: section.each(
            "semaphoreInitState",
            (head.u64(16), head.u16(124), 4),
            budget,
            |record, _| Ok(record.u32(0)),
        )?,
        l2tcm_init_state: l2tcm.to_vec(),
        dma_requests: section.each(
            "dmaRequests",
            (head.u64(32), head.u16(126), 48),
            budget,
            |record, budget| dma_request(&section, record, budget),
        )?,
        nsp_multicast_tables: section.each(
            "nspMulticastTables",
            (head.u64(40), head.u16(122), 16),
            budget,
            |record, budget| nsp_table(&section, record, budget),
        )?,
        host_multicast_table: host_table(&section, head.u64(48), budget)?,
        thread_descriptors: section.each(
            "threadDescriptors",
            (head.u64(56), head.u16(128), 16),
            budget,
            |record, _| Ok(ThreadDescriptor { entry_point: record.u64(0), type_mask: record.u8(8) }),
        )?,
        constant_mappings: section.each(
            "constantMappings",
            (head.u64(64), head.u16(130), 16),
            budget,
            |record, _| {
                Ok(ConstantMapping {
                    constant_data_base_offset: record.u64(0),
                    core_mask: record.u32(8),
                    size: record.u32(12),
                })
            },
        )?,
        static_shared_ddr_size: head.u64(72),
        dynamic_shared_ddr_size: head.u64(80),
        static_constants_size: head.u64(88),
        dynamic_constants_size: head.u64(96),
        exit_doorbell_offset: head.u64(104),
        l2_cached_ddr_size: head.u32(112),
        l2tcm_init_size,
        exec_context_major_version: head.u16(120),
        num_nsps: head.u16(122),
        num_semaphores: head.u16(124),
        hw_version_major: head.u8(132),
        hw_version_minor: head.u8(133),
        static_shared_ddr_ecc_enabled: head.u8(134),
        dynamic_shared_ddr_ecc_enabled: head.u8(135),
        static_constants_ecc_enabled: head.u8(136),
        dynamic_constants_ecc_enabled: head.u8(137),
        single_vtcm_page: head.u8(138),
        has_hvx_fp: head.u8(139),
        has_hmx_fp: head.u8(140),
        vtcm_size: head.u32(144),
        l2tcm_size: head.u32(148),
        network_heap_size: head.u64(152),
        ..Metadata::default()
    })
}

fn dma_request(
    section: &Section<'_>,
    record: &Record<'_>,
    budget: &mut Budget,
) -> Result<DmaRequest, QpcError> {
    let (semaphores, doorbells) = (u16::from(record.u8(40)), u16::from(record.u8(41)));
    Ok(DmaRequest {
        semaphore_ops: section.each("semaphoreOps", (record.u64(0), semaphores, 8), budget, |op, _| {
            Ok(SemaphoreOp {
                sem_num: op.u16(0),
                sem_value: op.u16(2),
                sem_op: op.u8(4),
                pre_or_post: op.u8(5),
                in_sync_fence: op.u8(6),
                out_sync_fence: op.u8(7),
            })
        })?,
        doorbell_ops: section.each("doorbellOps", (record.u64(8), doorbells, 16), budget, |op, _| {
            Ok(DoorbellOp { offset: op.u64(0), data: op.u32(8), mc_id: op.u16(12), size: op.u8(14) })
        })?,
        host_offset: record.u64(16),
        dev_offset: record.u64(24),
        size: record.u32(32),
        num: record.u16(36),
        mc_id: record.u16(38),
        dev_addr_space: record.u8(42),
        in_out: record.u8(43),
        port_id: record.u16(44),
        transaction_id: None,
    })
}

fn nsp_table(
    section: &Section<'_>,
    record: &Record<'_>,
    budget: &mut Budget,
) -> Result<NspMulticastTable, QpcError> {
    let multicast_entries =
        section.each("multicastEntries", (record.u64(0), record.u16(8), 24), budget, |entry, _| {
            Ok(NspMulticastEntry {
                base_addr_offset: entry.u64(0),
                mask: entry.u32(8),
                size: entry.u32(12),
                addr_space: entry.u8(16),
                dynamic: entry.u8(17),
            })
        })?;
    Ok(NspMulticastTable { multicast_entries })
}

fn host_table(
    section: &Section<'_>,
    offset: u64,
    budget: &mut Budget,
) -> Result<HostMulticastTable, QpcError> {
    if offset == 0 {
        return Ok(HostMulticastTable::default());
    }
    let record = section.record("hostMulticastTable", offset, 16)?;
    let multicast_entries =
        section.each("multicastEntries", (record.u64(0), record.u16(8), 8), budget, |entry, _| {
            Ok(HostMulticastEntry { mask: entry.u32(0), size: entry.u32(4) })
        })?;
    Ok(HostMulticastTable { multicast_entries })
}

/// The section; all offsets are relative to its start.
struct Section<'a> {
    bytes: &'a [u8],
}

impl<'a> Section<'a> {
    fn list(&self, field: &'static str, offset: u64, count: u64, element: u64) -> Result<&'a [u8], QpcError> {
        let range = range_within(self.bytes.len(), offset, count.saturating_mul(element));
        range
            .and_then(|range| self.bytes.get(range))
            .ok_or(QpcError::LegacyMetadata { field, size: to_u64(self.bytes.len()) })
    }

    fn record(&self, field: &'static str, offset: u64, size: u64) -> Result<Record<'a>, QpcError> {
        self.list(field, offset, 1, size).map(Record)
    }

    fn text(&self, field: &'static str, offset: u64, budget: &mut Budget) -> Result<String, QpcError> {
        let error = QpcError::LegacyMetadata { field, size: to_u64(self.bytes.len()) };
        let tail = usize::try_from(offset).ok().and_then(|start| self.bytes.get(start..));
        let text =
            tail.and_then(|tail| tail.split(|&byte| byte == 0).next().filter(|text| text.len() < tail.len()));
        let text = text.and_then(|text| std::str::from_utf8(text).ok()).ok_or(error)?;
        budget.charge(text.len())?;
        Ok(text.to_owned())
    }

    fn each<T>(
        &self,
        field: &'static str,
        (offset, count, element): (u64, u16, u16),
        budget: &mut Budget,
        read: impl Fn(&Record<'a>, &mut Budget) -> Result<T, QpcError>,
    ) -> Result<Vec<T>, QpcError> {
        let records = self.list(field, offset, u64::from(count), u64::from(element))?;
        let mut out = Vec::new();
        for record in records.chunks_exact(usize::from(element)) {
            budget.charge_value::<T>()?;
            out.push(read(&Record(record), budget)?);
        }
        Ok(out)
    }
}

/// Bytes of one struct. Reads at its fixed offsets cannot fail.
struct Record<'a>(&'a [u8]);

impl Record<'_> {
    fn u8(&self, offset: u64) -> u8 {
        u8_at(self.0, offset).unwrap_or_default()
    }

    fn u16(&self, offset: u64) -> u16 {
        u16_at(self.0, offset).unwrap_or_default()
    }

    fn u32(&self, offset: u64) -> u32 {
        u32_at(self.0, offset).unwrap_or_default()
    }

    fn u64(&self, offset: u64) -> u64 {
        u64_at(self.0, offset).unwrap_or_default()
    }
}
