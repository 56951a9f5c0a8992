//! Any calls in any order with any arguments: nothing panics or hangs, and closing the file frees everything.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::tests::prelude::*;
use crate::tests::rig::{Active, activate_message, load};

#[derive(Clone, Debug)]
enum Call {
    Load,
    Activate { elf: usize, queue_size: u32 },
    Deactivate { active: usize },
    Unload { elf: usize },
    Create { size: u64 },
    Map { handle: u32, len: usize },
    Attach { dbc_id: u32, handle: u32, dir: u32, size: u64, entries: Vec<AttachSliceEntry> },
    Execute { entries: Vec<PartialExecuteEntry>, dbc_id: u32, is_partial: bool },
    Wait(Wait),
    Stats { handle: u32, dbc_id: u32 },
    Detach { handle: u32 },
    Close { handle: u32 },
    Reset,
    Restart { dbc_id: u32 },
    Hurry,
    Message { transactions: Vec<(u32, Vec<u8>)>, data: Vec<u8> },
}

fn handle() -> impl Strategy<Value = u32> {
    0..6_u32
}

fn channel() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..3_u32, 1 => any::<u32>()]
}

fn entry() -> impl Strategy<Value = AttachSliceEntry> {
    let size = prop_oneof![Just(0), 1..10_000_u64, any::<u64>()];
    let sem = (0..7_u8, 0..3_u8, 0..2_u8, 0..3_u16).prop_map(|(cmd, index, presync, val)| Sem {
        val,
        index,
        presync,
        cmd,
        ..Sem::default()
    });
    let offset = prop_oneof![3 => Just(0), 1 => 0..8192_u64];
    (size, vec(sem, 0..2), any::<u64>(), offset, select(vec![0, 8, 16, 32])).prop_map(
        |(size, some, dev_addr, offset, db_len)| {
            let mut sems = [Sem::default(); 4];
            sems[..some.len()].copy_from_slice(&some);
            AttachSliceEntry { size, sems, dev_addr, db_len, offset, ..AttachSliceEntry::default() }
        },
    )
}

fn call() -> impl Strategy<Value = Call> {
    let attach = (channel(), handle(), 0..4_u32, select(vec![0, 4096, 8192, 1 << 40]), vec(entry(), 0..4));
    let attach = attach.prop_map(|(dbc_id, handle, dir, size, entries)| Call::Attach {
        dbc_id,
        handle,
        dir,
        size,
        entries,
    });
    let execute = (handle(), select(vec![0, 100, 4096, 8192, u64::MAX]));
    let execute = execute.prop_map(|(handle, resize)| PartialExecuteEntry { handle, dir: 0, resize });
    let wait = (handle(), 0..50_u32, channel());
    prop_oneof![
        2 => Just(Call::Load),
        3 => (0..3_usize, select(vec![1, 2, 8, 512])).prop_map(|(elf, queue_size)| Call::Activate { elf, queue_size }),
        1 => (0..3_usize).prop_map(|active| Call::Deactivate { active }),
        1 => (0..3_usize).prop_map(|elf| Call::Unload { elf }),
        4 => select(vec![0, 1, 4096, 8192]).prop_map(|size| Call::Create { size }),
        1 => (handle(), 0..9000_usize).prop_map(|(handle, len)| Call::Map { handle, len }),
        6 => attach,
        6 => (vec(execute, 0..4), channel(), any::<bool>())
            .prop_map(|(entries, dbc_id, is_partial)| Call::Execute { entries, dbc_id, is_partial }),
        4 => wait.prop_map(|(handle, timeout, dbc_id)| Call::Wait(Wait { handle, timeout, dbc_id, pad: 0 })),
        1 => (handle(), channel()).prop_map(|(handle, dbc_id)| Call::Stats { handle, dbc_id }),
        1 => handle().prop_map(|handle| Call::Detach { handle }),
        1 => handle().prop_map(|handle| Call::Close { handle }),
        1 => Just(Call::Reset),
        1 => (0..3_u32).prop_map(|dbc_id| Call::Restart { dbc_id }),
        1 => Just(Call::Hurry),
        2 => (vec((0..16_u32, vec(select(vec![0_u8, 1, 3, 5, 7, 8, 9, 10, 12, 16, 24, 32, 255]), 0..96)), 0..4), vec(any::<u8>(), 0..9))
            .prop_map(|(transactions, data)| Call::Message { transactions, data }),
    ]
}

