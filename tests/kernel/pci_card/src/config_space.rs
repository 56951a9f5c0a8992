//! The card's configuration space on the PCI bus, and its interrupts.

use qaic_emu::FirmwareConfig;

const CONFIG_BYTES: usize = 4096;
const VENDOR: u16 = 0x17CB;
const AIC100: u16 = 0xA100;
/// Processing accelerators.
const CLASS: u32 = 0x12_0000;
/// Sizes of the memory windows, by number; each has 64 bits and uses two registers.
const BAR_BYTES: [(usize, u32); 3] = [(0, 0x1000), (2, 0x20_0000), (4, 0x1_0000)];
const MSI: usize = 0x50;
const MSIX: usize = 0x70;
const EXPRESS: usize = 0x80;
/// Number of vectors: one for messages and one for each channel, rounded to a power of two.
pub(super) const VECTORS: usize = 32;
const VECTOR_BYTES: usize = 16;
/// The window with the table of vectors, and the offset of the pending bits in it.
pub(super) const MSIX_BAR: u8 = 4;
const PENDING_BITS: u32 = 0x8000;

/// The configuration space with the table of vectors.
#[derive(Debug)]
pub(super) struct ConfigSpace {
    bytes: Vec<u8>,
    /// Bits that the host can change.
    writable: Vec<u8>,
    vectors: [u8; VECTORS * VECTOR_BYTES],
}

/// An interrupt, as a memory write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterruptWrite {
    pub(super) address: u64,
    pub(super) data: u32,
    /// 2 or 4.
    pub(super) bytes: u32,
}

impl ConfigSpace {
    pub(super) fn new(config: &FirmwareConfig) -> Self {
        let mut space = Self {
            bytes: vec![0; CONFIG_BYTES],
            writable: vec![0; CONFIG_BYTES],
            vectors: [0; VECTORS * VECTOR_BYTES],
        };
        for vector in space.vectors.chunks_mut(VECTOR_BYTES) {
            // Masked.
            vector[12] = 1;
        }
        space.put(0x00, &VENDOR.to_le_bytes());
        space.put(0x02, &AIC100.to_le_bytes());
        // Command: memory, bus master, no pin.
        space.allow(0x04, &0x0406_u16.to_le_bytes());
        // Status: there are capabilities.
        space.put(0x06, &0x0010_u16.to_le_bytes());
        space.put(0x08, &(CLASS << 8 | u32::from(config.hw_version.to_le_bytes()[0])).to_le_bytes());
        for (number, bytes) in BAR_BYTES {
            let at = 0x10 + 4 * number;
            // Memory of 64 bits.
            space.put(at, &4_u32.to_le_bytes());
            space.allow(at, &(!(bytes - 1)).to_le_bytes());
            space.allow(at + 4, &u32::MAX.to_le_bytes());
        }
        space.put(0x2C, &VENDOR.to_le_bytes());
        space.put(0x2E, &AIC100.to_le_bytes());
        space.put(0x34, &[low(MSI)]);
        // One message, with an address of 64 bits.
        space.put(MSI, &[0x05, low(MSIX), 0x80, 0]);
        space.allow(MSI + 2, &[1]);
        space.allow(MSI + 4, &[0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        space.put(MSIX, &[0x11, low(EXPRESS), low(VECTORS - 1), 0]);
        space.allow(MSIX + 3, &[0xC0]);
        space.put(MSIX + 4, &u32::from(MSIX_BAR).to_le_bytes());
        space.put(MSIX + 8, &(PENDING_BITS | u32::from(MSIX_BAR)).to_le_bytes());
        // An endpoint of version 2, with eight lanes of the fourth generation.
        space.put(EXPRESS, &[0x10, 0, 2, 0]);
        space.put(EXPRESS + 0x0C, &0x0000_0084_u32.to_le_bytes());
        space.put(EXPRESS + 0x12, &0x0084_u16.to_le_bytes());
        space.put(EXPRESS + 0x2C, &0x0000_001E_u32.to_le_bytes());
        space
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
    }

    /// Bytes of the space; reads beyond its end return zeros.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) {
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = place(at, index).and_then(|at| self.bytes.get(at)).copied().unwrap_or(0xFF);
        }
    }

    /// Changes the bits that the host can change.
    pub(super) fn write(&mut self, at: u64, from: &[u8]) {
        for (index, byte) in from.iter().enumerate() {
            let Some(at) = place(at, index) else { return };
            if let (Some(old), Some(writable)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *old = *old & !writable | byte & writable;
            }
        }
    }

