//! A Chrome trace of the host, recorded by any tool, that is shown with the devices.
//!
//! The wall clock aligns the trace with the devices if the file contains the UTC time of its zero, as files of this
//! library do (`otherData.epoch_utc_ns`). Other files start with the trace. Events are read one at a time. Events
//! that cannot be shown are omitted, as is an incomplete last event, because tools that were killed leave such files.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::sink::{Sink, Track};
use crate::error::StatsError;

/// First number for processes and threads whose number is already in use or is not a number.
const FIRST_OWN_NUMBER: u32 = 1_000_000;
const NS_PER_US: f64 = 1000.0;

/// A Chrome trace that was scanned once.
#[derive(Clone, Copy, Debug)]
pub struct HostTrace<'a> {
    bytes: &'a [u8],
    first_ns: i64,
    epoch_utc_ns: Option<i128>,
}

impl<'a> HostTrace<'a> {
    /// Scans a file: an object with `traceEvents`, or a list of events.
    pub fn open(bytes: &'a [u8]) -> Result<Self, StatsError> {
        let mut first_ns: Option<i64> = None;
        let mut reader = Reader {
            epoch_utc_ns: None,
            events: 0,
            each: &mut |event| {
                if let Some((_, Some(at_ns))) = shown(event) {
                    first_ns = Some(first_ns.map_or(at_ns, |first| first.min(at_ns)));
                }
                Ok(())
            },
            failed: None,
        };
        let read = reader.read(bytes);
        let (events, epoch_utc_ns) = (reader.events, reader.epoch_utc_ns);
        match read {
            Err(error) if !(error.is_eof() && events > 0) => Err(StatsError::HostTrace {
                what: format!("a host trace is a Chrome trace in JSON, but {error}"),
            }),
            _ => Ok(Self { bytes, first_ns: first_ns.unwrap_or(0), epoch_utc_ns }),
        }
    }

    /// Wall-clock time of the first event.
    pub(super) fn first_utc_ns(&self) -> Option<i128> {
        self.epoch_utc_ns.map(|epoch| epoch.saturating_add(i128::from(self.first_ns)))
    }

    /// Writes the events, the first at `first_ns`. Process ids up to `taken` belong to devices.
    pub(super) fn write(&self, sink: &mut impl Sink, first_ns: i64, taken: u32) -> io::Result<()> {
        let shift = first_ns.saturating_sub(self.first_ns);
        let mut numbers = Numbers { taken, ..Numbers::default() };
        let (mut seen, mut named) = (HashSet::new(), HashSet::new());
        let mut reader = Reader {
            epoch_utc_ns: None,
            events: 0,
            each: &mut |event| {
                let Some((phase, at_ns)) = shown(event) else { return Ok(()) };
                let track = numbers.track(event);
                if phase != "M" {
                    seen.insert((track.pid, track.tid));
                } else if event.get("name").and_then(Value::as_str) == Some("thread_name") {
                    named.insert((track.pid, track.tid));
                }
                sink.foreign(track, at_ns.map(|at_ns| at_ns.saturating_add(shift)), event);
                sink.flush_if_full()
            },
            failed: None,
        };
        // Errors in the text were reported when the trace was opened.
        let _ = reader.read(self.bytes);
        if let Some(error) = reader.failed {
            return Err(error);
        }
        let mut nameless: Vec<_> = seen.difference(&named).collect();
        nameless.sort_unstable();
        for &(pid, tid) in nameless {
            sink.track(Track { pid, tid }, &format!("Host_{tid}"));
        }
        sink.flush_if_full()
    }
}

/// Returns the phase and the time of an event, if a viewer can show it.
fn shown(event: &Map<String, Value>) -> Option<(&str, Option<i64>)> {
    let phase = event.get("ph")?.as_str()?;
    if phase == "M" {
        return Some((phase, None));
    }
    nanoseconds(event.get("ts")?).map(|at_ns| (phase, Some(at_ns)))
}

/// Converts microseconds to nanoseconds.
#[allow(clippy::as_conversions, clippy::cast_possible_truncation)] // casts of floats saturate
pub(super) fn nanoseconds(value: &Value) -> Option<i64> {
    if let Some(whole) = value.as_i64() {
        return whole.checked_mul(1000);
    }
    value.as_f64().filter(|us| us.is_finite()).map(|us| (us * NS_PER_US).round() as i64)
}

/// Maps process and thread ids of the file to those of the trace.
#[derive(Debug, Default)]
struct Numbers {
    taken: u32,
    processes: HashMap<String, u32>,
    threads: HashMap<(u32, String), u32>,
    own: u32,
}

impl Numbers {
    fn track(&mut self, event: &Map<String, Value>) -> Track {
        let number = |key: &str| {
            let value = event.get(key);
            let number = value.and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
            (
                number.filter(|&number| number < FIRST_OWN_NUMBER),
                value.map_or_else(String::new, Value::to_string),
            )
        };
        let (pid, text) = number("pid");
        let (tid, tid_text) = number("tid");
        let own = &mut self.own;
        let mut make = || {
            *own = own.saturating_add(1);
            FIRST_OWN_NUMBER.saturating_add(*own)
        };
        let taken = self.taken;
        let pid = *self
            .processes
            .entry(text)
            .or_insert_with(|| pid.filter(|&pid| pid > taken).unwrap_or_else(&mut make));
        let tid = match tid {
            Some(tid) => tid,
            None => *self.threads.entry((pid, tid_text)).or_insert_with(make),
        };
        Track { pid, tid }
    }
}

/// Reads events one at a time.
struct Reader<'f> {
    epoch_utc_ns: Option<i128>,
    events: u64,
    each: &'f mut dyn FnMut(&Map<String, Value>) -> io::Result<()>,
    failed: Option<io::Error>,
}

impl Reader<'_> {
    fn read(&mut self, bytes: &[u8]) -> Result<(), serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        deserializer.deserialize_any(Top(self))
    }
}

struct Top<'r, 'f>(&'r mut Reader<'f>);

impl<'de> Visitor<'de> for Top<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with `traceEvents` or a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        Events(self.0).visit_seq(seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => {
                    found = true;
                    map.next_value_seed(Events(&mut *self.0))?;
                }
                "otherData" => {
                    let data: Value = map.next_value()?;
                    self.0.epoch_utc_ns = data.get("epoch_utc_ns").and_then(|epoch| match epoch {
                        Value::String(text) => text.parse().ok(),
                        number => number.as_i64().map(i128::from),
                    });
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if found { Ok(()) } else { Err(A::Error::custom("the object has no `traceEvents`")) }
    }
}

struct Events<'r, 'f>(&'r mut Reader<'f>);

impl<'de> DeserializeSeed<'de> for Events<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(event) = seq.next_element::<Value>()? {
            self.0.events = self.0.events.saturating_add(1);
            if let Value::Object(event) = &event
                && let Err(error) = (self.0.each)(event)
            {
                self.0.failed = Some(error);
                return Err(A::Error::custom("the trace cannot be written"));
            }
        }
        Ok(())
    }
}
