//! Containers made here, so that no benchmark needs a file that another command builds.
//!
//! One program, in every size: inputs `x0`, `x1`, .. of `[1, 16]` f32 and one output `y`, packed into one DMA buffer each
//! way. [`add_program`] also carries what the `cpu` device needs to run `y = x0 + x1`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use qaic_qpc::metadata::{DmaRequest, Metadata};
use qaic_qpc::writer::{Layout, SegmentData, SegmentSpec, build_in_memory};
use qaic_qpc::{
    ConstantsDesc, CopyDmaBuffer, Direction, DmaBuffer, ElementType, IoBinding, IoDescriptor, NetworkDesc,
    QpcError, Transform, TransformKind, elf, names,
};

/// Elements of every tensor.
pub const ELEMENTS: usize = 16;
/// Bytes of every tensor.
pub const TENSOR_BYTES: usize = ELEMENTS * size_of::<f32>();
/// As the compiler aligns payloads.
const ALIGNMENT: u64 = 64;
const DIMS: [i32; 2] = [1, 16];

/// Descriptor of a program with `inputs` inputs and one output.
pub fn network(inputs: u32) -> NetworkDesc {
    let bytes = u32::try_from(TENSOR_BYTES).unwrap_or(u32::MAX);
    NetworkDesc {
        major_version: 9,
        network_name: "bench".into(),
        inputs: (0..inputs).map(|i| binding(format!("x{i}"), Direction::In, i * bytes)).collect(),
        outputs: vec![binding("y".into(), Direction::Out, 0)],
        dma_buffers: vec![
            DmaBuffer { size: inputs * bytes, dir: Direction::In },
            DmaBuffer { size: bytes, dir: Direction::Out },
        ],
        num_cores: 1,
        batch_size: 1,
        ..NetworkDesc::default()
    }
}

fn binding(name: String, dir: Direction, offset: u32) -> IoBinding {
    let tensor = IoDescriptor {
        dtype: ElementType::Float32,
        qscale: 1.0,
        dims: DIMS.to_vec(),
        ..IoDescriptor::default()
    };
    let copy = Transform {
        kind: TransformKind::CopyDmaBuffer,
        dtype: tensor.dtype,
        scale: 1.0,
        dims: tensor.dims.clone(),
        copy_dma_buffer: Some(CopyDmaBuffer { dir, offset, buffer_num: u32::from(dir == Direction::Out) }),
        ..Transform::default()
    };
    IoBinding {
        name,
        io_initial: tensor.clone(),
        io_transformed: tensor,
        transformseq: vec![copy],
        align: if dir == Direction::In { 4 } else { 0 },
        ..IoBinding::default()
    }
}

/// Container of a program without constants.
pub fn program(network: &NetworkDesc, elf: &[u8]) -> Result<Vec<u8>, QpcError> {
    let constants = ConstantsDesc::default().encode();
    let network = network.encode();
    let segment = |name, payload| SegmentData { name, offset: 0, payload };
    let segments = [
        segment(names::CONSTANTS_DESC, &constants),
        segment(names::NETWORK_ELF, elf),
        segment(names::NETWORK_DESC, &network),
    ];
    build_in_memory(&segments, ALIGNMENT)
}

/// Container of a program for a card: its inputs go to the card's memory, and its output is read from the same place.
pub fn card_program(inputs: u32) -> Result<Vec<u8>, QpcError> {
    let network = network(inputs);
    let request = |num, size| DmaRequest {
        num,
        in_out: u8::from(num == 1),
        size,
        dev_addr_space: 1,
        port_id: 100 + num,
        ..DmaRequest::default()
    };
    let sizes = network.dma_buffers.iter().map(|buffer| buffer.size);
    let metadata = Metadata {
        network_name: network.network_name.clone(),
        dma_requests: (0..).zip(sizes).map(|(num, size)| request(num, size)).collect(),
        hw_version_major: 2,
        num_nsps: 1,
        vtcm_size: 1,
        l2tcm_size: 1,
        static_shared_ddr_size: network.dma_buffers.iter().map(|buffer| u64::from(buffer.size)).sum(),
        ..Metadata::default()
    };
    program(&network, &elf::build(&[("metadata", &metadata.encode_flatbuffer())])?)
}

/// Writes a container with `constants_bytes` of constants, which are a hole in the file.
pub fn write_sparse(path: &Path, network: &NetworkDesc, constants_bytes: u64) -> io::Result<()> {
    let small = [
        (
            names::CONSTANTS_DESC,
            ConstantsDesc { static_constants_size: constants_bytes, ..Default::default() }.encode(),
        ),
        (names::NETWORK_DESC, network.encode()),
        (names::NETWORK_ELF, elf::build(&[]).map_err(io::Error::other)?),
    ];
    let mut specs: Vec<SegmentSpec> = small
        .iter()
        .map(|(name, payload)| SegmentSpec { name: (*name).into(), size: payload.len() as u64, offset: 0 })
        .collect();
    specs.push(SegmentSpec { name: names::CONSTANTS.into(), size: constants_bytes, offset: constants_bytes });
    let layout = Layout::in_memory(&specs, ALIGNMENT).map_err(io::Error::other)?;
    let file = File::create(path)?;
    file.write_all_at(&layout.head, 0)?;
    for ((_, payload), start) in small.iter().zip(&layout.payload_starts) {
        file.write_all_at(payload, *start)?;
    }
    file.set_len(layout.total_size)
}

/// Container of `y = x0 + x1` for the `cpu` device.
pub fn add_program() -> Result<Vec<u8>, QpcError> {
    let edge = |name| format!(r#"{{"name":"{name}","dtype":"float32","dims":[1,16]}}"#);
    let plan = format!(
        r#"{{"version":1,"target":"cpu","inputs":[{},{}],"outputs":[{}],"initializers":[]}}"#,
        edge("x0"),
        edge("x1"),
        edge("y")
    );
    let graph = add_model();
    let elf = elf::build(&[("openqaic_graph", &graph), ("openqaic_plan", plan.as_bytes())])?;
    program(&network(2), &elf)
}

/// The ONNX model `y = x0 + x1`, field by field (onnx.proto3).
pub fn add_model() -> Vec<u8> {
    let dims: Vec<u8> =
        DIMS.iter().flat_map(|&dim| field(1, &varint(1, u64::from(dim.unsigned_abs())))).collect();
    // tensor_type { elem_type: FLOAT, shape }
    let tensor = field(1, &[varint(1, 1), field(2, &dims)].concat());
    let value = |name: &str| [field(1, name.as_bytes()), field(2, &tensor)].concat();
    let node = [field(1, b"x0"), field(1, b"x1"), field(2, b"y"), field(4, b"Add")].concat();
    let graph = [
        field(1, &node),
        field(2, b"add"),
        field(11, &value("x0")),
        field(11, &value("x1")),
        field(12, &value("y")),
    ];
    let opset = varint(2, 17);
    [varint(1, 8), field(7, &graph.concat()), field(8, &opset)].concat()
}

/// A length-delimited field of less than 16 KiB.
fn field(number: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    bytes.extend(base_128(payload.len() as u64));
    bytes.extend(payload);
    bytes
}

fn varint(number: u8, value: u64) -> Vec<u8> {
    let mut bytes = vec![number << 3];
    bytes.extend(base_128(value));
    bytes
}

fn base_128(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
    bytes
}