    /// Bytes of the window with the table of vectors.
    pub(super) fn read_vectors(&self, at: u64, into: &mut [u8]) {
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = place(at, index).and_then(|at| self.vectors.get(at)).copied().unwrap_or(0);
        }
    }

    /// Changes the table of vectors.
    pub(super) fn write_vectors(&mut self, at: u64, from: &[u8]) {
        for (index, byte) in from.iter().enumerate() {
            if let Some(old) = place(at, index).and_then(|at| self.vectors.get_mut(at)) {
                *old = *byte;
            }
        }
    }

    /// The write with which a vector interrupts; `None` if interrupts are off.
    pub(super) fn interrupt(&self, vector: usize) -> Option<InterruptWrite> {
        let word = |bytes: &[u8], at: usize| bytes[at..].first_chunk().copied().map_or(0, u32::from_le_bytes);
        if self.bytes[MSIX + 3] & 0x80 != 0 {
            let entry = self.vectors.chunks(VECTOR_BYTES).nth(vector)?;
            let is_masked = self.bytes[MSIX + 3] & 0x40 != 0 || entry[12] & 1 != 0;
            let address = u64::from(word(entry, 0)) | u64::from(word(entry, 4)) << 32;
            return (!is_masked).then(|| InterruptWrite { address, data: word(entry, 8), bytes: 4 });
        }
        let address = u64::from(word(&self.bytes, MSI + 4)) | u64::from(word(&self.bytes, MSI + 8)) << 32;
        let data = word(&self.bytes, MSI + 12) & 0xFFFF;
        (self.bytes[MSI + 2] & 1 != 0).then_some(InterruptWrite { address, data, bytes: 2 })
    }
}

/// Returns the location of one byte of an access.
pub(super) fn place(at: u64, index: usize) -> Option<usize> {
    usize::try_from(at).ok()?.checked_add(index)
}

/// The low byte of the value.
const fn low(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(space: &ConfigSpace, at: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn windows_answer_their_sizes_and_keep_their_addresses() {
        let mut space = ConfigSpace::new(&FirmwareConfig::default());
        assert_eq!(word(&space, 0), 0xA100_17CB);
        for (at, size_mask) in [(0x10, 0xFFFF_F004), (0x18, 0xFFE0_0004), (0x20, 0xFFFF_0004)] {
            space.write(at, &[0xFF; 8]);
            assert_eq!((word(&space, at), word(&space, at + 4)), (size_mask, u32::MAX));
            space.write(at, &0xF020_0000_u32.to_le_bytes());
            assert_eq!(word(&space, at), 0xF020_0004);
        }
        // The host cannot change other bits, or bytes beyond the end.
        space.write(0, &[0; 4]);
        assert_eq!((word(&space, 0), word(&space, 4096)), (0xA100_17CB, u32::MAX));
        space.write(u64::MAX, &[1, 1]);
    }

    #[test]
    fn interrupts_follow_the_mode_that_the_host_chose() {
        let mut space = ConfigSpace::new(&FirmwareConfig::default());
        assert_eq!(space.interrupt(0), None);
        let msi = MSI as u64;
        space.write(msi + 4, &[0x00, 0x00, 0x0A, 0, 0, 0, 0, 0, 0x21, 0x43]);
        assert_eq!(space.interrupt(0), None);
        space.write(msi + 2, &[0xFF, 0xFF]);
        let write = InterruptWrite { address: 0xA_0000, data: 0x4321, bytes: 2 };
        assert_eq!((space.interrupt(0), space.interrupt(7)), (Some(write), Some(write)));
        // More than one message cannot be enabled.
        assert_eq!(word(&space, msi) >> 16, 0x0081);
        space.write(MSIX as u64 + 2, &[0xFF, 0xFF]);
        assert_eq!(space.interrupt(3), None);
        space.write(MSIX as u64 + 2, &[0, 0x80]);
        assert_eq!(space.interrupt(3), None);
        space.write_vectors(3 * 16, &[0, 0, 0x0A, 0, 1, 0, 0, 0, 9, 8, 7, 6, 0, 0, 0, 0]);
        let write = InterruptWrite { address: 0x1_000A_0000, data: 0x0607_0809, bytes: 4 };
        assert_eq!((space.interrupt(3), space.interrupt(4), space.interrupt(99)), (Some(write), None, None));
    }
}
