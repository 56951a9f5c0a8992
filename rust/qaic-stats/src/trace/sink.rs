//! Elements of a trace, independent of its file format.

use std::io;

use serde_json::{Map, Value};

use crate::decode::descriptor::OpDesc;

/// A track: one line in a viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Track {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// One execution of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpEvent {
    pub(super) oc: u32,
    pub(super) iteration: u16,
    pub(super) start_ns: i64,
    pub(super) dur_ns: u64,
    pub(super) ucycles: u64,
    pub(super) pcycles: Option<u64>,
    /// Bytes of the result, if they differ from those in the descriptor.
    pub(super) out_bytes: Option<u64>,
    pub(super) saturated: bool,
}

/// A wait of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// Kind of the wait: a `barrier` follows an operation and waits for the other threads of the group; a `sync`
    /// precedes an operation and waits for its dependencies.
    pub(super) is_barrier: bool,
    pub(super) oc: u32,
    pub(super) start_ns: i64,
    pub(super) dur_ns: u64,
}

/// A dependency between two executions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) id: u64,
    pub(super) data: bool,
    pub(super) from: FlowEnd,
    pub(super) to: FlowEnd,
}

/// One end of a dependency.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowEnd {
    pub(super) track: Track,
    pub(super) oc: u32,
    pub(super) at_ns: i64,
}

/// Another activity with a duration, such as a core's whole execution or a stage on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    pub(super) track: Track,
    pub(super) name: &'a str,
    pub(super) start_ns: i64,
    pub(super) dur_ns: u64,
    pub(super) args: &'a [(&'a str, u64)],
}

/// A format of trace files. Output is written only in [`Sink::flush_if_full`], which is called often.
pub(super) trait Sink {
    /// Begins the file.
    fn begin(&mut self, origin_utc_ns: Option<i128>);

    /// Names a process and its first track.
    fn process(&mut self, first: Track, name: &str);

    /// Names a track. Precedes all events of the track.
    fn track(&mut self, track: Track, name: &str);

    /// Announces that the following operations are those of another core.
    fn ops_of_core(&mut self, ops: &[OpDesc]);

    /// Announces that the following operations are from threads of this engine, with this number of ticks per second.
    fn engine(&mut self, engine: &str, ucycle_hz: u64);

    fn op(&mut self, track: Track, desc: &OpDesc, event: &OpEvent);

    fn wait(&mut self, track: Track, wait: Wait);

    fn span(&mut self, span: &Span<'_>);

    fn flow(&mut self, flow: &Flow);

    /// Adds an event of another tool; `start_ns` is its time in this trace.
    fn foreign(&mut self, track: Track, start_ns: Option<i64>, event: &Map<String, Value>);

    /// Writes the collected output if a block is full.
    fn flush_if_full(&mut self) -> io::Result<()>;

    /// Ends the file.
    fn finish(&mut self) -> io::Result<()>;
}
