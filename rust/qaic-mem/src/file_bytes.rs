//! Bytes of a container: a mapped file, or a copy in memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::{Mmap, UncheckedAdvice};

use crate::MemoryError;

/// Minimum size of a mapped file. Smaller files are read, because mapping costs more than copying, and a copy cannot
/// shrink.
const READ_BELOW_BYTES: u64 = 1 << 20;

/// Flag that prevents waiting for the writer of a pipe; the value for Linux on x86-64 and AArch64.
const O_NONBLOCK: i32 = 0o4000;
const EINVAL: i32 = 22;

/// Opens a regular file for reading, without waiting for the writer of a pipe. Returns the file and its size in bytes.
///
/// A file that the kernel generates has the size 0 and may have no end, so the caller limits what it reads.
pub fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    if !metadata.is_file() {
        // The system's error for an operation that this kind of file does not support.
        return Err(io::Error::from_raw_os_error(EINVAL));
    }
    Ok((file, metadata.len()))
}

/// Read-only bytes with a stable address.
#[derive(Debug)]
pub enum FileBytes {
    /// A private read-only mapping. Truncating the file while it is mapped raises `SIGBUS` on access, as for any
    /// mapping; `mmap = false` avoids that.
    Mapped(Mmap),
    /// A copy in memory.
    Owned(Box<[u8]>),
}

impl FileBytes {
    /// Opens a file: maps it if `mmap` is true and the file is large, reads it otherwise.
    pub fn open(path: &Path, mmap: bool) -> Result<Self, MemoryError> {
        let failed = |source| MemoryError::Io { path: path.to_owned(), source: Arc::new(source) };
        let (file, size) = open_regular(path).map_err(failed)?;
        if mmap && size >= READ_BELOW_BYTES {
            // SAFETY: the mapping is private and read-only. If the file changes, the bytes change, and every
            // parser treats them as untrusted; truncation is the documented risk of this mode.
            let mapping = unsafe { Mmap::map(&file) }.map_err(failed)?;
            #[cfg(target_os = "linux")]
            if mapping.len() >= LARGE_BYTES {
                // A file that is not in memory is read into large pages. Advice: a failure only costs speed.
                let _ = mapping.advise(Advice::HugePage);
            }
            return Ok(Self::Mapped(mapping));
        }
        let mut bytes = Vec::new();
        let len_bytes = usize::try_from(size).unwrap_or(usize::MAX);
        bytes
            .try_reserve_exact(len_bytes)
            .map_err(|_| MemoryError::OutOfMemory { bytes: size, what: "the container" })?;
        file.take(size).read_to_end(&mut bytes).map_err(failed)?;
        Ok(Self::Owned(bytes.into_boxed_slice()))
    }
}

/// Smallest page size. If pages are larger, the system drops those that are entirely inside a range.
const PAGE_BYTES: usize = 4096;
/// Minimum size of a mapping that is worth the calls.
const LARGE_BYTES: usize = 64 << 20;

impl FileBytes {
    /// Returns true if the file is a large mapping, which [`FileBytes::let_go`] can release.
    pub fn is_let_go(&self) -> bool {
        matches!(self, Self::Mapped(mapping) if mapping.len() >= LARGE_BYTES)
    }

