//! The Chrome trace: one JSON object per line, in the format that existing readers search for.

use std::io;
use std::ops::Range;

use serde_json::{Map, Value};

use super::block::{Block, Target};
use super::sink::{Flow, FlowEnd, OpEvent, Sink, Span, Track, Wait};
use crate::decode::descriptor::OpDesc;
use crate::number::{push_fixed, push_u64, ratio};

/// Number of decimals of microseconds.
const US_DECIMALS: usize = 3;
const BYTES_PER_KB: u64 = 1024;

/// Keys of an event that are written at another position or in another format.
const OWN_KEYS: [&str; 7] = ["name", "cat", "ph", "ts", "pid", "tid", "args"];

/// Writes a Chrome trace.
pub(super) struct JsonSink<'a> {
    block: Block<'a>,
    is_first: bool,
    templates: Vec<Option<Template>>,
    // Concatenated texts of all templates of a core.
    texts: Vec<u8>,
    engine: String,
    ucycle_hz: u64,
    // Cached for the last track, because the next event usually has the same one.
    last_track: Option<Track>,
    track_text: Vec<u8>,
}

/// Constant parts of the events of one operation: the text before the first number, and two texts between numbers.
#[derive(Clone, Debug)]
struct Template {
    head: Range<usize>,
    names: Range<usize>,
    tail: Range<usize>,
}

impl<'a> JsonSink<'a> {
    pub(super) fn new(target: Target<'a>) -> Self {
        Self {
            block: Block::new(target),
            is_first: true,
            templates: Vec::new(),
            texts: Vec::new(),
            engine: String::new(),
            ucycle_hz: 0,
            last_track: None,
            track_text: Vec::new(),
        }
    }

    /// Begins a line.
    #[inline]
    fn line(&mut self) -> &mut Vec<u8> {
        let out = &mut self.block.bytes;
        out.extend_from_slice(if self.is_first { b"\n" } else { b",\n" });
        self.is_first = false;
        out
    }

    fn select_track(&mut self, track: Track) {
        if self.last_track != Some(track) {
            self.track_text.clear();
            push_track(&mut self.track_text, track);
            self.last_track = Some(track);
        }
    }

