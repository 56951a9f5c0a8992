//! Memory of the guest: files that the guest shares as descriptors, by its physical addresses.

use std::os::fd::AsFd;
use std::sync::Arc;

use qaic_emu::Pages;
use qaic_kmd::Errno;

/// A part of the guest's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionLayout {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Offset of the region in its file.
    pub(super) file_offset: u64,
}

/// All regions. Other processes can change them at any time, and their addresses are not trusted.
#[derive(Debug, Default)]
pub(super) struct GuestMemory {
    regions: Vec<(RegionLayout, Arc<Pages>)>,
}

impl GuestMemory {
    /// Maps another region.
    pub(super) fn add(&mut self, layout: RegionLayout, file: impl AsFd) -> Result<(), Errno> {
        let pages = Pages::import(file.as_fd())?;
        let is_inside = layout.file_offset.checked_add(layout.bytes).is_some_and(|end| end <= pages.bytes());
        if !is_inside || layout.address.checked_add(layout.bytes).is_none() {
            return Err(Errno::INVAL);
        }
        self.regions.push((layout, pages));
        Ok(())
    }

    /// The pages with a range of addresses, and the offset of the range; `None` if it is not in one region.
    pub(super) fn find(&self, address: u64, len: u64) -> Option<(&Arc<Pages>, u64)> {
        self.regions.iter().find_map(|(layout, pages)| {
            let at = address.checked_sub(layout.address)?;
            (at.checked_add(len)? <= layout.bytes).then(|| (pages, layout.file_offset + at))
        })
    }

    /// Copies from the guest; `None` if the guest has no memory there.
    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let (pages, offset) = self.find(address, into.len() as u64)?;
        pages.read(offset, into)
    }

    /// Copies to the guest; `None` if the guest has no memory there.
    pub(super) fn write(&self, address: u64, from: &[u8]) -> Option<()> {
        let (pages, offset) = self.find(address, from.len() as u64)?;
        pages.write(offset, from)
    }

    /// Bytes of the guest.
    pub(super) fn array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes)?;
        Some(bytes)
    }

    /// A word of the guest.
    pub(super) fn u16(&self, address: u64) -> Option<u16> {
        self.array(address).map(u16::from_le_bytes)
    }

    /// A word of the guest.
    pub(super) fn u64(&self, address: u64) -> Option<u64> {
        self.array(address).map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn addresses_outside_of_the_regions_have_no_memory() {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x4000).unwrap();
        let mut memory = GuestMemory::default();
        let layout = RegionLayout { address: 0x10_0000, bytes: 0x2000, file_offset: 0x1000 };
        memory.add(layout, &file).unwrap();
        assert_eq!(memory.write(0x10_0FFE, &[1, 2, 3, 4]), Some(()));
        assert_eq!(memory.array::<4>(0x10_0FFE), Some([1, 2, 3, 4]));
        let mut in_file = [0; 4];
        assert_eq!(rustix::io::pread(&file, &mut in_file, 0x1FFE), Ok(4));
        assert_eq!(in_file, [1, 2, 3, 4]);
        for address in [0xF_FFFF, 0x10_1FFD, 0x10_2000, u64::MAX - 1, 0] {
            assert_eq!(memory.array::<4>(address), None, "{address:#x}");
            assert_eq!(memory.write(address, &[0; 4]), None, "{address:#x}");
        }
        for (bytes, file_offset) in [(0x4000, 1), (u64::MAX, 1), (0x1000, u64::MAX)] {
            assert_eq!(memory.add(RegionLayout { address: 0, bytes, file_offset }, &file), Err(Errno::INVAL));
        }
    }
}
