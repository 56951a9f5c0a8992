//! A split virtqueue, from the side of the device.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use super::guest_memory::GuestMemory;

const DESCRIPTOR_BYTES: u64 = 16;
const NEXT: u16 = 1;
const WRITABLE: u16 = 2;
const NO_INTERRUPT: u16 = 1;

/// A queue of the guest.
#[derive(Debug, Default)]
pub(super) struct Virtqueue {
    /// Number of elements, a power of two; 0 before the guest has set it.
    pub(super) size: u16,
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
    pub(super) next_available: u16,
    next_used: u16,
    /// Notifies the guest of used buffers.
    pub(super) call: Option<OwnedFd>,
}

/// A buffer of the guest: the locations of its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    head: u16,
    readable: Vec<(u64, u32)>,
    writable: Vec<(u64, u32)>,
}

impl Virtqueue {
    /// Returns true if a buffer has not been taken.
    pub(super) fn has_next(&self, memory: &GuestMemory) -> bool {
        let index = self.available.checked_add(2).and_then(|at| memory.u16(at));
        self.size > 0 && index.is_some_and(|index| index != self.next_available)
    }

    /// Takes the next buffer that the guest made available. An invalid chain is treated as empty.
    pub(super) fn pop(&mut self, memory: &GuestMemory) -> Option<Chain> {
        if !self.has_next(memory) {
            return None;
        }
        // The entry was written before the index.
        fence(Ordering::Acquire);
        let at = u64::from(self.next_available % self.size);
        let head = memory.u16(self.available.checked_add(4 + 2 * at)?)?;
        self.next_available = self.next_available.wrapping_add(1);
        let mut chain = Chain { head, ..Chain::default() };
        if self.follow(memory, &mut chain).is_none() {
            chain = Chain { head, ..Chain::default() };
        }
        Some(chain)
    }

    fn follow(&self, memory: &GuestMemory, chain: &mut Chain) -> Option<()> {
        let mut number = chain.head;
        for _ in 0..self.size {
            if number >= self.size {
                return None;
            }
            let at = self.descriptors.checked_add(DESCRIPTOR_BYTES * u64::from(number))?;
            let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = memory.array(at)?;
            let address = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
            let part = (address, u32::from_le_bytes([l0, l1, l2, l3]));
            let flags = u16::from_le_bytes([f0, f1]);
            if flags & WRITABLE == 0 { &mut chain.readable } else { &mut chain.writable }.push(part);
            if flags & NEXT == 0 {
                return Some(());
            }
            number = u16::from_le_bytes([n0, n1]);
        }
        None
    }

