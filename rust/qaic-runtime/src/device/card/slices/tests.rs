//! The rules of DMA requests against random programs, and each refusal once.

use proptest::prelude::*;
use qaic_qpc::{DmaBuffer, IoBinding};

use super::*;

const BASES: Bases = Bases { ddr: 0x4_0000_0000, mcid: 0x8000_0000 };

fn network(sizes: &[u32]) -> NetworkDesc {
    let dma_buffers = sizes.iter().map(|&size| DmaBuffer { size, ..DmaBuffer::default() }).collect();
    NetworkDesc { dma_buffers, ..NetworkDesc::default() }
}

fn request(num: u16, host_offset: u64, size: u32, in_out: u8) -> DmaRequest {
    let dev_offset = 64 * u64::from(num) + host_offset;
    DmaRequest { num, host_offset, size, in_out, dev_offset, dev_addr_space: 1, ..DmaRequest::default() }
}

fn layout(sizes: &[u32], requests: &[DmaRequest]) -> Result<Layout, RuntimeError> {
    let metadata = Metadata { dma_requests: requests.to_vec(), ..Metadata::default() };
    Layout::new(&metadata, &network(sizes))
}

#[track_caller]
fn refusal(sizes: &[u32], requests: &[DmaRequest]) -> String {
    let error = layout(sizes, requests).unwrap_err();
    assert_eq!(error.code(), "program.transfers");
    error.to_string()
}

/// A DMA buffer: its size, its direction, where its slices end, and the synchronizations after it.
type Buffer = (u32, bool, Vec<u32>, usize);

fn buffers() -> impl Strategy<Value = Vec<Buffer>> {
    let buffer = (1_u32..5000, any::<bool>(), prop::collection::vec(0_u32..5000, 0..5), 0_usize..3);
    prop::collection::vec(buffer, 1..12)
}

/// The requests of the buffers, in the order in which a compiler writes them.
fn requests(buffers: &[Buffer]) -> Vec<DmaRequest> {
    let mut requests = Vec::new();
    for (num, (size, is_out, cuts, syncs)) in (0..).zip(buffers) {
        let mut ends: Vec<u32> = cuts.iter().map(|cut| cut % size).filter(|&cut| cut > 0).collect();
        ends.push(*size);
        ends.sort_unstable();
        ends.dedup();
        let mut begin = 0;
        for end in ends {
            requests.push(request(num, begin.into(), end - begin, (*is_out).into()));
            begin = end;
        }
        requests.extend((0..*syncs).map(|_| request(num, 0, 0, 1)));
    }
    requests
}

