//! Compares the Perfetto form, read by an independent protobuf decoder, with the JSON form of the same capture.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // times in tests are small

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::Message;

use super::tests::{arg, capture, events, everything, is_op, ns, part, text, track, track_names};
use super::*;

macro_rules! messages {
    ($($name:ident { $($tag:literal $field:ident: $type:ty = [$($kind:tt)+];)* })*) => {
        $(#[derive(Clone, PartialEq, Message)]
        struct $name {
            $(#[prost($($kind)+, tag = $tag)] $field: $type,)*
        })*
    };
}

messages! {
    Trace {
        "1" packet: Vec<Packet> = [message, repeated];
    }
    Packet {
        "8" timestamp: Option<u64> = [uint64, optional];
        "10" sequence: Option<u32> = [uint32, optional];
        "11" event: Option<Event> = [message, optional];
        "12" interned: Option<Interned> = [message, optional];
        "13" flags: Option<u32> = [uint32, optional];
        "60" track: Option<Track> = [message, optional];
    }
    Event {
        "3" categories: Vec<u64> = [uint64, repeated, packed = "false"];
        "4" annotations: Vec<Annotation> = [message, repeated];
        "9" kind: Option<u32> = [uint32, optional];
        "10" name: Option<u64> = [uint64, optional];
        "11" track: Option<u64> = [uint64, optional];
        "47" flows: Vec<u64> = [fixed64, repeated, packed = "false"];
        "48" ended_flows: Vec<u64> = [fixed64, repeated, packed = "false"];
    }
    Annotation {
        "1" name: Option<u64> = [uint64, optional];
        "3" uint: Option<u64> = [uint64, optional];
        "17" text: Option<u64> = [uint64, optional];
    }
    Interned {
        "1" categories: Vec<Name> = [message, repeated];
        "2" names: Vec<Name> = [message, repeated];
        "3" annotation_names: Vec<Name> = [message, repeated];
        "29" texts: Vec<Name> = [message, repeated];
    }
    Name {
        "1" iid: u64 = [uint64];
        "2" text: String = [string];
    }
    Track {
        "1" uuid: u64 = [uint64];
        "2" name: String = [string];
        "5" parent: Option<u64> = [uint64, optional];
        "3" process: Option<Process> = [message, optional];
        "4" thread: Option<Thread> = [message, optional];
    }
    Process {
        "1" pid: i32 = [int32];
        "6" name: String = [string];
    }
    Thread {
        "1" pid: i32 = [int32];
        "2" tid: i32 = [int32];
        "5" name: String = [string];
    }
}

/// A slice: track, name, start and end in nanoseconds, annotations.
type Slice = (String, String, u64, u64, BTreeMap<String, String>);

/// A trace as a viewer reads it.
struct Seen {
    slices: BTreeSet<Slice>,
    flows: usize,
    tracks: BTreeSet<String>,
}

/// Reads a trace as Perfetto's importer does: names must precede their use, and a slice ends on its own
/// track.
fn read(bytes: &[u8]) -> Seen {
    let trace = Trace::decode(bytes).unwrap();
    let (mut names, mut keys, mut texts) = (HashMap::new(), HashMap::new(), HashMap::new());
    let (mut tracks, mut open) = (HashMap::new(), HashMap::<u64, Vec<_>>::new());
    let mut seen = Seen { slices: BTreeSet::new(), flows: 0, tracks: BTreeSet::new() };
    let mut open_flows = BTreeSet::new();
    for (place, packet) in trace.packet.into_iter().enumerate() {
        assert_eq!(packet.sequence, Some(1));
        assert_eq!(packet.flags, Some(if place == 0 { 1 } else { 2 }));
        let learn = |known: &mut HashMap<u64, String>, news: Vec<Name>| {
            for name in news {
                assert!(known.insert(name.iid, name.text).is_none(), "a number has one meaning");
            }
        };
        if let Some(interned) = packet.interned {
            learn(&mut names, interned.names);
            learn(&mut keys, interned.annotation_names);
            learn(&mut texts, interned.texts);
        }
        if let Some(track) = packet.track {
            assert!(track.process.is_some() || tracks.contains_key(&track.parent.unwrap()));
            seen.tracks.insert(track.name.clone());
            // Another tool may name a track after its first events.
            tracks.insert(track.uuid, track.name);
        }
        let Some(event) = packet.event else { continue };
        let uuid = event.track.unwrap();
        let at = packet.timestamp.unwrap();
        let args = event.annotations.iter().map(|annotation| {
            let value = annotation
                .text
                .map_or_else(|| annotation.uint.unwrap().to_string(), |iid| texts[&iid].clone());
            (keys[&annotation.name.unwrap()].clone(), value)
        });
        match event.kind.unwrap() {
            1 => {
                open.entry(uuid).or_default().push((names[&event.name.unwrap()].clone(), at, args.collect()))
            }
            2 => {
                let (name, start, args) = open.get_mut(&uuid).unwrap().pop().unwrap();
                seen.slices.insert((tracks[&uuid].clone(), name, start, at, args));
            }
            _ => {
                open_flows.extend(event.flows);
                for flow in event.ended_flows {
                    assert!(open_flows.remove(&flow));
                    seen.flows += 1;
                }
            }
        }
    }
    assert!(open.values().all(Vec::is_empty) && open_flows.is_empty());
    seen
}

#[test]
fn perfetto_shows_what_json_shows() {
    let capture = capture();
    let captures = [part(&capture, Some(0)), part(&capture, Some(1))];
    let json = events(&text(&captures, None, &everything()));
    let options = TraceOptions { format: TraceFormat::Perfetto, ..everything() };
    let mut bytes = Vec::new();
    write_trace(&mut bytes, &captures, &HostSide::default(), &options).unwrap();
    let seen = read(&bytes);
    let names = track_names(&json);
    let mut expected = BTreeSet::new();
    for event in json.iter().filter(|event| event["ph"] == "X") {
        let start = u64::try_from(ns(&event["ts"])).unwrap();
        let mut end = start + u64::try_from(ns(&event["dur"])).unwrap();
        let mut args = BTreeMap::new();
        if is_op(event) {
            for key in [
                "opName",
                "opMemory",
                "oc",
                "opUCycle",
                "opPCycle",
                "opOutputSize",
                "opAttributes",
                "opOperand0",
            ] {
                args.insert(key.to_owned(), arg(event, key).to_owned());
            }
        } else if let Some(oc) = event["args"].get("oc") {
            args.insert("oc".to_owned(), oc.as_str().unwrap().to_owned());
        }
        if event["args"].get("opSyncDurUs").is_some() {
            let length: f64 = arg(event, "opSyncDurUs").parse().unwrap();
            end += (length * 1000.0).round() as u64;
        }
        expected.insert((
            names[&track(event)].clone(),
            event["name"].as_str().unwrap().to_owned(),
            start,
            end,
            args,
        ));
    }
    assert_eq!(seen.slices, expected);
    assert_eq!(seen.flows, json.iter().filter(|event| event["ph"] == "f").count());
    let tracks: BTreeSet<String> = names.into_values().collect();
    assert!(tracks.is_subset(&seen.tracks));
}

#[test]
fn perfetto_shows_host_events_that_have_a_counterpart() {
    let host = br#"[{"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "HOST_PROC"}},
        {"ph": "X", "name": "run", "pid": 5, "tid": 6, "ts": 1.5, "dur": 2.25, "args": {"sample": 3}},
        {"ph": "B", "name": "outer", "pid": 5, "tid": 7, "ts": 2}, {"ph": "E", "pid": 5, "tid": 7, "ts": 9},
        {"ph": "C", "name": "memory", "pid": 5, "tid": 7, "ts": 3, "args": {"mb": 3}}]"#;
    let host = HostTrace::open(host).unwrap();
    let options = TraceOptions { format: TraceFormat::Perfetto, ..TraceOptions::default() };
    let mut bytes = Vec::new();
    write_trace(&mut bytes, &[], &HostSide { trace: Some(&host), ..HostSide::default() }, &options).unwrap();
    let trace = Trace::decode(&*bytes).unwrap();
    let times: Vec<u64> = trace.packet.iter().filter_map(|packet| packet.timestamp).collect();
    assert_eq!(times, [0, 2250, 500, 7500]);
    assert!(
        trace
            .packet
            .iter()
            .any(|packet| packet.track.as_ref().is_some_and(|track| track.name == "HOST_PROC"))
    );
}
