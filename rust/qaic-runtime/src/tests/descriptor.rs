//! Parts of network descriptors.

use qaic_qpc::{
    CopyDmaBuffer, Direction, DmaBuffer, ElementType, IoBinding, IoDescriptor, Transform, TransformKind,
};

pub(crate) fn tensor(dtype: ElementType, dims: &[i32]) -> IoDescriptor {
    IoDescriptor { dtype, dims: dims.to_vec(), ..IoDescriptor::default() }
}

pub(crate) fn step(kind: TransformKind, dtype: ElementType, dims: &[i32]) -> Transform {
    Transform { kind, dtype, dims: dims.to_vec(), scale: 1.0, ..Transform::default() }
}

/// A copy from or to `place`: buffer and offset.
pub(crate) fn copy(dir: Direction, place: (u32, u32), dtype: ElementType, dims: &[i32]) -> Transform {
    let copy_dma_buffer = Some(CopyDmaBuffer { dir, buffer_num: place.0, offset: place.1 });
    Transform { copy_dma_buffer, ..step(TransformKind::CopyDmaBuffer, dtype, dims) }
}

pub(crate) fn binding(
    name: &str,
    io_initial: IoDescriptor,
    io_transformed: IoDescriptor,
    transformseq: Vec<Transform>,
) -> IoBinding {
    IoBinding {
        name: name.into(),
        io_initial,
        io_transformed,
        transformseq,
        align: 1,
        ..IoBinding::default()
    }
}

/// A binding that is copied unchanged, from or to `place`: buffer and offset.
pub(crate) fn copied(
    name: &str,
    dtype: ElementType,
    dims: &[i32],
    dir: Direction,
    place: (u32, u32),
) -> IoBinding {
    let sequence = vec![copy(dir, place, dtype, dims)];
    binding(name, tensor(dtype, dims), tensor(dtype, dims), sequence)
}

/// DMA buffers of these sizes: buffer 0 for inputs, buffer 1 for outputs.
pub(crate) fn two_buffers(inputs: u32, outputs: u32) -> Vec<DmaBuffer> {
    vec![DmaBuffer { size: inputs, dir: Direction::In }, DmaBuffer { size: outputs, dir: Direction::Out }]
}