proptest! {
    #[test]
    fn slices_of_a_program_move_every_byte_once_in_order(buffers in buffers()) {
        let sizes: Vec<u32> = buffers.iter().map(|buffer| buffer.0).collect();
        let requests = requests(&buffers);
        let layout = layout(&sizes, &requests).unwrap();
        // One per DMA buffer and one per request without data.
        let syncs: usize = buffers.iter().map(|buffer| buffer.3).sum();
        prop_assert_eq!(layout.buffers.len(), buffers.len() + syncs);
        prop_assert_eq!(layout.elements as usize, requests.len());
        let with_data: Vec<_> = layout.buffers.iter().filter(|buffer| buffer.dma.is_some()).collect();
        for (number, (object, (size, is_out, ..))) in with_data.iter().zip(&buffers).enumerate() {
            prop_assert_eq!((object.dma, object.bytes), (Some(number), u64::from(*size)));
            prop_assert_eq!(object.dir, if *is_out { DIR_FROM_DEVICE } else { DIR_TO_DEVICE });
            let mut at = 0;
            for slice in &object.slices {
                let entry = slice.entry(BASES).unwrap();
                prop_assert_eq!(entry.offset, at);
                prop_assert_eq!(entry.dev_addr, BASES.ddr + 64 * number as u64 + at);
                at += entry.size;
            }
            prop_assert_eq!(at, u64::from(*size));
        }
        for object in layout.buffers.iter().filter(|buffer| buffer.dma.is_none()) {
            prop_assert_eq!((object.bytes, object.dir, object.slices.len()), (DATALESS_BYTES, DIR_TO_DEVICE, 1));
            let entry = object.slices[0].entry(BASES).unwrap();
            prop_assert_eq!((entry.size, entry.dev_addr, entry.offset), (0, 0, 0));
        }
        // The last outbound buffer with data, or the last buffer of all.
        let outbound = |buffer: &BufferLayout| buffer.dma.is_some() && buffer.dir == DIR_FROM_DEVICE;
        let awaited = layout.buffers.iter().rposition(outbound).unwrap_or(layout.buffers.len() - 1);
        prop_assert_eq!(layout.awaited, awaited);
    }

    #[test]
    fn requests_of_any_numbers_do_not_panic(
        sizes in prop::collection::vec(any::<u32>(), 0..4),
        fields in prop::collection::vec(
            (any::<(u64, u64, u32, u16, u16)>(), any::<(u8, u8)>(), any::<(u16, u16, u8, u8)>(), any::<(u64, u8)>()),
            0..5,
        ),
    ) {
        let requests: Vec<DmaRequest> = fields.into_iter().map(|(numbers, codes, sem, bell)| DmaRequest {
            host_offset: numbers.0,
            dev_offset: numbers.1,
            size: numbers.2,
            num: numbers.3 % 4,
            mc_id: numbers.4,
            dev_addr_space: codes.0 % 3,
            in_out: codes.1 % 3,
            semaphore_ops: vec![SemaphoreOp {
                sem_num: sem.0 % 40,
                sem_value: sem.1,
                sem_op: sem.2 % 8,
                pre_or_post: sem.3 % 3,
                ..SemaphoreOp::default()
            }],
            doorbell_ops: vec![DoorbellOp { offset: bell.0, size: bell.1 % 4, ..DoorbellOp::default() }],
            ..DmaRequest::default()
        }).collect();
        if let Ok(layout) = layout(&sizes, &requests) {
            for object in &layout.buffers {
                for slice in &object.slices {
                    let entry = slice.entry(BASES);
                    let end = entry.map_or(0, |entry| entry.offset + entry.size);
                    prop_assert!(end <= object.bytes);
                }
            }
        }
    }
}

#[test]
fn slice_addresses_are_relative_to_the_activation() {
    let mut multicast = request(0, 0, 8, 0);
    (multicast.dev_addr_space, multicast.mc_id, multicast.dev_offset) = (0, 3, 0x10);
    multicast.doorbell_ops = vec![DoorbellOp { offset: 0x20, data: 77, mc_id: 2, size: 1 }];
    let layout = layout(&[8], &[multicast]).unwrap();
    let entry = layout.buffers[0].slices[0].entry(BASES).unwrap();
    assert_eq!(entry.dev_addr, 0x8000_0000 + 3 * 0x80_0000 + 0x10);
    assert_eq!((entry.db_addr, entry.db_data, entry.db_len), (0x8000_0000 + 2 * 0x80_0000 + 0x20, 77, 16));
    assert_eq!(layout.buffers[0].slices[0].entry(Bases { ddr: 0, mcid: u64::MAX - 5 }), None);
}

#[test]
fn semaphore_fences_are_those_of_the_kernel() {
    let op = |in_sync_fence, out_sync_fence| SemaphoreOp {
        sem_num: 31,
        sem_value: 4095,
        sem_op: 6,
        pre_or_post: 0,
        in_sync_fence,
        out_sync_fence,
    };
    let request = DmaRequest { semaphore_ops: vec![op(1, 0), op(0, 1), op(1, 1)], ..request(0, 0, 8, 0) };
    let layout = layout(&[8], &[request]).unwrap();
    let sems = layout.buffers[0].slices[0].entry(BASES).unwrap().sems;
    assert_eq!(sems.map(|sem| sem.flags), [2, 1, 3, 0]);
    assert_eq!((sems[0].index, sems[0].val, sems[0].cmd, sems[0].presync), (31, 4095, 6, 0));
    assert_eq!(sems[3], Sem::default());
}

#[test]
fn request_with_several_doorbells_rings_none() {
    let doorbell_ops = vec![DoorbellOp { size: 2, ..DoorbellOp::default() }; 2];
    let layout = layout(&[8], &[DmaRequest { doorbell_ops, ..request(0, 0, 8, 0) }]).unwrap();
    assert_eq!(layout.buffers[0].slices[0].entry(BASES).unwrap().db_len, 0);
}

