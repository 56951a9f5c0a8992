//! A program that returns its input, on a device that writes the bytes that it reads, or on a card that keeps them at
//! one address of its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use qaic_qpc::metadata::{DmaRequest, Metadata, SemaphoreOp};
use qaic_qpc::{
    ConstantsDesc, CopyDmaBuffer, Direction, DmaBuffer, ElementType, IoShapes, NetworkDesc, TensorShape,
    TransformKind, elf, names, writer,
};
use qaic_runtime::device::RegistryOptions;
use qaic_runtime::{Context, Image};

use crate::descriptor::{binding, copy, step, tensor, two_buffers};

/// Elements of each tensor.
pub(crate) const ELEMENTS: u32 = 64;

/// Values of a row of [`blocks`], and the bytes of its blocks.
pub(crate) const BLOCK_VALUES: usize = 60;
const BLOCK_BYTES: i32 = 66;

/// A context with `noop` devices that no other test uses: contexts with equal options share devices.
pub(crate) fn noop(options: RegistryOptions) -> Arc<Context> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let marker = format!("{}-{}", module_path!(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (kind, engine_candidates) = (Some("noop".to_owned()), vec![marker.into()]);
    Context::new(&RegistryOptions { kind, engine_candidates, ..options }).unwrap()
}

/// A program of one f32 input and one f32 output, with the layout `device` in device memory.
pub(crate) fn image(device: ElementType) -> Arc<Image> {
    container(&network(device), &[])
}

/// [`image`] of float32 from this project's compiler, with this plan.
#[cfg(feature = "emu")]
pub(crate) fn planned(plan: &str) -> Arc<Image> {
    container(&network(ElementType::Float32), &[("openqaic_plan", plan.as_bytes())])
}

/// [`image`] of float32 with this plan, a graph, and these constants.
#[cfg_attr(not(feature = "cpu"), allow(dead_code))]
pub(crate) fn cpu_program(plan: &str, constants: &[u8]) -> Arc<Image> {
    let network = network(ElementType::Float32);
    let sections: [(&str, &[u8]); 2] = [("openqaic_plan", plan.as_bytes()), ("openqaic_graph", b"graph")];
    container_with(&network, &sections, constants)
}

/// [`image`] of float32 whose output is the input of the next inference.
pub(crate) fn retaining() -> Arc<Image> {
    let mut network = network(ElementType::Float32);
    network.outputs[0].name = "x_RetainedState".into();
    container(&network, &[])
}

/// [`retaining`], whose state callers read and write between inferences.
pub(crate) fn with_split_state() -> Arc<Image> {
    let mut network = network(ElementType::Float32);
    network.outputs[0].name = "x_RetainedState".into();
    let plan = r#"{"version":2,"target":"cpu","inputs":[],"outputs":[],"initializers":[]"#;
    let plan = format!(r#"{plan},"retained_state":true,"split_retained_state_io":true}}"#);
    container(&network, &[("openqaic_plan", plan.as_bytes())])
}

/// A program whose tensors are two rows of blocks, of 60 values each.
pub(crate) fn blocks() -> Arc<Image> {
    let mut network = network_of(ElementType::UInt8Q, ElementType::UInt8Q);
    for binding in network.inputs.iter_mut().chain(&mut network.outputs) {
        binding.io_initial.dims = vec![2, BLOCK_BYTES];
        binding.io_transformed.dims = vec![2, BLOCK_BYTES];
        binding.transformseq[0].dims = vec![2, BLOCK_BYTES];
    }
    for buffer in &mut network.dma_buffers {
        buffer.size = 2 * BLOCK_BYTES.unsigned_abs();
    }
    let tensor = |name| format!(r#"{{"name":"{name}","dtype":"uint8","dims":[],"mxint8":{BLOCK_VALUES}}}"#);
    let plan = format!(
        r#"{{"version":2,"target":"cpu","inputs":[{}],"outputs":[{}],"initializers":[]}}"#,
        tensor("x"),
        tensor("y")
    );
    container(&network, &[("openqaic_plan", plan.as_bytes())])
}

/// A program of float32 with an input and two outputs that return it, all with [`ELEMENTS`] elements or all
/// with half as many.
pub(crate) fn resizable() -> Arc<Image> {
    let mut network = network(ElementType::Float32);
    let (dir, offset) = (Direction::Out, ELEMENTS * 4);
    let mut second = network.outputs[0].clone();
    second.name = "z".into();
    second.transformseq[0].copy_dma_buffer = Some(CopyDmaBuffer { dir, offset, buffer_num: 1 });
    network.outputs.push(second);
    network.dma_buffers[1].size = 2 * offset;
    network.allowed_shapes = [ELEMENTS, ELEMENTS / 2]
        .map(|elements| {
            let dims = vec![1, i32::try_from(elements).unwrap()];
            IoShapes { shapes: vec![TensorShape { dtype: ElementType::Float32, dims }; 3] }
        })
        .into();
    container(&network, &[])
}

fn network(device: ElementType) -> NetworkDesc {
    network_of(ElementType::Float32, device)
}

fn network_of(user: ElementType, device: ElementType) -> NetworkDesc {
    let bytes = ELEMENTS * u32::try_from(device.size_bytes().unwrap()).unwrap();
    let dims = [1, i32::try_from(ELEMENTS).unwrap()];
    let copy = |dir, buffer| copy(dir, (buffer, 0), device, &dims);
    let convert = |to| step(TransformKind::Convert, to, &dims);
    let mut inward = vec![convert(device), copy(Direction::In, 0)];
    let mut outward = vec![copy(Direction::Out, 1), convert(user)];
    if device == user {
        inward.remove(0);
        outward.pop();
    }
    let binding = |name, from, to, sequence| binding(name, tensor(from, &dims), tensor(to, &dims), sequence);
    NetworkDesc {
        major_version: 9,
        inputs: vec![binding("x", user, device, inward)],
        outputs: vec![binding("y", device, user, outward)],
        dma_buffers: two_buffers(bytes, bytes),
        num_cores: 1,
        batch_size: 1,
        ..NetworkDesc::default()
    }
}

/// Metadata for a card that transfers every buffer to or from one address of its memory.
fn card_metadata(network: &NetworkDesc) -> Metadata {
    let request = |(num, buffer): (u16, &DmaBuffer)| DmaRequest {
        num,
        in_out: u8::from(buffer.dir == Direction::Out),
        size: buffer.size,
        dev_addr_space: 1,
        port_id: 100 + num,
        ..DmaRequest::default()
    };
    Metadata {
        dma_requests: (0..).zip(&network.dma_buffers).map(request).collect(),
        hw_version_major: 2,
        num_nsps: 1,
        vtcm_size: 1,
        l2tcm_size: 1,
        static_shared_ddr_size: network
            .dma_buffers
            .iter()
            .map(|buffer| buffer.size.into())
            .max()
            .unwrap_or(0),
        ..Metadata::default()
    }
}

/// Metadata for a card that transfers every buffer to or from its own address. The last input signals that all inputs
/// have arrived, and the first output waits for a signal of the cores.
#[cfg_attr(not(feature = "emu"), allow(dead_code))] // for cards
pub(crate) fn synchronized_metadata(buffers: &[DmaBuffer]) -> Metadata {
    let mut end = 0;
    let mut requests = Vec::new();
    for (dir, in_out) in [(Direction::In, 0), (Direction::Out, 1)] {
        let begin = requests.len();
        for (num, buffer) in (0..).zip(buffers).filter(|(_, buffer)| buffer.dir == dir && buffer.size > 0) {
            requests.push(DmaRequest {
                num,
                size: buffer.size,
                in_out,
                dev_addr_space: 1,
                dev_offset: end,
                port_id: 100 + u16::from(in_out),
                ..DmaRequest::default()
            });
            end += u64::from(buffer.size);
        }
        if in_out == 0 {
            // The fence waits for all earlier transfers of both directions, as the compiler writes it.
            let signal = SemaphoreOp { in_sync_fence: 1, out_sync_fence: 1, ..semaphore(0, 2, 0) };
            requests.last_mut().unwrap().semaphore_ops = vec![signal];
        } else {
            requests[begin].semaphore_ops = vec![semaphore(1, 5, 1), semaphore(1, 3, 0)];
        }
    }
    Metadata {
        dma_requests: requests,
        hw_version_major: 2,
        num_nsps: 1,
        num_semaphores: 2,
        semaphore_init_state: vec![0, 0],
        static_shared_ddr_size: end,
        vtcm_size: 1,
        l2tcm_size: 1,
        ..Metadata::default()
    }
}

fn semaphore(sem_num: u16, sem_op: u8, pre_or_post: u8) -> SemaphoreOp {
    SemaphoreOp { sem_num, sem_op, pre_or_post, sem_value: u16::from(sem_op == 5), ..SemaphoreOp::default() }
}

/// A container with this descriptor, and these sections in its ELF.
pub(crate) fn container(network: &NetworkDesc, sections: &[(&str, &[u8])]) -> Arc<Image> {
    container_with(network, sections, &[])
}

fn container_with(network: &NetworkDesc, sections: &[(&str, &[u8])], constants: &[u8]) -> Arc<Image> {
    let metadata = card_metadata(network).encode_flatbuffer();
    let sections = [&[("metadata", metadata.as_slice())], sections].concat();
    let static_constants_size = constants.len() as u64;
    let descriptor = ConstantsDesc { static_constants_size, ..ConstantsDesc::default() };
    let payloads = [
        (names::CONSTANTS, constants.to_vec()),
        (names::CONSTANTS_DESC, descriptor.encode()),
        (names::NETWORK_ELF, elf::build(&sections).unwrap()),
        (names::NETWORK_DESC, network.encode()),
    ];
    let segments = payloads.each_ref().map(|(name, payload)| {
        let offset = if *name == names::CONSTANTS { static_constants_size } else { 0 };
        writer::SegmentData { name, offset, payload }
    });
    Image::from_bytes(writer::build_in_memory(&segments, 64).unwrap()).unwrap()
}
