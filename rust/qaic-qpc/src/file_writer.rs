//! Containers written to a file in blocks, so that constants of any size need little memory.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use thiserror::Error;

use crate::bytes::to_u64;
use crate::chunked_file::ChunkedFile;
use crate::crc::Crc32;
use crate::error::QpcError;
use crate::writer::{Layout, SegmentSpec};

/// Number of bytes that are summed and copied at a time, so that they stay in the cache.
const STEP_BYTES: usize = 1 << 20;
/// Most threads that compute blocks; each holds one block in memory.
const MOST_THREADS: usize = 8;

/// Reason why a container was not written.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the fields are in the messages
pub enum FileWriterError {
    /// The layout is impossible for a container.
    #[error(transparent)]
    Layout(#[from] QpcError),
    /// The file could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A block could not be computed, because its source could not be read.
    #[error(transparent)]
    Source(io::Error),
    /// The layout has no such segment.
    #[error("the container has no segment {name}")]
    NoSegment { name: String },
    /// The data exceed the size of the segment in the layout.
    #[error("segment {name} has room for {room} more bytes, found {given}")]
    NoRoom { name: String, room: u64, given: u64 },
    /// A segment is incomplete.
    #[error("segment {name} has {written} of {size} bytes")]
    Incomplete { name: String, written: u64, size: u64 },
    /// Another program changed the file.
    #[error("the file has {found} bytes, expected {planned}")]
    FileSize { found: u64, planned: u64 },
}

/// Writes a container with a fixed layout: the segments and their sizes are given at the start. Dropping the writer
/// before [`FileWriter::finish`] removes the file.
#[derive(Debug)]
pub struct FileWriter {
    /// Path of the file.
    pub path: PathBuf,
    file: ChunkedFile,
    segments: Vec<Segment>,
    is_finished: bool,
}

#[derive(Debug)]
struct Segment {
    spec: SegmentSpec,
    start: u64,
    written: u64,
    crc: Crc32,
}

impl FileWriter {
    /// Creates the file with the segments in the order of the table, in the layout [`Layout::in_memory`]. `path` must
    /// not exist.
    pub fn create(path: &Path, specs: Vec<SegmentSpec>, alignment: u64) -> Result<Self, FileWriterError> {
        let layout = Layout::in_memory(&specs, alignment)?;
        let created = OpenOptions::new().write(true).create_new(true).open(path)?;
        let segments: Vec<_> = specs
            .into_iter()
            .zip(&layout.payload_starts)
            .map(|(spec, &start)| Segment { spec, start, written: 0, crc: Crc32::default() })
            .collect();
        let file = ChunkedFile::new(created, layout.total_size);
        let writer = Self { path: path.to_owned(), file, segments, is_finished: false };
        writer.file.file.set_len(layout.total_size)?;
        writer.file.write(0, &layout.head)?;
        writer.write_gaps(to_u64(layout.head.len()))?;
        Ok(writer)
    }

    /// Appends blocks to the payload of segment `name`; `blocks` are their sizes in bytes.
    ///
    /// `fill(index, block)` computes a block, several of them concurrently, and may fail if it reads a source.
    pub fn append(
        &mut self,
        name: &str,
        blocks: &[usize],
        fill: impl Fn(usize, &mut [u8]) -> io::Result<()> + Sync,
    ) -> Result<(), FileWriterError> {
        let segment = self.segments.iter_mut().find(|segment| segment.spec.name == name);
        let segment = segment.ok_or_else(|| no_segment(name))?;
        let room = segment.spec.size.saturating_sub(segment.written);
        let given = blocks.iter().fold(0_u64, |sum, &size| sum.saturating_add(to_u64(size)));
        if given > room {
            return Err(FileWriterError::NoRoom { name: name.to_owned(), room, given });
        }
        let next = AtomicUsize::new(0);
        let work = Work { file: &self.file, blocks, at: segment.start.saturating_add(segment.written), next };
        let available = thread::available_parallelism().map_or(1, usize::from);
        let helpers = available.min(MOST_THREADS).min(blocks.len()).saturating_sub(1);
        let mut sums = thread::scope(|scope| {
            let threads: Vec<_> = (0..helpers).map(|_| scope.spawn(|| work.run(&fill))).collect();
            let mut sums = work.run(&fill);
            for thread in threads {
                let more = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                sums = sums.and_then(|mut sums| {
                    sums.extend(more?);
                    Ok(sums)
                });
            }
            sums
        })?;
        sums.sort_unstable_by_key(|&(index, _)| index);
        for (_, crc) in &sums {
            segment.crc.append(crc);
        }
        segment.written = segment.written.saturating_add(given);
        Ok(())
    }

