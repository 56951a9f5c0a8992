//! Recording the calls to a kernel.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use std::{env, fs, io, sync::Arc};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::log::Log;
use super::*;
use crate::Errno;
use crate::abi::{AttachSliceEntry, ExecuteEntry, PartialExecuteEntry, PerfStatsEntry, Sem};
use qaic_mem::Mapping;

use crate::clock::{Clock, VirtualClock};
use crate::ioctl::Ioctl;
use crate::kmd::{AccelFile, Event, EventSource, Kmd, NodeInfo, PciAddress, Readiness, Telemetry};
use crate::manage::ManageBuffer;
use crate::protocol::ActivationState;
use crate::protocol::message;

/// A kernel whose answers set every field.
#[derive(Debug, Default)]
struct Kernel {
    refuses_activation: bool,
    events: Mutex<Vec<Event>>,
}

#[derive(Debug, Default)]
struct KernelFile {
    refuses_activation: bool,
    handles: AtomicU32,
    executions: AtomicU64,
}

fn node() -> NodeInfo {
    let address = PciAddress { domain: 0, bus: 3, device: 0, function: 0 };
    NodeInfo { qid: 0, path: Some("/dev/accel/accel0".into()), address, pci: None }
}

impl Kmd for Kernel {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        Ok(vec![node()])
    }

    fn open(&self, _node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        Ok(Arc::new(KernelFile { refuses_activation: self.refuses_activation, ..KernelFile::default() }))
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        Ok(Box::new(KernelEvents(self.events.lock().unwrap().clone())))
    }

    fn telemetry(&self, _node: &NodeInfo) -> Telemetry {
        Telemetry { soc_temperature_millicelsius: Some(-5), ..Telemetry::default() }
    }

    fn reset(&self, _node: &NodeInfo) -> Result<(), Errno> {
        Err(Errno::ACCESS)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(VirtualClock::default())
    }
}

#[derive(Debug)]
struct KernelEvents(Vec<Event>);

impl EventSource for KernelEvents {
    fn next(&mut self, _limit: Duration) -> Result<Option<Event>, Errno> {
        Ok(self.0.pop())
    }

    fn readiness(&self) -> Arc<dyn Readiness> {
        Arc::new(AlwaysReady)
    }
}

#[derive(Debug)]
struct AlwaysReady;

impl Readiness for AlwaysReady {
    fn wait(&self, _: Option<Duration>) {}

    fn wake(&self) {}
}

fn transaction(kind: u32, body: &[u32]) -> Vec<u8> {
    let len = u32::try_from(8 + 4 * body.len()).unwrap();
    [kind, len].into_iter().chain(body.iter().copied()).flat_map(u32::to_le_bytes).collect()
}

impl KernelFile {
    fn manage(&self, message: &mut ManageBuffer<'_>) -> Result<(), Errno> {
        let command = message.bytes().get(8..12).map_or(0, |id| u32::from_le_bytes(id.try_into().unwrap()));
        let (reply, count, result) = match command {
            3 => (transaction(3, &[4, 77, 0, 0]), 1, Ok(())),
            9 if self.refuses_activation => {
                let mut command = [0; 22];
                (command[0], command[1]) = (10, u32::MAX - 12);
                ([transaction(3, &command), transaction(8, &[1, 0, 0, 0])].concat(), 2, Err(Errno::CANCELED))
            }
            9 => {
                let mut command = [0; 22];
                (command[0], command[2], command[3]) = (10, 5, 3);
                ([transaction(3, &command), transaction(8, &[0, 3, 0, 0])].concat(), 2, Ok(()))
            }
            // The kernel keeps its part, but counts it.
            11 => (transaction(3, &[12, 0]), 2, Ok(())),
            15 => return Err(Errno::TIMEDOUT),
            id => (transaction(3, &[id + 1, 0]), 1, Ok(())),
        };
        message.set_reply(&reply, count);
        result
    }
}

