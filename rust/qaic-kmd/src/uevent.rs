//! Messages of the kernel about devices, and the card events in them.
//!
//! The input may be arbitrary bytes; only messages in exactly the driver's format are events.

use std::str;

use crate::abi::DBC_COUNT;
use crate::kmd::{DbcState, Event, EventKind};

/// Subsystem of the nodes.
const SUBSYSTEM: &[u8] = b"accel";
/// Maximum number of digits of a node's number.
const NUMBER_DIGITS: usize = 10;

impl Event {
    /// Parses the event in a message: `action@path` and `KEY=value` parts, each terminated by a zero byte.
    ///
    /// Returns `None` if the message is not about the node of an accelerator, or does not contain its state, or was
    /// requested by a program (`udevadm trigger`), which does not affect the card.
    pub fn parse(message: &[u8]) -> Option<Event> {
        let mut parts = message.split(|byte| *byte == 0);
        let header = parts.next()?;
        let at = header.iter().position(|byte| *byte == b'@')?;
        let (action, path) = (&header[..at], &header[at + 1..]);

        let (mut subsystem, mut dbc_id, mut dbc_state) = (None, None, None);
        for part in parts {
            let Some(equals) = part.iter().position(|byte| *byte == b'=') else { continue };
            let value = &part[equals + 1..];
            let place = match &part[..equals] {
                b"SUBSYSTEM" => &mut subsystem,
                b"DBC_ID" => &mut dbc_id,
                b"DBC_STATE" => &mut dbc_state,
                b"SYNTH_UUID" => return None,
                _ => continue,
            };
            // The kernel sends each key once.
            if place.replace(value).is_some() {
                return None;
            }
        }
        if subsystem != Some(SUBSYSTEM) {
            return None;
        }
        let node = path.rsplit(|byte| *byte == b'/').next()?;
        node_number(node)?;
        let kind = match action {
            b"online" => EventKind::Online,
            b"offline" => EventKind::Offline,
            b"add" => EventKind::Added,
            b"remove" => EventKind::Removed,
            b"change" => EventKind::Channel {
                dbc_id: decimal(dbc_id?).filter(|id| *id < DBC_COUNT)?,
                state: DbcState::from_number(decimal(dbc_state?)?)?,
            },
            _ => return None,
        };
        Some(Event { node: str::from_utf8(node).ok()?.to_owned(), kind })
    }
}

/// Number of the node called `name`, which consists of `accel` and the number.
pub(crate) fn node_number(name: &[u8]) -> Option<u32> {
    decimal(name.strip_prefix(SUBSYSTEM)?)
}

