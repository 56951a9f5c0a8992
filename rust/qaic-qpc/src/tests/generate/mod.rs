//! Random descriptors and metadata for property tests. Fields have any value: most values are invalid in a
//! program, but none may change when it is encoded and decoded.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use qaic_qpc::metadata::{
    ConstantMapping, DmaRequest, DoorbellOp, HostMulticastEntry, HostMulticastTable, Metadata,
    NetworkHeapBehavior, NonZeroRegion, NspMulticastEntry, NspMulticastTable, PortEntry, QnnConfig,
    SemaphoreOp, ThreadDescriptor,
};
use qaic_qpc::{
    ConvertToD32, CopyDmaBuffer, CoreOpNameKinds, CrcEntry, CrcInfo, Direction, DmaBuffer, IoBinding,
    IoDescriptor, IoShapes, NetworkDesc, OpNameKind, Stats, TensorShape, ThreadGroupOpNameKinds, Transform,
};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z/_0-9]{1,12}", "\\PC{0,6}"]
}

/// Small codes, so that known codes occur.
fn small() -> impl Strategy<Value = i32> {
    prop_oneof![4 => 0..12_i32, 1 => any::<i32>()]
}

fn dims() -> impl Strategy<Value = Vec<i32>> {
    vec(prop_oneof![4 => 0..9_i32, 1 => any::<i32>()], 0..5)
}

/// Finite scales, so that equality can be asserted; not -0.0, which protobuf writes and prost omits.
fn scale() -> impl Strategy<Value = f32> {
    prop_oneof![
        Just(0.0),
        Just(1.0),
        any::<f32>().prop_filter("finite", |value| value.is_finite() && *value != 0.0)
    ]
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(0), Just(1), any::<i32>()].prop_map(Direction::from)
}

prop_compose! {
    fn io_descriptor()(dtype in small(), qscale in scale(), qoffset: i32, dims in dims(), layout in small())
        -> IoDescriptor
    {
        IoDescriptor { dtype: dtype.into(), qscale, qoffset, dims, layout }
    }
}

prop_compose! {
    fn transform()(
        (kind, dtype, scale, offset) in (small(), small(), scale(), any::<i32>()),
        (dims, layout, shuffle) in (dims(), small(), dims()),
        pads in option::of(any::<[i32; 6]>()),
        copy in option::of((direction(), any::<u32>(), 0..4_u32)),
    ) -> Transform {
        let convert = |[padding_val, x_pad_begin, y_pad_begin, x_pad_end, y_pad_end, d_pad_end]: [i32; 6]| {
            ConvertToD32 { padding_val, x_pad_begin, y_pad_begin, x_pad_end, y_pad_end, d_pad_end }
        };
        Transform {
            kind: kind.into(),
            dtype: dtype.into(),
            scale,
            offset,
            dims,
            layout,
            shuffle,
            convert_to_d32: pads.map(convert),
            copy_dma_buffer: copy.map(|(dir, offset, buffer_num)| CopyDmaBuffer { dir, offset, buffer_num }),
        }
    }
}

prop_compose! {
    fn io_binding()(
        name in text(),
        io_initial in io_descriptor(),
        io_transformed in io_descriptor(),
        transformseq in vec(transform(), 0..4),
        is_partial_allowed: bool,
        align: u32,
    ) -> IoBinding {
        IoBinding { name, io_initial, io_transformed, transformseq, is_partial_allowed, align }
    }
}

prop_compose! {
    fn operation()(
        [name, kind, op_type, memory] in [text(), text(), text(), text()],
        [shape, operand, attributes] in [text(), text(), text()],
        output_size: u64,
        operands in vec(text(), 0..3),
    ) -> OpNameKind {
        OpNameKind { name, kind, op_type, memory, shape, operand, output_size, attributes, operands }
    }
}

