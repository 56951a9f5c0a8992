//! The engine's profile of one run. The engine writes a file, which this module reads and removes.
//!
//! The engine does not escape the user's names in the files, and a full disk truncates them. Lines in the expected
//! format are parsed; other lines are counted.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::env;
use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;

use crate::process::{ForkGuard, clock};
use crate::sync::{AtomicU64, Ordering};

/// Suffix that the engine appends to the name of a node.
const NODE_SUFFIX: &str = "_kernel_time\"";
/// Operators that contain nested graphs.
const HOLDERS: [&str; 7] =
    ["If", "Loop", "Scan", "SequenceMap", "BeamSearch", "GreedySearch", "WhisperBeamSearch"];
/// Maximum length of a line with an event: a kernel's lists of shapes take a few KiB at most.
const LONGEST_LINE_BYTES: u64 = 1 << 20;

/// A folder of this process only, removed with its contents on drop.
#[derive(Debug)]
pub(super) struct ProfileFolder {
    /// Path of the file.
    pub(super) path: PathBuf,
    // A forked process does not own the folder.
    fork_guard: ForkGuard,
}

impl ProfileFolder {
    /// Creates a folder for temporary files: in `TMPDIR` if set, otherwise in memory, where creating and removing
    /// files takes microseconds.
    pub(super) fn new() -> io::Result<Self> {
        if env::var_os("TMPDIR").is_none()
            && let Ok(folder) = Self::inside(Path::new("/dev/shm"))
        {
            return Ok(folder);
        }
        Self::inside(&env::temp_dir())
    }

    fn inside(parent: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("openqaic-profile-{}-{number}-{:x}", process::id(), clock::now_ns());
            let path = parent.join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, fork_guard: ForkGuard::new() }),
                // The folder exists, so another name is tried.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Prefix for the names of files in the folder.
    pub(super) fn prefix(&self) -> io::Result<CString> {
        Ok(CString::new(self.path.join("run").as_os_str().as_bytes())?)
    }

    /// Opens the file that the engine has created in the folder.
    pub(super) fn file(&self) -> io::Result<File> {
        let entry = fs::read_dir(&self.path)?.next();
        File::open(entry.ok_or(io::ErrorKind::NotFound)??.path())
    }
}

impl Drop for ProfileFolder {
    fn drop(&mut self) {
        if self.fork_guard.is_current() {
            // The cleaning of temporary files removes the rest.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Maps events to operations.
#[derive(Debug, Default)]
pub(super) struct OpNames {
    known: HashMap<Box<str>, u32>,
    // Entry for operations that the engine runs unexpectedly.
    other: Option<u32>,
}

impl OpNames {
    /// Creates the map from the engine's node names; all other nodes map to `other`.
    pub(super) fn new<'a>(ops: impl IntoIterator<Item = (&'a str, u32)>, other: Option<u32>) -> Self {
        let known = ops.into_iter().map(|(name, oc)| (Box::from(name), oc)).collect();
        Self { known, other }
    }
}

/// One execution of a node. Times are in microseconds from an arbitrary moment at the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeEvent {
    pub(super) oc: u32,
    pub(super) start_us: u64,
    pub(super) dur_us: u64,
    pub(super) out_bytes: Option<u64>,
    /// True if the node ran inside another one.
    pub(super) is_nested: bool,
    /// Index of the execution among those of the node within one execution of the enclosing node.
    pub(super) iteration: u16,
    is_other: bool,
    is_holder: bool,
}

/// Profile of one run.
#[derive(Debug, Default)]
pub(super) struct Profile {
    /// Executions ordered by start time; an execution precedes those inside it.
    pub(super) events: Vec<NodeEvent>,
    /// Start and end of the run, as reported by the engine.
    pub(super) run_us: Option<(u64, u64)>,
    /// Number of executions of unexpected nodes.
    pub(super) unexpected: u64,
    /// Number of omitted executions, which have no operation.
    pub(super) dropped: u64,
    pub(super) unreadable: u64,
    /// Number of lines with events, including events that are not node executions.
    pub(super) lines: u64,
    /// True if the file is complete.
    pub(super) is_whole: bool,
}

