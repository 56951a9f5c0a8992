//! Memory of an emulated card: sparse, keyed by device addresses, and bounded.
//!
//! Each activation has its own memory, as with the address translation of a card. All activations of a card share one
//! budget, so that no program can exhaust the host's memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE_BYTES: usize = 1 << 16;
static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Error: there is no memory left for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFull;

/// The budget of a card's memory.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    free_bytes: Arc<AtomicU64>,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { free_bytes: Arc::new(AtomicU64::new(bytes)) }
    }

    fn take(&self) -> Result<(), MemoryFull> {
        let take = |free: u64| free.checked_sub(PAGE_BYTES as u64);
        self.free_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map(|_| ())
            .map_err(|_| MemoryFull)
    }

    fn give_back(&self, pages: usize) {
        self.free_bytes.fetch_add((pages * PAGE_BYTES) as u64, Ordering::Relaxed);
    }
}

/// Memory of the device in the address space of one activation. Unwritten memory reads as zeros.
pub struct DeviceMemory {
    pages: HashMap<u64, Box<[u8]>>,
    budget: Budget,
}

impl DeviceMemory {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { pages: HashMap::new(), budget }
    }

    /// Creates memory without a card, for tests of a [`crate::workload::Workload`]; `limit_bytes` is counted in whole
    /// pages.
    pub fn detached(limit_bytes: u64) -> Self {
        Self::new(Budget::new(limit_bytes))
    }

    /// Copies bytes from the device. Addresses wrap around to 0.
    pub fn read(&self, address: u64, into: &mut [u8]) {
        for chunk in chunks(address, into.len()) {
            into[chunk.done..][..chunk.len].copy_from_slice(self.chunk(&chunk));
        }
    }

    /// Copies bytes to the device. After `MemoryFull`, some of them may have been copied.
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), MemoryFull> {
        for chunk in chunks(address, from.len()) {
            self.chunk_mut(&chunk)?.copy_from_slice(&from[chunk.done..][..chunk.len]);
        }
        Ok(())
    }

    /// Passes a range to `take` piece by piece, with the offset of each piece in the range.
    pub fn read_pieces<E>(
        &self,
        address: u64,
        len: usize,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        chunks(address, len).try_for_each(|chunk| take(chunk.done, self.chunk(&chunk)))
    }

    /// Writes a range with `fill` piece by piece, which receives the offset of each piece in the range.
    pub fn write_pieces<E: From<MemoryFull>>(
        &mut self,
        address: u64,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for chunk in chunks(address, len) {
            fill(chunk.done, self.chunk_mut(&chunk)?)?;
        }
        Ok(())
    }

    fn chunk(&self, chunk: &Chunk) -> &[u8] {
        let page = self.pages.get(&chunk.page).map_or(&ZEROS[..], |page| page);
        &page[chunk.offset..][..chunk.len]
    }

    fn chunk_mut(&mut self, chunk: &Chunk) -> Result<&mut [u8], MemoryFull> {
        let page = match self.pages.entry(chunk.page) {
            Entry::Occupied(page) => page.into_mut(),
            Entry::Vacant(place) => {
                self.budget.take()?;
                place.insert(vec![0; PAGE_BYTES].into_boxed_slice())
            }
        };
        Ok(&mut page[chunk.offset..][..chunk.len])
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.budget.give_back(self.pages.len());
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("pages", &self.pages.len()).finish_non_exhaustive()
    }
}

/// A part of a range that is within one page.
struct Chunk {
    page: u64,
    offset: usize,
    len: usize,
    /// Number of bytes of the range before the part.
    done: usize,
}

fn chunks(address: u64, len: usize) -> impl Iterator<Item = Chunk> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = address.wrapping_add(done as u64);
        // Below the page size, so the cast loses no bits.
        #[allow(clippy::cast_possible_truncation)]
        let offset = (at % PAGE_BYTES as u64) as usize;
        let chunk =
            Chunk { page: at / PAGE_BYTES as u64, offset, len: (len - done).min(PAGE_BYTES - offset), done };
        done += chunk.len;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const BUDGET_PAGES: u64 = 5;

    /// Ranges at and across page boundaries, and at both ends of the address space.
    fn ranges() -> impl Strategy<Value = (u64, usize)> {
        let begins = prop::sample::select(vec![0, 0x8000_0000, u64::MAX - 0xFFFF, 0x12_3456_0000]);
        (begins, 0..0x2_0000_u64, 0..0x1_2000_usize)
            .prop_map(|(begin, offset, len)| (begin.wrapping_add(offset), len))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Compares the memory with a map of single bytes: written bytes are read back, others are zero, and the
        /// budget is never exceeded.
        #[test]
        fn memory_written_anywhere_reads_the_same_bytes(steps in prop::collection::vec((any::<bool>(), ranges(), 1..=255_u8), 1..8)) {
            let budget = Budget::new(BUDGET_PAGES * PAGE_BYTES as u64);
            let mut memory = DeviceMemory::new(budget.clone());
            let mut model = BTreeMap::new();
            for (is_write, (address, len), seed) in steps {
                if is_write {
                    let bytes: Vec<u8> = (1..=251).cycle().map(|at: u8| at.wrapping_mul(seed)).take(len).collect();
                    if memory.write(address, &bytes).is_err() {
                        prop_assert!(memory.pages.len() as u64 == BUDGET_PAGES);
                        return Ok(());
                    }
                    for (at, byte) in (0..).zip(bytes) {
                        model.insert(address.wrapping_add(at), byte);
                    }
                } else {
                    let mut bytes = vec![0xEE; len];
                    memory.read(address, &mut bytes);
                    for (at, byte) in (0..).zip(bytes) {
                        prop_assert_eq!(byte, model.get(&address.wrapping_add(at)).copied().unwrap_or(0));
                    }
                }
                prop_assert!(memory.pages.len() as u64 <= BUDGET_PAGES);
            }
            drop(memory);
            prop_assert_eq!(budget.free_bytes.load(Ordering::Relaxed), BUDGET_PAGES * PAGE_BYTES as u64);
        }
    }

    #[test]
    fn budget_of_two_memories_is_shared() {
        let budget = Budget::new(2 * PAGE_BYTES as u64);
        let (mut first, mut second) = (DeviceMemory::new(budget.clone()), DeviceMemory::new(budget));
        assert_eq!(first.write(0, &[1]), Ok(()));
        assert_eq!(second.write(0, &[2]), Ok(()));
        assert_eq!(second.write(PAGE_BYTES as u64 - 1, &[3, 3]), Err(MemoryFull));
        drop(first);
        assert_eq!(second.write(PAGE_BYTES as u64 - 1, &[3, 3]), Ok(()));
        let mut byte = [0];
        second.read(0, &mut byte);
        assert_eq!(byte, [2]);
    }
}
