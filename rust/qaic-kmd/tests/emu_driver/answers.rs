//! One test for each rule of what calls answer (device-kmd §2.1, §2.3, §2.8).

use bytemuck::{bytes_of, bytes_of_mut};
use qaic_kmd::Errno;
use qaic_kmd::abi::{
    AttachSlice, AttachSliceEntry, AttachSliceHdr, CreateBo, DIR_FROM_DEVICE, DIR_TO_DEVICE, DetachSlice,
    DrmVersion, Execute, ManageMsg, PerfStats, PerfStatsEntry, Sem, Wait, request,
};
use qaic_kmd::calls::{self, ManageBuffer};
use qaic_kmd::emu::{EmuOptions, Profile};
use qaic_kmd::nnc::message;

use crate::rig::{Rig, activate, load, raw};

const BAD: u64 = 8;

#[test]
fn requests_are_told_apart_by_their_number_alone() {
    let rig = Rig::of(Profile::Ssr);
    assert_eq!(raw(rig.file(), 0xC010_6341, &mut [0; 16]), Err(Errno::NOTTY));
    assert_eq!(raw(rig.file(), 0xC010_644A, &mut [0; 16]), Err(Errno::INVAL));
    assert_eq!(raw(rig.file(), 0xC010_6401, &mut [0; 16]), Err(Errno::INVAL));
    // A longer argument and a shorter one: what is missing is zero, what is too much stays as it is.
    let mut long = [0_u8; 24];
    long[..8].copy_from_slice(&4096_u64.to_le_bytes());
    long[16..].fill(7);
    assert_eq!(raw(rig.file(), 0xC018_6441, &mut long), Ok(()));
    assert_eq!(long[8..], [[1, 0, 0, 0], [0; 4], [7; 4], [7; 4]].concat());
    let mut short = 4096_u64.to_le_bytes();
    assert_eq!(raw(rig.file(), 0xC008_6441, &mut short), Ok(()));
    // A call that only writes to the kernel gets nothing back, one that only reads gives it nothing.
    let mut one_way = [0_u8; 16];
    one_way[..8].copy_from_slice(&4096_u64.to_le_bytes());
    assert_eq!(raw(rig.file(), 0x4010_6441, &mut one_way), Ok(()));
    assert_eq!(one_way[8..], [0; 8]);
    assert_eq!(raw(rig.file(), 0x8010_6441, &mut one_way), Err(Errno::INVAL));
    // The partition call of other runtimes reaches the detach handler (device-kmd T2).
    assert_eq!(raw(rig.file(), 0xC008_6448, &mut [9, 0, 0, 0, 0, 0, 0, 0]), Err(Errno::NOENT));
    assert_eq!(raw(rig.file(), 0xC008_6448, &mut [1, 0, 0, 0, 1, 0, 0, 0]), Err(Errno::INVAL));
    rig.close();
}

#[test]
fn version_tells_names_and_their_lengths() {
    let rig = Rig::new(EmuOptions { driver_name: "another".into(), ..EmuOptions::default() });
    assert_eq!(calls::driver_name(rig.file()).unwrap(), b"another");
    let mut arg = DrmVersion { name_len: 3, name: BAD, ..DrmVersion::default() };
    assert_eq!(raw(rig.file(), request::VERSION, bytes_of_mut(&mut arg)), Err(Errno::FAULT));
    let mut arg = DrmVersion::default();
    assert_eq!(raw(rig.file(), request::VERSION, bytes_of_mut(&mut arg)), Ok(()));
    assert_eq!((arg.name_len, arg.desc_len), (7, 30));
    rig.close();
}

#[test]
fn create_bo_answers() {
    let rig = Rig::of(Profile::Ssr);
    for (size, pad, error) in [
        (0, 0, Errno::INVAL),
        (4096, 1, Errno::INVAL),
        (u64::MAX, 0, Errno::INVAL),
        (u64::MAX - 4096, 0, Errno::NOMEM),
        (1 << 50, 0, Errno::NOMEM),
    ] {
        let mut arg = CreateBo { size, handle: 0, pad };
        assert_eq!(
            raw(rig.file(), request::CREATE_BO, bytes_of_mut(&mut arg)),
            Err(error),
            "{size:#x} {pad}"
        );
    }
    rig.close();
}