prop_compose! {
    fn stats()(
        buff_num: u32,
        [print_stats, stats_no_host_sync, print_op_stats, count_ddr_bw]: [bool; 4],
        [stats_level, op_stats_level, batch_size, utimer_freq_ms, pmu_stats_level]: [i32; 5],
        pmu_events in dims(),
        ops_per_core in dims(),
        cores in vec(vec(vec(operation(), 0..3), 0..3), 0..3),
    ) -> Stats {
        let group = |op_name_kinds| ThreadGroupOpNameKinds { op_name_kinds };
        let core = |groups: Vec<_>| CoreOpNameKinds { tg_op_name_kinds: groups.into_iter().map(group).collect() };
        Stats {
            buff_num,
            print_stats,
            stats_level,
            stats_no_host_sync,
            print_op_stats,
            op_stats_level,
            batch_size,
            count_ddr_bw,
            utimer_freq_ms,
            pmu_events,
            ops_per_core,
            core_op_name_kinds: cores.into_iter().map(core).collect(),
            pmu_stats_level,
        }
    }
}

fn crc_entry(
    ([dma_buffer_num, offset, size, crc_entry_idx], blocks, algorithm): ([u32; 4], [u32; 4], i32),
) -> CrcEntry {
    let [begin_crc_block_size, end_crc_block_size, stride_interval, stride_size] = blocks;
    CrcEntry {
        dma_buffer_num,
        offset,
        size,
        crc_entry_idx,
        begin_crc_block_size,
        end_crc_block_size,
        stride_interval,
        stride_size,
        algorithm,
    }
}

prop_compose! {
    /// Any network descriptor.
    pub(crate) fn network_desc()(
        [major_version, minor_version, num_cores, num_threads, num_hvx_threads, thread_group_issue_count]: [u32; 6],
        network_name in text(),
        inputs in vec(io_binding(), 0..4),
        outputs in vec(io_binding(), 0..4),
        dma_buffers in vec((any::<u32>(), direction()), 0..4),
        (thread_groups, cluster_offsets) in (vec(any::<u32>(), 0..4), vec(any::<u32>(), 0..4)),
        (stats, thread_group_names, batch_size) in (option::of(stats()), vec(text(), 0..3), any::<i32>()),
        crc in option::of((any::<u32>(), vec(any::<([u32; 4], [u32; 4], i32)>(), 0..3))),
        shapes in vec(vec((small(), dims()), 0..4), 0..3),
    ) -> NetworkDesc {
        let shape = |(dtype, dims): (i32, _)| TensorShape { dtype: dtype.into(), dims };
        let io_shapes = |shapes: Vec<_>| IoShapes { shapes: shapes.into_iter().map(shape).collect() };
        let crc_info = |(buff_num, entries): (u32, Vec<_>)| {
            CrcInfo { buff_num, entries: entries.into_iter().map(crc_entry).collect() }
        };
        NetworkDesc {
            major_version,
            minor_version,
            network_name,
            inputs,
            outputs,
            dma_buffers: dma_buffers.into_iter().map(|(size, dir)| DmaBuffer { size, dir }).collect(),
            num_cores,
            num_threads,
            num_hvx_threads,
            thread_groups,
            thread_group_issue_count,
            stats,
            thread_group_names,
            batch_size,
            crc_info: crc.map(crc_info),
            cluster_offsets,
            allowed_shapes: shapes.into_iter().map(io_shapes).collect(),
        }
    }
}

prop_compose! {
    fn dma_request()(
        semaphores in vec(any::<([u16; 2], [u8; 4])>(), 0..4),
        doorbells in vec(any::<(u64, u32, u16, u8)>(), 0..3),
        [host_offset, dev_offset]: [u64; 2],
        size: u32,
        [num, mc_id, port_id]: [u16; 3],
        [dev_addr_space, in_out]: [u8; 2],
        transaction_id in option::of(0..u32::MAX),
    ) -> DmaRequest {
        let semaphore = |(numbers, flags): ([u16; 2], [u8; 4])| {
            let ([sem_num, sem_value], [sem_op, pre_or_post, in_sync_fence, out_sync_fence]) = (numbers, flags);
            SemaphoreOp { sem_num, sem_value, sem_op, pre_or_post, in_sync_fence, out_sync_fence }
        };
        let doorbell = |(offset, data, mc_id, size)| DoorbellOp { offset, data, mc_id, size };
        DmaRequest {
            semaphore_ops: semaphores.into_iter().map(semaphore).collect(),
            doorbell_ops: doorbells.into_iter().map(doorbell).collect(),
            host_offset,
            dev_offset,
            size,
            num,
            mc_id,
            dev_addr_space,
            in_out,
            port_id,
            transaction_id,
        }
    }
}

