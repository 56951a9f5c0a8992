//! One test for each rule about the results of calls.

use crate::tests::prelude::*;
use crate::tests::rig::{activate, load};
use qaic_kmd::abi::{CreateBo, DetachSlice, DrmVersion};
use qaic_kmd::{DriverInterface, VersionQuery};

#[test]
fn version_call_names_the_driver() {
    let rig = Rig::new(EmuOptions { driver_name: "another".into(), ..EmuOptions::default() });
    assert_eq!(rig.file().driver_interface(), Ok(DriverInterface::OtherDriver("another".into())));
    let mut query = VersionQuery::default();
    rig.file.ioctl(&mut Ioctl::Version(&mut query)).unwrap();
    let DrmVersion { major, minor, patchlevel, name_len, date_len, desc_len, .. } = query.version;
    assert_eq!((major, minor, patchlevel), (0, 0, 0));
    assert_eq!((name_len, date_len, desc_len), (7, 1, 30));
}

#[test]
fn create_bo_of_bad_arguments_is_refused() {
    let rig = Rig::of(Profile::Ssr);
    for (size, pad, error) in [
        (0, 0, Errno::INVAL),
        (4096, 1, Errno::INVAL),
        (u64::MAX, 0, Errno::INVAL),
        (u64::MAX - 4096, 0, Errno::NOMEM),
        (1 << 50, 0, Errno::NOMEM),
    ] {
        let mut arg = CreateBo { size, handle: 0, pad };
        assert_eq!(rig.file.ioctl(&mut Ioctl::CreateBo(&mut arg)), Err(error), "{size:#x} {pad}");
    }
}

#[test]
fn mmap_of_a_bad_offset_is_refused() {
    let rig = Rig::of(Profile::Ssr);
    assert_eq!(rig.file().mmap_offset(1), Err(Errno::NOENT));
    let handle = rig.file().create_bo(4097).unwrap();
    let offset = rig.file().mmap_offset(handle).unwrap();
    for (offset, len) in [
        (offset, 8193),
        (offset, 0),
        (offset + 4096, 8192),
        (offset + 4096, 4096),
        (offset + 1, 4096),
        (0, 4096),
    ] {
        assert_eq!(rig.file.map(offset, len).unwrap_err(), Errno::INVAL, "{offset:#x} {len}");
    }
    assert_eq!(rig.file.map(offset, 4096).unwrap().len(), 4096);
    // Offsets belong to the file that owns the handle.
    let other = rig.open().unwrap();
    assert_eq!(other.map(offset, 4096).unwrap_err(), Errno::ACCESS);
    rig.file().close_handle(handle).unwrap();
    assert_eq!(rig.file.map(offset, 4096).unwrap_err(), Errno::INVAL);
}