    /// Writes zeros between payloads. `at` is the end of the head.
    fn write_gaps(&self, mut at: u64) -> io::Result<()> {
        let payloads = self.segments.iter().map(|segment| (segment.start, segment.spec.size));
        for (start, size) in payloads.chain([(self.file.total_bytes, 0)]) {
            let gap = usize::try_from(start.saturating_sub(at)).unwrap_or_default();
            self.file.write(at, &vec![0; gap])?;
            at = start.saturating_add(size);
        }
        Ok(())
    }

    /// CRC-32 of the bytes written to segment `name` so far.
    pub fn crc32(&self, name: &str) -> Result<u32, FileWriterError> {
        let segment = self.segments.iter().find(|segment| segment.spec.name == name);
        segment.map(|segment| segment.crc.value()).ok_or_else(|| no_segment(name))
    }

    /// Checks that every segment is complete, and keeps the file.
    ///
    /// Does not wait for the disk: a container can be compiled again, and CRCs reveal a file that a crash truncated.
    pub fn finish(&mut self) -> Result<(), FileWriterError> {
        if let Some(Segment { spec, written, .. }) =
            self.segments.iter().find(|segment| segment.written != segment.spec.size)
        {
            let (name, size) = (spec.name.clone(), spec.size);
            return Err(FileWriterError::Incomplete { name, written: *written, size });
        }
        let (found, planned) = (self.file.file.metadata()?.len(), self.file.total_bytes);
        if found != planned {
            return Err(FileWriterError::FileSize { found, planned });
        }
        self.is_finished = true;
        Ok(())
    }
}

/// Blocks that threads compute and write.
struct Work<'a> {
    file: &'a ChunkedFile,
    blocks: &'a [usize],
    /// Position of the first block in the file.
    at: u64,
    /// The block that the next idle thread takes.
    next: AtomicUsize,
}

