//! Behaviors of real drivers that programs depend on.

use crate::tests::prelude::*;
use crate::tests::rig::activate;
use qaic_kmd::protocol::parse::{Transaction, transactions};

const PROFILES: [Profile; 3] = [Profile::Old, Profile::New, Profile::Ssr];
const EXECUTION_MODES: [ExecutionMode; 2] = [ExecutionMode::Inline, ExecutionMode::Threads];

fn bytes(mapping: &qaic_mem::Mapping) -> Vec<u8> {
    let mut bytes = vec![0; mapping.len()];
    mapping.read_into(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn execution_returns_the_input_and_poisons_outputs_before() {
    for execution_mode in EXECUTION_MODES {
        let rig = Rig::new(EmuOptions { execution_mode, ..EmuOptions::default() });
        let active = rig.activate(16);
        let (input, output) = (rig.input(active), rig.output(active));
        let (from, to) = (rig.map(input, 4096), rig.map(output, 4096));
        assert_eq!(bytes(&from), [0; 4096], "zeroed");
        for round in 0..5_u8 {
            from.write_from(0, &[round; 4096]).unwrap();
            rig.execute(active, &[input, output]).unwrap();
            if execution_mode == ExecutionMode::Inline {
                assert_eq!(bytes(&to), [0xDB; 4096], "undefined before the completion");
            }
            rig.wait(active, output).unwrap();
            assert_eq!(bytes(&to), [round; 4096]);
        }
    }
}

#[test]
fn buffer_object_of_any_size_has_whole_pages() {
    let rig = Rig::of(Profile::Ssr);
    let handle = rig.file().create_bo(1).unwrap();
    assert_eq!(bytes(&rig.map(handle, 4096)), [0; 4096]);
}

#[test]
fn handles_begin_at_one_and_are_used_again() {
    let rig = Rig::of(Profile::Ssr);
    let create = || rig.file().create_bo(4096).unwrap();
    assert_eq!([create(), create(), create()], [1, 2, 3]);
    rig.file().close_handle(2).unwrap();
    assert_eq!([create(), create()], [2, 4]);
}

#[test]
fn ring_of_a_size_holds_one_element_less() {
    for execution_mode in EXECUTION_MODES {
        let rig = Rig::new(EmuOptions { execution_mode, ..EmuOptions::default() });
        let active = rig.activate(4);
        // The first element waits for a semaphore that is never raised.
        let stuck = Sem { index: 3, cmd: 6, presync: 1, ..Sem::default() };
        let attach = |count: usize| {
            let handle = rig.file().create_bo(4096).unwrap();
            let entry = AttachSliceEntry {
                sems: [stuck, Sem::default(), Sem::default(), Sem::default()],
                ..AttachSliceEntry::default()
            };
            let entries = vec![entry; count];
            rig.file().attach_slices(active.dbc_id, handle, DIR_TO_DEVICE, 4096, &entries).unwrap();
            handle
        };
        let (two, one, full, another) = (attach(2), attach(1), attach(4), attach(1));
        assert_eq!(rig.execute(active, &[full]), Err(Errno::AGAIN), "as many as the ring has never fit");
        assert_eq!(rig.execute(active, &[two, one, another]), Err(Errno::AGAIN));
        assert_eq!(rig.execute(active, &[two, one]), Ok(()));
        assert_eq!(rig.execute(active, &[another]), Err(Errno::AGAIN));
        assert_eq!(rig.wait(active, one), Err(Errno::TIMEDOUT));
        assert_eq!(rig.file().detach_slices(one), Err(Errno::BUSY));
        assert_eq!(rig.execute(active, &[one]), Err(Errno::INVAL), "queued already");
    }
}

#[test]
fn full_ring_after_a_pause_has_room_again() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(4);
    let outputs: Vec<_> = (0..4).map(|_| rig.output(active)).collect();
    for output in &outputs[..3] {
        rig.execute(active, &[*output]).unwrap();
    }
    assert_eq!(rig.execute(active, &[outputs[3]]), Err(Errno::AGAIN));
    assert_eq!(rig.execute(active, &[outputs[3]]), Ok(()));
    rig.wait(active, outputs[3]).unwrap();
}

#[test]
fn wait_without_a_completion_takes_its_limit() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(4);
    let output = rig.output(active);
    rig.plan("inference@1=hang");
    rig.execute(active, &[output]).unwrap();
    let clock = rig.kmd.clock();
    assert_eq!(rig.file().wait(active.dbc_id, output, 123), Err(Errno::TIMEDOUT));
    assert_eq!(clock.now(), Duration::from_millis(123));
    assert_eq!(rig.wait(active, output), Err(Errno::TIMEDOUT));
    assert_eq!(clock.now(), Duration::from_millis(5123), "0 is the default");
}