impl AccelFile for KernelFile {
    fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        match call {
            Ioctl::Manage(message) => return self.manage(message),
            Ioctl::CreateBo(arg) => arg.handle = self.handles.fetch_add(1, Ordering::Relaxed) + 1,
            Ioctl::MmapBo(arg) => arg.offset = u64::from(arg.handle) << 32,
            Ioctl::Execute { .. } if self.executions.fetch_add(1, Ordering::Relaxed) == 0 => {
                return Err(Errno::AGAIN);
            }
            Ioctl::PerfStats { entries, .. } => {
                let figures = &mut entries[0];
                (figures.queue_level_before, figures.num_queue_element) = (2, 3);
                (figures.submit_latency_us, figures.device_latency_us) = (4, 5);
            }
            Ioctl::Version(query) => query.set_name("qaic"),
            Ioctl::DetachSlices(_) => return Err(Errno::BUSY),
            _ => {}
        }
        Ok(())
    }

    fn map(&self, _offset: u64, len: usize) -> Result<Mapping, Errno> {
        Mapping::anonymous(len)
    }
}

/// A file that is removed on drop.
struct TranscriptFile(PathBuf);

impl TranscriptFile {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("qaic-transcript-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(env::temp_dir().join(name))
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.0).unwrap();
        assert!(text.ends_with('\n'));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for TranscriptFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn no_warning(text: &str) {
    panic!("{text}");
}

fn recording(kernel: Kernel, transcript: &TranscriptFile) -> Recording {
    Recording::new(Arc::new(kernel), &transcript.0, no_warning).unwrap()
}

fn manage(file: &dyn AccelFile, mut message: ManageBuffer<'_>) -> String {
    let result = file.manage(&mut message);
    let bytes = if result == Err(Errno::TIMEDOUT) { &[] } else { message.bytes() };
    format!("{result:?} {} {bytes:?}", message.count())
}

fn activation(process_id: u32) -> ManageBuffer<'static> {
    let request = message::ActivateRequest {
        elf_id: 77,
        constants_id: 0,
        initial_state: ActivationState::Ready,
        queue_size: 512,
    };
    message::activate(process_id, request)
}

/// Makes every call, and returns the results.
fn run(kmd: &dyn Kmd, process_id: u32, wait_ms: u32) -> Vec<String> {
    let mut answers = Vec::new();
    let nodes = kmd.enumerate().unwrap();
    answers.push(format!("{nodes:?} {:?} {:?}", kmd.telemetry(&nodes[0]), kmd.reset(&nodes[0])));
    let file = kmd.open(&nodes[0]).unwrap();
    let file = &*file;
    answers.push(format!("{:?}", file.driver_interface()));
    // The address in memory differs each time.
    let image = vec![process_id.to_le_bytes()[3]; 9].into_boxed_slice();
    answers.push(manage(file, message::status_query()));
    answers.push(manage(file, message::load_constants(process_id, &[1; 24]).unwrap()));
    answers.push(manage(file, message::load_elf(process_id, 6, &image)));
    answers.push(manage(file, activation(process_id)));
    for size in [4096, 10_000] {
        answers.push(format!("{:?}", file.create_bo(size)));
    }
    answers.push(format!("{:?}", file.mmap_offset(2)));
    answers.push(format!("{:?}", file.map(2 << 32, 12_288).map(|mapping| mapping.len())));
    let sem = Sem { val: 1, index: 2, presync: 1, cmd: 6, flags: 2, pad: 0 };
    let slices = [AttachSliceEntry { size: 10_000, sems: [sem; 4], dev_addr: 1 << 40, ..Default::default() }];
    answers.push(format!("{:?}", file.attach_slices(3, 2, 1, 10_000, &slices)));
    let entries = [ExecuteEntry { handle: 1, dir: 1 }, ExecuteEntry { handle: 2, dir: 2 }];
    answers.push(format!("{:?}", file.execute(3, &entries)));
    answers.push(format!("{:?}", file.execute(3, &entries)));
    answers.push(format!("{:?}", file.wait(3, 2, wait_ms)));
    let parts = [PartialExecuteEntry { handle: 1, dir: 1, resize: 17 }];
    answers.push(format!("{:?}", file.partial_execute(3, &parts)));
    let mut figures = [PerfStatsEntry { handle: 2, ..PerfStatsEntry::default() }];
    answers.push(format!("{:?} {figures:?}", file.perf_stats(3, &mut figures)));
    answers.push(format!("{:?}", file.import_dma_buf(std::io::stdin().as_fd())));
    answers.push(format!("{:?}", file.detach_slices(2)));
    answers.push(format!("{:?}", file.close_handle(2)));
    answers.push(manage(file, message::deactivate(5, Some(3))));
    answers
}