#[test]
fn request_outside_its_buffer_is_refused_with_numbers() {
    let text = refusal(&[64], &[request(0, 16, 64, 0)]);
    assert!(
        text.contains("DMA request 0 uses 64 bytes from byte 16 of DMA buffer 0, which has 64"),
        "{text}"
    );
    assert!(refusal(&[64], &[request(0, u64::MAX, 64, 0)]).contains("which has 64"));
}

#[test]
fn metadata_with_another_count_of_buffers_is_refused() {
    let both = [request(0, 0, 8, 0), request(1, 0, 8, 1)];
    assert!(refusal(&[8], &both).contains("uses DMA buffer 1, but the program has 1"));
    assert!(refusal(&[8, 8, 16], &both).contains("no DMA request moves DMA buffer 2 of 16 bytes"));
    assert!(refusal(&[], &[]).contains("no DMA requests"));
    assert!(layout(&[8, 8, 0], &both).is_ok());
    let again = [request(0, 0, 4, 0), request(1, 0, 8, 1), request(0, 4, 4, 0)];
    assert!(refusal(&[8, 8], &again).contains("DMA buffer 0 again"));
    let split = [request(0, 0, 4, 0), request(0, 0, 0, 0), request(0, 4, 4, 0)];
    assert!(refusal(&[8], &split).contains("DMA buffer 0 again"));
    let turned = [request(0, 0, 4, 0), request(0, 4, 4, 1)];
    assert!(refusal(&[8], &turned).contains("the opposite direction"));
}

#[test]
fn requests_beyond_the_ring_are_refused_with_numbers() {
    let slices = |count: u32| (0..count).map(|at| request(0, at.into(), 1, 0)).collect::<Vec<_>>();
    assert_eq!(layout(&[511], &slices(511)).unwrap().elements, 511);
    assert!(
        refusal(&[512], &slices(512)).contains("an inference has 512 slices, but the ring has room for 511")
    );
}

#[test]
fn partial_input_of_several_slices_is_refused() {
    let partial = IoBinding { is_partial_allowed: true, ..IoBinding::default() };
    let network = NetworkDesc { inputs: vec![partial], ..network(&[8]) };
    let metadata = |requests: Vec<DmaRequest>| Metadata { dma_requests: requests, ..Metadata::default() };
    assert!(Layout::new(&metadata(vec![request(0, 0, 8, 0)]), &network).unwrap().is_partial);
    let error = Layout::new(&metadata(vec![request(0, 0, 4, 0), request(0, 4, 4, 0)]), &network).unwrap_err();
    assert!(error.to_string().contains("DMA buffer 0 has 2 slices"));
}

#[test]
fn request_with_operations_beyond_the_kernel_is_refused() {
    let op = SemaphoreOp { sem_op: 2, ..SemaphoreOp::default() };
    let with =
        |ops: Vec<SemaphoreOp>| refusal(&[8], &[DmaRequest { semaphore_ops: ops, ..request(0, 0, 8, 0) }]);
    assert!(with(vec![op.clone(); 5]).contains("5 semaphore operations"));
    assert!(with(vec![SemaphoreOp { sem_num: 32, ..op.clone() }]).contains("semaphore 32"));
    assert!(with(vec![SemaphoreOp { sem_value: 4096, ..op.clone() }]).contains("4096"));
    assert!(with(vec![SemaphoreOp { sem_op: 7, ..op.clone() }]).contains("operation 7"));
    assert!(with(vec![SemaphoreOp { pre_or_post: 2, ..op.clone() }]).contains("time 2"));
    assert!(with(vec![SemaphoreOp { pre_or_post: 1, ..op }; 2]).contains("2 semaphore operations before"));
    let bell = |doorbell: DoorbellOp| {
        refusal(&[8], &[DmaRequest { doorbell_ops: vec![doorbell], ..request(0, 0, 8, 0) }])
    };
    assert!(bell(DoorbellOp { size: 3, ..DoorbellOp::default() }).contains("size code 3"));
    assert!(bell(DoorbellOp { size: 2, offset: 2, ..DoorbellOp::default() }).contains("32 bits"));
    let other = |change: fn(&mut DmaRequest)| {
        let mut request = request(0, 0, 8, 0);
        change(&mut request);
        refusal(&[8], &[request])
    };
    assert!(other(|request| request.dev_addr_space = 2).contains("address space 2"));
    assert!(other(|request| request.in_out = 2).contains("direction 2"));
}
