//! A kernel whose calls are recorded.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::log::Log;
use super::observed::{self, Observed};
use super::{Line, TranscriptError, VERSION, errno, hex, layout};
use crate::Errno;
use crate::clock::Clock;
use crate::ioctl::Ioctl;
use crate::kmd::{AccelFile, Event, EventSource, Kmd, MemoryErrors, NodeInfo, Readiness, Telemetry};
use qaic_mem::Mapping;

/// Passes every call on to a kernel and records it in a transcript. Results are always the kernel's, even if the
/// transcript cannot be written.
#[derive(Debug)]
pub struct Recording {
    inner: Arc<dyn Kmd>,
    log: Arc<Log>,
    files: AtomicU32,
}

impl Recording {
    /// Starts a transcript of the calls to `inner`, and replaces the contents of the file. `%p` in the path is
    /// replaced with the process id, which separates processes: a process that finds the file in use is refused. A
    /// forked process that continues to use this object writes nothing.
    ///
    /// Each call is written as one complete line, so calls before a crash are in the file. If a line cannot be
    /// written, for example because the disk is full, the transcript ends before it, and `warn` receives the reason.
    pub fn new(inner: Arc<dyn Kmd>, path: &Path, warn: fn(&str)) -> Result<Self, TranscriptError> {
        Ok(Self::with(inner, Log::create(path, warn)?))
    }

    pub(super) fn with(inner: Arc<dyn Kmd>, log: Log) -> Self {
        let fields = object(&json!({
            "form": "openqaic transcript",
            "version": VERSION,
            "kmd": inner.name(),
        }));
        log.write(Line { name: "HEADER".to_owned(), fields, ..Line::default() });
        Self { inner, log: Arc::new(log), files: AtomicU32::new(0) }
    }

    fn note<T>(
        &self,
        name: &str,
        fields: &Value,
        result: Result<T, Errno>,
        answer: impl FnOnce(&T) -> Value,
    ) -> Result<T, Errno> {
        self.log.write(Line {
            name: name.to_owned(),
            fields: object(fields),
            answer: result.as_ref().map_or_else(|_| Map::new(), |found| object(&answer(found))),
            errno: result.as_ref().err().copied().map(errno::name),
            ..Line::default()
        });
        result
    }
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Converts to JSON; values that are not text in JSON are `null`.
fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_default()
}

impl Kmd for Recording {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        self.note("ENUMERATE", &json!({}), self.inner.enumerate(), |nodes| json!({ "nodes": value(nodes) }))
    }

    fn open(&self, node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        let result = self.inner.open(node);
        let fields = json!({ "qid": node.qid, "path": value(&node.path) });
        let file = self.files.fetch_add(1, Ordering::Relaxed);
        let opened = self.note("OPEN", &fields, result, |_| json!({ "file": file }))?;
        Ok(Arc::new(RecordedFile { inner: opened, file, log: Arc::clone(&self.log) }))
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        let inner = self.inner.events()?;
        Ok(Box::new(RecordedEvents { inner, log: Arc::clone(&self.log) }))
    }

    fn telemetry(&self, node: &NodeInfo) -> Telemetry {
        let found = self.inner.telemetry(node);
        let _ = self.note("TELEMETRY", &json!({ "qid": node.qid }), Ok(found), value);
        found
    }

    fn reset(&self, node: &NodeInfo) -> Result<(), Errno> {
        self.note("RESET", &json!({ "qid": node.qid }), self.inner.reset(node), |()| Value::Null)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn memory_errors(&self, node: &NodeInfo) -> MemoryErrors {
        self.inner.memory_errors(node)
    }

    fn explain(&self, node: &NodeInfo, errno: Errno) -> Option<String> {
        self.inner.explain(node, errno)
    }
}

/// An open card whose calls are recorded.
#[derive(Debug)]
struct RecordedFile {
    inner: Arc<dyn AccelFile>,
    file: u32,
    log: Arc<Log>,
}

impl AccelFile for RecordedFile {
    fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        let given = observed::given(call)?;
        let result = self.inner.ioctl(call);
        let answered = observed::answered(call, &given, result)?;
        let digits = |bytes: &Vec<u8>| hex::encode(bytes);
        let Observed { fields: answer, raw: reply, data: data_reply } = answered.clone().unwrap_or_default();
        self.log.write(Line {
            name: layout::call(call).name.to_owned(),
            file: Some(self.file),
            fields: given.fields,
            raw: Some(hex::encode(&given.raw)),
            data: given.data.as_ref().map(digits),
            answer,
            reply: answered.map(|_| hex::encode(&reply)),
            data_reply: data_reply.as_ref().map(digits),
            errno: result.err().map(errno::name),
            ..Line::default()
        });
        result
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let result = self.inner.map(offset, len);
        self.log.write(Line {
            name: "MAP".to_owned(),
            file: Some(self.file),
            fields: object(&json!({ "offset": offset, "len": len })),
            errno: result.as_ref().err().copied().map(errno::name),
            ..Line::default()
        });
        result
    }

    fn explain(&self, errno: Errno) -> Option<String> {
        self.inner.explain(errno)
    }
}

impl Drop for RecordedFile {
    fn drop(&mut self) {
        self.log.write(Line { name: "CLOSE".to_owned(), file: Some(self.file), ..Line::default() });
    }
}

/// Events that are recorded when they are fetched.
#[derive(Debug)]
struct RecordedEvents {
    inner: Box<dyn EventSource>,
    log: Arc<Log>,
}

impl EventSource for RecordedEvents {
    fn next(&mut self, limit: Duration) -> Result<Option<Event>, Errno> {
        let result = self.inner.next(limit);
        if let Ok(Some(event)) = &result {
            let fields = object(&value(event));
            self.log.write(Line { name: "EVENT".to_owned(), fields, ..Line::default() });
        }
        result
    }

    fn readiness(&self) -> Arc<dyn Readiness> {
        self.inner.readiness()
    }
}
