//! Statistics of measured inferences, in the open layout.
//!
//! The statistics contain everything that the host can measure: the time of the execution, the time of the program
//! load, the duration of input and output transfers, and the duration of each node from the engine's own profile.
//! Values that the host cannot measure are marked as invalid: processor cycles, waits of operations, memory traffic.
//! An error becomes a note in the buffer and fails no inference.

use std::fs;
use std::sync::{Arc, OnceLock};

use qaic_mem::HostSliceMut;
use qaic_stats::decode::descriptor::{Fingerprint, OpDesc};
use qaic_stats::decode::{Kind, Op, OpFlags, OpKindFlags, ProgramOperations, Thread, ThreadFlags, oqstats};
use qaic_stats::{DeviceKind, Run, RunFlags, StatsError, StatsModel};
use serde::Serialize;

use super::calibration::{Calibration, Medians};
use super::engine::{Bindings, Engine};
use super::op_matching::match_nodes;
use super::optimized_graph::GraphNode;
use super::profile::{NodeEvent, OpNames, Profile, ProfileFolder};
#[cfg(feature = "emu")]
use crate::device::stats_records::LoadedStats;
use crate::device::stats_records::{self, Levels};
use crate::image::Image;
use crate::process::clock::{self, ucycles};
use crate::process::log;
use crate::profiling::{Identity, Stages};

/// Lowest level that records operations.
const OPS_LEVEL: u16 = 70;

/// Operators whose results depend on the number of earlier executions.
const RANDOM: [&str; 7] = [
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
];
/// Engine name for nodes without a description.
const OTHERS: &str = "*";
/// Maximum number of events of a run that the engine keeps.
const MOST_EVENTS: u64 = 1_000_000;

/// Maximum length of a note in the buffer, in bytes.
const LONGEST_NOTE_BYTES: usize = 300;

/// Description of a program's measurements.
#[derive(Debug)]
pub(in crate::device) struct Description {
    levels: Levels,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Container(Arc<Image>),
    #[cfg(feature = "emu")]
    Loaded(LoadedStats),
}

impl Description {
    /// Returns the description; `None` for a program without statistics.
    pub(super) fn of_container(image: &Arc<Image>) -> Option<Self> {
        let stats = image.network.stats.as_ref()?;
        Some(Self { levels: Levels::of(stats), source: Source::Container(Arc::clone(image)) })
    }

    pub(super) fn measures_ops(&self) -> bool {
        self.levels.op_level >= OPS_LEVEL
    }

    /// Returns the description that a card received.
    #[cfg(feature = "emu")]
    pub(in crate::device) fn of_loaded(stats: LoadedStats) -> Self {
        Self { levels: stats.levels, source: Source::Loaded(stats) }
    }
}

/// Facts that all inferences of a loaded program share.
#[derive(Debug)]
pub(super) struct ProgramStats {
    description: Description,
    // Nodes that the engine runs, or the reason why they are unknown; empty if operations are not measured.
    nodes: Result<Vec<GraphNode>, String>,
    engine: &'static Engine,
    /// True if an inference may run twice, because it keeps no state and ends soon.
    is_repeatable: bool,
    // Start and end of the load.
    loaded_ns: (u64, u64),
    calibration: Calibration,
    // Set by the first measured inference.
    facts: OnceLock<Facts>,
}

#[derive(Debug)]
struct Facts {
    fingerprint: Fingerprint,
    batch_size: u32,
    ops: OpNames,
    // Reason why executions cannot be assigned to operations.
    unmatched: Option<String>,
    // True if an operation has random results.
    is_random: bool,
    host_cpu: String,
    notes: Vec<String>,
}

impl ProgramStats {
    /// Creates the facts of a program whose load began at `begun_ns` and has just ended.
    pub(super) fn new(
        description: Description,
        nodes: Result<Vec<GraphNode>, String>,
        engine: &'static Engine,
        variants: usize,
        is_repeatable: bool,
        begun_ns: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            description,
            nodes,
            engine,
            is_repeatable,
            loaded_ns: (begun_ns, clock::now_ns()),
            calibration: Calibration::new(variants),
            facts: OnceLock::new(),
        })
    }

    pub(super) fn measures_ops(&self) -> bool {
        self.description.measures_ops()
    }

    /// Returns true if this inference must first be repeated without a profile.
    pub(super) fn claim_repeats(&self, variant: usize) -> bool {
        let may_repeat = self.is_repeatable && self.measures_ops() && !self.facts().is_random;
        may_repeat && self.calibration.claim_repeats(variant)
    }

    /// Records the duration of an inference that was not measured.
    pub(super) fn add_plain(&self, variant: usize, duration_ns: u64) {
        self.calibration.add_plain(variant, duration_ns);
    }

    fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| Facts::of(&self.description, &self.nodes))
    }
}

