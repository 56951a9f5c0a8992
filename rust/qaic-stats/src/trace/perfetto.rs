//! Perfetto's own trace format: protobuf packets in which each name occurs once.
//!
//! The files are much smaller than JSON files, and opening them requires no text parser. In this format, waits have
//! their actual duration, because no existing reader expects otherwise. The field numbers are those of Perfetto's
//! public `trace_packet.proto`, `track_event.proto`, `track_descriptor.proto` and `interned_data.proto`.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use qaic_qpc::wire::{put_bytes, put_tag, put_varint};
use serde_json::{Map, Value};

use super::block::{Block, Target};
use super::foreign::nanoseconds;
use super::sink::{Flow, FlowEnd, OpEvent, Sink, Span, Track, Wait};
use crate::decode::descriptor::OpDesc;

/// Numbers of fields, by message.
mod field {
    pub(super) const TRACE_PACKET: u32 = 1;

    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE_ID: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED_DATA: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;

    pub(super) const EVENT_CATEGORY_IIDS: u32 = 3;
    pub(super) const EVENT_ANNOTATIONS: u32 = 4;
    pub(super) const EVENT_TYPE: u32 = 9;
    pub(super) const EVENT_NAME_IID: u32 = 10;
    pub(super) const EVENT_TRACK_UUID: u32 = 11;
    pub(super) const EVENT_FLOW_IDS: u32 = 47;
    pub(super) const EVENT_ENDED_FLOW_IDS: u32 = 48;

    pub(super) const INTERNED_CATEGORIES: u32 = 1;
    pub(super) const INTERNED_NAMES: u32 = 2;
    pub(super) const INTERNED_ANNOTATION_NAMES: u32 = 3;
    pub(super) const INTERNED_STRINGS: u32 = 29;
    pub(super) const IID: u32 = 1;
    pub(super) const INTERNED_TEXT: u32 = 2;

    pub(super) const ANNOTATION_NAME_IID: u32 = 1;
    pub(super) const ANNOTATION_UINT: u32 = 3;
    pub(super) const ANNOTATION_STRING_IID: u32 = 17;

    pub(super) const TRACK_UUID: u32 = 1;
    pub(super) const TRACK_NAME: u32 = 2;
    pub(super) const TRACK_PROCESS: u32 = 3;
    pub(super) const TRACK_THREAD: u32 = 4;
    pub(super) const TRACK_PARENT: u32 = 5;
    pub(super) const PROCESS_PID: u32 = 1;
    pub(super) const PROCESS_NAME: u32 = 6;
    pub(super) const THREAD_PID: u32 = 1;
    pub(super) const THREAD_TID: u32 = 2;
    pub(super) const THREAD_NAME: u32 = 5;
}

const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;

/// Id of the single sequence of all packets, whose interned names are valid until its end.
const SEQUENCE: u64 = 1;
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

/// Maximum number of interned texts of other tools; further texts are written repeatedly.
const MAX_TEXTS: usize = 1 << 16;

/// Writes a Perfetto trace.
pub(super) struct PerfettoSink<'a> {
    block: Block<'a>,
    cleared: bool,
    // Interned names by kind; the first packet that uses a name defines it.
    names: HashMap<String, u64>,
    annotation_names: HashMap<String, u64>,
    texts: HashMap<String, u64>,
    last_text: u64,
    last_name: u64,
    news: Vec<u8>,
    event: Vec<u8>,
    packet: Vec<u8>,
    // Indexed by operation number: the name, and the annotations that are the same in all executions.
    templates: Vec<Option<(u64, Range<usize>)>>,
    template_bytes: Vec<u8>,
    engine: String,
    // Small numbers of tracks, and of processes under the key of the process alone: every event refers to one.
    uuids: HashMap<(u32, Option<u32>), u64>,
    last_uuid: Option<(Track, u64)>,
}

impl<'a> PerfettoSink<'a> {
    pub(super) fn new(target: Target<'a>) -> Self {
        Self {
            block: Block::new(target),
            cleared: false,
            names: HashMap::new(),
            annotation_names: HashMap::new(),
            texts: HashMap::new(),
            last_text: 0,
            last_name: 0,
            news: Vec::new(),
            event: Vec::new(),
            packet: Vec::new(),
            templates: Vec::new(),
            template_bytes: Vec::new(),
            engine: String::new(),
            uuids: HashMap::new(),
            last_uuid: None,
        }
    }