#[test]
fn recordings_of_two_processes_are_equal() {
    let [first, second] = [TranscriptFile::new(), TranscriptFile::new()];
    run(&recording(Kernel::default(), &first), 0x0012_3456, 0);
    let elsewhere = vec![0_u8; 100_000];
    run(&recording(Kernel::default(), &second), 0x0065_4321, 0);
    drop(elsewhere);
    assert_eq!(fs::read_to_string(&first.0).unwrap(), fs::read_to_string(&second.0).unwrap());
}

/// Other tools read this format, so the same run must be written unchanged.
#[test]
fn recording_of_the_sample_run_is_the_sample_file() {
    let transcript = TranscriptFile::new();
    run(&recording(Kernel::default(), &transcript), 1, 0);
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/transcripts/run.jsonl");
    assert_eq!(fs::read_to_string(&transcript.0).unwrap(), fs::read_to_string(sample).unwrap());
}

#[test]
fn recording_after_every_call_has_whole_numbered_lines() {
    let transcript = TranscriptFile::new();
    let recording = recording(Kernel::default(), &transcript);
    let file = recording.open(&node()).unwrap();
    for call in 0..5 {
        file.create_bo(4096).unwrap();
        let lines = transcript.lines();
        assert_eq!(lines.len(), 3 + call);
        for (index, line) in lines.iter().enumerate() {
            assert_eq!(line["seq"], index);
        }
    }
    drop(file);
    assert_eq!(transcript.lines().last().unwrap()["name"], "CLOSE");
}

#[test]
fn recording_of_several_threads_has_the_calls_of_each_file() {
    const THREADS: u32 = 4;
    let transcript = TranscriptFile::new();
    let recording = recording(Kernel::default(), &transcript);
    let files: Vec<_> = (0..THREADS).map(|_| recording.open(&node()).unwrap()).collect();
    let work = |files: &[Arc<dyn AccelFile>]| {
        std::thread::scope(|scope| {
            for (own, file) in files.iter().enumerate() {
                let own = u32::try_from(own).unwrap();
                scope.spawn(move || (0..100).for_each(|_| file.wait(own, 1, 0).unwrap()));
            }
        });
    };
    work(&files);
    drop(files);
    let lines = transcript.lines();
    assert_eq!(lines.len(), 1 + 102 * THREADS as usize);
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["seq"], index);
        if line["name"] == "WAIT_BO" {
            assert_eq!(line["fields"]["dbc_id"], line["file"]);
        }
    }
}

#[test]
fn recorded_call_has_names_and_bytes() {
    let transcript = TranscriptFile::new();
    run(&recording(Kernel::default(), &transcript), 9, 0);
    let lines = transcript.lines();
    assert_eq!(lines[0]["fields"], json!({ "form": "openqaic transcript", "version": 1, "kmd": "fake" }));
    let named = |name: &str| lines.iter().filter(|line| line["name"] == name).collect::<Vec<_>>();
    assert_eq!(named("OPEN")[0]["answer"], json!({ "file": 0 }));
    assert_eq!(named("RESET")[0]["errno"], "EACCES");
    assert_eq!(
        named("MMAP_BO")[0],
        &json!({
            "seq": named("MMAP_BO")[0]["seq"], "name": "MMAP_BO", "file": 0,
            "fields": { "handle": 2, "pad": 0, "offset": 0 }, "raw": "02000000000000000000000000000000",
            "answer": { "handle": 2, "pad": 0, "offset": 2_u64 << 32 }, "reply": "02000000000000000000000002000000",
            "errno": null,
        })
    );
    let execute = named("EXECUTE_BO");
    assert_eq!((&execute[0]["errno"], &execute[1]["errno"]), (&json!("EAGAIN"), &json!(null)));
    assert_eq!(
        execute[0]["fields"],
        json!({ "count": 2, "dbc_id": 3, "data": "*", "entries": [{ "handle": 1, "dir": 1 }, { "handle": 2, "dir": 2 }] })
    );
    assert_eq!(execute[0]["data"], "01000000010000000200000002000000");
    assert_eq!(execute[0].get("reply"), None);
    assert_eq!(
        named("ATTACH_SLICE_BO")[0]["fields"]["entries"][0]["sem3"],
        json!({ "val": 1, "index": 2, "presync": 1, "cmd": 6, "flags": 2, "pad": 0 })
    );
    assert_eq!(named("PARTIAL_EXECUTE_BO")[0]["fields"]["entries"][0]["resize"], 17);
    assert_eq!(
        named("PERF_STATS_BO")[0]["answer"]["entries"][0],
        json!({
            "handle": 2, "queue_level_before": 2, "num_queue_element": 3, "submit_latency_us": 4, "device_latency_us": 5,
            "pad": 0,
        })
    );
    assert_eq!(named("PRIME_FD_TO_HANDLE")[0]["fields"]["fd"], "*");
    assert_eq!(named("VERSION")[0]["answer"]["name"], "qaic");
}

