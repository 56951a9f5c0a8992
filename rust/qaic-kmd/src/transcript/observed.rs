//! A system call in a transcript: its bytes and the bytes that it points to, without process-specific values.

use serde_json::{Map, Value, json};

use super::layout::{self, Call, Pointed};
use crate::Errno;
use crate::ioctl::Ioctl;
use crate::protocol::{Header, TransactionKind, command_entry, parse};

/// Maximum number of recorded bytes of entries.
const ENTRIES_LIMIT_BYTES: usize = 1 << 20;
/// Maximum number of bytes of card data that are included in a checksum.
const PAYLOAD_LIMIT_BYTES: usize = 64 << 20;

/// Arguments of a call, before or after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Observed {
    /// Fields by name.
    pub(super) fields: Map<String, Value>,
    pub(super) raw: Vec<u8>,
    /// Bytes that the argument points to; `None` if it contains no pointer.
    pub(super) data: Option<Vec<u8>>,
}

/// Returns the values that the caller passed.
pub(super) fn given(call: &mut Ioctl<'_, '_>) -> Result<Observed, Errno> {
    let argument = call.argument()?;
    let payloads = match call {
        Ioctl::Manage(message) => message.data().iter().copied().map(payload).collect(),
        _ => Vec::new(),
    };
    Ok(observed(layout::call(call), argument.bytes(), call.pointed(), payloads))
}

/// Returns the values that a call has written; `given` are the values that the caller passed. Returns `None` if the
/// call writes nothing.
pub(super) fn answered(
    call: &mut Ioctl<'_, '_>,
    given: &Observed,
    result: Result<(), Errno>,
) -> Result<Option<Observed>, Errno> {
    let argument = call.argument()?;
    let data = call.answered(result);
    let found = observed(layout::call(call), argument.bytes(), data, Vec::new());
    Ok((data.is_some() || found.raw != given.raw).then_some(found))
}

fn observed(call: Call, argument: &[u8], data: Option<&[u8]>, payloads: Vec<Value>) -> Observed {
    let mut fields = layout::decode(call.fields, argument);
    let mut data = data.map(<[u8]>::to_vec);
    match (call.pointed, &mut data) {
        (Pointed::Entries { bytes, fields: entry }, Some(data)) => {
            data.truncate(ENTRIES_LIMIT_BYTES / bytes * bytes);
            let entries = data.chunks_exact(bytes).map(|bytes| Value::Object(layout::decode(entry, bytes)));
            fields.insert("entries".to_owned(), entries.collect());
        }
        (Pointed::Transactions, Some(data)) => {
            fields.insert("transactions".to_owned(), transactions(data, payloads));
            blank_transactions(data);
        }
        (Pointed::Name, Some(data)) => {
            fields.insert("name".to_owned(), String::from_utf8_lossy(data).into());
        }
        _ => {}
    }
    let mut raw = argument.to_vec();
    layout::blank(call.fields, &mut raw);
    Observed { fields, raw, data }
}

/// Returns types and bodies of transactions, up to the first incomplete one.
fn bodies(data: &[u8]) -> Vec<(u32, std::ops::Range<usize>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok((kind, body, behind)) = parse::split(&data[at..]) {
        let end = data.len() - behind.len();
        found.push((kind, end - body.len()..end));
        at = end;
    }
    found
}

fn transactions(data: &[u8], payloads: Vec<Value>) -> Value {
    let whole = bodies(data);
    let end = whole.last().map_or(0, |(_, body)| body.end);
    let mut payloads = payloads.into_iter();
    let mut found: Vec<Value> =
        whole.into_iter().map(|(kind, body)| transaction(kind, &data[body], &mut payloads)).collect();
    if end < data.len() {
        found.push(json!({ "type": "incomplete", "bytes": layout::digits(&data[end..]) }));
    }
    found.into()
}

fn transaction(kind: u32, body: &[u8], payloads: &mut impl Iterator<Item = Value>) -> Value {
    let Some(kind) = TransactionKind::of(kind) else {
        return json!({ "type": kind, "bytes": layout::digits(body) });
    };
    let (name, fields) = kind.entry();
    let mut found = layout::decode(fields, body);
    if let Some(number) = command_number(kind, body) {
        if let Some(command) = command_entry(number) {
            found = layout::decode(command.fields, body);
            if let Some((name, rest)) = command.rest.and_then(|(name, at)| Some((name, body.get(at..)?))) {
                found.insert(name.to_owned(), layout::digits(rest));
            }
            found.insert("command".to_owned(), command.name.into());
        } else {
            found.insert("command".to_owned(), number.into());
            found.insert("bytes".to_owned(), layout::digits(body));
        }
    }
    if kind == TransactionKind::DmaFromUser
        && let Some(payload) = payloads.next()
    {
        found.insert("payload".to_owned(), payload);
    }
    found.insert("type".to_owned(), name.into());
    found.insert("len".to_owned(), (body.len() + size_of::<Header>()).into());
    found.into()
}

/// Number of the command or reply in a transaction.
fn command_number(kind: TransactionKind, body: &[u8]) -> Option<u32> {
    use TransactionKind::{PassthroughFromDevice, PassthroughFromUser, PassthroughToUser};

    let carries = matches!(kind, PassthroughFromUser | PassthroughToUser | PassthroughFromDevice);
    body.first_chunk().filter(|_| carries).copied().map(u32::from_le_bytes)
}

/// Length and checksum of data that the card fetches.
fn payload(data: &[u8]) -> Value {
    let hashed = &data[..data.len().min(PAYLOAD_LIMIT_BYTES)];
    let checksum = crc32fast::hash(hashed);
    json!({ "bytes": data.len(), "checked_bytes": hashed.len(), "crc32": format!("{checksum:08x}") })
}

fn blank_transactions(data: &mut [u8]) {
    for (kind, body) in bodies(data) {
        let Some(kind) = TransactionKind::of(kind) else { continue };
        let body = &mut data[body];
        layout::blank(kind.entry().1, body);
        if let Some(command) = command_number(kind, body).and_then(command_entry) {
            layout::blank(command.fields, body);
        }
    }
}