#[test]
fn mmap_answers() {
    let rig = Rig::of(Profile::Ssr);
    assert_eq!(calls::mmap_offset(rig.file(), 1), Err(Errno::NOENT));
    let handle = calls::create_bo(rig.file(), 4097).unwrap();
    let offset = calls::mmap_offset(rig.file(), handle).unwrap();
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
    // Offsets are of the file that has the handle.
    let other = rig.open().unwrap();
    assert_eq!(other.map(offset, 4096).unwrap_err(), Errno::INVAL);
    calls::close_handle(rig.file(), handle).unwrap();
    assert_eq!(rig.file.map(offset, 4096).unwrap_err(), Errno::INVAL);
    drop(other);
    rig.close();
}

#[test]
fn attach_answers() {
    for profile in [Profile::Old, Profile::New, Profile::Ssr] {
        let rig = Rig::of(profile);
        let active = rig.activate(8);
        let handle = calls::create_bo(rig.file(), 8000).unwrap();
        let good = AttachSliceEntry { size: 4096, ..AttachSliceEntry::default() };
        let hdr = AttachSliceHdr { count: 1, dbc_id: active.dbc_id, handle, dir: DIR_TO_DEVICE, size: 8000 };
        let attach = |hdr: AttachSliceHdr, data: u64| {
            let mut arg = AttachSlice { hdr, data };
            raw(rig.file(), request::ATTACH_SLICE_BO, bytes_of_mut(&mut arg))
        };
        let entries = |entries: &[AttachSliceEntry]| {
            calls::attach_slices(
                rig.file(),
                active.dbc_id,
                handle,
                DIR_TO_DEVICE,
                8000,
                &mut entries.to_vec(),
            )
        };
        assert_eq!(attach(AttachSliceHdr { count: 0, ..hdr }, BAD), Err(Errno::INVAL));
        assert_eq!(attach(AttachSliceHdr { dir: 0, ..hdr }, BAD), Err(Errno::INVAL));
        assert_eq!(attach(AttachSliceHdr { dir: 3, ..hdr }, BAD), Err(Errno::INVAL));
        assert_eq!(attach(hdr, 0), Err(Errno::INVAL));
        assert_eq!(attach(AttachSliceHdr { dbc_id: 16, ..hdr }, BAD), Err(Errno::INVAL));
        assert_eq!(attach(hdr, BAD), Err(Errno::FAULT));
        assert_eq!(attach(AttachSliceHdr { count: u32::MAX, ..hdr }, BAD), Err(Errno::NOMEM));
        let one = [good];
        let data = one.as_ptr().expose_provenance() as u64;
        assert_eq!(attach(AttachSliceHdr { handle: 99, ..hdr }, data), Err(Errno::NOENT));
        assert_eq!(
            attach(AttachSliceHdr { dbc_id: (active.dbc_id + 1) % 16, ..hdr }, data),
            Err(Errno::INVAL)
        );
        // Old kernels go by the size that they are told.
        let sized = attach(AttachSliceHdr { size: 4095, ..hdr }, data);
        assert_eq!(sized, if profile == Profile::Old { Err(Errno::INVAL) } else { Ok(()) });
        if profile == Profile::Old {
            assert_eq!(attach(AttachSliceHdr { size: 0, ..hdr }, data), Err(Errno::INVAL));
            assert_eq!(attach(AttachSliceHdr { size: 8193, ..hdr }, data), Err(Errno::INVAL));
        } else {
            calls::detach_slices(rig.file(), handle).unwrap();
            assert_eq!(attach(AttachSliceHdr { size: 0, ..hdr }, data), Ok(()));
            calls::detach_slices(rig.file(), handle).unwrap();
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
        rig.close();
    }
}

#[test]
fn execute_answers() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let (input, output) = (rig.input(active), rig.output(active));
    let bare = calls::create_bo(rig.file(), 4096).unwrap();
    for request in [request::EXECUTE_BO, request::PARTIAL_EXECUTE_BO] {
        for (count, dbc_id, data, error) in [
            (0, active.dbc_id, BAD, Errno::INVAL),
            (1, active.dbc_id, BAD, Errno::FAULT),
            (u32::MAX, active.dbc_id, BAD, Errno::NOMEM),
        ] {
            let mut arg = Execute { count, dbc_id, data };
            assert_eq!(raw(rig.file(), request, bytes_of_mut(&mut arg)), Err(error));
        }
    }
    let on = |dbc_id| crate::rig::Active { dbc_id, ..active };
    assert_eq!(rig.execute(on(16), &[input]), Err(Errno::INVAL));
    assert_eq!(rig.execute(on((active.dbc_id + 1) % 16), &[input]), Err(Errno::PERM));
    assert_eq!(rig.execute(active, &[99]), Err(Errno::NOENT));
    assert_eq!(rig.execute(active, &[bare]), Err(Errno::INVAL));
    assert_eq!(rig.execute(active, &[input, input]), Err(Errno::INVAL));
    assert_eq!(rig.partial_execute(active, &[(input, 4097)]), Err(Errno::INVAL));
    // All or nothing.
    assert_eq!(rig.execute(active, &[input, output, bare]), Err(Errno::INVAL));
    assert_eq!(calls::detach_slices(rig.file(), input), Ok(()));
    assert_eq!(calls::detach_slices(rig.file(), output), Ok(()));
    rig.close();
}