impl Work<'_> {
    /// Computes and writes blocks until none is left. Returns the indices of these blocks and their CRCs.
    fn run(
        &self,
        fill: impl Fn(usize, &mut [u8]) -> io::Result<()>,
    ) -> Result<Vec<(usize, Crc32)>, FileWriterError> {
        let (mut buffer, mut sums) = (Vec::new(), Vec::new());
        let mut at = self.at;
        let mut index = 0;
        loop {
            let taken = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&size) = self.blocks.get(taken) else { return Ok(sums) };
            let skipped = self.blocks.get(index..taken).unwrap_or_default();
            at = skipped.iter().fold(at, |at, &size| at.saturating_add(to_u64(size)));
            index = taken;
            buffer.resize(size, 0);
            let written = fill(index, &mut buffer)
                .map_err(FileWriterError::Source)
                .and_then(|()| Ok(self.write(at, &buffer)?));
            match written {
                Ok(crc) => sums.push((index, crc)),
                Err(error) => {
                    // The other threads stop too.
                    self.next.store(self.blocks.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    }

    fn write(&self, mut at: u64, block: &[u8]) -> io::Result<Crc32> {
        let mut crc = Crc32::default();
        for step in block.chunks(STEP_BYTES) {
            crc.update(step);
            self.file.write(at, step)?;
            at = at.saturating_add(to_u64(step.len()));
        }
        Ok(crc)
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            // Removes the incomplete file; a failure is not reported.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn no_segment(name: &str) -> FileWriterError {
    FileWriterError::NoSegment { name: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{SegmentData, build_in_memory};

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("openqaic-file-writer-{name}-{}", std::process::id()))
    }

    fn specs(sizes: &[(&str, usize)]) -> Vec<SegmentSpec> {
        let spec = |&(name, size): &(&str, usize)| SegmentSpec {
            name: name.to_owned(),
            size: to_u64(size),
            offset: 0,
        };
        sizes.iter().map(spec).collect()
    }

    fn append(writer: &mut FileWriter, name: &str, bytes: &[u8]) -> Result<(), FileWriterError> {
        writer.append(name, &[bytes.len()], |_, block| {
            block.copy_from_slice(bytes);
            Ok(())
        })
    }

    #[test]
    fn container_written_in_pieces_is_the_one_built_in_memory() {
        let path = path("pieces");
        let large: Vec<u8> = (0..5 * STEP_BYTES + 77).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut writer =
            FileWriter::create(&path, specs(&[("a", 5), ("large", large.len()), ("none", 0)]), 64).unwrap();
        let (first, second) = large.split_at(3 * STEP_BYTES + 3);
        append(&mut writer, "large", first).unwrap();
        append(&mut writer, "a", b"hello").unwrap();
        append(&mut writer, "large", second).unwrap();
        let crc = |bytes| {
            let mut crc = Crc32::default();
            crc.update(bytes);
            crc.value()
        };
        assert_eq!(
            (writer.crc32("a").unwrap(), writer.crc32("large").unwrap()),
            (crc(b"hello"), crc(&large))
        );
        writer.finish().unwrap();
        drop(writer);
        let data = |name, payload| SegmentData { name, offset: 0, payload };
        let expected =
            build_in_memory(&[data("a", b"hello"), data("large", &large), data("none", b"")], 64).unwrap();
        assert!(fs::read(&path).unwrap() == expected);
        let taken = FileWriter::create(&path, specs(&[]), 64).unwrap_err();
        assert!(matches!(taken, FileWriterError::Io(error) if error.kind() == io::ErrorKind::AlreadyExists));
        assert!(fs::read(&path).unwrap() == expected, "a file that was there stays as it is");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn blocks_of_any_sizes_are_the_bytes_written_at_once() {
        let path = path("blocks");
        let sizes = [3, 0, 3 * STEP_BYTES + 5, 1, 70_000, 2, 9, 400];
        let total: usize = sizes.iter().sum();
        let bytes: Vec<u8> = (0..total).map(|at| u8::try_from(at * 7 % 253).unwrap()).collect();
        let starts: Vec<usize> = (0..sizes.len()).map(|index| sizes[..index].iter().sum()).collect();
        let mut writer = FileWriter::create(&path, specs(&[("a", 1), ("b", 1 + total)]), 64).unwrap();
        append(&mut writer, "a", b"x").unwrap();
        append(&mut writer, "b", b"y").unwrap();
        writer
            .append("b", &sizes, |index, block| {
                block.copy_from_slice(&bytes[starts[index]..starts[index] + sizes[index]]);
                Ok(())
            })
            .unwrap();
        let payload = [b"y".as_slice(), &bytes].concat();
        assert_eq!(writer.crc32("b").unwrap(), crate::crc::crc32(&payload));
        writer.finish().unwrap();
        let data = |name, payload| SegmentData { name, offset: 0, payload };
        let expected = build_in_memory(&[data("a", b"x"), data("b", &payload)], 64).unwrap();
        assert!(fs::read(&path).unwrap() == expected);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn source_that_fails_leaves_the_segment_incomplete() {
        let path = path("source");
        let mut writer = FileWriter::create(&path, specs(&[("a", 30)]), 64).unwrap();
        let failed = writer.append("a", &[10, 10, 10], |index, block| {
            block.fill(1);
            if index == 1 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
        });
        let Err(FileWriterError::Source(error)) = failed else { panic!("{failed:?}") };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(writer.finish().unwrap_err().to_string(), "segment a has 0 of 30 bytes");
        drop(writer);
        assert!(!path.exists());
    }

    #[test]
    fn container_that_is_not_finished_leaves_no_file() {
        let path = path("unfinished");
        let mut writer = FileWriter::create(&path, specs(&[("a", 5)]), 64).unwrap();
        append(&mut writer, "a", b"hell").unwrap();
        let said = |outcome: Result<(), FileWriterError>| outcome.unwrap_err().to_string();
        let text = "segment a has room for 1 more bytes, found 2";
        assert_eq!(said(append(&mut writer, "a", b"oo")), text);
        assert_eq!(said(append(&mut writer, "b", b"")), "the container has no segment b");
        assert_eq!(writer.crc32("b").unwrap_err().to_string(), "the container has no segment b");
        assert_eq!(said(writer.finish()), "segment a has 4 of 5 bytes");
        append(&mut writer, "a", b"o").unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1).unwrap();
        let total_bytes = writer.file.total_bytes;
        assert_eq!(said(writer.finish()), format!("the file has 1 bytes, expected {total_bytes}"));
        assert!(writer.path.exists());
        drop(writer);
        assert!(!path.exists());
        assert!(FileWriter::create(&path, specs(&[("a", 1), ("a", 1)]), 64).is_err() && !path.exists());
    }
}
