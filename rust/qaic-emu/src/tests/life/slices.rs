//! Random slices over the whole way: data that was sent to the device returns at the addresses of the slices,
//! and nowhere else.

use crate::tests::prelude::*;
use proptest::prelude::*;
use qaic_emu::Loopback;

const DEVICE_BYTES: usize = 40_000;

/// A buffer object: its direction, its bytes, and its slices as (host offset, device offset, bytes).
#[derive(Clone, Debug)]
struct Buffer {
    to_device: bool,
    bytes: Vec<u8>,
    slices: Vec<(usize, usize, usize)>,
}

fn buffer() -> impl Strategy<Value = Buffer> {
    let slices = prop::collection::vec((any::<prop::sample::Index>(), 0..DEVICE_BYTES, 0..9000_usize), 1..4);
    (any::<bool>(), 1..20_000_usize, any::<u8>(), slices).prop_map(|(to_device, size, seed, slices)| {
        let bytes = (0..=250_u8).cycle().map(|byte| byte.wrapping_mul(7) ^ seed).take(size).collect();
        let slices = slices
            .into_iter()
            .map(|(begin, device, len)| {
                let begin = begin.index(size);
                (begin, device, len.min(size - begin).min(DEVICE_BYTES - device))
            })
            .collect();
        Buffer { to_device, bytes, slices }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn bytes_of_any_slices_arrive_at_their_addresses(
        buffers in prop::collection::vec(buffer(), 1..6),
        fragment_pages in 1..6_u64,
        has_threads in any::<bool>(),
        runs in 1..3_u8,
    ) {
        let (execution_mode, clock) = if has_threads {
            (ExecutionMode::Threads, EmuClock::System(SystemClock::default()))
        } else {
            (ExecutionMode::Inline, EmuClock::default())
        };
        let rig = Rig::new(EmuOptions {
            execution_mode,
            clock,
            workload: std::sync::Arc::new(Loopback),
            fragment_bytes: fragment_pages * 4096,
            ..EmuOptions::default()
        });
        let file = &*rig.file;
        let mut message = message::load_elf(1, 0, b"anything");
        file.manage(&mut message).unwrap();
        let elf_id = LoadElfReply::of(&message).unwrap().elf_id;
        let mut message = message::activate(1, ActivateRequest {
            elf_id,
            constants_id: 0,
            initial_state: qaic_kmd::protocol::ActivationState::Standby,
            queue_size: 512,
        });
        file.manage(&mut message).unwrap();
        let active = ActivateReply::of(&message).unwrap();
        let channel = active.virtual_channel_id;
        let mut mapped = Vec::new();
        for buffer in &buffers {
            let size = buffer.bytes.len() as u64;
            let mut slices: Vec<_> = buffer.slices.iter().map(|(begin, device, len)| AttachSliceEntry {
                size: *len as u64,
                dev_addr: active.ddr_base + *device as u64,
                offset: *begin as u64,
                // The semaphore must be raised before it is awaited.
                sems: [Sem { cmd: 2, index: 3, ..Sem::default() }; 4],
                ..AttachSliceEntry::default()
            }).collect();
            slices[0].sems[0] = Sem { cmd: 5, index: 3, presync: 1, ..Sem::default() };
            let handle = file.create_bo(size).unwrap();
            let dir = if buffer.to_device { DIR_TO_DEVICE } else { DIR_FROM_DEVICE };
            file.attach_slices(channel, handle, dir, size, &slices).unwrap();
            let offset = file.mmap_offset(handle).unwrap();
            let mapping = rig.file.map(offset, buffer.bytes.len().next_multiple_of(4096)).unwrap();
            mapped.push((handle, mapping));
        }
        let mut device = vec![0; DEVICE_BYTES];
        for run in 0..runs {
            let mut expected = Vec::new();
            for (buffer, (_, mapping)) in buffers.iter().zip(&mapped) {
                let mut bytes: Vec<u8> = buffer.bytes.iter().map(|byte| byte ^ run).collect();
                mapping.write_from(0, &bytes).unwrap();
                for (begin, at, len) in buffer.slices.iter().copied() {
                    let (host, device) = (&mut bytes[begin..begin + len], &mut device[at..at + len]);
                    if buffer.to_device { device.copy_from_slice(host) } else { host.copy_from_slice(device) }
                }
                expected.push(bytes);
            }
            let entries: Vec<_> =
                mapped.iter().map(|(handle, _)| ExecuteEntry { handle: *handle, dir: 0 }).collect();
            file.execute(channel, &entries).unwrap();
            for (expected, (handle, mapping)) in expected.iter().zip(&mapped) {
                file.wait(channel, *handle, 0).unwrap();
                let mut found = vec![0; expected.len()];
                mapping.read_into(0, &mut found).unwrap();
                prop_assert!(found == *expected);
            }
        }
        prop_assert_eq!(rig.control.dma_errors(), 0);
    }
}