#[test]
fn attach_of_bad_slices_is_refused() {
    for profile in [Profile::Old, Profile::New, Profile::Ssr] {
        let rig = Rig::of(profile);
        let active = rig.activate(8);
        let handle = rig.file().create_bo(8000).unwrap();
        let good = AttachSliceEntry { size: 4096, ..AttachSliceEntry::default() };
        let attach = |dbc_id, handle, dir, size, entries: &[AttachSliceEntry]| {
            rig.file().attach_slices(dbc_id, handle, dir, size, entries)
        };
        let entries =
            |entries: &[AttachSliceEntry]| attach(active.dbc_id, handle, DIR_TO_DEVICE, 8000, entries);
        let to = DIR_TO_DEVICE;
        assert_eq!(entries(&[]), Err(Errno::INVAL));
        assert_eq!(attach(active.dbc_id, handle, 0, 8000, &[good]), Err(Errno::INVAL));
        assert_eq!(attach(active.dbc_id, handle, 3, 8000, &[good]), Err(Errno::INVAL));
        assert_eq!(attach(16, handle, to, 8000, &[good]), Err(Errno::INVAL));
        assert_eq!(entries(&vec![good; (4 << 20) / size_of_val(&good) + 1]), Err(Errno::NOMEM));
        assert_eq!(attach(active.dbc_id, 99, to, 8000, &[good]), Err(Errno::NOENT));
        assert_eq!(attach((active.dbc_id + 1) % 16, handle, to, 8000, &[good]), Err(Errno::INVAL));
        // Old kernels use the size in the call.
        let sized = attach(active.dbc_id, handle, to, 4095, &[good]);
        assert_eq!(sized, if profile == Profile::Old { Err(Errno::INVAL) } else { Ok(()) });
        if profile == Profile::Old {
            assert_eq!(attach(active.dbc_id, handle, to, 0, &[good]), Err(Errno::INVAL));
            assert_eq!(attach(active.dbc_id, handle, to, 8193, &[good]), Err(Errno::INVAL));
        } else {
            rig.file().detach_slices(handle).unwrap();
            assert_eq!(attach(active.dbc_id, handle, to, 0, &[good]), Ok(()));
            rig.file().detach_slices(handle).unwrap();
        }
        for bad in [
            AttachSliceEntry { offset: 8192, ..good },
            AttachSliceEntry { offset: u64::MAX, ..good },
            AttachSliceEntry { size: u64::MAX, offset: 1, ..good },
            AttachSliceEntry { db_len: 7, ..good },
            AttachSliceEntry { db_len: 64, ..good },
            AttachSliceEntry { db_len: 32, db_addr: 2, ..good },
            AttachSliceEntry { db_len: 16, db_addr: 1, ..good },
        ] {
            assert_eq!(entries(&[good, bad]), Err(Errno::INVAL), "{bad:?}");
        }
        let sem = Sem { cmd: 2, ..Sem::default() };
        for bad in [
            Sem { cmd: 7, ..sem },
            Sem { val: 4096, ..sem },
            Sem { index: 32, ..sem },
            Sem { presync: 2, ..sem },
            Sem { flags: 4, ..sem },
            Sem { pad: 1, ..sem },
        ] {
            let entry = AttachSliceEntry { sems: [sem, sem, sem, bad], ..good };
            assert_eq!(entries(&[entry]), Err(Errno::INVAL), "{bad:?}");
        }
        let presync = Sem { presync: 1, ..sem };
        assert_eq!(
            entries(&[AttachSliceEntry { sems: [presync, sem, sem, presync], ..good }]),
            Err(Errno::INVAL)
        );
        assert_eq!(entries(&[good; 9]), Err(Errno::NOSPC));
        assert_eq!(entries(&[AttachSliceEntry { db_len: 8, db_addr: 1, ..good }; 8]), Ok(()));
        assert_eq!(entries(&[good]), Err(Errno::INVAL), "attached already");
    }
}

#[test]
fn execute_of_bad_buffers_is_refused() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let (input, output) = (rig.input(active), rig.output(active));
    let bare = rig.file().create_bo(4096).unwrap();
    assert_eq!(rig.execute(active, &[]), Err(Errno::INVAL));
    assert_eq!(rig.partial_execute(active, &[]), Err(Errno::INVAL));
    assert_eq!(rig.execute(active, &vec![input; 1 << 20]), Err(Errno::NOMEM));
    let on = |dbc_id| crate::tests::rig::Active { dbc_id, ..active };
    assert_eq!(rig.execute(on(16), &[input]), Err(Errno::INVAL));
    assert_eq!(rig.execute(on((active.dbc_id + 1) % 16), &[input]), Err(Errno::PERM));
    assert_eq!(rig.execute(active, &[99]), Err(Errno::NOENT));
    assert_eq!(rig.execute(active, &[bare]), Err(Errno::INVAL));
    assert_eq!(rig.execute(active, &[input, input]), Err(Errno::INVAL));
    assert_eq!(rig.partial_execute(active, &[(input, 4097)]), Err(Errno::INVAL));
    // All entries are queued, or none.
    assert_eq!(rig.execute(active, &[input, output, bare]), Err(Errno::INVAL));
    assert_eq!(rig.file().detach_slices(input), Ok(()));
    assert_eq!(rig.file().detach_slices(output), Ok(()));
}

