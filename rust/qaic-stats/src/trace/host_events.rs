//! The events of the host process in a trace: what each inference spent its time on.
//!
//! Slices on one thread of a trace have to nest, and inferences of an activation overlap. So an activation has as many
//! threads as it has inferences at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;

use crate::number::Us;
use crate::sample::HostSample;

/// Name of the process.
pub(crate) const HOST_PROCESS: &str = "HOST_PROC";

/// Its number; devices count from 1.
const HOST_PID: u32 = 1000;

/// One slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostEvent<'a> {
    /// `total`, or one of its parts: `enqueue`, `preProcess`, `device`, `postProcess`.
    pub name: &'static str,
    /// Position of its thread in [`HostEvents::threads`].
    pub thread: usize,
    /// Begin, on the clock of the process.
    pub start_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// The inference.
    pub sample: &'a HostSample,
}

impl HostEvent<'_> {
    /// Arguments by name.
    pub(crate) fn arguments(&self) -> [(&'static str, u64); 4] {
        [
            ("sample", self.sample.inference),
            ("activation", self.sample.activation.into()),
            ("queueDepth", self.sample.queue_depth.into()),
            ("numInfInQueue", self.sample.in_queue.into()),
        ]
    }
}

/// Which inference is drawn on which thread.
#[derive(Clone, Debug)]
pub(crate) struct HostEvents<'a> {
    samples: &'a [HostSample],
    /// Samples in order of their begins, each with its thread.
    placed: Vec<(usize, usize)>,
    threads: Vec<String>,
}

/// Threads of one activation while its samples are placed in order.
#[derive(Default)]
struct Rows {
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    free: BinaryHeap<Reverse<usize>>,
    count: usize,
}

impl Rows {
    /// The lowest row that is free from `start_ns` on, taken until `end_ns`.
    fn take(&mut self, start_ns: u64, end_ns: u64) -> usize {
        while let Some(&Reverse((end, row))) = self.busy.peek()
            && end <= start_ns
        {
            self.busy.pop();
            self.free.push(Reverse(row));
        }
        let row = self.free.pop().map_or(self.count, |Reverse(row)| row);
        self.count = self.count.max(row.saturating_add(1));
        self.busy.push(Reverse((end_ns, row)));
        row
    }
}

impl<'a> HostEvents<'a> {
    /// Places the samples; they may be in any order.
    pub(crate) fn new(samples: &'a [HostSample]) -> Self {
        let mut order: Vec<(usize, &HostSample)> = samples.iter().enumerate().collect();
        order.sort_by_key(|(_, sample)| (sample.enqueued_ns, sample.inference));
        let mut activations: BTreeMap<(u32, u32), Rows> = BTreeMap::new();
        let mut rows = Vec::with_capacity(samples.len());
        for &(index, sample) in &order {
            let key = (sample.program, sample.activation);
            // A slice of no length must not share its place with the next one.
            let end_ns = sample.completed_ns.max(sample.enqueued_ns.saturating_add(1));
            let row = activations.entry(key).or_default().take(sample.enqueued_ns, end_ns);
            rows.push((index, key, row));
        }
        let mut threads = Vec::new();
        let mut first = BTreeMap::new();
        for ((program, activation), rows) in &activations {
            first.insert((*program, *activation), threads.len());
            for row in 0..rows.count {
                let name = format!("Program {program} Activation {activation}");
                let is_first = row == 0;
                threads.push(if is_first { name } else { format!("{name} ({})", row.saturating_add(1)) });
            }
        }
        let thread = |key, row| first.get(&key).copied().unwrap_or(0_usize).saturating_add(row);
        let placed = rows.into_iter().map(|(index, key, row)| (index, thread(key, row))).collect();
        Self { samples, placed, threads }
    }

    /// Names of the threads.
    pub(crate) fn threads(&self) -> &[String] {
        &self.threads
    }

    /// All slices, of a sample the whole before its parts. Those of one thread ascend.
    pub(crate) fn events(&self) -> impl Iterator<Item = HostEvent<'a>> + '_ {
        let placed = self.placed.iter().filter_map(|&(index, thread)| {
            let sample = self.samples.get(index)?;
            Some((sample, thread))
        });
        placed.flat_map(|(sample, thread)| {
            let parts = [
                ("total", sample.enqueued_ns, sample.completed_ns),
                ("enqueue", sample.enqueued_ns, sample.begun_ns),
                ("preProcess", sample.begun_ns, sample.inputs_ready_ns),
                ("device", sample.inputs_ready_ns, sample.executed_ns),
                ("postProcess", sample.executed_ns, sample.outputs_ready_ns),
            ];
            parts.into_iter().map(move |(name, start_ns, end_ns)| HostEvent {
                name,
                thread,
                start_ns,
                duration_ns: end_ns.saturating_sub(start_ns),
                sample,
            })
        })
    }
}

/// The slices of some samples on their threads.
pub(crate) fn host_events(samples: &[HostSample]) -> HostEvents<'_> {
    HostEvents::new(samples)
}

