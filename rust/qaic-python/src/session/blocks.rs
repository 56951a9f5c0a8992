//! float16 arrays of callers and the MXINT8 blocks that the device has in their place (compile-options §5.4).

use qaic_runtime::buffer::{HostSlice, HostSliceMut};
use qaic_runtime::device::cpu::blocks;

/// Bytes of the blocks of an array; `None` when they are more than the address space.
pub(super) fn blocks_bytes(shape: &[isize]) -> Option<usize> {
    let (&columns, outer) = shape.split_last()?;
    let rows = outer.iter().try_fold(1_usize, |rows, &dim| rows.checked_mul(usize::try_from(dim).ok()?))?;
    blocks::blocks_bytes(rows, usize::try_from(columns).ok()?)
}

/// Fills `blocks` with the blocks of a float16 array whose rows have `columns` values. What does not fit is left out.
pub(super) fn encode_array(columns: usize, array: HostSlice, blocks: HostSliceMut) {
    blocks::to_blocks::<blocks::Half>(columns, array, blocks);
}

/// Fills a float16 array with the values of its blocks; those beyond float16 become infinite.
pub(super) fn decode_array(columns: usize, blocks: HostSlice, array: HostSliceMut) {
    blocks::from_blocks::<blocks::Half>(columns, blocks, array);
}
