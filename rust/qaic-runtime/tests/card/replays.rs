//! Calls of the runtime to a card, recorded and replayed: without a card, and without an emulated one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use qaic_emu::{EmuKmd, EmuOptions};
use qaic_kmd::kmd::Kmd;
use qaic_kmd::transcript::{Recording, Replay};
use qaic_runtime::device::LoadOptions;
use qaic_runtime::device::card::CardDevice;
use qaic_runtime::error::RuntimeError;

use crate::rig::CardProgramSpec;

/// A file that is gone when this is.
struct TranscriptFile(PathBuf);

impl TranscriptFile {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("qaic-replay-{name}-{}", std::process::id())))
    }
}

impl Drop for TranscriptFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The whole life of a program, with so many inferences.
fn live(kmd: &Arc<dyn Kmd>, spec: &CardProgramSpec, inferences: usize) -> Result<(), RuntimeError> {
    let device = CardDevice::enumerate(kmd)?.remove(0);
    let program = device.load(&spec.image(), &LoadOptions::default())?;
    let activation = program.activate()?;
    let mut exec = activation.create_exec()?;
    (0..inferences).try_for_each(|_| {
        exec.reclaim(&mut || false)?;
        exec.execute()
    })
}

fn record(path: &Path, spec: &CardProgramSpec, inferences: usize) {
    let kmd = EmuKmd::new(EmuOptions::default()).unwrap();
    let recording: Arc<dyn Kmd> =
        Arc::new(Recording::new(Arc::clone(&kmd) as Arc<dyn Kmd>, path, |text| panic!("{text}")).unwrap());
    live(&recording, spec, inferences).unwrap();
    drop(recording);
    assert_eq!(kmd.control(0).unwrap().invariants(), Vec::<String>::new());
}

#[test]
fn replay_of_a_session_answers_every_call() {
    let transcript = TranscriptFile::new("life");
    record(&transcript.0, &CardProgramSpec::default(), 3);
    let replay = Arc::new(Replay::open(&transcript.0).unwrap());
    live(&(Arc::clone(&replay) as Arc<dyn Kmd>), &CardProgramSpec::default(), 3).unwrap();
    assert_eq!(replay.finish(), Ok(()));
}

#[test]
fn transcripts_of_two_equal_sessions_are_equal() {
    let [first, second] = [TranscriptFile::new("first"), TranscriptFile::new("second")];
    record(&first.0, &CardProgramSpec::default(), 2);
    record(&second.0, &CardProgramSpec::default(), 2);
    // Events are fetched by a thread of their own, at any time; numbers of lines move with them.
    let calls = |transcript: &TranscriptFile| -> Vec<String> {
        let text = fs::read_to_string(&transcript.0).unwrap();
        let calls = text.lines().filter(|line| !line.contains("\"name\":\"EVENT\""));
        calls.map(|line| line.split_once(',').unwrap().1.to_owned()).collect()
    };
    let lines = calls(&first);
    assert!(lines == calls(&second), "the transcripts differ");
    // A run is one execute call and one wait, and nothing else.
    let between: Vec<_> = lines
        .iter()
        .map(|line| line.split('"').nth(3).unwrap())
        .skip_while(|name| *name != "EXECUTE_BO")
        .take(4)
        .collect();
    assert_eq!(between, ["EXECUTE_BO", "WAIT_BO", "EXECUTE_BO", "WAIT_BO"]);
}

#[test]
fn replay_with_another_session_is_refused_with_the_difference() {
    let transcript = TranscriptFile::new("other");
    record(&transcript.0, &CardProgramSpec::default(), 1);
    let error = |spec: &CardProgramSpec, inferences| {
        let replay: Arc<dyn Kmd> = Arc::new(Replay::open(&transcript.0).unwrap());
        live(&replay, spec, inferences).unwrap_err().to_string()
    };
    let other = CardProgramSpec { constants: vec![8; 256], ..CardProgramSpec::default() };
    let found = error(&other, 1);
    assert!(
        found.contains("this is a replay, and the run differs from it: the transcript's call "),
        "{found}"
    );
    assert!(found.contains("MANAGE, transactions[1].payload.crc32: found "), "{found}");
    let found = error(&CardProgramSpec::default(), 2);
    assert!(found.contains("EXECUTE_BO, name: found EXECUTE_BO, expected "), "{found}");
}