/// Writes a Chrome trace of the host alone. Its times count from the first sample; `epoch_utc_ns`, the UTC at the begin of
/// the process's clock, lets a device's trace be put beside it.
pub fn write_host_trace(
    out: &mut impl io::Write,
    samples: &[HostSample],
    epoch_utc_ns: u64,
) -> io::Result<()> {
    let placed = host_events(samples);
    let first_ns = samples.iter().map(|sample| sample.enqueued_ns).min().unwrap_or(0);
    write!(out, r#"{{"displayTimeUnit": "ns", "otherData": {{"producer": "openqaic""#)?;
    // A date that is not known is 0.
    if epoch_utc_ns > 0 {
        write!(out, r#", "epoch_utc_ns": {}"#, epoch_utc_ns.saturating_add(first_ns))?;
    }
    write!(out, "}}, \"traceEvents\": [")?;
    let head = format!(r#""ph": "M", "pid": {HOST_PID}"#);
    write!(
        out,
        "\n{{\"name\": \"process_name\", {head}, \"tid\": 0, \"args\": {{\"name\": \"{HOST_PROCESS}\"}}}}"
    )?;
    for (tid, name) in placed.threads().iter().enumerate() {
        write!(
            out,
            ",\n{{\"name\": \"thread_name\", {head}, \"tid\": {tid}, \"args\": {{\"name\": \"{name}\"}}}}"
        )?;
    }
    for event in placed.events() {
        let HostEvent { name, thread, start_ns, duration_ns, .. } = event;
        let (at, took) = (Us(start_ns.saturating_sub(first_ns)), Us(duration_ns));
        write!(
            out,
            ",\n{{\"name\": \"{name}\", \"cat\": \"aic\", \"ph\": \"X\", \"ts\": {at}, \"dur\": {took}, \
             \"pid\": {HOST_PID}, \"tid\": {thread}, \"args\": {{"
        )?;
        for (place, (name, value)) in event.arguments().into_iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(out, "{comma}\"{name}\" : \"{value}\"")?;
        }
        write!(out, "}}}}")?;
    }
    writeln!(out, "\n]}}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> impl Strategy<Value = HostSample> {
        let times = proptest::collection::vec(0_u64..60, 6);
        (times, 0_u32..2, 0_u32..2).prop_map(|(mut times, program, activation)| {
            times.sort_unstable();
            HostSample {
                program,
                activation,
                enqueued_ns: times[0],
                begun_ns: times[1],
                inputs_ready_ns: times[2],
                executed_ns: times[3],
                outputs_ready_ns: times[4],
                completed_ns: times[5],
                ..HostSample::default()
            }
        })
    }

    proptest! {
        #[test]
        fn a_trace_is_json_with_an_event_a_line(samples in proptest::collection::vec(sample(), 0..20)) {
            let mut text = Vec::new();
            prop_assert!(write_host_trace(&mut text, &samples, 1_000_000).is_ok());
            let trace: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            let events = trace["traceEvents"].as_array().cloned().unwrap_or_default();
            let slices: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
            prop_assert_eq!(slices.len(), 5 * samples.len());
            let text = String::from_utf8(text).unwrap_or_default();
            let lines = text.lines().filter(|line| line.contains("\"ph\": ")).count();
            prop_assert_eq!(lines, events.len());
            let first = samples.iter().map(|sample| sample.enqueued_ns).min().unwrap_or(0);
            prop_assert_eq!(&trace["otherData"]["epoch_utc_ns"], &serde_json::json!(1_000_000 + first));
            for (slice, event) in slices.iter().zip(host_events(&samples).events()) {
                // Times of the strategy are below a microsecond.
                let ns = event.start_ns - first;
                prop_assert_eq!(slice["ts"].to_string(), serde_json::json!(f64::from(u32::try_from(ns).unwrap_or(0)) / 1e3).to_string());
                prop_assert_eq!(&slice["args"]["sample"], &serde_json::json!(event.sample.inference.to_string()));
            }
        }

        #[test]
        fn slices_of_a_thread_nest_and_none_is_lost(samples in proptest::collection::vec(sample(), 0..40)) {
            let placed = host_events(&samples);
            let events: Vec<_> = placed.events().collect();
            prop_assert_eq!(events.len(), 5 * samples.len());
            let mut ends = vec![0; placed.threads().len()];
            for of_one in events.chunks(5) {
                let total = &of_one[0];
                // No event of an earlier sample on this thread is open.
                prop_assert!(total.start_ns >= ends[total.thread]);
                let mut time = total.start_ns;
                for part in &of_one[1..] {
                    prop_assert_eq!((part.thread, part.start_ns), (total.thread, time));
                    time += part.duration_ns;
                }
                prop_assert!(time <= total.start_ns + total.duration_ns);
                ends[total.thread] = total.start_ns + total.duration_ns;
                let name = &placed.threads()[total.thread];
                let of = format!("Program {} Activation {}", total.sample.program, total.sample.activation);
                prop_assert!(name.starts_with(&of));
            }
        }

        /// No more threads than samples that lie over each other.
        #[test]
        fn threads_are_as_few_as_can_be(samples in proptest::collection::vec(sample(), 1..40)) {
            let samples: Vec<_> =
                samples.into_iter().map(|sample| HostSample { program: 0, activation: 0, ..sample }).collect();
            let placed = host_events(&samples);
            let end = |sample: &HostSample| sample.completed_ns.max(sample.enqueued_ns + 1);
            let at_once = (0..61).map(|time| {
                samples.iter().filter(|sample| sample.enqueued_ns <= time && time < end(sample)).count()
            });
            prop_assert_eq!(Some(placed.threads().len()), at_once.max());
        }
    }
}
