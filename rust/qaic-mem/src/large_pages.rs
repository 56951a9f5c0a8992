//! Memory for large data that is written once.
//!
//! Each page of new memory costs a page fault, which takes longer than filling a page of 4 KiB.

/// Minimum size of a mapping that is worth a system call.
const LARGE_BYTES: usize = 4 << 20;
#[cfg(all(target_os = "linux", not(miri)))]
const PAGE_BYTES: usize = 4096;

/// Reserves room for about `additional` more bytes, in large pages if the system supports them. Memory is used only
/// when it is written. If the memory cannot be reserved, `bytes` is unchanged.
pub fn reserve_large(bytes: &mut Vec<u8>, additional: usize) {
    if additional < LARGE_BYTES || bytes.try_reserve_exact(additional).is_err() {
        return;
    }
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        use rustix::mm::{Advice, madvise};

        let spare = bytes.spare_capacity_mut();
        let start = spare.as_mut_ptr().cast::<std::ffi::c_void>();
        let skipped = start.addr().next_multiple_of(PAGE_BYTES) - start.addr();
        let whole = spare.len().saturating_sub(skipped) / PAGE_BYTES * PAGE_BYTES;
        let first_page = start.wrapping_byte_add(skipped);
        // SAFETY: the range has whole pages within the spare capacity of `bytes`; the advice does not change
        // their contents.
        let _ = unsafe { madvise(first_page, whole, Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_of_room_keeps_the_content() {
        let mut bytes = b"kept".to_vec();
        reserve_large(&mut bytes, 3 * LARGE_BYTES);
        assert!(bytes.capacity() >= 3 * LARGE_BYTES);
        bytes.resize(2 * LARGE_BYTES, 7);
        assert_eq!(&bytes[..5], b"kept\x07");
        assert_eq!(bytes[2 * LARGE_BYTES - 1], 7);
    }

    #[test]
    fn reserve_beyond_the_memory_changes_nothing() {
        let mut bytes = b"kept".to_vec();
        reserve_large(&mut bytes, usize::MAX);
        assert_eq!(bytes, b"kept");
    }

    /// The system records the advice even if no large page is available.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn reserved_room_is_advised_to_be_in_large_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let mut bytes = Vec::new();
        reserve_large(&mut bytes, 3 * LARGE_BYTES);
        let middle = bytes.as_ptr().addr() + bytes.capacity() / 2;
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let is_of_middle = |line: &&str| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let [first, end] = range.map_or([None; 2], |(first, end)| {
                [first, end].map(|address| usize::from_str_radix(address, 16).ok())
            });
            first.is_some_and(|first| first <= middle) && end.is_some_and(|end| middle < end)
        };
        let mut lines = smaps.lines().skip_while(|line| !is_of_middle(line));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "hg"), "{flags}");
    }
}