fn make(rig: &Rig, calls: &[Call]) {
    let (mut elves, mut actives) = (Vec::new(), Vec::<Active>::new());
    let file = rig.file();
    for call in calls {
        match call.clone() {
            Call::Load => elves.extend(load(file)),
            Call::Activate { elf, queue_size } => {
                let mut message = activate_message(elves.get(elf).copied().unwrap_or(7), queue_size);
                if file.manage(&mut message).is_ok()
                    && let Ok(reply) = qaic_kmd::protocol::ActivateReply::with_channel(&message)
                    && reply.status.is_success()
                {
                    actives.push(Active {
                        elf_id: 0,
                        activation_id: reply.activation_id,
                        dbc_id: reply.virtual_channel_id,
                        ddr_base: reply.ddr_base,
                    });
                }
            }
            Call::Deactivate { active } if active < actives.len() => {
                let _ = rig.deactivate(actives[active]);
            }
            Call::Deactivate { .. } => {}
            Call::Unload { elf } => {
                let id = elves.get(elf).copied().unwrap_or(9);
                let _ = file.manage(&mut message::unload_elf(id));
            }
            Call::Create { size } => drop(file.create_bo(size)),
            Call::Map { handle, len } => {
                if let Ok(offset) = file.mmap_offset(handle)
                    && let Ok(mapping) = rig.file.map(offset, len)
                {
                    mapping.write_from(0, &[1]).unwrap();
                }
            }
            Call::Attach { dbc_id, handle, dir, size, entries } => {
                let _ = file.attach_slices(dbc_id, handle, dir, size, &entries);
            }
            Call::Execute { entries, dbc_id, is_partial: true } => {
                let _ = file.partial_execute(dbc_id, &entries);
            }
            Call::Execute { entries, dbc_id, is_partial: false } => {
                let entry =
                    |entry: &PartialExecuteEntry| ExecuteEntry { handle: entry.handle, dir: entry.dir };
                let entries: Vec<_> = entries.iter().map(entry).collect();
                let _ = file.execute(dbc_id, &entries);
            }
            Call::Wait(arg) => drop(rig.file.ioctl(&mut Ioctl::Wait(arg))),
            Call::Stats { handle, dbc_id } => {
                let mut entries = [PerfStatsEntry { handle, ..PerfStatsEntry::default() }];
                let _ = file.perf_stats(dbc_id, &mut entries);
            }
            Call::Detach { handle } => drop(file.detach_slices(handle)),
            Call::Close { handle } => drop(file.close_handle(handle)),
            Call::Reset => rig.control.reset(),
            Call::Restart { dbc_id } => rig.control.restart_cores(dbc_id, true),
            Call::Hurry => rig.control.hurry(),
            Call::Message { transactions, data } => {
                let mut message = ManageBuffer::default();
                for (kind, body) in transactions {
                    let len = u32::try_from(8 + body.len()).unwrap();
                    let whole = [&kind.to_le_bytes(), &len.to_le_bytes(), &body[..]].concat();
                    let _ = if kind == 5 { message.push_dma(100, &data) } else { message.push(&whole) };
                }
                let _ = file.manage(&mut message);
            }
        }
    }
}