#[test]
fn wait_for_a_bad_buffer_is_refused() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let input = rig.input(active);
    let wait = |arg: Wait| rig.file.ioctl(&mut Ioctl::Wait(arg));
    let good = Wait { handle: input, timeout: 1, dbc_id: active.dbc_id, pad: 0 };
    assert_eq!(wait(good), Ok(()), "never executed");
    assert_eq!(wait(Wait { pad: 1, ..good }), Err(Errno::INVAL));
    assert_eq!(wait(Wait { dbc_id: 16, ..good }), Err(Errno::INVAL));
    assert_eq!(wait(Wait { dbc_id: (active.dbc_id + 1) % 16, ..good }), Err(Errno::PERM));
    assert_eq!(wait(Wait { handle: 99, ..good }), Err(Errno::NOENT));
}

#[test]
fn perf_stats_of_a_bad_buffer_are_refused() {
    for profile in [Profile::Old, Profile::New, Profile::Ssr] {
        let rig = Rig::of(profile);
        let active = rig.activate(8);
        let bare = rig.file().create_bo(4096).unwrap();
        let entry = |handle| PerfStatsEntry { handle, ..PerfStatsEntry::default() };
        let stats = |dbc_id, handle| rig.file().perf_stats(dbc_id, &mut [entry(handle)]);
        assert_eq!(stats(16, bare), Err(Errno::INVAL));
        assert_eq!(stats(active.dbc_id, 99), Err(Errno::NOENT));
        let newest = if profile == Profile::Ssr { Err(Errno::INVAL) } else { Ok(()) };
        assert_eq!(stats(active.dbc_id, bare), newest);
        // All entries are answered, or none.
        let output = rig.output(active);
        rig.execute(active, &[output]).unwrap();
        rig.wait(active, output).unwrap();
        let mut entries = [entry(output), entry(99)];
        assert_eq!(rig.file().perf_stats(active.dbc_id, &mut entries), Err(Errno::NOENT));
        assert_eq!(entries, [entry(output), entry(99)]);
        assert_eq!(rig.file().perf_stats(active.dbc_id, &mut entries[..1]), Ok(()));
        assert_eq!(entries[0].num_queue_element, 1);
    }
}

#[test]
fn detach_and_close_of_a_bad_handle_are_refused() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let output = rig.output(active);
    let detach = DetachSlice { handle: output, pad: 1 };
    assert_eq!(rig.file.ioctl(&mut Ioctl::DetachSlices(detach)), Err(Errno::INVAL));
    assert_eq!(rig.file().detach_slices(99), Err(Errno::NOENT));
    rig.execute(active, &[output]).unwrap();
    assert_eq!(rig.file().detach_slices(output), Err(Errno::BUSY));
    rig.wait(active, output).unwrap();
    assert_eq!(rig.file().detach_slices(output), Ok(()));
    assert_eq!(rig.file().detach_slices(output), Err(Errno::INVAL));
    assert_eq!(rig.file().close_handle(output), Ok(()));
    assert_eq!(rig.file().close_handle(output), Err(Errno::INVAL));
}

