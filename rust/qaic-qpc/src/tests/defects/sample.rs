//! A small valid network descriptor, and its parts.

use qaic_qpc::{
    CopyDmaBuffer, Direction, DmaBuffer, ElementType, IoBinding, IoDescriptor, NetworkDesc, Transform,
    TransformKind,
};

pub(crate) fn tensor(dtype: ElementType, dims: &[i32]) -> IoDescriptor {
    IoDescriptor { dtype, dims: dims.to_vec(), ..IoDescriptor::default() }
}

pub(crate) fn step(kind: TransformKind, dtype: ElementType, dims: &[i32]) -> Transform {
    Transform { kind, dtype, scale: 1.0, dims: dims.to_vec(), ..Transform::default() }
}

pub(crate) fn copy(
    dtype: ElementType,
    dims: &[i32],
    dir: Direction,
    offset: u32,
    buffer_num: u32,
) -> Transform {
    let copy_dma_buffer = Some(CopyDmaBuffer { dir, offset, buffer_num });
    Transform { copy_dma_buffer, ..step(TransformKind::CopyDmaBuffer, dtype, dims) }
}

/// One input f32[4] and one output f32[4], each alone in its DMA buffer.
pub(crate) fn network() -> NetworkDesc {
    let f32x4 = || tensor(ElementType::Float32, &[4]);
    let binding = |name: &str, dir, buffer| IoBinding {
        name: name.into(),
        io_initial: f32x4(),
        io_transformed: f32x4(),
        transformseq: vec![copy(ElementType::Float32, &[4], dir, 0, buffer)],
        ..IoBinding::default()
    };
    NetworkDesc {
        major_version: 9,
        network_name: "defects".into(),
        inputs: vec![binding("x", Direction::In, 0)],
        outputs: vec![binding("y", Direction::Out, 1)],
        dma_buffers: vec![
            DmaBuffer { size: 16, dir: Direction::In },
            DmaBuffer { size: 16, dir: Direction::Out },
        ],
        num_cores: 1,
        ..NetworkDesc::default()
    }
}