impl Facts {
    fn of(description: &Description, engine_nodes: &Result<Vec<GraphNode>, String>) -> Self {
        let mut notes = Vec::new();
        let mut operations = |found: Result<Option<ProgramOperations>, StatsError>| {
            let found = found.inspect_err(|error| notes.push(format!("the operations are unknown: {error}")));
            found.ok().flatten().map(|program| Arc::unwrap_or_clone(program.ops)).unwrap_or_default()
        };
        let (descriptor, fingerprint, counts_ddr, counts_events) = match &description.source {
            Source::Container(image) => {
                let descriptor = operations(ProgramOperations::of_container(&image.container, image.bytes()));
                let counts_ddr = image.network.stats.as_ref().is_some_and(|stats| stats.count_ddr_bw);
                let counts_events = !descriptor.pmu_events.is_empty();
                (descriptor, stats_records::fingerprint(image), counts_ddr, counts_events)
            }
            #[cfg(feature = "emu")]
            Source::Loaded(stats) => {
                let described = stats.operations.as_ref().filter(|_| description.measures_ops());
                let described = described.and_then(|(elf, range)| elf.get(range.clone()));
                let mut descriptor = operations(described.map(ProgramOperations::from_json).transpose());
                descriptor.batch_size = stats.levels.batch_size;
                (descriptor, stats.fingerprint, stats.counts_ddr, stats.counts_events)
            }
        };
        if counts_ddr {
            notes.push("traffic with memory cannot be measured on the host".to_owned());
        }
        if counts_events {
            notes.push("hardware events of a card cannot be counted on the host".to_owned());
        }
        let described = descriptor.cores.first().map_or(&[][..], |core| &core.ops);
        let (engine_nodes, unmatched) = match engine_nodes {
            Ok(found) => (&found[..], None),
            Err(reason) => (&[][..], Some(reason.clone())),
        };
        Self {
            fingerprint,
            batch_size: descriptor.batch_size.max(1),
            is_random: described.iter().any(|op| RANDOM.contains(&&*op.kind)),
            ops: op_names(described, engine_nodes),
            unmatched,
            host_cpu: host_cpu(),
            notes,
        }
    }
}

/// Maps each node to the operation that its executions are counted for.
fn op_names(described: &[OpDesc], nodes: &[GraphNode]) -> OpNames {
    let is_other = |op: &OpDesc| op.engine_name == OTHERS;
    let other = described.iter().zip(0_u32..).find_map(|(op, oc)| is_other(op).then_some(oc));
    let as_node = |op: &OpDesc| GraphNode {
        name: if op.engine_name.is_empty() { op.name.clone() } else { op.engine_name.clone() },
        kind: op.kind.clone(),
        outputs: op.outputs.clone(),
        producers: op
            .deps
            .iter()
            .filter(|dep| dep.core == 0)
            .filter_map(|dep| usize::try_from(dep.oc).ok().filter(|&oc| oc < described.len()))
            .collect(),
    };
    let pairs = match_nodes(&described.iter().map(as_node).collect::<Vec<_>>(), nodes);
    let named =
        nodes.iter().zip(pairs).filter_map(|(node, pair)| Some((&*node.name, u32::try_from(pair?).ok()?)));
    OpNames::new(named, other)
}

/// The statistics of the inferences of one exec object.
#[derive(Debug)]
pub(super) struct ExecStats {
    pub(super) program: Arc<ProgramStats>,
    // Folder of the engine's profile of the measured inference.
    folder: Option<ProfileFolder>,
    notes: Vec<String>,
    // Has the size of the DMA buffer from the first measured inference on.
    encoded: Vec<u8>,
}

/// Facts about the producer and about this inference.
#[derive(Debug, Serialize)]
struct Meta<'a> {
    producer: &'static str,
    version: &'static str,
    engine: String,
    host_cpu: &'a str,
    clock: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    op_clock: Option<&'static str>,
    activation: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<Cost>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    notes: &'a [String],
}

/// Cost of the engine's profile.
#[derive(Debug, Serialize)]
struct Cost {
    #[serde(flatten)]
    medians: Medians,
    /// Duration of the engine's call, including the time to write the profile.
    call_us: f64,
    /// Additional duration of an operation that is profiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    per_op_us: Option<f64>,
}

impl ExecStats {
    pub(super) fn new(program: &Arc<ProgramStats>) -> Self {
        Self { program: Arc::clone(program), folder: None, notes: Vec::new(), encoded: Vec::new() }
    }