    /// Writes the packet of `self.event` with the names it uses.
    fn emit(&mut self, at_ns: i64) {
        let packet = &mut self.packet;
        packet.clear();
        // A trace starts at 0; only a wait can be earlier.
        push_uint(packet, field::TIMESTAMP, u64::try_from(at_ns).unwrap_or(0));
        push_uint(packet, field::SEQUENCE_ID, SEQUENCE);
        push_uint(packet, field::SEQUENCE_FLAGS, if self.cleared { NEEDS_STATE } else { STATE_CLEARED });
        self.cleared = true;
        if !self.news.is_empty() {
            put_bytes(packet, field::INTERNED_DATA, &self.news);
            self.news.clear();
        }
        put_bytes(packet, field::TRACK_EVENT, &self.event);
        put_bytes(&mut self.block.bytes, field::TRACE_PACKET, packet);
    }

    fn event(&mut self, kind: u64, track: Track) {
        let uuid = self.track_uuid(track);
        self.event.clear();
        push_uint(&mut self.event, field::EVENT_TYPE, kind);
        push_uint(&mut self.event, field::EVENT_TRACK_UUID, uuid);
    }

    fn track_uuid(&mut self, track: Track) -> u64 {
        match self.last_uuid {
            Some((last, uuid)) if last == track => uuid,
            _ => {
                let uuid = self.uuid(track.pid, Some(track.tid));
                self.last_uuid = Some((track, uuid));
                uuid
            }
        }
    }

    fn uuid(&mut self, pid: u32, tid: Option<u32>) -> u64 {
        let next = u64::try_from(self.uuids.len()).unwrap_or(0).saturating_add(1);
        *self.uuids.entry((pid, tid)).or_insert(next)
    }

    fn name(&mut self, name: &str) -> u64 {
        if let Some(iid) = self.names.get(name) {
            return *iid;
        }
        if self.names.len() >= MAX_TEXTS {
            self.names.clear();
        }
        self.last_name = self.last_name.saturating_add(1);
        let iid = self.last_name;
        self.names.insert(name.to_owned(), iid);
        push_interned(&mut self.news, field::INTERNED_NAMES, iid, name);
        iid
    }

    fn text(&mut self, text: &str) -> u64 {
        if let Some(iid) = self.texts.get(text) {
            return *iid;
        }
        let iid = self.new_text(text);
        if self.texts.len() >= MAX_TEXTS {
            self.texts.clear();
        }
        self.texts.insert(text.to_owned(), iid);
        iid
    }

    /// Interns a text that only one operation uses, and that is therefore not kept.
    fn new_text(&mut self, text: &str) -> u64 {
        self.last_text = self.last_text.saturating_add(1);
        push_interned(&mut self.news, field::INTERNED_STRINGS, self.last_text, text);
        self.last_text
    }

    fn annotation_name(&mut self, name: &str) -> u64 {
        if let Some(iid) = self.annotation_names.get(name) {
            return *iid;
        }
        let iid = u64::try_from(self.annotation_names.len()).unwrap_or(0).saturating_add(1);
        self.annotation_names.insert(name.to_owned(), iid);
        push_interned(&mut self.news, field::INTERNED_ANNOTATION_NAMES, iid, name);
        iid
    }

    fn annotate(&mut self, name: &str, value: u64) {
        let name = self.annotation_name(name);
        push_annotation(&mut self.event, name, field::ANNOTATION_UINT, value);
    }

    fn slice(&mut self, track: Track, name: u64, start_ns: i64, dur_ns: u64, args: &[(&str, u64)]) {
        self.event(BEGIN, track);
        push_uint(&mut self.event, field::EVENT_CATEGORY_IIDS, 1);
        push_uint(&mut self.event, field::EVENT_NAME_IID, name);
        for (name, value) in args {
            self.annotate(name, *value);
        }
        self.emit(start_ns);
        self.end(track, start_ns, dur_ns);
    }

    fn end(&mut self, track: Track, start_ns: i64, dur_ns: u64) {
        self.event(END, track);
        self.emit(start_ns.saturating_add(i64::try_from(dur_ns).unwrap_or(i64::MAX)));
    }

    fn flow_end(&mut self, end: FlowEnd, name: u64, flow_field: u32, id: u64) {
        self.event(INSTANT, end.track);
        push_uint(&mut self.event, field::EVENT_CATEGORY_IIDS, 1);
        push_uint(&mut self.event, field::EVENT_NAME_IID, name);
        push_fixed64(&mut self.event, flow_field, id);
        self.annotate("oc", u64::from(end.oc));
        self.emit(end.at_ns);
    }