prop_compose! {
    /// Any metadata of the version that is read, with a name (an empty one is written as `unnamed`).
    pub(crate) fn metadata()(
        (network_name, version_minor, named) in ("[a-z]{1,9}", any::<u16>(), any::<bool>()),
        (semaphore_init_state, l2tcm_init_state) in (vec(any::<u32>(), 0..5), vec(any::<u8>(), 0..40)),
        (dma_requests, exec_context) in (vec(dma_request(), 0..4), vec(any::<u8>(), 0..9)),
        nsp in vec(vec(any::<(u64, [u32; 2], [u8; 2])>(), 0..3), 0..3),
        host in vec(any::<(u32, u32)>(), 0..3),
        (threads, mappings) in (vec(any::<(u64, u8)>(), 0..3), vec(any::<(u64, u32, u32)>(), 0..3)),
        wide: [u64; 7],
        [l2_cached_ddr_size, l2tcm_init_size, vtcm_size, l2tcm_size]: [u32; 4],
        [exec_context_major_version, num_nsps, num_semaphores]: [u16; 3],
        bytes: [u8; 10],
        (qnn, ports) in (option::of(any::<i8>()), vec(any::<(u16, i8)>(), 0..3)),
        (regions, heap) in (vec(any::<[u64; 3]>(), 0..3), option::of(any::<i8>())),
    ) -> Metadata {
        let nsp_entry = |(base_addr_offset, words, bytes): (u64, [u32; 2], [u8; 2])| {
            let ([mask, size], [addr_space, dynamic]) = (words, bytes);
            NspMulticastEntry { base_addr_offset, mask, size, addr_space, dynamic }
        };
        let nsp_table =
            |entries: Vec<_>| NspMulticastTable { multicast_entries: entries.into_iter().map(nsp_entry).collect() };
        let host_entry = |(mask, size)| HostMulticastEntry { mask, size };
        let mapping = |(constant_data_base_offset, core_mask, size)| {
            ConstantMapping { constant_data_base_offset, core_mask, size }
        };
        Metadata {
            version_major: 1,
            version_minor,
            network_name,
            required_fields: named.then(|| "AicMetadataFlat_Metadata->numNSPs".to_owned()).into_iter().collect(),
            semaphore_init_state,
            l2tcm_init_state,
            dma_requests,
            nsp_multicast_tables: nsp.into_iter().map(nsp_table).collect(),
            host_multicast_table: HostMulticastTable {
                multicast_entries: host.into_iter().map(host_entry).collect(),
            },
            thread_descriptors: threads
                .into_iter()
                .map(|(entry_point, type_mask)| ThreadDescriptor { entry_point, type_mask })
                .collect(),
            constant_mappings: mappings.into_iter().map(mapping).collect(),
            static_shared_ddr_size: wide[0],
            dynamic_shared_ddr_size: wide[1],
            static_constants_size: wide[2],
            dynamic_constants_size: wide[3],
            exit_doorbell_offset: wide[4],
            l2_cached_ddr_size,
            l2tcm_init_size,
            exec_context_major_version,
            num_nsps,
            num_semaphores,
            hw_version_major: bytes[0],
            hw_version_minor: bytes[1],
            static_shared_ddr_ecc_enabled: bytes[2],
            dynamic_shared_ddr_ecc_enabled: bytes[3],
            static_constants_ecc_enabled: bytes[4],
            dynamic_constants_ecc_enabled: bytes[5],
            single_vtcm_page: bytes[6],
            has_hvx_fp: bytes[7],
            has_hmx_fp: bytes[8],
            vtcm_size,
            l2tcm_size,
            network_heap_size: wide[5],
            raw_struct_version_length: wide[6],
            qnn_config: qnn.map(|constants| QnnConfig { constants }),
            port_table: ports
                .into_iter()
                .map(|(port_id, port_type)| PortEntry { port_id, port_type })
                .collect(),
            exec_context,
            l2tcm_init_state_non_zero_regions: regions
                .into_iter()
                .map(|[start, end, size]| NonZeroRegion { start, end, size })
                .collect(),
            dynamic_shared_ddr_supported: bytes[9],
            network_heap_behavior: heap
                .map(|on_network_deactivate| NetworkHeapBehavior { on_network_deactivate }),
        }
    }
}
