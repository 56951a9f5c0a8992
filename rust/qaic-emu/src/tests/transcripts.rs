//! Every operation of the control protocol that clients use, on an emulated card, with and without faults: the firmware takes
//! each message, its replies are read, and the calls are recorded.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use qaic_emu::fault::Target;
use qaic_emu::{EmuKmd, EmuOptions, FaultPlan, Profile};
use qaic_kmd::abi::{
    AttachSliceEntry, DIR_FROM_DEVICE, DIR_TO_DEVICE, ExecuteEntry, PartialExecuteEntry, PerfStatsEntry,
};
use qaic_kmd::protocol::message::{self, ActivateRequest};
use qaic_kmd::protocol::parse::features;
use qaic_kmd::protocol::{
    ActivateReply, ActivationState, CardStatus, DeactivateReply, LoadConstantsReply, LoadElfReply, NncStatus,
    PerformanceInfoReply, Reply, ResourceInfoReply, UnloadConstantsReply, UnloadElfReply, WHOLE_DEVICE,
};
use qaic_kmd::{AccelFile, Kmd, ManageBuffer, Recording};

/// The answers of a session, call by call.
struct Session {
    file: Arc<dyn AccelFile>,
    answers: Vec<String>,
}

impl Session {
    /// Sends a message; returns the result of `read` for the reply, or for the error.
    fn send<T: std::fmt::Debug>(
        &mut self,
        mut message: ManageBuffer<'_>,
        read: impl Fn(&ManageBuffer<'_>) -> T,
    ) -> T {
        let result = self.file.manage(&mut message);
        let found = read(&message);
        self.answers.push(format!(
            "{result:?} {} {found:?} {:?}",
            message.count(),
            hidden(&message, result.is_ok())
        ));
        found
    }

    fn record(&mut self, what: impl std::fmt::Debug) {
        self.answers.push(format!("{what:?}"));
    }
}

/// The bytes of a reply; those of a message hold addresses.
fn hidden<'a>(message: &'a ManageBuffer<'_>, is_reply: bool) -> &'a [u8] {
    if is_reply { message.bytes() } else { &[] }
}

/// All calls of a runtime to a card, regardless of the answers.
fn session(kmd: &dyn Kmd, process_id: u32) -> Vec<String> {
    let node = kmd.enumerate().unwrap().remove(0);
    let mut to = Session { file: kmd.open(&node).unwrap(), answers: Vec::new() };
    to.record(to.file.driver_interface());
    to.send(message::status_query(), CardStatus::of).ok();
    to.send(message::status_features(), features).ok();

    // Static and dynamic sizes, no ECC.
    let descriptor = [&40_u64.to_le_bytes()[..], &24_u64.to_le_bytes(), &[0; 8]].concat();
    let announced =
        to.send(message::load_constants(process_id, &descriptor).unwrap(), LoadConstantsReply::of);
    let constants_id = announced.map_or(0, |reply| reply.constants_id);
    for (offset, part) in [(0, &[1_u8; 40][..]), (40, &[2; 24])] {
        to.send(
            message::load_constants_payload(process_id, constants_id, offset, part),
            LoadConstantsReply::of,
        )
        .ok();
    }
    let loaded = to.send(message::load_elf(process_id, 0, &[4; 5000]), LoadElfReply::of);
    let elf_id = loaded.map_or(0, |reply| reply.elf_id);

    let request =
        ActivateRequest { elf_id, constants_id, initial_state: ActivationState::Ready, queue_size: 16 };
    let activated = to.send(message::activate(process_id, request), ActivateReply::with_channel);
    let active = activated.ok().filter(|reply| reply.status.is_success());
    to.send(message::resource_info(process_id, WHOLE_DEVICE), ResourceInfoReply::of).ok();
    to.send(message::performance_info(), PerformanceInfoReply::of).ok();
    if let Some(active) = active {
        exchange(&mut to, active);
        let channel = Some(active.virtual_channel_id);
        to.send(message::deactivate(active.activation_id, channel), DeactivateReply::of).ok();
    }
    to.send(message::unload_elf(elf_id), UnloadElfReply::of).ok();
    to.send(message::unload_constants(constants_id), UnloadConstantsReply::of).ok();
    to.answers
}

/// Buffer objects and the data that moves between them.
fn exchange(to: &mut Session, active: ActivateReply) {
    let dbc_id = active.virtual_channel_id;
    let mut handles = Vec::new();
    for dir in [DIR_TO_DEVICE, DIR_FROM_DEVICE] {
        let handle = to.file.create_bo(8192);
        to.record(handle);
        let handle = handle.unwrap_or(99);
        let entry = AttachSliceEntry { size: 8192, dev_addr: active.ddr_base, ..AttachSliceEntry::default() };
        to.record(to.file.attach_slices(dbc_id, handle, dir, 8192, &[entry]));
        let offset = to.file.mmap_offset(handle);
        to.record(offset);
        to.record(to.file.map(offset.unwrap_or(0), 8192).map(|mapping| mapping.len()));
        handles.push(handle);
    }
    let entries: Vec<_> = handles.iter().map(|&handle| ExecuteEntry { handle, dir: 0 }).collect();
    for _ in 0..3 {
        to.record(to.file.execute(dbc_id, &entries));
        to.record(to.file.wait(dbc_id, handles[1], 100));
    }
    let mut figures: Vec<_> =
        handles.iter().map(|&handle| PerfStatsEntry { handle, ..PerfStatsEntry::default() }).collect();
    to.record(to.file.perf_stats(dbc_id, &mut figures));
    to.record(figures);
    let parts: Vec<_> =
        handles.iter().map(|&handle| PartialExecuteEntry { handle, dir: 0, resize: 100 }).collect();
    to.record(to.file.partial_execute(dbc_id, &parts));
    to.record(to.file.wait(dbc_id, handles[1], 0));
    for handle in handles {
        to.record(to.file.detach_slices(handle));
        to.record(to.file.close_handle(handle));
    }
}

fn card(faults: &str) -> Arc<EmuKmd> {
    let faults = FaultPlan::parse(faults, Target::Card).unwrap();
    EmuKmd::new(EmuOptions { faults, profile: Profile::Ssr, ..EmuOptions::default() }).unwrap()
}

/// A file that is removed on drop.
struct TranscriptFile(PathBuf);

impl TranscriptFile {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(env::temp_dir().join(format!("qaic-emu-transcript-{}-{count}", std::process::id())))
    }
}