    fn describe(&mut self, descriptor: &[u8]) {
        let packet = &mut self.packet;
        packet.clear();
        push_uint(packet, field::SEQUENCE_ID, SEQUENCE);
        push_uint(packet, field::SEQUENCE_FLAGS, if self.cleared { NEEDS_STATE } else { STATE_CLEARED });
        self.cleared = true;
        put_bytes(packet, field::TRACK_DESCRIPTOR, descriptor);
        put_bytes(&mut self.block.bytes, field::TRACE_PACKET, packet);
    }

    #[cold]
    fn render(&mut self, oc: u32, desc: &OpDesc) -> (u64, Range<usize>) {
        let name = self.name(&desc.kind);
        let start = self.template_bytes.len();
        let op_name = self.new_text(&desc.name);
        let mut constants = vec![("opName", op_name)];
        let mut texts = vec![("opMemory", desc.memory.as_str()), ("opShape", &desc.shape)];
        if let Some(transfer) = &desc.transfer {
            texts.push(("PortType", &transfer.port_type));
            texts.push(("PortDescription", &transfer.port_description));
            texts.push(("TransactionId", &transfer.transaction));
        }
        for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            constants.push((key, self.text(text)));
        }
        if !desc.attributes.is_empty() {
            constants.push(("opAttributes", self.new_text(&desc.attributes)));
        }
        let keys: Vec<String> = (0..desc.operands.len()).map(|number| format!("opOperand{number}")).collect();
        for (key, operand) in keys.iter().zip(&desc.operands) {
            constants.push((key.as_str(), self.new_text(operand)));
        }
        for (key, iid) in constants {
            let key = self.annotation_name(key);
            push_annotation(&mut self.template_bytes, key, field::ANNOTATION_STRING_IID, iid);
        }
        let key = self.annotation_name("oc");
        push_annotation(&mut self.template_bytes, key, field::ANNOTATION_UINT, u64::from(oc));
        let template = (name, start..self.template_bytes.len());
        let slot = usize::try_from(oc).ok().and_then(|oc| self.templates.get_mut(oc));
        if let Some(slot) = slot {
            *slot = Some(template.clone());
        }
        template
    }
}

