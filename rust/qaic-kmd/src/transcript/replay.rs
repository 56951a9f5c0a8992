//! A kernel that answers what a transcript says, as long as the calls are those of the transcript.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::layout;
use super::observed::{self, Observed};
use super::{Line, TranscriptError, VERSION, errno, hex};
use crate::Errno;
use crate::clock::{Clock, VirtualClock};
use crate::ioctl::Ioctl;
use crate::kmd::{AccelFile, Event, EventSource, Kmd, NodeInfo, Readiness, Telemetry};
use qaic_mem::Mapping;

/// Error code of calls that are not in the transcript.
const OTHER_CALL: Errno = Errno::PROTO;

/// Answers calls as a transcript says. Each open file has to make the calls of the recorded one, in their order; the first
/// that differs is answered with `EPROTO`, as is every later one, and [`Replay::mismatch`] has the difference. Calls of one
/// file from several threads have an order of chance, which a transcript cannot have.
///
/// Nothing takes time: calls return at once, and a wait advances the clock.
#[derive(Debug)]
pub struct Replay {
    clock: Arc<VirtualClock>,
    nodes: Result<Vec<NodeInfo>, Errno>,
    telemetry: BTreeMap<u64, Telemetry>,
    script: Arc<Script>,
}

/// The first call that was not the transcript's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Line of the transcript that was expected; `None`: it has no more for this file.
    pub seq: Option<u64>,
    /// The call that was made.
    pub call: String,
    /// The field that differs: `name`, a field as `entries[1].handle`, or a byte as `data[17]`.
    pub field: String,
    /// The value of the call that was made.
    pub found: String,
    /// The value of the transcript.
    pub expected: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq, call, field, found, expected } = self;
        match seq {
            Some(seq) => write!(f, "the transcript's call {seq}: ")?,
            None => f.write_str("the transcript has no such call left: ")?,
        }
        write!(f, "{call}, {field}: found {found}, expected {expected}")
    }
}

impl std::error::Error for Mismatch {}

/// The rest of a transcript.
#[derive(Debug, Default)]
struct Script {
    state: Mutex<ReplayState>,
    advanced: Condvar,
}

#[derive(Debug, Default)]
struct ReplayState {
    /// Calls to open or reset a card, by its number.
    nodes: BTreeMap<u64, VecDeque<Line>>,
    /// Calls of a file, by its number.
    files: BTreeMap<u32, VecDeque<Line>>,
    events: VecDeque<(u64, Event)>,
    /// Waits for events that are to end.
    wakes: u64,
    /// Line of the last call that was made.
    position: u64,
    mismatch: Option<Mismatch>,
}

impl Replay {
    /// Reads a transcript.
    pub fn open(path: &Path) -> Result<Self, TranscriptError> {
        let syntax = |line, what: String| TranscriptError::Syntax { path: path.to_owned(), line, what };
        let failed = |source| TranscriptError::Io { path: path.to_owned(), source };
        // Reading a pipe would wait for its writer, and some devices never end.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(syntax(1, "expected a regular file".to_owned()));
        }
        let text = fs::read_to_string(path).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => syntax(1, "expected text".to_owned()),
            _ => failed(error),
        })?;
        let mut replay = Self {
            clock: Arc::default(),
            nodes: Ok(Vec::new()),
            telemetry: BTreeMap::new(),
            script: Arc::default(),
        };
        let mut state = ReplayState::default();
        for (index, text) in text.lines().enumerate() {
            let number = index + 1;
            let line: Line = serde_json::from_str(text).map_err(|error| syntax(number, error.to_string()))?;
            if (index == 0) != (line.name == "HEADER") {
                return Err(syntax(number, "expected one HEADER, and first".to_owned()));
            }
            replay.take(line, &mut state).map_err(|what| syntax(number, what))?;
        }
        if text.is_empty() {
            return Err(syntax(1, "expected a HEADER, found nothing".to_owned()));
        }
        replay.script = Arc::new(Script { state: Mutex::new(state), advanced: Condvar::new() });
        Ok(replay)
    }

    fn take(&mut self, line: Line, state: &mut ReplayState) -> Result<(), String> {
        if line.errno.as_deref().is_some_and(|name| errno::named(name).is_none()) {
            return Err(format!("errno {:?} is no error's name", line.errno.unwrap_or_default()));
        }
        match line.name.as_str() {
            "HEADER" => {
                let version = line.fields.get("version").and_then(Value::as_u64);
                if version != Some(VERSION) {
                    return Err(format!("version {version:?}, expected {VERSION}"));
                }
            }
            "ENUMERATE" => {
                self.nodes = match failed(&line) {
                    Some(errno) => Err(errno),
                    None => Ok(read(line.answer.get("nodes"), "nodes")?),
                };
            }
            "TELEMETRY" => {
                let found = read(Some(&Value::Object(line.answer.clone())), "telemetry")?;
                self.telemetry.insert(qid(&line)?, found);
            }
            "EVENT" => {
                let event = read(Some(&Value::Object(line.fields)), "an event")?;
                state.events.push_back((line.seq, event));
            }
            "OPEN" | "RESET" => state.nodes.entry(qid(&line)?).or_default().push_back(line),
            _ => {
                let file = line.file.ok_or("expected the number of a file")?;
                for digits in [&line.raw, &line.data, &line.reply, &line.data_reply].into_iter().flatten() {
                    hex::decode(digits).ok_or("expected pairs of hexadecimal digits")?;
                }
                state.files.entry(file).or_default().push_back(line);
            }
        }
        Ok(())
    }

    /// The first call that was not the transcript's; `None`: all were.
    pub fn mismatch(&self) -> Option<Mismatch> {
        self.script.lock().mismatch.clone()
    }

    /// Checks that all calls were those of the transcript and none is left.
    pub fn finish(&self) -> Result<(), Mismatch> {
        let state = self.script.lock();
        if let Some(mismatch) = &state.mismatch {
            return Err(mismatch.clone());
        }
        let left = state.files.values().chain(state.nodes.values()).filter_map(VecDeque::front);
        left.min_by_key(|line| line.seq).map_or(Ok(()), |line| {
            Err(Mismatch {
                seq: Some(line.seq),
                call: "end of the calls".to_owned(),
                field: "name".to_owned(),
                found: "nothing".to_owned(),
                expected: line.name.clone(),
            })
        })
    }
}

