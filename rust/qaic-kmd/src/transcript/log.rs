//! The file of a transcript: whole lines, each written at once, by one process.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use super::{Line, TranscriptError};
use crate::Errno;

/// A transcript that is being written.
#[derive(Debug)]
pub(super) struct Log {
    process_id: u32,
    state: Mutex<LogState>,
}

#[derive(Debug)]
struct LogState {
    file: File,
    seq: u64,
    failure: Option<io::Error>,
}

impl Log {
    /// Begins a transcript in place of what was there. `%p` in the name becomes the number of the process.
    ///
    /// Two processes must not write one file, so it is locked as long as this lives.
    pub(super) fn create(path: &Path) -> Result<(Self, PathBuf), TranscriptError> {
        let process_id = std::process::id();
        let path = PathBuf::from(path.to_string_lossy().replace("%p", &process_id.to_string()));
        let io = |source| TranscriptError::Io { path: path.clone(), source };
        let _reader = read_pipe(&path).map_err(io)?;
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(TranscriptError::Busy { path }),
            // Not every file system can.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        // A pipe or a terminal is as good as a file, and has no length.
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            file.set_len(0).map_err(io)?;
        }
        Ok((Self { process_id, state: Mutex::new(LogState { file, seq: 0, failure: None }) }, path))
    }

    /// Adds a line, and gives it its number. After a line that could not be written come no more, because a transcript with
    /// a gap is none.
    ///
    /// A forked process has this, too, but what it does is not what the transcript is of.
    pub(super) fn write(&self, mut line: Line) {
        // Before the lock: a thread that held it when the process was forked does not exist here.
        if std::process::id() != self.process_id {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.failure.is_some() {
            return;
        }
        line.seq = state.seq;
        let written = serde_json::to_vec(&line).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            state.file.write_all(&bytes)
        });
        match written {
            Ok(()) => state.seq += 1,
            Err(error) => state.failure = Some(error),
        }
    }

    /// Why no more lines are written, when that is so.
    pub(super) fn failure(&self) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failure.as_ref().map(ToString::to_string)
    }
}

/// A named pipe without a reader is refused, because opening it would wait for one, which may never come. Nothing for
/// other files. The result is kept until the file is open.
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