impl Profile {
    /// Reads the engine's file. Memory use is bounded by the length of the file, whatever its contents.
    pub(super) fn read(file: impl io::Read, names: &OpNames) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut profile = Self::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            if io::Read::take(&mut reader, LONGEST_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            profile.add(&String::from_utf8_lossy(&line), names);
        }
        profile.arrange();
        Ok(profile)
    }

    fn add(&mut self, line: &str, names: &OpNames) {
        let line = line.trim_end();
        if !line.starts_with('{') {
            self.is_whole |= line == "]";
            self.unreadable += u64::from(!matches!(line, "[" | "]" | ""));
            return;
        }
        self.lines += 1;
        match event(line) {
            Some(Line::Run { start_us, end_us }) => self.run_us = Some((start_us, end_us)),
            Some(Line::Other) => {}
            Some(Line::Node { name, mut event }) => {
                let known = names.known.get(name).copied();
                let Some(oc) = known.or(names.other) else {
                    self.dropped += 1;
                    return;
                };
                event.oc = oc;
                event.is_other = known.is_none();
                self.unexpected += u64::from(event.is_other);
                self.events.push(event);
            }
            None => self.unreadable += 1,
        }
    }

    /// Sorts the events, which are in the order of their ends, and determines their nesting.
    fn arrange(&mut self) {
        // Of operations with the same start, the last one to end contains the others; at equal ends, the one written
        // last.
        self.events.reverse();
        self.events.sort_by_key(|event| (event.start_us, Reverse(event.dur_us)));
        // Ends and numbers of the events that contain the present one.
        let mut around: Vec<(u64, usize)> = Vec::new();
        let mut counts: HashMap<u32, (usize, u16)> = HashMap::new();
        for (number, event) in self.events.iter_mut().enumerate() {
            while around.pop_if(|(end_us, _)| event.start_us >= *end_us).is_some() {}
            if let Some(&(_, holder)) = around.last() {
                event.is_nested = true;
                if !event.is_other {
                    let count = counts.entry(event.oc).or_insert((holder, 0));
                    if count.0 != holder {
                        *count = (holder, 0);
                    }
                    event.iteration = count.1;
                    count.1 = count.1.saturating_add(1);
                }
            }
            if event.is_holder {
                around.push((event.start_us.saturating_add(event.dur_us), number));
            }
        }
    }
}

enum Line<'a> {
    Node { name: &'a str, event: NodeEvent },
    Run { start_us: u64, end_us: u64 },
    Other,
}

/// Parses a line. The numbers precede the name, so a name cannot change the event's numbers.
fn event(line: &str) -> Option<Line<'_>> {
    let (head, rest) = line.split_once("\"name\"")?;
    let start_us = number(head, "\"ts\"")?;
    let dur_us = number(head, "\"dur\"")?;
    let named = rest.trim_start_matches([' ', ':']).strip_prefix('"')?;
    if text(head, "\"cat\"")? != "Node" {
        let end_us = start_us.saturating_add(dur_us);
        return Some(if named.starts_with("model_run\"") {
            Line::Run { start_us, end_us }
        } else {
            Line::Other
        });
    }
    let (name, arguments) = named.split_once(NODE_SUFFIX)?;
    // A truncated line may have lost digits of a number.
    if !arguments.ends_with(['}', ',']) {
        return None;
    }
    let event = NodeEvent {
        oc: 0,
        start_us,
        dur_us,
        out_bytes: text(arguments, "\"output_size\"").and_then(|bytes| bytes.parse().ok()),
        is_nested: false,
        iteration: 0,
        is_other: false,
        is_holder: text(arguments, "\"op_name\"").is_some_and(|kind| HOLDERS.contains(&kind)),
    };
    Some(Line::Node { name, event })
}

/// Returns the value that follows a key.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(key)?;
    Some(rest.trim_start_matches([' ', ':']))
}

fn number(text: &str, key: &str) -> Option<u64> {
    let value = value(text, key)?;
    let end = value.find(|character: char| !character.is_ascii_digit())?;
    value[..end].parse().ok()
}