impl Drop for TranscriptFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Records a session, which gets the same answers as without a recording. Returns the answers and the
/// transcript.
fn recorded(faults: &str) -> (Vec<String>, String) {
    let transcript = TranscriptFile::new();
    let direct = session(&*card(faults), 1);
    let kmd = card(faults);
    let answers = session(
        &Recording::new(Arc::clone(&kmd) as Arc<dyn Kmd>, &transcript.0, |text| panic!("{text}")).unwrap(),
        2,
    );
    assert_eq!(answers, direct, "{faults}");
    kmd.control(0).unwrap().hurry();
    assert_eq!(kmd.control(0).unwrap().invariants(), Vec::<String>::new(), "{faults}");
    (direct, fs::read_to_string(&transcript.0).unwrap())
}

#[test]
fn recorded_messages_are_accepted_and_their_replies_parsed() {
    let (answers, transcript) = recorded("");
    let refused: Vec<_> = answers.iter().filter(|answers| answers.contains("Err(")).collect();
    assert_eq!(refused, Vec::<&String>::new());
    for command in [
        "status",
        "load_constants_ex",
        "load_constants_payload",
        "load_elf",
        "activate",
        "resource_info",
        "performance_info",
        "deactivate",
        "unload_elf",
        "unload_constants",
    ] {
        let of = |name: &str| transcript.contains(&format!("\"command\":\"{name}\""));
        assert!(of(command), "{command}");
        let reply = if command.starts_with("load_constants") { "load_constants" } else { command };
        assert!(of(&format!("{reply}_reply")), "{command}");
    }
    // All calls succeeded.
    let status = format!("{:?}", NncStatus::SUCCESS);
    for answers in answers.iter().filter(|answers| answers.contains("NncStatus")) {
        assert!(answers.contains(&status), "{answers}");
    }
}

#[test]
fn transcripts_of_two_equal_sessions_are_equal() {
    assert_eq!(recorded("").1, recorded("").1);
}

#[test]
fn recording_of_a_faulty_session_changes_no_answer() {
    for faults in [
        "manage@1=ETIMEDOUT",
        "features@1=crc",
        "command(load_elf)@1=nack(-4)",
        "command(activate)@1=nack(-13)",
        "command(activate)@1=nack_both(-12)",
        "command(activate)@1=count(5)",
        "command(activate)@1=channel(16)",
        "command(activate)@1=dbc(16)",
        "command(load_elf)@1=truncated",
        "command(unload_elf)@1=wrong_type",
        "command(deactivate)@1=nack_both(-36)",
        "create_bo@2=ENOMEM",
        "attach@1=ENOSPC",
        "mmap@1=ENOMEM",
        "execute@1=EAGAIN*2",
        "wait@2=ETIMEDOUT; wait@3=EINTR",
        "inference@1=lost_completion",
        "inference@2=reset",
        "inference@2=ssr",
        "wait@1=dead",
    ] {
        let (answers, transcript) = recorded(faults);
        assert_ne!(answers, recorded("").0, "{faults}");
        assert!(transcript.lines().count() > 10, "{faults}");
    }
}