impl Sink for PerfettoSink<'_> {
    fn begin(&mut self, _origin_utc_ns: Option<i128>) {
        push_interned(&mut self.news, field::INTERNED_CATEGORIES, 1, "aic");
    }

    fn process(&mut self, first: Track, name: &str) {
        let mut process = Vec::new();
        push_uint(&mut process, field::PROCESS_PID, u64::from(first.pid));
        put_bytes(&mut process, field::PROCESS_NAME, name.as_bytes());
        let mut descriptor = Vec::new();
        push_uint(&mut descriptor, field::TRACK_UUID, self.uuid(first.pid, None));
        put_bytes(&mut descriptor, field::TRACK_NAME, name.as_bytes());
        put_bytes(&mut descriptor, field::TRACK_PROCESS, &process);
        self.describe(&descriptor);
    }

    fn track(&mut self, track: Track, name: &str) {
        let mut thread = Vec::new();
        push_uint(&mut thread, field::THREAD_PID, u64::from(track.pid));
        push_uint(&mut thread, field::THREAD_TID, u64::from(track.tid));
        put_bytes(&mut thread, field::THREAD_NAME, name.as_bytes());
        let mut descriptor = Vec::new();
        push_uint(&mut descriptor, field::TRACK_UUID, self.track_uuid(track));
        put_bytes(&mut descriptor, field::TRACK_NAME, name.as_bytes());
        push_uint(&mut descriptor, field::TRACK_PARENT, self.uuid(track.pid, None));
        put_bytes(&mut descriptor, field::TRACK_THREAD, &thread);
        self.describe(&descriptor);
    }

    fn ops_of_core(&mut self, ops: &[OpDesc]) {
        self.templates.clear();
        self.templates.resize(ops.len(), None);
        self.template_bytes.clear();
    }

    fn engine(&mut self, engine: &str, _ucycle_hz: u64) {
        engine.clone_into(&mut self.engine);
    }

    fn op(&mut self, track: Track, desc: &OpDesc, event: &OpEvent) {
        let known = usize::try_from(event.oc).ok().and_then(|oc| self.templates.get(oc)).cloned();
        let before = self.template_bytes.len();
        let is_stranger = known.is_none();
        let (name, constants) = known.flatten().unwrap_or_else(|| self.render(event.oc, desc));
        self.event(BEGIN, track);
        push_uint(&mut self.event, field::EVENT_CATEGORY_IIDS, 1);
        push_uint(&mut self.event, field::EVENT_NAME_IID, name);
        self.event.extend_from_slice(self.template_bytes.get(constants).unwrap_or_default());
        if is_stranger {
            self.template_bytes.truncate(before);
        }
        self.annotate("opUCycle", event.ucycles);
        if let Some(pcycles) = event.pcycles {
            self.annotate("opPCycle", pcycles);
        }
        self.annotate("opOutputSize", event.out_bytes.unwrap_or(desc.output_bytes));
        if event.iteration > 0 {
            self.annotate("iteration", u64::from(event.iteration));
        }
        if event.saturated {
            self.annotate("saturated", 1);
        }
        self.emit(event.start_ns);
        self.end(track, event.start_ns, event.dur_ns);
    }

    fn wait(&mut self, track: Track, wait: Wait) {
        let what = if wait.is_barrier { "barrier" } else { "sync" };
        let name = self.name(&format!("{what} {}", self.engine));
        self.slice(track, name, wait.start_ns, wait.dur_ns, &[("oc", u64::from(wait.oc))]);
    }

    fn span(&mut self, span: &Span<'_>) {
        let name = self.name(span.name);
        self.slice(span.track, name, span.start_ns, span.dur_ns, span.args);
    }

    fn flow(&mut self, flow: &Flow) {
        let name = self.name(if flow.data { "dep" } else { "order" });
        self.flow_end(flow.from, name, field::EVENT_FLOW_IDS, flow.id);
        self.flow_end(flow.to, name, field::EVENT_ENDED_FLOW_IDS, flow.id);
    }

    fn foreign(&mut self, track: Track, start_ns: Option<i64>, event: &Map<String, Value>) {
        let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
        let name = text("name");
        let (phase, start_ns) = (text("ph"), start_ns.unwrap_or(0));
        let kind = match phase {
            "X" | "B" => BEGIN,
            "E" => END,
            "i" | "I" | "R" => INSTANT,
            "M" => {
                let given = event.get("args").and_then(|args| args.get("name")).and_then(Value::as_str);
                match (name, given) {
                    ("thread_name", Some(given)) => self.track(track, given),
                    ("process_name", Some(given)) => self.process(track, given),
                    _ => (),
                }
                return;
            }
            // Counters and similar events have no equivalent in this format.
            _ => return,
        };
        // A track must be described before its first event; its final name may come later.
        if !self.uuids.contains_key(&(track.pid, None)) {
            self.process(track, &format!("Host_{}", track.pid));
        }
        if !self.uuids.contains_key(&(track.pid, Some(track.tid))) {
            self.track(track, &format!("Host_{}", track.tid));
        }
        let name = self.name(name);
        let args = event.get("args").and_then(Value::as_object);
        let mut annotations = Vec::new();
        for (key, value) in args.into_iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let (key, value) = (self.annotation_name(key), self.text(&value));
            push_annotation(&mut annotations, key, field::ANNOTATION_STRING_IID, value);
        }
        self.event(kind, track);
        if kind != END {
            push_uint(&mut self.event, field::EVENT_NAME_IID, name);
        }
        self.event.extend_from_slice(&annotations);
        self.emit(start_ns);
        if phase == "X" {
            let dur_ns = event.get("dur").and_then(nanoseconds).unwrap_or(0);
            self.end(track, start_ns, u64::try_from(dur_ns).unwrap_or(0));
        }
    }

    #[inline]
    fn flush_if_full(&mut self) -> io::Result<()> {
        self.block.flush_if_full()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.block.flush()
    }
}

fn push_uint(out: &mut Vec<u8>, field: u32, value: u64) {
    put_tag(out, field, 0);
    put_varint(out, value);
}

fn push_fixed64(out: &mut Vec<u8>, field: u32, value: u64) {
    put_tag(out, field, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn push_interned(out: &mut Vec<u8>, field: u32, iid: u64, text: &str) {
    let mut entry = Vec::with_capacity(text.len().saturating_add(16));
    push_uint(&mut entry, field::IID, iid);
    put_bytes(&mut entry, field::INTERNED_TEXT, text.as_bytes());
    put_bytes(out, field, &entry);
}

fn push_annotation(out: &mut Vec<u8>, name_iid: u64, value_field: u32, value: u64) {
    let mut entry = Vec::with_capacity(32);
    push_uint(&mut entry, field::ANNOTATION_NAME_IID, name_iid);
    push_uint(&mut entry, value_field, value);
    put_bytes(out, field::EVENT_ANNOTATIONS, &entry);
}