    #[cold]
    fn render(&mut self, oc: u32, desc: &OpDesc) -> Template {
        let out = &mut self.texts;
        let start = out.len();
        out.extend_from_slice(br#"{"name": "#);
        push_string(out, &desc.kind);
        out.extend_from_slice(br#", "cat": "aic", "ph": "X", "ts": "#);
        let head = start..out.len();
        out.extend_from_slice(br#", "args": {"#);
        push_arg(out, "opName", &desc.name);
        out.extend_from_slice(b", ");
        push_arg(out, "opKind", &desc.kind);
        out.extend_from_slice(b", ");
        push_arg(out, "opMemory", &desc.memory);
        out.extend_from_slice(br#", "oc" : ""#);
        push_u64(out, u64::from(oc));
        out.extend_from_slice(br#"", "opUCycle" : ""#);
        let names = head.end..out.len();
        if let Some(transfer) = &desc.transfer {
            for (key, value) in [
                ("PortType", &transfer.port_type),
                ("PortDescription", &transfer.port_description),
                ("TransactionId", &transfer.transaction),
            ] {
                out.extend_from_slice(b", ");
                push_arg(out, key, value);
            }
        }
        for (key, value) in [("opShape", &desc.shape), ("opAttributes", &desc.attributes)] {
            if !value.is_empty() {
                out.extend_from_slice(b", ");
                push_arg(out, key, value);
            }
        }
        for (number, operand) in (0_u64..).zip(&desc.operands) {
            out.extend_from_slice(br#", "opOperand"#);
            push_u64(out, number);
            out.extend_from_slice(br#"" : "#);
            push_string(out, operand);
        }
        out.extend_from_slice(b"}}");
        let template = Template { tail: names.end..out.len(), head, names };
        let slot = usize::try_from(oc).ok().and_then(|oc| self.templates.get_mut(oc));
        if let Some(slot) = slot {
            *slot = Some(template.clone());
        }
        template
    }

    fn flow_end(&mut self, flow: &Flow, end: FlowEnd, phase: &[u8]) {
        let out = self.line();
        out.extend_from_slice(br#"{"name": "dep", "cat": ""#);
        out.extend_from_slice(if flow.data { b"true" } else { b"false" });
        out.extend_from_slice(br#"", "ph": "#);
        out.extend_from_slice(phase);
        out.extend_from_slice(br#", "id": "#);
        push_u64(out, flow.id);
        out.extend_from_slice(br#", "ts": "#);
        push_us(out, end.at_ns);
        push_track(out, end.track);
        out.extend_from_slice(br#", "args": {"oc" : ""#);
        push_u64(out, u64::from(end.oc));
        out.extend_from_slice(br#""}}"#);
    }

    fn named(&mut self, what: &str, track: Track, name: &str) {
        let out = self.line();
        out.extend_from_slice(br#"{"name": ""#);
        out.extend_from_slice(what.as_bytes());
        out.extend_from_slice(br#"", "ph": "M""#);
        push_track(out, track);
        out.extend_from_slice(br#", "args": {"name": "#);
        push_string(out, name);
        out.extend_from_slice(b"}}");
    }
}

impl Sink for JsonSink<'_> {
    fn begin(&mut self, origin_utc_ns: Option<i128>) {
        let out = &mut self.block.bytes;
        out.extend_from_slice(br#"{"displayTimeUnit": "ns", "otherData": {"producer": "openqaic""#);
        if let Some(origin) = origin_utc_ns {
            out.extend_from_slice(br#", "epoch_utc_ns": "#);
            out.extend_from_slice(origin.to_string().as_bytes());
        }
        out.extend_from_slice(br#"}, "traceEvents": ["#);
    }

    fn process(&mut self, first: Track, name: &str) {
        self.named("process_name", first, name);
    }

    fn track(&mut self, track: Track, name: &str) {
        self.named("thread_name", track, name);
    }

    fn ops_of_core(&mut self, ops: &[OpDesc]) {
        self.templates.clear();
        self.templates.resize(ops.len(), None);
        self.texts.clear();
    }

    fn engine(&mut self, engine: &str, ucycle_hz: u64) {
        engine.clone_into(&mut self.engine);
        self.ucycle_hz = ucycle_hz;
    }

    #[inline]
    fn op(&mut self, track: Track, desc: &OpDesc, event: &OpEvent) {
        let known = usize::try_from(event.oc).ok().and_then(|oc| self.templates.get(oc));
        let template = match known {
            Some(Some(template)) => template.clone(),
            Some(None) => self.render(event.oc, desc),
            None => {
                // The operation is not in the descriptor; its text is removed again, so that such texts do not
                // accumulate.
                let before = self.texts.len();
                let template = self.render(event.oc, desc);
                let text = self.texts.split_off(before);
                self.op_text(track, desc, event, &template, &text, before);
                return;
            }
        };
        // Moved out because the block is borrowed mutably during the write, and moved back afterwards.
        let texts = std::mem::take(&mut self.texts);
        self.op_text(track, desc, event, &template, &texts, 0);
        self.texts = texts;
    }

    fn wait(&mut self, track: Track, wait: Wait) {
        self.select_track(track);
        self.line();
        let out = &mut self.block.bytes;
        out.extend_from_slice(br#"{"name": ""#);
        let what: &[u8] = if wait.is_barrier { b"barrier " } else { b"sync " };
        out.extend_from_slice(what);
        push_escaped(out, &self.engine);
        out.extend_from_slice(br#"", "cat": "aic", "ph": "X", "ts": "#);
        push_us(out, wait.start_ns);
        out.extend_from_slice(br#", "dur": "#);
        if wait.is_barrier {
            push_fixed(out, wait.dur_ns, US_DECIMALS);
        } else {
            out.push(b'0');
        }
        out.extend_from_slice(&self.track_text);
        out.extend_from_slice(br#", "args": {"oc" : ""#);
        push_u64(out, u64::from(wait.oc));
        if !wait.is_barrier {
            out.extend_from_slice(br#"", "opSyncDurUs" : ""#);
            push_fixed(out, wait.dur_ns, US_DECIMALS);
        }
        out.extend_from_slice(br#""}}"#);
    }

    fn span(&mut self, span: &Span<'_>) {
        let out = self.line();
        out.extend_from_slice(br#"{"name": "#);
        push_string(out, span.name);
        out.extend_from_slice(br#", "cat": "aic", "ph": "X", "ts": "#);
        push_us(out, span.start_ns);
        out.extend_from_slice(br#", "dur": "#);
        push_fixed(out, span.dur_ns, US_DECIMALS);
        push_track(out, span.track);
        out.extend_from_slice(br#", "args": {"#);
        for (place, (name, value)) in span.args.iter().enumerate() {
            out.extend_from_slice(if place == 0 { b"" } else { b", " });
            push_string(out, name);
            out.extend_from_slice(br#" : ""#);
            push_u64(out, *value);
            out.push(b'"');
        }
        out.extend_from_slice(b"}}");
    }

    fn flow(&mut self, flow: &Flow) {
        self.flow_end(flow, flow.from, br#""s""#);
        self.flow_end(flow, flow.to, br#""f", "bp": "e""#);
    }

    fn foreign(&mut self, track: Track, start_ns: Option<i64>, event: &Map<String, Value>) {
        let out = self.line();
        out.push(b'{');
        for key in ["name", "cat", "ph"] {
            if let Some(value) = event.get(key) {
                push_string(out, key);
                out.extend_from_slice(b": ");
                push_value(out, value);
                out.extend_from_slice(b", ");
            }
        }
        if let Some(start_ns) = start_ns {
            out.extend_from_slice(br#""ts": "#);
            push_us(out, start_ns);
            out.extend_from_slice(b", ");
        }
        // A line names the track of its event only once.
        out.truncate(out.len().saturating_sub(2));
        push_track(out, track);
        for (key, value) in event.iter().filter(|(key, _)| !OWN_KEYS.contains(&key.as_str())) {
            out.extend_from_slice(b", ");
            push_string(out, key);
            out.extend_from_slice(b": ");
            push_value(out, value);
        }
        if let Some(args) = event.get("args") {
            out.extend_from_slice(br#", "args": "#);
            push_value(out, args);
        }
        out.push(b'}');
    }

    #[inline]
    fn flush_if_full(&mut self) -> io::Result<()> {
        self.block.flush_if_full()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.block.bytes.extend_from_slice(b"\n]}\n");
        self.block.flush()
    }
}

impl JsonSink<'_> {
    #[inline]
    fn op_text(
        &mut self,
        track: Track,
        desc: &OpDesc,
        event: &OpEvent,
        template: &Template,
        texts: &[u8],
        before: usize,
    ) {
        let text = |range: &Range<usize>| {
            texts.get(range.start.wrapping_sub(before)..range.end.wrapping_sub(before)).unwrap_or_default()
        };
        self.select_track(track);
        self.line();
        let out = &mut self.block.bytes;
        out.extend_from_slice(text(&template.head));
        push_us(out, event.start_ns);
        out.extend_from_slice(br#", "dur": "#);
        push_fixed(out, event.dur_ns, US_DECIMALS);
        out.extend_from_slice(&self.track_text);
        out.extend_from_slice(text(&template.names));
        push_u64(out, event.ucycles);
        if let Some(pcycles) = event.pcycles {
            out.extend_from_slice(br#"", "opPCycle" : ""#);
            push_u64(out, pcycles);
        }
        let out_bytes = event.out_bytes.unwrap_or(desc.output_bytes);
        out.extend_from_slice(br#"", "opOutputSize" : ""#);
        push_u64(out, out_bytes);
        if out_bytes > 0 {
            let per_kb = |cycles| ratio(cycles, 100_u64.wrapping_mul(BYTES_PER_KB), out_bytes).unwrap_or(0);
            if let Some(pcycles) = event.pcycles {
                out.extend_from_slice(br#"", "PCyclesPerKB" : ""#);
                push_fixed(out, per_kb(pcycles), 2);
            }
            out.extend_from_slice(br#"", "UCyclesPerKB" : ""#);
            push_fixed(out, per_kb(event.ucycles), 2);
        }
        // MHz with three decimals: PCycles per second, divided by 1000.
        let frequency = event.pcycles.and_then(|pcycles| {
            ratio(pcycles, self.ucycle_hz, event.ucycles.checked_mul(1000).filter(|&ticks| ticks > 0)?)
        });
        if let Some(frequency) = frequency {
            out.extend_from_slice(br#"", "effectiveFreq" : ""#);
            push_fixed(out, frequency, 3);
        }
        if event.iteration > 0 {
            out.extend_from_slice(br#"", "iteration" : ""#);
            push_u64(out, u64::from(event.iteration));
        }
        if event.saturated {
            out.extend_from_slice(br#"", "saturated" : "1"#);
        }
        out.push(b'"');
        out.extend_from_slice(text(&template.tail));
    }
}

/// Appends nanoseconds as microseconds.
#[inline]
fn push_us(out: &mut Vec<u8>, ns: i64) {
    if ns < 0 {
        out.push(b'-');
    }
    push_fixed(out, ns.unsigned_abs(), US_DECIMALS);
}

fn push_track(out: &mut Vec<u8>, track: Track) {
    out.extend_from_slice(br#", "pid": "#);
    push_u64(out, u64::from(track.pid));
    out.extend_from_slice(br#", "tid": "#);
    push_u64(out, u64::from(track.tid));
}

fn push_arg(out: &mut Vec<u8>, key: &str, value: &str) {
    push_string(out, key);
    out.extend_from_slice(b" : ");
    push_string(out, value);
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    push_escaped(out, text);
    out.push(b'"');
}

fn push_escaped(out: &mut Vec<u8>, text: &str) {
    let plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    // No early exit, so that one instruction compares many bytes.
    if text.bytes().fold(true, |so_far, byte| so_far & plain(byte)) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            byte if plain(byte) => out.push(byte),
            byte => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
        }
    }
}

/// Appends a value of another tool, in the format of the surrounding lines.
fn push_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::String(text) => push_string(out, text),
        Value::Array(values) => {
            out.push(b'[');
            for (place, value) in values.iter().enumerate() {
                out.extend_from_slice(if place == 0 { b"" } else { b", " });
                push_value(out, value);
            }
            out.push(b']');
        }
        Value::Object(values) => {
            out.push(b'{');
            for (place, (key, value)) in values.iter().enumerate() {
                out.extend_from_slice(if place == 0 { b"" } else { b", " });
                push_string(out, key);
                out.extend_from_slice(b" : ");
                push_value(out, value);
            }
            out.push(b'}');
        }
        plain => out.extend_from_slice(plain.to_string().as_bytes()),
    }
}