fn failed(line: &Line) -> Option<Errno> {
    line.errno.as_deref().and_then(errno::named)
}

fn qid(line: &Line) -> Result<u64, String> {
    line.fields
        .get("qid")
        .and_then(Value::as_u64)
        .ok_or_else(|| "expected the number of a card, qid".to_owned())
}

fn read<T: serde::de::DeserializeOwned>(value: Option<&Value>, what: &str) -> Result<T, String> {
    serde_json::from_value(value.cloned().unwrap_or_default()).map_err(|error| format!("{what}: {error}"))
}

impl Script {
    fn lock(&self) -> MutexGuard<'_, ReplayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn explain(&self, errno: Errno) -> Option<String> {
        let mismatch = self.lock().mismatch.clone().filter(|_| errno == OTHER_CALL)?;
        Some(format!("this is a replay, and the run differs from it: {mismatch}"))
    }

    /// The next of `lines`, when it is this call.
    fn next(
        &self,
        lines: impl FnOnce(&mut ReplayState) -> Option<&mut VecDeque<Line>>,
        call: &str,
        matches: impl FnOnce(&Line) -> Result<(), (String, String, String)>,
    ) -> Result<Line, Errno> {
        let mut state = self.lock();
        if state.mismatch.is_some() {
            return Err(OTHER_CALL);
        }
        let line = lines(&mut state).and_then(VecDeque::pop_front);
        let result = match &line {
            None => Err(("name".to_owned(), call.to_owned(), "the end".to_owned())),
            Some(line) if line.name != call => Err(("name".to_owned(), call.to_owned(), line.name.clone())),
            Some(line) => matches(line),
        };
        let seq = line.as_ref().map(|line| line.seq);
        if let Err((field, found, expected)) = result {
            state.mismatch = Some(Mismatch { seq, call: call.to_owned(), field, found, expected });
            return Err(OTHER_CALL);
        }
        state.position = state.position.max(seq.unwrap_or(0));
        drop(state);
        self.advanced.notify_all();
        line.ok_or(OTHER_CALL)
    }

    fn next_of_node(&self, name: &str, node: &NodeInfo) -> Result<Line, Errno> {
        let line = self.next(|state| state.nodes.get_mut(&node.qid.into()), name, |_| Ok(()))?;
        failed(&line).map_or(Ok(line), Err)
    }

    fn next_of_file(
        &self,
        file: u32,
        name: &str,
        matches: impl FnOnce(&Line) -> Result<(), (String, String, String)>,
    ) -> Result<Line, Errno> {
        self.next(|state| state.files.get_mut(&file), name, matches)
    }
}

impl Kmd for Replay {
    fn name(&self) -> &'static str {
        "replay"
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        self.nodes.clone()
    }

    fn open(&self, node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        let line = self.script.next_of_node("OPEN", node)?;
        let file = line.answer.get("file").and_then(Value::as_u64).and_then(|file| u32::try_from(file).ok());
        Ok(Arc::new(ReplayedFile { file: file.unwrap_or(u32::MAX), script: Arc::clone(&self.script) }))
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        Ok(Box::new(ReplayedEvents { script: Arc::clone(&self.script) }))
    }

    fn telemetry(&self, node: &NodeInfo) -> Telemetry {
        self.telemetry.get(&node.qid.into()).copied().unwrap_or_default()
    }

    fn reset(&self, node: &NodeInfo) -> Result<(), Errno> {
        self.script.next_of_node("RESET", node).map(|_| ())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }

    fn explain(&self, _node: &NodeInfo, errno: Errno) -> Option<String> {
        self.script.explain(errno)
    }
}