    /// Enables the engine's profile of the next execution, if operations are measured.
    pub(super) fn begin(&mut self, bindings: &mut Bindings) {
        self.folder = None;
        self.notes.clear();
        if !self.program.measures_ops() {
            return;
        }
        let mut begin = || -> Result<_, String> {
            let folder = ProfileFolder::new().map_err(|error| error.to_string())?;
            let prefix = folder.prefix().map_err(|error| error.to_string())?;
            bindings.begin_profiling(&prefix)?;
            Ok(folder)
        };
        match begin() {
            Ok(folder) => self.folder = Some(folder),
            Err(reason) => self.note_unprofiled(&reason),
        }
    }

    /// Ends an execution; the data of a failed execution is discarded.
    pub(super) fn end(&mut self, bindings: &mut Bindings, succeeded: bool) {
        if self.folder.is_some() {
            bindings.end_profiling();
        }
        if !succeeded {
            self.folder = None;
        }
    }

    fn note_unprofiled(&mut self, reason: &str) {
        self.note(format!("operations were not measured: {reason}"));
    }

    fn note(&mut self, mut note: String) {
        if let Some(end) =
            (0..=LONGEST_NOTE_BYTES.min(note.len())).rev().find(|&end| note.is_char_boundary(end))
        {
            note.truncate(end);
        }
        self.notes.push(note);
    }

    /// Writes the statistics of the last execution to `memory`.
    pub(super) fn write(
        &mut self,
        bindings: &Bindings,
        stages: &Stages,
        identity: Identity,
        mut memory: HostSliceMut<'_>,
    ) {
        let profile = self.take_profile();
        let program = Arc::clone(&self.program);
        let facts = program.facts();
        for note in &facts.notes {
            self.note(note.clone());
        }
        let ran_ns = bindings.ran_ns();
        let measured = Measured { ran_ns, variant: bindings.variant(), profile };
        let model = measured.model(&program, facts, stages, identity, &self.notes);
        self.encoded.resize(memory.len(), 0);
        let used = oqstats::encode(&model, facts.fingerprint, &mut self.encoded);
        if let Err(error) = used {
            log::global().warn(|| format!("the statistics of an inference are lost: {error}"));
            self.encoded.fill(0);
        }
        // Both have the same size.
        let _ = memory.write_from(0, &self.encoded);
    }

    /// Reads and removes the profile of the last execution; `None` if no profile is available.
    fn take_profile(&mut self) -> Option<Profile> {
        let folder = self.folder.take()?;
        let file = folder.file();
        let profile = file.and_then(|file| Profile::read(file, &self.program.facts().ops));
        match profile {
            Ok(mut profile) => {
                if profile.lines >= MOST_EVENTS {
                    profile.is_whole = false;
                    self.note("the engine keeps at most a million events of a run".to_owned());
                } else if !profile.is_whole {
                    self.note(
                        "the engine's profile is truncated; the folder of temporary files may be full"
                            .to_owned(),
                    );
                }
                if let Some(reason) = &self.program.facts().unmatched {
                    self.note(format!("the executed operations are unknown: {reason}"));
                }
                for (count, what) in [
                    (profile.unexpected, "executions belong to nodes that the compiler did not see"),
                    (profile.dropped, "executions belong to no known operation and are not counted"),
                    (profile.unreadable, "lines of the engine's profile could not be read"),
                ] {
                    if count != 0 {
                        self.note(format!("{count} {what}"));
                    }
                }
                Some(profile)
            }
            Err(error) => {
                self.note_unprofiled(&format!("the engine's profile cannot be read: {error}"));
                None
            }
        }
    }
}

/// One execution.
struct Measured {
    // Start and end of the engine's call.
    ran_ns: (u64, u64),
    variant: usize,
    profile: Option<Profile>,
}

impl Measured {
    /// Interval in which the engine ran the graph. A profile excludes the time in which it was written.
    fn interval_ns(&self) -> (u64, u64) {
        let profiled = self.profile.as_ref().and_then(|profile| profile.run_us);
        profiled.map_or(self.ran_ns, |(start_us, end_us)| (self.at_ns(start_us), self.at_ns(end_us)))
    }

    /// Converts a time of the profile, which starts with the engine's call.
    fn at_ns(&self, profile_us: u64) -> u64 {
        self.ran_ns.0.saturating_add(profile_us.saturating_mul(1000))
    }

