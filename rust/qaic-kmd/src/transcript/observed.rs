//! A system call as a transcript holds it: its bytes and those it points to, without what says something about this process
//! only (device-kmd §7.5). Recording and replaying look at calls through this, so that both leave out the same.

use crc32fast::Hasher;
use serde_json::{Map, Value, json};

use super::layout::{self, Call, Pointed};
use crate::Errno;
use crate::abi::MANAGE_MAX_BYTES;
use crate::user_memory::{copy_in, copy_out};

/// Most bytes of entries that are looked at.
const ENTRIES_LIMIT_BYTES: usize = 1 << 20;
/// Most bytes of data for the card that go into a checksum.
const PAYLOAD_LIMIT_BYTES: u64 = 64 << 20;
const CHUNK_BYTES: u64 = 1 << 20;
/// Most bytes of a driver's name.
const NAME_LIMIT_BYTES: usize = 256;

/// Arguments of a call, or what they are after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Observed {
    /// By name.
    pub(super) fields: Map<String, Value>,
    /// Bytes of the argument.
    pub(super) raw: Vec<u8>,
    /// Bytes that it points to; `None`: it points to nothing, or to nowhere.
    pub(super) data: Option<Vec<u8>>,
}

/// What a call is given. `arg` are the bytes before it.
pub(super) fn given(call: &Call, arg: &[u8]) -> Observed {
    let data = match call.pointed {
        // Its content means nothing before the call.
        Pointed::Name => None,
        _ => pointed(call, arg, arg),
    };
    observed(call, arg, data, true)
}

/// What a call answers. `arg` are the bytes after it, `given` those before. `None`: it answers nothing.
pub(super) fn answered(call: &Call, given: &[u8], arg: &[u8], result: Result<(), Errno>) -> Option<Observed> {
    let has_data = match call.pointed {
        Pointed::Transactions => matches!(result, Ok(()) | Err(Errno::CANCELED)),
        Pointed::Entries { answered, .. } => answered && result.is_ok(),
        Pointed::Name => result.is_ok(),
        Pointed::Nothing => false,
    };
    if !has_data && given == arg {
        return None;
    }
    let data = if has_data { pointed(call, given, arg) } else { None };
    Some(observed(call, arg, data, false))
}

/// Gives the answer of a recording to the caller: what is volatile in `arg` stays.
pub(super) fn answer(
    call: &Call,
    arg: &mut [u8],
    raw: Option<&[u8]>,
    data: Option<&[u8]>,
) -> Result<(), Errno> {
    if let (Some((address, room)), Some(data)) = (place(call, arg, arg), data) {
        let room = if matches!(call.pointed, Pointed::Transactions) { MANAGE_MAX_BYTES } else { room };
        copy_out(address, &data[..data.len().min(room)])?;
    }
    if let Some(raw) = raw {
        let mut bytes = raw.to_vec();
        for (at, len) in layout::volatile(call.fields) {
            if let (Some(to), Some(from)) = (bytes.get_mut(at..at + len), arg.get(at..at + len)) {
                to.copy_from_slice(from);
            }
        }
        let shared = bytes.len().min(arg.len());
        arg[..shared].copy_from_slice(&bytes[..shared]);
    }
    Ok(())
}

fn observed(call: &Call, arg: &[u8], data: Option<Vec<u8>>, is_given: bool) -> Observed {
    let mut fields = layout::decode(call.fields, arg);
    let mut data = data;
    match (call.pointed, &mut data) {
        (Pointed::Entries { bytes, fields: entry, .. }, Some(data)) => {
            let entries = data.chunks_exact(bytes).map(|bytes| Value::Object(layout::decode(entry, bytes)));
            fields.insert("entries".to_owned(), entries.collect());
        }
        (Pointed::Transactions, Some(data)) => {
            fields.insert("transactions".to_owned(), transactions(data, is_given));
            blank_transactions(data);
        }
        (Pointed::Name, Some(data)) => {
            fields.insert("name".to_owned(), String::from_utf8_lossy(data).into());
        }
        _ => {}
    }
    let mut raw = arg.to_vec();
    layout::blank(call.fields, &mut raw);
    Observed { fields, raw, data }
}