/// Transactions of a message in the form of a transcript.
fn decoded(message: ManageBuffer<'_>) -> Vec<Value> {
    let transcript = TranscriptFile::new();
    let recording = recording(Kernel::default(), &transcript);
    manage(&*recording.open(&node()).unwrap(), message);
    transcript.lines()[2]["fields"]["transactions"].as_array().unwrap().clone()
}

#[test]
fn recorded_message_has_its_commands() {
    assert_eq!(
        decoded(message::load_elf(9, 6, b"123456789")),
        [
            json!({
                "type": "passthrough_from_user", "len": 112, "command": "load_elf", "tag": 100, "process_id": "*",
                "metadata_crc": 6, "name": "NetworkImage", "data_length": 9, "metadata_flatbuffer_crc": 0,
            }),
            json!({
                "type": "dma_from_user", "len": 32, "tag": 100, "pad": 1, "addr": "*", "size": 9,
                "payload": { "bytes": 9, "checked_bytes": 9, "crc32": "cbf43926" },
            }),
        ]
    );
    assert_eq!(
        decoded(activation(9)),
        [
            json!({
                "type": "passthrough_from_user", "len": 64, "command": "activate", "process_id": "*", "constants_id": 0,
                "elf_id": 77, "reservation_type": 0, "resource_res_id": -1, "opt_vc_setup": 1, "vc_res_id": -1,
                "initial_state": 1, "dma_type": 0, "opt_support_datapath_switching": 0,
            }),
            json!({
                "type": "activate_from_user", "len": 24, "queue_size": 512, "eventfd": "*", "options": 0, "pad": 0,
            }),
        ]
    );
    assert_eq!(
        decoded(message::deactivate(5, Some(3))),
        [
            json!({
                "type": "passthrough_from_user", "len": 32, "command": "deactivate", "activation_id": 5,
                "opt_vc_teardown": 1,
            }),
            json!({ "type": "deactivate_from_user", "len": 16, "dbc_id": 3, "pad": 0 }),
        ]
    );
    assert_eq!(decoded(message::status_features()), [json!({ "type": "status_from_user", "len": 8 })]);
    let constants = decoded(message::load_constants(9, &[0xAB; 24]).unwrap());
    assert_eq!(constants[0]["descriptor_len"], 24);
    assert!(constants[0]["descriptor"].as_str().unwrap().starts_with(&"ab".repeat(24)));
}

#[test]
fn message_with_a_command_cut_short_is_recorded_without_its_fields() {
    let transcript = TranscriptFile::new();
    let recording = recording(Kernel::default(), &transcript);
    let file = recording.open(&node()).unwrap();
    let mut message = ManageBuffer::default();
    message.push(&[1, 0, 0, 0, 9, 0, 0, 0, 5]).unwrap();
    manage(&*file, message);
    assert_eq!(
        transcript.lines().last().unwrap()["fields"]["transactions"],
        json!([{ "type": "passthrough_from_user", "len": 9 }])
    );
}

#[test]
fn recording_to_a_file_in_use_is_refused() {
    let transcript = TranscriptFile::new();
    let first = recording(Kernel::default(), &transcript);
    let error =
        Recording::new(Arc::new(Kernel::default()), &transcript.0, no_warning).unwrap_err().to_string();
    assert!(error.contains("another recording is writing it; `%p`"), "{error}");
    assert_eq!(transcript.lines().len(), 1);
    drop(first);
    drop(recording(Kernel::default(), &transcript));
    assert_eq!(transcript.lines().len(), 1);

    let apart = TranscriptFile(transcript.0.with_extension(std::process::id().to_string()));
    let recording =
        Recording::new(Arc::new(Kernel::default()), &transcript.0.with_extension("%p"), no_warning);
    assert!(recording.is_ok());
    assert_eq!(apart.lines().len(), 1);

    let missing =
        Recording::new(Arc::new(Kernel::default()), &transcript.0.join("x"), no_warning).unwrap_err();
    assert!(matches!(missing, TranscriptError::Io { .. }), "{missing}");
}

