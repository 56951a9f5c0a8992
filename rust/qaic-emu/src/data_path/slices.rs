//! Conversion of a buffer object's slices to elements of a ring.

use crate::data_path::pages::PAGE_BYTES;
use crate::options::Profile;
use crate::workload::Doorbell;
use qaic_kmd::Errno;
use qaic_kmd::abi::{AttachSliceEntry, DIR_TO_DEVICE, SEM_IN_SYNC_FENCE, SEM_OUT_SYNC_FENCE, Sem};

/// Maximum number of elements of a buffer object's slices, more than any ring has.
const MAX_ELEMENTS: u64 = 1 << 20;

/// The slices attached to a buffer object.
#[derive(Debug)]
pub(crate) struct Slices {
    pub(crate) to_device: bool,
    parts: Vec<Slice>,
}

#[derive(Debug)]
struct Slice {
    offset: u64,
    size: u64,
    fragments: Vec<Fragment>,
}

/// An element of the ring, without the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) host_offset: u64,
    pub(crate) dev_addr: u64,
    pub(crate) len: u32,
    pub(crate) sems: [Sem; 4],
    pub(crate) doorbell: Option<Doorbell>,
    /// True if the completion of this element completes the slice.
    pub(crate) ends_slice: bool,
}

impl Slices {
    /// Checks slices against the object's `size`, and splits them into fragments of `fragment_bytes`. Fails with
    /// `ENOSPC` if they do not fit a ring of `ring_size` elements.
    pub(crate) fn new(
        entries: &[AttachSliceEntry],
        dir: u32,
        size: u64,
        ring_size: u32,
        fragment_bytes: u64,
    ) -> Result<Self, Errno> {
        for entry in entries {
            check(entry, size)?;
        }
        let piece = fragment_bytes.clamp(1, u64::from(u32::MAX));
        // Counts the elements before any allocation.
        let elements = entries.iter().try_fold(0_u64, |sum, entry| {
            sum.checked_add(pieces(entry, piece)).filter(|sum| *sum <= MAX_ELEMENTS).ok_or(Errno::NOSPC)
        })?;
        if elements > u64::from(ring_size) {
            return Err(Errno::NOSPC);
        }
        let to_device = dir == DIR_TO_DEVICE;
        let parts = entries.iter().map(|entry| Slice::new(entry, to_device, piece)).collect();
        Ok(Self { to_device, parts })
    }

    /// Number of slices, each of which must complete.
    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    /// Number of ring elements of an execution of all bytes.
    pub(crate) fn elements(&self) -> u32 {
        let elements: usize = self.parts.iter().map(|slice| slice.fragments.len()).sum();
        u32::try_from(elements).unwrap_or(u32::MAX)
    }

    /// Adds the elements of an execution that transfers `resize` bytes, or all bytes for `None`.
    pub(crate) fn add_fragments(&self, resize: Option<u64>, profile: Profile, into: &mut Vec<Fragment>) {
        let Some(resize) = resize.filter(|resize| profile != Profile::Old || *resize > 0) else {
            into.extend(self.parts.iter().flat_map(|slice| &slice.fragments));
            return;
        };
        for slice in &self.parts {
            // Old kernels skip such a slice, and wait for it forever.
            if profile != Profile::Old || resize > slice.offset {
                slice.add_part(resize.saturating_sub(slice.offset).min(slice.size), into);
            }
        }
    }
}

impl Slice {
    fn new(entry: &AttachSliceEntry, to_device: bool, piece: u64) -> Self {
        let count = pieces(entry, piece);
        let has_presync = entry.sems.iter().any(|sem| sem.presync == 1);
        let doorbell = (entry.db_len != 0).then_some(Doorbell {
            address: entry.db_addr,
            data: entry.db_data,
            bits: entry.db_len,
        });
        let fragment = |index: u64| {
            let begin = index * piece;
            let is_last = index + 1 == count;
            let mut sems = entry.sems;
            if !is_last {
                for sem in sems.iter_mut().filter(|sem| sem.presync != 1) {
                    *sem = Sem::default();
                }
            } else if count > 1 && !has_presync {
                // The last fragment must not overtake the others.
                sems[0].flags |= if to_device { SEM_IN_SYNC_FENCE } else { SEM_OUT_SYNC_FENCE };
            }
            Fragment {
                host_offset: entry.offset + begin,
                dev_addr: entry.dev_addr.wrapping_add(begin),
                len: u32::try_from((entry.size - begin).min(piece)).unwrap_or(u32::MAX),
                sems,
                doorbell: doorbell.filter(|_| is_last),
                ends_slice: is_last,
            }
        };
        Self { offset: entry.offset, size: entry.size, fragments: (0..count).map(fragment).collect() }
    }

    /// Adds the elements that transfer the first `size` bytes: whole fragments, then one element with the remaining
    /// bytes, possibly none, which ends the slice.
    fn add_part(&self, size: u64, into: &mut Vec<Fragment>) {
        let Some((last, others)) = self.fragments.split_last() else { return };
        let mut begin = 0;
        for part in others {
            let end = begin + u64::from(part.len);
            if end >= size {
                break;
            }
            into.push(*part);
            begin = end;
        }
        let first = self.fragments.first().unwrap_or(last);
        into.push(Fragment {
            host_offset: self.offset + begin,
            dev_addr: first.dev_addr.wrapping_add(begin),
            len: u32::try_from(size - begin).unwrap_or(u32::MAX),
            ..*last
        });
    }
}

fn pieces(entry: &AttachSliceEntry, piece: u64) -> u64 {
    entry.size.div_ceil(piece).max(1)
}

fn check(entry: &AttachSliceEntry, size: u64) -> Result<(), Errno> {
    // The kernel searches for an entry of 0 bytes as if the entry had one page.
    let sought = if entry.size == 0 { PAGE_BYTES } else { entry.size };
    let is_inside = entry.offset.checked_add(sought).is_some_and(|end| end <= size);
    let is_doorbell = matches!(entry.db_len, 0 | 8 | 16 | 32)
        && (entry.db_len == 0 || entry.db_addr.is_multiple_of(u64::from(entry.db_len / 8)));
    let are_sems = entry.sems.iter().all(|sem| {
        sem.val <= 0xFFF
            && sem.index < 32
            && sem.presync <= 1
            && sem.cmd <= 6
            && sem.flags <= 3
            && sem.pad == 0
    });
    let presyncs = entry.sems.iter().filter(|sem| sem.presync == 1).count();
    if is_inside && is_doorbell && are_sems && presyncs <= 1 { Ok(()) } else { Err(Errno::INVAL) }
}