/// What `arg` points to; `given` is what it was before the call.
fn pointed(call: &Call, given: &[u8], arg: &[u8]) -> Option<Vec<u8>> {
    let (address, len) = place(call, given, arg)?;
    let mut bytes = vec![0; len];
    copy_in(address, &mut bytes).ok()?;
    Some(bytes)
}

/// Address and length of that.
fn place(call: &Call, given: &[u8], arg: &[u8]) -> Option<(u64, usize)> {
    let count = usize::try_from(word(arg, 0)?).ok()?;
    match call.pointed {
        Pointed::Nothing => None,
        Pointed::Transactions => Some((long(given, 8)?, count.min(MANAGE_MAX_BYTES))),
        Pointed::Entries { address_at, bytes, count_is_half, .. } => {
            let count = if count_is_half { count & 0xFFFF } else { count };
            let most = ENTRIES_LIMIT_BYTES / bytes;
            Some((long(given, address_at)?, count.min(most) * bytes))
        }
        Pointed::Name => {
            let len = long(given, 16)?.min(long(arg, 16)?).min(NAME_LIMIT_BYTES as u64);
            Some((long(given, 24)?, usize::try_from(len).ok()?))
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Types and bodies of transactions, up to the first that is not whole.
fn bodies(data: &[u8]) -> Vec<(u32, std::ops::Range<usize>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some(kind), Some(len)) = (word(data, at), word(data, at + 4)) {
        let end = at.saturating_add(len as usize);
        if len < 8 || end > data.len() {
            break;
        }
        found.push((kind, at + 8..end));
        at = end;
    }
    found
}

fn transactions(data: &[u8], is_given: bool) -> Value {
    let whole = bodies(data);
    let end = whole.last().map_or(0, |(_, body)| body.end);
    let mut found: Vec<Value> =
        whole.into_iter().map(|(kind, body)| transaction(kind, &data[body], is_given)).collect();
    if end < data.len() {
        found.push(json!({ "type": "incomplete", "bytes": super::hex::encode(&data[end..]) }));
    }
    found.into()
}

fn transaction(kind: u32, body: &[u8], is_given: bool) -> Value {
    let Some((name, fields)) = layout::transaction(kind) else {
        return json!({ "type": kind, "bytes": super::hex::encode(body) });
    };
    let mut found = layout::decode(fields, body);
    if layout::carries_command(kind) {
        match word(body, 0).map(|id| (id, layout::command(id))) {
            Some((_, Some((command, fields)))) => {
                found = layout::decode(fields, body);
                found.insert("command".to_owned(), command.into());
            }
            Some((id, None)) => {
                found.insert("command".to_owned(), id.into());
                found.insert("bytes".to_owned(), super::hex::encode(body).into());
            }
            None => {}
        }
    }
    if kind == crate::nnc::transaction::DMA_FROM_USER && is_given {
        found.insert("payload".to_owned(), payload(body));
    }
    found.insert("type".to_owned(), name.into());
    found.insert("len".to_owned(), (body.len() + 8).into());
    found.into()
}

/// Length and checksum of data that the card fetches.
fn payload(body: &[u8]) -> Value {
    let (Some(address), Some(size)) = (long(body, 8), long(body, 16)) else { return Value::Null };
    let hashed = size.min(PAYLOAD_LIMIT_BYTES);
    let mut checksum = Hasher::new();
    let mut chunk = Vec::new();
    let mut at = 0;
    while at < hashed {
        let len = (hashed - at).min(CHUNK_BYTES);
        chunk.resize(usize::try_from(len).unwrap_or(0), 0);
        if copy_in(address.saturating_add(at), &mut chunk).is_err() {
            return json!({ "bytes": size, "fault_at": at });
        }
        checksum.update(&chunk);
        at += len;
    }
    json!({ "bytes": size, "checked_bytes": hashed, "crc32": format!("{:08x}", checksum.finalize()) })
}

fn blank_transactions(data: &mut [u8]) {
    for (kind, body) in bodies(data) {
        let body = &mut data[body];
        if let Some((_, fields)) = layout::transaction(kind) {
            layout::blank(fields, body);
        }
        if layout::carries_command(kind)
            && let Some((_, fields)) = word(body, 0).and_then(layout::command)
        {
            layout::blank(fields, body);
        }
    }
}
