//! Measurements of this library on the host, next to those of the devices.

use std::io;

use super::clock::Timeline;
use super::host_events::{HOST_PROCESS, host_events};
use super::sink::{Sink, Span, Track};
use crate::sample::HostSample;

/// Returns the start of the samples on the wall clock.
pub(super) fn first_utc_ns(samples: &[HostSample], epoch_utc_ns: u64) -> Option<i128> {
    let first = samples.iter().map(|sample| sample.enqueued_ns).min()?;
    Some(i128::from(epoch_utc_ns).saturating_add(i128::from(first)))
}

/// Writes them as a process.
pub(super) fn write_samples(
    sink: &mut impl Sink,
    samples: &[HostSample],
    epoch_utc_ns: u64,
    timeline: &Timeline,
    pid: u32,
) -> io::Result<()> {
    let events = host_events(samples);
    let track =
        |thread: usize| Track { pid, tid: u32::try_from(thread.saturating_add(1)).unwrap_or(u32::MAX) };
    if !events.threads().is_empty() {
        sink.process(track(0), HOST_PROCESS);
    }
    for (thread, name) in events.threads().iter().enumerate() {
        sink.track(track(thread), name);
    }
    for event in events.events() {
        let at_utc_ns = i128::from(epoch_utc_ns).saturating_add(i128::from(event.start_ns));
        sink.span(&Span {
            track: track(event.thread),
            name: event.name,
            start_ns: timeline.at_utc(Some(at_utc_ns)),
            dur_ns: event.duration_ns,
            args: &event.arguments(),
        });
        sink.flush_if_full()?;
    }
    Ok(())
}