/// Parses a number in the kernel's format: only digits, without leading zeros.
pub(crate) fn decimal(digits: &[u8]) -> Option<u32> {
    if digits.len() > NUMBER_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    if digits.first()? == &b'0' && digits.len() > 1 {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATH: &str = "/devices/pci0000:00/0000:00:01.0/0000:01:00.0/accel/accel3";

    /// A message in the kernel's format.
    fn message(action: &str, path: &str, pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = format!("{action}@{path}\0ACTION={action}\0DEVPATH={path}\0").into_bytes();
        for (key, value) in pairs {
            bytes.extend(format!("{key}={value}\0").into_bytes());
        }
        bytes
    }

    fn about_a_node(action: &str, more: &[(&str, &str)]) -> Vec<u8> {
        let mut pairs = vec![("SUBSYSTEM", "accel"), ("MAJOR", "261"), ("DEVNAME", "accel/accel3")];
        pairs.extend(more);
        pairs.push(("SEQNUM", "4711"));
        message(action, PATH, &pairs)
    }

    fn kind(message: &[u8]) -> Option<EventKind> {
        Event::parse(message).map(|event| {
            assert_eq!(event.node, "accel3");
            event.kind
        })
    }

    #[test]
    fn uevent_of_each_kind_is_parsed() {
        assert_eq!(kind(&about_a_node("online", &[])), Some(EventKind::Online));
        assert_eq!(kind(&about_a_node("offline", &[])), Some(EventKind::Offline));
        assert_eq!(kind(&about_a_node("add", &[])), Some(EventKind::Added));
        assert_eq!(kind(&about_a_node("remove", &[])), Some(EventKind::Removed));
        let changed = about_a_node("change", &[("DBC_ID", "15"), ("DBC_STATE", "2")]);
        let state = DbcState::BeforeShutdown;
        assert_eq!(kind(&changed), Some(EventKind::Channel { dbc_id: 15, state }));
    }

    #[test]
    fn dbc_state_of_each_number_is_the_kernels() {
        for number in 0..6 {
            assert_eq!(DbcState::from_number(number).map(|state| state as u32), Some(number));
        }
        assert_eq!(DbcState::from_number(6), None);
    }

    #[test]
    fn uevent_of_another_subsystem_is_no_event() {
        assert_eq!(Event::parse(&message("add", PATH, &[("SUBSYSTEM", "pci")])), None);
        assert_eq!(
            Event::parse(&message("online", "/devices/system/cpu/cpu1", &[("SUBSYSTEM", "cpu")])),
            None
        );
        assert_eq!(Event::parse(&message("add", PATH, &[])), None);
        assert_eq!(Event::parse(&message("add", "/class/accel", &[("SUBSYSTEM", "accel")])), None);
        assert_eq!(Event::parse(&message("add", "/devices/accel/accel-1", &[("SUBSYSTEM", "accel")])), None);
        // udevd repeats events to its own listeners in this form.
        assert_eq!(Event::parse(b"libudev\0\xfe\xed\xca\xfe\x28\0\0\0"), None);
    }

    #[test]
    fn uevent_without_a_change_of_state_is_no_event() {
        assert_eq!(Event::parse(&about_a_node("change", &[])), None);
        assert_eq!(Event::parse(&about_a_node("change", &[("DBC_ID", "1")])), None);
        assert_eq!(Event::parse(&about_a_node("bind", &[("DBC_ID", "1"), ("DBC_STATE", "2")])), None);
        for (id, state) in
            [("16", "2"), ("1", "6"), ("-1", "2"), ("+1", "2"), ("01", "2"), ("", "2"), ("99999999999", "2")]
        {
            assert_eq!(
                Event::parse(&about_a_node("change", &[("DBC_ID", id), ("DBC_STATE", state)])),
                None,
                "{id}"
            );
        }
        assert_eq!(
            Event::parse(&about_a_node("change", &[("DBC_ID", "1"), ("DBC_ID", "2"), ("DBC_STATE", "2")])),
            None
        );
    }

    #[test]
    fn uevent_triggered_by_a_program_is_no_event() {
        // The kernel sends this event for `udevadm trigger --action=remove`; the card still exists.
        assert_eq!(Event::parse(&about_a_node("remove", &[("SYNTH_UUID", "0")])), None);
    }

    proptest! {
        #[test]
        fn uevent_of_any_event_round_trips(
            action in prop::sample::select(vec!["online", "offline", "add", "remove", "change", "move", ""]),
            node in 0_u32..,
            dbc_id in 0_u32..20,
            number in 0_u32..8,
            noise in prop::collection::vec(("[A-Z]{1,4}", "[ -~]{0,20}"), 0..6),
        ) {
            let (id, state) = (dbc_id.to_string(), number.to_string());
            let mut pairs: Vec<(&str, &str)> = noise.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            pairs.insert(pairs.len() / 2, ("DBC_STATE", state.as_str()));
            pairs.insert(pairs.len() / 3, ("SUBSYSTEM", "accel"));
            pairs.push(("DBC_ID", id.as_str()));
            let bytes = message(action, &format!("/devices/x/accel/accel{node}"), &pairs);
            let expected = match action {
                "online" => Some(EventKind::Online),
                "offline" => Some(EventKind::Offline),
                "add" => Some(EventKind::Added),
                "remove" => Some(EventKind::Removed),
                "change" if dbc_id < 16 => {
                    DbcState::from_number(number).map(|state| EventKind::Channel { dbc_id, state })
                }
                _ => None,
            };
            let expected = expected.map(|kind| Event { node: format!("accel{node}"), kind });
            prop_assert_eq!(Event::parse(&bytes), expected);
        }

        #[test]
        fn uevent_of_any_bytes_is_parsed_in_bounds(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            if let Some(event) = Event::parse(&bytes) {
                prop_assert!(event.node.len() <= 15);
            }
        }

        #[test]
        fn damaged_uevent_is_parsed_in_bounds(
            at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = about_a_node("change", &[("DBC_ID", "7"), ("DBC_STATE", "5")]);
            let len = bytes.len();
            bytes[at.index(len)] = byte;
            bytes.truncate(cut.index(len + 1));
            if let Some(event) = Event::parse(&bytes) {
                prop_assert!(event.node.starts_with("accel") && event.node.len() <= 15);
                if let EventKind::Channel { dbc_id, .. } = event.kind {
                    prop_assert!(dbc_id < 16);
                }
            }
        }
    }
}