fn faults() -> impl Strategy<Value = String> {
    let rule = select(vec![
        "execute@2=EAGAIN",
        "wait@1=EINTR",
        "wait@1=reset",
        "inference@1=lost_completion",
        "inference@1=hang",
        "inference@2=ssr",
        "inference@1=short_completion",
        "time@30ms=reset",
        "time@20ms=dead",
        "manage@2=crc",
        "manage@3=truncated",
        "manage@2=count(9)",
        "command(activate)@1=dbc(16)",
        "command(activate)@1=channel(3)",
        "command(activate)@1=nack_both(-13)",
        "command(deactivate)@1=nack(-36)",
        "command(deactivate)@1=hang",
        "create_bo@2=ENOMEM",
        "attach@1=ENOSPC",
        "inference@1=dma_status(1)",
        "manage@4=wrong_type",
        "inference@1=reset",
    ]);
    vec(rule, 0..4).prop_map(|rules| rules.join(";"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn close_after_any_calls_frees_all(
        calls in vec(call(), 0..60),
        profile in select(vec![Profile::Old, Profile::New, Profile::Ssr]),
        execution_mode in select(vec![ExecutionMode::Inline, ExecutionMode::Threads]),
        plan in faults(),
        fragment_bytes in select(vec![512, u64::MAX]),
    ) {
        let faults = FaultPlan::parse(&plan, Target::Card).unwrap();
        let rig = Rig::new(EmuOptions { profile, execution_mode, faults, fragment_bytes, ..EmuOptions::default() });
        make(&rig, &calls);
        rig.close_with_given_up_channels();
    }

    #[test]
    fn executions_in_both_modes_move_the_same_bytes(
        slices in vec((0..4096_u64, 0..2048_u64, 0..8192_u64), 1..6),
        rounds in vec(vec(any::<u8>(), 16), 1..4),
        fragment_bytes in select(vec![64, 1000, u64::MAX]),
    ) {
        let moved = [ExecutionMode::Inline, ExecutionMode::Threads].map(|execution_mode| {
            let rig = Rig::new(EmuOptions { execution_mode, fragment_bytes, ..EmuOptions::default() });
            let active = rig.activate(1024);
            let attach = |dir| {
                let handle = rig.file().create_bo(8192).unwrap();
                let entry = |&(offset, size, dev_addr): &(u64, u64, u64)| AttachSliceEntry {
                    size,
                    offset,
                    dev_addr: active.ddr_base + dev_addr,
                    ..AttachSliceEntry::default()
                };
                let entries: Vec<_> = slices.iter().map(entry).collect();
                rig.file().attach_slices(active.dbc_id, handle, dir, 8192, &entries).unwrap();
                handle
            };
            let (input, output) = (attach(DIR_TO_DEVICE), attach(DIR_FROM_DEVICE));
            let (from, to) = (rig.map(input, 8192), rig.map(output, 8192));
            rounds.iter().map(|round| {
                from.write_from(0, &round.repeat(512)).unwrap();
                rig.execute(active, &[input, output]).unwrap();
                rig.wait(active, output).unwrap();
                let mut bytes = vec![0; 8192];
                to.read_into(0, &mut bytes).unwrap();
                bytes
            }).collect::<Vec<_>>()
        });
        // If several slices write to one address of the device, the last one wins; unwritten bytes are 0.
        let mut device = vec![0_u8; 16_384];
        let mut expected = vec![0_u8; 8192];
        for (round, bytes) in rounds.iter().zip(&moved[0]) {
            let image = round.repeat(512);
            let span = |from: u64, size: u64| usize::try_from(from).unwrap()..usize::try_from(from + size).unwrap();
            for (offset, size, dev_addr) in &slices {
                device[span(*dev_addr, *size)].copy_from_slice(&image[span(*offset, *size)]);
            }
            for (offset, size, dev_addr) in &slices {
                expected[span(*offset, *size)].copy_from_slice(&device[span(*dev_addr, *size)]);
            }
            prop_assert_eq!(bytes, &expected);
        }
        prop_assert_eq!(&moved[0], &moved[1]);
    }
}