#[test]
fn recording_to_a_pipe_needs_a_reader() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let transcript = TranscriptFile::new();
    mknodat(CWD, &transcript.0, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let error =
        Recording::new(Arc::new(Kernel::default()), &transcript.0, no_warning).unwrap_err().to_string();
    assert!(error.ends_with("it is a pipe without a reader"), "{error}");
    let mut reader = fs::OpenOptions::new().read(true).write(true).open(&transcript.0).unwrap();
    let recording = recording(Kernel::default(), &transcript);
    recording.open(&node()).unwrap();
    let mut line = [0; 512];
    let count = std::io::Read::read(&mut reader, &mut line).unwrap();
    assert!(line[..count].starts_with(b"{"), "{}", line[..count].escape_ascii());
}

/// A disk with room for some bytes, which accepts the first part of a write before it is full.
#[derive(Debug)]
struct Disk {
    room: usize,
    /// The result of a write without room: an error, or zero written bytes.
    error: Option<Errno>,
}

impl io::Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        match self.error {
            Some(error) if taken == 0 => Err(error.into()),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn full_disk_ends_the_transcript_with_one_warning_and_not_the_run() {
    let warn = |text: &str| WARNINGS.with_borrow_mut(|warnings| warnings.push(text.to_owned()));
    let (transcript, answers) = (TranscriptFile::new(), run(&Kernel::default(), 1, 0));
    run(&recording(Kernel::default(), &transcript), 1, 0);
    let whole = fs::read(&transcript.0).unwrap();
    let end_of_first = whole.iter().position(|&byte| byte == b'\n').unwrap();
    for room in [0, 1, end_of_first, end_of_first + 1, whole.len() / 2, whole.len() - 1, whole.len()] {
        for error in [Some(Errno::NOSPC), Some(Errno::IO), Some(Errno::PIPE), None] {
            let log = Log::to(Box::new(Disk { room, error }), warn);
            assert_eq!(run(&Recording::with(Arc::new(Kernel::default()), log), 1, 0), answers);
            let warnings = WARNINGS.take();
            assert_eq!(warnings.len(), usize::from(room < whole.len()), "{room}: {warnings:?}");
            let lines = whole[..room].split(|&byte| byte == b'\n').count() - 1;
            assert!(
                warnings.iter().all(|text| text.contains(&format!("after {lines} lines"))),
                "{warnings:?}"
            );
        }
    }
    assert_eq!(
        run(&Recording::new(Arc::new(Kernel::default()), "/dev/full".as_ref(), warn).unwrap(), 1, 0),
        answers
    );
    let warnings = WARNINGS.take();
    assert!(matches!(&warnings[..], [text] if text.contains("No space")), "{warnings:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn message_of_any_bytes_is_recorded(parts in proptest::collection::vec(
        (0_u32..20, proptest::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..6,
    )) {
        let mut sent = Vec::new();
        for (kind, body, lies) in &parts {
            let len = if *lies { 1000 } else { u32::try_from(8 + body.len()).unwrap() };
            sent.extend([&kind.to_le_bytes(), &len.to_le_bytes(), &body[..]].concat());
        }
        let found = observed_data(&sent);
        // All bytes except the volatile ones are as sent.
        prop_assert_eq!(found.len(), sent.len());
        for (at, (found, sent)) in found.iter().zip(&sent).enumerate() {
            prop_assert!(found == sent || *found == 0, "byte {}", at);
        }
    }
}

/// Bytes of a message in the form of a transcript.
fn observed_data(bytes: &[u8]) -> Vec<u8> {
    let mut message = ManageBuffer::default();
    message.set_reply(bytes, 1);
    let given = observed::given(&mut Ioctl::Manage(&mut message)).unwrap();
    assert_eq!(given.raw[8..], [0; 8]);
    given.data.unwrap()
}
