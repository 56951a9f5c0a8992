//! Partial inputs: tensors of which the caller may give only the first elements (qpc-format §3.3).
//!
//! The partial inputs of a DMA buffer are packed behind its full-size inputs, anew for every inference. Each has a
//! slice header of 8 bytes at a fixed place, which tells the device where its data begins and how long it is.

use qaic_qpc::network_desc::IoBinding;

use super::{BindingTransfer, TransferPlan};
use crate::buffer::{HostSlice, HostSliceMut};
use crate::error::RuntimeError;

/// Bytes of a slice header: u32 offset of the data in the DMA buffer, u32 bytes of data.
pub const HEADER_BYTES: usize = 8;

/// What does not change between inferences.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialInput {
    /// Index of the input.
    input: usize,
    /// DMA buffer number.
    buffer: usize,
    /// Place of the slice header.
    header: usize,
    /// Bytes of one element; only whole elements are passed on.
    element: usize,
    /// Alignment of the data.
    align: u64,
    /// Bytes that all headers of this buffer take.
    headers: u64,
}

/// Where the data of one partial input lies during one inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index of the input.
    pub input: usize,
    /// DMA buffer number.
    pub buffer: usize,
    /// Byte offset of the slice header.
    pub header: usize,
    /// Byte offset of the data.
    pub offset: usize,
    /// Bytes of the data.
    pub bytes: usize,
}

/// Layout of the partial inputs for one inference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// One per partial input that has data, in input order.
    pub slices: Vec<Slice>,
    /// Per DMA buffer, the end of the last input in it.
    pub extents: Vec<u64>,
    /// Per DMA buffer, its extent where it has partial inputs, else 0.
    pub resize: Vec<u32>,
}

/// The partial inputs among `inputs`; those without a place are optimized away.
pub(super) fn inputs(inputs: &[BindingTransfer], bindings: &[IoBinding]) -> Vec<PartialInput> {
    let mut found: Vec<PartialInput> = Vec::new();
    for (index, (input, binding)) in inputs.iter().zip(bindings).enumerate() {
        if let (Some(place), true) = (input.place(), input.is_partial()) {
            found.push(PartialInput {
                input: index,
                buffer: place.buffer,
                header: place.offset,
                element: input.user_element_bytes(),
                align: u64::from(binding.align.max(1)),
                headers: 0,
            });
        }
    }
    let buffers: Vec<usize> = found.iter().map(|input| input.buffer).collect();
    for input in &mut found {
        input.headers =
            (HEADER_BYTES * buffers.iter().filter(|&&buffer| buffer == input.buffer).count()) as u64;
    }
    found
}

/// See [`TransferPlan::lay_out`]; the count of `user` is checked.
pub(super) fn lay_out(plan: &TransferPlan, user: &[HostSlice]) -> Result<Layout, RuntimeError> {
    let mut layout =
        Layout { slices: Vec::new(), extents: plan.extents.clone(), resize: vec![0; plan.extents.len()] };
    for input in &plan.partial {
        let (binding, given) = (&plan.inputs[input.input], user[input.input].len());
        if given > binding.user_bytes() {
            return Err(binding.wrong_size(given));
        }
        let bytes = given - given % input.element;
        let size = u64::from(plan.dma_bytes[input.buffer]);
        let extent = &mut layout.extents[input.buffer];
        let offset = (*extent).max(input.headers).next_multiple_of(input.align);
        let end = offset + bytes as u64;
        if bytes == 0 {
            // Nothing will lie there, so alignment alone does not make the buffer too small.
            *extent = (*extent).max(offset.min(size));
        } else if end <= size {
            *extent = end;
            let offset = usize::try_from(offset).map_err(|_| binding.wrong_size(given))?;
            layout.slices.push(Slice {
                input: input.input,
                buffer: input.buffer,
                header: input.header,
                offset,
                bytes,
            });
        } else {
            let buffer = format!("DMA buffer {}", input.buffer);
            return Err(RuntimeError::BufferSize { buffer, expected: end, found: size });
        }
        layout.resize[input.buffer] = u32::try_from(*extent).unwrap_or(plan.dma_bytes[input.buffer]);
    }
    Ok(layout)
}

impl Slice {
    /// Writes header and data.
    pub(super) fn write(&self, src: HostSlice, dma: HostSliceMut) -> Result<(), RuntimeError> {
        let header = self.offset as u64 | ((self.bytes as u64) << 32);
        let data = dma.subslice(self.offset, self.bytes);
        let (Some(data), Some(())) = (data, dma.write_from(self.header, &header.to_le_bytes())) else {
            return Err(RuntimeError::BufferSize {
                buffer: format!("DMA buffer {}", self.buffer),
                expected: (self.offset + self.bytes) as u64,
                found: dma.len() as u64,
            });
        };
        data.copy_from(src);
        Ok(())
    }
}
