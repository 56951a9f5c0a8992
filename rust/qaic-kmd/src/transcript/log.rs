//! The file of a transcript. One process writes it, one complete line at a time.

use std::fmt::Debug;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use super::{Line, TranscriptError};
use crate::Errno;

/// The destination of a transcript's lines.
pub(super) trait Sink: Write + Send + Debug {}

impl<T: Write + Send + Debug> Sink for T {}

/// A transcript that is being written.
#[derive(Debug)]
pub(super) struct Log {
    process_id: u32,
    warn: fn(&str),
    state: Mutex<LogState>,
}

#[derive(Debug)]
struct LogState {
    sink: Box<dyn Sink>,
    seq: u64,
    is_ended: bool,
}

impl Log {
    /// Starts a transcript and replaces the contents of the file. `%p` in the name is replaced with the process id.
    ///
    /// The file is locked as long as this object exists, because two processes must not write one file.
    pub(super) fn create(path: &Path, warn: fn(&str)) -> Result<Self, TranscriptError> {
        let path = PathBuf::from(path.to_string_lossy().replace("%p", &std::process::id().to_string()));
        let io = |source| TranscriptError::Io { path: path.clone(), source };
        let _reader = read_pipe(&path).map_err(io)?;
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(TranscriptError::Busy { path }),
            // Some file systems do not support locks.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        // A pipe or a terminal is allowed too, and has no length.
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            file.set_len(0).map_err(io)?;
        }
        Ok(Self::to(Box::new(file), warn))
    }

    /// Writes a transcript to `sink`.
    pub(super) fn to(sink: Box<dyn Sink>, warn: fn(&str)) -> Self {
        Self {
            process_id: std::process::id(),
            warn,
            state: Mutex::new(LogState { sink, seq: 0, is_ended: false }),
        }
    }

    /// Adds a line with its number. The first line that cannot be written ends the transcript, because a transcript
    /// with a gap is useless. `warn` then receives the reason once, and the recorded calls continue.
    ///
    /// A forked process also has this object, but its calls do not belong to the transcript.
    pub(super) fn write(&self, mut line: Line) {
        // Checked before the lock, which a thread of the parent may hold forever in a forked process.
        if std::process::id() != self.process_id {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_ended {
            return;
        }
        line.seq = state.seq;
        let written = serde_json::to_vec(&line).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            state.sink.write_all(&bytes)
        });
        match written {
            Ok(()) => state.seq += 1,
            Err(error) => {
                state.is_ended = true;
                let lines = state.seq;
                drop(state);
                (self.warn)(&format!(
                    "the transcript of system calls ends after {lines} lines, because a write failed: {error}"
                ));
            }
        }
    }
}

/// Refuses a named pipe without a reader, because opening it would wait for one. Returns `None` for other files. The
/// result must be kept until the file is open.
fn read_pipe(path: &Path) -> io::Result<Option<File>> {
    if !path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Ok(None);
    }
    match OpenOptions::new().write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
            Err(io::Error::other("it is a pipe without a reader"))
        }
        outcome => outcome.map(Some),
    }
}