#[test]
fn wait_answers() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let input = rig.input(active);
    let wait = |arg: Wait| raw(rig.file(), request::WAIT_BO, bytes_of(&arg).to_vec().as_mut_slice());
    let good = Wait { handle: input, timeout: 1, dbc_id: active.dbc_id, pad: 0 };
    assert_eq!(wait(good), Ok(()), "never executed");
    assert_eq!(wait(Wait { pad: 1, ..good }), Err(Errno::INVAL));
    assert_eq!(wait(Wait { dbc_id: 16, ..good }), Err(Errno::INVAL));
    assert_eq!(wait(Wait { dbc_id: (active.dbc_id + 1) % 16, ..good }), Err(Errno::PERM));
    assert_eq!(wait(Wait { handle: 99, ..good }), Err(Errno::NOENT));
    rig.close();
}

#[test]
fn perf_stats_answers() {
    for profile in [Profile::Old, Profile::New, Profile::Ssr] {
        let rig = Rig::of(profile);
        let active = rig.activate(8);
        let bare = calls::create_bo(rig.file(), 4096).unwrap();
        let entry = |handle| PerfStatsEntry { handle, ..PerfStatsEntry::default() };
        let stats = |dbc_id, handle| calls::perf_stats(rig.file(), dbc_id, &mut [entry(handle)]);
        assert_eq!(stats(16, bare), Err(Errno::INVAL));
        assert_eq!(stats(active.dbc_id, 99), Err(Errno::NOENT));
        let newest = if profile == Profile::Ssr { Err(Errno::INVAL) } else { Ok(()) };
        assert_eq!(stats(active.dbc_id, bare), newest);
        let mut arg = PerfStats { count: 1, pad: 0, dbc_id: active.dbc_id, data: BAD };
        assert_eq!(raw(rig.file(), request::PERF_STATS_BO, bytes_of_mut(&mut arg)), Err(Errno::FAULT));
        rig.close();
    }
}

#[test]
fn detach_and_close_answer() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let output = rig.output(active);
    let mut arg = DetachSlice { handle: output, pad: 1 };
    assert_eq!(raw(rig.file(), request::DETACH_SLICE_BO, bytes_of_mut(&mut arg)), Err(Errno::INVAL));
    assert_eq!(calls::detach_slices(rig.file(), 99), Err(Errno::NOENT));
    rig.execute(active, &[output]).unwrap();
    assert_eq!(calls::detach_slices(rig.file(), output), Err(Errno::BUSY));
    rig.wait(active, output).unwrap();
    assert_eq!(calls::detach_slices(rig.file(), output), Ok(()));
    assert_eq!(calls::detach_slices(rig.file(), output), Err(Errno::INVAL));
    assert_eq!(calls::close_handle(rig.file(), output), Ok(()));
    assert_eq!(calls::close_handle(rig.file(), output), Err(Errno::INVAL));
    rig.close();
}

