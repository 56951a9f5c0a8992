//! A file of known size that is written in aligned chunks.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bytes::{range_within, to_u64};

/// Number of bytes of a chunk. Linux keeps a chunk that is written at once in one large page on some file systems, and
/// maps this page as a whole.
const CHUNK_BYTES: u64 = 2 << 20;

/// A file whose chunks are written as soon as all of their bytes are known.
#[derive(Debug)]
pub(crate) struct ChunkedFile {
    pub(crate) file: File,
    pub(crate) total_bytes: u64,
    chunks: Mutex<Chunks>,
}

#[derive(Debug, Default)]
struct Chunks {
    /// Position of each chunk of which only a part is known -> the chunk.
    incomplete: HashMap<u64, Chunk>,
    /// Memory of chunks that were written. New memory would cost page faults.
    unused: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    /// Number of known bytes.
    known: usize,
}

impl ChunkedFile {
    pub(crate) fn new(file: File, total_bytes: u64) -> Self {
        Self { file, total_bytes, chunks: Mutex::default() }
    }

    /// Takes bytes at a position, and writes the chunks that they complete. Each byte of the file is taken once. Bytes
    /// beyond its end are ignored.
    pub(crate) fn write(&self, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
        while at < self.total_bytes && !bytes.is_empty() {
            let start = at.saturating_sub(at % CHUNK_BYTES);
            let end = start.saturating_add(CHUNK_BYTES).min(self.total_bytes);
            let room = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
            let (part, rest) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            if let Some(chunk) = self.completed(start..end, at, part) {
                self.file.write_all_at(&chunk, start)?;
                self.chunks().unused.push(chunk);
            }
            (at, bytes) = (end, rest);
        }
        Ok(())
    }

    /// Takes a part of the chunk at `range`. Returns the chunk if all of it is now known.
    fn completed(&self, range: Range<u64>, at: u64, part: &[u8]) -> Option<Vec<u8>> {
        let size = usize::try_from(range.end.saturating_sub(range.start)).ok()?;
        let place = range_within(size, at.saturating_sub(range.start), to_u64(part.len()))?;
        let Chunks { incomplete, unused } = &mut *self.chunks();
        let chunk = incomplete.entry(range.start).or_insert_with(|| {
            let mut bytes = unused.pop().unwrap_or_default();
            bytes.resize(size, 0);
            Chunk { bytes, known: 0 }
        });
        chunk.bytes.get_mut(place)?.copy_from_slice(part);
        chunk.known = chunk.known.saturating_add(part.len());
        if chunk.known < size {
            return None;
        }
        incomplete.remove(&range.start).map(|chunk| chunk.bytes)
    }

    fn chunks(&self) -> MutexGuard<'_, Chunks> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;

    #[test]
    fn chunk_is_written_at_once_when_its_last_bytes_are_known() {
        let path = std::env::temp_dir().join(format!("openqaic-chunked-file-{}", std::process::id()));
        let created = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        let chunk = usize::try_from(CHUNK_BYTES).unwrap();
        let bytes: Vec<u8> = (0..3 * chunk + 9).map(|at| u8::try_from(at % 250 + 1).unwrap()).collect();
        let file = ChunkedFile::new(created, to_u64(bytes.len()));
        let write = |range: Range<usize>| file.write(to_u64(range.start), &bytes[range]).unwrap();
        let written = || fs::read(&path).unwrap();
        write(chunk - 3..2 * chunk - 1);
        write(5..chunk - 3);
        assert_eq!(written(), b"");
        write(2 * chunk - 1..2 * chunk + 2);
        assert_eq!(written(), [&vec![0; chunk], &bytes[chunk..2 * chunk]].concat());
        write(0..5);
        assert_eq!(written(), bytes[..2 * chunk]);
        write(2 * chunk + 2..3 * chunk + 8);
        assert_eq!(written(), bytes[..3 * chunk]);
        file.write(to_u64(bytes.len() - 1), &[bytes[bytes.len() - 1], b'x', b'x']).unwrap();
        assert_eq!(written(), bytes);
        fs::remove_file(&path).unwrap();
    }
}