#[test]
fn manage_of_a_bad_message_is_refused() {
    let rig = Rig::of(Profile::Ssr);
    let send = |transactions: &[&[u32]]| {
        let mut message = ManageBuffer::default();
        for words in transactions {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            message.push(&bytes).unwrap();
        }
        rig.file().manage(&mut message)
    };
    let features = [12, 8];
    assert_eq!(send(&[&features]), Ok(()));
    assert_eq!(send(&[]), Err(Errno::INVAL));
    for words in [
        &[13, 8][..],
        &[1, 12, 0],
        &[7, 24, 0, 0, 0, 0],
        &[7, 24, 8, 0, 0, 1],
        &[7, 24, u32::MAX / 60, 0, 0, 0],
        &[10, 16, 16, 0],
        &[10, 16, 0, 1],
    ] {
        assert_eq!(send(&[words]), Err(Errno::INVAL), "{words:?}");
    }
    assert_eq!(send(&[&[10, 16, 3, 0]]), Err(Errno::PERM));
    let mut empty = ManageBuffer::default();
    empty.push_dma(100, &[]).unwrap();
    assert_eq!(rig.file().manage(&mut empty), Err(Errno::INVAL));
    // A reply is not a valid message.
    let mut reply = message::status_features();
    rig.file().manage(&mut reply).unwrap();
    assert_eq!(rig.file().manage(&mut reply), Err(Errno::INVAL));
    assert_eq!(rig.file.ioctl(&mut Ioctl::Manage(&mut reply)), Err(Errno::INVAL));
    // Nine status replies exceed the driver's buffer, so no reply arrives.
    let query = message::status_query();
    let mut many = ManageBuffer::default();
    for _ in 0..9 {
        many.push(query.bytes()).unwrap();
    }
    assert_eq!(rig.file().manage(&mut many), Err(Errno::TIMEDOUT));
}

#[test]
fn imported_memory_is_executed_and_not_mapped() {
    use std::os::fd::AsFd;

    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let (pipe, _) = std::io::pipe().unwrap();
    assert_eq!(rig.file().import_dma_buf(pipe.as_fd()), Err(Errno::INVAL));
    let memory = rustix::fs::memfd_create("input", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    rustix::io::pwrite(&memory, &[5; 4096], 0).unwrap();
    let handle = rig.file().import_dma_buf(memory.as_fd()).unwrap();
    assert_eq!(rig.file().import_dma_buf(memory.as_fd()), Ok(handle));
    let offset = rig.file().mmap_offset(handle).unwrap();
    assert_eq!(rig.file.map(offset, 4096).unwrap_err(), Errno::INVAL);
    let entry = AttachSliceEntry { size: 4096, dev_addr: active.ddr_base, ..AttachSliceEntry::default() };
    rig.file().attach_slices(active.dbc_id, handle, DIR_TO_DEVICE, 4096, &[entry]).unwrap();
    drop(memory);
    let output = rig.slice(active, DIR_FROM_DEVICE, 4096, 0);
    let mapping = rig.map(output, 4096);
    rig.execute(active, &[handle, output]).unwrap();
    rig.wait(active, output).unwrap();
    let mut back = [0; 4096];
    mapping.read_into(0, &mut back).unwrap();
    assert_eq!(back, [5; 4096]);
}

#[test]
fn channels_are_invisible_to_other_files() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let other = rig.open().unwrap();
    let entry = [AttachSliceEntry { size: 4096, ..AttachSliceEntry::default() }];
    let handle = other.create_bo(4096).unwrap();
    assert_eq!(handle, 1, "handles are of each file");
    let attached = other.attach_slices(active.dbc_id, handle, DIR_TO_DEVICE, 4096, &entry);
    assert_eq!(attached, Err(Errno::INVAL));
    let execute = [qaic_kmd::abi::ExecuteEntry { handle, dir: 0 }];
    assert_eq!(other.execute(active.dbc_id, &execute), Err(Errno::PERM));
    assert_eq!(other.wait(active.dbc_id, handle, 0), Err(Errno::PERM));
    let mut message = message::deactivate(active.activation_id, Some(active.dbc_id));
    assert_eq!(other.manage(&mut message), Err(Errno::PERM));
    // The other file gets its own channels and frees them.
    let own = activate(&*other, 8).unwrap();
    assert_ne!(own.dbc_id, active.dbc_id);
    assert!(load(&*other).is_ok());
    drop(other);
    assert_eq!(rig.control.resource_usage().activations, 1);
}
