//! Measurements on the host, shown with those of the devices: the stages of each inference.
//!
//! Slices on one thread of a trace must nest, but inferences of an activation overlap. An activation is therefore
//! shown as several threads, as many as it has overlapping inferences.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;

use super::block::Target;
use super::clock::Timeline;
use super::json::JsonSink;
use super::sink::{Sink, Span, Track};
use crate::sample::HostSample;

/// Process id of the host in a trace without devices; ids of devices start at 1.
const HOST_PID: u32 = 1000;

/// Returns the slices of an inference: the whole first, then its parts.
fn slices(sample: &HostSample) -> [(&'static str, u64, u64); 5] {
    [
        ("total", sample.enqueued_ns, sample.completed_ns),
        ("enqueue", sample.enqueued_ns, sample.begun_ns),
        ("preProcess", sample.begun_ns, sample.inputs_ready_ns),
        ("device", sample.inputs_ready_ns, sample.executed_ns),
        ("postProcess", sample.executed_ns, sample.outputs_ready_ns),
    ]
}

/// Threads of one activation, to which samples are assigned in order.
#[derive(Default)]
struct Rows {
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    free: BinaryHeap<Reverse<usize>>,
    count: usize,
}

impl Rows {
    /// Takes the lowest thread that is free at `start_ns`, until `end_ns`.
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

/// Returns the names of the threads, and the samples ordered by start, each with its thread.
fn placed(samples: &[HostSample]) -> (Vec<String>, Vec<(&HostSample, usize)>) {
    let mut order: Vec<&HostSample> = samples.iter().collect();
    order.sort_by_key(|sample| (sample.enqueued_ns, sample.inference));
    let mut activations: BTreeMap<(u32, u32), Rows> = BTreeMap::new();
    let mut rows = Vec::with_capacity(samples.len());
    for sample in order {
        let key = (sample.program, sample.activation);
        // A slice without duration must not start together with the next one.
        let end_ns = sample.completed_ns.max(sample.enqueued_ns.saturating_add(1));
        let row = activations.entry(key).or_default().take(sample.enqueued_ns, end_ns);
        rows.push((sample, key, row));
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
    let placed = rows.into_iter().map(|(sample, key, row)| (sample, thread(key, row))).collect();
    (threads, placed)
}

/// Returns the start of the samples on the wall clock.
pub(super) fn first_utc_ns(samples: &[HostSample], epoch_utc_ns: u64) -> Option<i128> {
    let first = samples.iter().map(|sample| sample.enqueued_ns).min()?;
    Some(i128::from(epoch_utc_ns).saturating_add(i128::from(first)))
}

/// Writes the samples as a process.
pub(super) fn write_samples(
    sink: &mut impl Sink,
    samples: &[HostSample],
    epoch_utc_ns: u64,
    timeline: &Timeline,
    pid: u32,
) -> io::Result<()> {
    let (threads, placed) = placed(samples);
    let track =
        |thread: usize| Track { pid, tid: u32::try_from(thread.saturating_add(1)).unwrap_or(u32::MAX) };
    if !threads.is_empty() {
        sink.process(track(0), "HOST_PROC");
    }
    for (thread, name) in threads.iter().enumerate() {
        sink.track(track(thread), name);
    }
    for (sample, thread) in placed {
        let args = [
            ("sample", sample.inference),
            ("activation", sample.activation.into()),
            ("queueDepth", sample.queue_depth.into()),
            ("numInfInQueue", sample.in_queue.into()),
        ];
        for (name, start_ns, end_ns) in slices(sample) {
            let at_utc_ns = i128::from(epoch_utc_ns).saturating_add(i128::from(start_ns));
            let start = timeline.at_utc(Some(at_utc_ns));
            let dur_ns = end_ns.saturating_sub(start_ns);
            sink.span(&Span { track: track(thread), name, start_ns: start, dur_ns, args: &args });
        }
        sink.flush_if_full()?;
    }
    Ok(())
}

/// Writes a Chrome trace of the host only. Its times start at the first sample. `epoch_utc_ns`, the UTC time at the
/// start of the process's clock, allows a combination with a device's trace.
pub fn write_host_trace(
    out: &mut impl io::Write,
    samples: &[HostSample],
    epoch_utc_ns: u64,
) -> io::Result<()> {
    let timeline = Timeline { origin_utc_ns: first_utc_ns(samples, epoch_utc_ns), clocks: Vec::new() };
    let mut sink = JsonSink::new(Target::Writer(out));
    // An unknown date is 0.
    sink.begin(timeline.origin_utc_ns.filter(|_| epoch_utc_ns > 0));
    write_samples(&mut sink, samples, epoch_utc_ns, &timeline, HOST_PID)?;
    sink.finish()
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
        fn a_trace_is_json_with_an_event_a_line(mut samples in proptest::collection::vec(sample(), 1..20)) {
            for (inference, sample) in (0..).zip(&mut samples) {
                sample.inference = inference;
            }
            let mut text = Vec::new();
            prop_assert!(write_host_trace(&mut text, &samples, 1_000_000).is_ok());
            let trace: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            let events = trace["traceEvents"].as_array().cloned().unwrap_or_default();
            let shown: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
            prop_assert_eq!(shown.len(), 5 * samples.len());
            let text = String::from_utf8(text).unwrap_or_default();
            let lines = text.lines().filter(|line| line.contains("\"ph\": ")).count();
            prop_assert_eq!(lines, events.len());
            let first = samples.iter().map(|sample| sample.enqueued_ns).min().unwrap_or(0);
            prop_assert_eq!(&trace["otherData"]["epoch_utc_ns"], &serde_json::json!(1_000_000 + first));
            for sample in &samples {
                let number = serde_json::json!(sample.inference.to_string());
                let own: Vec<_> = shown.iter().filter(|event| event["args"]["sample"] == number).collect();
                prop_assert_eq!(own.len(), 5);
                for (event, (name, start_ns, _)) in own.iter().zip(slices(sample)) {
                    prop_assert_eq!(&event["name"], name);
                    prop_assert_eq!(&event["tid"], &own[0]["tid"]);
                    // Times of the strategy are below a microsecond.
                    let ns = f64::from(u32::try_from(start_ns - first).unwrap_or(0));
                    prop_assert_eq!(event["ts"].to_string(), serde_json::json!(ns / 1e3).to_string());
                }
            }
            let named: Vec<_> = events.iter().filter(|event| event["name"] == "thread_name").collect();
            let tids: std::collections::BTreeSet<_> = shown.iter().map(|event| event["tid"].to_string()).collect();
            let expected: std::collections::BTreeSet<_> = (1..=named.len()).map(|tid| tid.to_string()).collect();
            prop_assert_eq!(tids, expected);
        }

        #[test]
        fn slices_of_a_thread_nest_and_none_is_lost(samples in proptest::collection::vec(sample(), 0..40)) {
            let (threads, placed) = placed(&samples);
            prop_assert_eq!(placed.len(), samples.len());
            let mut ends = vec![0; threads.len()];
            for (sample, thread) in placed {
                let [(_, begin, end), parts @ ..] = slices(sample);
                // No event of an earlier sample on this thread is open.
                prop_assert!(begin >= ends[thread]);
                let mut time = begin;
                for (_, part_begin, part_end) in parts {
                    prop_assert_eq!(part_begin, time);
                    time = part_end;
                }
                prop_assert!(time <= end);
                ends[thread] = end;
                let of = format!("Program {} Activation {}", sample.program, sample.activation);
                prop_assert!(threads[thread].starts_with(&of));
            }
        }

        /// The number of threads equals the maximum number of overlapping samples.
        #[test]
        fn threads_are_as_few_as_can_be(samples in proptest::collection::vec(sample(), 1..40)) {
            let samples: Vec<_> =
                samples.into_iter().map(|sample| HostSample { program: 0, activation: 0, ..sample }).collect();
            let end = |sample: &HostSample| sample.completed_ns.max(sample.enqueued_ns + 1);
            let at_once = (0..61).map(|time| {
                samples.iter().filter(|sample| sample.enqueued_ns <= time && time < end(sample)).count()
            });
            prop_assert_eq!(Some(placed(&samples).0.len()), at_once.max());
        }
    }
}