    /// Marks `part` of these bytes as not needed soon: the pages of a large mapping stop counting as memory
    /// of the process. Later reads load them from the file again. Bytes outside of the file are ignored.
    pub fn let_go(&self, part: &[u8]) {
        let Self::Mapped(mapping) = self else { return };
        if !self.is_let_go() {
            return;
        }
        let Some(Range { start, end }) = whole_pages(mapping, part) else { return };
        if start < end {
            // SAFETY: the mapping of the file is read-only, so its pages are unchanged and are loaded from
            // the file again; references to them stay valid.
            let advised =
                unsafe { mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            // Advice: a failure only delays the release of the memory.
            let _ = advised;
        }
    }
}

/// Returns the range of pages that are entirely within `part` of `whole`, counted from the first byte of
/// `whole`.
fn whole_pages(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len()).filter(|end| *end <= whole.len())?;
    Some(start.next_multiple_of(PAGE_BYTES)..end - end % PAGE_BYTES)
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(mapping) => mapping,
            Self::Owned(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::{env, process};

    use super::*;

    /// A sparse file that is removed on drop.
    struct Sparse(PathBuf);

    impl Sparse {
        /// `len` bytes, the first and the last of which are 7.
        fn new(name: &str, len: u64) -> Self {
            let path = env::temp_dir().join(format!("file-bytes-{name}-{}", process::id()));
            let file = File::create(&path).unwrap();
            file.write_all_at(&[7], 0).unwrap();
            file.write_all_at(&[7], len - 1).unwrap();
            Self(path)
        }

        fn open(&self, mmap: bool) -> FileBytes {
            let bytes = FileBytes::open(&self.0, mmap).unwrap();
            let len = usize::try_from(fs::metadata(&self.0).unwrap().len()).unwrap();
            assert_eq!((bytes.len(), bytes[0], bytes[1], bytes[len - 1]), (len, 7, 0, 7));
            bytes
        }
    }

    impl Drop for Sparse {
        fn drop(&mut self) {
            fs::remove_file(&self.0).unwrap();
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens files")]
    fn file_that_the_kernel_generates_is_not_read_without_end() {
        let bytes = FileBytes::open(Path::new("/proc/self/pagemap"), true).unwrap();
        assert!(bytes.is_empty());
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens files")]
    fn file_is_mapped_from_a_size_on_and_where_the_caller_asks() {
        let (small, large) =
            (Sparse::new("small", READ_BELOW_BYTES - 1), Sparse::new("large", READ_BELOW_BYTES));
        assert!(matches!(small.open(true), FileBytes::Owned(_)));
        assert!(matches!(large.open(false), FileBytes::Owned(_)));
        assert!(matches!(large.open(true), FileBytes::Mapped(_)));
        assert!(!large.open(true).is_let_go());
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens files")]
    fn large_mapping_that_was_let_go_reads_the_same() {
        let below = Sparse::new("below", LARGE_BYTES as u64 - 1);
        assert!(!below.open(true).is_let_go());
        let file = Sparse::new("let-go", LARGE_BYTES as u64);
        let bytes = file.open(true);
        assert!(bytes.is_let_go());
        bytes.let_go(&bytes);
        bytes.let_go(&bytes[1..PAGE_BYTES]);
        bytes.let_go(&[7; 8]);
        assert_eq!((bytes[0], bytes[PAGE_BYTES], bytes[bytes.len() - 1]), (7, 0, 7));
    }

    /// Returns a fact that the system reports about a mapping.
    #[cfg(target_os = "linux")]
    fn fact(bytes: &FileBytes, name: &str) -> String {
        let address = format!("{:x}-", bytes.as_ptr().addr());
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&address));
        lines.find_map(|line| line.strip_prefix(name)).unwrap().to_owned()
    }

    /// KiB of a mapping that count as memory of the process.
    #[cfg(target_os = "linux")]
    fn resident_kib(bytes: &FileBytes) -> u64 {
        fact(bytes, "Rss:").strip_suffix("kB").unwrap().trim().parse().unwrap()
    }

    /// The system records the advice even if no large page is available.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "opens files")]
    fn large_mapping_is_advised_to_be_read_into_large_pages() {
        if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        for (len, expected) in [(LARGE_BYTES - 1, false), (LARGE_BYTES, true)] {
            let file = Sparse::new(&format!("advised-{len}"), len as u64);
            let flags = fact(&file.open(true), "VmFlags:");
            assert_eq!(flags.split_whitespace().any(|flag| flag == "hg"), expected, "{flags}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "opens files")]
    fn part_that_was_let_go_and_nothing_else_leaves_the_memory_of_the_process() {
        // A large page leaves the memory as a whole.
        const PART: usize = 2 << 20;
        let file = Sparse::new("resident", LARGE_BYTES as u64);
        let bytes = file.open(true);
        let touched = &bytes[PART..5 * PART];
        assert!(touched.iter().all(|byte| *byte == 0));
        let before = resident_kib(&bytes);
        assert!(before >= 8 << 10, "{before} KiB are resident");
        // Neither end is at a page boundary.
        bytes.let_go(&touched[PART - 1..=2 * PART]);
        assert_eq!(resident_kib(&bytes), before - (2 << 10));
        bytes.let_go(&touched[3 * PART..]);
        assert_eq!(resident_kib(&bytes), before - (4 << 10));
    }

    #[test]
    fn pages_that_are_let_go_lie_inside_the_part() {
        let memory = [0; 3 * PAGE_BYTES + 2];
        let (whole, page) = (&memory[1..], PAGE_BYTES);
        let pages = |part: Range<usize>| whole_pages(whole, &whole[part]);
        assert_eq!(pages(0..whole.len()), Some(0..3 * page));
        assert_eq!(pages(1..3 * page - 1), Some(page..2 * page));
        assert_eq!(pages(page..page + 1), Some(page..page));
        assert_eq!(whole_pages(whole, &memory), None);
        assert_eq!(whole_pages(&whole[..page], &whole[1..page - 1]), Some(page..0));
        assert_eq!(whole_pages(&whole[..page], &whole[1..=page]), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens files")]
    fn what_is_no_file_is_refused_by_its_path() {
        for path in ["/dev/null", "/", "/no/such/file"] {
            let Err(MemoryError::Io { path: found, .. }) = FileBytes::open(Path::new(path), true) else {
                panic!("{path} was opened")
            };
            assert_eq!(found, Path::new(path));
        }
    }
}