    /// Returns a buffer to the guest, with this number of written bytes.
    pub(super) fn push(&mut self, memory: &GuestMemory, chain: &Chain, written: u32) -> Option<()> {
        let at = self.used.checked_add(4 + 8 * u64::from(self.next_used % self.size.max(1)))?;
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(chain.head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        memory.write(at, &entry)?;
        // The entry is written before the index that announces it.
        fence(Ordering::SeqCst);
        self.next_used = self.next_used.wrapping_add(1);
        memory.write(self.used.checked_add(2)?, &self.next_used.to_le_bytes())
    }

    /// Notifies the guest of used buffers, unless it suppresses notifications.
    pub(super) fn notify(&self, memory: &GuestMemory) -> Option<()> {
        fence(Ordering::SeqCst);
        if memory.u16(self.available)? & NO_INTERRUPT == 0
            && let Some(call) = &self.call
        {
            // A full pipe already contains a notification.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
        Some(())
    }
}

impl Chain {
    /// Returns the bytes that the guest wrote, at most `limit`.
    pub(super) fn read(&self, memory: &GuestMemory, limit: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for (address, len) in &self.readable {
            let (begin, len) = (bytes.len(), usize::try_from(*len).ok()?);
            if begin + len > limit {
                return None;
            }
            bytes.resize(begin + len, 0);
            memory.read(*address, &mut bytes[begin..])?;
        }
        Some(bytes)
    }

    /// Writes to the guest as much as fits; returns the number of bytes.
    pub(super) fn write(&self, memory: &GuestMemory, mut bytes: &[u8]) -> Option<u32> {
        let mut written = 0;
        for (address, len) in &self.writable {
            let len = bytes.len().min(usize::try_from(*len).ok()?);
            let (now, later) = bytes.split_at(len);
            memory.write(*address, now)?;
            written += u32::try_from(len).ok()?;
            bytes = later;
        }
        Some(written)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::super::guest_memory::RegionLayout;
    use super::*;

    const SIZE: u16 = 4;

    fn memory() -> GuestMemory {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x4000).unwrap();
        let mut memory = GuestMemory::default();
        memory.add(RegionLayout { address: 0, bytes: 0x4000, file_offset: 0 }, &file).unwrap();
        memory
    }

    fn queue() -> Virtqueue {
        Virtqueue { size: SIZE, descriptors: 0, available: 0x1000, used: 0x2000, ..Virtqueue::default() }
    }

    fn describe(memory: &GuestMemory, number: u16, address: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        memory.write(u64::from(number) * DESCRIPTOR_BYTES, &bytes).unwrap();
    }

    fn make_available(memory: &GuestMemory, index: u16, head: u16) {
        memory.write(0x1004 + 2 * u64::from(index % SIZE), &head.to_le_bytes()).unwrap();
        memory.write(0x1002, &(index.wrapping_add(1)).to_le_bytes()).unwrap();
    }

    #[test]
    fn buffers_come_in_order_and_go_back_with_what_was_written() {
        let (memory, mut queue) = (memory(), queue());
        assert_eq!(queue.pop(&memory), None);
        memory.write(0x3000, b"abcdef").unwrap();
        // Indices wrap around after 65,535.
        (queue.next_available, queue.next_used) = (u16::MAX, u16::MAX);
        memory.write(0x1002, &u16::MAX.to_le_bytes()).unwrap();
        for round in 0..6_u16 {
            describe(&memory, 2, 0x3000, 4, NEXT, 1);
            describe(&memory, 1, 0x3004, 2, NEXT, 3);
            describe(&memory, 3, 0x3100, 3, WRITABLE, 0);
            let index = u16::MAX.wrapping_add(round);
            make_available(&memory, index, 2);
            let chain = queue.pop(&memory).unwrap();
            assert_eq!(chain.read(&memory, 6).unwrap(), b"abcdef");
            assert_eq!(chain.read(&memory, 5), None);
            assert_eq!(chain.write(&memory, b"12345"), Some(3));
            assert_eq!(memory.array(0x3100), Some(*b"123\0"));
            assert_eq!(queue.push(&memory, &chain, 3), Some(()));
            queue.notify(&memory).unwrap();
            let used = memory.array::<8>(0x2004 + 8 * u64::from(index % SIZE));
            assert_eq!(used, Some([2, 0, 0, 0, 3, 0, 0, 0]));
            assert_eq!(memory.u16(0x2002), Some(round));
            assert_eq!(queue.pop(&memory), None);
        }
    }

    proptest! {
        /// For any contents of the guest's memory, there is no panic and no endless chain, and every buffer can be returned.
        #[test]
        fn queue_in_memory_of_any_content_ends(
            bytes in prop::collection::vec(prop::sample::select(vec![0_u8, 1, 2, 3, 4, 0x30, 0xFF]), 0x40),
            index in 0..8_u16,
            descriptors in prop::sample::select(vec![0_u64, 0x3FF8, u64::MAX - 3]),
        ) {
            let memory = memory();
            memory.write(0, &bytes).unwrap();
            memory.write(0x1004, &bytes[..16]).unwrap();
            memory.write(0x1002, &index.to_le_bytes()).unwrap();
            let mut queue = Virtqueue { descriptors, ..queue() };
            for _ in 0..index {
                let chain = queue.pop(&memory).unwrap();
                prop_assert!(chain.readable.len() + chain.writable.len() <= usize::from(SIZE));
                let _ = (chain.read(&memory, 1 << 16), chain.write(&memory, &[1; 99]));
                prop_assert!(queue.push(&memory, &chain, 0).is_some());
            }
            prop_assert_eq!(queue.pop(&memory), None);
        }
    }
}
