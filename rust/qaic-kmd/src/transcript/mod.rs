//! Transcripts: every system call of a run as a line of text, to read and to compare.
//!
//! A transcript is JSON, one object a line:
//!
//! | key | what it is |
//! |---|---|
//! | `seq` | number of the line, from 0; calls are written when they return |
//! | `name` | `HEADER`, `ENUMERATE`, `OPEN`, `CLOSE`, `MAP`, `RESET`, `TELEMETRY`, `EVENT`, or a system call: `MANAGE`, `CREATE_BO`, ... |
//! | `file` | which open file, counted from 0 |
//! | `fields` | what the call is given, by name; entries and transactions that the argument points to as well |
//! | `raw`, `data` | the same in hexadecimal digits: the argument, and what it points to |
//! | `answer`, `reply`, `data_reply` | the same after the call, where it answers something |
//! | `errno` | `null`, or the name of the error |
//!
//! Values that say something about one process only are left out, `"*"` by name and zeros in the bytes: process ids, host
//! addresses, descriptors. Data that cards fetch are there by length and checksum, of 64 MiB at most. Buffer objects are
//! memory and not system calls: their contents are not there.

mod errno;
mod hex;
mod layout;
mod log;
mod observed;
mod recording;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

pub use recording::Recording;

/// Version of the format, in the header.
const VERSION: u64 = 1;

/// A line of a transcript.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Line {
    seq: u64,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<u32>,
    fields: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    answer: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_reply: Option<String>,
    errno: Option<String>,
}

/// Errors that prevent writing a transcript.
#[derive(Debug, thiserror::Error)]
pub enum TranscriptError {
    /// The system refused a call.
    #[error("transcript {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Another process, or another recording in this process, writes the file.
    #[error(
        "transcript {}: another recording is writing it; `%p` in the name stands for the number of the process",
        path.display()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
}
