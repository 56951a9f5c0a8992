//! Layout of partial inputs in their DMA buffers, computed separately for every inference.
//!
//! Partial inputs are packed after the full-size inputs of their buffer. Each has a slice header at a fixed offset,
//! which contains the offset and the size of its data for the device.

use std::collections::BTreeMap;

use super::TransferPlan;
use crate::bytes::{align_up, to_u64};
use crate::error::QpcError;

/// Bytes of a slice header: u32 offset of the data in the DMA buffer, u32 bytes of data.
pub(crate) const HEADER_BYTES: u64 = 8;

/// The data of one partial input in its DMA buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the input.
    pub input: usize,
    /// DMA buffer number.
    pub buffer: u32,
    /// Byte offset of the slice header.
    pub header_offset: u32,
    /// Byte offset of the data.
    pub data_offset: u32,
    /// Number of bytes of data; if 0, neither header nor data are written.
    pub bytes: u32,
}

impl Slice {
    /// Encodes the slice header.
    pub fn header(&self) -> [u8; 8] {
        let value = (u64::from(self.bytes) << 32) | u64::from(self.data_offset);
        value.to_le_bytes()
    }
}

/// Result of packing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialLayout {
    /// Slices of the partial inputs, in input order.
    pub slices: Vec<Slice>,
    /// End of the inputs in each DMA buffer.
    pub extents: Vec<u64>,
    /// Number of bytes of each DMA buffer to transfer; 0 means all.
    pub resize: Vec<u32>,
}

impl TransferPlan {
    /// Returns true if any input may be partial.
    pub fn has_partial_inputs(&self) -> bool {
        self.inputs.iter().any(|input| input.partial_align.is_some())
    }

    /// End of the last full-size input in each DMA buffer.
    pub(crate) fn static_extents(&self) -> Vec<u64> {
        let mut extents = vec![0_u64; self.dma_sizes.len()];
        for input in self.inputs.iter().filter(|input| input.partial_align.is_none()) {
            let Some(place) = input.place else { continue };
            if let Some(extent) = slot(&mut extents, place.buffer) {
                *extent = (*extent).max(u64::from(place.offset).saturating_add(place.bytes));
            }
        }
        extents
    }

    /// Packs the partial inputs for user buffers of `user_bytes` bytes, one per input. Bytes of an incomplete element
    /// are ignored.
    pub fn pack(&self, user_bytes: &[u64]) -> Result<PartialLayout, QpcError> {
        if user_bytes.len() != self.inputs.len() {
            return Err(QpcError::BufferSize {
                binding: "number of input buffers".to_owned(),
                found: to_u64(user_bytes.len()),
                max: to_u64(self.inputs.len()),
            });
        }
        let mut layout = PartialLayout {
            slices: Vec::new(),
            extents: self.static_extents(),
            resize: vec![0; self.dma_sizes.len()],
        };
        if !self.has_partial_inputs() {
            return Ok(layout);
        }
        let headers = self.header_bytes();
        for (index, (input, &given)) in self.inputs.iter().zip(user_bytes).enumerate() {
            let (Some(align), Some(place)) = (input.partial_align, input.place) else { continue };
            if given > input.user_bytes {
                let binding = input.name.to_string();
                return Err(QpcError::BufferSize { binding, found: given, max: input.user_bytes });
            }
            let rest = given.checked_rem(input.user_element_bytes).unwrap_or_default();
            let bytes = given.saturating_sub(rest);
            // The buffer exists: it was checked together with the place.
            let Some(extent) = slot(&mut layout.extents, place.buffer) else { continue };
            let size = self.dma_size(place.buffer);
            let first = (*extent).max(headers.get(&place.buffer).copied().unwrap_or_default());
            let start = align_up(first, u64::from(align)).unwrap_or(u64::MAX);
            let end = start.saturating_add(bytes);
            // Without data, alignment alone cannot make the buffer too small.
            let (start, end) = if bytes == 0 { (start.min(size), end.min(size)) } else { (start, end) };
            let overflow = || QpcError::DmaOutOfBounds {
                binding: input.name.to_string(),
                buffer: place.buffer,
                offset: start,
                len: bytes,
                size,
            };
            if end > size {
                return Err(overflow());
            }
            *extent = (*extent).max(end);
            let narrow = |value: u64| u32::try_from(value).map_err(|_| overflow());
            let resize = narrow(*extent)?;
            if let Some(slot) = slot(&mut layout.resize, place.buffer) {
                *slot = resize;
            }
            layout.slices.push(Slice {
                input: index,
                buffer: place.buffer,
                header_offset: place.offset,
                data_offset: narrow(start)?,
                bytes: narrow(bytes)?,
            });
        }
        Ok(layout)
    }

    fn dma_size(&self, buffer: u32) -> u64 {
        usize::try_from(buffer)
            .ok()
            .and_then(|buffer| self.dma_sizes.get(buffer))
            .map_or(0, |&size| size.into())
    }

    /// Total bytes of the slice headers in each DMA buffer with partial inputs.
    fn header_bytes(&self) -> BTreeMap<u32, u64> {
        let mut headers = BTreeMap::new();
        for input in self.inputs.iter().filter(|input| input.partial_align.is_some()) {
            if let Some(place) = input.place {
                let bytes: &mut u64 = headers.entry(place.buffer).or_default();
                *bytes = bytes.saturating_add(HEADER_BYTES);
            }
        }
        headers
    }
}

fn slot<T>(values: &mut [T], buffer: u32) -> Option<&mut T> {
    usize::try_from(buffer).ok().and_then(|buffer| values.get_mut(buffer))
}