#[test]
fn partial_executions_follow_the_kernel() {
    for profile in PROFILES {
        let card = Rig::new(EmuOptions { profile, fragment_bytes: 1000, ..EmuOptions::default() });
        let rig = &card;
        let active = rig.activate(64);
        let slices = |dir: u32| {
            let handle = rig.file().create_bo(8192).unwrap();
            let entry = |offset| AttachSliceEntry {
                size: 4096,
                dev_addr: active.ddr_base + offset,
                offset,
                ..AttachSliceEntry::default()
            };
            let entries = [entry(0), entry(4096)];
            rig.file().attach_slices(active.dbc_id, handle, dir, 8192, &entries).unwrap();
            handle
        };
        let (input, output) = (slices(DIR_TO_DEVICE), slices(DIR_FROM_DEVICE));
        let (from, to) = (rig.map(input, 8192), rig.map(output, 8192));
        let to = &to;
        let device = |resize: u64, fill: u8| {
            // All bytes of the device are 1; then a part gets another value.
            from.write_from(0, &[1; 8192]).unwrap();
            rig.execute(active, &[input]).unwrap();
            rig.wait(active, input).unwrap();
            from.write_from(0, &[fill; 8192]).unwrap();
            rig.partial_execute(active, &[(input, resize)]).unwrap();
            let waited = rig.wait(active, input);
            (waited, move || {
                rig.execute(active, &[output]).unwrap();
                rig.wait(active, output).unwrap();
                bytes(to).split(|byte| *byte == fill).count() - 1
            })
        };
        for (resize, moved) in [(8192, 8192), (8191, 8191), (6000, 6000), (5000, 5000), (4097, 4097)] {
            let (waited, count) = device(resize, 2);
            assert_eq!((waited, count()), (Ok(()), moved), "{profile:?} {resize}");
        }
        let (waited, count) = device(0, 3);
        let expected = if profile == Profile::Old { 8192 } else { 0 };
        assert_eq!((waited, count()), (Ok(()), expected), "{profile:?}: nothing or all");
        // A slice beyond the size: old kernels wait forever, new ones skip the transfer.
        let (waited, _) = device(4096, 4);
        let expected = if profile == Profile::Old { Err(Errno::TIMEDOUT) } else { Ok(()) };
        assert_eq!(waited, expected, "{profile:?}");
    }
}

#[test]
fn fragments_repeat_what_comes_before_and_keep_what_comes_after_for_the_last() {
    for fragment_bytes in [1, 100, 4095, 4096, u64::MAX] {
        let rig = Rig::new(EmuOptions { fragment_bytes, ..EmuOptions::default() });
        let active = rig.activate(16_384);
        let op = |cmd, presync, val| Sem { val, index: 1, cmd, presync, ..Sem::default() };
        let attach = |dir, size, sems: [Sem; 2]| {
            let handle = rig.file().create_bo(4096).unwrap();
            let sems = [sems[0], sems[1], Sem::default(), Sem::default()];
            let entry =
                AttachSliceEntry { size, sems, dev_addr: active.ddr_base, ..AttachSliceEntry::default() };
            rig.file().attach_slices(active.dbc_id, handle, dir, 4096, &[entry]).unwrap();
            handle
        };
        // Each fragment waits for a semaphore of 1; the last one adds one, so a value of 2 shows a single addition.
        let set = attach(DIR_TO_DEVICE, 0, [op(1, 0, 1), Sem::default()]);
        let input = attach(DIR_TO_DEVICE, 4096, [op(4, 1, 1), op(2, 0, 0)]);
        let output = attach(DIR_FROM_DEVICE, 4096, [op(4, 1, 2), op(2, 0, 0)]);
        let check = attach(DIR_TO_DEVICE, 0, [op(4, 1, 3), Sem::default()]);
        let (from, to) = (rig.map(input, 4096), rig.map(output, 4096));
        let image: Vec<u8> = (0..4096_u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
        from.write_from(0, &image).unwrap();
        rig.execute(active, &[set, input, output, check]).unwrap();
        assert_eq!(rig.wait(active, check), Ok(()), "{fragment_bytes}");
        assert_eq!(bytes(&to), image, "{fragment_bytes}");
    }
}

#[test]
fn perf_stats_have_levels_elements_and_latencies() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(64);
    let (first, second) = (rig.output(active), rig.output(active));
    let stats = |handles: [u32; 2]| {
        let mut entries = handles.map(|handle| PerfStatsEntry { handle, ..PerfStatsEntry::default() });
        rig.file().perf_stats(active.dbc_id, &mut entries).unwrap();
        entries
    };
    rig.execute(active, &[first]).unwrap();
    rig.execute(active, &[second]).unwrap();
    let [one, two] = stats([first, second]);
    assert_eq!((one.queue_level_before, one.num_queue_element, one.device_latency_us), (0, 1, 0));
    assert_eq!((two.queue_level_before, two.num_queue_element, two.device_latency_us), (1, 1, 0));
    rig.wait(active, second).unwrap();
    let [one, two] = stats([first, second]);
    assert!(one.device_latency_us > 0 && two.device_latency_us > 0 && two.submit_latency_us > 0);
    rig.execute(active, &[first, second]).unwrap();
    let [one, two] = stats([first, second]);
    assert_eq!(
        (one.queue_level_before, two.queue_level_before),
        (0, 1),
        "those before it in the same call count"
    );
}