#[test]
fn manage_answers_to_frames() {
    let rig = Rig::of(Profile::Ssr);
    let features = [12_u32, 8].map(u32::to_le_bytes).concat();
    let send = |len: u32, count: u32, bytes: &[u8]| {
        let mut room = bytes.to_vec();
        room.resize(4096.max(bytes.len()), 0);
        let mut arg = ManageMsg { len, count, data: room.as_mut_ptr().expose_provenance() as u64 };
        raw(rig.file(), request::MANAGE, bytes_of_mut(&mut arg))
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    assert_eq!(send(8, 1, &features), Ok(()));
    for (len, count, bytes) in [
        (4097, 1, features.clone()),
        (8, 513, features.clone()),
        (8, 0, features.clone()),
        (7, 1, features.clone()),
        (16, 1, features.repeat(2)),
        (8, 2, features.clone()),
        (8, 1, words(&[12, 7])),
        (8, 1, words(&[12, 16])),
        (8, 1, words(&[13, 8])),
        (12, 1, words(&[1, 12, 0])),
        (24, 1, words(&[7, 24, 0, 0, 0, 0])),
        (24, 1, words(&[7, 24, 8, 0, 0, 1])),
        (24, 1, words(&[7, 24, u32::MAX / 60, 0, 0, 0])),
        (16, 1, words(&[10, 16, 16, 0])),
        (16, 1, words(&[10, 16, 0, 1])),
        (32, 1, words(&[5, 32, 100, 1, 8, 0, 0, 0])),
        (32, 1, words(&[5, 32, 100, 1, u32::MAX, u32::MAX, 8, 0])),
        (24, 1, words(&[5, 24, 100, 1, 8, 0])),
    ] {
        assert_eq!(send(len, count, &bytes), Err(Errno::INVAL), "{len} {count} {bytes:?}");
    }
    assert_eq!(send(32, 1, &words(&[5, 32, 100, 1, 8, 0, 8, 0])), Err(Errno::FAULT));
    assert_eq!(send(16, 1, &words(&[10, 16, 3, 0])), Err(Errno::PERM));
    let mut arg = ManageMsg { len: 8, count: 1, data: BAD };
    assert_eq!(raw(rig.file(), request::MANAGE, bytes_of_mut(&mut arg)), Err(Errno::FAULT));
    // Nine status replies are longer than any buffer.
    let query = message::status_query();
    let mut many = ManageBuffer::default();
    for _ in 0..9 {
        many.push(query.bytes()).unwrap();
    }
    assert_eq!(calls::manage(rig.file(), &mut many), Err(Errno::NOSPC));
    rig.close();
}

#[test]
fn imported_memory_is_executed_and_not_mapped() {
    use std::os::fd::AsRawFd;

    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    assert_eq!(calls::import_dma_buf(rig.file(), -1), Err(Errno::BADF));
    assert_eq!(calls::import_dma_buf(rig.file(), 1 << 30), Err(Errno::BADF));
    let (pipe, _) = std::io::pipe().unwrap();
    assert_eq!(calls::import_dma_buf(rig.file(), pipe.as_raw_fd()), Err(Errno::INVAL));
    let memory = rustix::fs::memfd_create("input", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    rustix::io::pwrite(&memory, &[5; 4096], 0).unwrap();
    let handle = calls::import_dma_buf(rig.file(), memory.as_raw_fd()).unwrap();
    assert_eq!(calls::import_dma_buf(rig.file(), memory.as_raw_fd()), Ok(handle));
    let offset = calls::mmap_offset(rig.file(), handle).unwrap();
    assert_eq!(rig.file.map(offset, 4096).unwrap_err(), Errno::INVAL);
    let entry = AttachSliceEntry { size: 4096, dev_addr: active.ddr_base, ..AttachSliceEntry::default() };
    calls::attach_slices(rig.file(), active.dbc_id, handle, DIR_TO_DEVICE, 4096, &mut [entry]).unwrap();
    drop(memory);
    let output = rig.slice(active, DIR_FROM_DEVICE, 4096, 0);
    let mapping = rig.map(output, 4096);
    rig.execute(active, &[handle, output]).unwrap();
    rig.wait(active, output).unwrap();
    let mut back = [0; 4096];
    mapping.read_into(0, &mut back).unwrap();
    assert_eq!(back, [5; 4096]);
    rig.close();
}

#[test]
fn channels_are_invisible_to_other_files() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let other = rig.open().unwrap();
    let mut entry = [AttachSliceEntry { size: 4096, ..AttachSliceEntry::default() }];
    let handle = calls::create_bo(&*other, 4096).unwrap();
    assert_eq!(handle, 1, "handles are of each file");
    let attached = calls::attach_slices(&*other, active.dbc_id, handle, DIR_TO_DEVICE, 4096, &mut entry);
    assert_eq!(attached, Err(Errno::INVAL));
    let mut execute = [qaic_kmd::abi::ExecuteEntry { handle, dir: 0 }];
    assert_eq!(calls::execute(&*other, active.dbc_id, &mut execute), Err(Errno::PERM));
    assert_eq!(calls::wait(&*other, active.dbc_id, handle, 0), Err(Errno::PERM));
    let mut message = message::deactivate(active.activation_id, Some(active.dbc_id));
    assert_eq!(calls::manage(&*other, &mut message), Err(Errno::PERM));
    // And it gets channels of its own, and frees them.
    let own = activate(&*other, 8).unwrap();
    assert_ne!(own.dbc_id, active.dbc_id);
    assert!(load(&*other).is_ok());
    drop(other);
    assert_eq!(rig.control.ledger().activations, 1);
    rig.close();
}
