//! Transcripts: text files with one line for each system call of a run, for reading and for comparison.
//!
//! A transcript contains one JSON object per line:
//!
//! | key | value |
//! |---|---|
//! | `seq` | number of the line, from 0; calls are written when they return |
//! | `name` | `HEADER`, `ENUMERATE`, `OPEN`, `CLOSE`, `MAP`, `RESET`, `TELEMETRY`, `EVENT`, or a system call: `MANAGE`, `CREATE_BO`, ... |
//! | `file` | number of the open file, from 0 |
//! | `fields` | input of the call by name, including entries and transactions that the argument points to |
//! | `raw`, `data` | the same in hexadecimal digits: the argument, and the memory that it points to |
//! | `answer`, `reply`, `data_reply` | the same after the call, if it returns data |
//! | `errno` | `null`, or the name of the error |
//!
//! Process-specific values are replaced: process ids, host addresses and descriptors are `"*"` by name and zeros in
//! the bytes. Data that cards fetch are recorded as length and checksum, of at most 64 MiB. The contents of buffer
//! objects are not recorded, because accesses to them are not system calls.

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
        "transcript {}: another recording is writing it; `%p` in the name is replaced by the process id",
        path.display()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
}