fn text<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    Some(value(text, key)?.strip_prefix('"')?.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    fn node(name: &str, kind: &str, start_us: u64, dur_us: u64) -> String {
        format!(
            "{{\"cat\" : \"Node\",\"pid\" :1,\"tid\" :2,\"dur\" :{dur_us},\"ts\" :{start_us},\"ph\" : \"X\",\
             \"name\" :\"{name}_kernel_time\",\"args\" : {{\"output_size\" : \"16\",\"op_name\" : \"{kind}\",\
             \"input_type_shape\" : [{{\"float\":[4]}}]}}}},\n"
        )
    }

    fn session(name: &str, start_us: u64, dur_us: u64) -> String {
        format!(
            "{{\"cat\" : \"Session\",\"pid\" :1,\"tid\" :2,\"dur\" :{dur_us},\"ts\" :{start_us},\"ph\" : \"X\",\
             \"name\" :\"{name}\",\"args\" : {{}}}},\n"
        )
    }

    fn names() -> OpNames {
        OpNames::new([("a", 0), ("loop", 1), ("body", 2)], Some(7))
    }

    fn read(text: &str) -> Profile {
        Profile::read(text.as_bytes(), &names()).unwrap()
    }

    fn seen(profile: &Profile) -> Vec<(u32, u64, u64, bool, u16)> {
        let row =
            |event: &NodeEvent| (event.oc, event.start_us, event.dur_us, event.is_nested, event.iteration);
        profile.events.iter().map(row).collect()
    }

    #[test]
    fn profile_of_a_loop_has_its_bodies_inside() {
        // The engine writes events in the order of their ends.
        let text = ["[\n".to_owned(), node("a", "Mul", 3, 5)]
            .into_iter()
            .chain([node("body", "Add", 12, 2), session("SequentialExecutor::Execute", 11, 5)])
            .chain([node("body", "Add", 15, 2), node("loop", "Loop", 10, 10)])
            .chain([node("body", "Add", 22, 1), node("loop", "Loop", 21, 4), node("odd", "Neg", 25, 0)])
            .chain([session("model_run", 1, 26), "]\n".to_owned()])
            .collect::<String>();
        let profile = read(&text);
        let expected = [
            (0, 3, 5, false, 0),
            (1, 10, 10, false, 0),
            (2, 12, 2, true, 0),
            (2, 15, 2, true, 1),
            (1, 21, 4, false, 0),
            (2, 22, 1, true, 0),
            (7, 25, 0, false, 0),
        ];
        assert_eq!(seen(&profile), expected);
        assert_eq!(profile.run_us, Some((1, 27)));
        assert_eq!((profile.unexpected, profile.dropped, profile.unreadable), (1, 0, 0));
        assert!(profile.is_whole);
        assert!(profile.events.iter().all(|event| event.out_bytes == Some(16)));
    }

    #[test]
    fn profile_of_touching_neighbors_keeps_them_apart() {
        let text = node("a", "Mul", 5, 5) + &node("body", "Add", 10, 0) + &node("loop", "Loop", 5, 0);
        assert!(seen(&read(&text)).iter().all(|event| !event.3));
    }

    #[test]
    fn profile_of_a_cut_file_has_its_whole_events() {
        let text = ["[\n".to_owned(), node("a", "Mul", 3, 5), node("body", "Add", 10, 20)].concat();
        for length in 0..text.len() {
            let profile = read(&text[..length]);
            assert!(!profile.is_whole);
            assert!(
                seen(&profile)
                    .iter()
                    .all(|event| [(0, 3, 5, false, 0), (2, 10, 20, false, 0)].contains(event))
            );
        }
        assert_eq!(read(&text).events.len(), 2);
    }

    #[test]
    fn profile_with_field_like_names_reads_the_fields() {
        let odd = "x\",\"ts\" :999,\"dur\" :999,\"name\" :\"a";
        let profile = read(&node(odd, "Mul", 3, 5));
        assert_eq!(seen(&profile), [(7, 3, 5, false, 0)]);
        let broken = read(&node("a\nb", "Mul", 3, 5));
        assert_eq!((broken.events.len(), broken.unreadable), (0, 2));
    }

    #[test]
    fn profile_counts_events_without_an_operation() {
        let names = OpNames::new([("a", 0)], None);
        let text = node("a", "Mul", 1, 1) + &node("b", "Mul", 2, 1);
        let profile = Profile::read(text.as_bytes(), &names).unwrap();
        assert_eq!((profile.events.len(), profile.dropped, profile.unexpected), (1, 1, 0));
    }

    #[test]
    fn profile_folder_is_private_and_removed() {
        let folder = ProfileFolder::new().unwrap();
        let path = folder.path.clone();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(folder.file().is_err());
        fs::write(path.join("run_1.json"), "[\n]\n").unwrap();
        assert!(Profile::read(folder.file().unwrap(), &names()).unwrap().is_whole);
        drop(folder);
        assert!(!path.exists());
    }

    proptest! {
        #[test]
        fn profile_of_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            Profile::read(&*bytes, &names()).unwrap();
        }

        #[test]
        fn profile_of_any_line_does_not_panic(head in "[ -~]{0,40}", name in "[ -~]{0,40}", tail in "[ -~]{0,40}") {
            let line = format!("{{\"cat\" : \"Node\",{head}\"name\" :\"{name}_kernel_time\"{tail}\n");
            let profile = read(&line);
            prop_assert!(profile.events.len() as u64 + profile.unreadable <= 1);
        }

        #[test]
        fn profile_of_any_events_nests_by_their_times(
            spans in proptest::collection::vec((0_u64..60, 1_u64..9, any::<bool>()), 0..40),
        ) {
            let lines: String = spans
                .iter()
                .map(|&(start, dur, holds)| node("a", if holds { "Loop" } else { "Mul" }, start, dur))
                .collect();
            let profile = read(&lines);
            prop_assert_eq!(profile.events.len(), spans.len());
            prop_assert!(profile.events.is_sorted_by_key(|event| event.start_us));
            let end = |event: &NodeEvent| event.start_us + event.dur_us;
            for (number, event) in profile.events.iter().enumerate() {
                let earlier = &profile.events[..number];
                if event.is_nested {
                    prop_assert!(earlier.iter().any(|other| other.is_holder && end(other) > event.start_us));
                } else {
                    prop_assert!(!earlier.iter().any(|other| other.is_holder && !other.is_nested && end(other) > event.start_us));
                }
            }
        }
    }
}
