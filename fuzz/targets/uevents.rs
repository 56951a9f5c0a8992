//! Reads any bytes as a message of the kernel about a device; an event must be expressible as a message of
//! the kernel.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_kmd::{Event, EventKind};

fuzz_target!(|bytes: &[u8]| {
    let Some(event) = Event::parse(bytes) else { return };
    let number: u32 =
        event.node.strip_prefix("accel").and_then(|digits| digits.parse().ok()).expect("a node's name");
    assert_eq!(event.node, format!("accel{number}"));
    let (action, more) = match event.kind {
        EventKind::Online => ("online", String::new()),
        EventKind::Offline => ("offline", String::new()),
        EventKind::Added => ("add", String::new()),
        EventKind::Removed => ("remove", String::new()),
        EventKind::Channel { dbc_id, state } => {
            assert!(dbc_id < 16);
            ("change", format!("DBC_ID={dbc_id}\0DBC_STATE={}\0", state as u32))
        }
    };
    let path = format!("/devices/pci0000:00/0000:01:00.0/accel/{}", event.node);
    let message = format!(
        "{action}@{path}\0ACTION={action}\0DEVPATH={path}\0SUBSYSTEM=accel\0MAJOR=261\0{more}SEQNUM=7\0"
    );
    assert_eq!(Event::parse(message.as_bytes()), Some(event.clone()));

    // Unknown keys change nothing. With `SYNTH_UUID`, which a program's request adds, the message is not an
    // event.
    assert_eq!(Event::parse(&[bytes, b"\0NEW_KEY=1\0"].concat()), Some(event));
    assert_eq!(Event::parse(&[bytes, b"\0SYNTH_UUID=0\0"].concat()), None);
});