#[test]
fn deactivation_detaches_and_keeps_memory() {
    for execution_mode in EXECUTION_MODES {
        let rig = Rig::new(EmuOptions { execution_mode, ..EmuOptions::default() });
        let active = rig.activate(16);
        let (input, output) = (rig.input(active), rig.output(active));
        let mapping = rig.map(input, 4096);
        mapping.write_from(0, &[9; 4096]).unwrap();
        rig.execute(active, &[input, output]).unwrap();
        let mut message = message::deactivate(active.activation_id, Some(active.dbc_id));
        rig.file().manage(&mut message).unwrap();
        // The driver passes on neither its transaction nor the firmware's count.
        let found: Vec<_> = transactions(message.bytes()).collect();
        assert!(matches!(found[..], [Ok(Transaction::Passthrough(_))]), "{found:?}");
        assert_eq!(message.count(), 2);
        assert!(DeactivateReply::of(&message).unwrap().status.is_success());
        assert_eq!(rig.file().detach_slices(input), Err(Errno::INVAL));
        assert_eq!(rig.execute(active, &[input]), Err(Errno::PERM));
        assert_eq!(rig.wait(active, output), Err(Errno::PERM));
        assert_eq!(bytes(&mapping), [9; 4096]);
        // After another attachment, the channel works again.
        let active = rig.activate(16);
        let entry = AttachSliceEntry { size: 4096, dev_addr: active.ddr_base, ..AttachSliceEntry::default() };
        rig.file().attach_slices(active.dbc_id, input, DIR_TO_DEVICE, 4096, &[entry]).unwrap();
        rig.execute(active, &[input]).unwrap();
        rig.wait(active, input).unwrap();
    }
}

#[test]
fn closing_a_handle_keeps_what_the_channel_refers_to() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(16);
    let (input, output) = (rig.input(active), rig.output(active));
    rig.map(input, 4096).write_from(0, &[4; 4096]).unwrap();
    rig.execute(active, &[input, output]).unwrap();
    rig.file().close_handle(input).unwrap();
    rig.wait(active, output).unwrap();
    assert_eq!(bytes(&rig.map(output, 4096)), [4; 4096]);
    assert_eq!(rig.wait(active, input), Err(Errno::NOENT));
    let kept = rig.control.invariants();
    assert!(kept.iter().any(|line| line.contains("buffer objects: 2")), "{kept:?}");
}

#[test]
fn mapping_after_the_close_of_its_file_stays_valid() {
    let rig = Rig::of(Profile::Ssr);
    let (_, output) = rig.active_with_output();
    let mapping = rig.map(output, 4096);
    mapping.write_from(0, &[1; 4096]).unwrap();
    drop(rig);
    assert_eq!(bytes(&mapping), [1; 4096]);
}

#[test]
fn cards_of_one_emulator_are_independent() {
    let kmd = EmuKmd::new(EmuOptions { cards: 3, ..EmuOptions::default() }).unwrap();
    let nodes = kmd.enumerate().unwrap();
    assert_eq!(nodes.iter().map(|node| node.qid).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(nodes.is_sorted_by_key(|node| node.address));
    let file = kmd.open(&nodes[1]).unwrap();
    activate(&*file, 16).unwrap();
    let open = |card| kmd.control(card).unwrap().invariants().is_empty();
    assert_eq!([open(0), open(1), open(2)], [true, false, true]);
    drop(file);
    assert!(open(1));
    assert!(kmd.control(3).is_none());
    assert!(EmuKmd::new(EmuOptions { cards: 256, ..EmuOptions::default() }).is_err());
}

#[test]
fn wait_on_another_thread_sees_the_completion() {
    for execution_mode in EXECUTION_MODES {
        let rig = Rig::new(EmuOptions { execution_mode, ..EmuOptions::default() });
        let active = rig.activate(512);
        let outputs: Vec<_> = (0..8).map(|_| rig.output(active)).collect();
        for _ in 0..20 {
            rig.execute(active, &outputs).unwrap();
            std::thread::scope(|scope| {
                for output in &outputs {
                    let file = Arc::clone(&rig.file);
                    scope.spawn(move || file.wait(active.dbc_id, *output, 0).unwrap());
                }
            });
        }
    }
}
