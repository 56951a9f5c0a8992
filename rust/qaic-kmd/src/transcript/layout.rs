//! Fields of system calls and control messages by name, used to read a transcript and to compare two.

use serde_json::{Map, Value};

use super::hex;
use crate::abi::{
    AttachSlice, AttachSliceEntry, CreateBo, DetachSlice, DrmVersion, Execute, ExecuteEntry, GemClose,
    ManageMsg, MmapBo, PartialExecuteEntry, PerfStats, PerfStatsEntry, Prime, Wait,
};
use crate::ioctl::Ioctl;
use crate::wire::{Field, Kind, Layout, text_of};

/// Placeholder for a value that depends on the process.
const VOLATILE: &str = "*";

/// Returns the fields that are within `bytes`.
pub(super) fn decode(fields: &[Field], bytes: &[u8]) -> Map<String, Value> {
    let mut found = Map::new();
    for field in fields {
        if let Some(bytes) = bytes.get(field.at..) {
            add(&mut found, field, bytes);
        }
    }
    found
}

fn add(found: &mut Map<String, Value>, field: &Field, bytes: &[u8]) {
    let value = match field.kind {
        Kind::Reserved => None,
        Kind::U8 => bytes.first().copied().map(Value::from),
        Kind::U16 => bytes.first_chunk().copied().map(|bytes| u16::from_le_bytes(bytes).into()),
        Kind::U32 => bytes.first_chunk().copied().map(|bytes| u32::from_le_bytes(bytes).into()),
        Kind::U64 => bytes.first_chunk().copied().map(|bytes| u64::from_le_bytes(bytes).into()),
        Kind::I32 => bytes.first_chunk().copied().map(|bytes| i32::from_le_bytes(bytes).into()),
        Kind::Text(len) => bytes.get(..len).map(|bytes| text_of(bytes).into()),
        Kind::Volatile(_) => Some(VOLATILE.into()),
        Kind::Flat(fields) => {
            found.extend(decode(fields, bytes));
            None
        }
        Kind::Numbered { name, fields, bytes: each, count } => {
            for (number, bytes) in bytes.chunks_exact(each).take(count).enumerate() {
                found.insert(format!("{name}{number}"), Value::Object(decode(fields, bytes)));
            }
            None
        }
    };
    if let Some(value) = value {
        found.insert(field.name.to_owned(), value);
    }
}

/// Converts bytes to digits.
pub(super) fn digits(bytes: &[u8]) -> Value {
    hex::encode(bytes).into()
}

/// Replaces process-specific bytes with zeros.
pub(super) fn blank(fields: &[Field], bytes: &mut [u8]) {
    for field in fields {
        if let Kind::Volatile(len) = field.kind
            && let Some(bytes) = bytes.get_mut(field.at..field.at + len)
        {
            bytes.fill(0);
        }
    }
}

/// A system call of the driver, by name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) fields: &'static [Field],
    pub(super) pointed: Pointed,
}

/// Data that an argument points to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pointed {
    Nothing,
    /// Entries of this size in bytes.
    Entries {
        bytes: usize,
        fields: &'static [Field],
    },
    /// Transactions, also those of the reply.
    Transactions,
    /// Memory for a name.
    Name,
}

/// Returns the names of a call and of its fields.
pub(super) fn call(call: &Ioctl<'_, '_>) -> Call {
    match call {
        Ioctl::Manage(_) => Call { pointed: Pointed::Transactions, ..plain::<ManageMsg>("MANAGE") },
        Ioctl::CreateBo(_) => plain::<CreateBo>("CREATE_BO"),
        Ioctl::MmapBo(_) => plain::<MmapBo>("MMAP_BO"),
        Ioctl::AttachSlices { .. } => listed::<AttachSlice, AttachSliceEntry>("ATTACH_SLICE_BO"),
        Ioctl::DetachSlices(_) => plain::<DetachSlice>("DETACH_SLICE_BO"),
        Ioctl::Execute { .. } => listed::<Execute, ExecuteEntry>("EXECUTE_BO"),
        Ioctl::PartialExecute { .. } => listed::<Execute, PartialExecuteEntry>("PARTIAL_EXECUTE_BO"),
        Ioctl::Wait(_) => plain::<Wait>("WAIT_BO"),
        Ioctl::PerfStats { .. } => listed::<PerfStats, PerfStatsEntry>("PERF_STATS_BO"),
        Ioctl::CloseHandle(_) => plain::<GemClose>("GEM_CLOSE"),
        Ioctl::Version(_) => Call { pointed: Pointed::Name, ..plain::<DrmVersion>("VERSION") },
        Ioctl::ImportDmaBuf { .. } => plain::<Prime>("PRIME_FD_TO_HANDLE"),
    }
}

fn plain<T: Layout>(name: &'static str) -> Call {
    Call { name, fields: T::FIELDS, pointed: Pointed::Nothing }
}

fn listed<T: Layout, E: Layout>(name: &'static str) -> Call {
    let pointed = Pointed::Entries { bytes: size_of::<E>(), fields: E::FIELDS };
    Call { pointed, ..plain::<T>(name) }
}
