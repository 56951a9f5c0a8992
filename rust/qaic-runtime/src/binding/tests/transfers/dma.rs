//! DMA buffers in the memory of a test.

use std::ops::Range;

use qaic_mem::{HostSlice, HostSliceMut};
use qaic_runtime::RuntimeError;
use qaic_runtime::binding::{DmaBuffers, TransferPlan};

/// DMA buffers, each a range of a byte vector.
pub(crate) struct Dma(pub(crate) Vec<(Vec<u8>, Range<usize>)>);

impl Dma {
    /// Buffers that each occupy their whole vector.
    pub(crate) fn whole(buffers: Vec<Vec<u8>>) -> Self {
        Self(buffers.into_iter().map(|bytes| (bytes.clone(), 0..bytes.len())).collect())
    }

    pub(crate) fn bytes(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(|(bytes, _)| bytes.clone()).collect()
    }

    /// Returns the sizes from [`TransferPlan::stage`].
    pub(crate) fn stage(&mut self, plan: &TransferPlan, inputs: &[&[u8]]) -> Result<Vec<u32>, RuntimeError> {
        let inputs: Vec<_> = inputs.iter().map(|input| Some(HostSlice::of(input))).collect();
        let mut resize = vec![0; self.0.len()];
        plan.stage(&inputs, self, &mut resize).map(|()| resize)
    }

    /// Fetches every output.
    pub(crate) fn fetch(
        &mut self,
        plan: &TransferPlan,
        outputs: &mut [&mut [u8]],
    ) -> Result<(), RuntimeError> {
        for (index, (transfer, output)) in plan.outputs.iter().zip(outputs).enumerate() {
            if let Some(place) = transfer.place {
                let buffer = self.dma_buffer(place.buffer)?.into_const();
                plan.fetch_output(index, buffer, HostSliceMut::of(output))?;
            }
        }
        Ok(())
    }
}

impl DmaBuffers for Dma {
    fn dma_buffer(&mut self, index: usize) -> Result<HostSliceMut<'_>, RuntimeError> {
        let (bytes, range) = self.0.get_mut(index).ok_or_else(|| RuntimeError::internal("no buffer"))?;
        Ok(HostSliceMut::of(&mut bytes[range.clone()]))
    }
}