    fn model(
        &self,
        program: &ProgramStats,
        facts: &Facts,
        stages: &Stages,
        identity: Identity,
        notes: &[String],
    ) -> StatsModel<'static> {
        let events = self.profile.as_ref().map(|profile| &*profile.events);
        let interval_ns = self.interval_ns();
        let end_ns = |event: &NodeEvent| self.at_ns(event.start_us.saturating_add(event.dur_us));
        let (mut start_u, mut end_u) = (ucycles(interval_ns.0), ucycles(interval_ns.1));
        for event in events.unwrap_or_default() {
            start_u = start_u.min(ucycles(self.at_ns(event.start_us)));
            end_u = end_u.max(ucycles(end_ns(event)));
        }
        let mut model = StatsModel::new(self.run(program, facts, identity));
        let (act_start_u, act_end_u) = (ucycles(program.loaded_ns.0), ucycles(program.loaded_ns.1));
        let thread = Thread {
            flags: ThreadFlags::ACTIVATION,
            start_u,
            end_u,
            act_start_u,
            act_end_u,
            op_count: u32::try_from(events.unwrap_or_default().len()).unwrap_or(u32::MAX),
            ..Thread::default()
        };
        stats_records::set(&mut model, thread, stages);
        if let Some(events) = events {
            model.set_records(
                events
                    .iter()
                    .map(|event| op(event, ucycles(self.at_ns(event.start_us)), ucycles(end_ns(event)))),
            );
        }
        let meta = Meta {
            producer: "openqaic",
            version: env!("CARGO_PKG_VERSION"),
            engine: format!("onnxruntime {}", program.engine.version),
            host_cpu: &facts.host_cpu,
            clock: "monotonic",
            op_clock: events.map(|_| "microseconds of the engine"),
            activation: "load and preparation of the graph",
            calibration: events.map(|events| self.cost(program, events)),
            notes,
        };
        // A structure of strings and finite numbers can always be serialized.
        model.set(Kind::Meta, serde_json::to_vec(&meta).unwrap_or_default(), 1);
        model
    }

    fn run(&self, program: &ProgramStats, facts: &Facts, identity: Identity) -> Run {
        let mut flags = RunFlags::PCYCLES_ABSENT;
        let is_complete = match &self.profile {
            Some(profile) => {
                flags |= RunFlags::COARSE_CLOCK | RunFlags::INSTRUMENTED_TIMES;
                if !profile.is_whole {
                    flags |= RunFlags::OPS_TRUNCATED;
                }
                profile.is_whole && profile.dropped == 0 && profile.unreadable == 0
            }
            None => !program.measures_ops(),
        };
        if is_complete {
            flags |= RunFlags::COMPLETE;
        }
        Run {
            flags,
            device: DeviceKind::Cpu,
            specialization: u32::try_from(self.variant).unwrap_or(u32::MAX),
            batch_size: facts.batch_size,
            ..stats_records::run(program.description.levels, identity)
        }
    }

    #[allow(clippy::cast_precision_loss)] // nanoseconds of three months fit
    fn cost(&self, program: &ProgramStats, events: &[NodeEvent]) -> Cost {
        let (start_ns, end_ns) = self.interval_ns();
        let inside_ns = end_ns.saturating_sub(start_ns);
        let medians = program.calibration.add_profiled(self.variant, inside_ns);
        let per_op_us = medians
            .plain_us
            .zip(medians.profiled_us)
            .map(|(plain_us, profiled_us)| (profiled_us - plain_us).max(0.0) / events.len().max(1) as f64);
        let (begin_ns, end_ns) = self.ran_ns;
        Cost { medians, call_us: end_ns.saturating_sub(begin_ns) as f64 / 1000.0, per_op_us }
    }
}

fn op(event: &NodeEvent, start_u: u64, end_u: u64) -> Op {
    let (dur_u, saturated) = match u32::try_from(end_u.saturating_sub(start_u)) {
        Ok(dur_u) => (dur_u, OpFlags::empty()),
        Err(_) => (u32::MAX, OpFlags::DUR_SATURATED),
    };
    let nested = if event.is_nested { OpKindFlags::NESTED } else { OpKindFlags::empty() };
    let counted = if event.out_bytes.is_some() { OpFlags::OUT_BYTES } else { OpFlags::empty() };
    Op {
        oc: event.oc,
        kflags: OpKindFlags::EXECUTED | nested,
        start_u,
        dur_u,
        flags: saturated | counted,
        iteration: event.iteration,
        out_bytes: event.out_bytes.unwrap_or(0),
        ..Op::default()
    }
}

/// Returns the processor's name for display.
fn host_cpu() -> String {
    let described = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let line = described.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let part = || Some(format!("implementer {} part {}", value("CPU implementer")?, value("CPU part")?));
    value("model name").or_else(part).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