/// An open card of a transcript.
#[derive(Debug)]
struct ReplayedFile {
    file: u32,
    script: Arc<Script>,
}

impl AccelFile for ReplayedFile {
    fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        let given = observed::given(call)?;
        let name = layout::call(call).name;
        let line = self.script.next_of_file(self.file, name, |line| matches(&given, line))?;
        let result = failed(&line).map_or(Ok(()), Err);
        let bytes = |digits: &Option<String>| digits.as_deref().and_then(hex::decode);
        call.answer(bytes(&line.reply).as_deref(), bytes(&line.data_reply).as_deref(), result)?;
        result
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let given = json!({ "offset": offset, "len": len });
        let line = self.script.next_of_file(self.file, "MAP", |line| {
            fields_match(given.as_object().unwrap_or(&Map::new()), &line.fields)
        })?;
        failed(&line).map_or_else(|| Mapping::anonymous(len), Err)
    }

    fn explain(&self, errno: Errno) -> Option<String> {
        self.script.explain(errno)
    }
}

impl Drop for ReplayedFile {
    fn drop(&mut self) {
        // A file that differs from the transcript may be closed at any time.
        let _ = self.script.next_of_file(self.file, "CLOSE", |_| Ok(()));
    }
}

fn matches(given: &Observed, line: &Line) -> Result<(), (String, String, String)> {
    fields_match(&given.fields, &line.fields)?;
    bytes_match("raw", &given.raw, line.raw.as_deref())?;
    bytes_match("data", given.data.as_deref().unwrap_or_default(), line.data.as_deref())
}

fn fields_match(
    found: &Map<String, Value>,
    expected: &Map<String, Value>,
) -> Result<(), (String, String, String)> {
    let (found, expected) = (Value::Object(found.clone()), Value::Object(expected.clone()));
    difference("", &found, &expected).map_or(Ok(()), Err)
}

/// Name and values of the first field that differs.
fn difference(path: &str, found: &Value, expected: &Value) -> Option<(String, String, String)> {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            let names = found.keys().chain(expected.keys().filter(|name| !found.contains_key(*name)));
            names.into_iter().find_map(|name| {
                let dot = if path.is_empty() { "" } else { "." };
                let side = |map: &Map<String, Value>| map.get(name).cloned().unwrap_or_default();
                difference(&format!("{path}{dot}{name}"), &side(found), &side(expected))
            })
        }
        (Value::Array(found), Value::Array(expected)) => {
            let side = |list: &[Value], index| list.get(index).cloned().unwrap_or_default();
            (0..found.len().max(expected.len())).find_map(|index| {
                difference(&format!("{path}[{index}]"), &side(found, index), &side(expected, index))
            })
        }
        _ => (found != expected).then(|| (path.to_owned(), found.to_string(), expected.to_string())),
    }
}

fn bytes_match(what: &str, found: &[u8], expected: Option<&str>) -> Result<(), (String, String, String)> {
    let expected = expected.and_then(hex::decode).unwrap_or_default();
    if found.len() != expected.len() {
        let count = |bytes: &[u8]| format!("{} bytes", bytes.len());
        return Err((what.to_owned(), count(found), count(&expected)));
    }
    let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    differs.map_or(Ok(()), |at| {
        Err((format!("{what}[{at}]"), format!("{:#04x}", found[at]), format!("{:#04x}", expected[at])))
    })
}

/// Events of a transcript, each as soon as the calls before it have been made.
#[derive(Debug)]
struct ReplayedEvents {
    script: Arc<Script>,
}

/// Returns whether the next event follows calls that were not made.
fn is_next_event_far(state: &mut ReplayState) -> bool {
    state.events.front().is_none_or(|(seq, _)| *seq > state.position + 1)
}

impl EventSource for ReplayedEvents {
    fn next(&mut self, limit: Duration) -> Result<Option<Event>, Errno> {
        // This waits in real time: a thread that fetches events in a loop must not spin.
        let waited = self.script.advanced.wait_timeout_while(self.script.lock(), limit, is_next_event_far);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        Ok((!timeout.timed_out()).then(|| state.events.pop_front()).flatten().map(|(_, event)| event))
    }

    fn readiness(&self) -> Arc<dyn Readiness> {
        Arc::clone(&self.script) as Arc<dyn Readiness>
    }
}

impl Readiness for Script {
    fn wait(&self, limit: Option<Duration>) {
        let is_quiet = |state: &mut ReplayState| state.wakes == 0 && is_next_event_far(state);
        let state = self.lock();
        let mut state = match limit {
            None => self.advanced.wait_while(state, is_quiet).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.advanced.wait_timeout_while(state, limit, is_quiet);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.wakes = state.wakes.saturating_sub(1);
    }

    fn wake(&self) {
        self.lock().wakes += 1;
        self.advanced.notify_all();
    }
}
